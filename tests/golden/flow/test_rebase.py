"""A rebase from the last check: which of several checks is the last."""

from __future__ import annotations

import ast
import gzip
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.golden.two_sides import MANIFEST, TwoSides
from tests.golden_training import Lab, messages, run_in_process

from assay.golden.flow.rebase import rebase_file
from assay.golden.flow.runs import follow_specs
from assay.golden.recorder import Values
from assay.golden.requests import RebaseRequest
from assay.golden.results import Rebased
from assay.launch.api import Report
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


def test_runs_that_a_disk_ended_are_not_called_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_in_process(monkeypatch)
    lab = Lab(tmp_path)
    monkeypatch.chdir(tmp_path)
    lab.use_golden()

    def fill_disk(*arguments: Any) -> tuple[Report, dict[str, Values]]:
        report, logged = follow_specs(*arguments)
        return replace(report, problem="cannot write: no space"), logged

    monkeypatch.setattr("assay.golden.flow.rebase.follow_specs", fill_disk)
    (rebased,) = rebase(lab, "check")
    assert (rebased.interrupted, rebased.refusals, rebased.exit_code) == (None, ("cannot write: no space",), 1)


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


CHECK = ("check", "--no-early-stop")
REBASE = ("rebase", "--artifacts", "kept", "--reason", "a larger offset")


