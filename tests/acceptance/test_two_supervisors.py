"""Two supervisors on one study share the work; each looks after its own runs and waits for the other's."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.fork_server import ForkedProcess
from tests.study_processes import StudyProcesses, load_json, until

from assay.values.run import State

# each run says that it began, and ends when its file `go` is there
WAITING = """\
study: study
command: bash work.sh {n} {prio}
params:
  n: {range: %d}
  prio: 0
"""
WORK = """
echo "$ASSAY_RUN_NAME" >> "$LEDGER"
touch "$ASSAY_RUN_DIR/up"
until [ -e "$ASSAY_RUN_DIR/go" ] || [ -e "$ALL" ]; do sleep 0.05; done
"""

ONLY = "n=0,prio=0"  # the name of a study's only run: all of its parameters


@pytest.fixture(autouse=True)
def work(shop: StudyProcesses) -> None:
    shop.write("work.sh", WORK)


def write_study(shop: StudyProcesses, runs: int) -> None:
    shop.write("study.yml", WAITING % runs)


def begun(shop: StudyProcesses) -> list[str]:
    """The runs in the order they were executed, as they say themselves."""
    try:
        return (shop.base / "ledger").read_text().split()
    except FileNotFoundError:
        return []


def start_on(shop: StudyProcesses, slot: str, run: str) -> ForkedProcess:
    """A supervisor whose only slot is taken by this run."""
    program = shop.start("--plain", "--slots", slot)
    until((shop.dir(run) / "up").exists, f"{run} began")
    return program


def test_they_share_the_work(shop: StudyProcesses) -> None:
    write_study(shop, 16)
    first = start_on(shop, "0", "n=0")
    second = start_on(shop, "1", "n=1")
    (shop.base / "all").touch()
    assert [first.wait(60), second.wait(60)] == [0, 0]
    assert sorted(begun(shop)) == sorted(f"n={n}" for n in range(16))
    owners = {load_json(shop.dir(run) / "lease.1")["supervisor_pid"] for run in shop.run_dirs()}
    assert owners == {first.pid, second.pid}
    assert all(shop.states(run) == [State.DONE] for run in shop.run_dirs())


def test_each_waits_for_the_runs_of_the_other(shop: StudyProcesses) -> None:
    write_study(shop, 1)
    first = start_on(shop, "0", ONLY)
    second = shop.start("--plain", "--slots", "1")
    until(lambda: "still running" in shop.words(second), "the second one found the run")
    assert (first.poll(), second.poll()) == (None, None)
    (shop.dir(ONLY) / "go").touch()
    assert [first.wait(60), second.wait(60)] == [0, 0]
    assert begun(shop) == [ONLY]


def test_interrupting_one_stops_only_its_own_runs(shop: StudyProcesses) -> None:
    write_study(shop, 3)
    first = start_on(shop, "0", "n=0")
    second = start_on(shop, "1", "n=1")
    assert shop.end(first, signal.SIGINT) == 130
    assert shop.states("n=0") == [State.STOPPED]
    assert (shop.states("n=1"), second.poll()) == ([None], None)
    (shop.base / "all").touch()
    assert second.wait(60) == 1, shop.words(second)  # one of the study's runs is stopped, and it says so
    assert begun(shop) == ["n=0", "n=1", "n=2"]  # n=0 was not restarted
    assert "1 stopped" in shop.words(second)
    assert shop.run("--slots", "0").code == 0
    assert begun(shop) == ["n=0", "n=1", "n=2", "n=0"]
    assert shop.states("n=0") == [State.STOPPED, State.DONE]


def test_the_runs_of_a_killed_one_are_taken_over(shop: StudyProcesses) -> None:
    """Taken over means looked after: readings are written, and an interrupt stops them."""
    write_study(shop, 1)
    first = start_on(shop, "0", ONLY)
    second = shop.start("--plain", "--slots", "1")
    until(lambda: "still running" in shop.words(second), "the second one found the run")
    assert shop.end(first, signal.SIGKILL) == -signal.SIGKILL
    readings = shop.dir(ONLY) / "readings.jsonl"
    seen = readings.stat().st_size if readings.exists() else 0
    until(lambda: readings.exists() and readings.stat().st_size > seen, "the second one takes readings")
    assert shop.end(second, signal.SIGINT) == 130
    assert shop.states(ONLY) == [State.STOPPED]
    assert shop.processes() == {}


def test_a_frozen_one_does_not_block_the_other(shop: StudyProcesses) -> None:
    write_study(shop, 6)
    frozen = start_on(shop, "0", "n=0")
    frozen.send_signal(signal.SIGSTOP)
    (shop.base / "all").touch()
    assert wait_for(shop.start("--plain", "--slots", "1"), frozen) == 0
    assert all(shop.states(run) == [State.DONE] for run in shop.run_dirs())
    assert shop.end(frozen, signal.SIGCONT) == 0
    assert sorted(begun(shop)) == [f"n={n}" for n in range(6)]


# one command of two fails in every third run, and is tried once more
TWO_COMMANDS = """\
study: study
commands: {train: bash work.sh, test: '[ $(({n} %% 3)) != 2 ]'}
params: {n: {range: %d}}
retries: 1
"""


def list_and_rebuild(shop: StudyProcesses) -> tuple[str, str]:
    """What `assay ls` shows, before and after the index was made again from the directories."""
    command = ("ls", "study", "--root", str(shop.root), "--json")
    before = shop.call(*command).out
    assert shop.call("index", "rebuild", "--root", str(shop.root)).code == 0
    return before, shop.call(*command).out


def wait_for(program: ForkedProcess, frozen: ForkedProcess) -> int:
    """The other one may have been stopped in the middle of a transaction of the index: then it gets a moment to end it."""
    for _ in range(5):
        try:
            return program.wait(20)
        except subprocess.TimeoutExpired:
            frozen.send_signal(signal.SIGCONT)
            time.sleep(0.2)
            frozen.send_signal(signal.SIGSTOP)
    return program.wait(20)


def test_one_that_wakes_up_takes_the_conclusions_of_the_other(shop: StudyProcesses) -> None:
    """It saw the same runs end, and its own times and memory are not those that were written first."""
    shop.write("study.yml", TWO_COMMANDS % 6)
    frozen = shop.start("--plain", "--slots", "0,1,2")
    until(lambda: len(begun(shop)) == 3, "three runs began")
    frozen.send_signal(signal.SIGSTOP)
    (shop.base / "all").touch()
    until(lambda: all((shop.dir(f"n={n}") / "test.exit.0").exists() for n in (0, 1)), "its runs ended")
    assert wait_for(shop.start("--plain", "--slots", "3"), frozen) == 1
    assert shop.end(frozen, signal.SIGCONT) == 1, shop.words(frozen)
    assert "2 failed" in shop.words(frozen)
    assert [shop.states(f"n={n}") for n in (0, 2, 5)] == [[State.DONE], [State.FAILED] * 2, [State.FAILED] * 2]
    before, after = list_and_rebuild(shop)
    assert before == after


def test_both_end_when_runs_have_two_commands_and_fail(shop: StudyProcesses) -> None:
    shop.write("study.yml", TWO_COMMANDS % 24)
    (shop.base / "all").touch()
    both = [shop.start("--plain", "--slots", "cpu:4") for _ in range(2)]
    assert [program.wait(60) for program in both] == [1, 1]
    states = [shop.states(f"n={n}") for n in range(24)]
    assert states == [[State.FAILED] * 2 if n % 3 == 2 else [State.DONE] for n in range(24)]
    before, after = list_and_rebuild(shop)
    assert before == after


def start_two(shop: StudyProcesses) -> tuple[ForkedProcess, ForkedProcess, Path]:
    """Start a study, and a more important one that waits for its slot; return also the file by which that wants it."""
    write_study(shop, 3)
    text = WAITING.replace("study: study", "study: vip\npriority: 5").replace("{n} {prio}", "{n} vip")
    shop.write("vip.yml", text % 1)
    first = start_on(shop, "7", "n=0")
    vip = shop.start("--plain", "--slots", "7", file="vip.yml")
    want = until(lambda: list((shop.base / "slots").glob("want.5.*")), "it waits for the slot")[0]
    return first, vip, want


def test_the_more_important_study_goes_first(shop: StudyProcesses) -> None:
    """Between two supervisors: what waits in the other's queue has to wait on."""
    first, vip, _ = start_two(shop)
    (shop.base / "all").touch()
    assert [first.wait(60), vip.wait(60)] == [0, 0]
    assert len(begun(shop)) == 4
    first_runs = {run: load_json(path / "lease.1")["started_at"] for run, path in shop.run_dirs().items()}
    vip_run = load_json(next(iter(shop.run_dirs("vip").values())) / "lease.1")["started_at"]
    assert sum(began < vip_run for began in first_runs.values()) == 1


def test_a_frozen_one_with_more_important_runs_does_not_block_the_other_for_long(shop: StudyProcesses) -> None:
    first, vip, want = start_two(shop)
    vip.send_signal(signal.SIGSTOP)
    os.utime(want, (time.time() - 60,) * 2)  # it has not been renewed for a minute
    (shop.base / "all").touch()
    assert first.wait(60) == 0
    assert len(begun(shop)) == 3
    assert shop.end(vip, signal.SIGCONT) == 0
