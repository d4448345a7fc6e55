"""Benchmarks in real processes: every failure is a recorded result, and the others still run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.bench.flow.conftest import COMMANDS, METHODS, Finished
from tests.bench_samples import request, write_spy
from tests.fork_server import start_assay

from assay.bench.commands.options import parse_commands
from assay.bench.flow import run
from assay.bench.flow.archive import find_location, load_executions
from assay.bench.flow.execution_builder import JobSurroundings
from assay.bench.flow.history import HistoryOptions, build_history
from assay.bench.flow.machine import load_context, write_context
from assay.bench.flow.run import _make_exclusive, resolve_methods, run_benchmarks
from assay.bench.records import BENCH_FILE, hold_queue, load_execution, take_queue
from assay.bench.values.execution import (
    COMPARED,
    NOT_OBSERVED,
    BenchMethod,
    BenchVariant,
    GpuState,
    Machine,
    parse_windows,
)
from assay.errors import ExitCode, UsageError
from assay.execute.machine_lease import MachineLease
from assay.follow.opening import open_index
from assay.launch.sweep import RunHooks
from assay.record import run_directory
from assay.show.console import CollectingConsole
from assay.values.environment import GitState
from assay.values.study import Farm


def test_every_kind_of_failure_is_recorded_and_the_others_run(finished: Finished) -> None:
    assert finished.report.exit_code is ExitCode.FAILED
    assert len(finished.report.executions) == len(METHODS) + len(COMMANDS)
    words = {name: finished.message(f"mod.B.{name}") for name in ("dies", "nan", "never", "raises", "godo")}
    good, never = finished["mod.B.good"], finished["mod.B.never"].result
    assert good.succeeded
    assert len(good.result.samples["wall_time"]) == 12
    assert words["dies"].startswith("it ended with exit code 9"), "not with the name of our command"
    assert finished["mod.B.dies"].result.wall_time == 1.0, "what it had reported is kept"
    assert words["nan"] == "wall_time is nan"
    assert "never called report_benchmark" in words["never"]
    assert (never.wall_time, never.has_exception) == (-1.0, False)
    assert words["raises"] == "ValueError: no luck (mod.py:16)"
    assert "time limit" in finished.message("mod.B.sleeps")
    assert "did you mean 'good'" in words["godo"]
    assert "below its minimum" in finished.message("mod.B.fixed")
    assert not finished["mod.B.fixed"].result.has_exception
    assert "cannot be made" in finished.message("mod.Bad.good")
    assert "no module 'absent'" in finished.message("absent.f")
    assert "matches 'zzz.*'" in finished.message("mod.B.filter:zzz.*")
    assert finished.message("wrong.f").endswith("(wrong.py:4)"), "the user's line"
    assert "MemoryError: Python could not get the memory that it asked for" in finished.message("empty.memory")
    assert finished.message("empty.value") == "ValueError: without a message (empty.py:2)"
    total = len(finished.report.executions)
    reported = [(e.method, number, total) for number, e in enumerate(finished.report.executions, 1)]
    assert finished.reported == reported, "each when it has ended"


def test_a_good_execution_is_complete(finished: Finished) -> None:
    execution = finished["mod.B.good"]
    assert execution.label == "here"
    assert execution.machine.cpu_model
    assert execution.machine.logical_cpus == os.cpu_count()
    assert execution.machine.python == ".".join(map(str, sys.version_info[:3]))
    assert execution.setup["python"] == "{}.{}".format(*sys.version_info[:2])
    assert execution.fingerprint
    assert execution.peaks.max_rss > 1_000_000
    assert execution.peaks.max_cpu_percent > 0
    assert execution.ended_at >= execution.started_at  # type: ignore[operator]
    assert execution.extra == {"command": 1}
    assert not execution.is_profiled
    assert load_execution(execution.run_dir) == execution
    written = finished["mod.B.writes"]
    assert Path(written.output_dir, "result.txt").read_text() == "/some/data"
    assert written.output_dir == os.path.join(written.run_dir, "output")
    assert finished["mod.B.environment"].result.extras["value"] == "it's $HERE"


@pytest.mark.usefixtures("in_process")
def test_a_git_that_cannot_be_asked_is_a_warning_of_the_benchmark(lab: Path) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    (lab / ".git" / "index").write_bytes(b"damaged")
    console = CollectingConsole()
    report = run_benchmarks(request("mod.B.fixed", trials=2), RunHooks(console=console))
    said = console.lines
    assert [text for text in said if "git cannot read" in text] == said[:1]
    assert "no commit is recorded" in said[0]
    assert not [note for note in report.notes if "git" in note], "given once"
    assert [execution.commit for execution in report.executions] == [None, None]


def test_it_is_in_the_index_at_once(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(finished.root.parent.parent / "cache"))
    with open_index(str(finished.root)) as index:
        (row,) = [row for row in index.load_runs(["bench"]) if row.params["method"] == "mod.B.good"]
        summary = index.load_summaries(["bench"])[row.key]
    assert row.params["trial"] == 1
    assert (summary["wall_time"].count, summary["samples.wall_time"].count) == (1, 12)


@pytest.mark.usefixtures("in_process")
def test_trials_are_interleaved_and_never_share_a_folder(lab: Path) -> None:
    out = lab / "out"
    (out / "fixed-2").mkdir(parents=True)
    asked = request("mod.B.fixed", "mod.B.never", trials=2, execution_id="fixed", output_root=str(out))
    found = run_benchmarks(asked).executions
    pairs = [("mod.B.fixed", 1), ("mod.B.never", 1), ("mod.B.fixed", 2), ("mod.B.never", 2)]
    assert [(e.method, e.trial) for e in found] == pairs
    assert [e.execution_id for e in found] == ["fixed", "fixed-3", "fixed-4", "fixed-5"]
    assert len({e.output_dir for e in found}) == 4
    assert os.path.isdir(out / "fixed-3")
    before = Path(found[0].run_dir, BENCH_FILE).read_bytes()
    (again,) = run_benchmarks(request("mod.B.fixed", execution_id="fixed")).executions
    assert again.execution_id == "fixed-2"
    assert Path(found[0].run_dir, BENCH_FILE).read_bytes() == before, "nothing is overwritten"


def test_filters_become_methods(lab: Path) -> None:
    asked = request("mod.B.filter:n.*", "mod.B.nan", "mod.B.filter:zzz.*", "mod.B:good", "mod.B.good")
    names = [method.name for method in resolve_methods(replace(asked, folder=str(lab)))]
    assert names == ["mod.B.nan", "mod.B.never", "mod.B.filter:zzz.*", "mod.B.good"], "each once"


@pytest.mark.usefixtures("in_process")
def test_commands_are_measured_and_their_output_is_read(lab: Path, finished: Finished) -> None:
    texts = (
        "train=sleep 0.1; echo 'loss: 0.5'; echo 'loss: 0.25'",
        "silent=echo oops",
        "MARK=seen bash -c 'echo $MARK'",
    )
    asked = replace(request(), methods=parse_commands(texts), patterns=(("loss", r"loss: ([\d.]+)"),))
    first, second, third = run_benchmarks(asked).executions
    assert first.succeeded
    assert first.result.wall_time >= 0.1
    assert first.result.numbers["loss"] == 0.25
    assert first.result.samples["loss"] == (0.5, 0.25)
    assert not second.succeeded
    assert second.result.findings[0].message == "loss was not found in its output"
    assert Path(third.run_dir, third.log).read_text() == "seen\n", "it may begin with a variable"
    assert "exit code 3" in finished.message("broken")
    assert "oops" in finished.message("broken")
    assert finished["own"].result.throughput == 9, "a program may report by itself"
    assert finished["own"].result.wall_time > 0


def test_another_interpreter_needs_no_assay_and_is_given_the_arguments(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    asked = request("mod.Sized.one", python=sys.executable, constructor_args={"size": 7})
    (execution,) = run_benchmarks(asked).executions
    assert execution.succeeded
    assert execution.result.wall_time == 7


@pytest.mark.usefixtures("in_process")
def test_variants_run_in_turns_in_their_own_folders(lab: Path) -> None:
    variants = []
    for name, value in (("base", 1), ("head", 2)):
        (lab / name).mkdir()
        (lab / name / "other.py").write_text(
            f"from assay.bench import report_benchmark\ndef f(): report_benchmark(wall_time={value})\n"
        )
        variants.append(BenchVariant(name, str(lab / name), f"{value:040x}"))
    found = run_benchmarks(request("other.f", trials=2, variants=tuple(variants))).executions
    expected = [("base", 1), ("head", 2), ("head", 2), ("base", 1)]
    assert [(e.label, e.result.wall_time) for e in found] == expected
    assert found[0].commit == f"{1:040x}"


@pytest.fixture
def no_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own sampler is the quicker one."""
    monkeypatch.setattr(run, "find_py_spy", lambda: None)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


