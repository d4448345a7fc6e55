"""The index: a copy of what the run directories hold, from which tables are read quickly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from assay.system.fast_dataclasses import NamedTuple, dataclass, field

if TYPE_CHECKING:
    from array import array
    from types import TracebackType
    from typing import Self

    from assay.values.series import Summary
    from assay.values.state import State

Columns = tuple[Sequence[float] | None, Sequence[float], Sequence[float] | None]
"""Steps, values and times of one metric, in the order written. None, or a NaN among them: there is none."""

Refused = tuple[str, str]
"""The (key, source) whose points were not written, because another supervisor had been there first."""


class RunRow(NamedTuple):
    """One run as its directory describes it. A named tuple, because ten thousand of them are made for a table."""

    key: str  # the run's directory relative to the root: "<study>/<run>"
    study: str
    name: str
    id: str
    state: State
    attempt: int
    params: Mapping[str, Any]  # JSON-like; a value of another kind comes back as its text
    title: str | None = None
    tag: str | None = None
    created_at: float | None = None  # seconds since the epoch, like every time here
    started_at: float | None = None
    ended_at: float | None = None
    host: str | None = None  # the machine that it ran on; None: a farm has not started it yet
    job: str = ""  # a farm's job, as in "slurm 671_5"
    slot: str | None = None
    exit_code: int | None = None
    reason: str = ""
    code_hash: str | None = None
    commit: str | None = None
    peak_rss_bytes: int | None = None
    cpu_s: float | None = None
    origin: str = "assay"  # or the tool that made the directory
    parent: str | None = None  # key of the run that this one repeats with changes
    trial: int | None = None  # its number in a search
    tags: tuple[str, ...] = ()  # what people gave it, in their order
    note: str = ""  # what people wrote about it
    received: Mapping[str, Any] | None = None  # of a run that came from elsewhere: how, from, by, at, adopted_at
    files: tuple[str, ...] = ()  # of another tool's directory: those that change without a trace in their folder
    stamp: float = 0.0  # the newest modification time seen in the directory when it was read

    @property
    def folder(self) -> str:
        """The name of its directory in that of the study."""
        return self.key.partition("/")[2]

    @property
    def is_foreign(self) -> bool:
        """An upload that was not adopted: listed, and not compared with the study's own runs."""
        return self.received is not None and self.received["how"] == "upload" and "adopted_at" not in self.received

    @property
    def took_s(self) -> float | None:
        """How long the last attempt took; None as long as it runs."""
        return None if self.started_at is None or self.ended_at is None else max(0.0, self.ended_at - self.started_at)

    def elapsed_s(self, now: float) -> float | None:
        """How long the last attempt took, or has taken until now."""
        is_running = self.started_at is not None and self.ended_at is None and not self.state.is_over
        return max(0.0, now - (self.started_at or 0.0)) if is_running else self.took_s


OWN_FIELDS = RunRow._fields[:-2]  # without those that only show whether the directory has changed


class VerdictRow(NamedTuple):
    """One finding of a verdict, as a study's verdict file holds it."""

    key: str | None  # the run that was judged; None: the verdict is about the study
    judged_at: float
    source: str  # what judged: "checks", "golden check", ...
    result: str  # the whole verdict
    kind: str  # this finding
    subject: str
    message: str
    value: float | None = None
    expected: float | None = None
    step: float | None = None
    effect: float | None = None
    interval_low: float | None = None
    interval_high: float | None = None


