"""`assay.run` and the other calls of the public face, with real runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.finished_study import LONG, STUDY, Bench, until
from tests.golden_training import Lab

import assay
from assay import handle
from assay.api import RunOutcome, StudyHandle
from assay.errors import ConfigError, NotFoundError, UsageError
from assay.values.verdict import VerdictKind

STATES = {"lr=0.1,n=7": "done", "lr=0.1,n=8": "done", "lr=0.5,n=7": "failed", "lr=0.5,n=8": "failed"}
forked = pytest.mark.usefixtures("forked_supervisors")
GATED = """
study: gated
command: 'echo {x}; until [ -e "{folder}/go" ]; do sleep 0.05; done'
params: {x: [1, 2]}
resources: {gpus: 0}
"""


def count_sleepers(bench: Bench) -> int:
    found = 0
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            is_ours = str(bench.folder).encode() in path.read_bytes()
            found += is_ours and b"sleep" in (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
    return found


def start_long(bench: Bench) -> StudyHandle:
    study = assay.run(bench.write("long.yml", LONG), jobs=2)
    until(lambda: count_sleepers(bench) >= 4, "two runs are at work")
    return study


# ---------------------------------------------------------------- run


def test_a_study_from_file_to_table(entered_bench: Bench) -> None:
    for name in ("yaml", "click"):  # the supervisor imports what is installed, whatever is in the folder
        entered_bench.write(f"{name}.py", f"raise SystemExit('the wrong {name}')")
    before = dict(os.environ)
    study = assay.run(Path(entered_bench.write("study.yml", STUDY)), jobs=2)
    outcome = study.wait()
    assert outcome == RunOutcome(1, STATES, (), outcome.messages)
    assert not outcome.ok
    assert (study.name, study.dir, study.is_running) == ("fit", str(entered_bench.root / "fit"), False)
    assert {run.name: run.state for run in study.runs} == STATES
    assert study.table(sort=["test.acc"]).splitlines()[2].split()[:2] == ["lr=0.1,n=8", "done"]
    assert study.wait(0) is outcome
    assert study.stop() is outcome
    record = json.loads((entered_bench.root / "fit" / "lr=0.1,n=7" / "environment.json").read_text())
    assert record["command_line"][:2] == ["assay", "run"]
    assert list(study.runs) == list(assay.runs("fit"))
    assert (Path.cwd(), dict(os.environ)) == (entered_bench.folder, before)


@forked
def test_called_again_it_runs_what_is_not_finished(entered_bench: Bench) -> None:
    with assay.run(entered_bench.write("study.yml", STUDY), jobs=2):
        pass  # leaving it waits
    plan = assay.load_study("study.yml")
    assert {run.name: run.left for run in plan.runs} == dict.fromkeys(STATES, ())
    again = assay.run("study.yml", jobs=2, retry=["failed"], titles=[], commands=["train"])
    assert again.wait().states == STATES
    assert {run.name: run.attempt for run in again.runs if run.state == "failed"} == {"lr=0.5,n=7": 2, "lr=0.5,n=8": 2}


@pytest.mark.parametrize("call", [assay.run, assay.load_study])
def test_a_wrong_file_raises_with_positions_and_starts_nothing(call: Any, entered_bench: Bench) -> None:
    entered_bench.write("study.yml", "study: x\ncomand: true\nparams: {a: 1}\nretries: many\n")
    with pytest.raises(ConfigError) as caught:
        call("study.yml")
    assert isinstance(caught.value, assay.AssayError)
    assert "study.yml:2:1" in str(caught.value)
    assert "study.yml:4:" in str(caught.value)
    assert not entered_bench.root.exists()


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"retry": ["faild"]}, "failed"),
        ({"code": "alive"}, "live"),
        ({"jobs": 0}, "jobs=0"),
        ({"slots": 0}, "jobs"),  # a number of slots is a number of jobs
        ({"slots": 2, "jobs": 2}, "jobs"),
        ({"jobs": "2"}, "jobs=.2. is not a number"),
        ({"sample": 1.5}, "sample=1.5 is not a number"),
        ({"sample": -1}, "sample=-1"),
        ({"slots": "0", "jobs": 1}, "--slots"),
        ({"commands": ["tran"]}, "train"),
        pytest.param({"on": "moon"}, "local", marks=pytest.mark.needs(farms=True)),
    ],
)
def test_a_wrong_argument_raises_at_once(given: Any, word: str, entered_bench: Bench) -> None:
    with pytest.raises(UsageError, match=word):
        assay.run(entered_bench.write("study.yml", STUDY), **given)
    assert not entered_bench.root.exists()


@forked
def test_warnings_of_the_file_are_warnings_of_python(entered_bench: Bench) -> None:
    file = entered_bench.write("study.yml", "study: x\ncommand: 'true {a}'\nparams: {a: [1, 1]}\n")
    assert assay.load_study(file).warnings
    with pytest.warns(UserWarning, match=r"study\.yml"):
        study = assay.run(file)
    study.stop()


@forked
def test_a_sample_is_the_one_that_runs(entered_bench: Bench) -> None:
    assert len(assay.run(entered_bench.write("study.yml", STUDY), jobs=2, sample=2).wait().states) == 2
    planned = assay.load_study("study.yml", sample=2, seed=7)
    assert planned == assay.load_study("study.yml", sample=2, seed=7)
    assert len(planned.runs) == 2


@forked
def test_a_time_limit_leaves_the_runs_alone_and_stop_ends_them(entered_bench: Bench) -> None:
    study = start_long(entered_bench)
    with pytest.raises(TimeoutError, match="goes on"):
        study.wait(0.05)
    assert study.is_running
    assert "running" in repr(study)
    assert count_sleepers(entered_bench) >= 4
    outcome = study.stop()
    assert outcome.exit_code == 130
    assert sorted(outcome.states.values()) == ["queued", "stopped", "stopped"]
    assert count_sleepers(entered_bench) == 0


def test_a_stop_before_anything_has_started(entered_bench: Bench) -> None:
    assert assay.run(entered_bench.write("long.yml", LONG), jobs=2).stop().exit_code == 130
    assert count_sleepers(entered_bench) == 0


@forked
def test_an_exception_in_the_block_stops_the_runs(entered_bench: Bench) -> None:
    with pytest.raises(ZeroDivisionError), start_long(entered_bench) as study:
        _ = 1 / 0
    assert study.wait().exit_code == 130
    assert count_sleepers(entered_bench) == 0


@forked
def test_in_a_thread_no_signal_handler_changes(entered_bench: Bench) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    before = [signal.getsignal(number) for number in numbers]
    outcomes: list[RunOutcome] = []

    def work() -> None:
        outcomes.append(assay.run(entered_bench.write("study.yml", STUDY), jobs=2).wait())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(120)
    assert [outcome.states for outcome in outcomes] == [STATES]
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_runs_outlive_the_program_and_are_found_again(entered_bench: Bench) -> None:
    entered_bench.write("gated.yml", GATED.replace("{folder}", str(entered_bench.folder)))
    program = "import assay; assay.run('gated.yml', jobs=2)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    until(lambda: len(list(entered_bench.root.glob("gated/*/lease.1"))) == 2, "both runs have begun")
    study = assay.run("gated.yml", jobs=2)
    with pytest.raises(TimeoutError):
        study.wait(0.2)
    (entered_bench.folder / "go").touch()
    assert study.wait(60).states == {"x=1": "done", "x=2": "done"}
    assert {run.attempt for run in study.runs} == {1}


def test_ctrl_c_while_waiting_stops_the_runs(entered_bench: Bench) -> None:
    entered_bench.write("long.yml", LONG)
    program = "import assay; assay.run('long.yml', jobs=2).wait()"
    script = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    until(lambda: count_sleepers(entered_bench) >= 4, "two runs are at work")
    script.send_signal(signal.SIGINT)
    _, errors = script.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert count_sleepers(entered_bench) == 0
    assert sorted(run.state for run in assay.runs("long")) == ["queued", "stopped", "stopped"]


def test_a_handle_that_is_dropped_gives_no_warning(entered_bench: Bench) -> None:
    """In a process of its own: here the garbage of earlier tests may be collected as well, with its warnings."""
    code = f"import assay, gc; assay.run({str(entered_bench.write('study.yml', STUDY))!r}, jobs=2); gc.collect()"
    argv = [sys.executable, "-W", "always::ResourceWarning", "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    until(lambda: not list(entered_bench.root.glob("fit/.assay/supervisor.*.*.*")), "the supervisor has left")


def test_a_study_without_runs_has_an_empty_table(entered_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the supervisor has made the first run."""
    monkeypatch.setattr(handle, "_start_supervisor", lambda *_: subprocess.Popen(["true"]))
    study = assay.run(entered_bench.write("long.yml", LONG))
    assert study.table() == ""
    assert list(study.runs) == []
    assert study.wait().states == {}


