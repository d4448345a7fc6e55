"""A rebase from the last check: which of several checks is the last."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.golden_training import Lab, messages, run_in_process

from assay.golden.flow.rebase import rebase_file
from assay.golden.requests import RebaseRequest
from assay.golden.results import Rebased
from assay.values.verdict import VerdictKind

UNMATCHED = r"""
study: demo
command: python3 training.py
metrics: {step: 'Iteration: (\d+)', loss: 'Loss: ({number})'}
golden: {segment: 20, replicas: 3, seed: --seed, metrics: {loss: {rule: unmatched, delta: 50%}}}
"""


def rebase(lab: Lab, source: Literal["gather", "check"], **given: Any) -> tuple[Rebased, ...]:
    request = RebaseRequest(file=str(lab.file), store=str(lab.store), reason="x", source=source, **given)
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


def test_a_check_after_a_rebase_from_a_check_has_a_seed_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would otherwise repeat a recorded run, and pass bit for bit."""
    run_in_process(monkeypatch)
    monkeypatch.chdir(tmp_path)
    lab = Lab(tmp_path)
    lab.write_native(UNMATCHED)
    lab.edit("change.get('scale', 1.0)", "(1 + __import__('random').Random(99 * options.seed + step).random() / 9)")
    assert lab.gather().tests[0].verdict.kind is VerdictKind.PASS
    calls = lab.folder / "calls"
    (tmp_path / ".gitignore").write_text("calls\nstore/\nruns/\n")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)

    def list_seeds() -> list[int]:
        words = [ast.literal_eval(line) for line in calls.read_text().splitlines()]
        calls.unlink()
        return [int(call[call.index("--seed") + 1]) for call in words if "--seed" in call]

    recorded, judged = list_seeds(), list[int]()
    kept = str(tmp_path / "runs")
    for _ in range(3):
        assert lab.check_one(early_stop=False).verdict.kind is VerdictKind.PASS
    request = RebaseRequest(file=str(lab.file), store=str(lab.store), reason="x", artifacts=kept)
    (rebased,) = rebase_file(request, lab.options())
    assert rebased.refusals[0] == "1 recording of each segment instead of 3", "all three checks have the seed 1001"
    list_seeds()
    for _ in range(2):  # the second golden has the seeds after those of the first
        checked = lab.check_one()
        assert checked.verdict.kind is VerdictKind.PASS, messages(checked)
        judged = list_seeds()
        assert not {*judged} & {*recorded}
        lab.check_one()
        assert list_seeds() == judged, "the store is the same"
        (rebased,) = rebase(lab, "check", allow_wider=True)
        assert rebased.is_accepted, rebased.refusals
        recorded = [*judged, *list_seeds()]
        assert len({*recorded}) == len(recorded) == 3, (
            "the run of the check is reused, and each other seed is used once"
        )
    lab.edit("99 * options.seed", "99 * min(1005, options.seed)")
    assert "does the program read --seed?" in messages(lab.check_one())
    assert list_seeds() == [1007]
    manifest = lab.manifest
    del manifest["provenance"]["check_runs"]  # of an earlier version: as many as it has recordings
    lab.manifest_path.write_text(json.dumps(manifest))
    lab.check_one()
    assert list_seeds() == [1004]


def test_a_checkpoint_that_is_not_the_recorded_one_is_refused(lab: Lab) -> None:
    lab.use_golden()
    (lab.store / "ckpts" / "model_10.bin").write_text("another one")
    (rebased,) = rebase(lab, "check")
    assert not rebased.is_accepted
    assert "model_10.bin is not the one that was recorded" in rebased.refusals[0]
