"""`assay bench history` and `triage`: where a metric changed, by how much, between which commits, and by what cause.

Executions that cannot be compared are never in one series: each label and each environment (processor, accelerator,
driver, framework, versions) has its own series. Where one environment or label follows another, the levels on both
sides are compared, and the change lists what else changed there.
"""

from __future__ import annotations

import getpass
import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import pairwise

from assay.bench.flow.archive import find_location, is_named, load_executions
from assay.bench.judge.changepoint import find_change_points
from assay.bench.judge.environments import (
    attribute_change,
    attribute_move,
    can_load_explain,
    describe_differences,
    describe_loads,
)
from assay.bench.judge.history import (
    FEWEST_MOVED,
    MOST_NEWEST,
    compare_levels,
    compare_medians,
    count_back,
    count_needed,
    describe_few,
    find_alone,
    find_detectable,
    find_newest_step,
    find_trend,
    judge_history,
    may_be_worse,
    separate_newest,
)
from assay.bench.judge.noise import SHORTEST_SERIES
from assay.bench.judge.samples import find_median
from assay.bench.records import Judgement, Triage, add_triage, load_triage
from assay.bench.values.comparison import (
    CONTAMINATED,
    DISTURBED,
    PROFILED,
    REFUSED,
    TAKEN_BY_ALL,
    UNOBSERVED,
    LastingChange,
    LevelStep,
    MetricChange,
    MetricHistory,
    MetricPoint,
    MetricSeries,
)
from assay.bench.values.execution import (
    ASSAY,
    CPU_TIME,
    NOT_OBSERVED,
    WALL_TIME,
    BenchExecution,
    BenchReport,
    group_by,
    is_sensitive,
)
from assay.errors import FormatError, NotFoundError, UsageError, suggest
from assay.judge.statistics import needed_for
from assay.record.run_directory import load_record
from assay.show.console import SILENT, Console
from assay.show.formatting import render_count
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.series import ASV_TRACKED, Direction, direction_of, find_direction
from assay.values.verdict import VerdictKind

LAST = "last"
_MOST_CHANGES = 8  # listed changes
_NEAR = 3  # a change may be found a few executions away from where it was found before
_SIDE = 20  # executions that are compared on each side of a move to another environment
FEWEST = 2
_OPEN = (VerdictKind.INCONCLUSIVE, VerdictKind.CHANGED)
REPORTED = 0.01  # smallest change that is reported without --min-effect
ASSERTED = 0.05  # smallest change that would surely have been found, if the verdict is PASS


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    root: str | None = None
    label: str | None = None
    min_effect: float | None = None  # smaller changes are not reported, and a PASS excludes larger ones
    recent: int | None = None  # only changes within the last N executions of a series raise an alarm
    everything: bool = False  # contaminated and profiled executions count as well
    direction: Direction | None = None
    since: float | None = None  # seconds since the epoch: older executions are ignored

    @property
    def reported(self) -> float:
        return REPORTED if self.min_effect is None else self.min_effect

    @property
    def asserted(self) -> float:
        return ASSERTED if self.min_effect is None else self.min_effect

    def render_command(self, metric: str, method: str) -> str:
        """Return the command that shows this history."""
        given = (("--label", self.label), ("--root", self.root))
        flags = [*(word for flag, value in given if value for word in (flag, value)), *["--all"] * self.everything]
        return shlex.join(["assay", "bench", "history", metric, method, *flags])

    def is_recent(self, at: float | None) -> bool:
        return self.since is None or (at or 0.0) >= self.since


