"""Store metrics of runs in the index: during the runs, at their end, and when the index is brought up to date."""

from __future__ import annotations

import contextlib
import glob
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from assay.errors import FormatError, InfrastructureError
from assay.execute.places import load_place
from assay.follow.entry import Entry
from assay.follow.locations import StudyLocation
from assay.observe import files
from assay.observe.columns import Columns, add_column
from assay.observe.devices import Devices
from assay.observe.extract import Extractor
from assay.observe.readings import ProcessTable, TreeSampler, parse_reading, render_reading
from assay.record import run_directory
from assay.record.index.base import Cursor, RunRow
from assay.record.index.digest import Tally
from assay.record.index.stored import Index
from assay.record.received import load_received_facts, was_set_aside
from assay.record.tags import Marks, find_tags_file, load_marks
from assay.system.fast_dataclasses import dataclass, field
from assay.system.files import Tail, read_end
from assay.values import layout
from assay.values.run import JobHandle, Outcome, RunSpec, State, Usage
from assay.values.secrets import hide_named
from assay.values.series import READING_S, Reading, Summary
from assay.values.study import MetricFile, Pattern

READ_BYTES = 1 << 20
_LINE_BYTES = 4096  # more than two lines of readings.jsonl
_ATTEND_S = 0.15  # time limit of a tick: with thousands of runs the next tick continues where this one stopped
_FLUSHES = 5
_REST_S = 60.0
_UNTIL, _END = "until", str(math.inf)  # a key in the state of a cursor, and its value if `Source.until` is None
UNREAD = 0.0  # the stamp of a row whose sources could not be read: the next reader of the study reads the run again

ParsedLog = tuple[Columns, int, dict[str, Any]]
Parse = Callable[[bytes, dict[str, Any], bool], ParsedLog]
Listen = Callable[[str, Columns], None]  # called with the key of a run and the points that were just stored
Counts = Callable[[], bool]  # returns whether no attempt has begun since the sources were chosen


@dataclass(frozen=True, slots=True)
class Source:
    """A file of a run that contains metrics, and the function that parses it."""

    name: str  # relative to the run directory
    parse: Parse
    until: float | None = None  # the step where the next attempt continues this one; None: all points count


# ---------------------------------------------------------------- the files with metrics, and their parsers


def find_sources(
    run_dir: str, spec: RunSpec, names: Sequence[str] | None = None, *, brief: bool = False, chain: Chain | None = None
) -> list[Source]:
    """Return the newest log of each command, the script's own series, logx's csv, and the files that the study names.
    With `brief`, only the first and the last time of logx's csv are parsed, which is enough for summaries."""
    present = names if names is not None else os.listdir(run_dir)
    chain = Chain() if chain is None else chain
    chain.find_attempts(run_dir, spec, present)
    sources: list[Source] = []
    patterns = [pattern for pattern in spec.patterns if isinstance(pattern, Pattern)]
    for command in spec.commands if patterns else ():
        parse_logs = partial(log_parser, patterns, command.name)
        logs = _find_counting(spec, present, command.name, chain)
        sources += chain.cut(run_dir, [[Source(log, parse_logs)] for log in logs])
    counting, _ = _split_series(run_dir, present, chain)
    parse = _parse_file("jsonl", None)
    attempts = [[*names] for _, names in groupby(counting, lambda name: layout.parse_series_name(name)[0])]
    series = [[Source(f"{layout.METRICS_DIR}/{name}", parse) for name in each] for each in attempts]
    sources += chain.cut(run_dir, series)
    if layout.LOGX_METRICS_FILE in present:
        read = files.parse_logx_columns
        sources.append(
            Source(layout.LOGX_METRICS_FILE, lambda data, state, final: read(data, state, final=final, brief=brief))
        )
    for file in spec.patterns:
        if isinstance(file, MetricFile):
            sources += _file_sources(run_dir, file)
    return sources


