"""GPU memory: the run's own, by process where the driver tells, and never a stranger's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.observe.devices import Devices
from assay.observe.gpu_memory import GpuMemory, GpuPeak
from assay.values.layout import ENV_ATTEMPT

GB = 1_000_000_000
STRANGER = 1  # init: a process of this machine that is not ours
OUTSIDE = 4_000_000_000  # a number that no process here can have
Show = Callable[..., None]


@pytest.fixture
def show(tmp_path: Path) -> Show:
    """What NVML says from now on: for each GPU what is in use, and pid → bytes."""

    def write(*gpus: tuple[int, dict[int, int]]) -> None:
        content = [
            {"used_bytes": used, "processes": [{"pid": pid, "memory_bytes": size} for pid, size in processes.items()]}
            for used, processes in gpus
        ]
        (tmp_path / "gpus.json").write_text(json.dumps({"gpus": content}))

    return write


@pytest.fixture
def devices(tmp_path: Path, show: Show) -> Devices:
    show((0, {}))
    return Devices({"ASSAY_FAKE_NVML": str(tmp_path / "gpus.json")})


def test_a_stranger_is_not_ours(show: Show, devices: Devices) -> None:
    show((5 * GB, {STRANGER: 5 * GB}))
    memory = GpuMemory(devices, (0,))
    memory.look("tag", [os.getpid()])
    assert memory.peak == GpuPeak(0, "", 0)


def test_a_stranger_that_comes_later_is_not_ours(show: Show, devices: Devices) -> None:
    memory = GpuMemory(devices, (0,))
    show((5 * GB, {STRANGER: 5 * GB}))
    memory.look("tag", [os.getpid()])
    assert memory.peak.size_bytes == 0


def test_our_processes_count_by_pid_and_the_peak_stays(show: Show, devices: Devices) -> None:
    show((6 * GB, {STRANGER: 5 * GB}))
    memory = GpuMemory(devices, (0,))
    show((9 * GB, {STRANGER: 6 * GB, os.getpid(): 2 * GB}))
    memory.look(None, [os.getpid()])
    show((6 * GB, {STRANGER: 5 * GB}))
    memory.look(None, [os.getpid()])
    assert memory.peak == GpuPeak(2 * GB, "processes", 1)


def test_our_processes_are_known_by_their_tag(show: Show, devices: Devices) -> None:
    ours = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, ENV_ATTEMPT: "tag.1"}
    )
    try:
        memory = GpuMemory(devices, (0,))
        show((3 * GB, {ours.pid: 2 * GB, os.getpid(): GB}))
        memory.look("tag.1", [])
        assert (memory.peak.size_bytes, memory.peak.owners) == (2 * GB, 1)
        memory.look("tag.1", [os.getpid()])
        assert (memory.peak.size_bytes, memory.peak.owners) == (3 * GB, 2)
    finally:
        ours.communicate()


@pytest.mark.parametrize("processes", [{}, {OUTSIDE: 3 * GB}, {os.getpid(): 0}], ids=["none", "outside", "unsaid"])
def test_where_the_driver_does_not_tell_it_is_what_came_since(
    show: Show, devices: Devices, processes: dict[int, int]
) -> None:
    show((GB, {}))
    memory = GpuMemory(devices, (0,))
    show((4 * GB, processes))
    memory.look("tag", [os.getpid()])
    assert (memory.peak.size_bytes, memory.peak.basis) == (3 * GB, "device")


def test_who_was_there_under_an_outside_number_is_a_stranger(show: Show, devices: Devices) -> None:
    show((2 * GB, {OUTSIDE: 2 * GB}))
    memory = GpuMemory(devices, (0,))
    show((7 * GB, {OUTSIDE: 6 * GB}))
    memory.look("tag", [os.getpid()])
    assert (memory.peak.size_bytes, memory.peak.basis) == (GB, "device")


def test_a_word_by_process_replaces_the_guess(show: Show, devices: Devices) -> None:
    memory = GpuMemory(devices, (0,))
    show((4 * GB, {}))
    memory.look("tag", [os.getpid()])
    show((4 * GB, {os.getpid(): GB}))
    memory.look("tag", [os.getpid()])
    assert (memory.peak.size_bytes, memory.peak.basis) == (GB, "processes")
    show((9 * GB, {}))
    memory.look("tag", [os.getpid()])
    assert (memory.peak.size_bytes, memory.peak.basis) == (GB, "processes")


def test_gpus_of_a_run_are_added_up_and_others_are_not(show: Show, devices: Devices) -> None:
    show((0, {}), (0, {}), (0, {}))
    memory = GpuMemory(devices, (0, 2))
    show((GB, {os.getpid(): GB}), (7 * GB, {os.getpid(): 7 * GB}), (2 * GB, {os.getpid(): 2 * GB}))
    memory.look(None, [os.getpid()])
    assert (memory.peak.size_bytes, memory.peak.owners) == (3 * GB, 1)


def test_without_gpus_there_is_nothing(devices: Devices) -> None:
    memory = GpuMemory(devices, ())
    memory.look("tag", [])
    assert (memory.peak.size_bytes, memory.peak.basis) == (0, "")