class StudyRow(NamedTuple):
    name: str
    counts: Mapping[State, int]
    last_activity: float | None  # the newest time that any of its runs carries

    @property
    def runs(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a file has been read: the offset of its first unread byte, and what the reader must remember."""

    offset: int = 0
    state: Mapping[str, Any] = field(default_factory=dict)


class Series(NamedTuple):
    """One metric of one run, point by point in the order written. A NaN step or time: there is none."""

    steps: array[float]
    values: array[float]
    times: array[float]


class MetricColumns(NamedTuple):
    """The summaries of one metric, column by column; index i belongs to row i of the table.

    A count of 0: the run does not have the metric. A NaN step or time: there is none.
    """

    metric: str
    count: array[float]  # type: ignore[assignment]  # the method of tuples is not used
    bad: array[float]
    last: array[float]
    last_step: array[float]
    min: array[float]
    min_step: array[float]
    max: array[float]
    max_step: array[float]
    mean: array[float]
    first_time: array[float]
    last_time: array[float]


class IndexTable(NamedTuple):
    rows: list[RunRow]
    metrics: dict[str, MetricColumns]


class Database(Protocol):
    """What the statements need of a connection: that of `sqlite3`, or one that behaves like it."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Any: ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Any: ...


class Answer(NamedTuple):
    """What a query found: numbers, texts, bytes and None."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


class Index(ABC):
    """A derived copy of the run directories: it may be lost at any time, and is then built again from them.

    Concurrency rules, which every implementation keeps:

    - Any number of processes may read and write the same index; a handle belongs to one thread of one process
      (open another after a fork). Readers never wait for writers.
    - Each writing call is one transaction: seen whole by others, or not at all.
    - Points are compare-and-set. `add_columns` names the offset at which its reader began; when the stored cursor
      is another one, another supervisor has written those bytes, nothing is stored, and the answer is False.
      The caller then takes `load_cursor` and reads on from there. So no point is ever stored twice.
    - Points of an attempt that another one follows are refused in the transaction that would write them. What
      begins the next attempt publishes its lease first and forgets the points after that, so none of them stays.
    - Inside `batch()` writes wait in memory, holding no lock, until `flush()`, the end of the batch, the next
      `load_*` other than `load_cursor`, or very many of them; all that waited is then one transaction. A
      supervisor may stay in one batch for hours and flush five times a second.
    - Inside a batch, True from `add_columns` means "accepted": the stored cursor is compared when it is written, and
      what is stale by then is dropped and named by `flush()` and in the list that `batch()` gave. A caller that
      does not look there gets False from its next `add_columns` for that source, until it takes `load_cursor`.
    - Each accepted call is a fact about a directory, right by itself. So a batch that ends with an exception is
      written like any other, and nothing is undone.
    - A reader in the same handle sees what it has written, flushed or not.
    - When writing fails (disk full, locked for too long) an InfrastructureError is raised. What waited in a batch
      keeps waiting for the next flush; outside a batch it is dropped, and the caller may call again.
    """

    was_reset: bool = False  # an unreadable file was set aside: everything is read from the directories again
    reset_reason: str = ""
    is_temporary: bool = False  # nothing is kept beyond this process
    place: str = ""  # where it is, for people; without passwords
    store_points: Callable[[str], None] | None = None  # reads the files of a run of which summaries alone are stored

    # ---------------------------------------------------------------- runs

    @abstractmethod
    def put_runs(self, rows: Iterable[RunRow]) -> None:
        """Insert, or replace what has the same key; its points stay."""

    @abstractmethod
    def load_runs(self, studies: Sequence[str] | None = None, keys: Sequence[str] | None = None) -> list[RunRow]:
        """In the order of creation, then of keys: a rebuild keeps it. None: all; an empty sequence: none."""

    @abstractmethod
    def load_studies(self) -> list[StudyRow]:
        """Return them by name."""

    @abstractmethod
    def forget_runs(self, keys: Iterable[str]) -> None:
        """Remove runs with everything that is known of them."""

    @abstractmethod
    def clear(self) -> None:
        """Remove everything."""

    # ---------------------------------------------------------------- points

    @abstractmethod
    def load_cursor(self, key: str, source: str) -> Cursor:
        """Where to read on. `source` is a file's name inside the run directory."""

    @abstractmethod
    def load_cursors(
        self, source: str, studies: Sequence[str] | None = None, noting: Sequence[str] = ()
    ) -> dict[str, Cursor]:
        """Key → cursor, of every run of which this source has been read: one look instead of thousands. `noting`: only
        where the state holds one of these keys."""

    @abstractmethod
    def add_columns(
        self,
        key: str,
        source: str,
        cursor: Cursor,
        columns: Mapping[str, Columns],
        *,
        expected_offset: int,
        counts: Callable[[], bool] | None = None,
    ) -> bool:
        """Store points, their summaries and the cursor after them, if the stored offset is the expected one.

        `counts` is asked inside the transaction that writes them, while no other one writes: False refuses them. It
        stays False from then on. Arrays are kept, not copied: do not change them afterwards.
        """

    @abstractmethod
    def add_summaries(
        self, key: str, states: Mapping[str, Mapping[str, Any]], summaries: Mapping[str, tuple[bytes, float]]
    ) -> None:
        """Store the summaries of a run's metrics, each as `Tally.carry` gives it, without the points.

        `states`: the sources that they come from, each with what its reader remembers. Their cursors stay at the
        beginning, so the first points that are stored of the run replace all this. Refused, with "" as the source, for
        a run of which points are stored.
        """

    @abstractmethod
    def find_summarised(self, studies: Sequence[str] | None = None) -> list[str]:
        """The keys of the runs of which summaries are stored, and no points yet."""

    @abstractmethod
    def load_series(self, key: str, metric: str) -> Series:
        """Empty when there is no such run or metric. Points that are not stored yet are read by `store_points`."""

    @abstractmethod
    def forget_points(self, key: str, source: str | None = None) -> None:
        """Remove the points and the cursor of one source, or of all, before they are extracted again.

        In a batch, this and the `add_columns` that follow are one transaction: no reader sees the gap.
        """

    # ---------------------------------------------------------------- summaries

    @abstractmethod
    def load_summaries(
        self, studies: Sequence[str] | None = None, keys: Sequence[str] | None = None
    ) -> dict[str, dict[str, Summary]]:
        """Key → metric → summary; runs without metrics are left out.

        min, max and mean are NaN when not a single value was finite.
        """

    @abstractmethod
    def load_table(self, studies: Sequence[str] | None = None, metrics: Sequence[str] | None = None) -> IndexTable:
        """Runs and summaries column by column: several times faster than objects when there are thousands."""

    @abstractmethod
    def load_metric_names(self, studies: Sequence[str] | None = None) -> list[str]:
        """Return them by name."""

    # ---------------------------------------------------------------- verdicts

    @abstractmethod
    def load_verdict_offset(self, study: str) -> int:
        """How much of the study's verdict file has been read."""

    @abstractmethod
    def add_verdicts(
        self, study: str, rows: Sequence[VerdictRow], *, start: int, end: int, expected_offset: int
    ) -> bool:
        """Store what `start` to `end` of the study's verdict file hold, if the stored offset is the expected one.

        A start of 0 replaces everything that is known of the study: its file was read from the beginning.
        """

    # ---------------------------------------------------------------- for people

    @abstractmethod
    def query(self, statement: str) -> Answer:
        """The answer to one SELECT over the tables and views of `docs/reference/formats-index.md`.

        Raises UsageError for what is not one, would write, is wrong or takes too long.
        """

    @abstractmethod
    def load_size(self) -> int:
        """Return the size in bytes, about."""

    @abstractmethod
    def compact(self) -> None:
        """Give back the room of what was forgotten."""

    def is_there(self) -> bool:
        """False: what this handle reads was deleted or replaced, and another one has to be opened."""
        return True

    # ---------------------------------------------------------------- grouping

    @abstractmethod
    def batch(self) -> AbstractContextManager[list[Refused]]:
        """Let writes wait and go together. Gives a list that fills with what was refused. May be nested."""

    @abstractmethod
    def expect_new(self, keys: Iterable[str]) -> None:
        """In this batch: runs that the index did not know when the caller looked. Their cursors are not asked for one
        by one; where another process has stored some since, that is refused when it is written."""

    @abstractmethod
    def flush(self) -> list[Refused]:
        """Write what waits; what was refused since the last flush."""

    @abstractmethod
    def close(self) -> None:
        """Write what waits and let go. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
