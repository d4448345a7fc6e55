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

from assay.bench.flow.memory import GpuMemory, GpuPeak, TreePeaks, TreeWatch, drop_starting_copies
from assay.observe.devices import Devices
from assay.system.processes import ProcessStat, load_stat, load_thread_children, parse_stat
from assay.values.layout import ENV_ATTEMPT

GB = 1_000_000_000
STRANGER = 1  # init: a process of this machine that is not ours
OUTSIDE = 4_000_000_000  # a number that no process here can have
Show = Callable[..., None]
Look = tuple[int, dict[int, int]]  # what is in use, and pid → bytes


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


US = os.getpid()


@pytest.mark.parametrize(
    ("before", "looks", "members", "peak"),
    [
        # another process is not ours, whenever it comes
        ((5 * GB, {STRANGER: 5 * GB}), [(5 * GB, {STRANGER: 5 * GB})], [US], GpuPeak(0, "", 0)),
        ((0, {}), [(5 * GB, {STRANGER: 5 * GB})], [US], GpuPeak(0, "", 0)),
        # our processes count by pid, and the peak stays
        (
            (6 * GB, {STRANGER: 5 * GB}),
            [(9 * GB, {STRANGER: 6 * GB, US: 2 * GB}), (6 * GB, {STRANGER: 5 * GB})],
            [US],
            GpuPeak(2 * GB, "processes", 1),
        ),
        # where the driver does not report it by process it is what came since
        ((GB, {}), [(4 * GB, {})], [US], GpuPeak(3 * GB, "device", 0)),
        ((GB, {}), [(4 * GB, {OUTSIDE: 3 * GB})], [US], GpuPeak(3 * GB, "device", 0)),
        ((GB, {}), [(4 * GB, {US: 0})], [US], GpuPeak(3 * GB, "device", 1)),
        # a process that was there under an outside number is not ours
        ((2 * GB, {OUTSIDE: 2 * GB}), [(7 * GB, {OUTSIDE: 6 * GB})], [US], GpuPeak(GB, "device", 0)),
        # what is reported by process replaces the guess
        ((0, {}), [(4 * GB, {}), (4 * GB, {US: GB})], [US], GpuPeak(GB, "processes", 1)),
        ((0, {}), [(4 * GB, {}), (4 * GB, {US: GB}), (9 * GB, {})], [US], GpuPeak(GB, "processes", 1)),
    ],
)
def test_memory_of_the_run_and_never_of_others(
    show: Show, devices: Devices, before: Look, looks: list[Look], members: list[int], peak: GpuPeak
) -> None:
    show(before)
    memory = GpuMemory(devices, (0,))
    for look in looks:
        show(look)
        memory.look("tag", members)
    assert memory.peak == peak


def test_our_processes_are_known_by_their_tag(show: Show, devices: Devices) -> None:
    ours = subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={**os.environ, ENV_ATTEMPT: "tag.1"})
    try:
        memory = GpuMemory(devices, (0,))
        show((3 * GB, {ours.pid: 2 * GB, US: GB}))
        memory.look("tag.1", [])
        assert (memory.peak.size_bytes, memory.peak.owners) == (2 * GB, 1)
        memory.look("tag.1", [US])
        assert (memory.peak.size_bytes, memory.peak.owners) == (3 * GB, 2)
    finally:
        ours.communicate()


def test_gpus_of_a_run_are_added_up_and_others_are_not(show: Show, devices: Devices) -> None:
    show((0, {}), (0, {}), (0, {}))
    memory, without = GpuMemory(devices, (0, 2)), GpuMemory(devices, ())
    show((GB, {US: GB}), (7 * GB, {US: 7 * GB}), (2 * GB, {US: 2 * GB}))
    memory.look(None, [US])
    without.look("tag", [])
    assert (memory.peak.size_bytes, memory.peak.owners) == (3 * GB, 1)
    assert (without.peak.size_bytes, without.peak.basis) == (0, "")


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
    with tree() as (process, child):
        look, apart = TreeWatch(US, lambda: process.pid), TreeWatch(process.pid, lambda: child)
        look.look()
        apart.look()
        shell = load_stat(process.pid)
        assert shell is not None
        assert apart.peaks.ours_bytes == pytest.approx(shell.rss_bytes, rel=0.05), "shells are weighed apart"
        assert apart.peaks.processes == 1
        assert apart.finish([process.pid, 4_000_000]).processes == 2
        other = TreeWatch(US, lambda: process.pid)
        other._root_start = 1
        other.look()
        assert process.pid not in other.pids, "another process under the same number is none of it"
        lost = TreeWatch(process.pid, lambda: 4_000_000)
        assert lost.finish([child]).rss_bytes > 40 * MB
        assert lost.peaks.ours_bytes is None, "the way to our shell is gone"
        process.kill()
        process.wait()
        assert child in look.pids, "an orphan stays a member"
    peaks = look.peaks
    assert peaks.processes == 2
    assert 70 * MB < peaks.rss_bytes < 130 * MB
    assert peaks.bound_bytes >= peaks.rss_bytes
    assert 40 * MB < peaks.largest_bytes < peaks.rss_bytes
    assert peaks.vms_bytes > peaks.rss_bytes
    look.look()
    assert look.peaks.rss_bytes >= peaks.rss_bytes, "the largest sum stays when the tree is gone"


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


def test_it_looks_from_the_side_also_at_a_child_that_another_thread_started() -> None:
    known: list[int] = []
    with tree("thread = threading.Thread(target=start); thread.start()") as (process, child):
        assert child in load_thread_children(process.pid)
        watch = TreeWatch(US, lambda: known[0] if known else None)
        watch.look()
        assert watch.pids == frozenset()  # it is not known yet
        known.append(process.pid)
        watch.start()
        peaks = watch.finish()
        assert watch.pids == {process.pid, child}
        last = TreeWatch(US, lambda: child)
        last.look()
        assert last.finish([process.pid]).rss_bytes > 70 * MB, "what has outlived the run is looked at last"
    assert peaks.rss_bytes > 70 * MB
    assert not watch.is_alive()
    assert TreeWatch(1, lambda: None).finish() == TreePeaks()  # also where it was never started
