"""GPU memory: the run's own, by process where the driver reports it, and never that of others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from assay.bench.flow.memory import GpuMemory, GpuPeak, TreeLook, TreePeaks, TreeWatch, drop_starting_copies
from assay.observe.devices import Devices
from assay.system.processes import ProcessStat, load_stat, load_thread_children, parse_stat
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


@pytest.mark.parametrize("before", [5 * GB, 0])
def test_another_process_is_not_ours_whenever_it_comes(show: Show, devices: Devices, before: int) -> None:
    show((before, {STRANGER: before} if before else {}))
    memory = GpuMemory(devices, (0,))
    show((5 * GB, {STRANGER: 5 * GB}))
    memory.look("tag", [os.getpid()])
    assert memory.peak == GpuPeak(0, "", 0)


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


def test_a_process_that_was_there_under_an_outside_number_is_not_ours(show: Show, devices: Devices) -> None:
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


# ---------------------------------------------------------------- tree peak


MB = 1_000_000
HOLD = "b = bytearray(%d); b[::4096] = b'x' * len(b[::4096])"
CHILD = f"{HOLD % (40 * MB)}\nprint('ready', flush=True)\nimport sys; sys.stdin.readline()\n"
PARENT = """
import subprocess, sys, threading
%s
kept = []  # a handle that is dropped closes the child's input, and the child ends
def start():
    child = subprocess.Popen([sys.executable, "-S", "-c", %r], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    kept.append(child)
    print(child.pid, flush=True)
%s
sys.stdin.readline()
"""


@contextmanager
def tree(start: str = "start()") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process of 30 MB with a child of 40; both are there when this begins."""
    code = PARENT % (HOLD % (30 * MB), CHILD, start)
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        yield process, child
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        assert process.stdin is not None
        process.stdin.close()  # the child, whose input it held, ends by itself


def test_a_process_and_its_child_count_together() -> None:
    with tree() as (process, _):
        look = TreeLook(os.getpid(), process.pid)
        look.look()
    peaks = look.peaks
    assert peaks.processes == 2
    assert 70 * MB < peaks.rss_bytes < 130 * MB
    assert peaks.bound_bytes >= peaks.rss_bytes
    assert 40 * MB < peaks.largest_bytes < peaks.rss_bytes
    assert peaks.vms_bytes > peaks.rss_bytes


def test_the_largest_sum_stays_when_the_tree_is_gone() -> None:
    with tree() as (process, _):
        look = TreeLook(os.getpid(), process.pid)
        look.look()
        before = look.peaks
    look.look()
    assert look.peaks.rss_bytes >= before.rss_bytes


def test_a_child_that_another_thread_started_counts() -> None:
    with tree("thread = threading.Thread(target=start); thread.start()") as (process, child):
        assert child in load_thread_children(process.pid)
        look = TreeLook(os.getpid(), process.pid)
        look.look()
    assert look.peaks.processes == 2


def test_an_orphan_stays_a_member() -> None:
    with tree() as (process, child):
        look = TreeLook(os.getpid(), process.pid)
        look.look()
        process.kill()
        process.wait()
        assert child in look.pids


def test_what_nothing_leads_to_can_be_adopted() -> None:
    with tree() as (process, child):
        look = TreeLook(os.getpid(), child)
        look.look()
        assert look.peaks.processes == 1
        look.adopt([process.pid, 4_000_000])
        look.look()
        assert look.peaks.processes == 2


def test_another_process_under_the_same_number_is_none_of_it() -> None:
    with tree() as (process, _):
        look = TreeLook(os.getpid(), process.pid, _root_start=1)
        look.look()
    assert process.pid not in look.pids


def test_shells_and_wrapper_are_weighed_apart() -> None:
    with tree() as (process, child):
        look = TreeLook(process.pid, child)
        look.look()
        stat = load_stat(process.pid)
    assert stat is not None
    assert look.peaks.ours_bytes == pytest.approx(stat.rss_bytes, rel=0.05)
    assert look.peaks.processes == 1


def test_where_the_way_to_our_shell_is_gone_they_are_not_weighed() -> None:
    with tree() as (process, child):
        look = TreeLook(process.pid, 4_000_000)
        look.adopt([child])
        look.look()
    assert look.peaks.rss_bytes > 40 * MB
    assert look.peaks.ours_bytes is None


def stat(pid: int, parent: int, rss: int, vms: int = 100) -> ProcessStat:
    found = parse_stat(pid, f"{pid} (x) S {parent} 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 {vms} {rss}".encode())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("stats", "left"),
    [
        ([stat(1, 0, 50), stat(2, 1, 50)], [1]),  # it has not become another program yet
        ([stat(1, 0, 50), stat(2, 1, 40)], [1, 2]),
        ([stat(1, 0, 50), stat(2, 1, 50, 99)], [1, 2]),
        ([stat(1, 0, 50), stat(2, 9, 50)], [1, 2]),  # two of a kind
        ([], []),
    ],
)
def test_memory_that_a_child_still_shares_is_counted_once(stats: list[ProcessStat], left: list[int]) -> None:
    assert [each.pid for each in drop_starting_copies(stats)] == left


def test_it_looks_from_the_side() -> None:
    known: list[int] = []
    with tree() as (process, child):
        watch = TreeWatch(os.getpid(), lambda: known[0] if known else None)
        watch.look()
        assert watch.pids == frozenset()  # it is not known yet
        known.append(process.pid)
        watch.start()
        peaks = watch.finish()
        assert watch.pids == {process.pid, child}
    assert peaks.rss_bytes > 70 * MB
    assert not watch.is_alive()


def test_without_a_first_process_nothing_is_known() -> None:
    watch = TreeWatch(1, lambda: None)
    assert watch.finish() == TreePeaks()  # also where it was never started


def test_what_has_outlived_the_run_is_looked_at_last() -> None:
    with tree() as (process, child):
        watch = TreeWatch(os.getpid(), lambda: child)
        watch.look()
        assert watch.finish([process.pid]).rss_bytes > 70 * MB