@pytest.fixture(scope="module")
def kept_by_ci(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A golden of two recordings, and two checks of a code that moved, as the machine of CI has them."""
    elsewhere = TwoSides(tmp_path_factory.mktemp("ci"))
    elsewhere.gather(NOISE="0.00001")
    elsewhere.move_code(1.05)
    elsewhere.commit("second")
    for _ in range(2):
        assert elsewhere.run(*CHECK, NOISE="0.00001").code == 1
    return elsewhere.folder


@pytest.fixture
def elsewhere(kept_by_ci: Path, tmp_path: Path) -> TwoSides:
    """Another machine: the repository and the store, and in `kept` the runs of CI."""
    found = object.__new__(TwoSides)
    found.folder = tmp_path / "elsewhere"
    shutil.copytree(kept_by_ci, found.folder, ignore=shutil.ignore_patterns("runs"))
    shutil.copytree(kept_by_ci / "runs", found.folder / "kept")
    return found


def newest(elsewhere: TwoSides) -> Path:
    return max((elsewhere.folder / "kept/golden-fit/.assay/golden").glob("*-check.json.gz"))


def refuse(elsewhere: TwoSides, *words: str) -> str:
    before = elsewhere.manifest.read_text()
    ended = elsewhere.run(*REBASE, *words).ended(1)
    assert elsewhere.manifest.read_text() == before
    return ended.out


def test_the_runs_of_two_checks_become_the_golden_and_nothing_is_run(elsewhere: TwoSides) -> None:
    ended = elsewhere.run(*REBASE, "--only-failing", "--md", "pr.md")
    assert ended.code == 0, ended.out + ended.err
    assert not (elsewhere.folder / "runs").exists()
    heading, _, reason, _, *table = (elsewhere.folder / "pr.md").read_text().splitlines()
    assert heading == "### Golden fit: rebased"
    assert reason.startswith("a larger offset (")
    assert reason.endswith(", from artifacts)")
    assert table[0] == "| metric | old | new | effect | noise | result | since the first |"
    name, old, new, effect, noise, result, _ = (cell.strip() for cell in table[2].strip("|").split("|"))
    assert (name, result) == ("loss", "moved")
    assert float(new) - float(old) == pytest.approx(0.05, abs=1e-3)
    assert effect.startswith("+2.4")
    assert noise.startswith("±0.")
    assert str(elsewhere.folder) not in (elsewhere.folder / "pr.md").read_text(), "no path of a machine"
    again = elsewhere.run("check", NOISE="0.00001")
    assert again.code == 0, again.out
    assert "2 recordings of each segment" in again.out


def test_a_test_that_passed_stays(elsewhere: TwoSides) -> None:
    assert elsewhere.run(*REBASE).code == 0
    shutil.rmtree(elsewhere.folder / "kept")
    assert elsewhere.run(*CHECK, NOISE="0.00001").code == 0
    (elsewhere.folder / "runs").rename(elsewhere.folder / "kept")
    before = elsewhere.manifest.read_text()
    ended = elsewhere.run(*REBASE, "--only-failing")
    assert (ended.code, ended.out) == (0, "fit: left as it is: it passed in the artifacts\n")
    assert elsewhere.manifest.read_text() == before


def test_artifacts_may_be_the_root_the_study_or_a_folder_around(elsewhere: TwoSides) -> None:
    elsewhere.manifest.with_suffix(".copy").write_text(elsewhere.manifest.read_text())
    for folder in (".", "kept/golden-fit"):
        elsewhere.manifest.write_text(elsewhere.manifest.with_suffix(".copy").read_text())
        ended = elsewhere.run("rebase", "--artifacts", folder, "--reason", "x")
        assert ended.code == 0, ended.out


def test_a_run_that_crashed_after_its_last_step_never_becomes_a_golden(elsewhere: TwoSides) -> None:
    shutil.rmtree(elsewhere.folder / "kept")
    assert elsewhere.run(*CHECK, FAIL_AT_END="1").code == 1
    (elsewhere.folder / "runs").rename(elsewhere.folder / "kept")
    assert "segment 0 has no complete run in the artifacts: train ended with exit code 1" in refuse(
        elsewhere, "--allow-wider"
    )


def test_fewer_recordings_than_before_are_refused(elsewhere: TwoSides) -> None:
    newest(elsewhere).unlink()
    assert "1 recording of each segment instead of 2" in refuse(elsewhere)
    ended = elsewhere.run(*REBASE, "--allow-wider")
    assert ended.code == 0, ended.out


def test_runs_of_a_check_with_another_verdict_are_not_added(elsewhere: TwoSides) -> None:
    """The two checks are of one commit, in environments that differ by a variable."""
    shutil.rmtree(elsewhere.folder / "kept")
    assert elsewhere.run(*CHECK, SCALE="0.9").code == 3
    assert elsewhere.run(*CHECK).code == 1
    (elsewhere.folder / "runs").rename(elsewhere.folder / "kept")
    assert "1 recording of each segment instead of 2" in refuse(elsewhere)


def test_artifacts_of_another_golden_are_refused(elsewhere: TwoSides) -> None:
    elsewhere.gather(NOISE="0.00001")
    text = refuse(elsewhere)
    assert "the check in the artifacts was of another golden, recorded 20" in text
    assert "assay golden check golden.yml --no-early-stop" in text


def edit_logs(elsewhere: TwoSides, change: Callable[[str], str]) -> None:
    for log in elsewhere.folder.glob("kept/golden-fit/check-*/train.log"):
        log.write_text(change(log.read_text()))


def rename_test(elsewhere: TwoSides) -> None:
    for path in (elsewhere.folder / "kept/golden-fit/.assay/golden").glob("*-check.json.gz"):
        content = gzip.decompress(path.read_bytes()).replace(b'"test": "fit"', b'"test": "fat"')
        path.write_bytes(gzip.compress(content))


def change_code(elsewhere: TwoSides) -> None:
    older = min((elsewhere.folder / "kept/golden-fit").glob("check-*")) / "environment.json"
    older.write_text(older.read_text().replace('"commit": "', '"commit": "0'))


def cut_report(elsewhere: TwoSides) -> None:
    newest(elsewhere).write_bytes(newest(elsewhere).read_bytes()[:-30])


NO_RUN = ("segment 0 has no complete run in the artifacts", "assay golden check golden.yml --no-early-stop")


@pytest.mark.parametrize(
    ("damage", "messages"),
    [
        (cut_report, ("is damaged",)),
        (rename_test, ("the artifacts are of the test fat, not of fit",)),
        (change_code, ("1 recording of each segment instead of 2",)),  # runs of another code are not added
        (lambda elsewhere: edit_logs(elsewhere, lambda text: "".join(text.splitlines(keepends=True)[:6])), NO_RUN),
        (
            lambda elsewhere: edit_logs(elsewhere, lambda text: text.replace("step 4 loss ", "step 4 loss nan #")),
            ("refused: segment 0 loss is nan at step 4",),
        ),
        (
            lambda elsewhere: [path.unlink() for path in elsewhere.folder.glob("kept/*/check-*/run.json")],
            ("lacks the run check-",),
        ),
        (
            lambda elsewhere: shutil.rmtree(elsewhere.folder / "kept/golden-fit/.assay/golden"),
            ("has no report of a check",),
        ),
        (lambda elsewhere: shutil.rmtree(elsewhere.folder / "kept"), ("there is no folder kept",)),
        (
            lambda elsewhere: (elsewhere.folder / "kept/golden-fit").rename(elsewhere.folder / "kept/golden-other"),
            ("kept has no runs of golden-fit", "golden-other"),
        ),
    ],
)
def test_artifacts_that_are_damaged_or_of_something_else_are_refused(
    elsewhere: TwoSides, damage: Callable[[TwoSides], object], messages: tuple[str, ...]
) -> None:
    damage(elsewhere)
    text = refuse(elsewhere)
    assert all(message in text for message in messages), text


def test_options_that_do_not_go_together(elsewhere: TwoSides) -> None:
    for words, message in (
        (("--artifacts", "kept"), "--reason"),
        (("--artifacts", "kept", "--reason", " "), "a rebase needs a reason"),
        (("--only-failing", "--reason", "x"), "--only-failing needs --artifacts"),
        (("--artifacts", "kept", "--environment-only", "--reason", "x"), "--environment-only is not for --artifacts"),
        (("--artifacts", "kept", "--from", "check", "--reason", "x"), "--from is not for --artifacts"),
        (("--reason", "x", "-s", "my store"), "gather it first: assay golden gather golden.yml -s 'my store'\n"),
    ):
        ended = elsewhere.run("rebase", *words)
        assert (ended.code, message in ended.err) == (2, True), ended.err


def test_a_manifest_is_compact_and_a_diff_shows_the_steps_that_moved(elsewhere: TwoSides) -> None:
    lines = elsewhere.manifest.read_text().splitlines()
    (first,) = [line for line in lines if line.startswith('                "1": {"loss": {"0": "')]
    assert first.endswith('"}},')
    assert len([line for line in lines if '"values": [' in line]) == 1, "a list of numbers is one line"
    assert len(lines) < 120
    assert elsewhere.manifest.name == MANIFEST