def test_a_plan_is_what_a_dry_run_shows(entered_bench: Bench) -> None:
    plan = assay.load_study(entered_bench.write("study.yml", STUDY), root="elsewhere", study="other")
    assert (plan.name, plan.dir, plan.warnings) == ("other", str(entered_bench.folder / "elsewhere" / "other"), ())
    first = plan.runs[0]
    assert (first.name, first.params, first.left) == ("lr=0.1,n=7", {"lr": 0.1, "n": 7}, ("train", "test"))
    assert first.commands["test"] == 'echo "acc=0.7"'
    assert first.dir == f"{plan.dir}/{first.name}"
    assert list(entered_bench.folder.iterdir()) == [entered_bench.folder / "study.yml"]


# ---------------------------------------------------------------- judgements


def test_a_golden_passes_and_fails(entered_bench: Bench) -> None:
    lab = Lab(entered_bench.folder)
    lab.gather(replicas=0)
    good = assay.check_golden(lab.file, lab.store, jobs=2)
    assert (good.verdict, good.exit_code, good.ok) == (VerdictKind.PASS, 0, True)
    lab.change(scale=1.5)
    bad = assay.check_golden(lab.file, lab.store, jobs=2, tests=["demo"], root=entered_bench.root)
    assert (bad.verdict, bad.exit_code, bad.ok) == ("FAIL", 1, False)
    assert any("loss" in finding.subject for finding in bad.findings)
    assert "FAIL" in bad.text
    with pytest.raises(NotFoundError):
        assay.check_golden(lab.file, lab.store, tests=["dmo"])


