from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.execute.local import LocalExecutor
from assay.execute.slots import HeldSlot, SlotPool, build_entries
from assay.follow.attempts import RetryPolicy
from assay.follow.collect import Collector
from assay.follow.entry import Entry, Event
from assay.follow.locations import StudyLocation
from assay.launch.report import FailedRun, StudyReport, Watcher, describe_wait, render_report, split_log
from assay.launch.slot_choice import HasMemory
from assay.launch.supervise import LoopSettings, Supervisor
from assay.observe.devices import Devices
from assay.record.index.sqlite import SqliteIndex
from assay.show.progress import Progress
from assay.values.run import Command, RunSpec, State


def failed(number, **changes):
    base = {
        "reason": "train: exit code 3",
        "exit_code": 3,
        "log_path": f"runs/s/r{number}/train.log",
        "log_tail": "boom\n",
    }
    return FailedRun(f"r{number}", **{**base, **changes})


def test_all_well():
    report = StudyReport("sweep", 4, 4, elapsed_s=311, kept=1, folder="runs/sweep", next_steps=("assay sum sweep",))
    assert render_report(report) == (
        "sweep: 4 runs: 4 done (1 of them earlier) after 5m 11s, in runs/sweep\nnext: assay sum sweep\n"
    )


def test_a_failed_run_is_named_with_reason_log_and_its_end():
    tail = "".join(f"line {number}\n" for number in range(30))
    steps = ("assay logs sweep/r1", "assay rerun sweep/r1", "assay sum sweep")
    text = render_report(StudyReport("sweep", 2, 1, (failed(1, log_tail=tail),), next_steps=steps))
    assert text == (
        "FAILED r1: train: exit code 3\n"
        "  runs/s/r1/train.log\n" + "".join(f"  | line {number}\n" for number in range(20, 30)) + "\n"
        "sweep: 2 runs: 1 done, 1 failed\n"
        "next: assay logs sweep/r1\n"
        "      assay rerun sweep/r1\n"
        "      assay sum sweep\n"
    )


def test_exit_code_and_attempts_are_said_when_the_reason_does_not():
    text = render_report(StudyReport("s", 1, 0, (failed(1, reason="train failed", attempts=3, state="timeout"),)))
    assert text.startswith("TIMEOUT r1: train failed, exit code 3, 3 attempts\n")
    assert "s: 1 run: 1 timed out\n" in text


def test_an_empty_log_is_said():
    assert "(the log is empty)" in render_report(StudyReport("s", 1, 0, (failed(1, log_tail=""),)))
    assert "|" not in render_report(StudyReport("s", 1, 0, (FailedRun("r"),)))


def test_many_failures_do_not_fill_the_screen():
    text = render_report(StudyReport("s", 300, 0, tuple(failed(number) for number in range(300))))
    assert len(text.splitlines()) < 60
    assert text.count("| boom") == 3
    assert "FAILED r19:" in text
    assert "FAILED r20:" not in text
    assert "and 280 more that failed" in text
    assert "300 failed" in text
    assert "runs/s/r19/train.log" in text, "a path instead of a command with a place to fill in"


def test_what_was_done_earlier_is_said_beside_what_is_done():
    report = StudyReport("s", 7, 3, (failed(1, state="timeout"),), stopped=3, kept=1)
    assert "s: 7 runs: 3 done (1 of them earlier), 1 timed out, 3 stopped\n" in render_report(report)


def test_warnings_are_broken_between_words():
    report = StudyReport("s", 1, 1, warnings=("some words that are " * 5,))
    assert max(map(len, render_report(report, width=40).splitlines()[:-2])) <= 40
    assert render_report(report, width=40).split() == render_report(report).split()


def test_every_state_is_counted():
    text = render_report(StudyReport("s", 10, 3, stopped=2, running=1, queued=4, warnings=("the code has changed",)))
    assert "10 runs: 3 done, 2 stopped, 1 still running, 4 not started" in text
    assert "warning: the code has changed" in text
    assert "nothing ran" in render_report(StudyReport("s", 0, 0))


def test_log_lines_look_as_on_a_terminal():
    text = " 10%|#\r 50%|##\r100%|###\n\x1b[31mred\x1b[0m\tx\r\n\udcff\x07\n\n\n"
    assert split_log(text) == ["100%|###", "red x", r"\xff\x07"]
    assert split_log("") == []


def test_long_lines_are_shortened():
    text = render_report(StudyReport("s", 1, 0, (failed(1, log_tail="x" * 5000),)))
    assert max(map(len, text.splitlines())) < 210


def test_next_steps_come_last():
    assert render_report(StudyReport("s", 1, 1, next_steps=("assay demo",))).endswith("next: assay demo\n")
    assert render_report(StudyReport("s", 1, 1, next_steps=())).endswith("1 done\n")


