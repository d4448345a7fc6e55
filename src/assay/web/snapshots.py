"""The tables of studies in memory, read again after changes. Requests do not wait for folders to be compared.

One thread keeps all tables current: it compares a study that was requested in the last minutes with its directories
once a second while runs are running, else every few seconds. Sorting and filtering work on the columns of the tables.
"""

from __future__ import annotations

import gc
import itertools
import math
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

from assay.errors import AssayError, NotFoundError
from assay.follow.api import StudyLocation, apply_changes, find_studies, open_index, refresh_root
from assay.reading.api import KeptTable, remember
from assay.record.folders import find_changes
from assay.record.index.base import IndexTable, StudyRow
from assay.record.index.stored import Index
from assay.record.run_directory import load_planned
from assay.show.console import CollectingConsole
from assay.values.state import State

T = TypeVar("T")
_MOST_CELLS = 4_000_000  # numbers held in memory: about 32 MB, and as much again for parameters
_MOST_BYTES = 16 << 20  # bytes of encoded answers that are kept
_MANY_ROWS = 2000
_MOST_READING = 2  # threads that read series at once: they share one core, and a million points take tens of MB
_LISTED_S = 2.0
_NAMES_S = 1.5  # time after which the thread lists the names of studies again
_OLD_NAMES_S = 4.0  # age from which a request lists the names of studies itself, as the thread is busy
_NEW_S = 0.2  # age from which a request of an unknown study, which may be new, lists the names again
_RUNNING_S, _RESTING_S, _WATCHED_S = 1.0, 5.0, 120.0
_OLD_S = 3 * _RESTING_S  # a snapshot whose last check is longer ago is refreshed before it is shown


@dataclass(frozen=True, slots=True)
class StudySnapshot:
    """The state of a study when it was read. `version` grows with each change."""

    slug: str
    location: StudyLocation
    table: IndexTable
    version: int
    problems: tuple[str, ...] = ()  # reasons why parts of the study could not be read
    planned: int = 0  # runs that have no directory yet: counted as queued, and not in the table

    @property
    def counts(self) -> Counter[State]:
        """Return the number of runs in each state, as `assay ls` counts them."""

        states = map(attrgetter("state"), self.table.rows)
        return self.remember("counts", lambda: Counter(states) + Counter({State.QUEUED: self.planned}))

    @property
    def is_running(self) -> bool:
        return any(not state.is_over for state in self.counts)

    def get_row(self, run: str) -> int:
        """Return the index of a run by its name; raise NotFoundError with suggestions."""
        known = self.remember("rows", lambda: {row.folder: i for i, row in enumerate(self.table.rows)})
        if run not in known:
            raise NotFoundError("run", run, list(known))
        return known[run]

    def remember(self, what: Hashable, make: Callable[[], T]) -> T:
        """Return a value that is computed from the table once for all readers."""
        return remember(self.table, what, make)


@dataclass(slots=True)
class _Held:
    snapshot: StudySnapshot
    checked_at: float
    asked_at: float

    def is_due(self, now: float) -> bool:
        pause = _RUNNING_S if self.snapshot.is_running else _RESTING_S
        return now - self.checked_at >= pause and now - self.asked_at < _WATCHED_S

    @property
    def cells(self) -> int:
        return len(self.snapshot.table.rows) * (11 * len(self.snapshot.table.metrics) + 30)