def load_histories(
    metric: str, method: str | None, options: HistoryOptions, console: Console = SILENT
) -> list[MetricHistory]:
    """Load the history of one method, or of every method that reports the metric."""
    location = find_location(options.root)
    executions = [each for each in load_executions(location, method, console) if options.is_recent(each.at)]
    if not executions:
        raise UsageError("no execution is newer than the date of --since", "leave --since out to see all executions")
    meant = [execution for execution in executions if options.label in (None, execution.label)]
    if options.label is not None and not meant:
        raise NotFoundError("label", options.label, sorted({each.label for each in executions if each.label}))
    named = {execution.method for execution in meant if metric in execution.numbers}
    if not named:
        raise NotFoundError("metric", metric, sorted({name for execution in meant for name in execution.numbers}))
    triage = load_triage(location.dir)
    found: list[MetricHistory] = []
    missing: list[UsageError] = []
    for name in sorted(named):
        try:
            found.append(build_history(name, metric, [e for e in executions if e.method == name], options, triage))
        except UsageError as error:
            missing.append(error)
    if len(missing) == 1 and not found:
        raise missing[0]
    if not found:  # each hint is given once
        lines = "".join(f"\n  {error.message}" for error in missing)
        hints = "\n  ".join(dict.fromkeys(error.hint for error in missing if error.hint))
        raise UsageError(f"none of {len(missing)} benchmarks has a history of {metric}{lines}", hints)
    for each in missing:  # a benchmark that has run once must not hide the others
        console.warning(f"{each.message} ({each.hint})")
    for line in _describe_never([e for e in meant if e.method not in named]):
        console.warning(line)
    return found


def parse_date(text: str) -> float | None:
    try:
        return datetime.strptime(text, "%Y-%m-%d").timestamp()  # noqa: DTZ007 as dates are shown: local
    except (ValueError, OverflowError):
        return None


def load_changes(
    metric: str | None, method: str | None, options: HistoryOptions, console: Console
) -> tuple[list[LastingChange], int, int]:
    """Return all lasting changes of every benchmark, oldest first, and the number of judged and of too short histories.
    Levels before `since` are used, but changes before it are left out."""
    location = find_location(options.root)
    executions = load_executions(location, method, console)
    names = {(each.method, name) for each in executions for name in each.numbers if metric in (None, name)}
    if not names:
        raise NotFoundError("metric", metric or "", sorted({name for each in executions for name in each.numbers}))
    triage, judged = load_triage(location.dir), 0
    groups: dict[tuple[str, str], list[tuple[str, MetricChange]]] = {}  # key: benchmark, first execution of the change
    for name, each in sorted(names):
        with suppress(UsageError):  # the history is too short
            history = build_history(name, each, [e for e in executions if e.method == name], options, triage)
            judged += any(len(series.points) >= SHORTEST_SERIES for series in history.series)
            for change in filter(lambda change: options.is_recent(change.at), _list_lasting(history)):
                groups.setdefault((name, change.execution_id), []).append((each, change))
    found = []
    for (name, _), together in groups.items():  # the metric that changed most comes first
        ordered = sorted(together, key=lambda pair: (pair[0] != WALL_TIME, -abs(pair[1].step.effect)))
        found.append(LastingChange(name, tuple(ordered), options.render_command(ordered[0][0], name)))
    found.sort(key=lambda each: (each.first.at or 0.0, each.method))
    return found, judged, len(names) - judged


def _list_lasting(history: MetricHistory) -> Iterator[MetricChange]:
    """List the changes that last: neither a level that was left again, nor the return from it."""
    for number, change in enumerate(history.changes):
        gone = [each.step for each in history.changes[:number] if not each.holds]
        is_return = any(abs(change.step.after - each.before) < abs(each.after - each.before) / 2 for each in gone)
        if change.holds and change.kind != "newest" and not change.too_few and not is_return:
            yield change


def confirm_newest(
    histories: list[MetricHistory], load: Callable[[], list[MetricHistory]], again: Callable[[str, str], BenchReport]
) -> tuple[list[MetricHistory], BenchReport | None]:
    """Execute the open newest executions again, until these are a level of their own or an outlier. Return the new
    histories, and the report of an execution that was interrupted."""
    for _ in range(MOST_NEWEST):
        asked = {history.method: name for history in histories if (name := _find_open(history))}
        for method, name in asked.items():
            report = again(method, name)
            if report.interrupted or report.problem:
                return load(), report
        if not asked:
            break
        histories = load()
    return histories, None


