"""Slots: locks that are held exactly as long as the job lives."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.executor import Run, Runs, finish, until

from assay.errors import InfrastructureError
from assay.execute.local import LocalExecutor
from assay.execute.slots import HeldSlot, SlotEntry, SlotPool, build_entries, find_holders, slots_directory
from assay.record import run_directory
from assay.system import processes
from assay.values.run import JobHandle, Outcome, State

Pool = Callable[..., SlotPool]


@pytest.fixture
def place(tmp_path: Path) -> str:
    (tmp_path / "slots").mkdir()
    return str(tmp_path / "slots")


@pytest.fixture
def pool(place: str) -> Iterator[Pool]:
    """A function that makes pools, which are closed at the end."""
    with ExitStack() as stack:

        def build(*labels: str, **options: Any) -> SlotPool:
            made = SlotPool(build_entries(labels), place, **options)
            stack.callback(made.close)
            return made

        yield build


def find_busy(place: str, pool_: SlotPool) -> list[SlotEntry]:
    """Return the slots that a process holds."""
    taken = []
    for entry in pool_.entries:
        other = SlotPool([entry], place)
        held = other.acquire()
        if held is None:
            taken.append(entry)
        else:
            held.let_go()
        other.close()
    return taken


def take(pool_: SlotPool) -> HeldSlot:
    held = pool_.acquire()
    assert held is not None
    return held


def take_soon(pool_: SlotPool) -> HeldSlot:
    """Take a slot when it is free: the pool does not try one again at once after it was taken."""
    taken: list[HeldSlot] = []
    until(lambda: taken.extend(filter(None, [pool_.acquire()])) or taken, "the slot is free")
    return taken[0]


class TestEntries:
    def test_the_same_device_twice_is_two_places(self) -> None:
        assert [entry.locks for entry in build_entries(["0", "0", "0,1"])] == [("0.0",), ("0.1",), ("0.2", "1.0")]

    def test_devices_also_of_a_label_with_spaces_as_in_a_file(self) -> None:
        entries = build_entries(["cpu", "0", "1, 2", "2"])
        assert [entry.devices for entry in entries] == [(), ("0",), ("1", "2"), ("2",)]
        assert entries[3].locks == ("2.1",)

    @given(st.lists(st.sampled_from(["0", "1", "0,1", "cpu", "MIG/0"]), max_size=12))
    def test_no_two_entries_share_a_lock(self, labels: list[str]) -> None:
        locks = [lock for entry in build_entries(labels) for lock in entry.locks]
        assert len(set(locks)) == len(locks)
        assert not any("/" in lock for lock in locks)


class TestPool:
    def test_each_slot_once(self, pool: Pool) -> None:
        one = pool("0", "1")
        held = [take(one), take(one)]
        assert {slot.entry.label for slot in held} == {"0", "1"}
        assert one.acquire() is None
        held[0].let_go()
        again = take(one)
        assert again.entry == held[0].entry
        again.let_go()
        held[1].let_go()

    def test_two_supervisors_share(self, pool: Pool) -> None:
        one, two = pool("0"), pool("0", "1")
        first = take(one)
        second = take(two)
        assert (first.entry.label, second.entry.label) == ("0", "1")
        assert one.acquire() is None
        first.let_go()
        second.let_go()

    def test_a_slot_of_two_needs_both(self, pool: Pool) -> None:
        both, single = pool("0,1"), pool("1")
        held = take(single)
        assert both.acquire() is None
        held.let_go()
        taken = take(both)
        assert len(taken.fds) == 2
        assert single.acquire() is None
        taken.let_go()

    def test_a_device_that_is_not_usable_now(self, place: str) -> None:
        answers: list[str] = []

        def usable(entry: SlotEntry) -> bool:
            answers.append(entry.label)
            return entry.label == "1"

        one = SlotPool(build_entries(["0", "1"]), place, usable)
        held = take(one)
        assert held.entry.label == "1"
        assert answers == ["0", "1"]
        assert find_busy(place, one) == [held.entry]
        held.let_go()
        assert find_busy(place, one) == []

    def test_turns(self, pool: Pool) -> None:
        one = pool("0", "1", "2")
        labels = []
        for _ in range(4):
            held = take(one)
            labels.append(held.entry.label)
            held.let_go()
        assert labels == ["0", "1", "2", "0"]

    def test_a_lock_file_that_was_cleaned_away(self, place: str, pool: Pool) -> None:
        """A program that cleans the temporary directory may remove an old lock file: a new file then represents the
        slot. Taking a slot keeps its file young."""
        one, path = pool("0"), os.path.join(place, "0.0")
        assert one.holders() == [], "there is no file yet"
        take(one).let_go()
        os.utime(path, (1, 1))
        take(one).let_go()
        assert os.stat(path).st_mtime > 1
        os.unlink(path)
        held = take(one)
        assert pool("0").acquire() is None
        held.let_go()

    def test_a_lock_file_removed_between_open_and_lock(
        self, place: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A lock on a file without a name excludes no other process and does not count."""
        original = fcntl.flock

        def remove_and_lock(fd: int, how: int) -> None:
            if how & fcntl.LOCK_EX:  # the directory's lock is a shared one
                os.unlink(os.path.join(place, "0.0"))
            original(fd, how)

        one = pool("0")
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", remove_and_lock)
            assert one._try(one.entries[0]) is None
        take(one).let_go()