def write_results(path: Path, factor: float) -> str:
    row = {"name": "BM/1", "run_name": "BM/1", "run_type": "iteration", "time_unit": "us"}
    rows = [{**row, "real_time": (10 + n % 2 / 100) * factor} for n in range(20)]
    path.write_text(json.dumps({"context": {"num_cpus": 4, "host_name": "h"}, "benchmarks": rows}))
    return str(path)


@pytest.mark.needs(bench=True)
def test_benchmarks_are_compared(entered_bench: Bench) -> None:
    base = write_results(entered_bench.folder / "base.json", 1.0)
    same = assay.compare_benchmarks(base, write_results(entered_bench.folder / "same.json", 1.01), min_effect=0.3)
    assert (same.verdict, same.exit_code) == ("PASS", 0)
    slower = assay.compare_benchmarks(base, write_results(entered_bench.folder / "head.json", 2.0))
    assert (slower.verdict, slower.exit_code, slower.ok) == ("FAIL", 1, False)
    assert slower.findings[0].effect == pytest.approx(1.0, abs=0.1)
    assert "BM/1" in slower.text
    assert assay.compare_benchmarks(base, "head.json", min_effect=3.0).ok


def test_a_model_is_checked(entered_bench: Bench) -> None:
    from tests.example_models import write_chain

    write_chain(entered_bench.folder / "relu.onnx")
    found = assay.check_model("relu.onnx", target="ort", reference="reference", samples=2)
    assert (found.verdict, found.exit_code) == ("PASS", 0)
    assert "full_model" in found.text
    with pytest.raises(UsageError, match="absent"):
        assay.check_model("absent.onnx", target="ort")