def _find_open(history: MetricHistory) -> str:
    """Return the newest execution if it is an open outlier or does not count; "" if there is nothing to confirm."""
    pairs = zip(history.changes, history.verdict.findings, strict=False)
    found = [change.until for change, finding in pairs if change.kind == "newest" and finding.kind in _OPEN]
    found += [history.doubted[0]] if history.doubted else []
    return found[-1] if found and not history.broken else ""


def _describe_never(executions: Sequence[BenchExecution]) -> Iterator[str]:
    """Describe benchmarks that failed in every execution: they report no metric, and would otherwise be ignored."""
    by_method = {execution.method: execution for execution in executions if not execution.void}
    reported = {execution.method for execution in executions if execution.result.numbers}
    for method, last in by_method.items():
        if method not in reported and last.result.findings:
            yield f"{method} has never reported anything: {last.result.findings[0].message}"


@needed_for("judging the history of a benchmark")
def build_history(
    method: str, metric: str, executions: Sequence[BenchExecution], options: HistoryOptions, triage: Sequence[Triage]
) -> MetricHistory:
    return _MetricJudge(method, metric, executions, options, triage).build()


def render_again(newest: BenchExecution, root: str | None) -> str:
    """Return the command that executes a benchmark of a history again, for its former folder; "" if `assay bench run`
    did not measure it: for an import, or the times of a model."""
    kind: object = "method"
    with suppress(OSError, FormatError):
        kind = load_record(newest.run_dir).spec.params.get("kind") or kind
    if newest.source != ASSAY or kind == "model":
        return ""
    named = ["--command", f"{newest.method}=COMMAND"] if kind == "command" else [newest.method]
    words = ["assay", "bench", "run", *named, "--trials", str(SHORTEST_SERIES)]
    return shlex.join([*words, *(["--root", root] if root else [])])


def advise_all(left_out: Mapping[str, int]) -> str:
    """Return a hint to use `--all`; empty if the option would change nothing."""
    names = [reason for reason in TAKEN_BY_ALL if left_out.get(reason)]
    return f"include {' and '.join(names)} ones: --all" if names else ""


def _advise_confirm(execution: BenchExecution) -> str:
    return "--confirm does" if execution.source == ASSAY else "with the tool that measured it, and import the result"


# ---------------------------------------------------------------- which executions count


def find_doubt(execution: BenchExecution, metric: str, invalid: set[str], everything: bool) -> str | None:
    """Return why a value does not count, or differs from that of an ordinary execution; None if it counts."""
    if execution.execution_id in invalid:
        return "declared invalid"
    if execution.refused:
        return REFUSED
    if everything:
        return None
    if execution.is_profiled:
        return PROFILED
    found = execution.find_disturbance(metric)
    return (UNOBSERVED if found == (NOT_OBSERVED,) else CONTAMINATED) if found else None


def find_invalid(executions: Sequence[BenchExecution], triages: Sequence[Triage]) -> set[str]:
    """Return the executions of invalid changes: up to the last one of the series at the time of the triage."""
    order = {execution.execution_id: index for index, execution in enumerate(executions)}
    found: set[str] = set()
    for each in latest_triage(triages):
        if each.judgement == "invalid" and each.execution_id in order:
            first = order[each.execution_id]
            last = order.get(each.until, first)
            meant = find_series(executions[first])
            found |= {e.execution_id for e in executions[first : last + 1] if find_series(e) == meant}
    return found


def list_invalid(executions: Sequence[BenchExecution], triages: Sequence[Triage]) -> dict[tuple[str, str], set[str]]:
    """Return the invalid executions of every method and metric that was triaged."""
    groups = group_by(triages, lambda each: (each.method, each.metric))
    return {key: find_invalid([e for e in executions if e.method == key[0]], mine) for key, mine in groups.items()}


def find_series(execution: BenchExecution) -> tuple[str | None, str]:
    """Return the series of an execution: its label and environment. Only executions of one series are compared."""
    return execution.label, execution.fingerprint


def latest_triage(triages: Sequence[Triage]) -> list[Triage]:
    """Return the latest triage of each change, in the order in which they were recorded."""
    found: dict[str, Triage] = {}
    for each in triages:
        found.pop(each.execution_id, None)
        found[each.execution_id] = each
    return list(found.values())