class TestDirectory:
    def test_chosen_by_the_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ASSAY_SLOTS_DIR", str(tmp_path / "a" / "b"))
        assert slots_directory() == str(tmp_path / "a" / "b")
        assert os.stat(slots_directory()).st_mode & 0o777 == 0o700
        (tmp_path / "file").touch()
        monkeypatch.setenv("ASSAY_SLOTS_DIR", str(tmp_path / "file" / "x"))
        with pytest.raises(InfrastructureError, match="slot directory"):
            slots_directory()

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
    def test_of_another_user(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "theirs").mkdir()
        os.chown(tmp_path / "theirs", 12345, 12345)
        monkeypatch.setenv("ASSAY_SLOTS_DIR", str(tmp_path / "theirs"))
        with pytest.raises(InfrastructureError, match="another user"):
            slots_directory()


class TestPriority:
    @pytest.mark.parametrize("priorities", [(0, 5), (-3, 0)])
    def test_the_more_important_one_gets_the_next(self, pool: Pool, priorities: tuple[int, int]) -> None:
        low, high = (pool("0", priority=each) for each in priorities)
        held = take(low)
        assert high.acquire() is None
        held.let_go()
        assert low.acquire() is None, "somebody more important waits"
        important = take(high)
        important.let_go()
        take(low).let_go()

    def test_equals_do_not_wait_for_one_another(self, pool: Pool) -> None:
        one, two = pool("0", priority=1), pool("0", priority=1)
        held = take(one)
        assert two.acquire() is None
        held.let_go()
        take(one).let_go()

    def test_only_for_the_slots_that_are_wanted(self, pool: Pool) -> None:
        holder, low, high = pool("0"), pool("0", "1"), pool("0", priority=5)
        held = take(holder)
        assert high.acquire() is None
        other = take(low)
        assert other.entry.label == "1"
        assert low.acquire() is None
        other.let_go()
        held.let_go()
        high.close()
        take(low).let_go()

    def test_a_request_counts_as_long_as_it_is_renewed(self, place: str, pool: Pool) -> None:
        """A frozen supervisor renews nothing."""
        low, high = pool("0"), pool("0", priority=5)
        held = take(low)
        assert high.acquire() is None
        (request,) = Path(place).glob("want.5.*")
        os.utime(request, (1, 1))
        held.let_go()
        held = take(low)
        assert high.acquire() is None
        held.let_go()
        assert low.acquire() is None, "the supervisor has renewed its request"

    def test_a_waiting_supervisor_that_dies_blocks_nobody(self, place: str, pool: Pool) -> None:
        low = pool("0")
        held = take(low)
        text = f"""
import time
from assay.execute.slots import SlotPool, build_entries
assert SlotPool(build_entries(["0"]), {place!r}, priority=9).acquire() is None
print("waiting", flush=True)
time.sleep(1000)
"""
        child = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"waiting\n"
        held.let_go()
        assert low.acquire() is None
        child.kill()
        child.wait()
        child.stdout.close()
        take(low).let_go()
        assert not [name for name in os.listdir(place) if name.startswith("want.9")]


# takes the slot, starts the job in it, closes its own copy of the lock and prints that
SUPERVISOR = """
import sys, time
from assay.execute.local import LocalExecutor
from assay.execute.slots import SlotPool, build_entries
from assay.record import run_directory
from assay.values.run import JobRequest

run_dir, uid, place = sys.argv[1:]
held = SlotPool(build_entries(["0"]), place).acquire()
executor = LocalExecutor()
request = JobRequest(run_dir, "study/run", 1, {}, tag=uid + ".1", slot_fds=held.fds)
executor.submit(request, lambda handle: run_directory.publish_lease(run_dir, handle))
held.let_go()
print("running", flush=True)
time.sleep(1000)
"""


