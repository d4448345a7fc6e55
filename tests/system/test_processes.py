"""Everything below a process: found, weighed, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from assay.system import processes
from assay.system.processes import end_descendants, find_descendants

PATIENCE_S = 30.0


@pytest.fixture
def family():
    """A process with two children and a grandchild in a session of its own; it takes in orphans."""
    code = (
        "import subprocess, sys, time\n"
        "from assay.system.processes import adopt_orphans\n"
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


def test_descendants_are_found_across_sessions_and_ended_alone(family):
    wait_for(lambda: len(find_descendants(family.pid)) == 3)
    assert family.pid not in find_descendants(family.pid)
    assert find_descendants(family.pid) < find_descendants(os.getpid())
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
        assert 100 << 20 < processes.measure_memory([process.pid]) < 200 << 20
        process.stdin.close()


def test_a_programs_name_may_hold_anything():
    line = b"42 (a) R (b\n) S 1 42 41 0 -1 0 0 0 0 0 7 8 9 10 20 0 1 0 555 4096 2 0 0"
    page = os.sysconf("SC_PAGE_SIZE")
    stat = processes.parse_stat(42, line)
    assert stat is not None
    assert (stat.pid, stat.is_zombie, stat.parent, stat.session, stat.start) == (42, False, 1, 41, 555)
    assert (stat.cpu_ticks, stat.waited_ticks, stat.vms_bytes, stat.rss_bytes) == (15, 19, 4096, 2 * page)
    assert processes.parse_stat(42, b"42 (cut) S 1") is None


def test_a_process_that_is_not_there_says_nothing():
    process = subprocess.Popen(["true"])
    process.wait()
    assert processes.load_stat(process.pid) is None
    assert processes.load_children(process.pid) == []
    assert processes.load_size(process.pid, "VmHWM") == 0
    assert processes.load_variable(process.pid, "PATH") == b""
    assert processes.load_command_line(process.pid) == ""
    assert list(processes.find_open_files(process.pid)) == []
    assert not processes.exists(process.pid)
    assert not processes.is_ignoring(process.pid, signal.SIGINT)
    assert processes.measure_memory([process.pid]) == 0
    assert find_descendants(process.pid) == set()


def test_what_a_process_is_and_holds(tmp_path: Path) -> None:
    """Of this process, whose answers Python knows as well."""
    own = os.getpid()
    stat = processes.load_stat(own)
    assert stat is not None
    assert (stat.parent, stat.session) == (os.getppid(), os.getsid(0))
    assert processes.find_folder(own) == os.getcwd()
    assert os.path.samefile(processes.find_program(own), os.path.realpath(sys.executable))
    assert processes.load_size(own, "VmHWM") >= stat.rss_bytes // 2
    with open(tmp_path / "a b", "w") as written, open(tmp_path / "a b") as read:
        found = {number: path for number, path in processes.find_open_files(own) if path == str(tmp_path / "a b")}
        assert set(found) == {str(written.fileno()), str(read.fileno())}
        assert processes.is_writing(own, str(written.fileno()))
        assert not processes.is_writing(own, str(read.fileno()))


def test_variables_command_line_and_ignored_signals_of_a_process() -> None:
    argv, env = ["bash", "-c", "trap '' INT; echo -; read -r line"], {"A": "1", "AB": "x=y", "E": ""}
    with subprocess.Popen(argv, env=env, stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"-\n"  # it has its environment, which it has not yet during exec
        assert processes.load_variable(process.pid, "AB") == b"x=y"
        assert processes.load_variable(process.pid, "A") == b"1"
        assert processes.load_variable(process.pid, "B") == b""
        assert processes.load_command_line(process.pid) == " ".join(argv)
        assert processes.describe_process(process.pid) == f"{' '.join(argv)} (pid {process.pid})"
        assert processes.is_ignoring(process.pid, signal.SIGINT)
        assert not processes.is_ignoring(process.pid, signal.SIGTERM)
        process.kill()


def test_the_machine() -> None:
    worked, passed = processes.load_cpu_ticks()
    assert 0 < worked <= passed
    assert (processes.load_oom_kills() or 0) >= 0
    assert processes.find_file_system("/proc") == "proc"
    processes.check_proc()


MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 0:5 / /data rw - nfs4 server:/x rw
24 22 0:6 / /data/with\\040space rw - xfs /dev/sdb rw
25 22 0:7 / /database rw - btrfs /dev/sdc rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home", "ext4"),
        ("/data", "nfs4"),
        ("/data/deep/er", "nfs4"),
        ("/data/with space/x", "xfs"),
        ("/database/x", "btrfs"),
    ],
)
def test_the_file_system_of_a_folder(tmp_path: Path, folder: str, kind: str) -> None:
    (tmp_path / "mounts").write_text(MOUNTS)
    assert processes.find_file_system(folder, str(tmp_path / "mounts")) == kind
    assert processes.find_file_system(folder, str(tmp_path / "none")) is None


def test_what_a_measured_command_starts_behind_loads_little() -> None:
    """bench/command.py imports it before each command; `typing` and `dataclasses` alone would take as long."""
    source = os.path.dirname(os.path.dirname(os.path.dirname(processes.__file__)))
    code = f"import sys; sys.path.append({source!r}); from assay.system import processes; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert not {"typing", "dataclasses", "re", "subprocess", "ctypes"} & set(done.stdout.split())


def test_two_processes_give_what_one_gives_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # other tests of this worker may have left some
    items = list(range(1000))
    assert processes.map_in_two(str, items) == list(map(str, items))
    assert len(set(processes.map_in_two(lambda _: os.getpid(), items))) == min(2, len(os.sched_getaffinity(0)))
    assert processes.map_in_two(str, items[:3]) == ["0", "1", "2"]


@pytest.mark.parametrize("end", ["kill", "raise", "strange"])
def test_what_the_second_process_cannot_hand_over_is_done_by_the_first(end: str) -> None:
    own = os.getpid()

    def work(item: int) -> object:
        if os.getpid() != own and item == 700:
            if end == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if end == "raise":
                raise KeyboardInterrupt
            return object()
        return item

    assert processes.map_in_two(work, range(1000)) == list(range(1000))


def test_an_error_in_the_first_process_ends_the_second() -> None:
    own, before = os.getpid(), find_descendants(os.getpid())

    def work(item: int) -> int:
        if os.getpid() == own:
            raise ZeroDivisionError
        time.sleep(60)
        return item

    with pytest.raises(ZeroDivisionError):
        processes.map_in_two(work, range(1000))
    assert find_descendants(own) <= before
