"""What is seen of the machine and of a benchmark's processes, and what is told of it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.flows.bench.laboratory import execution as build_execution
from tests.flows.bench.laboratory import request

from assay.errors import ExitCode
from assay.flows.bench.run import run_benchmarks
from assay.flows.bench.witness import POINTS_FILE, write_points
from assay.flows.sweep import Doors
from assay.values.benchmark import BenchMethod, BenchResult

MIB = 1 << 20


def fake_gpus(lab: Path, monkeypatch: pytest.MonkeyPatch, **gpu: object) -> None:
    content = {"driver": "550.1", "gpus": [{"name": "Fake 9000", "sm_clock_mhz": 1500, "temperature_c": 50, **gpu}]}
    (lab / "gpus.json").write_text(json.dumps(content))
    monkeypatch.setenv("ASSAY_FAKE_NVML", str(lab / "gpus.json"))


def test_the_peak_of_a_short_run_is_true(lab: Path) -> None:
    (execution,) = run_benchmarks(request("mod.B.large")).executions
    assert 120_000_000 < execution.peaks.max_rss < 250_000_000


def test_load_of_others_contaminates_and_can_be_refused(lab: Path) -> None:
    """Two busy processes of ours that are no part of the benchmark."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        asked = BenchMethod("sleep 0.6", "nap", "command")
        report = run_benchmarks(replace(request(), methods=(asked,), foreign_limit=0.05, refuse_contaminated=True))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    (execution,) = report.executions
    assert "others used" in execution.contaminated[0]
    assert execution.result.succeeded
    assert execution.refused
    assert not execution.succeeded
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


# ---------------------------------------------------------------- true peaks


def test_a_small_command_has_a_small_peak_and_its_own_times(lab: Path) -> None:
    """Not the supervisor's size, and not the time that shells need to start."""
    asked = replace(
        request(), methods=(BenchMethod("true", "true", "command"), BenchMethod("sleep 1.3", "nap", "command"))
    )
    quick, nap = run_benchmarks(asked).executions
    for execution in (quick, nap):
        assert 0 < execution.peaks.max_rss < 8 * MIB
        assert execution.result.cpu_time is not None
        assert execution.result.cpu_time == pytest.approx(execution.peaks.cpu_s)
    assert nap.result.wall_time >= 1.3
    assert nap.result.wall_time > quick.result.wall_time


def test_processes_side_by_side_are_counted_together(lab: Path) -> None:
    hold = f"{sys.executable} -S -c 'import time; b = bytearray(30_000_000); b[::4096] = b[::4096]; time.sleep(2.6)'"
    both = " & ".join([hold] * 4) + " & wait"
    asked = replace(request(), methods=(BenchMethod(both, "four", "command"),))
    (execution,) = run_benchmarks(asked).executions
    assert execution.peaks.max_rss > 110_000_000


def test_what_is_killed_leaves_a_word_of_its_memory(lab: Path) -> None:
    (lab / "grow.py").write_text(
        "import os, time\ndef grow():\n    b = bytearray(60_000_000); b[::4096] = b[::4096]\n"
        "    time.sleep(2.5)\n    os.kill(os.getpid(), 9)\n"
    )
    (execution,) = run_benchmarks(request("grow.grow"), Doors(tick_s=0.05)).executions
    assert "SIGKILL" in execution.result.findings[0].message
    assert execution.peaks.max_rss > 60_000_000


def test_each_execution_is_told_when_it_has_ended(lab: Path) -> None:
    told: list[tuple[str, int, int]] = []
    run_benchmarks(
        request("mod.B.fixed", "mod.B.raises", trials=2), told=lambda e, n, total: told.append((e.method, n, total))
    )
    assert told == [
        ("mod.B.fixed", 1, 4),
        ("mod.B.raises", 2, 4),
        ("mod.B.fixed", 3, 4),
        ("mod.B.raises", 4, 4),
    ]


def test_the_reason_of_an_end_speaks_of_it_and_not_of_our_names(lab: Path) -> None:
    (execution,) = run_benchmarks(request("mod.B.dies")).executions
    assert execution.result.findings[0].message.startswith("it ended with exit code 9")


def test_numbers_go_to_the_index_and_nothing_goes_where_there_are_none(tmp_path: Path) -> None:
    given = build_execution(1, 2.0)
    samples = {"wall_time": (1.0, 2.0, 3.0)}
    write_points(str(tmp_path), replace(given, result=replace(given.result, samples=samples), ended_at=5.0))
    lines = [json.loads(line) for line in (tmp_path / "metrics" / POINTS_FILE).read_text().splitlines()]
    assert lines[0] == {"time": 5.0, "wall_time": 2.0}
    assert [(line["step"], line["samples.wall_time"]) for line in lines[1:]] == [(0, 1.0), (1, 2.0), (2, 3.0)]
    write_points(str(tmp_path / "none"), replace(given, result=BenchResult("m", False)))
    assert not (tmp_path / "none").exists()