# ---------------------------------------------------------------- one metric of one benchmark


class _MetricJudge:
    """The executions of a benchmark, oldest first: which of them count for a metric, and what these show."""

    def __init__(
        self, method: str, metric: str, executions: Sequence[BenchExecution], options: HistoryOptions,
        triage: Sequence[Triage],
    ) -> None:  # fmt: skip
        self.method, self.metric, self.executions, self.options = method, metric, executions, options
        self.direction = options.direction or direction_of(metric)
        self.triages = [each for each in triage if each.method == method and each.metric == metric]
        self.invalid = find_invalid(executions, self.triages)
        self.kept: list[BenchExecution] = []
        self.aside: list[BenchExecution] = []  # disturbed executions, which do not count and are drawn grey
        self.left_out: dict[str, int] = {}  # reason → how many executions do not count
        self.newest: BenchExecution | None = None  # of this history's executions that were not interrupted
        for execution in executions:
            reason = self._why_not(execution)
            if reason is None:
                self.kept.append(execution)
            elif reason:
                self.left_out[reason] = self.left_out.get(reason, 0) + 1
            if reason in DISTURBED:
                self.aside.append(execution)
            is_meant = execution.label == options.label if options.label is not None else not execution.is_compared
            if is_meant and not execution.void:
                self.newest = execution

    def _why_not(self, execution: BenchExecution) -> str | None:
        """Return why an execution does not count; None if it counts; "" if it does not belong to this history."""
        label, numbers = self.options.label, execution.numbers
        if label is not None and execution.label != label:
            return ""
        if execution.void:
            return "" if execution.is_compared else execution.void
        if self.metric not in numbers:
            return ""
        if not math.isfinite(numbers[self.metric]) or not execution.result.is_measured:
            return "failed"
        if execution.is_compared and label is None:
            return "run by compare or bisect (--label names one)"
        return find_doubt(execution, self.metric, self.invalid, self.options.everything)

    def build(self) -> MetricHistory:
        count = len(self.kept)
        if count + len(self.aside) < FEWEST:
            why = "".join(f"; {number} left out: {reason}" for reason, number in self.left_out.items())
            what = f"{self.method} has {render_count(count, 'execution')} with {self.metric}"
            raise UsageError(f"{what}: too few for a history{why}", self._advise())
        # CPU time is judged instead where the load of other processes disturbed the other metrics
        quiet = [each for each in self.aside if CPU_TIME in each.numbers and not each.find_disturbance(CPU_TIME)]
        is_better = len(quiet) >= FEWEST and self.metric != CPU_TIME
        history = MetricHistory(
            self.method,
            self.metric,
            self.direction,
            tuple(map(self._judge_series, group_by(self.kept, find_series).values())),
            tuple(self._find_moves()),
            left_out=self.left_out,
            aside=tuple(map(self._build_series, group_by(self.aside, find_series).values())),
            instead=self.options.render_command(CPU_TIME, self.method) if is_better else "",
            broken=self._describe_newest(),
            doubted=self._find_doubted(),
            guessed=not (self.options.direction or self.metric.startswith(ASV_TRACKED) or find_direction(self.metric)),
        )
        return replace(history, verdict=judge_history(history, self.options.recent, self.options.asserted))

    def _advise(self) -> str:
        """Advise to run the benchmark again, or to include executions that were left out."""
        command = render_again(self.executions[-1], self.options.root) if self.executions else ""
        again = f"run it again: `{command}`" if command else "measure it again, as before"
        spare = sum(self.left_out.get(reason, 0) for reason in TAKEN_BY_ALL)
        if spare and len(self.kept) + spare < FEWEST:
            return f"{again}, when the machine is quiet; or {advise_all(self.left_out)}"
        return advise_all(self.left_out) if spare else again

    def _describe_newest(self) -> str:
        """Describe why the newest execution failed: it reported no value, or it did not succeed in spite of a value."""
        newest, metric = self.newest, self.metric
        if newest is None or newest.execution_id in self.invalid:
            return ""
        value, result = newest.numbers.get(metric), newest.result
        what = f"it did not report {metric}" if value is None else f"it reported {value:g} as {metric}"
        if value is not None and math.isfinite(value):
            if result.succeeded:
                return ""
            what = "it did not succeed"
        reason = result.findings[0].message if result.findings else what
        return f"the newest execution, {newest.execution_id}, failed: {reason}"

    def _find_doubted(self) -> tuple[str, str] | None:
        """Return the newest execution and why it was disturbed, unless another one of the same code counts, or none
        counts at all: an execution that is left out has not passed."""
        newest, kept = self.newest, self.kept
        if newest is None or not kept or any(each.code is not None and each.code == newest.code for each in kept):
            return None
        reason = find_doubt(newest, self.metric, self.invalid, self.options.everything)
        if reason not in (*DISTURBED, REFUSED):
            return None
        return newest.execution_id, f"{reason}; run it again ({_advise_confirm(newest)})"

    def _add_triage(self, change: MetricChange, near: Iterable[str]) -> MetricChange:
        """Add the latest judgement of a change that begins at one of these executions."""
        near_ids = set(near)
        for each in reversed(self.triages):
            if each.execution_id in near_ids:
                judgement = "" if each.judgement == "open" else each.judgement
                return replace(change, judgement=judgement, note=each.note if judgement else "")
        return change

    def _is_worse(self, step: LevelStep) -> bool:
        return step.effect > 0 if self.direction == "min" else step.effect < 0

    # ------------------------------------------------------------ changes within an environment

    def _build_series(self, found: Sequence[BenchExecution]) -> MetricSeries:
        first, name = found[0], self.metric
        points = (
            MetricPoint(e.execution_id, e.numbers[name], e.at, e.commit, e.result.samples.get(name, ())) for e in found
        )
        return MetricSeries(first.label, first.fingerprint, first.setup, tuple(points))

    def _judge_series(self, found: Sequence[BenchExecution]) -> MetricSeries:
        series, options = self._build_series(found), self.options
        values = [point.value for point in series.points]
        steps, newest = separate_newest(values, find_change_points(values))
        quiet = values[: newest.at] if newest and newest.at >= SHORTEST_SERIES else values
        trend = find_trend(quiet, steps)
        known = trend or steps
        newest = find_newest_step(values, trend) if trend else newest
        shown = [step for step in ((trend,) if trend else steps) if _is_reported(step, options.reported)]
        changes = []
        for number, step in enumerate(shown):
            end = shown[number + 1].at if number + 1 < len(shown) else len(found)
            change = self._build_change(found, step, end)
            change = replace(change, kind="trend") if trend else replace(change, holds=_holds(step, shown[-1].after))
            near = found[:1] if trend else found[max(0, step.at - _NEAR) : step.at + _NEAR + 1]
            changes.append(self._add_triage(change, (each.execution_id for each in near)))
        if newest is not None and _is_reported(newest, options.asserted):
            changes.append(self._build_newest(found, newest, count_back(values[newest.at :], newest)))
        visible = find_detectable(quiet, known)
        return replace(
            series,
            changes=tuple(changes),
            detectable=visible and max(visible, options.reported),  # a smaller change is not reported
            needed=count_needed(quiet, options.asserted, known),
            alone=find_alone(quiet, known, options.asserted),
        )

    def _build_newest(self, found: Sequence[BenchExecution], step: LevelStep, back: int) -> MetricChange:
        """Build the change of outlying newest executions, of which `back` are at the old level again."""
        change = self._build_change(found, step, len(found))
        count = len(found) - step.at
        what = "the newest execution is" if count == 1 else f"the {count} newest executions are"
        what += " outlying, too few for a new level"
        if back:
            what = f"of the {count} newest executions {back} {'is' if back == 1 else 'are'} at the old level"
        reason = f"{what}: run it again ({_advise_confirm(found[-1])}); {change.reason}"
        change = replace(change, kind="newest", too_few=count, reason=reason)
        return self._add_triage(change, (each.execution_id for each in found[step.at :]))

    def _build_change(self, found: Sequence[BenchExecution], step: LevelStep, end: int) -> MetricChange:
        """Build a change: a step is between the executions on both sides, a trend between the first and the last."""
        first, last = found[step.at], found[end - 1]
        before, after = (found[step.at - 1], first) if step.at else (first, last)
        cause, reason = attribute_change(before.code, after.code, is_recorded=bool(first.fingerprint))
        worse, cut = self._is_worse(step), step.at or end // 2
        sides = found[max(0, cut - _SIDE) : cut], found[cut:end][:_SIDE]
        loads = [[each.load for each in side] for side in sides]
        is_count = all(len({each.numbers[self.metric] for each in side}) == 1 for side in sides)
        is_open = is_sensitive(self.metric) and not is_count
        if is_open and can_load_explain(step.effect, loads[0], loads[1], is_worse=worse):
            cause, reason = "load", f"{describe_loads(loads[0], loads[1])}, which may be all of it"
        commits = (before.commit, after.commit)
        return MetricChange(
            step, first.execution_id, last.execution_id, first.at, commits, cause, reason, is_worse=worse
        )

    # ------------------------------------------------------------ from one environment or label to the next

    def _find_moves(self) -> Iterator[MetricChange]:
        for found in _list_neighbours(self.kept):
            seen = {find_series(found[0])}
            for index in range(1, len(found)):
                if find_series(found[index]) not in seen:
                    move = self._build_move(found, index)
                    if move is not None and (move.too_few or abs(move.step.effect) >= self.options.reported):
                        yield move
                seen.add(find_series(found[index]))

    def _build_move(self, found: Sequence[BenchExecution], index: int) -> MetricChange | None:
        """Build the move between two levels; None if both levels are known and equal."""
        counts = Counter(find_series(execution) for execution in found[:index])
        known = [execution for execution in found[:index] if counts[find_series(execution)] >= FEWEST_MOVED]
        before, after = (known or found[:index])[-1], found[index]  # `before` is in a series with enough executions
        old = self._collect(found[:index], before)[-_SIDE:]
        new = self._collect(found[index:], after)[:_SIDE]
        few = len(new) if min(len(old), len(new)) < FEWEST_MOVED else 0
        step = compare_medians(old, new, index) if few else compare_levels(old, new, index)
        if step is None and len(new) < SHORTEST_SERIES and self._is_open(old, new):
            few, step = len(new), compare_medians(old, new, index)
        if step is None or few >= SHORTEST_SERIES:  # the new executions are enough for a history of their own
            return None
        what = "label" if before.fingerprint == after.fingerprint else "environment"
        label = (f"label {before.label or 'none'} → {after.label or 'none'}",) if before.label != after.label else ()
        cause, reason = attribute_move(before.code, after.code, what)
        change = MetricChange(
            step=step,
            execution_id=after.execution_id,
            until=[e for e in found if find_series(e) == find_series(after)][-1].execution_id,
            at=after.at,
            commits=(before.commit, after.commit),
            cause=cause,
            reason=f"{describe_few(old, new, what)}; {reason}" if few else reason,
            differences=(*label, *(describe_differences(before.setup, after.setup) if what == "environment" else ())),
            is_worse=self._is_worse(step),
            holds=self._still_holds(found, index, before, step, young=bool(few)),
            too_few=few,
        )
        return self._add_triage(change, (after.execution_id,))

    def _is_open(self, old: Sequence[float], new: Sequence[float]) -> bool:
        """Return whether the new executions, or the newest one, may be worse although no difference is significant."""
        least, newest = self.options.asserted or ASSERTED, find_newest_step([*old, *new], (), 1)
        is_outlying = newest is not None and self._is_worse(newest) and _is_reported(newest, least)
        return is_outlying or may_be_worse(old, new, self.direction, least)

    def _collect(self, found: Sequence[BenchExecution], like: BenchExecution) -> list[float]:
        return [e.numbers[self.metric] for e in found if find_series(e) == find_series(like)]

    def _still_holds(
        self, found: Sequence[BenchExecution], index: int, before: BenchExecution, step: LevelStep, *, young: bool
    ) -> bool:
        """Return False if the old or a third environment has had the old level since: the code is not the cause."""
        after, newest = found[index], found[-1]
        back = self._collect(found[index:], before)[-_SIDE:]
        if back and not _holds(step, find_median(back)):
            return False
        if young or find_series(newest) == find_series(after):  # the old series can no longer be judged
            return find_series(newest) == find_series(after)
        return _holds(step, find_median(self._collect(found[index:], newest)[-_SIDE:]))


