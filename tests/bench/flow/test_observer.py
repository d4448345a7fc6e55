"""What is observed of the machine and of a benchmark's processes, and what is reported of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench.flow.conftest import Finished
from tests.bench_samples import execution as build_execution
from tests.bench_samples import request

from assay.bench.flow.run import run_benchmarks
from assay.bench.records import POINTS_FILE, load_execution, write_points
from assay.bench.report.executions import build_run_document
from assay.bench.values.execution import BenchMethod, BenchReport, BenchResult
from assay.errors import ExitCode
from assay.launch.sweep import RunHooks
from assay.show.terminal_report import render_terminal
from assay.system.processes import process_start

MIB = 1 << 20


def fake_gpus(lab: Path, monkeypatch: pytest.MonkeyPatch, **gpu: object) -> None:
    content = {"driver": "550.1", "gpus": [{"name": "Fake 9000", "sm_clock_mhz": 1500, "temperature_c": 50, **gpu}]}
    (lab / "gpus.json").write_text(json.dumps(content))
    monkeypatch.setenv("ASSAY_FAKE_NVML", str(lab / "gpus.json"))


def test_load_of_others_contaminates_and_can_be_refused(lab: Path) -> None:
    """Two busy processes of ours that are not part of the benchmark; before a run of milliseconds they count, too."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    commands = (BenchMethod("true", "true", "command"), BenchMethod("sleep 0.6", "nap", "command"))
    try:
        report = run_benchmarks(replace(request(), methods=commands, foreign_limit=0.05, refuse_contaminated=True))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    for execution in report.executions:
        assert "others used" in execution.contaminated[0]
        assert execution.result.succeeded
        assert execution.refused
        assert not execution.succeeded
        assert execution.machine.foreign_cpu_before is not None
        assert execution.machine.foreign_cpu_before > 0.05
    assert report.exit_code is ExitCode.INCONCLUSIVE


def test_a_quiet_gpu_is_described(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus(lab, monkeypatch)
    (execution,) = run_benchmarks(request("mod.B.good")).executions
    assert execution.machine.accelerator_model == "Fake 9000"
    assert execution.machine.accelerator_driver == "550.1"
    assert execution.machine.gpus[0].sm_clock_mhz == 1500
    assert execution.setup["accelerator_model"] == "Fake 9000"
    assert execution.contaminated == ()


def test_a_hot_gpu_and_foreign_processes_contaminate(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus(lab, monkeypatch, throttle=["hw_thermal", "sw_power_cap"], processes=[{"pid": 1}])
    (execution,) = run_benchmarks(request("mod.B.good")).executions
    text = "; ".join(execution.contaminated)
    assert "throttled: hw_thermal" in text
    assert "sw_power_cap" not in text  # how the card is set up, not trouble; it is recorded
    assert "sw_power_cap" in execution.machine.throttled
    assert "other processes were on the GPU: 1" in text


def test_memory_of_others_on_the_gpu_is_not_the_run_s(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus(lab, monkeypatch, used_bytes=5_000_000_000, processes=[{"pid": 1, "memory_bytes": 5_000_000_000}])
    nap = replace(request(), methods=(BenchMethod("sleep 0.7", "nap", "command"),))
    (execution,) = run_benchmarks(nap, RunHooks(tick_s=0.05)).executions
    assert execution.peaks.gpu_memory_bytes is None
    assert execution.peaks.gpu_memory_basis == ""


def test_gpu_memory_of_the_run_s_processes_is(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The method itself appears on the fake GPU, next to another process."""
    fake_gpus(lab, monkeypatch, used_bytes=5_000_000_000, processes=[{"pid": 1, "memory_bytes": 5_000_000_000}])
    (lab / "user.py").write_text(
        "import json, os, time\nfrom assay.bench import report_benchmark\n"
        "def use():\n    content = json.load(open('gpus.json'))\n    gpu = content['gpus'][0]\n"
        "    gpu['used_bytes'] += 2_000_000_000\n"
        "    gpu['processes'].append({'pid': os.getpid(), 'memory_bytes': 1_900_000_000})\n"
        "    open('new.json', 'w').write(json.dumps(content))\n    os.replace('new.json', 'gpus.json')\n"
        "    time.sleep(1)\n    report_benchmark(wall_time=1.0)\n"
    )
    (execution,) = run_benchmarks(request("user.use"), RunHooks(tick_s=0.05)).executions
    assert execution.peaks.gpu_memory_bytes == 1_900_000_000
    assert execution.peaks.gpu_memory_basis == "processes"


# ---------------------------------------------------------------- true peaks


def test_a_small_command_has_a_small_peak_and_its_own_times(finished: Finished) -> None:
    """Not the supervisor's size, and not the time that shells need to start."""
    quick, nap = finished["true"], finished["nap"]
    for execution in (quick, nap):
        assert 0 < execution.peaks.max_rss < 8 * MIB
        assert execution.peaks.max_vms > execution.peaks.max_rss
        assert execution.result.cpu_time is not None
        assert execution.result.cpu_time == pytest.approx(execution.peaks.cpu_s)
    assert nap.result.wall_time >= 1.3
    assert nap.result.wall_time > quick.result.wall_time


def test_processes_side_by_side_are_counted_together(finished: Finished) -> None:
    """Two are enough."""
    peaks = finished["two"].peaks
    assert 120_000_000 < peaks.max_rss < 170_000_000
    assert peaks.rss_basis == "tree"
    assert peaks.max_rss_bound >= peaks.max_rss


@pytest.mark.parametrize(("name", "least"), [("one", 120_000_000), ("forks", 160_000_000)])
def test_children_of_a_method_are_counted_with_it(finished: Finished, name: str, least: int) -> None:
    execution = finished[f"trees.{name}"]
    assert execution.result.succeeded
    assert execution.peaks.max_rss > least
    assert execution.peaks.rss_basis == "tree"
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


def test_a_kill_is_explained_and_the_last_line_is_the_method_s_own(finished: Finished) -> None:
    message = finished.message("grow.printing")
    assert message.startswith("it was killed by signal 9 (SIGKILL): ")
    assert message.endswith("; its last line of output: growing")


def test_the_memory_of_a_killed_method_is_known(finished: Finished) -> None:
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
