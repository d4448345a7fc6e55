"""The machine: the load of others, and what counts as trouble."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.observe.devices import Devices
from assay.observe.machine import (
    CpuMeter,
    find_contamination,
    load_governor,
    load_gpus,
    load_topology,
)
from assay.system.processes import load_oom_kills
from assay.values.layout import ENV_ATTEMPT
from assay.values.machine import GpuState, Machine

TICKS = os.sysconf("SC_CLK_TCK")


def write_stat(path: Path, busy_s: float, idle_s: float) -> None:
    path.write_text(f"cpu  {int(busy_s * TICKS)} 0 0 {int(idle_s * TICKS)} 0 0 0 0 0 0\ncpu0 1 2 3\n")


@pytest.mark.parametrize(
    ("busy", "idle", "own", "share"),
    [(1, 9, 1, 0.0), (5, 5, 1, 0.4), (1, 9, 3, 0.0), (10, 0, 0, 1.0)],
)
def test_what_others_used(tmp_path: Path, busy: float, idle: float, own: float, share: float) -> None:
    stat = tmp_path / "stat"
    write_stat(stat, 100, 100)
    meter = CpuMeter(str(stat))
    write_stat(stat, 100 + busy, 100 + idle)
    assert meter.foreign_fraction(own, 2) == pytest.approx(share, abs=0.001)


def test_a_moment_is_too_short_to_tell(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    write_stat(stat, 100, 100)
    meter = CpuMeter(str(stat))
    write_stat(stat, 100.1, 100.1)
    assert meter.foreign_fraction(0, 2) is None


def test_kills_for_want_of_memory_are_counted_where_the_kernel_does() -> None:
    with open("/proc/vmstat") as file:
        counts = "oom_kill " in file.read()
    kills = load_oom_kills()
    assert (kills is not None and kills >= 0) is counts


def test_this_machine_can_be_read() -> None:
    physical, sockets = load_topology()
    assert 0 <= sockets <= physical <= (os.cpu_count() or 1)
    assert isinstance(load_governor(), str)
    assert CpuMeter().foreign_fraction(0, os.cpu_count() or 1) is None


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (Machine(), ""),
        (Machine(foreign_cpu=0.05), ""),
        (Machine(foreign_cpu=0.25), "others used 25% of the CPUs"),
        (Machine(foreign_cpu_before=0.05), ""),
        (Machine(foreign_cpu_before=0.3), "others used 30% of the CPUs just before it began"),
        (Machine(foreign_cpu_before=0.3, foreign_cpu=0.01), ""),  # the load during the run decides
        (Machine(throttled=("sw_power_cap",)), ""),
        (Machine(throttled=("hw_slowdown", "sw_power_cap")), "throttled: hw_slowdown"),
        (Machine(gpus=(GpuState(0, "G", processes=(12,)),)), "on the GPU: 12"),
        (Machine(gpus_after=(GpuState(0, "G", processes=(13,)),)), "on the GPU: 13"),
    ],
)
def test_contamination(machine: Machine, words: str) -> None:
    found = "; ".join(find_contamination(machine, 0.1))
    assert words in found
    assert bool(words) == bool(found)


def test_our_own_processes_are_not_others(tmp_path: Path) -> None:
    ours = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, ENV_ATTEMPT: "tag.1"}
    )
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        content = {"gpus": [{"name": "G", "processes": [{"pid": ours.pid}, {"pid": other.pid}, {"pid": 4_000_000}]}]}
        (tmp_path / "gpus.json").write_text(json.dumps(content))
        devices = Devices({"ASSAY_FAKE_NVML": str(tmp_path / "gpus.json")})
        assert load_gpus(devices, [0], "tag.1")[0].processes == (other.pid,)
        assert load_gpus(devices, [0])[0].processes == (ours.pid, other.pid, 4_000_000)
        assert load_gpus(devices, [5]) == ()
    finally:
        for process in (ours, other):
            process.communicate()