@pytest.mark.usefixtures("no_py_spy")
def test_that_it_was_profiled_is_in_the_record_and_why_a_window_has_none(lab: Path) -> None:
    asked = request("mod.quick", profile=parse_windows("0:0.2,500:"), extra={"command": 1})
    (execution,) = run_benchmarks(asked).executions
    assert execution.profiles == ("profile/python-1.json",)
    assert json.loads(Path(execution.run_dir, *execution.profiles).read_text())["traceEvents"]
    (note,) = execution.profile_notes
    assert note.endswith("the window 500: never began")
    assert execution.extra == {"command": 1, "profile": {"windows": "0:0.2,500:", "profiler": "auto", "notes": [note]}}
    assert load_execution(execution.run_dir) == execution
    assert execution.is_profiled


@pytest.mark.usefixtures("no_py_spy")
def test_one_that_was_killed_has_no_profile_and_says_so(lab: Path) -> None:
    (execution,) = run_benchmarks(request("mod.B.dies", profile=parse_windows("0:"))).executions
    assert execution.profile_notes == ("it ended before it wrote its profile",)
    assert execution.is_profiled


BEGUN = "open('begun', 'w').close()"


def test_a_command_is_profiled_from_outside(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "find_py_spy", lambda: str(write_spy(lab, BEGUN)))
    waits = f"{sys.executable} -S -c \"import os\nwhile not os.path.exists('begun'): pass\""
    command = BenchMethod(waits, "waits", "command")
    (execution,) = run_benchmarks(replace(request(profile=parse_windows("0:")), methods=(command,))).executions
    assert execution.succeeded
    assert execution.profiles == ("profile/py-spy-1.json",)
    assert execution.profile_notes == ()
    assert execution.extra["profile"] == {"windows": "0:", "profiler": "auto"}


