"""The guard on a board, as a script: the lock, its owner, its expiry, and that nothing stays."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.example_models import until
from tests.models.backends.backend_helpers import write_program

from assay.errors import InfrastructureError
from assay.models.backends import board
from assay.models.backends.board import Board, LockRule, describe_owner
from assay.system.ssh import Address

SPEED = 10  # seconds of the script in one of ours: it has a clock and a `sleep` of its own
SCRIPT = f"""
date() {{ echo $(($({shutil.which("date")} +%s%N) / {10**9 // SPEED})); }}
sleep() {{ {shutil.which("sleep")} {1 / SPEED}; }}
{Path(board.__file__).with_name("board.sh").read_text()}"""
SHELLS = {
    name: words
    for name, words in {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}.items()
    if shutil.which(words[0])
}
PATIENCE_S = 60.0
OWNER = "anna user 4711 2026-01-02T03:04:05Z"


EVERY_SHELL = pytest.mark.parametrize("place", SHELLS, indirect=True)  # the others are asked of the first one


@pytest.fixture
def place(tmp_path, request):
    return Place(tmp_path, SHELLS[getattr(request, "param", next(iter(SHELLS)))])


def clock():
    return int(time.time() * SPEED)


class Place:
    def __init__(self, folder, shell):
        self.folder, self.shell = folder, shell
        self.lock = folder / "board.lock"
        self.served = []

    def job(self, token):
        return self.folder / f"assay-{token}"

    def start(self, token="t1", owner="ben lab 12 2026-05-06T07:08:09Z", wait_s=0, expiry_s=6000):
        arguments = [self.lock, self.job(token), token, owner, wait_s, expiry_s]
        return subprocess.Popen(
            [*self.shell, "-c", SCRIPT, "assay", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def guard(self, *arguments, **more):
        process = self.start(*arguments, **more)
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait(PATIENCE_S)
            process.stdout.close()

    def hold(self, owner=OWNER, beat=None):
        self.lock.mkdir()
        (self.lock / "token").write_text("other\n")
        (self.lock / "owner").write_text(owner + "\n")
        if beat is not None:
            (self.lock / "beat").write_text(f"{beat}\n")

    def find_served(self, tokens):
        """The holders of the lock, by their output."""
        for token, guard in tokens.items():
            while token not in self.served and select.select([guard.stdout], [], [], 0)[0]:
                line = os.read(guard.stdout.fileno(), 4096).decode()
                if "locked" in line:
                    self.served.append(token)
        return [token for token in self.served if token in tokens]

    def left(self):
        return sorted(os.listdir(self.folder))


@EVERY_SHELL
def test_the_lock_names_its_owner_and_goes_with_it(place):
    with place.guard("t1", owner=OWNER) as guard:
        assert guard.stdout.readline() == "locked\n"
        assert (place.lock / "owner").read_text() == OWNER + "\n"
        assert sorted(os.listdir(place.job("t1"))) == ["outputs", "profile"]
        assert place.job("t1").stat().st_mode & 0o777 == 0o700
    assert guard.returncode == 0
    assert place.left() == []


def test_a_lock_that_is_held_names_its_owner(place):
    place.hold(beat=clock())
    with place.guard(wait_s=1) as guard:
        assert [guard.stdout.readline() for _ in range(2)] == [f"held {OWNER}\n", f"busy {OWNER}\n"]
    assert place.left() == ["board.lock"]
    assert (place.lock / "token").read_text() == "other\n"


def test_an_expired_lock_is_taken_over(place):
    place.hold(beat=clock() - 100)
    with place.guard("t1", expiry_s=60) as guard:
        assert guard.stdout.readline() == "locked\n"
        assert (place.lock / "token").read_text() == "t1\n"
    assert place.left() == []


@pytest.mark.parametrize("beat", [None, "", "rubbish"])
def test_a_lock_whose_maker_died_at_once_is_taken_over_in_time(place, beat):
    place.hold(beat=beat)
    with place.guard("t1", wait_s=30, expiry_s=1) as guard:
        lines = list(iter(guard.stdout.readline, "locked\n"))
        assert lines in ([f"held {OWNER}\n"], []), "a busy machine may find it expired at the first look"


def test_a_lock_in_use_is_kept_fresh(place):
    """It outlives its expiry, as long as its owner lives."""
    with place.guard("t1", expiry_s=30) as guard:
        assert guard.stdout.readline() == "locked\n"
        first = int((place.lock / "beat").read_text())
        while int((place.lock / "beat").read_text()) < first + 32:
            guard.stdin.write("\n")
            guard.stdin.flush()
            time.sleep(0.2)
        with place.guard("t2", wait_s=0, expiry_s=30) as other:
            assert other.stdout.readline().startswith("held ben lab 12")
            assert other.stdout.readline().startswith("busy ben lab 12")


def test_a_waiting_process_gets_it_next(place):
    with ExitStack() as later:
        with place.guard("t1") as first:
            assert first.stdout.readline() == "locked\n"
            second = later.enter_context(place.guard("t2", wait_s=6000))
            assert second.stdout.readline().startswith("held ben lab 12")
        assert second.stdout.readline() == "locked\n"
    assert second.returncode == 0
    assert place.left() == []


def test_an_owner_that_is_not_written_yet_is_not_reported(place):
    place.lock.mkdir()
    (place.lock / "beat").write_text(f"{clock()}\n")
    with place.guard(wait_s=1) as guard:
        assert guard.stdout.readline() == "busy \n"


@EVERY_SHELL
@pytest.mark.parametrize("count", [4, pytest.param(16, marks=pytest.mark.long)])
def test_of_many_that_see_a_dead_lock_one_gets_it_at_a_time(place, count):
    place.hold(beat=1)
    guards = {f"t{i}": place.start(f"t{i}", wait_s=250, expiry_s=300) for i in range(count)}
    while guards:
        until(lambda: place.find_served(guards), "one is served")
        (token,) = place.find_served(guards)  # two would hold the board at once
        guard = guards.pop(token)
        guard.stdin.close()
        assert guard.wait(PATIENCE_S) == 0
        guard.stdout.close()
    assert place.left() == []


def test_a_process_that_lost_the_lock_stops_and_leaves_the_others(place):
    with place.guard("t1") as guard:
        assert guard.stdout.readline() == "locked\n"
        os.rename(place.lock, f"{place.lock}.gone")  # at once: the guard may be writing there
        place.hold(beat=clock())
        assert guard.stdout.readline() == "lost\n"
    assert (place.lock / "token").read_text() == "other\n"
    assert not place.job("t1").exists()


@pytest.fixture
def busy(place, request):
    """A guard with a job that runs in a group of its own."""
    guard = place.start("t1", expiry_s=getattr(request, "param", 6000))
    assert guard.stdout.readline() == "locked\n"
    job = subprocess.Popen(["sh", "-c", "sleep 1000 & sleep 1000"], start_new_session=True)
    (place.job("t1") / "pid").write_text(f"{job.pid}\n")
    yield place, guard, job
    job.kill()
    job.wait()
    guard.kill()
    guard.wait()
    guard.stdin.close()
    guard.stdout.close()


def ended(job):
    return lambda: job.poll() is not None


@EVERY_SHELL
@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGHUP])
def test_the_end_of_stdin_or_a_signal_ends_the_job(busy, number):
    place, guard, job = busy
    guard.stdin.close() if number is None else guard.send_signal(number)
    until(ended(job), "the job is gone")
    assert job.returncode == -signal.SIGKILL
    guard.wait(PATIENCE_S)
    assert place.left() == []


@pytest.mark.parametrize("busy", [20], indirect=True)
def test_a_silent_connection_ends_the_job(busy):
    """The connection is open and silent: the network was cut."""
    place, _, job = busy
    until(ended(job), "the job is gone")
    until(lambda: place.left() == ["assay-t1.heard"], "folder and lock are gone")


def test_owners_in_words():
    assert describe_owner(OWNER) == "held by anna on user (process 4711) since 2026-01-02 03:04:05 UTC"
    assert describe_owner("") == "held by an unknown process"


def test_a_connection_has_a_short_socket_and_ends_its_options_before_the_host(tmp_path, monkeypatch):
    deep, calls = tmp_path / ("x" * 100), tmp_path / "calls"
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    write_program(tmp_path / "ssh", f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done > {calls}\nexit 1\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(InfrastructureError):
        Board(Address("root@b"), LockRule()).connect()
    words = calls.read_text().splitlines()
    assert words[words.index("root@b") - 1] == "--"
    (socket,) = [word for word in words if word.startswith("ControlPath=")]
    assert len(socket) < 100
    assert os.listdir(deep) == []
