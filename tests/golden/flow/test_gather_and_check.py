"""Gathering and checking on the spine: rounds, replicas, early stops, and what bad surroundings do."""

from __future__ import annotations

import importlib.util
import json
import math
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
from assay.golden.manifests import load_manifest
from assay.golden.report.document import build_document
from assay.golden.values import GoldenReport, Segment, Track
from assay.launch.api import RunHooks
from assay.show.console import CollectingConsole
from assay.show.junit import render_junit
from assay.system import processes
from assay.values.run import State
from assay.values.verdict import VerdictKind

EXAMPLES = Path(__file__).parents[3] / "examples"


# ---------------------------------------------------------------- the whole way


def test_the_example_passes_and_a_planted_bug_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path)
    monkeypatch.chdir(EXAMPLES / "charlm")
    lab.file = EXAMPLES / "charlm" / "golden.yml"
    assert lab.gather(replicas=1).exit_code() is ExitCode.OK
    golden = load_manifest(str(lab.store / "charlm_convergence_harness_manifest.json"), "charlm")
    assert [segment.start_step for segment in golden.segments] == [100, 200]
    assert all(segment.replicas == 2 for segment in golden.segments)
    assert lab.check().exit_code() is ExitCode.OK
    report = lab.check_one(run_arguments=("--lr", "0.02"), early_stop=False)  # what is seen at a stop varies
    assert report.verdict.kind is VerdictKind.FAIL
    worst = next(finding for finding in report.verdict.findings if finding.kind is VerdictKind.FAIL)
    assert worst.step is not None
    assert worst.effect is not None
    assert worst.effect > 0.05


@pytest.mark.long
def test_the_example_passes_fifty_times_of_fifty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path)
    monkeypatch.chdir(EXAMPLES / "charlm")
    lab.file = EXAMPLES / "charlm" / "golden.yml"
    assert lab.gather().exit_code() is ExitCode.OK
    golden = load_manifest(str(lab.store / "charlm_convergence_harness_manifest.json"), "charlm")
    assert all(segment.replicas == 5 for segment in golden.segments)
    assert [int(lab.check().exit_code()) for _ in range(50)] == [0] * 50