class Chain:
    """The attempts that the newest one continues from their checkpoints. The points of each attempt count up to the
    step where a later attempt continues; without steps, all points count. The attempts are read once: they stay the
    same until another attempt begins."""

    def __init__(self) -> None:
        self.numbers: list[int] | None = None  # numbers of the continued attempts; None: not read yet
        self.places: list[tuple[str, float]] = []  # names and ends of the sources at the last call of `has_moved`
        self._steps: dict[str, float] = {}  # the first step of each source

    def find_attempts(self, run_dir: str, spec: RunSpec, present: Sequence[str]) -> None:
        if self.numbers is not None:
            return
        self.numbers = []
        number = find_newest_attempt(present) if spec.resume is not None else 0
        while number > 1 and run_directory.load_checkpoint(run_dir, number):
            number -= 1
            self.numbers.append(number)

    def cut(self, run_dir: str, attempts: Sequence[Sequence[Source]]) -> list[Source]:
        """Return the sources of `attempts`, which has the oldest first; each source has the step where it ends."""
        found: list[Source] = []
        until: float | None = None
        for sources in reversed(attempts):
            found[:0] = [each if until is None else _end_at(each, until) for each in sources]
            steps = [self._find_first_step(run_dir, each) for each in sources] if len(attempts) > 1 else []
            until = min([math.inf if until is None else until, *steps])
        return found

    def _find_first_step(self, run_dir: str, source: Source) -> float:
        """Return the first step of a source; infinity if the source has no steps yet."""
        if source.name not in self._steps:
            with contextlib.suppress(OSError), open(os.path.join(run_dir, source.name), "rb") as file:
                columns, _, _ = source.parse(file.read(READ_BYTES), {}, False)
                first = [step for steps, _, _ in columns.values() for step in steps[:1] if not math.isnan(step)]
                self._steps.update({source.name: min(first)} if first else {})
        return self._steps.get(source.name, math.inf)

    def has_moved(self, sources: Sequence[Source]) -> bool:
        """Whether the ends of the sources have changed since the last call."""
        before, self.places = self.places, [(each.name, each.until) for each in sources if each.until is not None]
        return before != self.places


def _end_at(source: Source, until: float) -> Source:
    def parse(data: bytes, state: dict[str, Any], final: bool) -> ParsedLog:
        columns, consumed, state = source.parse(data, state, final)
        kept: Columns = {}
        for metric, column in columns.items():
            points = [point for point in zip(*column, strict=True) if not point[0] >= until]
            if points:
                add_column(kept, metric, *zip(*points, strict=True))
        return kept, consumed, {**state, _UNTIL: str(until)}

    return Source(source.name, parse, until)


def _split_series(run_dir: str, present: Sequence[str], chain: Chain) -> tuple[Sequence[str], Sequence[str]]:
    """Split the script's own series into series that count (of the newest and continued attempts) and replaced ones."""
    folder = os.path.join(run_dir, layout.METRICS_DIR)
    if layout.METRICS_DIR not in present or not os.path.isdir(folder):  # a program may write a file named METRICS_DIR
        return (), ()
    return layout.split_series(os.listdir(folder), chain.numbers or ())


def _find_counting(spec: RunSpec, present: Sequence[str], command: str, chain: Chain) -> list[str]:
    """Return the newest log of a command, preceded by the logs of the attempts that it continues."""
    logs = layout.find_logs(present, spec.log_name, command)
    takes_path = spec.resume is not None and command in spec.resume.texts
    continued = {layout.log_name(spec.log_name, command, number, "") for number in chain.numbers or () if takes_path}
    return [log for log in logs[:-1] if log in continued] + logs[-1:]


def _file_sources(run_dir: str, pattern: MetricFile) -> Iterator[Source]:
    """Yield the files that the pattern names; if it names a folder, the files of the pattern's kind inside."""
    parse = _parse_file(pattern.kind, pattern.step)
    wanted = "**/*tfevents*" if pattern.kind == "tensorboard" else f"**/*.{pattern.kind}"
    find = partial(glob.glob, root_dir=run_dir, recursive=True)
    for name in sorted(find(pattern.path)):
        is_folder = os.path.isdir(os.path.join(run_dir, name))
        inside = sorted(find(os.path.join(glob.escape(name), wanted))) if is_folder else [name]
        yield from (Source(each, parse) for each in inside)


def parse_log(patterns: Sequence[Pattern], command: str, data: bytes, state: dict[str, Any], final: bool) -> ParsedLog:
    if not final:
        # An unfinished line is not consumed until it is complete, so that only one of two readers stores it. A very
        # long line without an end is parsed as it is.
        newline = data.rfind(b"\n")
        end = max(newline, data.rfind(b"\r", newline + 1)) + 1
        data = data[:end] if end or len(data) < READ_BYTES else data
    extractor = Extractor.restore(patterns, command, state)
    columns = extractor.feed(data)
    if final:
        for metric, (steps, values, times) in extractor.finish().items():
            add_column(columns, metric, steps, values, times)
    return columns, len(data), extractor.state


