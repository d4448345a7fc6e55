from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.execute.local import LocalExecutor
from assay.execute.slots import HeldSlot, SlotPool, build_entries
from assay.follow.attempts import RetryPolicy
from assay.follow.collect import Collector
from assay.follow.entry import Entry, Event
from assay.follow.locations import StudyLocation
from assay.launch.live_view import Watcher, describe_wait
from assay.launch.slot_choice import HasMemory
from assay.launch.supervise import LoopSettings, Supervisor
from assay.observe.devices import Devices
from assay.record.index.sqlite import SqliteIndex
from assay.show.progress import Progress, render_frame
from assay.values.run import Command, RunSpec, State


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor with two runs that wait for two slots, without its loop."""
    specs = [RunSpec(name, name, {}, (Command("run", "true"),)) for name in "ab"]
    entries = [Entry(spec, str(tmp_path / spec.name), RetryPolicy()) for spec in specs]
    (tmp_path / "slots").mkdir()
    executor = LocalExecutor()
    with SqliteIndex(tmp_path / "index.sqlite3") as index:
        collector = Collector(index, StudyLocation(str(tmp_path), "study"), Devices({"ASSAY_FAKE_NVML": "/gone"}))
        made = Supervisor(entries, executor, build_pool(tmp_path), collector, LoopSettings())
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


def test_waiting_for_slots_that_others_hold_is_printed(supervisor: Supervisor, tmp_path: Path) -> None:
    """Not waiting for runs of our own, or for nothing."""
    pool = supervisor.pool
    assert pool is not None
    others = take_all(build_pool(tmp_path))
    assert describe_wait(supervisor) == (), "nobody has looked yet"
    assert pool.acquire() is None
    said = "waiting for a slot: all 2 are taken by other runs"
    assert Watcher(Progress(), "study").view(supervisor).messages == (said,)
    supervisor.entries[0].has_slot = True
    assert describe_wait(supervisor) == ()
    supervisor.entries[0].has_slot = False
    waiting, supervisor.queue = supervisor.queue, []
    assert describe_wait(supervisor) == ()
    supervisor.queue = waiting
    let_go(others)
    ours = take_all(pool)
    assert describe_wait(supervisor) == ()
    let_go(ours)


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
def test_a_supervisor_that_leaves_estimates_no_end(supervisor: Supervisor, way: str) -> None:
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
    supervisor.entries[0].attempt = 2  # this supervisor starts the attempt
    assert [row.was_found for row in watcher.view(supervisor).running] == [False, False]


@pytest.mark.parametrize("name", ["step", "epoch"])
def test_the_column_is_named_for_what_a_run_counts(
    supervisor: Supervisor, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = supervisor.entries[0]
    entry.attempt = 1
    Path(entry.dir).mkdir()
    Path(entry.dir, "run.json").write_text(json.dumps({"spec": {"patterns": [{"metric": name, "regex": "x"}]}}))
    supervisor.running[entry.dir] = entry
    watcher = Watcher(Progress(), "study")
    watcher.view(supervisor)
    monkeypatch.setattr(Collector, "last_values", lambda *_: {"loss": (3.0, 0.5)})
    lines = render_frame(watcher.view(supervisor), 80, 25, plain=True)
    assert "".join(text for text, _ in lines[2]).split() == ["run", "slot", "time", name, "loss"]
