import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.observe.readings import ProcessTable, TreeSampler, load_tag, parse_reading, render_reading
from assay.system.processes import load_stat, parse_stat
from assay.values.series import GpuReading, Reading

TAG = f"test-{os.getpid()}.1"
BURN = "import sys, time\nwhile time.process_time() < 0.2: pass\nprint('burnt', flush=True)\nsys.stdin.readline()\n"


class Job:
    """A bash in a session of its own, as a run is; it speaks when it is ready, so that no test has to guess."""

    def __init__(self, script, tag=TAG):
        env = {"PATH": os.environ["PATH"], "ASSAY_ATTEMPT": tag, "PYTHON": sys.executable, "BURN": BURN}
        self.process = subprocess.Popen(
            ["bash", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            start_new_session=True,
        )
        self.pid = self.process.pid
        self.others = []

    def line(self):
        return self.process.stdout.readline().strip()

    def other(self):
        self.others.append(int(self.line()))
        return self.others[-1]

    def say(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        for pid in self.others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            while (stat := load_stat(pid)) and not stat.is_zombie:  # the next test's jobs have the same tag
                pass
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def start():
    jobs = []

    def start(script, **options):
        jobs.append(Job(script, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


def test_children_and_grandchildren_are_counted(start):
    job = start("sleep 1000 & echo $!; bash -c 'sleep 1000 & echo $!; wait' & echo $!; wait")
    pids = {job.pid, job.other(), job.other(), job.other()}
    sampler = TreeSampler(job.pid, TAG)
    reading = sampler.sample(10.0)
    assert reading.processes == 4
    assert set(sampler.pids()) == pids
    assert reading.time == 10.0
    assert 0 < reading.rss_bytes <= reading.peak_rss_bytes
    assert reading.vms_bytes > reading.rss_bytes


def test_an_orphan_in_a_session_of_its_own_is_found_by_its_tag(start):
    job = start("(setsid bash -c 'echo $$; exec sleep 1000' &); read -r line")
    orphan = job.other()
    while (shell := load_stat(load_stat(orphan).parent)) and shell.parent == job.pid and not shell.is_zombie:
        pass  # the subshell between the two ends by itself at once
    for tag in (TAG, None, "another.1"):
        sampler = TreeSampler(job.pid, tag)
        sampler.sample(0.0)
        assert (orphan in sampler.pids()) == (tag == TAG)


def test_an_orphan_in_the_jobs_session_is_found_although_the_job_is_gone(start):
    job = start("sleep 1000 & echo $!; read -r line")
    orphan = job.other()
    sampler = TreeSampler(job.pid)
    sampler.sample(0.0)
    job.process.kill()
    job.process.wait()
    assert sampler.sample(1.0).processes == 1
    late = TreeSampler(job.pid)
    assert late.sample(1.0).processes == 1
    assert late.pids() == (orphan,)


def test_processes_that_start_between_the_scans_are_found_at_once(start):
    job = start("echo ready; read -r line; sleep 1000 & echo $!; wait")
    job.line()
    sampler, gpu = TreeSampler(job.pid, TAG), GpuReading(1, 2.0, 3, 4, 5.0)
    reading = sampler.sample(0.0, gpu)
    assert (reading.processes, reading.gpu) == (1, gpu)
    assert sampler.pids() == (job.pid,)  # none of ours
    job.say()
    job.other()
    assert sampler.sample(0.1).processes == 2


def test_children_of_other_threads_are_found_by_the_scan():
    ready, done = threading.Event(), threading.Event()
    child = []

    def work():
        child.append(subprocess.Popen(["sleep", "1000"]))
        ready.set()
        done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        ready.wait()
        table = ProcessTable()
        table.refresh(0.0)
        assert child[0].pid in table.members(os.getpid(), None)
    finally:
        child[0].kill()
        child[0].wait()
        done.set()
        thread.join()


def test_a_job_that_is_gone_gives_no_reading(start):
    job = start("exit 0")
    job.line()
    os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOWAIT)
    sampler = TreeSampler(job.pid, TAG)
    assert sampler.sample(0.0) is None  # a zombie still
    job.process.wait()
    assert sampler.sample(10.0) is None


def test_a_reused_pid_is_somebody_else(start):
    job = start("echo ready; read -r line")
    job.line()
    true_start = load_stat(job.pid).start
    assert TreeSampler(job.pid, start=true_start).sample(0.0).processes == 1
    assert TreeSampler(job.pid, start=true_start - 1).sample(0.0) is None


def test_the_table_is_shared_and_looks_seldom(start):
    job = start("echo ready; read -r line")
    job.line()
    table = ProcessTable(interval_s=5.0)
    for sampler in (TreeSampler(job.pid, TAG, table=table), TreeSampler(os.getpid(), table=table)):
        for now in (0.0, 1.0, 4.9):
            assert sampler.sample(now) is not None
    assert table.scans == 1
    table.refresh(5.0)
    assert table.scans == 2


def test_cpu_time_of_a_child_is_neither_lost_nor_doubled_when_it_ends(start):
    job = start('"$PYTHON" -c "$BURN"; echo gone; read -r line')
    assert job.line() == "burnt"
    sampler = TreeSampler(job.pid, TAG)
    before = sampler.sample(0.0).cpu_s
    assert before >= 0.15  # the kernel counts in ticks
    job.say()
    assert job.line() == "gone"
    after = sampler.sample(1.0).cpu_s
    assert before <= after < before + 0.15
    assert TreeSampler(job.pid, TAG).sample(0.0).cpu_s >= 0.15, "also where the child came and went unseen"


def stat(pid, parent=0, ticks=0, waited=0):
    return parse_stat(pid, f"{pid} (x) S {parent} 0 0 0 0 0 0 0 0 0 {ticks} 0 {waited} 0 0 0 0 0 1 0 0".encode())


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ([stat(1), stat(2, 1, 10)], [stat(1, waited=12)], 0),  # waited for
        ([stat(1), stat(2, 1, 10)], [stat(1, waited=0)], 10),  # children ignored by their parent
        ([stat(1), stat(2, 99, 10)], [stat(1, waited=12)], 10),  # an orphan: none of our processes waits for it
        ([stat(1), stat(2, 1, 10), stat(3, 2, 5)], [stat(1, waited=15)], 0),  # a branch, inherited in one
        ([stat(1, ticks=7), stat(2, 1, 10)], [], 17),
    ],
)
def test_whose_time_is_kept(before, after, kept):
    sampler = TreeSampler(1)
    sampler._last = {one.pid: one for one in before}
    sampler._keep_time_of_vanished({one.pid: one for one in after})
    assert sampler._gone_ticks == kept


def test_the_peak_remembers_memory_that_was_given_back(start):
    job = start('"$PYTHON" -c "x = b\'x\' * (80 << 20); del x; print(1, flush=True); input()"')
    job.line()
    reading = TreeSampler(job.pid, TAG).sample(0.0)
    assert reading.peak_rss_bytes > 80 << 20
    assert reading.rss_bytes < 80 << 20


def test_a_process_that_is_not_there_has_no_tag():
    process = subprocess.Popen(["true"])
    process.wait()
    assert load_tag(process.pid) == b""


def test_a_tag_is_compared_whole(start):
    job = start("echo ready; read -r line", tag="run.10")
    job.line()
    assert load_tag(job.pid) == b"run.10"
    table = ProcessTable()
    table.refresh(0.0)
    assert job.pid in table.members(None, "run.10")
    assert job.pid not in table.members(None, "run.1")


COUNTS = st.integers(0, 2**60)
FLOATS = st.floats(0, 1e12)
GPUS = st.builds(
    GpuReading, COUNTS, FLOATS, COUNTS, COUNTS, FLOATS, st.lists(st.text(max_size=4), max_size=3).map(tuple)
)


@given(st.builds(Reading, FLOATS, COUNTS, FLOATS, COUNTS, COUNTS, COUNTS, st.none() | GPUS))
def test_a_line_says_all_of_a_reading(reading):
    line = render_reading(reading)
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert parse_reading(line) == reading
    assert parse_reading(line.encode()) == reading


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "7", "null", '{"time": 1}', '{"time":1,"processes":1,"gpu":7}', b"\xff"]
)
def test_damaged_lines_are_no_readings(line):
    assert parse_reading(line) is None


def test_fields_of_a_newer_version_are_left_out():
    reading = Reading(1.0, 2, 3.0, 4, 5, 6, GpuReading(1, 2.0, 3, 4, 5.0, ("hw_slowdown",)))
    assert parse_reading(render_reading(reading).replace("{", '{"new":1,')) == reading


def test_a_job_without_a_pid_is_not_the_whole_machine() -> None:
    assert TreeSampler(0, "no-such-tag.1", start=0).sample(1.0) is None
