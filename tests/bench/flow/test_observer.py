"""What is observed of the machine and of a benchmark's processes, and what is reported of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.bench.flow.conftest import Finished
from tests.bench_samples import execution as build_execution
from tests.bench_samples import request

from assay.bench.flow import observer
from assay.bench.flow.machine import load_gpus
from assay.bench.flow.run import run_benchmarks
from assay.bench.records import POINTS_FILE, load_execution, write_points
from assay.bench.report.executions import build_run_document
from assay.bench.values.execution import BenchMethod, BenchReport, BenchResult
from assay.errors import ExitCode
from assay.launch.sweep import RunHooks
from assay.observe.devices import Devices
from assay.show.console import Console
from assay.show.terminal_report import render_terminal
from assay.system.processes import process_start

MIB = 1 << 20


def fake_gpus(lab: Path, monkeypatch: pytest.MonkeyPatch, **gpu: object) -> None:
    content = {"driver": "550.1", "gpus": [{"name": "Fake 9000", "sm_clock_mhz": 1500, "temperature_c": 50, **gpu}]}
    (lab / "gpus.json").write_text(json.dumps(content))
    monkeypatch.setenv("ASSAY_FAKE_NVML", str(lab / "gpus.json"))


def test_load_of_others_contaminates_and_can_be_refused(lab: Path) -> None:
    """A busy process of ours that is not part of the benchmark; before a run of milliseconds it counts, too."""
    limit = 0.2 / (os.cpu_count() or 1)
    commands = (BenchMethod("true", "true", "command"), BenchMethod("sleep 0.4", "nap", "command"))
    busy = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        report = run_benchmarks(replace(request(), methods=commands, foreign_limit=limit, refuse_contaminated=True))
    finally:
        busy.kill()
        busy.wait()
    for execution in report.executions:
        assert "others used" in execution.contaminated[0]
        assert execution.result.succeeded
        assert execution.refused
        assert not execution.succeeded
        assert execution.machine.foreign_cpu_before is not None
        assert execution.machine.foreign_cpu_before > limit
    assert report.exit_code is ExitCode.INCONCLUSIVE


def test_the_load_before_a_run_counts_from_the_last_run_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop may look between two runs. While it waits for runs of others, their load does not count."""
    calls: list[str] = []
    load = SimpleNamespace(mark=lambda: calls.append("mark"), forget=lambda: calls.append("forget"))
    monkeypatch.setattr(observer, "ForeignLoad", lambda _cpus: load)
    observed = observer.BenchObserver(request("true"), {"a": None}, lambda *_: None, Console())
    observed.inner = SimpleNamespace(tick=lambda *_: None, started=lambda *_: None)
    entry = SimpleNamespace(dir=str(tmp_path), spec=SimpleNamespace(name="a"), handle=None)
    for _ in range(2):
        observed.tick([], 0.0)
        observed.started(entry)
    assert calls == ["mark", "mark"]
    for _ in range(3):
        observed.tick([], 0.0)
    assert calls[2:] == ["forget", "mark"] * 2