log_parser: Callable[[Sequence[Pattern], str, bytes, dict[str, Any], bool], ParsedLog] = parse_log  # `web` replaces it


def _parse_file(kind: str, step: str | None) -> Parse:
    if kind == "tensorboard":
        from assay.observe import events  # few studies have such files

        return lambda data, state, _final: events.parse_events_columns(data, state)
    parse = files.parse_csv_columns if kind == "csv" else files.parse_jsonl_columns
    return lambda data, state, final: parse(data, state, step=step, final=final)


# ---------------------------------------------------------------- from a file into the index


class Summaries:
    """A substitute for an index that keeps only summaries of points, to show a table of runs that are not indexed."""

    def __init__(self) -> None:
        self.states: dict[str, Mapping[str, Any]] = {}  # source → state of its cursor
        self.tallies: dict[str, Tally] = {}
        self.is_broken = False  # a file was replaced while it was read

    def load_cursor(self, _key: str, source: str) -> Cursor:
        return Cursor(0, self.states.get(source, {}))

    def add_columns(
        self, _key: str, source: str, cursor: Cursor, columns: Mapping[str, Any], **_for_others: object
    ) -> bool:
        """Add the points to the summaries. `_for_others` is ignored: only an index has other readers."""
        self.states[source] = cursor.state
        for metric, column in columns.items():
            self.tallies.setdefault(metric, Tally()).extend(*column)
        return True

    def forget_points(self, _key: str, _source: str | None = None) -> None:
        self.is_broken = True

    def carry(self) -> dict[str, tuple[bytes, float]]:
        """Return the summaries as `Index.add_summaries` takes them."""
        return {metric: tally.carry() for metric, tally in self.tallies.items()}


class Follower:
    """Reads one source as it grows; the cursor is in the index, so two followers never store a point twice."""

    def __init__(
        self,
        index: Index | Summaries,
        key: str,
        run_dir: str,
        source: Source,
        listen: Listen | None = None,
        counts: Counts | None = None,
    ) -> None:
        self.key, self.source, self.listen, self.counts = key, source, listen, counts
        self.cursor = index.load_cursor(key, source.name)
        self.tail = Tail(os.path.join(run_dir, source.name), self.cursor.offset)
        self.last: dict[str, tuple[float, float]] = {}  # metric -> step, value

    def read(self, index: Index | Summaries, final: bool = False) -> None:
        """Read everything that is in the file now; with `final` also a last line without an end. Read nothing once
        another attempt has begun, whose reader has removed these points from the index: they must not return."""
        size = READ_BYTES
        while self.counts is None or self.counts():
            data = self.tail.read(size)
            if self.tail.restarts:
                self.tail.restarts = 0
                index.forget_points(self.key, self.source.name)
                self.cursor = Cursor()
            is_all = len(data) < size
            columns, consumed, state = self.source.parse(data, dict(self.cursor.state), final and is_all)
            if not consumed and not columns:
                self.tail.offset = self.cursor.offset
                if is_all:
                    return
                size *= 2  # the record is longer than the data
            elif self._store(index, columns, Cursor(self.cursor.offset + consumed, state)) and is_all:
                return

    def _store(self, index: Index | Summaries, columns: Columns, cursor: Cursor) -> bool:
        """Store the points. If another reader was faster, return False and continue from that reader's position."""
        name, offset = self.source.name, self.cursor.offset
        is_stored = index.add_columns(self.key, name, cursor, columns, expected_offset=offset, counts=self.counts)
        if not is_stored:
            cursor = index.load_cursor(self.key, self.source.name)
        else:
            for metric, (steps, values, _) in columns.items():
                if values:
                    self.last[metric] = (steps[-1], values[-1])
            if self.listen is not None and columns:
                self.listen(self.key, columns)
        self.cursor = cursor
        self.tail.offset = cursor.offset
        return is_stored


def read_sources(
    index: Index | Summaries,
    key: str,
    run_dir: str,
    spec: RunSpec,
    names: Sequence[str] | None = None,
    *,
    final: bool = True,
    listen: Listen | None = None,
) -> None:
    """Bring the index up to date with the files of a run; `final`: the run has ended."""
    present = names if names is not None else os.listdir(run_dir)
    sources = find_sources(run_dir, spec, present, brief=isinstance(index, Summaries))
    if not isinstance(index, Summaries):
        _forget_replaced(index, key, run_dir, spec, present)
        forget_uncut(index, key, sources)
    counts = build_counts(run_dir, find_newest_attempt(present))
    for source in sources:
        Follower(index, key, run_dir, source, listen, counts).read(index, final=final)


