"""Goldens without checkpoints: every run begins at step 0, and is ended by us when its segment is complete."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.golden_training import Lab, messages, run_in_process

from assay.cli.main import run
from assay.errors import ExitCode
from assay.follow.api import StudyLocation
from assay.golden.flow.rebase import rebase_file
from assay.golden.page import build_golden_page
from assay.golden.requests import RebaseRequest
from assay.golden.values import GoldenTestReport
from assay.system import processes
from assay.values.run import State
from assay.values.verdict import VerdictKind

STUDY = r"""
study: demo
command: python3 training.py
metrics: {step: 'Iteration: (\d+)', loss: 'Loss: ({number})'}
golden: {segment: 20, replicas: 2}
"""
COUNTED = STUDY.replace(r"step: 'Iteration: (\d+)', ", "")
ENDLESS = {"hold_at": 25}  # the training logs 26 steps, and then nothing for ten minutes


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab in which every training is a job, as it is for users."""
    monkeypatch.chdir(tmp_path)
    lab = Lab(tmp_path)
    lab.write_native(STUDY)
    return lab


@pytest.fixture
def plain(real: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab in which trainings that end by themselves are executed in this process."""
    run_in_process(monkeypatch)
    return real


def find_left(report: GoldenTestReport) -> list[int]:
    """Find processes of the report's runs that are still running."""
    runs = [*report.runs, *(run for segment in report.segments for run in segment.runs)]
    tags = {run.dir.encode() for run in runs}
    return [pid for pid in processes.list_pids() if processes.load_variable(pid, "ASSAY_RUN_DIR") in tags]


def test_a_program_without_a_length_is_ended_after_its_segment_and_that_is_not_a_failure(real: Lab) -> None:
    real.change(**ENDLESS, child=True)
    (gathered,) = real.gather().tests
    assert gathered.verdict.kind is VerdictKind.PASS, messages(gathered)
    assert [(run.state, run.reason) for run in gathered.runs] == [(State.PRUNED, "its segment is complete")] * 2
    assert find_left(gathered) == []
    assert real.calls() == [[], []]  # the command has no further arguments
    assert sorted(os.listdir(real.store)) == [real.manifest_path.name]
    assert real.manifest["format"] == 3
    (log,) = real.logs.values()
    assert (log["checkpoint"], log["start_step"], list(log["results"])) == (None, 0, [str(step) for step in range(20)])
    checked = real.check_one()
    assert (checked.verdict.kind, checked.verdict.comparisons) == (VerdictKind.PASS, 20)
    assert checked.segments[0].runs[0].state is State.PRUNED
    assert not any("went on to step" in note for note in checked.notes)
    assert find_left(checked) == []


def test_a_worse_training_fails_and_is_ended_whether_early_or_at_its_end(real: Lab) -> None:
    """A training that ignores the signal is ended, too."""
    real.use_golden()
    script = real.folder / "training.py"
    script.write_text("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + script.read_text())
    real.change(**ENDLESS, scale=1.5)
    for early_stop, state in ((True, State.STOPPED), (False, State.PRUNED)):
        checked = real.check_one(early_stop=early_stop, grace_s=0.2)
        assert checked.verdict.kind is VerdictKind.FAIL
        assert checked.segments[0].runs[0].state in (state, State.PRUNED)
        assert find_left(checked) == []


def test_a_program_that_takes_its_length_ends_by_itself_and_a_shorter_one_is_recorded_with_a_warning(
    plain: Lab,
) -> None:
    plain.write_native(STUDY.replace("segment: 20", "segment: 20, length: --until"))
    (gathered,) = plain.gather().tests
    assert [run.state for run in gathered.runs] == [State.DONE] * 2
    assert plain.calls() == [["--until", "20"]] * 2
    assert plain.check_one().verdict.kind is VerdictKind.PASS
    assert plain.calls()[-1] == ["--until", "20"]
    plain.write_native(STUDY.replace("segment: 20", "segment: 300"))
    (gathered,) = plain.gather().tests
    assert gathered.verdict.kind is VerdictKind.PASS
    words = "the training ended at step 29, before its segment of 300 steps was complete: all of it is recorded"
    assert words in gathered.warnings
    assert plain.check_one().verdict.comparisons == 30
    plain.change(until=12)
    checked = plain.check_one()
    assert checked.verdict.kind is VerdictKind.ERROR
    assert "the last value of the check is at step 11: 18 of 30 steps are missing" in messages(checked)


def test_checkpoints_without_a_length_are_checked_too(real: Lab) -> None:
    section = (
        "{segment: 6, replicas: 2, save: 'Saving model to: (\\S+)', checkpoint: --ckpt, resume: --load, start: --start}"
    )
    real.write_native(STUDY.replace("{segment: 20, replicas: 2}", section))
    real.use_golden()
    assert real.manifest["format"] == 2
    real.change(hold_at=28)
    checked = real.check_one()
    assert (checked.verdict.kind, len(checked.segments)) == (VerdictKind.PASS, 2)
    assert "demo has no length to count" in messages(real.gather(counting=True).tests[0])


def test_without_a_pattern_of_the_step_the_values_of_each_metric_are_counted(plain: Lab) -> None:
    plain.write_native(COUNTED.replace("loss: 'Loss", "late: 'late ({number})', loss: 'Loss"))
    plain.edit("    if step == change", "    if step % 5 == 0: print('late', step + 1)\n    if step == change")
    (gathered,) = plain.gather().tests
    assert gathered.verdict.kind is VerdictKind.PASS, messages(gathered)
    assert gathered.golden is not None
    tracks = gathered.golden.segments[0].tracks
    assert tracks["loss"][""][0].steps == tuple(range(1, 21))
    assert tracks["loss"][""][0].values[:2] == (2.0, 1.0)
    assert tracks["late"][""][0].steps == (1, 2, 3, 4)  # what comes after the 20 values of loss is not read
    assert plain.check_one().verdict.kind is VerdictKind.PASS
    plain.change(scale=1.5)
    assert plain.check_one().verdict.kind is VerdictKind.FAIL


UNRECORDED: list[tuple[str, dict[str, Any], str]] = [
    (STUDY, {"exit": 3}, "the training failed: train ended with exit code 3"),
    (STUDY, {"loss": {"12": "nan"}}, "segment 0 loss is nan at step 12: the recording is not valid"),
    (STUDY, {"again": {"12": ["9", "8"]}}, "loss at step 12 is logged twice: 0.153846 and 9; nothing is recorded"),
    (STUDY.replace("Iteration", "iteration"), {}, "no line matches the pattern of the step (the log is in "),
    (STUDY.replace("Loss", "loss"), {}, "no line matches the pattern of loss (the log is in "),
    (COUNTED.replace("Loss", "loss"), {}, "no line matches the pattern of loss (the log is in "),
    (STUDY, {"without": list(range(25))}, "loss was not logged in the first 20 steps"),
    (STUDY, {"always": "0.5"}, "loss is 0.5 at every step of the recording: nothing shows that it trains"),
]


def test_of_equal_replicas_one_limit_of_rounding_is_named(plain: Lab) -> None:
    (report,) = plain.gather().tests
    notes = "\n".join(report.notes)
    assert 'so any difference above rounding (the limit after "CHANGED from") is CHANGED' in notes
    assert notes.count("CHANGED from ") == 1
    assert "0.001%" not in notes


def test_a_recording_that_shows_no_training_does_not_replace_a_good_one(plain: Lab) -> None:
    plain.use_golden()
    before = plain.manifest_path.read_bytes()
    plain.change(always="0.5")
    (report,) = plain.gather().tests
    assert report.verdict.kind is VerdictKind.INCONCLUSIVE
    kept = f"the previous golden recording is unchanged: {plain.manifest_path}; remove that file and gather again"
    assert any(note.startswith(kept) for note in report.notes)
    assert (plain.manifest_path.read_bytes(), plain.partial["complete"]) == (before, False)
    plain.manifest_path.unlink()
    plain.gather()
    assert plain.manifest["complete"], "nothing is left that it could replace"


def test_a_seed_that_is_not_read_is_named(plain: Lab) -> None:
    """Runs of `unmatched` metrics have other seeds, and are never equal bit for bit."""
    section = "{segment: 20, replicas: 3, seed: --seed, metrics: {loss: {rule: unmatched, delta: 50%}}}"
    plain.write_native(STUDY.replace("{segment: 20, replicas: 2}", section))
    words = "segment 0: runs with other seeds are equal bit for bit: does the program read --seed?"
    (gathered,) = plain.gather().tests
    assert (gathered.verdict.kind, words in messages(gathered)) == (VerdictKind.INCONCLUSIVE, True)
    plain.edit("change.get('scale', 1.0)", "(1 + __import__('random').Random(99 * options.seed + step).random() / 9)")
    assert plain.gather().tests[0].verdict.kind is VerdictKind.PASS
    assert plain.check_one().verdict.kind is VerdictKind.PASS
    plain.edit("99 * options.seed + step", "step")
    checked = plain.check_one()
    assert (checked.verdict.kind, words in messages(checked)) == (VerdictKind.INCONCLUSIVE, True)


def test_what_cannot_be_recorded_is_named(plain: Lab) -> None:
    for study, change, words in UNRECORDED:
        plain.write_native(study)
        plain.change(**change)
        (gathered,) = plain.gather().tests
        assert words in messages(gathered)
        assert gathered.verdict.kind is (VerdictKind.INCONCLUSIVE if "always" in change else VerdictKind.ERROR)
        assert plain.manifest_path.exists() is ("always" in change)


def test_steps_that_are_missing_or_come_back_are_an_error_that_ends_the_run(real: Lab) -> None:
    real.edit("step=step)", "step=step % 10)")
    real.change(**ENDLESS)
    real.write_native(STUDY.replace("Iteration", "iteration"))
    (gathered,) = real.gather().tests
    assert gathered.runs[0].reason == "its log has no step"
    assert "no line matches the pattern of the step" in messages(gathered)
    real.write_native(STUDY)
    (gathered,) = real.gather().tests
    first, *others = [found.message for found in gathered.verdict.findings]
    assert first.startswith("step 0 is logged after step 9: out of order; nothing is recorded")
    assert first.endswith("to count lines instead, leave `step` out of metrics")
    assert others == []
    assert gathered.runs[0].state is State.PRUNED
    assert find_left(gathered) == []


def test_programs_that_count_in_another_way_and_steps_after_the_segment(plain: Lab) -> None:
    plain.change(first=1)
    plain.use_golden()
    plain.change(first=0)
    checked = plain.check_one()
    assert checked.verdict.kind is VerdictKind.ERROR
    assert "the check logs step 0, before the first that was recorded, 1: it counts in another way" in messages(checked)
    # when a run is ended decides how much it logs after the segment; here it ends by itself
    plain.edit("step=step)", "step=step % 25)")
    plain.use_golden()
    assert plain.check_one().verdict.kind is VerdictKind.PASS


CHECKED: list[tuple[dict[str, Any], str, str]] = [
    ({}, "PASS", ""),
    ({"scale": 1.5}, "FAIL", "+50% in steps"),
    ({"loss": {"12": "nan"}}, "FAIL", "the check is nan at step 12"),
    ({"exit": 3}, "ERROR", "the check failed: train ended with exit code 3"),
    ({"mute": True}, "ERROR", "step: matches no line of the log"),
    ({"without": list(range(30))}, "ERROR", "loss: matches no line of the log"),
    ({"without": [7]}, "ERROR", "the check has no value at step 7"),
    ({"first": 5}, "ERROR", "the check has no value at step 0: 5 of 20 steps are missing"),
]


def test_verdicts_of_a_check(plain: Lab) -> None:
    plain.use_golden()
    for change, kind, words in CHECKED:
        plain.change(**change)
        checked = plain.check_one()
        assert (checked.verdict.kind, words in messages(checked)) == (kind, True), messages(checked)


APPEND = """
    with open(os.environ["ASSAY_RUN_DIR"] + "/values.jsonl", "a") as file:
        file.write('{"step": %d, "score": %f}\\n' % (step, 2 / (step + 1)))
"""
GOLDEN = "golden: {segment: 20, replicas: 2, metrics: {score: paired}}\n"


@pytest.mark.needs(search=True)
def test_metrics_of_a_file_end_the_run_when_it_is_beyond_the_segment(
    real: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the segment ends the run, not the stop rules of the study."""
    real.edit("\n    if step == change", f"{APPEND}    if step == change")
    files = "metrics: {file: {jsonl: values.jsonl}}\nstop: [{rule: bounds, metric: score, max: 0.001}]\n"
    real.write_native(f"study: demo\ncommand: python3 training.py\n{files}{GOLDEN}")
    real.change(**ENDLESS)
    (gathered,) = real.gather(replicas=0).tests
    assert gathered.verdict.kind is VerdictKind.PASS, messages(gathered)
    assert gathered.golden is not None
    assert gathered.golden.segments[0].steps == list(range(20))
    assert [(run.state, run.reason) for run in gathered.runs] == [(State.PRUNED, "its segment is complete")]
    run_in_process(monkeypatch)
    real.change()
    assert real.check_one().verdict.comparisons == 20
    real.edit("score", "points")
    assert "the check has no score" in messages(real.check_one())


@pytest.mark.parametrize(
    ("step", "first"), [(', "step": %d', 0), ("", 1), (', "step": %d.5', None)], ids=["step", "counted", "parts"]
)
def test_metrics_that_a_script_passes_to_assay_log(plain: Lab, step: str, first: int | None) -> None:
    """The values are as `assay.log` writes them; without a step they are counted."""
    numbers = "(2 / (step + 1), step)" if step else "(2 / (step + 1),)"
    folder = '    os.makedirs(os.environ["ASSAY_RUN_DIR"] + "/metrics", exist_ok=True)'
    line = APPEND.replace("/values", "/metrics/a1-r0-host-1-1").replace('"step": %d, "score": %f', f'"score": %f{step}')
    written = line.replace("(step, 2 / (step + 1))", numbers)
    plain.edit("\n    if step == change", f"\n{folder}{written}    if step == change")
    plain.write_native(f"study: demo\ncommand: python3 training.py\n{GOLDEN}")
    (gathered,) = plain.gather().tests
    if first is None:
        assert "score was not logged in the first 20 steps; score: the step 0.5 is not a whole" in messages(gathered)
        return
    assert gathered.verdict.kind is VerdictKind.PASS, messages(gathered)
    assert gathered.golden is not None
    assert gathered.golden.segments[0].steps == list(range(first, first + 20))
    assert plain.check_one().verdict.comparisons == 20
    if step:
        plain.edit(step, f"{step}.5")
        assert "segment at 0: score: the step 0.5 is not a whole number" in messages(plain.check_one())


def test_a_file_and_a_golden_of_which_one_has_checkpoints_do_not_fit(plain: Lab) -> None:
    plain.use_golden()
    (counted,) = plain.gather(counting=True).tests
    assert counted.exit_code is ExitCode.USAGE
    assert "demo has no length to count: nothing is to be recorded" in messages(counted)
    plain.write_native()
    for report in (plain.check_one(), plain.gather(counting=True).tests[0]):
        assert report.exit_code is ExitCode.USAGE
        assert "the golden recording begins at step 0, and " in messages(report)
        assert "record it again: assay golden gather " in messages(report)
    assert plain.gather().tests[0].verdict.kind is VerdictKind.PASS
    plain.write_native(STUDY)
    assert "begins at checkpoints, and " in messages(plain.check_one())
    (counted,) = plain.gather(counting=True).tests
    assert counted.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("source", ["gather", "check"])
def test_an_intended_change_is_accepted(plain: Lab, source: Literal["gather", "check"]) -> None:
    plain.use_golden()
    plain.change(scale=1.5)
    assert plain.check_one(early_stop=False).verdict.kind is VerdictKind.FAIL
    given: dict[str, Any] = {"file": str(plain.file), "reason": "meant", "source": source}
    if source == "check":
        (refused,) = rebase_file(RebaseRequest(**given), plain.options())
        assert refused.refusals[-1] == "the last check did not pass: accept it with --allow-failed"
    (done,) = rebase_file(RebaseRequest(**given, allow_failed=True), plain.options())
    assert done.is_accepted, done.refusals
    assert plain.check_one().verdict.kind is VerdictKind.PASS
    assert plain.manifest["format"] == 3


def test_from_another_folder_the_recording_next_to_the_file_is_named(
    plain: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (plain.folder / "else").mkdir()
    assert run(["golden", "gather", "config.yml", "-q"]) == 0
    monkeypatch.chdir("else")
    hint = "use it in the folder of the file, as in: cd .. && assay golden check config.yml\n"
    for others in (["check"], ["rebase", "--reason", "x"]):
        assert run(["golden", others[0], "../config.yml", *others[1:]]) == 2
        assert hint in "".join(capsys.readouterr())
    assert run(["golden", "check", "../config.yml", "-s", "none"]) == 2
    assert "gather it first: `assay golden gather ../config.yml -s none`" in capsys.readouterr().out
    monkeypatch.chdir("..")
    assert run(["golden", "check", "config.yml", "-q"]) == 0


def test_the_commands_of_a_new_user(
    plain: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store is `golden` without a flag, and the printed commands do not name it either."""
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(["golden", "check", "config.yml"]) == 2
    assert "gather it first: `assay golden gather config.yml`" in capsys.readouterr().out
    assert run(["golden", "gather", "config.yml", "-q"]) == 0
    assert os.listdir("golden") == [plain.manifest_path.name]
    assert run(["golden", "check", "config.yml", "-q"]) == 0
    plain.change(scale=0.5)
    reports = ["--md", "report.md", "--junit", "report.xml", "--html", "report.html"]
    assert run(["golden", "check", "config.yml", "-q", *reports]) == 3
    assert "assay golden check config.yml --allow-changed" in capsys.readouterr().out
    assert all("CHANGED" in Path(name).read_text() for name in reports[1:5:2])
    page = build_golden_page(StudyLocation("runs", "golden-demo"), None)
    assert page.problems == ()
    assert [head.kind for head in page.history] == [VerdictKind.CHANGED, VerdictKind.PASS, VerdictKind.PASS]
    assert run(["golden", "show", "config.yml", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["segments"] == [{"start_step": 0, "checkpoint": None, "recordings": 2, "variants": []}]
    plain.change()
    plain.edit("2.0 / (step + 1)", "float(os.environ.get('SIZE', 2)) / (step + 1)")
    assert run(["golden", "selftest", "config.yml", "-q", "--env", "SIZE=3"]) == 0
    assert "demo, segment at 0: 1 of 1 faults would be caught" in capsys.readouterr().out
    assert run(["golden", "validate", "config.yml"]) == 0
    assert "demo check: python3 training.py\n" in capsys.readouterr().out
