"""Gathering and checking from end to end: rounds, replicas, early stops, and what a bad environment does."""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.golden_training import NATIVE, Lab, messages, run_in_process

from assay.cli.main import run
from assay.errors import ConfigError, ExitCode, MissingExtraError, NotFoundError, UsageError
from assay.follow.entry import Entry, Event
from assay.golden.config import load_golden_file
from assay.golden.flow.each_test import check_file, gather_file, validate_file
from assay.golden.flow.gather import SegmentBuilder
from assay.golden.flow.segments import GoldenContext, build_contexts
from assay.golden.manifests import load_manifest
from assay.golden.recorder import Saved, SegmentRecording, Values
from assay.golden.report.document import build_document
from assay.golden.values import GoldenReport, Track
from assay.launch.api import RunHooks
from assay.show.console import CollectingConsole
from assay.show.junit import render_junit
from assay.system import processes
from assay.values.run import State
from assay.values.verdict import VerdictKind

EXAMPLES = Path(__file__).parents[3] / "examples"
ERROR, PASS, FAIL = VerdictKind.ERROR, VerdictKind.PASS, VerdictKind.FAIL


@pytest.mark.long
def test_the_example_passes_fifty_times_of_fifty_and_a_planted_bug_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path)
    monkeypatch.chdir(EXAMPLES / "charlm")
    lab.file = EXAMPLES / "charlm" / "golden.yml"
    assert lab.gather().exit_code() is ExitCode.OK
    golden = load_manifest(str(lab.store / "charlm_convergence_harness_manifest.json"), "charlm")
    assert [(segment.start_step, segment.replicas) for segment in golden.segments] == [(100, 5), (200, 5)]
    assert [int(lab.check().exit_code()) for _ in range(50)] == [0] * 50
    report = lab.check_one(run_arguments=("--lr", "0.02"), early_stop=False)  # the values at a stop vary
    assert report.verdict.kind is FAIL
    worst = next(finding for finding in report.verdict.findings if finding.kind is FAIL)
    assert worst.step is not None
    assert worst.effect is not None
    assert worst.effect > 0.05