def test_a_training_in_this_process_is_recorded_and_judged_as_a_job_is(
    real: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other tests rely on it."""
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
    real.flags("gather", save_every=5, until=35)
    assert real.gather().exit_code() is ExitCode.OK
    assert len(real.logs) == 6
    most = 0
    now: set[str] = set()

    def listen(event: Event) -> None:
        nonlocal most
        if event.kind == "started":
            now.add(event.entry.dir)
        elif event.kind == "ended":
            now.discard(event.entry.dir)
        most = max(most, len(now))

    report = check_file(real.options(slots=("cpu",) * 4), RunHooks(listen=listen, tick_s=0.05))
    assert report.exit_code() is ExitCode.OK
    assert len(report.tests[0].segments) == 6
    assert 1 < most <= 8  # a slot that comes free is given away before its run is concluded
    slots = {str(run.dir) for segment in report.tests[0].segments for run in segment.runs}
    assert len(slots) == 6


def test_replicas_repeat_the_segments_and_measure_the_noise(native: Lab) -> None:
    report = native.gather(replicas=2).tests[0]
    assert report.verdict.kind is VerdictKind.PASS, messages(report)
    golden = report.golden
    assert golden is not None
    assert [segment.replicas for segment in golden.segments] == [3, 3]
    assert golden.noise == {"loss": 0.0}
    assert len(report.runs) >= 1 + 2 * len(golden.segments)
    again = load_manifest(str(native.manifest_path), "demo")
    assert again.segments == golden.segments


def test_a_program_that_counts_from_0_goes_one_step_further(native: Lab) -> None:
    """It logs `until - 1` last; the training logged one more step after the checkpoint."""
    native.use_golden()
    assert native.manifest["steps_beyond"] == 1
    before = len(native.calls())
    report = native.check_one()
    assert report.verdict.kind is VerdictKind.PASS
    assert report.verdict.comparisons == 12
    untils = {call[call.index("--until") + 1] for call in native.calls()[before:]}
    assert untils == {str(9 + 6 + 1), str(19 + 6 + 1)}


def use_shift(lab: Lab, section: str) -> None:
    """A program whose loss is moved by a variable and a flag, judged by windows."""
    lab.edit(
        "change.get('scale', 1.0)",
        "change.get('scale', 1.0) * float(os.environ.get('SHIFT', 1)) * float(options.x or 1)",
    )
    lab.write_native(NATIVE.replace("  metrics: {loss: exact}", f"  gather: --until 20\n{section}"))


def test_variants_are_gathered_and_what_they_show_passes(native: Lab) -> None:
    use_shift(native, "  variants:\n    by-env: {env: {SHIFT: 1.001}}\n    by-flag: {flags: --x 0.999}\n")
    gathered = native.gather(replicas=1).tests[0]
    assert gathered.verdict.kind is VerdictKind.PASS, messages(gathered)
    golden = load_manifest(str(native.manifest_path), "demo")
    (segment,) = golden.segments
    assert segment.replicas == 2
    first = segment.tracks["loss"][""][0].values
    assert segment.variants["by-env"]["loss"][""].values == pytest.approx([1.001 * value for value in first], rel=1e-4)
    assert segment.variants["by-flag"]["loss"][""].values == pytest.approx([0.999 * value for value in first], rel=1e-4)
    assert golden.provenance["variants"] == {"by-env": "SHIFT=1.001", "by-flag": "--x 0.999"}
    native.change(scale=1.002)  # within four times what the variants show
    assert native.check_one().verdict.kind is VerdictKind.PASS
    native.change(scale=1.0)
    assert native.check_one().verdict.kind is VerdictKind.PASS
    native.change(scale=1.02)
    assert native.check_one().verdict.kind is VerdictKind.FAIL


def test_a_variant_that_fails_or_changes_nothing_is_reported(native: Lab) -> None:
    use_shift(native, "  variants:\n    idle: {env: {OTHER: 1}}\n")
    report = native.gather().tests[0]
    assert "the variant idle changes nothing: equal bit for bit to the recording" in report.warnings
    use_shift(native, "  variants:\n    broken: {flags: --no-such-flag}\n")
    report = native.gather().tests[0]
    assert report.verdict.kind is VerdictKind.ERROR
    assert "the variant broken failed" in messages(report)


def test_equal_replicas_without_a_variant_get_an_offer_of_one(native: Lab) -> None:
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
    assert native.gather().exit_code() is ExitCode.OK
    native.change(scale=1.001)
    report = native.check_one()
    assert report.verdict.kind is VerdictKind.CHANGED, messages(report)
    (finding,) = report.segments[0].metrics[0].verdict.findings
    assert finding.effect == pytest.approx(0.001, rel=0.01)
    assert finding.step == 10
    commands = [note.split("assay ", 1)[1] for note in report.notes if "assay golden" in note]
    assert len(commands) == 3
    for command, code in zip(commands, (0, 0, 0), strict=True):
        assert run([*shlex.split(command), "--root", str(native.folder / "runs"), "--quiet"]) == code, command
        capsys.readouterr()
    assert native.check_one().verdict.kind is VerdictKind.PASS


def test_the_originals_gather_makes_no_replicas_and_learns_how_the_program_counts(lab: Lab) -> None:
    lab.gather()
    assert [call[-1] for call in lab.calls()[1:]] == ["13"]  # one run, up to where the original's counting ends
    assert lab.manifest["steps_beyond"] == 1
    assert lab.manifest["replicas"] == {"9": {}, "19": {}}
    report = lab.check_one()
    assert report.verdict.kind is VerdictKind.PASS
    assert len(lab.calls()) == 4  # each segment once
    assert not any("counts its steps" in warning for warning in report.warnings)


def test_a_golden_without_the_counting_reports_what_that_costs_and_how_to_record_it(lab: Lab) -> None:
    lab.use_golden()
    original = json.dumps({"ckpt_logs": lab.logs}, indent=4)
    lab.manifest_path.write_text(original)
    report = lab.check_one()
    assert report.verdict.kind is VerdictKind.PASS
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
    report = lab.gather()
    assert report.exit_code() is ExitCode.OK
    assert any("how the program counts its steps is not recorded" in text for text in report.tests[0].warnings)
    assert "steps_beyond" not in lab.manifest
    assert lab.manifest["replicas"] == {"9": {}, "19": {}}


# ---------------------------------------------------------------- early stop


def test_a_failing_run_is_stopped_early_and_the_others_are_judged(lab: Lab) -> None:
    lab.test["recording"]["steps_to_record_after_save"] = 8
    lab.write()
    lab.use_golden()
    lab.change(hold_at=12, loss={"11": "99"})  # without the stop it would hang for ten minutes
    report = lab.check_one()
    first = report.segments[0]
    run = first.runs[0]
    assert first.verdict.kind is VerdictKind.FAIL
    assert run.state is State.STOPPED
    assert run.stopped_early is not None
    assert "step 11" in run.stopped_early
    assert run.saved_steps == 17 - 12
    assert run.saved_s > 0
    assert report.saved_steps >= run.saved_steps
    stop = json.loads((Path(run.dir) / "stop.1").read_text())
    assert stop["kind"] == "early"


def test_an_early_stop_gives_one_line_and_no_finding_for_each_other_metric(lab: Lab) -> None:
    lab.test["recording"]["steps_to_record_after_save"] = 8
    lab.test["log_parsing"]["acc"] = {"regex": r"Acc: ([\d\.]+)"}
    lab.test["log_parsing"]["same"] = {"regex": r"Acc: ([\d\.]+)"}
    lab.test["metrics"] |= {name: {"margin": 0.05, "comparison": "=="} for name in ("acc", "same")}
    lab.write()
    assert lab.gather().exit_code() is ExitCode.OK
    lab.change(hold_at=12, loss={"11": "99"})
    report = lab.check()
    (test,) = report.tests
    first = test.segments[0]
    assert first.verdict.kind is VerdictKind.FAIL
    assert [metric.metric for metric in first.metrics] == ["loss"]
    assert {finding.kind for finding in first.verdict.findings} == {VerdictKind.FAIL}
    assert test.notes.count("segment 9 was stopped at step 12; not judged there: acc, same") == 1
    cases = [
        (case.get("classname"), case.get("name"))
        for case in ET.fromstring(render_junit(build_document(report))).iter("testcase")
    ]
    assert [name for segment, name in cases if segment == "demo.segment 9"] == ["loss"]


def test_what_a_program_forked_and_left_is_ended_with_its_check(real: Lab) -> None:
    """The fixture `no_leaks` looks for processes that are still there; one that is left keeps the only slot."""
    real.use_golden()
    child = "import subprocess; subprocess.Popen(['setsid', 'sleep', '600'], stdin=subprocess.DEVNULL, start_new_session=True)\n"
    real.edit('if change.get("close")', f'{child}if change.get("close")')
    report = real.check_one(slots=("cpu",))
    assert report.verdict.kind is VerdictKind.PASS
    tags = {f"ASSAY_RUN_DIR={run.dir}".encode() for segment in report.segments for run in segment.runs}
    left = [pid for pid in processes.list_pids() if tags & set(_load_environ(pid).split(b"\0"))]
    assert not left


def _load_environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def test_a_log_that_appears_during_a_look_is_not_read_as_a_metric_file(
    native: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read twice, 0.200000 and 0.2 of the same step would contradict each other."""
    native.use_golden()
    seen: set[object] = set()
    listdir = os.listdir

    def list_late(path: str = ".") -> list[str]:
        """The first look at each folder comes just before its log."""
        names = listdir(path)
        return names if path in seen or seen.add(path) else [name for name in names if not name.endswith(".log")]

    monkeypatch.setattr("assay.golden.flow.followers.os.listdir", list_late)
    report = native.check_one()
    assert report.verdict.kind is VerdictKind.PASS, messages(report)


def test_a_run_is_stopped_at_once_when_a_value_is_not_finite(native: Lab) -> None:
    native.write_native(
        NATIVE.replace("segment: 6", "segment: 60\n  gather: --until 20").replace("{loss: exact}", "{loss: paired}")
    )
    native.use_golden()
    native.change(hold_at=13, loss={"12": "-inf"})
    report = native.check_one()
    assert report.segments[0].verdict.kind is VerdictKind.FAIL, messages(report)
    assert report.segments[0].runs[0].stopped_early is not None


def test_without_early_stop_every_segment_runs_to_its_end(lab: Lab) -> None:
    lab.use_golden()
    lab.change(loss={"10": "99"})
    report = lab.check_one(early_stop=False)
    assert [segment.runs[0].state for segment in report.segments] == [State.DONE, State.DONE]
    assert [segment.verdict.kind for segment in report.segments] == [VerdictKind.FAIL, VerdictKind.PASS]
    assert report.saved_steps == 0


# ---------------------------------------------------------------- verdicts and what follows from them


def test_an_inconclusive_segment_is_run_again_up_to_the_limit(native: Lab) -> None:
    """Replicas that differ by 0.2% and a check that is 0.6% off: too much for a pass, too little for a failure."""
    script = native.folder / "training.py"
    noise = "{1: 1.0}.get(calls, [1.002, 0.998, 1.002, 0.998, 1.0][(calls - 2) % 5])"
    text = script.read_text().replace(
        "out = sys", f"calls = sum(1 for _ in open(here + '/calls')); drift = {noise}\nout = sys"
    )
    script.write_text(text.replace("change.get('scale', 1.0)", "change.get('scale', drift)"))
    rules = NATIVE.replace("replicas: 2", "replicas: 6\n  gather: --until 20")
    native.write_native(rules.replace("{loss: exact}", "{loss: {rule: paired, delta: 0.8%}}"))
    gathered = native.gather(slots=("cpu",)).tests[0]
    assert gathered.verdict.kind is VerdictKind.PASS, messages(gathered)
    native.change(scale=1.006)
    report = native.check_one()
    assert report.verdict.kind is VerdictKind.INCONCLUSIVE, messages(report)
    assert [len(segment.runs) for segment in report.segments] == [3]
    assert len(report.segments[0].metrics[0].check[""]) == 3
    assert [len(segment.runs) for segment in native.check_one(most_checks=2).segments] == [2]
    native.change(scale=1.05)
    failed = native.check_one()
    assert failed.verdict.kind is VerdictKind.FAIL
    assert [len(segment.runs) for segment in failed.segments] == [1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Path.unlink, "model_10.bin is not in the store"),
        (lambda path: path.write_text("other weights"), "its content has changed"),
    ],
)
def test_a_checkpoint_that_is_gone_or_another_is_an_error_and_the_others_are_checked(
    lab: Lab, change: Callable[[Path], object], words: str
) -> None:
    lab.use_golden()
    change(lab.store / "ckpts" / "model_10.bin")
    report = lab.check_one()
    assert [segment.verdict.kind for segment in report.segments] == [VerdictKind.ERROR, VerdictKind.PASS]
    assert words in messages(report)