def _list_neighbours(executions: Sequence[BenchExecution]) -> Iterator[list[BenchExecution]]:
    """List pairs of series that differ in one thing: those of each label by their environment, then those of each
    environment by their label. A series whose label and environment are both new is compared with the one before it."""
    for label in dict.fromkeys(execution.label for execution in executions):
        yield [execution for execution in executions if execution.label == label]
    for fingerprint in dict.fromkeys(execution.fingerprint for execution in executions):
        yield [execution for execution in executions if execution.fingerprint == fingerprint]
    labels, setups = {e.label for e in executions[:1]}, {e.fingerprint for e in executions[:1]}
    for last, new in pairwise(executions):
        if new.label not in labels and new.fingerprint not in setups:
            yield [e for e in executions if find_series(e) in (find_series(last), find_series(new))]
        labels.add(new.label)
        setups.add(new.fingerprint)


def _is_reported(step: LevelStep, least: float) -> bool:
    return abs(step.effect) >= least * (1 - 1e-9)  # 10 → 10.5 is 5% in spite of rounding errors of the logarithms


def _holds(step: LevelStep, last_level: float) -> bool:
    """Return whether the newest level is still closer to the new side than to the old one."""
    middle = (step.before + step.after) / 2
    return last_level > middle if step.after > step.before else last_level < middle