def _forget_replaced(index: Index, key: str, run_dir: str, spec: RunSpec, present: Sequence[str]) -> None:
    """Forget the points of replaced attempts, whose supervisors may have died before doing so. Sources are forgotten
    without checking whether the index has them: another process may store points after such a check."""
    chain = Chain()
    chain.find_attempts(run_dir, spec, present)
    logs = [(c.name, name) for c in spec.commands for name in layout.find_logs(present, spec.log_name, c.name)[:-1]]
    old = [name for command, name in logs if name not in _find_counting(spec, present, command, chain)]
    _, replaced = _split_series(run_dir, present, chain)
    for name in (*old, *(f"{layout.METRICS_DIR}/{name}" for name in replaced)):
        index.forget_points(key, name)


def forget_uncut(index: Index, key: str, sources: Sequence[Source]) -> bool:
    """Forget all points if a continued attempt has points beyond the step where the next one continues."""
    cursors = [(source, index.load_cursor(key, source.name)) for source in sources if source.until is not None]
    if all(not cursor.offset or cursor.state.get(_UNTIL, _END) == str(source.until) for source, cursor in cursors):
        return False
    index.forget_points(key)
    return True


def find_newest_attempt(present: Sequence[str]) -> int:
    """Return the number of the newest attempt, by the names in a run directory; 0 if no attempt has begun."""
    return max((item[1] for name in present if (item := layout.parse_numbered(name))), default=0)


def build_counts(run_dir: str, attempt: int) -> Counts | None:
    """Return a function that checks if this attempt is still the newest; None if Assay started no attempt here."""
    if not attempt:
        return None
    lease = os.path.join(run_dir, layout.numbered_name("lease", attempt + 1))
    token = os.path.join(run_dir, layout.numbered_name("token", attempt + 1))
    return lambda: not (os.access(lease, os.F_OK) or os.access(token, os.F_OK))


@contextlib.contextmanager
def closing_quietly(index: Index) -> Iterator[Index]:
    """Close the index, ignoring errors: it can be built again from the run directories, so the runs do not fail."""
    try:
        yield index
    finally:
        with contextlib.suppress(InfrastructureError):
            index.close()


# ---------------------------------------------------------------- rows


def build_row(
    spec: RunSpec,
    record: run_directory.RunRecord,
    run_dir: str,
    key: str,
    state: State,
    attempt: int,
    outcome: Outcome | None,
    handle: JobHandle | None,
    stamp: float,
    marks: Marks,
) -> RunRow:
    """Build the row of a run. A received run is named after its folder, not after the name in its run.json."""
    place, received = load_place(run_dir, handle), load_received_facts(run_dir)
    return RunRow(
        key=key,
        study=key.partition("/")[0],
        name=spec.name if received is None else os.path.basename(run_dir),
        id=spec.id,
        state=state,
        attempt=attempt,
        params=hide_named(spec.params),
        title=spec.title,
        tag=spec.tag,
        created_at=record.created_at,
        started_at=(outcome.started_at if outcome else None) or (handle.started_at if handle else None),
        ended_at=outcome.ended_at if outcome else None,
        host=place.host,
        job=place.job,
        slot=handle.slot if handle else None,
        exit_code=outcome.exit_code if outcome else None,
        reason="; ".join(filter(None, (outcome.reason if outcome else "", marks.problem))),
        cause=outcome.cause if outcome else "",
        code_hash=record.code_hash,
        commit=record.commit,
        peak_rss_bytes=outcome.peak_rss_bytes if outcome else None,
        cpu_s=outcome.cpu_s if outcome else None,
        origin=record.tool or "assay",
        parent=record.parent,
        trial=record.trial,
        tags=marks.tags,
        note=marks.note,
        received=received,
        stamp=stamp,
    )


def _choose_stamp(entry: Entry, read_at: float) -> float:
    """Choose the stamp of a row. The run must be read again if the row is of an attempt that no longer counts."""
    counts = build_counts(entry.dir, entry.attempt)
    return read_at if counts is None or counts() else UNREAD


# ---------------------------------------------------------------- runs that are running


