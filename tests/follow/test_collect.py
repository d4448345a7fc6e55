"""From the files of a run into the index: everything once, with several readers, after a reader's death, and of long lines."""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fork_server import call_assay

from assay.errors import InfrastructureError
from assay.follow.attempts import RetryPolicy
from assay.follow.collect import READ_BYTES, Collector, Follower, closing_quietly, find_sources, read_sources
from assay.follow.entry import Entry
from assay.follow.locations import StudyLocation
from assay.follow.refresh import refresh_study
from assay.observe.devices import Devices
from assay.record import run_directory
from assay.record.folders import find_changes
from assay.record.index.base import Cursor
from assay.record.index.sqlite import SqliteIndex
from assay.show.console import CollectingConsole
from assay.values.run import Beginning, Command, JobHandle, Outcome, Resumption, RunSpec, State
from assay.values.study import MetricFile, Pattern

KEY = "study/run"
LOSS = (Pattern("step", r"step (\d+)"), Pattern("loss", r"loss ([\d.]+)"))
SPEC = RunSpec("0", "run", {}, (Command("train", "true"),), patterns=LOSS)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[SqliteIndex]:
    with SqliteIndex(tmp_path / "index.sqlite3") as opened:
        yield opened


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "root" / "study" / "run"
    assert run_directory.write_run_dir(str(path), run_directory.RunRecord(SPEC, "study", "uid", 0.0), "")
    return path


def say(run_dir: Path, text: str, name: str = "train.log") -> None:
    with (run_dir / name).open("a") as file:
        file.write(text)


def losses(index: SqliteIndex, metric: str = "loss") -> list[float]:
    return list(index.load_series(KEY, metric).values)


def follow(index: SqliteIndex, run_dir: Path, spec: RunSpec = SPEC) -> Follower:
    return Follower(index, KEY, str(run_dir), find_sources(str(run_dir), spec)[0])


# ---------------------------------------------------------------- one reader