def test_a_profile_of_a_command_that_cannot_be_had_is_refused(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for profiler, py_spy, words in (
        ("framework", "/somewhere/py-spy", "works inside a METHOD"),
        ("auto", None, "needs py-spy, which is neither"),
    ):
        monkeypatch.setattr(run, "find_py_spy", lambda py_spy=py_spy: py_spy)
        asked = request("mod.quick", profile=parse_windows("0:"), profiler=profiler)
        with pytest.raises(UsageError, match=words):
            run_benchmarks(replace(asked, methods=(*asked.methods, BenchMethod("true", "true", "command"))))
    assert not Path("runs").exists()
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", str(lab / "python"))
    assert run.find_py_spy() is None
    write_spy(lab, BEGUN)
    assert run.find_py_spy() == str(lab / "py-spy"), "beside our own interpreter"


# ---------------------------------------------------------------- names


def test_two_that_would_share_a_history_are_refused(lab: Path) -> None:
    command = BenchMethod("echo 1", "a", "command")
    one, other = (BenchMethod(f"{name}::x.time_a", "x.time_a", is_listed=True) for name in ("left", "right"))
    for methods, words in (
        ((one, other), "two benchmarks are named 'x.time_a': left::x.time_a and right::x.time_a"),
        ((command, replace(command, text="echo 2")), "two commands are named 'a'"),
        ((command, command), "two commands are named 'a'"),
        ((BenchMethod("mod.a", "a"), command), "a method and a command"),
    ):
        with pytest.raises(UsageError, match=words):
            run_benchmarks(replace(request(), methods=methods))
    assert not Path("runs").exists()


# ---------------------------------------------------------------- a supervisor that was killed


def test_what_a_killed_supervisor_left_is_read_later(finished: Finished, tmp_path: Path) -> None:
    execution = finished["mod.B.fixed"]
    copy = tmp_path / "runs" / "bench" / os.path.basename(execution.run_dir)
    shutil.copytree(execution.run_dir, copy)
    (copy / BENCH_FILE).unlink()
    (found,) = load_executions(find_location(str(tmp_path / "runs")))
    assert found.result.wall_time == 2.0
    assert found.execution_id == execution.execution_id
    assert (copy / BENCH_FILE).exists()


@pytest.mark.usefixtures("in_process")
def test_what_a_killed_call_had_still_to_run_is_run_by_the_next(lab: Path) -> None:
    call = ["bench", "run", "--command", "slow=sleep 0.2", "--trials", "4", "--root", "runs"]
    with tempfile.TemporaryFile("w") as log:
        killed = start_assay(call, cwd=lab, env=os.environ, log=log)
        while not list(Path("runs/bench").glob("*_slow/lease.1")):
            time.sleep(0.01)
        killed.kill()
        killed.wait()
    while not list(Path("runs/bench").glob("*_slow/bench.exit.0")):
        time.sleep(0.01)
    (lost,) = load_executions(find_location("runs"))
    assert (lost.method, lost.result.succeeded, lost.contaminated) == ("slow", True, (NOT_OBSERVED,))
    elsewhere = lab / "elsewhere"
    elsewhere.mkdir()
    shutil.copy("mod.py", elsewhere)
    other = run_benchmarks(request("mod.B.fixed", folder=str(elsewhere)))
    assert [execution.method for execution in other.executions] == ["mod.B.fixed"], "they are of another folder"
    report = run_benchmarks(request("mod.B.fixed"))
    assert [execution.method for execution in report.executions] == ["slow"] * 3 + ["mod.B.fixed"]
    assert all(execution.succeeded or execution.method != "slow" for execution in report.executions)
    assert any("an earlier call was killed" in note and "3 of slow" in note for note in report.notes)
    assert not list(Path("runs/bench/.assay").glob("bench-queue.*"))
    assert len(run_benchmarks(request("mod.B.fixed")).executions) == 1


@pytest.mark.usefixtures("in_process")
def test_what_a_living_call_has_still_to_run_is_left_to_it(lab: Path) -> None:
    (first,) = run_benchmarks(request("mod.B.fixed", extra={"command": 1})).executions
    spec = run_directory.load_record(first.run_dir).spec
    waiting = replace(spec, name="never-started", title="never-started")
    with hold_queue("runs/bench", str(lab), [waiting]):
        assert take_queue("runs/bench", str(lab)) == []
    with hold_queue("runs/bench", str(lab), [waiting, spec]):
        (path,) = Path("runs/bench/.assay").glob("bench-queue.*")
        left = path.read_text()
    path.write_text(left)
    assert [one.name for one in take_queue("runs/bench", str(lab))] == ["never-started"]
    path.write_text("{")
    assert take_queue("runs/bench", str(lab)) == []
    path.write_text(left)  # work of its own kind does not continue it; what else is stored with a call does not matter
    for own in (request("mod.B.fixed", extra=COMPARED), request("mod.B.fixed", output_root=str(lab / "out"))):
        assert len(run_benchmarks(own).executions) == 1
    assert path.exists()
    report = run_benchmarks(request("mod.B.fixed", extra={"command": 2}))
    assert [execution.extra for execution in report.executions] == [{"command": 1}, {"command": 2}]
    assert not path.exists()


# ---------------------------------------------------------------- memory and crashes


def test_peaks_of_memory_are_metrics_with_a_history(finished: Finished) -> None:
    one = finished["mod.B.large"]
    assert 120_000_000 < one.numbers["peak_memory"] < 250_000_000, "however short it was"
    executions = [replace(one, execution_id=str(number)) for number in range(6)]
    found = build_history("mod.B.large", "peak_memory", executions, HistoryOptions(everything=True), [])
    assert found.direction == "min"
    assert len(found.series[0].points) == 6
    gpu = replace(one, peaks=replace(one.peaks, gpu_memory_bytes=5 << 30))
    assert gpu.numbers["peak_gpu_memory"] == 5 << 30
    other = replace(one, result=replace(one.result, extras={"peak_memory": 7.0}))
    assert other.numbers["peak_memory"] == 7.0, "what it reports itself comes first"


@pytest.mark.parametrize("method", ["crash.outer", "crashing"])
def test_a_crash_in_native_code_shows_the_python_stack(finished: Finished, method: str) -> None:
    (finding,) = finished[method].result.findings
    assert "SIGSEGV" in finding.message
    assert "Segmentation fault in string_at" in finding.message
    assert "called by inner (crash.py:2) called by outer (crash.py:3)" in finding.message


@pytest.mark.usefixtures("in_process")
def test_a_benchmark_waits_for_model_checks_and_says_so_when_its_limit_is_over(lab: Path, tmp_path: Path) -> None:
    check = MachineLease("check")
    assert check.try_enter()
    try:
        report = run_benchmarks(request("mod.B.good", max_wait_s=0.2))
    finally:
        check.close()
    assert report.exit_code is ExitCode.INTERNAL
    assert "nothing was started within 0.2 s: model checks are running" in (report.problem or "")
    assert run_benchmarks(request("mod.B.good")).exit_code is ExitCode.OK
    assert MachineLease("run").try_enter()  # what it held is free again


# ---------------------------------------------------------------- on a farm

FARM = "[farms.shell]\nsubmit = 'bash -c {command}'\n"


@pytest.mark.needs(farms=True)
def test_a_farm_s_trials_alternate_never_overlap_and_are_observed_where_they_run(lab: Path, finished: Finished) -> None:
    """The wrapper on the node sees what the supervisor sees here: the same machine and environment, and peaks."""
    (lab / "assay.toml").write_text(FARM)
    variants = tuple(BenchVariant(name, env=(("MARK", name),)) for name in "ab")
    found = run_benchmarks(request("mod.B.environment", trials=2, farm="shell", variants=variants)).executions
    assert [execution.label for execution in found] == ["a", "b", "b", "a"]
    assert [execution.result.extras["value"] for execution in found] == ["a", "b", "b", "a"]
    assert all(began.ended_at <= then.started_at for began, then in pairwise(found))  # type: ignore[operator]
    here = finished["mod.B.large"]
    for there in found:
        assert there.succeeded
        assert (there.fingerprint, there.machine.host) == (here.fingerprint, here.machine.host)
        assert there.contaminated == ()
        assert 1_000_000 < there.peaks.max_rss < here.peaks.max_rss
        assert run_directory.load_history(there.run_dir).attempts[0].handle.executor == "submit"


@pytest.mark.needs(farms=True)
def test_a_farm_s_trials_beside_one_another_where_that_is_asked(lab: Path) -> None:
    """Each waits for the other."""
    (lab / "assay.toml").write_text(FARM)
    texts = [f"{me}=touch {me}; until [ -e {other} ]; do sleep 0.05; done" for me, other in ("ab", "ba")]
    asked = request(farm="shell", slots=("cpu", "cpu"), timeout_s=60)
    report = run_benchmarks(replace(asked, methods=parse_commands(texts)))
    assert [execution.succeeded for execution in report.executions] == [True, True]


def test_what_a_node_saw_and_a_node_that_could_not_say_it(tmp_path: Path) -> None:
    machine = Machine(host="n7", foreign_cpu=0.5, gpus=(GpuState(0, "G", processes=(7,)),), packages={"a": "1"})
    seen = JobSurroundings(machine, GitState("c" * 40, "main", True, "s"), "c" * 40, oom_kills=2)
    write_context(str(tmp_path), seen)
    assert load_context(str(tmp_path)) == seen
    for damaged in ("", "[]", '{"machine": 3}', '{"machine": {"host": "n7"'):
        (tmp_path / "machine.json").write_text(damaged)
        assert load_context(str(tmp_path)).is_observed is False
    (tmp_path / "machine.json").unlink()
    assert load_context(str(tmp_path)).is_observed is False


def test_slurm_keeps_the_node_for_one_trial() -> None:
    farm = Farm("c", "slurm", options={"flags": ("--nice",)})
    assert _make_exclusive(farm).options["flags"] == ("--nice", "--exclusive")
    given = Farm("c", "slurm", options={"flags": ("--exclusive=user",)})
    assert _make_exclusive(given) is given
    other = Farm("p", "ssh", options={"hosts": ("h",)})
    assert _make_exclusive(other) is other
