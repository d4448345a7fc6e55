"""Everything below a process: found, weighed, ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from assay.system.process_tree import end_descendants, find_descendants, weigh

PATIENCE_S = 30.0


@pytest.fixture
def family():
    """A process with two children and a grandchild in a session of its own; it takes in orphans."""
    code = (
        "import subprocess, sys, time\n"
        "from assay.system.process_tree import adopt_orphans\n"
        "adopt_orphans()\n"
        "subprocess.Popen(['sleep', '1000'])\n"
        "subprocess.run(['sh', '-c', 'setsid sh -c \"sleep 1000; true\" >/dev/null 2>&1 &'])\n"
        "print('up', flush=True)\n"
        "time.sleep(1000)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    yield process
    end_descendants(process.pid)
    process.kill()
    process.wait()
    process.stdout.close()


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_descendants_are_found_across_sessions(family):
    wait_for(lambda: len(find_descendants(family.pid)) == 3)
    assert family.pid not in find_descendants(family.pid)
    assert find_descendants(family.pid) < find_descendants(os.getpid())


def test_all_of_them_are_ended_and_nobody_else(family):
    wait_for(lambda: len(find_descendants(family.pid)) == 3)
    assert end_descendants(family.pid)
    assert find_descendants(family.pid) == set()
    assert family.poll() is None


def test_the_dead_do_not_count():
    with subprocess.Popen(["true"]) as child:
        wait_for(lambda: child.pid not in find_descendants(os.getpid()))


def test_only_memory_that_is_used_weighs():
    code = (
        "import mmap, sys\n"
        "reserved = mmap.mmap(-1, 1 << 32, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "used = bytearray(b'x' * (100 << 20))\n"
        "print('up', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert 100 << 20 < weigh([process.pid]) < 200 << 20
        process.stdin.close()


def test_nobody_weighs_nothing():
    assert weigh([2**22 + 1]) == 0
    assert find_descendants(2**22 + 1) == set()