def test_a_training_in_this_process_is_recorded_and_judged_as_a_job_is(
    real: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other tests rely on this."""
    other = Lab(tmp_path / "other")
    found = []
    for lab in (real, other):
        gathered = lab.gather()
        lab.change(loss={"11": "99"}, exit=3)
        failed = lab.check_one(early_stop=False)
        runs = [run for segment in failed.segments for run in segment.runs]
        ends = [(run.state, run.reason, run.last_step) for run in runs]
        logs = [sorted(path.name for path in Path(run.dir).glob("train.*")) for run in runs]
        found.append((gathered.kind, lab.logs, messages(failed), ends, logs))
        run_in_process(monkeypatch)
    assert found[0] == found[1]


def test_segments_are_spread_over_the_slots(real: Lab) -> None:
    real.flags("gather", save_every=8, until=35)
    real.use_golden()
    most, now = 0, set[str]()

    def listen(event: Event) -> None:
        nonlocal most
        if event.kind == "started":
            now.add(event.entry.dir)
        elif event.kind == "ended":
            now.discard(event.entry.dir)
        most = max(most, len(now))

    report = check_file(real.options(slots=("cpu",) * 4), RunHooks(listen=listen, tick_s=0.05))
    assert report.exit_code() is ExitCode.OK
    assert len({run.dir for segment in report.tests[0].segments for run in segment.runs}) == 4
    assert 1 < most <= 8  # a free slot is used again before its run is concluded


def test_replicas_repeat_the_segments_and_a_program_that_counts_from_0_goes_one_step_further(native: Lab) -> None:
    """The program logs `until - 1` last; the training logged one more step after the checkpoint."""
    report = native.gather(replicas=2).tests[0]
    golden = report.golden
    assert report.verdict.kind is PASS, messages(report)
    assert golden is not None
    assert [segment.replicas for segment in golden.segments] == [3, 3]
    assert (golden.noise, golden.steps_beyond) == ({"loss": 0.0}, 1)
    assert len(report.runs) >= 1 + 2 * len(golden.segments)
    assert load_manifest(str(native.manifest_path), "demo").segments == golden.segments
    before = len(native.calls())
    checked = native.check_one()
    assert (checked.verdict.kind, checked.verdict.comparisons) == (PASS, 12)
    untils = {call[call.index("--until") + 1] for call in native.calls()[before:]}
    assert untils == {str(9 + 6 + 1), str(19 + 6 + 1)}


def test_many_values_that_are_not_numbers_are_few_lines(lab: Lab) -> None:
    lab.flags("gather", save_every=4, until=39)
    lab.change(loss={str(step): "1.2.3" for step in range(40)})
    found = [finding.message for finding in lab.gather().tests[0].verdict.findings]
    unread = [text for text in found if "not a number" in text]
    assert len(unread) == 4, found
    assert unread[0].endswith(" is '1.2.3', not a number (4 such values); this segment is not recorded")
    assert "more problems, the last one: " in unread[-1]


def use_shift(lab: Lab, section: str) -> None:
    """Use a program whose loss is moved by a variable and a flag, and judge it by windows."""
    moved = "change.get('scale', 1.0) * float(os.environ.get('SHIFT', 1)) * float(options.x or 1)"
    if moved not in (lab.folder / "training.py").read_text():
        lab.edit("change.get('scale', 1.0)", moved)
    lab.write_native(NATIVE.replace("  metrics: {loss: exact}", f"  gather: --until 20\n{section}"))


def test_variants_are_gathered_and_what_they_show_passes(native: Lab) -> None:
    use_shift(native, "  variants:\n    by-env: {env: {SHIFT: 1.001}}\n    by-flag: {flags: --x 0.999}\n")
    gathered = native.gather(replicas=1).tests[0]
    assert gathered.verdict.kind is PASS, messages(gathered)
    golden = load_manifest(str(native.manifest_path), "demo")
    (segment,) = golden.segments
    assert segment.replicas == 2
    first = segment.tracks["loss"][""][0].values
    for name, factor in (("by-env", 1.001), ("by-flag", 0.999)):
        assert segment.variants[name]["loss"][""].values == pytest.approx([factor * each for each in first], rel=1e-4)
    assert golden.provenance["variants"] == {"by-env": "SHIFT=1.001", "by-flag": "--x 0.999"}
    for scale, kind in ((1.002, PASS), (1.0, PASS), (1.02, FAIL)):  # within four times what the variants show
        native.change(scale=scale)
        assert native.check_one().verdict.kind is kind


def test_variants_that_fail_change_nothing_or_are_missing_are_reported(native: Lab) -> None:
    """If replicas are equal bit for bit, a variant is proposed."""
    for section, words in (("idle: {env: {OTHER: 1}}", "the variant idle changes nothing: equal bit for bit"),
                           ("broken: {flags: --no-such-flag}", "the variant broken failed")):  # fmt: skip
        use_shift(native, f"  variants:\n    {section}\n")
        report = native.gather().tests[0]
        assert words in "\n".join((messages(report), *report.warnings))
        assert report.verdict.kind is (ERROR if "failed" in words else PASS)
    use_shift(native, "  metrics: {loss: paired}\n")
    notes = native.gather().tests[0].notes
    start = next(at for at, note in enumerate(notes) if "equal bit for bit" in note)
    offer = "\n".join(note for note in notes[start:] if note.startswith("  "))
    native.file.write_text(native.file.read_text() + offer.replace("  golden:\n", "").replace("    ", "  ") + "\n")
    (variant,) = load_golden_file(str(native.file)).tests[0].variants
    assert variant.env == (("OMP_NUM_THREADS", "2"),)
    assert not any("equal bit for bit:" in note for note in native.gather().tests[0].notes)


def test_a_change_is_reported_with_commands_that_accept_it(native: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    use_shift(native, "  metrics: {loss: paired}\n")
    native.use_golden()
    native.change(scale=1.001)
    report = native.check_one()
    assert report.verdict.kind is VerdictKind.CHANGED, messages(report)
    (finding,) = report.segments[0].metrics[0].verdict.findings
    assert finding.effect == pytest.approx(0.001, rel=0.01)
    assert finding.step == 10
    commands = [note.split("assay ", 1)[1] for note in report.notes if "assay golden" in note]
    assert len(commands) == 3
    for command in commands:
        assert run([*shlex.split(command), "--root", str(native.folder / "runs"), "--quiet"]) == 0, command
        capsys.readouterr()
    assert native.check_one().verdict.kind is PASS


def test_the_originals_gather_makes_no_replicas_and_learns_how_the_program_counts(lab: Lab) -> None:
    gathered = lab.gather().tests[0]
    assert not gathered.warnings, "a training that ends on a save is no reason to warn"
    assert any("nothing was logged after the checkpoint of step 29" in note for note in gathered.notes)
    assert [call[-1] for call in lab.calls()[1:]] == ["13"]  # one run, up to where the original's counting ends
    assert (lab.manifest["steps_beyond"], lab.manifest["replicas"]) == (1, {"9": {}, "19": {}})
    report = lab.check_one()
    assert report.verdict.kind is PASS
    assert len(lab.calls()) == 4  # each segment once
    assert not any("counts its steps" in warning for warning in report.warnings)
    original = json.dumps({"ckpt_logs": lab.logs}, indent=4)
    lab.manifest_path.write_text(original)
    report = lab.check_one()
    assert report.verdict.kind is PASS
    (warning,) = [text for text in report.warnings if "counts its steps" in text]
    assert "2 of 2 segments were run twice" in warning
    assert f"assay golden gather {lab.file} -s {lab.store} -t demo --root {lab.folder}/runs --counting" in warning
    assert lab.manifest_path.read_text() == original  # a check writes nothing
    before = len(lab.calls())
    assert lab.gather(counting=True).exit_code() is ExitCode.OK
    kept = {"ckpt_logs": json.loads(original)["ckpt_logs"], "steps_beyond": 1, "repeats_start": True}
    assert lab.manifest == kept
    report = lab.check_one()
    assert len(lab.calls()) == before + 1 + 2
    assert not any("counts its steps" in text for text in report.warnings)


def test_a_recording_stays_good_where_the_run_that_shows_the_counting_fails(lab: Lab) -> None:
    lab.edit("if options.load and not os.path.exists(options.load):", "if options.load:")
    reports: list[GoldenReport] = []
    thread = threading.Thread(target=lambda: reports.append(lab.gather()))  # gathering also works in a thread
    thread.start()
    thread.join()
    (report,) = reports
    assert report.exit_code() is ExitCode.OK
    assert any("how the program counts its steps is not recorded" in text for text in report.tests[0].warnings)
    assert "steps_beyond" not in lab.manifest
    assert lab.manifest["replicas"] == {"9": {}, "19": {}}


def test_a_failing_run_is_stopped_early_with_one_line_about_the_other_metrics(lab: Lab) -> None:
    lab.test["recording"]["steps_to_record_after_save"] = 8
    for name in ("acc", "same"):
        lab.test["log_parsing"][name] = {"regex": r"Acc: ([\d\.]+)"}
        lab.test["metrics"][name] = {"margin": 0.05, "comparison": "=="}
    lab.write()
    lab.use_golden()
    lab.change(hold_at=12, loss={"11": "99"})  # without the stop the run would hang for ten minutes
    report = lab.check()
    (test,) = report.tests
    first = test.segments[0]
    (run,) = first.runs
    assert (first.verdict.kind, run.state) == (FAIL, State.STOPPED)
    assert "step 11" in str(run.stopped_early)
    assert run.saved_steps == 17 - 12
    assert run.saved_s > 0
    assert test.saved_steps >= run.saved_steps
    assert json.loads((Path(run.dir) / "stop.1").read_text())["kind"] == "early"
    assert [metric.metric for metric in first.metrics] == ["loss"]
    assert {finding.kind for finding in first.verdict.findings} == {FAIL}
    assert test.notes.count("segment 9 was stopped at step 12; not judged there: acc, same") == 1
    page = render_junit(build_document(report))
    cases = [(each.get("classname"), each.get("name")) for each in ET.fromstring(page).iter("testcase")]
    assert [name for segment, name in cases if segment == "demo.segment 9"] == ["loss"]
    lab.change(loss={"10": "99"})
    report = lab.check_one(early_stop=False)
    assert [segment.runs[0].state for segment in report.segments] == [State.DONE, State.DONE]
    assert [segment.verdict.kind for segment in report.segments] == [FAIL, PASS]
    assert report.saved_steps == 0


def test_what_a_program_forked_and_left_is_ended_with_its_check(real: Lab) -> None:
    """The fixture `no_leaks` looks for processes that are still running; one that is left keeps the only slot."""
    real.use_golden()
    child = "import subprocess; subprocess.Popen(['setsid', 'sleep', '600'], stdin=subprocess.DEVNULL, start_new_session=True)\n"
    real.edit('if change.get("close")', f'{child}if change.get("close")')
    report = real.check_one(slots=("cpu",))
    assert report.verdict.kind is PASS
    folders = {run.dir.encode() for segment in report.segments for run in segment.runs}
    assert not [pid for pid in processes.list_pids() if processes.load_variable(pid, "ASSAY_RUN_DIR") in folders]


def test_an_inconclusive_segment_is_run_again_up_to_the_limit(native: Lab) -> None:
    """Replicas differ by 0.2% and a check by 0.6%: too much for a pass, too little for a failure."""
    noise = "{1: 1.0}.get(calls, [1.002, 0.998, 1.002, 0.998, 1.0][(calls - 2) % 5])"
    native.edit("out = sys", f"calls = sum(1 for _ in open(here + '/calls')); drift = {noise}\nout = sys")
    native.edit("change.get('scale', 1.0)", "change.get('scale', drift)")
    rules = NATIVE.replace("replicas: 2", "replicas: 6\n  gather: --until 20")
    native.write_native(rules.replace("{loss: exact}", "{loss: {rule: paired, delta: 0.8%}}"))
    gathered = native.gather(slots=("cpu",)).tests[0]
    assert gathered.verdict.kind is PASS, messages(gathered)
    native.change(scale=1.006)
    report = native.check_one()
    assert report.verdict.kind is VerdictKind.INCONCLUSIVE, messages(report)
    assert [len(segment.runs) for segment in report.segments] == [3]
    assert len(report.segments[0].metrics[0].check[""]) == 3
    assert [len(segment.runs) for segment in native.check_one(most_checks=2).segments] == [2]
    native.change(scale=1.05)
    failed = native.check_one()
    assert failed.verdict.kind is FAIL
    assert [len(segment.runs) for segment in failed.segments] == [1]


def test_a_checkpoint_that_is_gone_or_another_is_an_error_and_the_others_are_checked(lab: Lab) -> None:
    lab.use_golden()
    checkpoint = lab.store / "ckpts" / "model_10.bin"
    changes: list[tuple[Callable[[], object], str]] = [
        (lambda: checkpoint.write_text("other weights"), "its content has changed"),
        (checkpoint.unlink, "model_10.bin is not in the store"),
    ]
    for change, words in changes:
        change()
        report = lab.check_one()
        assert [segment.verdict.kind for segment in report.segments] == [ERROR, PASS]
        assert words in messages(report)


def test_a_golden_that_cannot_be_used_never_passes(lab: Lab) -> None:
    lab.use_golden()
    whole = lab.manifest_path.read_text()
    lab.change(loss={"10": "nan"})
    for text, words, code in (
        ('{"ckpt_logs"', "it is truncated", ExitCode.INTERNAL),
        ('{"ckpt_logs": {}}', "has no segment", ExitCode.FAILED),
        (json.dumps({**lab.manifest, "complete": False}), "the golden recording is not complete", ExitCode.FAILED),
        (whole.replace("0.181818", "nan"), "segment 9 loss is nan at step 10", ExitCode.FAILED),
    ):
        lab.manifest_path.write_text(text)
        report = lab.check()
        assert words in messages(report.tests[0])
        assert (report.exit_code(), report.kind) == (code, ERROR)


def test_duplicated_and_out_of_order_steps_never_pass(lab: Lab) -> None:
    lab.use_golden()
    lab.change(again={"11": ["0.5"]})
    report = lab.check_one()
    assert report.verdict.kind is ERROR
    assert "loss at step 11 is logged twice" in messages(report)
    gathered = lab.gather(manifest_name="other.json").tests[0]
    assert gathered.verdict.kind is ERROR
    assert list(json.loads((lab.store / "demo_other.json.partial").read_text())["ckpt_logs"]) == ["19"]
    assert not (lab.store / "demo_other.json").exists()
    lab.change(again={"12": ["0.1"]}, format="{step}")
    lab.edit('f"Iteration: {step} Loss: {again}', 'f"Iteration: {step - 2} Loss: {again}')
    report = lab.check_one()
    assert report.verdict.kind is ERROR
    assert "out of order" in messages(report)


def drop_saves(lab: Lab) -> None:
    lab.test["log_parsing"]["model_save"]["regex"] = "Never printed: (.+)"


def add_metric(lab: Lab) -> None:
    lab.test["log_parsing"]["speed"] = {"regex": r"Speed: (\S+)"}
    lab.test["metrics"]["speed"] = {"margin": 0.5, "comparison": ">="}


def go_back(lab: Lab) -> None:
    line = "        if step == 16: print('Iteration: 14 Loss: 1', flush=True)\n        for again in"
    lab.edit("        for again in", line)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop_saves, "no line matches the pattern of a saved checkpoint"),
        (add_metric, "speed: was not logged in any recorded segment"),
        (go_back, "step 14 is logged after step 16: out of order"),
    ],
)
def test_what_cannot_be_recorded_is_named(lab: Lab, change: Callable[[Lab], None], words: str) -> None:
    change(lab)
    lab.write()
    report = lab.gather()
    assert report.exit_code() is ExitCode.FAILED
    assert any(words in finding.message for finding in report.tests[0].verdict.findings)
    assert not lab.manifest_path.exists()


def test_a_margin_below_the_noise_warns_in_the_originals_command_and_is_refused_in_ours(native: Lab) -> None:
    native.edit("change.get('scale', 1.0)", "(1 + 0.01 * __import__('random').random())")
    text = NATIVE.replace("replicas: 2", "replicas: 4\n  gather: --until 20")
    native.write_native(text.replace("{loss: exact}", "{loss: {operator: '<=', margin: 0.01%}}"))
    report = native.gather().tests[0]
    assert report.verdict.kind is ERROR
    assert "is below the noise" in messages(report)
    assert native.check().exit_code() is ExitCode.USAGE
    other = Lab(native.folder)
    other.store = native.folder / "original"
    other.test["metrics"]["loss"]["margin"] = 0.0001
    native.edit("change.get('scale', 1.0)", "(1 + 0.01 * __import__('random').random())")
    other.flags("gather", until=20)
    warned = other.gather(replicas=3).tests[0]
    assert warned.verdict.kind is PASS
    assert any("is below the noise" in warning for warning in warned.warnings)


def test_checking_never_writes_into_the_store(lab: Lab) -> None:
    lab.use_golden()

    def look() -> dict[str, tuple[int, int]]:
        return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in sorted(lab.store.rglob("*"))}

    before = look()
    for path in [lab.store, *lab.store.rglob("*")]:
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    try:
        assert lab.check().exit_code() is ExitCode.OK
        assert look() == before
    finally:
        for path in [lab.store, *lab.store.rglob("*")]:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)


def _leave_a_gathering(lab: Lab) -> Entry:
    """End the supervisor as if it had been killed; the training goes on."""
    lab.change(hold_at=12)
    started: list[Entry] = []

    def listen(event: Event) -> None:
        started.extend([event.entry] if event.kind == "started" else [])

    def draw(supervisor: object) -> None:
        log = Path(started[0].dir, "train.stdout.log") if started else lab.folder / "none"
        if log.exists() and "Iteration: 12" in log.read_text():
            supervisor.leave = True  # type: ignore[attr-defined]

    gather_file(lab.options(), RunHooks(listen=listen, draw=draw, tick_s=0.02))
    assert started[0].handle is not None
    return started[0]


def test_an_unfinished_gathering_is_gone_on_with(lab: Lab) -> None:
    """The next supervisor continues with the same training."""
    held = _leave_a_gathering(lab)
    seen: list[str] = []

    def watch(event: Event) -> None:
        seen.append(f"{event.kind} {event.entry.spec.name}")
        if event.kind == "adopted":
            assert event.entry.handle is not None
            for pid in processes.find_descendants(event.entry.handle.pid):
                os.kill(pid, 15)

    report = gather_file(lab.options(), RunHooks(listen=watch, tick_s=0.02))
    assert seen[0] == f"adopted {held.spec.name}"
    assert len(lab.calls()) == 1
    assert report.exit_code() is ExitCode.FAILED  # we ended the training
    assert list(lab.partial["ckpt_logs"]) == ["9"]  # the values that it had recorded are kept


def _change_command(lab: Lab, _: pytest.MonkeyPatch) -> dict[str, object]:
    lab.flags("gather", x=2)
    lab.edit('change.get("hold_at")', "None")
    return {}


def _change_environment(_: Lab, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setenv("OTHER", "no")
    return {"env": (("HOLD", "no"),)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_change_command, "the code and the command have changed"),
        (_change_environment, "the environment has changed"),
    ],
)
def test_a_training_from_other_code_command_or_environment_is_ended_and_not_continued(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, change: Callable[..., dict[str, Any]], words: str
) -> None:
    lab.edit('change.get("hold_at"):', 'change.get("hold_at") and "HOLD" not in os.environ:')
    held = _leave_a_gathering(lab)
    assert held.handle is not None
    given = change(lab, monkeypatch)
    console = CollectingConsole()
    report = gather_file(lab.options(**given), RunHooks(console=console, tick_s=0.02))
    warned = console.lines
    assert report.exit_code() is ExitCode.OK, messages(report.tests[0])
    assert f"{held.spec.name} is not continued: {words}" in warned[0]
    assert warned[0] in report.tests[0].notes
    assert not processes.is_alive(held.handle.pid, held.handle.start, held.handle.boot)
    assert report.tests[0].runs[0].dir != held.dir
    assert "complete" in lab.manifest


def test_the_manifest_grows_with_every_filled_recording_and_a_second_gathering_is_refused(lab: Lab) -> None:
    lab.change(hold_at=16)
    second: list[GoldenReport] = []
    seen: list[list[str]] = []

    def draw(supervisor: object) -> None:
        if not second:
            second.append(lab.gather())
        assert not lab.manifest_path.exists()
        if lab.partial_path.exists():
            seen.append(list(lab.partial["ckpt_logs"]))
            assert lab.partial["complete"] is False
            supervisor.interrupted = "SIGTERM"  # type: ignore[attr-defined]

    report = gather_file(lab.options(), RunHooks(draw=draw, tick_s=0.02))
    assert seen[0] == ["9"]
    assert (report.interrupted, report.exit_code()) == ("SIGTERM", ExitCode.INTERRUPTED)
    (refused,) = second[0].tests
    assert refused.exit_code is ExitCode.USAGE
    assert f"pid {os.getpid()} on {os.uname().nodename} gathers demo into {lab.store} now" in messages(refused)
    assert not list(lab.store.glob("*.lock"))


def test_odd_paths_are_quoted(hostile_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_in_process(monkeypatch)
    lab = Lab(hostile_path)
    code = lab.gather().exit_code()
    assert lab.calls()[0][:2] == ["--ckpt", str(lab.store / "ckpts")]
    if "\n" in str(hostile_path):
        assert code is ExitCode.FAILED  # a log line cannot name such a checkpoint, and that is reported
        return
    assert code is ExitCode.OK
    assert lab.check().exit_code() is ExitCode.OK


def test_two_tests_of_a_file(lab: Lab) -> None:
    lab.config["second"] = lab.test
    lab.write()
    lab.gather()
    assert lab.logs["9"]["checkpoint"] == "ckpts/demo/model_10.bin", "neither overwrites the other's"
    assert (lab.store / "ckpts" / "second" / "model_10.bin").exists()
    assert [test.test for test in lab.check(tests=("second",)).tests] == ["second"]
    with pytest.raises(NotFoundError, match="secnd"):
        lab.check(tests=("secnd",))


def test_what_cannot_be_run_is_a_usage_error(native: Lab) -> None:
    text = NATIVE.replace("training.py", "training.py --x {x}")
    native.write_native(text.replace("metrics:\n  step", "params: {x: [1, 2]}\nmetrics:\n  step"))
    assert "this file defines 2 runs" in messages(native.gather().tests[0])
    lab = Lab(native.folder)
    lab.test["directory"] = "nowhere"
    lab.write()
    report = lab.gather()
    assert report.exit_code() is ExitCode.USAGE
    assert "there is no folder 'nowhere'" in messages(report.tests[0])
    lab = Lab(native.folder)
    lab.store = lab.file / "store"
    assert lab.gather().exit_code() is ExitCode.USAGE
    lab = Lab(native.folder)
    del lab.test["flags"]["run"]["run_for"]
    lab.write()
    with pytest.raises(ConfigError, match="the mandatory flag run_for is missing"):
        lab.gather()
    console = CollectingConsole()  # the original's command gathers nevertheless
    assert gather_file(lab.options(is_harness=True), RunHooks(console=console)).exit_code() is ExitCode.OK
    assert any("checking will need it" in line for line in console.lines)


def _look(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_gathering_that_fails_leaves_the_golden_as_it_was(lab: Lab) -> None:
    lab.use_golden()
    before = _look(lab.store)
    changes: list[dict[str, Any]] = [{"exit": 3}, {"loss": {"11": "nan"}}, {"mute": True}, {"again": {"11": ["9"]}}]
    for change in changes:
        lab.change(scale=0.5, **change)
        report = lab.gather()
        assert report.exit_code() is ExitCode.FAILED
        after = _look(lab.store)
        assert {name: after.get(name) for name in before} == before
        assert not any("is replaced" in warning for warning in report.tests[0].warnings)
        assert any(note.startswith("log: ") and Path(note[5:]).is_file() for note in report.tests[0].notes)
    lab.change()
    assert lab.check().exit_code() is ExitCode.OK


def test_a_good_gathering_replaces_the_golden_and_its_checkpoints(lab: Lab) -> None:
    lab.use_golden()
    for _ in range(2):
        assert lab.gather().exit_code() is ExitCode.OK
        found = [lab.store / entry["checkpoint"] for entry in lab.logs.values()]
        assert all(path.is_file() for path in found)
    assert lab.check().exit_code() is ExitCode.OK
    assert not (lab.store / "ckpts" / "model_10.bin").exists()  # the checkpoint of the first golden
    assert not lab.partial_path.exists()
    first = _look(lab.store)
    lab.edit("file.write(str(number))", "file.write('other')")
    assert lab.gather(manifest_name="b.json").exit_code() is ExitCode.OK
    after = _look(lab.store)
    assert {name: after[name] for name in first} == first, "two manifests of a store keep their own"
    assert [name for name, text in after.items() if text == "other"]
    assert lab.check().exit_code() is ExitCode.OK
    assert lab.check(manifest_name="b.json").exit_code() is ExitCode.OK


def test_a_failed_check_names_its_logs_and_reports_why_nothing_was_read(lab: Lab) -> None:
    lab.use_golden()
    lab.change(mute=True)
    report = lab.check_one()
    logs = [note for note in report.notes if note.startswith("log: ")]
    assert [note.rpartition(" (")[2] for note in logs] == ["segment 9)", "segment 19)"]
    assert all(Path(note[5:].rpartition(" (")[0]).is_file() for note in logs)
    assert any(note.startswith("program's folder: ") for note in report.notes)
    assert any(note.startswith("runs: ") for note in report.notes)
    assert "step_num: matches no line of the log" in messages(report)
    lab.change()
    lab.edit("Iteration: {text}{loss}", "Iteration: {text}\\n{loss}")
    assert "loss: is never on a line with the step, so it is not read" in messages(lab.check_one())


def test_metrics_from_json_lines(native: Lab) -> None:
    line = """        open(os.environ["ASSAY_RUN_DIR"] + "/m.jsonl", "a").write(f'{{"step": {step}, "grad": {0.1 + step}}}\\n')\n"""
    native.edit("        for again in", line + "        for again in")
    text = NATIVE.replace("  loss: 'Loss", "  file: {jsonl: m.jsonl}\n  loss: 'Loss")
    native.write_native(text.replace("{loss: exact}", "{loss: exact, grad: exact}"))
    report = native.gather().tests[0]
    assert report.verdict.kind is PASS, messages(report)
    assert native.logs["9"]["results"]["10"]["grad"] == {"0": "10.1"}
    checked = native.check_one()
    assert checked.verdict.kind is PASS, messages(checked)
    assert checked.verdict.comparisons == 24
    native.edit("0.1 + step", "0.1000001 + step")
    assert native.check_one().verdict.kind is VerdictKind.CHANGED


def test_validate_prints_every_command_and_runs_nothing(lab: Lab) -> None:
    found = validate_file(lab.options())
    assert [(test, mode) for test, mode, _ in found.commands] == [("demo", "gather"), ("demo", "check")]
    assert found.commands[0][2] == f"python3 training.py --ckpt {lab.store}/ckpts"
    assert not found.problems
    assert not lab.store.exists()
    assert not (lab.folder / "calls").exists()
    lab.use_golden()
    found = validate_file(lab.options())
    assert found.commands[1][2] == f"python3 training.py --load {lab.store}/ckpts/model_10.bin --start 9 --until 14"
    assert len(found.commands) == 3
    log = lab.folder / "sample.log"
    log.write_text("Iteration: 1 Loss: 0.5\nSaving model to: x\n")
    assert not validate_file(lab.options(), str(log)).problems
    log.write_text("Iteration: 1\nLoss: 0.5\n")
    problems = "\n".join(validate_file(lab.options(), str(log)).problems)
    assert "demo model_save: matches no line of the log" in problems
    assert "demo loss: is never on a line with the step" in problems
    with pytest.raises(UsageError, match="cannot be read"):
        validate_file(lab.options(), str(lab.folder / "none.log"))
    lab.test["executable"] = ["no-such-program"]
    lab.write()
    assert "the program 'no-such-program' was not found" in validate_file(lab.options()).problems[0]


def test_a_missing_library_is_reported_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path)
    lab.write_native(NATIVE.replace("exact", "paired"))
    monkeypatch.setitem(sys.modules, "numpy", None)
    for call in (lab.gather, lab.check):
        with pytest.raises(MissingExtraError, match="pip install 'assay\\[stats\\]'"):
            call()
    assert not (tmp_path / "calls").exists()  # the training was not called


@pytest.fixture
def context(tmp_path: Path) -> GoldenContext:
    lab = Lab(tmp_path)
    lab.store.mkdir()
    return build_contexts(load_golden_file(str(lab.file)), lab.options())[0]


def values(metric: str = "loss", *steps: int) -> Values:
    return Values({(metric, ""): {step: (float(step), str(step)) for step in steps}})


def recording(path: str | Path, *, rest: str = "", found: Values | None = None) -> SegmentRecording:
    return SegmentRecording(Saved(str(path), rest, 10), 10, 4, 14, values("loss", 11, 12) if found is None else found)


def save(folder: str | Path, name: str = "model_10.bin") -> Path:
    path = Path(folder, name)
    path.write_text("weights")
    return path


def test_a_segment_has_its_values_and_its_checkpoint(context: GoldenContext) -> None:
    console = CollectingConsole()
    segment = SegmentBuilder(context, console).build(recording(save(context.store)), Values())
    assert segment is not None
    assert (segment.start_step, segment.checkpoint) == (10, "model_10.bin")
    assert segment.tracks == {"loss": {"": (Track((11, 12), (11.0, 12.0), ("11", "12")),)}}
    assert segment.checkpoint_sha
    assert console.lines == []
    path = save(context.folder)  # a checkpoint elsewhere is kept by its whole path
    segment = SegmentBuilder(context, console).build(recording(path), Values())
    assert segment is not None
    assert segment.checkpoint == str(path)
    assert len(console.lines) == 1
    assert "is outside the store" in console.lines[0]


def test_without_values_or_checkpoint_or_order_there_is_no_segment_and_files_have_values_too(
    context: GoldenContext,
) -> None:
    builder, path = SegmentBuilder(context, pytest.fail), save(context.store)
    assert builder.build(recording(path, found=Values()), Values()) is None
    assert builder.build(recording(path.with_name("gone.bin")), Values()) is None
    assert builder.build(recording(path, found=Values({("loss", ""): {}}, ["out of order"])), Values()) is None
    files = values("loss", 10, 11, 14, 15)
    segment = SegmentBuilder(context, pytest.fail).build(recording(save(context.store), found=Values()), files)
    assert segment is not None
    assert segment.tracks["loss"][""][0].steps == (11, 14)
    other = values("unasked", 11)
    assert SegmentBuilder(context, pytest.fail).build(recording(save(context.store), found=Values()), other) is None


def test_a_pattern_that_cuts_the_path_short_is_helped_out(context: GoldenContext) -> None:
    for file, named, rest in (
        ("m.bin", "m.bin", ""),
        ("m.bin", "m", ".bin and more"),
        ("m.bin", "m.bin", " done"),
        ("m.bin", "m.bin", "."),
        ("my model.bin", "my", " model.bin"),
    ):
        path = save(context.store, file)
        found = SegmentBuilder(context, pytest.fail).find_saved(recording(Path(context.store, named), rest=rest))
        assert found == str(path)