@pytest.mark.usefixtures("in_process")
def test_a_gpu_is_described_and_a_hot_one_or_foreign_processes_contaminate(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpus(lab, monkeypatch)
    (quiet,) = run_benchmarks(request("mod.B.fixed")).executions
    assert (quiet.machine.accelerator_model, quiet.machine.accelerator_driver) == ("Fake 9000", "550.1")
    assert quiet.machine.gpus[0].sm_clock_mhz == 1500
    assert quiet.setup["accelerator_model"] == "Fake 9000"
    assert quiet.contaminated == ()
    fake_gpus(lab, monkeypatch, throttle=["hw_thermal", "sw_power_cap"], processes=[{"pid": 1}])
    (hot,) = run_benchmarks(request("mod.B.fixed")).executions
    text = "; ".join(hot.contaminated)
    assert "throttled: hw_thermal" in text
    assert "sw_power_cap" not in text  # how the card is set up, not trouble; it is recorded
    assert "sw_power_cap" in hot.machine.throttled
    assert "other processes were on the GPU: 1" in text


def test_a_process_that_has_ended_is_not_on_the_gpu(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no environment any more by which it would be known as the run's, and exists until its parent asks."""
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        fake_gpus(lab, monkeypatch, processes=[{"pid": pid, "memory_bytes": 1} for pid in (1, ended.pid)])
        (state,) = load_gpus(Devices(), (0,), "run.1")
        assert state.processes == (1,)


def test_gpu_memory_of_the_run_s_processes_is(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The method itself appears on the fake GPU, next to another process."""
    fake_gpus(lab, monkeypatch, used_bytes=5_000_000_000, processes=[{"pid": 1, "memory_bytes": 5_000_000_000}])
    (lab / "user.py").write_text(
        "import json, os, time\nfrom assay.bench import report_benchmark\n"
        "def use():\n    content = json.load(open('gpus.json'))\n    gpu = content['gpus'][0]\n"
        "    gpu['used_bytes'] += 2_000_000_000\n"
        "    gpu['processes'].append({'pid': os.getpid(), 'memory_bytes': 1_900_000_000})\n"
        "    open('new.json', 'w').write(json.dumps(content))\n    os.replace('new.json', 'gpus.json')\n"
        "    time.sleep(0.5)\n    report_benchmark(wall_time=1.0)\n"
    )
    (execution,) = run_benchmarks(request("user.use"), RunHooks(tick_s=0.05)).executions
    assert execution.peaks.gpu_memory_bytes == 1_900_000_000
    assert execution.peaks.gpu_memory_basis == "processes"
    assert "other processes were on the GPU: 1" in execution.contaminated, "its own is none of them"


# ---------------------------------------------------------------- true peaks


def test_a_small_command_has_a_small_peak_and_its_own_times(finished: Finished) -> None:
    """Not the supervisor's size, and not the time that shells need to start."""
    execution = finished["true"]
    assert 0 < execution.peaks.max_rss < 8 * MIB
    assert execution.peaks.max_vms > execution.peaks.max_rss
    assert execution.result.cpu_time is not None
    assert execution.result.cpu_time == pytest.approx(execution.peaks.cpu_s)
    assert 0 < execution.result.wall_time < (execution.ended_at or 0) - (execution.started_at or 0)


@pytest.mark.parametrize(("name", "least", "most"), [("two", 120, 170), ("trees.forks", 120, 400)])
def test_processes_side_by_side_are_counted_together(finished: Finished, name: str, least: int, most: int) -> None:
    """Two are enough."""
    execution = finished[name]
    assert execution.result.succeeded
    assert least * 1_000_000 < execution.peaks.max_rss < most * 1_000_000
    assert execution.peaks.rss_basis == "tree"
    assert execution.peaks.max_rss_bound >= execution.peaks.max_rss
    assert execution.notes == ()


def test_what_a_method_leaves_behind_is_ended_and_reported(finished: Finished) -> None:
    execution = finished["trees.unwaited"]
    pid = int(execution.result.extras["pid"])
    assert execution.result.succeeded
    assert re.search(rf"\b{pid}\b", execution.notes[0])
    assert execution.notes[0].startswith("it left 1 process running, which Assay ended: ")
    assert process_start(pid) is None
    assert execution.peaks.max_rss > 90_000_000
    loaded = load_execution(execution.run_dir)
    assert loaded is not None
    assert loaded.notes == execution.notes
    assert loaded.peaks == execution.peaks
    text = render_terminal(build_run_document(BenchReport((execution,))))
    assert f"trees.unwaited: {execution.notes[0]}" in text


def test_a_kill_is_explained_and_what_was_seen_before_it_is_known(finished: Finished) -> None:
    message = finished.message("grow.printing")
    assert message.startswith("it was killed by signal 9 (SIGKILL): ")
    assert message.endswith("; its last line of output: growing")
    assert "SIGKILL" in finished.message("grow.holding")
    assert finished["grow.holding"].peaks.max_rss > 60_000_000


def test_numbers_go_to_the_index_and_nothing_goes_where_there_are_none(tmp_path: Path) -> None:
    given = build_execution(1, 2.0)
    samples = {"wall_time": (1.0, 2.0, 3.0)}
    write_points(str(tmp_path), replace(given, result=replace(given.result, samples=samples), ended_at=5.0))
    lines = [json.loads(line) for line in (tmp_path / "metrics" / POINTS_FILE).read_text().splitlines()]
    assert lines[0] == {"time": 5.0, "wall_time": 2.0}
    assert [(line["step"], line["samples.wall_time"]) for line in lines[1:]] == [(0, 1.0), (1, 2.0), (2, 3.0)]
    write_points(str(tmp_path / "none"), replace(given, result=BenchResult("m", False)))
    assert not (tmp_path / "none").exists()
