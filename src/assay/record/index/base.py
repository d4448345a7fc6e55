"""The values of an index: rows of runs, columns of metrics, series of points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from assay.system.fast_dataclasses import NamedTuple, dataclass, field

if TYPE_CHECKING:
    from array import array

    from assay.values.state import State

Columns = tuple[Sequence[float] | None, Sequence[float], Sequence[float] | None]
"""Steps, values and times of one metric, in the order written. None, or a NaN among them: there is none."""

Refused = tuple[str, str]
"""The (key, source) whose points were not written, because another supervisor had been there first."""


class RunRow(NamedTuple):
    """One run as its directory describes it. A named tuple, because a table may have ten thousand runs."""

    key: str  # the run's directory relative to the root: "<study>/<run>"
    study: str
    name: str
    id: str
    state: State
    attempt: int
    params: Mapping[str, Any]  # JSON-like; other values are read back as text
    title: str | None = None
    tag: str | None = None
    created_at: float | None = None  # seconds since the epoch, like every time here
    started_at: float | None = None
    ended_at: float | None = None
    host: str | None = None  # the host of the run; None: a farm has not started it yet
    job: str = ""  # the job of a farm, such as "slurm 671_5"
    slot: str | None = None
    exit_code: int | None = None
    reason: str = ""
    code_hash: str | None = None
    commit: str | None = None
    peak_rss_bytes: int | None = None
    cpu_s: float | None = None
    origin: str = "assay"  # "assay", or the tool that made the directory
    parent: str | None = None  # key of the run that this run repeats with changes
    trial: int | None = None  # number of the trial in a search
    tags: tuple[str, ...] = ()  # tags of a user, in their order
    note: str = ""  # notes of a user
    received: Mapping[str, Any] | None = None  # only for a run from elsewhere: how, from, by, at, adopted_at
    cause: str = ""  # cause of the outcome
    files: tuple[str, ...] = ()  # files of another tool's directory that change without changing their folder
    stamp: float = 0.0  # the newest modification time in the directory when it was read

    @property
    def folder(self) -> str:
        """The name of the run's directory in the study."""
        return self.key.partition("/")[2]

    @property
    def is_foreign(self) -> bool:
        """Whether the run is an upload that was not adopted: it is listed, but not compared with other runs."""
        return self.received is not None and self.received["how"] == "upload" and "adopted_at" not in self.received

    @property
    def took_s(self) -> float | None:
        """How long the last attempt took; None while it runs."""
        return None if self.started_at is None or self.ended_at is None else max(0.0, self.ended_at - self.started_at)

    def elapsed_s(self, now: float) -> float | None:
        """Return how long the last attempt took, or has run until now."""
        is_running = self.started_at is not None and self.ended_at is None and not self.state.is_over
        return max(0.0, now - (self.started_at or 0.0)) if is_running else self.took_s


OWN_FIELDS = RunRow._fields[:-3]  # fields that tables show; the others are internal


class VerdictRow(NamedTuple):
    """One finding of a verdict, as in the study's verdict file, with fields of the whole verdict."""

    key: str | None  # the judged run; None: the verdict is about the study
    judged_at: float
    source: str  # the check: "checks", "golden check", ...
    result: str  # result of the whole verdict
    kind: str  # kind of this finding
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
    last_activity: float | None  # the newest time of any run of the study

    @property
    def runs(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a file has been read: the offset of the first unread byte, and the state of the reader."""

    offset: int = 0
    state: Mapping[str, Any] = field(default_factory=dict)


class Series(NamedTuple):
    """The points of one metric of one run, in the order written. A NaN step or time is missing."""

    steps: array[float]
    values: array[float]
    times: array[float]


class MetricColumns(NamedTuple):
    """Summaries of one metric, one per row of a table. Count 0: the run has no such metric. NaN: a missing number."""

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
    """A database connection that executes statements, with the methods of a connection of `sqlite3`."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Any: ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Any: ...


class Answer(NamedTuple):
    """The result of a query: names of columns, and rows of numbers, texts, bytes and None."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