@dataclass(slots=True)
class _Live:
    entry: Entry
    key: str
    began: float
    followers: dict[str, Follower] = field(default_factory=dict)
    sampler: TreeSampler | None = None
    next_reading: float = 0.0
    last_reading: Reading | None = None
    echo: Tail | None = None
    counts: Counts | None = None
    chain: Chain = field(default_factory=Chain)


class Collector:
    """The supervisor's observer, which stores rows, metrics and readings of the runs that it watches."""

    def __init__(
        self, index: Index, location: StudyLocation, devices: Devices, echo: Callable[[bytes], None] | None = None
    ) -> None:
        self._index = index
        self._location = location
        self._devices = devices
        self._echo = echo
        self._live: dict[str, _Live] = {}
        self._unlisted: dict[str, _Live] = {}  # runs of `_live` whose row is written by the next flush
        self._table = ProcessTable()
        self._batch = index.batch()
        self._batch.__enter__()
        self._over: dict[str, Entry] = {}  # runs that ended since the last flush
        self._ticked_at = 0.0
        self._turn = 0  # index of the run at which the next tick begins
        self._rests_until = 0.0  # end of the time without the index after a failure: each try may take half a minute
        self.failure: str | None = None
        self.listen: Listen | None = None  # called with all points that are read here

    def started(self, entry: Entry) -> None:
        with self._guarded():
            live = _Live(entry, self._location.key(entry.dir), time.time())
            live.counts = build_counts(entry.dir, entry.attempt)
            live.next_reading = live.began + READING_S
            self._live[entry.dir] = self._unlisted[entry.dir] = live
            if entry.attempt > 1 or was_set_aside(entry.dir):  # only the log of the new attempt counts
                self._index.forget_points(live.key)
                self._put(entry, live.key, UNREAD)  # if this process dies, the next reader reads the run

    def tick(self, running: Sequence[Entry], now: float) -> None:
        # if the wall clock goes back, the times of the next readings go back as well: no wait gets longer
        back_s, self._ticked_at = self._ticked_at - now, now
        if back_s > 0:
            self._rests_until -= back_s
            for live in self._live.values():
                live.began -= back_s
                live.next_reading -= back_s
        deadline = time.monotonic() + _ATTEND_S
        for count in range(len(running)):
            found = self._live.get(running[(self._turn + count) % len(running)].dir)
            if found is not None:
                # OSError: the directory was removed, or the disk is full
                with contextlib.suppress(OSError), self._guarded():
                    self._attend(found, now)
            if time.monotonic() >= deadline:
                self._turn = (self._turn + count + 1) % len(running)
                break
        if now >= self._rests_until:
            self.flush()

    def _attend(self, live: _Live, now: float) -> None:
        self._pass_output_on(live)
        if now >= live.next_reading:
            self._take_reading(live, now)
        if now - live.began >= 0.5 and now >= self._rests_until:  # a run of milliseconds is read once, when it ends
            self._follow_new(live, None)
            for follower in live.followers.values():
                follower.read(self._index)

    def usage(self, entry: Entry) -> Usage | None:
        live = self._live.get(entry.dir)
        reading, handle = live.last_reading if live else None, entry.handle
        if reading is None and handle is not None and handle.executor != "local":
            lines = read_end(os.path.join(entry.dir, layout.READINGS_FILE), _LINE_BYTES).splitlines()
            last = next(filter(None, map(parse_reading, reversed(lines))), None)
            if last and (handle.attempt == 1 or last.time >= handle.started_at):  # the reading is of this attempt
                reading = last
        return Usage(reading.cpu_s, reading.peak_rss_bytes) if reading else None

    def ended(self, entry: Entry) -> None:
        live = self._live.pop(entry.dir, None)
        self._unlisted.pop(entry.dir, None)  # the row of the running run need not be written
        key = self._location.key(entry.dir)
        if live is not None:
            self._pass_output_on(live)
        stamp = UNREAD
        with contextlib.suppress(OSError), self._guarded():
            read_at = time.time()
            names = os.listdir(entry.dir)
            if live is not None and live.followers:
                _forget_replaced(self._index, key, entry.dir, entry.spec, names)
                self._follow_new(live, names)
                for follower in live.followers.values():
                    follower.read(self._index, final=True)
            else:
                read_sources(self._index, key, entry.dir, entry.spec, names, listen=self.listen)
            stamp = _choose_stamp(entry, read_at)
        with contextlib.suppress(OSError), self._guarded():
            self._put(entry, key, stamp)
        self._over[key] = entry

    def flush(self) -> None:
        """Write the waiting rows and points. Ended runs whose points another supervisor stored first are read again."""
        for run_dir, live in list(self._unlisted.items()):
            with contextlib.suppress(OSError), self._guarded():
                self._put(live.entry, live.key, time.time())
            del self._unlisted[run_dir]
        with contextlib.suppress(OSError), self._guarded():
            for _ in range(_FLUSHES):
                refused = {key for key, _ in self._index.flush()} & self._over.keys()
                self._over = {key: self._over[key] for key in refused}
                if not refused:
                    break
                for key, entry in self._over.items():
                    self._put(entry, key, UNREAD)  # UNREAD until the points of the run are read
                for key, entry in self._over.items():
                    read_at = time.time()
                    read_sources(self._index, key, entry.dir, entry.spec)
                    self._put(entry, key, _choose_stamp(entry, read_at))
            self.failure = None

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Suppress errors of the index, so that no run stops; `failure`, the last error, is reported at the end."""
        try:
            yield
        except FormatError:  # run.json was damaged during the run: the next reader lists the run as damaged
            pass
        except InfrastructureError as error:
            self.failure = f"{error.message}; the runs themselves are complete"
            self._rests_until = time.time() + _REST_S

    def last_values(self, entry: Entry) -> Mapping[str, tuple[float, float]]:
        """Return the newest step and value of each metric of a run that has not ended, for the live view."""
        live = self._live.get(entry.dir)
        merged: dict[str, tuple[float, float]] = {}
        for follower in live.followers.values() if live else ():
            merged.update(follower.last)
        return merged

    def load_summaries(self, entries: Sequence[Entry]) -> dict[str, dict[str, Summary]]:
        """Return the metrics of ended runs by directory; an empty dict while the index is unused after a failure."""
        keys = {self._location.key(entry.dir): entry.dir for entry in entries}
        if time.time() >= self._rests_until:
            with contextlib.suppress(OSError), self._guarded():
                return {keys[key]: found for key, found in self._index.load_summaries(keys=list(keys)).items()}
        return {}

    def _put(self, entry: Entry, key: str, stamp: float) -> None:
        if entry.record is None:
            entry.record = run_directory.load_record(entry.dir)
        marks, ends = load_marks(find_tags_file(entry.dir)), (entry.state, entry.attempt, entry.outcome, entry.handle)
        self._index.put_runs([build_row(entry.spec, entry.record, entry.dir, key, *ends, stamp, marks)])

    def _follow_new(self, live: _Live, names: Sequence[str] | None) -> None:
        sources = find_sources(live.entry.dir, live.entry.spec, names, chain=live.chain)
        if live.chain.has_moved(sources) and forget_uncut(self._index, live.key, sources):
            live.followers.clear()
        for source in sources:
            if source.name not in live.followers:
                follower = Follower(self._index, live.key, live.entry.dir, source, self.listen, live.counts)
                live.followers[source.name] = follower

    def _take_reading(self, live: _Live, now: float) -> None:
        handle = live.entry.handle
        if handle is None or handle.executor != "local" or not handle.supervisor_pid:  # job.sh takes its own readings
            return
        if live.sampler is None:
            live.sampler = TreeSampler(handle.pid, handle.tag, start=handle.start, table=self._table)
        live.next_reading = now + READING_S
        gpus = [int(part) for part in (handle.slot or "").split(",") if part.isdigit()]
        reading = live.sampler.sample(now, self._devices.read(gpus) if gpus else None)
        if reading is None:
            return
        live.last_reading = reading
        with open(os.path.join(live.entry.dir, layout.READINGS_FILE), "a", encoding="ascii") as file:
            file.write(render_reading(reading))

    def _pass_output_on(self, live: _Live) -> None:
        """Copy the run's output to `echo`. If that stream was closed, the index is still filled."""
        if self._echo is None:
            return
        try:
            if live.echo is None:
                template, command = live.entry.spec.log_name, live.entry.commands[0]
                names = os.listdir(live.entry.dir)
                if "{suffix}" in template:  # the folder also has the logs of earlier attempts
                    own = layout.log_name(template, command, live.entry.attempt, "")
                    names = [name for name in names if name == own]
                name = layout.find_log(names, template, command)
                if name is None:
                    return
                live.echo = Tail(os.path.join(live.entry.dir, name))
            while data := live.echo.read():
                self._echo(data)
        except BrokenPipeError:
            self._echo = None
        except OSError:  # the log cannot be read, or the terminal is gone
            pass
