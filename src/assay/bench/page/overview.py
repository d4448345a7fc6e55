"""The list of all benchmarks for the page, which is shown at once, while a thread judges the benchmarks.

The content of the index is shown immediately; a benchmark that is not judged yet is marked, and no verdict is guessed.
A judgement is cached by its input (the executions, and their triage): in memory, and in a file of the study, so that
the next `assay serve` uses it too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from assay.bench.flow.archive import PARAMETERS, load_rows
from assay.bench.flow.history import HistoryOptions, build_history
from assay.bench.records import Triage, load_triage
from assay.bench.report.executions import render_values
from assay.bench.values.comparison import MetricHistory, MetricSeries
from assay.bench.values.execution import BenchExecution, group_by, order_metrics
from assay.errors import AssayError, UsageError
from assay.follow.api import StudyLocation
from assay.record.formats import Format, read_versioned, render_versioned
from assay.record.index.base import RunRow
from assay.show.console import CollectingConsole
from assay.system.fast_dataclasses import dataclass, field
from assay.system.files import write_atomic
from assay.values import layout
from assay.values.plain import build_plain, parse_plain
from assay.values.verdict import SEVERITY, VerdictKind

JUDGED_FILE = "bench-judged.json"  # in the study's folder .assay
FORMATS = {"judged benchmarks": Format(1, "delete the file: the page judges again")}
FIRST = ("wall_time", "throughput", "full_model.run_s", "full_model.compile_s")
_METHOD = b"5"  # raise this number when the judgement of histories changes, to invalidate cached judgements
_MOST_POINTS = 60  # the most points of a small chart's line
_SAVED_S = 5.0
_PATIENCE_S = 0.3  # seconds that a request waits for benchmarks that are judged quickly


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """A change of a metric, with the fields that lists show."""

    metric: str
    execution_id: str
    at: float | None
    effect: float
    kind: VerdictKind  # kind of the finding on this change
    is_worse: bool
    holds: bool
    cause: str
    commits: tuple[str, str]
    judgement: str = ""

    @property
    def is_open(self) -> bool:
        """Whether the change keeps the verdict from being PASS, and is not triaged."""
        return self.kind is not VerdictKind.PASS and not self.judgement


@dataclass(frozen=True, slots=True)
class Level:
    """The current level of the first metric in one environment: the median since its last change."""

    environment: str  # what distinguishes this environment from the others
    value: float


@dataclass(frozen=True, slots=True)
class JudgedBenchmark:
    """The verdicts of a benchmark's metrics, and the history of the metric with the worst verdict. `kind` None: no
    metric has a history; `problem` is the reason."""

    metrics: tuple[str, ...]
    kinds: Mapping[str, VerdictKind]  # verdicts of the metrics that have a history
    shown: str  # the metric with the worst verdict
    last: str  # the last value of `shown`
    problem: str = ""
    line: str = ""  # the points of a small chart of the newest environment's values
    levels: tuple[Level, ...] = ()  # levels of the first metric in each environment and label
    parameters: Mapping[str, str] = field(default_factory=dict)  # name → value, if the tool reported parameters
    changes: tuple[ChangeLine, ...] = ()  # changes of all metrics, the oldest first
    notes: tuple[str, ...] = ()  # notes about executions that cannot be read

    @property
    def kind(self) -> VerdictKind | None:
        return self.kinds.get(self.shown)

    @property
    def first(self) -> str:
        return self.metrics[0] if self.metrics else ""

    @property
    def latest(self) -> ChangeLine | None:
        """The last change of the metric `shown` that still holds."""
        mine = [change for change in self.changes if change.metric == self.shown and change.holds]
        return mine[-1] if mine else None

    @property
    def others(self) -> str:
        """The verdicts of the other metrics: `2 INCONCLUSIVE, 1 PASS`."""
        found = [self.kinds.get(name) for name in self.metrics if name != self.shown]
        words = [(kind, str(kind)) for kind in SEVERITY] + [(None, "without a history")]
        return ", ".join(f"{found.count(kind)} {word}" for kind, word in words if kind in found)


@dataclass(frozen=True, slots=True)
class BenchmarkRows:
    """The executions of one benchmark in the index. `mark` changes when an execution is added or changes."""

    method: str
    rows: tuple[RunRow, ...]
    mark: str
    at: float  # start of the newest execution


@dataclass(frozen=True, slots=True)
class BenchLine:
    """A benchmark in the list. `judged` is None until it is judged."""

    method: str
    suite: str
    name: str  # the name without the suite
    count: int
    at: float
    judged: JudgedBenchmark | None

    @property
    def kind(self) -> VerdictKind | None:
        return self.judged.kind if self.judged else None

    @property
    def change(self) -> float:
        """The sort key by changes: open changes, which are not triaged, first, then by size."""
        if self.judged is None:
            return -1.0
        return max((abs(each.effect) + 1e6 * each.is_open for each in self.judged.changes if each.holds), default=0.0)


@dataclass(frozen=True, slots=True)
class TopChange:
    """The largest change of a metric at one commit, and how many other changes the benchmark has at that commit."""

    method: str
    change: ChangeLine
    others: int = 0  # changes with other parameters, and in other environments


@dataclass(frozen=True, slots=True)
class Overview:
    lines: tuple[BenchLine, ...]
    waiting: int  # benchmarks that are not judged yet
    problems: tuple[str, ...]

    @property
    def suites(self) -> list[str]:
        return sorted({line.suite for line in self.lines})


def group_rows(rows: Sequence[RunRow]) -> dict[str, BenchmarkRows]:
    """Group the rows by benchmark, without executions that have not ended."""
    ended = [row for row in rows if row.state.is_over and str(row.params.get("method", ""))]
    groups = {}
    for method, mine in sorted(group_by(ended, lambda row: str(row.params["method"])).items()):
        digest = hashlib.blake2b(_METHOD, digest_size=12)
        for row in mine:
            digest.update(f"{row.key}\0{row.stamp}\0".encode("utf-8", "replace"))
        at = max(row.started_at or row.created_at or 0.0 for row in mine)
        groups[method] = BenchmarkRows(method, tuple(mine), digest.hexdigest(), at)
    return groups


def split_name(method: str) -> tuple[str, str, str]:
    """Split a name into suite, name, and parameters in brackets: `io.Readers`, `time_csv`, `(10, 'utf-8')`."""
    match = PARAMETERS.search(method)
    bare = method[: match.start()] if match else method
    suite, _, name = bare.rpartition("::" if "::" in bare else ".")
    return suite, name, match[0] if match else ""


# ---------------------------------------------------------------- the thread


class Judge:
    """Judges the benchmarks of one archive in a thread, which runs while there are benchmarks to judge."""

    def __init__(self, location: StudyLocation) -> None:
        self.location = location
        self._path = os.path.join(location.dir, layout.STUDY_META_DIR, JUDGED_FILE)
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._known: dict[str, tuple[str, JudgedBenchmark]] = self._load()
        self._wanted: dict[str, tuple[BenchmarkRows, str, tuple[Triage, ...]]] = {}
        self._thread: threading.Thread | None = None

    def ask(self, groups: Mapping[str, BenchmarkRows], patience_s: float | None) -> dict[str, JudgedBenchmark]:
        """Return the benchmarks that are judged within `patience_s` (None: all), by method; later calls return more."""
        triages = group_by(load_triage(self.location.dir), lambda each: each.method)
        wanted = {}
        for method, group in groups.items():
            mine = tuple(triages.get(method, ()))
            mark = f"{group.mark}-{_digest(repr(mine))}" if mine else group.mark
            wanted[method] = (group, mark, mine)
        with self._lock:
            self._wanted = {name: each for name, each in wanted.items() if self._get(name, each[1]) is None}
            if self._wanted and self._thread is None:
                self._done.clear()
                self._thread = threading.Thread(target=self._work, name="assay-judge", daemon=True)
                self._thread.start()
        if self._wanted:
            self._done.wait(patience_s)
        found = ((name, self._get(name, mark)) for name, (_, mark, _) in wanted.items())
        return {name: judged for name, judged in found if judged is not None}

    def _get(self, method: str, mark: str) -> JudgedBenchmark | None:
        known = self._known.get(method)
        return known[1] if known and known[0] == mark else None

    def _work(self) -> None:
        saved_at = time.monotonic()
        while True:
            with self._lock:
                method = next(iter(self._wanted), None)
                if method is None:
                    self._save()
                    self._thread = None
                    self._done.set()
                    return
                group, mark, triages = self._wanted[method]
            try:
                judged = judge_group(self.location, group, triages)
            except Exception as error:  # noqa: BLE001 (one that cannot be judged must not stop the others)
                judged = JudgedBenchmark((), {}, "", "", f"it cannot be judged: {type(error).__name__}: {error}")
            with self._lock:
                self._known[method] = (mark, judged)
                if self._wanted.get(method, (None, ""))[1] == mark:
                    del self._wanted[method]
                if time.monotonic() - saved_at > _SAVED_S:
                    self._save()
                    saved_at = time.monotonic()

    def _load(self) -> dict[str, tuple[str, JudgedBenchmark]]:
        """Load the cached judgements; an invalid or missing file gives none."""
        with suppress(AssayError, OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
            with open(self._path, "rb") as file:
                content = read_versioned(file.read(), "judged benchmarks", self._path, FORMATS)
            if content["sum"] == _digest(json.dumps(content["judged"])):  # else another program has changed the file
                return {
                    name: (mark, parse_plain(JudgedBenchmark, each)) for name, (mark, each) in content["judged"].items()
                }
        return {}

    def _save(self) -> None:
        judged = {name: (mark, build_plain(each)) for name, (mark, each) in self._known.items()}
        content = {"sum": _digest(json.dumps(judged)), "judged": judged}
        with suppress(OSError):  # a read-only folder, or a full disk: the next server judges again
            write_atomic(self._path, render_versioned(content, "judged benchmarks", FORMATS))


_JUDGES: dict[StudyLocation, Judge] = {}
_MAKING = threading.Lock()


def find_judge(location: StudyLocation) -> Judge:
    with _MAKING:
        if location not in _JUDGES:
            _JUDGES[location] = Judge(location)
        return _JUDGES[location]


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


# ---------------------------------------------------------------- one benchmark


def judge_group(location: StudyLocation, group: BenchmarkRows, triages: Sequence[Triage]) -> JudgedBenchmark:
    console = CollectingConsole()
    executions = load_rows(location, group.rows, console)
    metrics = list_metrics(executions)
    tried = {name: try_history(group.method, name, executions, triages) for name in metrics or [""]}
    found = {name: history for name, (history, _) in tried.items() if history}
    # a metric with every execution disturbed has no verdict of its own, next to metrics that have one
    kinds = {name: history.verdict.kind for name, history in found.items() if history.series}
    kinds = kinds or {name: history.verdict.kind for name, history in found.items()}
    shown = min(kinds, key=lambda name: SEVERITY.index(kinds[name]), default=next(iter(tried)))
    values = [each.numbers[shown] for each in executions if shown in each.numbers]
    changes = [line for each in found.values() for line in _list_changes(each)]
    changes.sort(key=lambda change: change.at or 0.0)
    drawn = (found[shown].series or found[shown].aside) if found else ()
    newest = max(drawn, key=lambda each: each.points[-1].at or 0.0, default=None)
    first = found.get(metrics[0]) if metrics else None
    known = executions[-1].extra.get("parameters") if executions else None
    parameters = {str(name): str(value) for name, value in known.items()} if isinstance(known, Mapping) else {}
    line = draw_line([point.value for point in newest.points]) if newest else ""
    return JudgedBenchmark(
        tuple(metrics), kinds, shown, render_values(shown, values[-1:]) or "", "" if found else tried[shown][1], line,
        tuple(_list_levels(first)) if first else (), parameters, tuple(changes), tuple(console.lines),
    )  # fmt: skip


def _list_changes(history: MetricHistory) -> Iterator[ChangeLine]:
    for change, finding in zip(history.changes, history.verdict.findings, strict=False):
        commits = (change.commits[0] or "", change.commits[1] or "")
        yield ChangeLine(
            history.metric, change.execution_id, change.at, change.step.effect, finding.kind, change.is_worse,
            change.holds, change.cause, commits, change.judgement,
        )  # fmt: skip


def _list_levels(history: MetricHistory) -> Iterator[Level]:
    for series, name in zip(history.series, name_series(history.series), strict=True):
        begin = max((change.step.at for change in series.changes if change.kind == "step"), default=0)
        yield Level(name, float(f"{statistics.median(point.value for point in series.points[begin:]):.6g}"))


def name_series(series: Sequence[MetricSeries]) -> list[str]:
    """Name each series by its label and by the values that differ between the environments."""
    keys = list(dict.fromkeys(key for each in series for key in each.setup))
    differing = [key for key in keys if len({each.setup.get(key) for each in series}) > 1]
    names = []
    for each in series:
        words = [f"label {each.label}"] if each.label else []
        words += [f"{key} {each.setup[key]}" for key in differing if each.setup.get(key)]
        names.append(", ".join(words) or ("one environment" if len(series) == 1 else "unknown environment"))
    return names


WIDTH, HEIGHT, _EDGE = 120, 24, 3  # size and margin of a small chart


def draw_line(values: Sequence[float]) -> str:
    """Return a line as `x,y x,y`: for many values the smallest and largest of each stretch, so that extremes stay."""
    size = -(-len(values) // (_MOST_POINTS // 2))
    places = list(range(len(values)))
    if size > 2:
        parts = [places[start : start + size] for start in range(0, len(values), size)]
        ends = [(min(part, key=values.__getitem__), max(part, key=values.__getitem__)) for part in parts]
        places = sorted({place for pair in ends for place in pair} | {len(values) - 1})
    low, room = min(values), (max(values) - min(values)) or 1.0
    step = (WIDTH - 2 * _EDGE) / max(1, len(values) - 1)
    high = HEIGHT - 2 * _EDGE
    drawn = ((_EDGE + place * step, _EDGE + high * (1 - (values[place] - low) / room)) for place in places)
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)


def list_metrics(executions: Sequence[BenchExecution]) -> list[str]:
    """List the metrics: metrics of `--metric` or of a report come before metrics that every benchmark has."""
    ordered = order_metrics((name for execution in executions for name in execution.numbers), FIRST)
    asked = {metric.name for execution in executions for metric in execution.result.metrics}
    return sorted(ordered, key=lambda name: name not in asked)


def try_history(
    method: str, metric: str, found: Sequence[BenchExecution], triages: Sequence[Triage], root: str | None = None
) -> tuple[MetricHistory | None, str]:
    """Return the history, or None and why there is none. `root`: the root for the commands that are suggested."""
    if not metric:
        reasons = [each.result.findings[0].message for each in found if each.result.findings]
        return None, f"it has never reported anything: {reasons[-1]}" if reasons else "it has never reported anything"
    try:
        return build_history(method, metric, found, HistoryOptions(root), triages), ""
    except UsageError as error:
        return None, error.message


# ---------------------------------------------------------------- the list


def build_overview(
    location: StudyLocation, groups: Mapping[str, BenchmarkRows], *, is_patient: bool = False
) -> Overview:
    """Build the overview. `is_patient`: wait until everything is judged."""
    judged = find_judge(location).ask(groups, None if is_patient else _PATIENCE_S)
    lines = []
    for method, group in groups.items():
        suite, name, parameters = split_name(method)
        lines.append(BenchLine(method, suite, name + parameters, len(group.rows), group.at, judged.get(method)))
    return Overview(
        tuple(lines),
        len(groups) - len(judged),
        tuple(dict.fromkeys(note for each in judged.values() for note in each.notes)),
    )


@dataclass(frozen=True, slots=True)
class TopChanges:
    """The changes to show: open changes first, then by size."""

    worse: tuple[TopChange, ...]
    better: tuple[TopChange, ...]
    open_count: int


def find_changes(lines: Sequence[BenchLine]) -> TopChanges:
    """Find changes, the largest one for each benchmark (with any parameters), metric and commit."""
    found = [TopChange(line.method, change) for line in lines if line.judged for change in line.judged.changes]
    found.sort(key=lambda each: (not each.change.is_open, not each.change.holds, -abs(each.change.effect)))
    joined: dict[tuple[object, ...], TopChange] = {}
    for each in found:
        change = each.change
        place = change.commits[1] or change.execution_id
        key = (split_name(each.method)[:2], change.metric, place, change.is_worse, change.is_open)
        first = joined.get(key)
        joined[key] = TopChange(first.method, first.change, first.others + 1) if first else each
    changes = joined.values()
    return TopChanges(
        tuple(each for each in changes if each.change.is_worse),
        tuple(each for each in changes if not each.change.is_worse),
        sum(change.is_open for line in lines if line.judged for change in line.judged.changes),
    )


SORTS = ("name", "change", "verdict", "executions", "age")


def choose_lines(overview: Overview, text: str, kind: str, suite: str, sort: str) -> list[BenchLine]:
    """Choose and sort lines. `text`: words that must all be in the name. `kind`: a verdict that a metric has (PASS: all
    metrics with a history have it), `changed` (a change holds), `none` (no history) or `waiting`."""
    words = text.lower().split()
    lines = [
        line
        for line in overview.lines
        if all(word in line.method.lower() for word in words)
        and (not suite or line.suite == suite)
        and (not kind or _is_kind(line, kind))
    ]
    keys: dict[str, Callable[[BenchLine], Any]] = {
        "change": lambda line: -line.change,
        "verdict": lambda line: SEVERITY.index(line.kind) if line.kind else len(SEVERITY) + (line.judged is None),
        "executions": lambda line: -line.count,
        "age": lambda line: -line.at,
    }
    return sorted(lines, key=keys.get(sort, lambda line: (line.suite, sort_naturally(line.name))))


def sort_naturally(text: str) -> list[tuple[int, float, str]]:
    """Return a sort key with numbers by their size: `time_x(20)` before `time_x(100)`."""
    parts = re.split(r"(\d+)", text)
    return [(0, float(part), "") if part.isdecimal() else (1, 0.0, part) for part in parts if part]


def _is_kind(line: BenchLine, kind: str) -> bool:
    if line.judged is None:
        return kind == "waiting"
    if kind == "changed":
        return any(change.holds for change in line.judged.changes)
    if line.judged.kind is None or kind == VerdictKind.PASS:
        return kind == (line.judged.kind or "none")
    return kind in line.judged.kinds.values()