@pytest.mark.parametrize(
    ("text", "words", "code"),
    [
        ('{"ckpt_logs"', "it is truncated", ExitCode.INTERNAL),
        ('{"ckpt_logs": {}}', "has no segment", ExitCode.FAILED),
    ],
)
def test_a_manifest_that_cannot_be_used_never_passes(lab: Lab, text: str, words: str, code: ExitCode) -> None:
    lab.store.mkdir()
    lab.manifest_path.write_text(text)
    report = lab.check()
    assert words in messages(report.tests[0])
    assert report.exit_code() is code
    assert report.kind is VerdictKind.ERROR


def test_duplicated_and_out_of_order_steps_never_pass(lab: Lab) -> None:
    lab.use_golden()
    lab.change(again={"11": ["0.5"]})
    report = lab.check_one()
    assert report.verdict.kind is VerdictKind.ERROR
    assert "loss at step 11 is logged twice" in messages(report)
    lab.change(again={"12": ["0.1"]}, format="{step}")
    script = (
        (lab.folder / "training.py")
        .read_text()
        .replace('f"Iteration: {step} Loss: {again}', 'f"Iteration: {step - 2} Loss: {again}')
    )
    (lab.folder / "training.py").write_text(script)
    report = lab.check_one()
    assert report.verdict.kind is VerdictKind.ERROR
    assert "out of order" in messages(report)