class Snapshots:
    def __init__(self, roots: tuple[str, ...]) -> None:
        self.roots = roots
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._lock = threading.Lock()
        self._listing = threading.Lock()
        self._listed: tuple[float, dict[str, tuple[StudyLocation, StudyRow]]] = (-math.inf, {})
        self._naming = threading.Lock()
        self._named: tuple[float, Mapping[str, StudyLocation]] = (-math.inf, {})
        self._asked_at = -math.inf
        self._loading: dict[str, threading.Lock] = {}
        self._versions = itertools.count(1)  # no version is used twice, even after a study was dropped from memory
        self._answers: OrderedDict[Hashable, bytes] = OrderedDict()
        self._threads = threading.local()
        self._places = threading.BoundedSemaphore(_MOST_READING)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="assay-refresh", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_ending(self) -> bool:
        return self._is_closed.is_set()

    def end(self) -> None:
        """Stop refreshing studies, and end the event streams."""
        self._is_closed.set()

    def close(self) -> None:
        self.end()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    # ---------------------------------------------------------------- names

    def find_locations(self, at_most_s: float | None = None) -> Mapping[str, StudyLocation]:
        """Return each study by its name in addresses (`name~2` for the second root that has a study of this name). The
        result is at most `at_most_s` old, by default some seconds."""
        self._asked_at = time.monotonic()
        return self._name_studies(_OLD_NAMES_S if at_most_s is None else at_most_s)

    def _name_studies(self, at_most_s: float) -> Mapping[str, StudyLocation]:
        with self._naming:
            at, known = self._named
            if time.monotonic() - at >= at_most_s:
                found: dict[str, StudyLocation] = {}
                for location in (StudyLocation(root, name) for root in self.roots for name in find_studies(root)):
                    slug, number = location.name, 2
                    while slug in found:
                        slug, number = f"{location.name}~{number}", number + 1
                    found[slug] = location
                known = found
                self._named = (time.monotonic(), known)
            return known

    def find_missing_roots(self) -> list[str]:
        return [root for root in self.roots if not os.path.isdir(root)]

    def locate(self, slug: str, at_most_s: float | None = None) -> StudyLocation:
        """Return the current location of a study; raise NotFoundError with suggestions."""
        known = self.find_locations(at_most_s)
        if slug not in known:
            known = self.find_locations(_NEW_S)
        if slug not in known:
            missing = ", ".join(self.find_missing_roots())
            raise NotFoundError("study", slug, list(known), f"the folder {missing} is not there" if missing else None)
        return known[slug]

    # ---------------------------------------------------------------- reading

    def load_studies(self) -> dict[str, tuple[StudyLocation, StudyRow]]:
        """Return every study with its counts, which are at most two seconds old."""
        with self._listing:
            at, known = self._listed
            if time.monotonic() - at > _LISTED_S:
                known = self._list_studies()
                self._listed = (time.monotonic(), known)
            return known

    def _list_studies(self) -> dict[str, tuple[StudyLocation, StudyRow]]:
        counted: dict[StudyLocation, StudyRow] = {}
        for root in self.roots:
            with self.open_index(root) as index:
                refresh_root(index, root)
                counted |= {StudyLocation(root, row.name): row for row in index.load_studies()}
        found = {}
        for slug, location in self.find_locations(0.0).items():
            row = counted.get(location, StudyRow(location.name, {}, None))
            if planned := len(load_planned(location.dir)):
                row = row._replace(counts={**row.counts, State.QUEUED: row.counts.get(State.QUEUED, 0) + planned})
            found[slug] = (location, row)
        return found

    def load(self, slug: str) -> StudySnapshot:
        """Return the snapshot of a study; read the study if it is not in memory or was not checked for a while."""
        location, now = self.locate(slug), time.monotonic()
        with self._lock:
            held = self._get_held(slug, location)
            if held is not None:
                held.asked_at = now
                self._held.move_to_end(slug)
                if now - held.checked_at < _OLD_S:
                    return held.snapshot
            loading = self._loading.setdefault(slug, threading.Lock())
        if held is not None:
            snapshot = self._refresh(held.snapshot, _OLD_S)
            if snapshot.table.rows or os.path.isdir(location.dir):
                return snapshot
            location = self.locate(slug, 0.0)  # the study was deleted
        with loading:
            with self._lock:
                held = self._get_held(slug, location)
                if held is not None:
                    return held.snapshot
            snapshot = self._read(slug, location, None)
            self._keep(snapshot, now)
            return snapshot

    def _get_held(self, slug: str, location: StudyLocation) -> _Held | None:
        """Return the entry of `slug` in memory if it is the study at `location`."""
        held = self._held.get(slug)
        return held if held is not None and held.snapshot.location == location else None

    def peek(self, slug: str) -> StudySnapshot | None:
        """Return the newest snapshot without waiting, or None if it is not in memory."""
        with self._lock:
            held = self._held.get(slug)
            return held.snapshot if held else None

    def answer(self, snapshot: StudySnapshot, what: Hashable, make: Callable[[], bytes]) -> bytes:
        """Return encoded bytes, which are kept for this version of the study; the least recently used are dropped."""
        key = (snapshot.slug, snapshot.version, what)
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
        made = make()
        with self._lock:
            self._answers[key] = made
            size = sum(map(len, self._answers.values()))
            while size > _MOST_BYTES:
                size -= len(self._answers.popitem(last=False)[1])
        return made

    @contextmanager
    def read_points(self, root: str) -> Iterator[Index]:
        """Open the index for reading whole series, in at most `_MOST_READING` threads at once, to limit the memory."""
        with self._places, self.open_index(root) as index:
            yield index

    @contextmanager
    def open_index(self, root: str) -> Iterator[Index]:
        """Yield the index of the root: each thread has a handle of its own, which stays open."""
        indexes: dict[str, Index] = self._threads.__dict__.setdefault("indexes", {})
        if root in indexes and not indexes[root].is_there():
            with suppress(AssayError):
                indexes.pop(root).close()
        if root not in indexes:
            indexes[root] = open_index(root)
        try:
            yield indexes[root]
        except AssayError:
            with suppress(AssayError):
                indexes.pop(root).close()
            raise

    def refresh(self, slug: str) -> StudySnapshot:
        """Read the study again after an action, so that the answer shows the action's effect."""
        self.locate(slug, 0.0)  # an action may have made a study that now has this name
        return self._refresh(self.load(slug))

    # ---------------------------------------------------------------- the refreshing thread

    def _look_after(self) -> None:
        while not self._is_closed.wait(0.25):
            now = time.monotonic()
            if now - self._asked_at < _WATCHED_S:
                self._look_at_names()
            with self._lock:
                due = [held.snapshot for held in self._held.values() if held.is_due(now)]
            for snapshot in due:
                if self._is_closed.is_set():
                    return
                self._refresh(snapshot)

    def _look_at_names(self) -> None:
        with suppress(OSError):  # requests report a folder that cannot be read
            known = self._name_studies(_NAMES_S)
            with self._lock:
                for slug in [slug for slug, held in self._held.items() if known.get(slug) != held.snapshot.location]:
                    del self._held[slug]

    def _refresh(self, before: StudySnapshot, at_most_s: float = 0.0) -> StudySnapshot:
        """Read the study again, unless another thread has done so within the last `at_most_s`."""
        with self._loading.setdefault(before.slug, threading.Lock()):
            with self._lock:
                held = self._get_held(before.slug, before.location)
                if held is not None and time.monotonic() - held.checked_at < at_most_s:
                    return held.snapshot
            after = self._read(before.slug, before.location, before)
            with self._lock:
                held = self._get_held(before.slug, before.location)
                if held is not None:
                    held.checked_at = time.monotonic()
                    held.snapshot = after
        return after

    def _read(self, slug: str, location: StudyLocation, before: StudySnapshot | None) -> StudySnapshot:
        console = CollectingConsole()
        try:
            with self.open_index(location.root) as index:
                is_known = before and (not before.table.rows or index.load_runs(keys=[before.table.rows[0].key]))
                table = before.table if before and is_known else index.load_table([location.name])  # a new index
                changes = find_changes(location.dir, location.name, table.rows)
                if changes:
                    apply_changes(index, location, changes, console)
                planned = len(load_planned(location.dir))
                is_same_plan = before is not None and planned == before.planned
                if before and is_same_plan and not changes:
                    return before
                table = index.load_table([location.name]) if changes else table
                if before and is_same_plan and table == before.table and not console.lines:
                    return before  # runs are running, and nothing has changed
        except Exception as error:  # noqa: BLE001 the thread must go on with other studies
            problem = f"a bug in Assay: {type(error).__name__}: {error}"
            if isinstance(error, AssayError | OSError):
                problem = error.message if isinstance(error, AssayError) else str(error)
            if before is not None and problem in before.problems:
                return before
            console.lines.append(problem)
            table, planned = (before.table, before.planned) if before else (IndexTable([], {}), 0)
        return StudySnapshot(slug, location, KeptTable.of(table), next(self._versions), tuple(console.lines), planned)

    def holds(self, slug: str) -> bool:
        """Return whether a current snapshot is in memory, so that loading it takes no time."""
        with self._lock:
            named_at, known = self._named
            held = self._get_held(slug, known[slug]) if slug in known else None
            now = time.monotonic()
            return held is not None and now - held.checked_at < _OLD_S and now - named_at < _OLD_NAMES_S

    def _keep(self, snapshot: StudySnapshot, now: float) -> None:
        if len(snapshot.table.rows) > _MANY_ROWS:
            gc.collect()  # the garbage collector ignores frozen objects
            gc.freeze()  # thousands of rows have no cycles, yet each garbage collection would visit all of them
        with self._lock:
            self._held[snapshot.slug] = _Held(snapshot, time.monotonic(), now)
            cells = sum(held.cells for held in self._held.values())
            while cells > _MOST_CELLS and len(self._held) > 1:  # drop the least recently used study
                cells -= self._held.popitem(last=False)[1].cells
