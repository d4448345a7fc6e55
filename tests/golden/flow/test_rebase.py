"""A rebase from the last check: which of several checks is the last."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from tests.golden_training import Lab, run_in_process

from assay.golden.flow.rebase import rebase_file
from assay.golden.requests import RebaseRequest
from assay.golden.results import Rebased
from assay.values.verdict import VerdictKind


def rebase(lab: Lab, source: Literal["gather", "check"]) -> tuple[Rebased, ...]:
    request = RebaseRequest(file=str(lab.file), store=str(lab.store), reason="x", source=source)
    return rebase_file(request, lab.options())


def test_of_two_checks_in_one_second_the_later_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names have the second and a random word, so that the earlier check may come last by name."""
    run_in_process(monkeypatch)
    lab = Lab(tmp_path)
    monkeypatch.chdir(tmp_path)
    lab.use_golden()
    stamps = iter(("20260101-000000-ffff", "20260101-000000-0000"))
    monkeypatch.setattr("assay.golden.flow.check.build_stamp", lambda: next(stamps))
    lab.change(scale=1.2)
    assert lab.check_one().verdict.kind is VerdictKind.FAIL
    lab.change()
    assert lab.check_one().verdict.kind is VerdictKind.PASS
    (rebased,) = rebase(lab, "check")
    assert rebased.refusals == ()


@pytest.mark.parametrize("source", ["gather", "check"])
def test_a_recording_of_a_program_that_does_not_train_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Literal["gather", "check"]
) -> None:
    run_in_process(monkeypatch)
    lab = Lab(tmp_path)
    lab.use_golden()
    lab.change(always="0.693147")
    (rebased,) = rebase(lab, source)
    assert not rebased.is_accepted
    assert rebased.refusals == ("loss is 0.693147 at every step of the recording: nothing shows that it trains",)


def test_a_checkpoint_that_is_not_the_recorded_one_is_refused(lab: Lab) -> None:
    lab.use_golden()
    (lab.store / "ckpts" / "model_10.bin").write_text("another one")
    (rebased,) = rebase(lab, "check")
    assert not rebased.is_accepted
    assert "model_10.bin is not the one that was recorded" in rebased.refusals[0]