# ---------------------------------------------------------------- a person's judgement of a change


def triage_change(
    metric: str, method: str, name: str, judgement: Judgement, note: str, root: str | None, everything: bool = False
) -> str:
    """Store the judgement of a change: `name` is its first execution, a commit of its range, or `last`."""
    location = find_location(root)
    meant = None
    if judgement == "open":  # `open` revokes an earlier judgement: `invalid` may have left too few for a history
        triages = [e for e in load_triage(location.dir) if e.metric == metric and is_named(method, e.method)]
        latest = [each for each in latest_triage(triages) if each.judgement != "open"]
        meant = next((each for each in reversed(latest) if name in (LAST, each.execution_id)), None)
    if meant is None:
        histories = load_histories(metric, method, HistoryOptions(root, min_effect=0.0, everything=everything))
        if len(histories) > 1:
            names = ", ".join(history.method for history in histories[:6])
            raise UsageError(f"{method!r} matches {len(histories)} benchmarks", f"one of: {names}")
        change = _find_change(histories[0], name, root)
        meant = Triage(histories[0].method, metric, change.execution_id, change.until)
    who = ""
    with suppress(KeyError, OSError):
        who = getpass.getuser()
    add_triage(location.dir, replace(meant, judgement=judgement, note=note, who=who, at=time.time()))
    return f"{meant.method} {metric}: the change at {meant.execution_id} is {judgement}"


def _find_change(history: MetricHistory, name: str, root: str | None) -> MetricChange:
    changes = history.changes
    if name == LAST and changes:
        return changes[-1]
    for change in changes:
        commits = [commit for commit in change.commits if commit]
        if change.execution_id == name or (len(name) >= 4 and any(commit.startswith(name) for commit in commits)):
            return change
    if not changes:
        command = HistoryOptions(root).render_command(history.metric, history.method)
        hint = f"see `{command}`; invalid executions are left out: `open` revokes that"
        raise UsageError(f"{history.method} {history.metric} has no change", hint)
    ids = [change.execution_id for change in changes]
    listed = f"changes: {', '.join(ids[-_MOST_CHANGES:])}, or {LAST}"
    close = suggest(name, ids) if len(ids) > 1 else None
    raise NotFoundError("change", name, ids, f"{close}; {listed}" if close else listed)