def test_a_twice_logged_step_while_gathering_is_not_recorded(lab: Lab) -> None:
    lab.change(again={"11": ["0.5"]})
    report = lab.gather().tests[0]
    assert report.verdict.kind is VerdictKind.ERROR
    assert list(lab.partial["ckpt_logs"]) == ["19"]
    assert not lab.manifest_path.exists()


def test_gathering_without_a_save_line_is_an_error(lab: Lab) -> None:
    lab.test["log_parsing"]["model_save"]["regex"] = "Never printed: (.+)"
    lab.write()
    report = lab.gather()
    assert report.exit_code() is ExitCode.FAILED
    assert "no line matches the pattern of a saved checkpoint" in messages(report.tests[0])
    assert not lab.manifest_path.exists()


def test_a_metric_that_was_never_logged_is_an_error_while_gathering(lab: Lab) -> None:
    lab.test["log_parsing"]["speed"] = {"regex": r"Speed: (\S+)"}
    lab.test["metrics"]["speed"] = {"margin": 0.5, "comparison": ">="}
    lab.write()
    report = lab.gather().tests[0]
    assert report.verdict.kind is VerdictKind.ERROR
    assert "speed: was not logged in any recorded segment" in messages(report)


def test_a_margin_below_the_noise_warns_in_the_originals_command_and_is_refused_in_ours(native: Lab) -> None:
    native.edit("change.get('scale', 1.0)", "(1 + 0.01 * __import__('random').random())")
    native.write_native(
        NATIVE.replace("replicas: 2", "replicas: 4\n  gather: --until 20").replace(
            "{loss: exact}", "{loss: {operator: '<=', margin: 0.01%}}"
        )
    )
    report = native.gather().tests[0]
    assert report.verdict.kind is VerdictKind.ERROR
    assert "is below the noise" in messages(report)
    assert native.check().exit_code() is ExitCode.USAGE
    other = Lab(native.folder)
    other.store = native.folder / "original"
    other.test["metrics"]["loss"]["margin"] = 0.0001
    native.edit("change.get('scale', 1.0)", "(1 + 0.01 * __import__('random').random())")
    other.flags("gather", until=20)
    warned = other.gather(replicas=3).tests[0]
    assert warned.verdict.kind is VerdictKind.PASS
    assert any("is below the noise" in warning for warning in warned.warnings)