class TestJobs:
    @pytest.fixture
    def executor(self) -> Iterator[LocalExecutor]:
        made = LocalExecutor()
        yield made
        made.close()

    def test_the_lock_lives_as_long_as_the_job(
        self, place: str, pool: Pool, tmp_path: Path, executor: LocalExecutor
    ) -> None:
        run = Runs(tmp_path).make("until [ -e go ]; do sleep 0.02; done")
        one = pool("0")
        held = take(one)
        handle = executor.submit(run.request(slot_fds=held.fds), run.publish)
        held.let_go()
        assert handle is not None
        assert one.acquire() is None
        assert find_busy(place, one) == list(one.entries)
        run.path("code/go").touch()
        finish(executor, [handle])
        take(one).let_go()

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
    def test_whatever_becomes_of_the_supervisor(
        self, place: str, pool: Pool, tmp_path: Path, number: signal.Signals
    ) -> None:
        run = Runs(tmp_path).make("touch up; until [ -e go ]; do sleep 0.02; done")
        child = subprocess.Popen([sys.executable, "-c", SUPERVISOR, run.dir, run.uid, place], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"running\n"
        child.send_signal(number)
        until(run.path("code/up").exists, "the command runs")
        one = pool("0")
        assert one.acquire() is None, "the job holds it"
        run.path("code/go").touch()
        until(lambda: not find_busy(place, one), "the job has let go, dead or frozen supervisor or not")
        assert run.markers() == {"train.exit.0"}
        child.kill()
        child.wait()
        child.stdout.close()

    def test_a_killed_job_sh_does_not_free_the_slot_while_its_command_runs(
        self, place: str, pool: Pool, tmp_path: Path, executor: LocalExecutor
    ) -> None:
        run = Runs(tmp_path).make("touch up; sleep 1000")
        one = pool("0")
        held = take(one)
        handle = executor.submit(run.request(slot_fds=held.fds), run.publish)
        held.let_go()
        assert handle is not None
        until(run.path("code/up").exists, "the command runs")
        os.kill(handle.pid, signal.SIGKILL)
        finish(executor, [handle])
        assert one.acquire() is None
        executor.cancel([(handle, run.dir)], 5.0)
        until(lambda: not find_busy(place, one), "nothing is left")

    def start(self, one: SlotPool, run: Run, executor: LocalExecutor) -> JobHandle:
        """Start a job on the pool's only slot and wait until it runs; the slot's file names it."""
        held = take(one)

        def publish(handle: JobHandle) -> bool:
            held.name_occupant(handle, run.dir)
            return run.publish(handle)

        handle = executor.submit(run.request(slot_fds=held.fds), publish)
        held.let_go()
        assert handle is not None
        until(run.path("code/up").exists, "the command runs")
        return handle

    def test_what_lives_on_without_the_lock_holds_the_slot(
        self, pool: Pool, tmp_path: Path, executor: LocalExecutor
    ) -> None:
        """A worker of Python's subprocess closes what it inherits, and so loses the lock."""
        closing = "import os, time; os.closerange(3, 100); open('up', 'w'); time.sleep(1000)"
        run = Runs(tmp_path).make(f'exec setsid {sys.executable} -c "{closing}"')
        one, other = pool("0"), pool("0")
        handle = self.start(one, run, executor)
        os.kill(handle.pid, signal.SIGKILL)
        finish(executor, [handle])
        assert (one.acquire(), other.acquire()) == (None, None)
        (holder,) = other.holders()
        assert (holder.name, holder.is_run, holder.pid == handle.pid) == (run.dir, True, False)
        executor.cancel([(handle, run.dir)], 5.0)
        take(other).let_go()

    def test_a_process_that_left_its_attempt_holds_no_slot(
        self, pool: Pool, tmp_path: Path, executor: LocalExecutor
    ) -> None:
        """The process has the lock's descriptor, but neither session nor tag of the run."""
        run = Runs(tmp_path).make("env -i setsid sleep 1000 > /dev/null 2>&1 & echo $! > stray; touch up")
        one, other = pool("0"), pool("0")
        finish(executor, [self.start(one, run, executor)])
        stray = int(run.path("code/stray").read_text())
        until(lambda: os.readlink(f"/proc/{stray}/exe").endswith("sleep"), "it has replaced its environment")
        try:
            held = take_soon(other)
            assert one.acquire() is None, "the old file counts no longer"
            held.let_go()
            assert other.holders() == []
        finally:
            os.kill(stray, signal.SIGKILL)

    def test_what_writes_the_log_belongs_to_the_run(self, pool: Pool, tmp_path: Path, executor: LocalExecutor) -> None:
        run = Runs(tmp_path).make("env -i setsid sleep 1000 & echo $! > stray; touch up")
        one = pool("0")
        handle = self.start(one, run, executor)
        finish(executor, [handle])
        assert one.acquire() is None
        stray = int(run.path("code/stray").read_text())
        assert executor.leftovers(handle, run.dir) == (f"sleep 1000 (pid {stray})",)
        run_directory.write_outcome(run.dir, Outcome(State.DONE, 1))  # concluding it has ended or permitted that
        take_soon(one).let_go()
        executor.cancel([(handle, run.dir)], 5.0)

    def test_a_slot_that_was_just_taken_is_not_replaced(self, place: str, pool: Pool, tmp_path: Path) -> None:
        """The slot's file still names the previous attempt, whose last process has just ended."""
        one, other = pool("0"), pool("0")
        held = take(one)
        gone = JobHandle("local", "1", "here", 2**22 + 1, 1, processes.boot_id(), None, 1, 0.0, tag="gone.1")
        held.name_occupant(gone, str(tmp_path / "gone"))
        assert other.acquire() is not None, "nobody of that attempt lives: the file is replaced"
        held.let_go()
        again = take(pool("1"))
        assert pool("1").acquire() is None, "named nobody yet"
        again.let_go()

    def test_several_processes_never_hold_one_slot_at_once(self, place: str, tmp_path: Path) -> None:
        text = f"""
import os, time
from assay.execute.slots import SlotPool, build_entries
pool = SlotPool(build_entries(["0", "1"]), {place!r})
done = 0
while done < 25:
    held = pool.acquire()
    if held is None:
        time.sleep(0.0005)
        continue
    mark = {str(tmp_path)!r} + "/inside." + held.entry.label
    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))  # fails when somebody else is inside
    os.unlink(mark)
    held.let_go()
    done += 1
pool.close()
"""
        children = [subprocess.Popen([sys.executable, "-c", text]) for _ in range(4)]
        deadline = time.monotonic() + 60
        assert [child.wait(deadline - time.monotonic()) for child in children] == [0, 0, 0, 0]


@contextmanager
def hold(path: Path, run_dir: str | None = None) -> Iterator[int]:
    """A process that has the file open until the end."""
    env = {key: value for key, value in os.environ.items() if key != "ASSAY_RUN_DIR"}
    env |= {"ASSAY_RUN_DIR": run_dir} if run_dir is not None else {}
    argv = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with path.open("w") as file:
        process = subprocess.Popen(
            argv, env=env, pass_fds=[file.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate()


def test_a_run_is_named_by_its_directory_and_others_by_their_command_lines(tmp_path: Path) -> None:
    lock = tmp_path / "cpu.0"
    with hold(lock, "/runs/a b/lr=1") as pid:
        (holder,) = find_holders([str(lock)])
        assert (holder.pid, holder.name) == (pid, "/runs/a b/lr=1")
        assert 0 <= time.time() - holder.since < 600
    with hold(lock):
        (holder,) = find_holders([str(lock)])
        assert "sys.stdin.read()" in holder.name
    assert find_holders([str(lock)]) == []


def test_several_processes_of_a_run_are_one_and_other_files_do_not_matter(tmp_path: Path) -> None:
    one, other = tmp_path / "0.0", tmp_path / "1.0"
    with hold(one, "/runs/a") as first, hold(one, "/runs/a"), hold(one, "/runs/b"), hold(other, "/runs/c"):
        found = find_holders([str(one)])
        assert [holder.name for holder in found] == ["/runs/a", "/runs/b"]
        assert found[0].pid == first
        assert len(find_holders([str(one), str(other)])) == 3


def test_this_process_itself_is_no_holder(tmp_path: Path) -> None:
    with (tmp_path / "cpu.0").open("w") as file:
        assert find_holders([file.name]) == []
    assert find_holders([]) == []