def test_colour_is_only_colour():
    report = StudyReport("s", 2, 1, (failed(1),))
    assert "\x1b" not in render_report(report)
    assert re.sub(r"\x1b\[\d+m", "", render_report(report, color=True)) == render_report(report)
    assert render_report(StudyReport("s", 1, 1), color=True).startswith("\x1b[1m\x1b[32m")


# ---------------------------------------------------------------- progress


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """Two runs wait for two slots; the loop itself does not run."""
    entries = [
        Entry(RunSpec(name, name, {}, (Command("run", "true"),)), str(tmp_path / name), RetryPolicy()) for name in "ab"
    ]
    (tmp_path / "slots").mkdir()
    executor = LocalExecutor()
    with SqliteIndex(tmp_path / "index.sqlite3") as index:
        collector = Collector(index, StudyLocation(str(tmp_path), "study"), Devices({"ASSAY_FAKE_NVML": "/gone"}))
        made = Supervisor(entries, executor, build_pool(tmp_path), collector, LoopSettings(create=lambda _entry: True))
        for number, entry in enumerate(entries):
            heapq.heappush(made.queue, (0, number, entry))
        yield made
    executor.close()


def build_pool(tmp_path: Path, *labels: str) -> SlotPool:
    return SlotPool(build_entries(labels or ("cpu", "cpu")), str(tmp_path / "slots"))


def take_all(pool: SlotPool) -> list[HeldSlot]:
    return [held for _ in pool.entries if (held := pool.acquire()) is not None]


def let_go(held: list[HeldSlot]) -> None:
    for each in held:
        each.let_go()


def test_slots_that_others_hold_are_waited_for_aloud(supervisor: Supervisor, tmp_path: Path) -> None:
    pool = supervisor.pool
    assert pool is not None
    others = take_all(build_pool(tmp_path))
    assert describe_wait(supervisor) == (), "nobody has looked yet"
    assert pool.acquire() is None
    said = "waiting for a slot: all 2 are taken by other runs"
    assert Watcher(Progress(), "study").view(supervisor).messages == (said,)
    let_go(others)
    ours = take_all(pool)
    assert describe_wait(supervisor) == ()
    let_go(ours)


def test_our_own_runs_are_no_reason_to_speak(supervisor: Supervisor, tmp_path: Path) -> None:
    pool = supervisor.pool
    assert pool is not None
    others = take_all(build_pool(tmp_path))
    assert pool.acquire() is None
    supervisor.entries[0].has_slot = True
    assert describe_wait(supervisor) == ()
    supervisor.entries[0].has_slot = False
    supervisor.queue.clear()
    assert describe_wait(supervisor) == ()
    let_go(others)


def test_the_only_slot(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.pool = build_pool(tmp_path, "cpu")
    others = take_all(build_pool(tmp_path, "cpu"))
    assert supervisor.pool.acquire() is None
    assert describe_wait(supervisor)[0].startswith("waiting for a slot: the only one is taken by other runs")
    let_go(others)


def test_a_gpu_that_others_use(supervisor: Supervisor, tmp_path: Path) -> None:
    fake = tmp_path / "nvml.json"
    fake.write_text('{"gpus": [{"memory_bytes": 17179869184, "used_bytes": 8589934592}]}')
    usable = HasMemory(Devices({"ASSAY_FAKE_NVML": str(fake)}), {0: 12 << 30})
    supervisor.pool = SlotPool(build_entries(["0"]), str(tmp_path / "slots"), usable)
    assert supervisor.pool.acquire() is None
    assert describe_wait(supervisor) == ("waiting for a GPU with 12 GiB free",)


@pytest.mark.parametrize("way", ["interrupted", "leave"])
def test_whoever_leaves_promises_no_end(supervisor: Supervisor, way: str) -> None:
    watcher = Watcher(Progress(), "study", durations=[10.0])
    assert watcher.view(supervisor).eta_s
    setattr(supervisor, way, "SIGINT")
    assert watcher.view(supervisor).eta_s is None


def test_a_run_that_was_found_is_marked(supervisor: Supervisor) -> None:
    watcher = Watcher(Progress(), "study")
    for entry in supervisor.entries:
        entry.state, entry.attempt = State.RUNNING, 1
        supervisor.running[entry.dir] = entry
    watcher.listen(Event("adopted", supervisor.entries[0]))
    assert [row.was_found for row in watcher.view(supervisor).running] == [True, False]
    supervisor.entries[0].attempt = 2  # we start it ourselves
    assert [row.was_found for row in watcher.view(supervisor).running] == [False, False]