# ---------------------------------------------------------------- surroundings


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
    """The supervisor leaves, as if killed; the training goes on."""
    lab.change(hold_at=12)

    def listen(event: Event) -> None:
        if event.kind == "started":
            lab.started = event.entry  # type: ignore[attr-defined]

    def draw(supervisor: object) -> None:
        entry: Entry | None = getattr(lab, "started", None)
        log = Path(entry.dir, "train.stdout.log") if entry else lab.folder / "none"
        if log.exists() and "Iteration: 12" in log.read_text():
            supervisor.leave = True  # type: ignore[attr-defined]

    gather_file(lab.options(), RunHooks(listen=listen, draw=draw, tick_s=0.02))
    held: Entry = lab.started  # type: ignore[attr-defined]
    assert held.handle is not None
    return held


def test_an_unfinished_gathering_is_gone_on_with(lab: Lab) -> None:
    """The next supervisor takes up the very same training."""
    held = _leave_a_gathering(lab)
    seen: list[str] = []

    def watch(event: Event) -> None:
        seen.append(f"{event.kind} {event.entry.spec.name}")
        if event.kind == "adopted":
            assert event.entry.handle is not None
            for pid in _children(event.entry.handle.pid):
                os.kill(pid, 15)

    report = gather_file(lab.options(), RunHooks(listen=watch, tick_s=0.02))
    assert seen[0] == f"adopted {held.spec.name}"
    assert len(lab.calls()) == 1
    assert report.exit_code() is ExitCode.FAILED  # we ended it
    assert list(lab.partial["ckpt_logs"]) == ["9"]  # and what it had recorded is kept