def test_a_line_counts_when_it_is_complete(index: SqliteIndex, run_dir: Path) -> None:
    say(run_dir, "step 1 loss 1.5\nstep 2 loss 2.")
    reader = follow(index, run_dir)
    reader.read(index)
    assert losses(index) == [1.5]
    say(run_dir, "25\nstep 3 loss 3.5")
    reader.read(index)
    assert losses(index) == [1.5, 2.25]
    reader.read(index, final=True)
    reader.read(index, final=True)
    assert losses(index) == [1.5, 2.25, 3.5]
    assert list(index.load_series(KEY, "loss").steps) == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loss 1.5\rloss 2.5\rloss 3", [1.5, 2.5]),  # a progress bar rewrites one line for ever
        ("".join(f"step {i} loss {i}.5 {'x' * 30}\n" for i in range(READ_BYTES // 20)), None),
        ("loss 1.5\n" + "x" * (READ_BYTES * 3) + "\nloss 2.5\n", [1.5, 2.5]),
    ],
    ids=["carriage returns", "larger than one read", "a line larger than one read"],
)
def test_logs_of_any_size(index: SqliteIndex, run_dir: Path, text: str, expected: list[float] | None) -> None:
    say(run_dir, text)
    follow(index, run_dir).read(index)
    assert losses(index) == (expected or [i + 0.5 for i in range(READ_BYTES // 20)])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["jsonl", "tensorboard"])
def test_a_record_larger_than_one_read(index: SqliteIndex, run_dir: Path, kind: str) -> None:
    """An image in an event file, a long list in a line: the reader must neither stop nor turn in a circle."""
    pattern = MetricFile(kind, f"data.{kind}")  # type: ignore[arg-type]
    if kind == "jsonl":
        text = json.dumps({"note": "x" * READ_BYTES * 2, "loss": 1.5})
        (run_dir / "data.jsonl").write_text(text + '\n{"loss": 2.5}\n')
    else:
        big = struct.pack("<QI", READ_BYTES * 2, 0) + bytes(READ_BYTES * 2) + bytes(4)
        (run_dir / "data.tensorboard").write_bytes(big)
    read_sources(index, KEY, str(run_dir), RunSpec("0", "run", {}, (), patterns=(pattern,)))
    assert losses(index) == ([1.5, 2.5] if kind == "jsonl" else [])


def test_a_log_that_was_replaced_is_read_from_its_beginning(index: SqliteIndex, run_dir: Path) -> None:
    say(run_dir, "loss 1.5\nloss 2.5\n")
    reader = follow(index, run_dir)
    reader.read(index)
    (run_dir / "train.log").write_text("loss 9.5\n")
    reader.read(index)
    assert losses(index) == [9.5]


# ---------------------------------------------------------------- several readers


def test_a_reader_that_died_is_continued_by_another(index: SqliteIndex, run_dir: Path) -> None:
    for part in ("loss 1.5\nlo", "ss 2.5\nloss", " 3.5\n"):
        say(run_dir, part)
        follow(index, run_dir).read(index)
    assert losses(index) == [1.5, 2.5, 3.5]


def test_the_slower_of_two_goes_on_behind_the_faster(index: SqliteIndex, run_dir: Path) -> None:
    say(run_dir, "loss 1.5\n")
    slow, fast = follow(index, run_dir), follow(index, run_dir)
    fast.read(index)
    say(run_dir, "loss 2.5\n")
    slow.read(index)
    fast.read(index, final=True)
    assert losses(index) == [1.5, 2.5]


def test_a_last_line_without_an_end_is_stored_by_one_of_two(index: SqliteIndex, run_dir: Path) -> None:
    say(run_dir, "loss 1.5\nloss 2.5")
    first, second = follow(index, run_dir), follow(index, run_dir)
    first.read(index)
    second.read(index)
    first.read(index, final=True)
    second.read(index, final=True)
    assert losses(index) == [1.5, 2.5]


def test_two_connections_with_open_batches(tmp_path: Path, run_dir: Path) -> None:
    """As two supervisors have them: the one that is refused at the flush reads again what is left."""
    with SqliteIndex(tmp_path / "index.sqlite3") as one, SqliteIndex(tmp_path / "index.sqlite3") as two:
        collectors = [build_collector(each, run_dir) for each in (one, two)]
        entry = build_entry(run_dir)
        say(run_dir, "loss 1.5\n")
        for collector in collectors:
            collector.started(entry)
            collector.tick([entry], time.time() + 1)
        say(run_dir, "loss 2.5\nloss 3.5")
        for collector in collectors:
            collector.ended(entry)  # both have read the rest, neither has written
        for collector in collectors:
            collector.flush()
        assert losses(one) == losses(two) == [1.5, 2.5, 3.5]


def test_the_rest_is_read_where_the_faster_one_died(tmp_path: Path, run_dir: Path) -> None:
    """Its half is in the index, ours was refused, and no other reader will come."""
    with SqliteIndex(tmp_path / "index.sqlite3") as ours, SqliteIndex(tmp_path / "index.sqlite3") as theirs:
        collector, entry = build_collector(ours, run_dir), build_entry(run_dir)
        say(run_dir, "loss 1.5\n")
        with theirs.batch():
            follow(theirs, run_dir).read(theirs)
            say(run_dir, "loss 2.5\nloss 3.5\n")
            collector.ended(entry)
        collector.flush()
        assert losses(ours) == [1.5, 2.5, 3.5]


def build_collector(index: SqliteIndex, run_dir: Path) -> Collector:
    return Collector(index, StudyLocation(str(run_dir.parent.parent), "study"), Devices({"ASSAY_FAKE_NVML": "/gone"}))


def build_entry(run_dir: Path, attempt: int = 1, state: State = State.DONE) -> Entry:
    handle = JobHandle("local", "0", "host", os.getpid(), 0, "boot", None, attempt, 1.0)
    outcome = Outcome(state, attempt, {"train": 0})
    return Entry(SPEC, str(run_dir), RetryPolicy(), state, attempt, handle, outcome)


# ---------------------------------------------------------------- attempts


def test_only_the_newest_attempt_counts(index: SqliteIndex, run_dir: Path) -> None:
    """The supervisor that followed the first one was killed before it could forget it."""
    say(run_dir, "loss 1.5\n")
    follow(index, run_dir).read(index)
    say(run_dir, "loss 7.5\n", "train.2.log")
    read_sources(index, KEY, str(run_dir), SPEC)
    assert losses(index) == [7.5]
    read_sources(index, KEY, str(run_dir), SPEC)
    assert losses(index) == [7.5]


def begin_attempt(run_dir: Path, number: int) -> Entry:
    """As a supervisor does: first its lease, then its log."""
    entry = build_entry(run_dir, number, State.RUNNING)
    entry.outcome = None
    assert entry.handle is not None
    assert run_directory.publish_lease(str(run_dir), entry.handle)
    return entry


RESUMED = replace(SPEC, resume=Resumption(("*.pt",), {"train": "true"}))


def begin_resumed(run_dir: Path, number: int, checkpoint: str) -> None:
    handle = JobHandle("local", "0", "host", 0, 0, "boot", None, number, 0.0, begins=Beginning(("*.pt",), checkpoint))
    assert run_directory.publish_lease(str(run_dir), handle)


def load_points(index: SqliteIndex) -> list[tuple[float, float]]:
    series = index.load_series(KEY, "loss")
    return list(zip(series.steps, series.values, strict=True))


def test_attempts_that_continue_each_other_are_one_series(index: SqliteIndex, run_dir: Path, tmp_path: Path) -> None:
    """Each counts up to the first step of a later one, however the index came to its points."""
    texts = {
        1: "".join(f"step {n} loss 1.{n}\n" for n in range(1, 7)),
        2: "".join(f"step {n} loss 2.{n}\n" for n in range(5, 9)),
        3: "loading\n",
        4: "".join(f"step {n} loss 4.{n}\n" for n in range(4, 6)),
    }
    expected = {
        1: [(n, 1 + n / 10) for n in range(1, 7)],
        2: [*((n, 1 + n / 10) for n in range(1, 5)), *((n, 2 + n / 10) for n in range(5, 9))],
        4: [*((n, 1 + n / 10) for n in range(1, 4)), (4, 4.4), (5, 4.5)],
    }
    for number, text in texts.items():
        begin_resumed(run_dir, number, f"step-{number}.pt" if number > 1 else "")
        read_sources(index, KEY, str(run_dir), RESUMED, final=False)
        say(run_dir, text, f"train.{number}.log" if number > 1 else "train.log")
        read_sources(index, KEY, str(run_dir), RESUMED)
        assert load_points(index) == expected.get(number, expected[2])
        with SqliteIndex(tmp_path / f"rebuilt{number}.sqlite3") as rebuilt:
            read_sources(rebuilt, KEY, str(run_dir), RESUMED)
            assert load_points(rebuilt) == load_points(index)
    begin_resumed(run_dir, 5, "")  # it starts over
    say(run_dir, "step 1 loss 5.1\n", "train.5.log")
    read_sources(index, KEY, str(run_dir), RESUMED)
    assert load_points(index) == [(1, 5.1)]


def test_without_steps_all_points_of_a_continued_attempt_count(index: SqliteIndex, run_dir: Path) -> None:
    spec = replace(RESUMED, patterns=LOSS[1:])
    for number, name in ((1, "train.log"), (2, "train.2.log")):
        begin_resumed(run_dir, number, "a.pt" if number > 1 else "")
        say(run_dir, f"loss 1.{number}\n", name)
    read_sources(index, KEY, str(run_dir), spec)
    assert losses(index) == [1.1, 1.2]


def test_series_that_a_script_wrote_are_joined_too(index: SqliteIndex, run_dir: Path) -> None:
    (run_dir / "metrics").mkdir()
    for number, steps in ((1, (1, 2, 3)), (2, (3, 4))):
        begin_resumed(run_dir, number, "a.pt" if number > 1 else "")
        rows = "".join(f'{{"step": {step}, "loss": {number}.5}}\n' for step in steps)
        say(run_dir, rows, f"metrics/a{number}-r0-host-1-1.jsonl")
    read_sources(index, KEY, str(run_dir), RESUMED)
    assert load_points(index) == [(1, 1.5), (2, 1.5), (3, 2.5), (4, 2.5)]


def rebuild(run_dir: Path, tmp_path: Path) -> list[float]:
    with SqliteIndex(tmp_path / "rebuilt.sqlite3") as index:
        read_sources(index, KEY, str(run_dir), SPEC)
        return losses(index)


@pytest.mark.parametrize("stored_before", [True, False])
@pytest.mark.parametrize("waits", [True, False])
def test_points_of_a_dead_attempt_do_not_come_back(
    tmp_path: Path, run_dir: Path, stored_before: bool, waits: bool
) -> None:
    """A supervisor was frozen with points in its buffer, or goes on to read, while another one began the next attempt."""
    with SqliteIndex(tmp_path / "index.sqlite3") as ours, SqliteIndex(tmp_path / "index.sqlite3") as theirs:
        frozen, other = build_collector(ours, run_dir), build_collector(theirs, run_dir)
        first = begin_attempt(run_dir, 1)
        say(run_dir, "loss 1.5\n")
        frozen.started(first)
        if stored_before:
            frozen.tick([first], time.time() + 1)
        say(run_dir, "loss 2.5\n")
        if waits:
            frozen._attend(frozen._live[first.dir], time.time() + 1)  # read, and not written yet
        second = begin_attempt(run_dir, 2)
        say(run_dir, "loss 7.5\n", "train.2.log")
        other.started(second)
        other.tick([second], time.time() + 1)
        say(run_dir, "loss 8.5\n", "train.2.log")
        second.state = State.DONE
        other.ended(second)
        other.flush()
        frozen.tick([first], time.time() + 2)  # and is killed
        frozen.tick([first], time.time() + 3)
        assert losses(theirs) == rebuild(run_dir, tmp_path) == [7.5, 8.5]


def test_points_that_a_dead_supervisor_stored_are_removed_while_another_follows(tmp_path: Path, run_dir: Path) -> None:
    """The attempt's own supervisor died before it could forget them; this one has followers already."""
    with SqliteIndex(tmp_path / "index.sqlite3") as index:
        first = begin_attempt(run_dir, 1)
        say(run_dir, "loss 1.5\n")
        collector = build_collector(index, run_dir)
        collector.started(first)
        collector.tick([first], time.time() + 1)
        say(run_dir, "loss 7.5\n", "train.2.log")
        collector.ended(first)
        collector.flush()
        assert losses(index) == rebuild(run_dir, tmp_path) == [7.5]


def test_a_reader_that_saw_no_other_attempt_stores_nothing_once_there_is_one(index: SqliteIndex, run_dir: Path) -> None:
    begin_attempt(run_dir, 1)
    say(run_dir, "loss 1.5\n")
    with index.batch() as refused:
        read_sources(index, KEY, str(run_dir), SPEC)
        begin_attempt(run_dir, 2)
    assert (losses(index), refused) == ([], [(KEY, "train.log")])


def test_a_run_that_still_runs_is_not_read_to_its_end(index: SqliteIndex, run_dir: Path) -> None:
    say(run_dir, "loss 1.5\nloss 2")
    read_sources(index, KEY, str(run_dir), SPEC, final=False)
    say(run_dir, ".25\n")
    read_sources(index, KEY, str(run_dir), SPEC)
    assert losses(index) == [1.5, 2.25]


# ---------------------------------------------------------------- when something breaks


class Broken(SqliteIndex):
    """An index whose disk is full, as long as we say so."""

    is_broken = True

    def _write(self, buffer):
        if self.is_broken:
            raise InfrastructureError("the index failed: database or disk is full")
        return super()._write(buffer)


@pytest.mark.parametrize("recovers", [False, True])
def test_a_broken_index_stops_nothing_and_is_reported(tmp_path: Path, run_dir: Path, recovers: bool) -> None:
    """One that recovers has everything."""
    with closing_quietly(Broken(tmp_path / "index.sqlite3")) as index:
        collector, entry = build_collector(index, run_dir), build_entry(run_dir)
        say(run_dir, "loss 1.5\n")
        collector.started(entry)
        collector.tick([entry], time.time() + 2)
        index.is_broken = not recovers
        say(run_dir, "loss 2.5\n")
        collector.ended(entry)
        collector.flush()
        if recovers:
            assert (collector.failure, losses(index)) == (None, [1.5, 2.5])
        else:
            assert "disk is full; the runs themselves are complete" in str(collector.failure)


def test_metrics_are_read_although_the_clock_went_back(index: SqliteIndex, run_dir: Path) -> None:
    collector, entry = build_collector(index, run_dir), build_entry(run_dir)
    collector.started(entry)
    collector.tick([entry], time.time() + 2)
    say(run_dir, "loss 1.5\n")
    collector.tick([entry], time.time() - 3600)
    assert losses(index) == [1.5]
    collector.ended(entry)
    collector.flush()


def find_news(index: SqliteIndex, run_dir: Path) -> list[str]:
    """What the next list of the study would read."""
    changes = find_changes(str(run_dir.parent), "study", index.load_runs(["study"]))
    return [change.path for change in changes.changed]


@pytest.mark.parametrize("error", [BrokenPipeError, OSError])
def test_a_reader_that_has_left_costs_no_metric(index: SqliteIndex, run_dir: Path, error: type[OSError]) -> None:
    calls = []

    def echo(data: bytes) -> None:
        calls.append(data)
        raise error

    location = StudyLocation(str(run_dir.parent.parent), "study")
    collector, entry = Collector(index, location, Devices({"ASSAY_FAKE_NVML": "/gone"}), echo), build_entry(run_dir)
    say(run_dir, "loss 1.5\n")
    collector.started(entry)
    collector.tick([entry], time.time() + 2)
    collector.flush()
    assert losses(index) == [1.5]
    say(run_dir, "loss 2.5\n")
    collector.ended(entry)
    collector.flush()
    assert losses(index) == [1.5, 2.5]
    assert find_news(index, run_dir) == []
    assert len(calls) == (1 if error is BrokenPipeError else 2)


def test_what_could_not_be_read_is_read_by_the_next_who_looks(
    index: SqliteIndex, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector, entry = build_collector(index, run_dir), build_entry(run_dir)
    say(run_dir, "loss 1.5\n")

    def refuse(*_arguments: object) -> Cursor:
        raise InfrastructureError("busy")

    with monkeypatch.context() as patch:
        patch.setattr(index, "load_cursor", refuse)
        collector.ended(entry)
    collector.flush()
    (row,) = index.load_runs(["study"])
    assert row.state is State.DONE
    assert find_news(index, run_dir) == [str(run_dir)]


def test_a_refresh_that_breaks_off_is_repeated(
    index: SqliteIndex, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = StudyLocation(str(run_dir.parent.parent), "study")
    run_directory.publish_lease(str(run_dir), JobHandle("local", "0", "host", 1, 0, "boot", None, 1, 1.0))
    run_directory.write_outcome(str(run_dir), Outcome(State.DONE, 1, {"train": 0}))
    say(run_dir, "loss 1.5\n")
    for name in ("run.json", "train.log", "."):
        os.utime(run_dir / name, (1.0, 1.0))  # long settled
    console = CollectingConsole()

    def refuse(*_arguments: object) -> Cursor:
        raise InfrastructureError("busy", "what to do")

    with monkeypatch.context() as patch:
        patch.setattr(index, "load_cursor", refuse)
        refresh_study(index, location, console)
    assert console.lines == [f"{run_dir}: busy"]
    assert [row.state for row in index.load_runs(["study"])] == [State.DONE]
    assert (refresh_study(index, location), losses(index)) == (1, [1.5])
    assert refresh_study(index, location) == 0


def test_a_directory_that_was_removed(index: SqliteIndex, run_dir: Path) -> None:
    collector, entry = build_collector(index, run_dir), build_entry(run_dir)
    collector.started(entry)
    import shutil

    shutil.rmtree(run_dir)
    collector.tick([entry], time.time() + 2)
    collector.ended(entry)
    collector.flush()
    assert collector.failure is None


# ---------------------------------------------------------------- series of several attempts


STUDY = f"""
study: s
command: {sys.executable} train.py
code: live
"""
TRAIN = """
import assay
for step in range({count}):
    assay.log(loss={loss}, step=step)
"""


def assay(folder: Path, *arguments: str) -> str:
    done = call_assay(arguments, cwd=folder, env=os.environ, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_repeated_run_shows_its_last_attempt(tmp_path):
    (tmp_path / "s.yml").write_text(STUDY)
    (tmp_path / "train.py").write_text(TRAIN.format(count=50, loss=0.25))
    assay(tmp_path, "run", "s.yml", "--quiet")
    (tmp_path / "train.py").write_text(TRAIN.format(count=20, loss=0.5))
    assay(tmp_path, "run", "s.yml", "--quiet", "--force")
    (row,) = json.loads(assay(tmp_path, "sum", "s", "--json", "--best"))
    assert (row["loss"], row["loss_best"], row["step"]) == (0.5, 0.5, 19)
    assay(tmp_path, "index", "rebuild")
    (again,) = json.loads(assay(tmp_path, "sum", "s", "--json", "--best"))
    assert again == row
