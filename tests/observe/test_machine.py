"""The machine: the load of others, and what counts as trouble."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from assay.observe.devices import Devices
from assay.observe.machine import (
    CpuMeter,
    ForeignLoad,
    add_aftermath,
    find_contamination,
    load_governor,
    load_gpus,
    load_own_cpu_s,
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


# ---------------------------------------------------------------- before a run begins


def test_what_others_did_before_is_told_from_the_last_mark_that_is_far_enough_back(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    write_stat(stat, 100, 100)
    outlook = ForeignLoad(2, str(stat))
    assert outlook.mark() is None
    write_stat(stat, 101, 100)  # busy for a second
    assert outlook.mark() == pytest.approx(1.0, abs=0.2)
    write_stat(stat, 101, 101)  # and then quiet: what was before counts no more
    assert outlook.mark() == pytest.approx(0.0, abs=0.01)


def test_marks_that_are_close_together_reach_back_farther(tmp_path: Path) -> None:
    """Trials of milliseconds, one after another."""
    stat = tmp_path / "stat"
    write_stat(stat, 100, 100)
    outlook = ForeignLoad(2, str(stat))
    shares = []
    for number in range(1, 9):
        outlook.mark()
        write_stat(stat, 100 + 0.05 * number, 100 + 0.05 * number)
        shares.append(outlook.mark())
    assert shares[0] is None
    assert all(share == pytest.approx(0.5, abs=0.2) for share in shares[5:])


def test_our_own_time_and_that_of_our_children_is_no_load_of_others(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    write_stat(stat, 100, 100)
    outlook = ForeignLoad(2, str(stat))
    outlook.mark()
    before_s = load_own_cpu_s(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    spin = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-S", "-c", spin], check=True)
    exec(spin.replace("process_time()", f"process_time() - {load_own_cpu_s()}"), {})
    used_s = load_own_cpu_s(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN) - before_s
    assert used_s >= 0.6
    write_stat(stat, 100 + used_s, 100.2)
    share = outlook.mark()
    assert share is not None
    assert share < 0.1  # nine tenths, if it counted as load of others


def test_what_is_forgotten_is_not_asked(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    write_stat(stat, 100, 100)
    outlook = ForeignLoad(2, str(stat))
    outlook.mark()
    outlook.forget()
    write_stat(stat, 200, 100)
    assert outlook.mark() is None


@pytest.mark.parametrize("content", [None, "", "cpu one two\n"])
def test_where_the_kernel_does_not_tell_nothing_is_known(tmp_path: Path, content: str | None) -> None:
    stat = tmp_path / "stat"
    if content is not None:
        stat.write_text(content)
    outlook = ForeignLoad(2, str(stat))
    assert [outlook.mark(), outlook.mark()] == [None, None]


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


def test_throttling_of_any_moment_is_kept() -> None:
    machine = Machine(throttled=("sw_thermal",))
    after = (GpuState(0, "G", throttle=("hw_power_brake", "application_clocks")),)
    assert add_aftermath(machine, after, ["sw_power_cap"], 0.1).throttled == (
        "hw_power_brake",
        "sw_power_cap",
        "sw_thermal",
    )


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