def _change_code(lab: Lab, _: pytest.MonkeyPatch) -> dict[str, object]:
    lab.change()
    return {}


def _change_command(lab: Lab, _: pytest.MonkeyPatch) -> dict[str, object]:
    lab.flags("gather", x=2)
    lab.edit('change.get("hold_at")', "None")
    return {}


def _change_environment(_: Lab, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setenv("HOLD", "no")
    return {}


def _change_option(_: Lab, __: pytest.MonkeyPatch) -> dict[str, object]:
    return {"env": (("HOLD", "no"),)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_change_code, "the code has changed"),
        (_change_command, "the code and the command have changed"),
        (_change_environment, "the environment has changed"),
        (_change_option, "the environment has changed"),
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


def test_a_second_gathering_is_refused_with_the_name_of_the_first(lab: Lab) -> None:
    lab.change(hold_at=12)
    second: list[GoldenReport] = []

    def draw(supervisor: object) -> None:
        if not second:
            second.append(lab.gather())
        supervisor.interrupted = "SIGTERM"  # type: ignore[attr-defined]

    gather_file(lab.options(), RunHooks(draw=draw, tick_s=0.02))
    (refused,) = second[0].tests
    assert refused.exit_code is ExitCode.USAGE
    assert f"pid {os.getpid()} on {os.uname().nodename} gathers demo into {lab.store} now" in messages(refused)
    assert not list(lab.store.glob("*.lock"))


def _children(pid: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found += [int(entry), *_children(int(entry))]
    return found


def test_the_manifest_grows_with_every_filled_recording(lab: Lab) -> None:
    lab.change(hold_at=16)
    seen: list[list[str]] = []

    def draw(supervisor: object) -> None:
        assert not lab.manifest_path.exists()
        if lab.partial_path.exists():
            seen.append(list(lab.partial["ckpt_logs"]))
            assert lab.partial["complete"] is False
            supervisor.interrupted = "SIGTERM"  # type: ignore[attr-defined]

    report = gather_file(lab.options(), RunHooks(draw=draw, tick_s=0.02))
    assert seen[0] == ["9"]
    assert report.interrupted == "SIGTERM"
    assert report.exit_code() is ExitCode.INTERRUPTED


def test_it_works_in_a_thread(lab: Lab) -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(int(lab.gather().exit_code())))
    thread.start()
    thread.join()
    assert codes == [0]


def test_odd_paths_are_quoted(hostile_path: Path) -> None:
    lab = Lab(hostile_path)
    code = lab.gather().exit_code()
    assert lab.calls()[0][:2] == ["--ckpt", str(lab.store / "ckpts")]
    if "\n" in str(hostile_path):
        assert code is ExitCode.FAILED  # a log line cannot name such a checkpoint, and that is reported
        return
    assert code is ExitCode.OK
    assert lab.check().exit_code() is ExitCode.OK


def test_tests_can_be_chosen(lab: Lab) -> None:
    lab.config["second"] = lab.test
    lab.write()
    report = lab.gather(tests=("second",))
    assert [test.test for test in report.tests] == ["second"]
    with pytest.raises(NotFoundError, match="secnd"):
        lab.gather(tests=("secnd",))


def test_two_tests_of_a_file_do_not_overwrite_each_others_checkpoints(lab: Lab) -> None:
    lab.config["second"] = lab.test
    lab.write()
    lab.gather()
    assert lab.logs["9"]["checkpoint"] == "ckpts/demo/model_10.bin"
    assert (lab.store / "ckpts" / "second" / "model_10.bin").exists()


def test_a_store_that_cannot_be_made_is_a_usage_error(lab: Lab) -> None:
    (lab.folder / "file").write_text("")
    lab.store = lab.folder / "file" / "store"
    assert lab.gather().exit_code() is ExitCode.USAGE


def test_a_missing_folder_reports_where_it_was_looked_for(lab: Lab) -> None:
    lab.test["directory"] = "nowhere"
    lab.write()
    report = lab.gather()
    assert report.exit_code() is ExitCode.USAGE
    assert "there is no folder 'nowhere'" in messages(report.tests[0])


def test_a_native_file_with_several_runs_is_refused(native: Lab) -> None:
    native.write_native(
        NATIVE.replace("training.py", "training.py --x {x}").replace(
            "metrics:\n  step", "params: {x: [1, 2]}\nmetrics:\n  step"
        )
    )
    assert "this file defines 2 runs" in messages(native.gather().tests[0])


# ---------------------------------------------------------------- a golden is replaced by a good one only


def _look(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("change", [{"exit": 3}, {"loss": {"11": "nan"}}, {"mute": True}, {"again": {"11": ["9"]}}])
def test_a_gathering_that_fails_leaves_the_golden_as_it_was(lab: Lab, change: dict[str, object]) -> None:
    lab.use_golden()
    before = _look(lab.store)
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
    assert not (lab.store / "ckpts" / "model_10.bin").exists()  # the first one's
    assert not lab.partial_path.exists()


def test_an_incomplete_golden_never_passes(lab: Lab) -> None:
    lab.use_golden()
    lab.manifest_path.write_text(json.dumps({**lab.manifest, "complete": False}))
    report = lab.check()
    assert report.exit_code() is ExitCode.FAILED
    assert "the golden recording is not complete" in messages(report.tests[0])


def test_two_manifests_of_a_store_keep_their_own_checkpoints(lab: Lab) -> None:
    lab.use_golden()
    first = _look(lab.store)
    lab.edit("file.write(str(number))", "file.write('other')")
    assert lab.gather(manifest_name="b.json").exit_code() is ExitCode.OK
    assert {name: text for name, text in _look(lab.store).items() if name in first} == first
    assert (lab.store / "ckpts" / "demo_b" / "model_10.bin").read_text() == "other"
    assert lab.check().exit_code() is ExitCode.OK
    assert lab.check(manifest_name="b.json").exit_code() is ExitCode.OK


def test_a_golden_with_values_that_are_not_finite_never_passes(lab: Lab) -> None:
    lab.use_golden()
    lab.manifest_path.write_text(lab.manifest_path.read_text().replace("0.181818", "nan"))
    lab.change(loss={"10": "nan"})
    assert "segment 9 loss is nan at step 10" in messages(lab.check_one())


def test_steps_that_come_back_after_a_recording_are_an_error(lab: Lab) -> None:
    line = "        if step == 16: print('Iteration: 14 Loss: 1', flush=True)\n        for again in"
    lab.edit("        for again in", line)
    report = lab.gather()
    assert report.exit_code() is ExitCode.FAILED
    assert "step 14 is logged after step 16: out of order" in messages(report.tests[0])


def test_gathering_needs_to_know_how_to_check_except_in_the_originals_command(lab: Lab) -> None:
    del lab.test["flags"]["run"]["run_for"]
    lab.write()
    with pytest.raises(ConfigError, match="the mandatory flag run_for is missing"):
        lab.gather()
    console = CollectingConsole()
    report = gather_file(lab.options(is_harness=True), RunHooks(console=console))
    assert report.exit_code() is ExitCode.OK
    assert any("checking will need it" in line for line in console.lines)


def test_a_training_that_ends_on_a_save_is_no_reason_to_warn(lab: Lab) -> None:
    report = lab.gather().tests[0]
    assert not report.warnings
    assert any("nothing was logged after the checkpoint of step 29" in note for note in report.notes)


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


# ---------------------------------------------------------------- metrics from files


def test_metrics_from_json_lines(native: Lab) -> None:
    line = """        open(os.environ["ASSAY_RUN_DIR"] + "/m.jsonl", "a").write(f'{{"step": {step}, "grad": {0.1 + step}}}\\n')\n"""
    native.edit("        for again in", line + "        for again in")
    native.write_native(
        NATIVE.replace("  loss: 'Loss", "  file: {jsonl: m.jsonl}\n  loss: 'Loss").replace(
            "{loss: exact}", "{loss: exact, grad: exact}"
        )
    )
    report = native.gather().tests[0]
    assert report.verdict.kind is VerdictKind.PASS, messages(report)
    assert native.logs["9"]["results"]["10"]["grad"] == {"0": "10.1"}
    checked = native.check_one()
    assert checked.verdict.kind is VerdictKind.PASS, messages(checked)
    assert checked.verdict.comparisons == 24
    native.edit("0.1 + step", "0.1000001 + step")
    assert native.check_one().verdict.kind is VerdictKind.CHANGED


def test_metrics_from_tensorboard(real: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("tensorboardX") is None:  # importing it here would change our environment
        pytest.skip("tensorboardX is not installed")
    monkeypatch.chdir(real.folder)
    setup = [
        'import sys; sys.modules["torch"] = sys.modules["google.cloud.storage"] = None',  # each takes a second
        "from tensorboardX import SummaryWriter",
        'writer = SummaryWriter(os.environ["ASSAY_RUN_DIR"] + "/tb")',
        "first = change",
    ]
    line = '        writer.add_scalar("grad", 0.5 + step, step); writer.flush()\n        for again in'
    real.edit("first = change", "\n".join(setup))
    real.edit("        for again in", line)
    text = NATIVE.replace("  loss: 'Loss", "  file: {tensorboard: tb}\n  loss: 'Loss").replace(
        "{loss: exact}", "{grad: exact}"
    )
    text = text.replace("replicas: 2", "replicas: 2\n  gather: --until 20")
    real.write_native(text.replace("python3 training.py", f"{sys.executable} training.py"))
    report = real.gather().tests[0]
    assert report.verdict.kind is VerdictKind.PASS, messages(report)
    assert real.logs["9"]["results"]["10"]["grad"] == {"0": "10.5"}
    assert real.check_one().verdict.kind is VerdictKind.PASS


# ---------------------------------------------------------------- validate


def test_validate_prints_every_command_and_runs_nothing(lab: Lab) -> None:
    found = validate_file(lab.options())
    assert [(test, mode) for test, mode, _ in found.commands] == [("demo", "gather"), ("demo", "check")]
    assert found.commands[0][2] == f"python3 training.py --ckpt {lab.store}/ckpts"
    assert not found.problems
    assert not lab.store.exists()
    assert not (lab.folder / "calls").exists()


def test_validate_shows_the_checks_of_a_golden(lab: Lab) -> None:
    lab.use_golden()
    found = validate_file(lab.options())
    assert found.commands[1][2] == f"python3 training.py --load {lab.store}/ckpts/model_10.bin --start 9 --until 14"
    assert len(found.commands) == 3


def test_validate_names_patterns_that_match_nothing(lab: Lab) -> None:
    log = lab.folder / "sample.log"
    log.write_text("Iteration: 1 Loss: 0.5\nSaving model to: x\n")
    assert not validate_file(lab.options(), str(log)).problems
    log.write_text("Iteration: 1\nLoss: 0.5\n")
    problems = "\n".join(validate_file(lab.options(), str(log)).problems)
    assert "demo model_save: matches no line of the log" in problems
    assert "demo loss: is never on a line with the step" in problems
    with pytest.raises(UsageError, match="cannot be read"):
        validate_file(lab.options(), str(lab.folder / "none.log"))


def test_validate_names_a_program_that_is_missing(lab: Lab) -> None:
    lab.test["executable"] = ["no-such-program"]
    lab.write()
    assert "the program 'no-such-program' was not found" in validate_file(lab.options()).problems[0]


# ---------------------------------------------------------------- small parts


def test_savings_are_counted_from_where_it_stopped() -> None:
    from assay.golden.flow.check import _count_savings
    from assay.golden.values import SegmentRun

    segment = Segment(10, "c", {"loss": {"": (Track((11, 20), (1.0, 1.0)),)}})
    run = _count_savings(SegmentRun("d", State.STOPPED, elapsed_s=2.0, last_step=15, stopped_early="x"), segment)
    assert run.saved_steps == 5
    assert math.isclose(run.saved_s, 2.0)


@pytest.mark.parametrize("mode", ["gather", "check"])
def test_a_missing_library_is_reported_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    lab = Lab(tmp_path)
    lab.write_native(NATIVE.replace("exact", "paired"))
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtraError, match="pip install 'assay\\[stats\\]'"):
        getattr(lab, mode)()
    assert not (tmp_path / "calls").exists()  # the training was not called
