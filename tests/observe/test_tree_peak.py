"""What several processes held together: real trees, looked at when they are known to be ready."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from assay.observe.tree_peak import TreeLook, TreePeaks, TreeWatch, leave_out_twins, parse_root
from assay.system.processes import ProcessStat, load_stat, load_thread_children, parse_stat

MB = 1_000_000
HOLD = "b = bytearray(%d); b[::4096] = b'x' * len(b[::4096])"
CHILD = f"{HOLD % (40 * MB)}\nprint('ready', flush=True)\nimport sys; sys.stdin.readline()\n"
PARENT = """
import subprocess, sys, threading
%s
def start():
    child = subprocess.Popen([sys.executable, "-S", "-c", %r], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    print(child.pid, flush=True)
    return child
%s
sys.stdin.readline()
"""


@contextmanager
def tree(start: str = "child = start()") -> Iterator[tuple[subprocess.Popen[str], int]]:
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
    assert [each.pid for each in leave_out_twins(stats)] == left


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("", None),
        ('{"kind": "begin", "pid": 7}\n', 7),
        ('{"kind": "begin", "pid": 7, "wrapper_rss": 5}\n', None),  # the wrapper is ours
        ('{"kind": "begin", "pid": 7, "wrapper_rss": 5}\n{"kind": "command", "pid": 9}\n', 9),
        ('{"kind": "beg', None),
        ('["pid"]', None),
        ('{"kind": "begin", "pid": "7"}', None),
    ],
)
def test_the_first_process_is_the_one_that_says_so(text: str, root: int | None) -> None:
    assert parse_root(text) == root


def test_it_looks_from_the_side(tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    with tree() as (process, child):
        watch = TreeWatch(os.getpid(), str(report))
        watch.look()
        assert watch.pids == frozenset()  # nothing has been said yet
        report.write_text(f'{{"kind": "begin", "pid": {process.pid}}}\n')
        watch.start()
        peaks = watch.finish()
        assert watch.pids == {process.pid, child}
    assert peaks.rss_bytes > 70 * MB
    assert not watch.is_alive()


def test_without_a_word_nothing_is_known(tmp_path: Path) -> None:
    watch = TreeWatch(1, str(tmp_path / "none"))
    assert watch.finish() == TreePeaks()  # also where it was never started


def test_what_has_outlived_the_run_is_looked_at_last(tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    with tree() as (process, child):
        report.write_text(f'{{"kind": "begin", "pid": {child}}}\n')
        watch = TreeWatch(os.getpid(), str(report))
        watch.look()
        assert watch.finish([process.pid]).rss_bytes > 70 * MB
