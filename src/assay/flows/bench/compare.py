"""`assay bench compare`: two labels, two commits, two files; or two checked-out commits, run in turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from assay.errors import NotFoundError, UsageError
from assay.flows.bench.archive import (
    Complain,
    find_place,
    is_named,
    keep_quiet,
    load_executions,
    load_file_executions,
)
from assay.flows.bench.run import run_benchmarks
from assay.flows.bench.workshop import open_workshop
from assay.judge.samples import (
    ALPHA,
    PROCESS_SPREAD,
    THRESHOLD,
    Question,
    SamplePair,
    build_finding,
    compare_pairs,
    decide_next,
)
from assay.record.imported import load_foreign
from assay.stage.checkout import Commit, load_commit
from assay.values import layout
from assay.values.bench import Comparison, Samples
from assay.values.bench_history import ComparisonReport, MetricComparison, Side
from assay.values.benchmark import COMPARED, BenchExecution, BenchReport, BenchRequest, BenchVariant
from assay.values.series import Direction, direction_of
from assay.values.state import State
from assay.values.verdict import Finding, Verdict, VerdictKind

Tell = Callable[[str], None]
Run = Callable[[BenchRequest], BenchReport]
DEFAULT_TRIALS = 10
DEFAULT_MOST = 30
Key = tuple[str, str]  # method, metric


@dataclass(frozen=True, slots=True)
class Executions:
    """One side, and what it is called."""

    name: str
    found: tuple[BenchExecution, ...]

    def good(self, method: str) -> list[BenchExecution]:
        return [e for e in self.found if e.method == method and e.result.is_figure and not e.refused]


@dataclass(frozen=True, slots=True)
class CompareOptions:
    metrics: tuple[str, ...] = ()  # none: all that both sides have
    directions: Mapping[str, Direction] | None = None
    min_effect: float = THRESHOLD
    alpha: float = ALPHA
    most: int = DEFAULT_MOST  # trials on each side, before one says that it is too close to tell
    everything: bool = False  # contaminated executions count as well
    confirm: bool = True
    build: str | None = None  # run in each work tree first


# ---------------------------------------------------------------- what is there already


def compare_recorded(
    base: str,
    head: str,
    method: str | None,
    root: str | None,
    options: CompareOptions,
    complain: Complain = keep_quiet,
) -> ComparisonReport:
    """Sides are labels, commits (or the beginning of one), run directories, folders of them, or other tools' files."""
    known = _Known(root, method, complain)
    sides = [Executions(name, tuple(known.load(name))) for name in (base, head)]
    return compare_executions(sides[0], sides[1], options)


class _Known:
    """The history is read once, and only when a side is no file."""

    def __init__(self, root: str | None, method: str | None, complain: Complain) -> None:
        self._root = root
        self._method = method
        self._complain = complain
        self._found: list[BenchExecution] | None = None

    def load(self, name: str) -> list[BenchExecution]:
        found = _load_path(name) if os.path.exists(name) else self._load_recorded(name)
        if self._method:
            found = [e for e in found if is_named(self._method, e.method)]
        if not found:
            raise UsageError(f"{name} has no execution of {self._method}")
        return found

    def _load_recorded(self, name: str) -> list[BenchExecution]:
        if self._found is None:
            self._found = load_executions(find_place(self._root), complain=self._complain)
        by_label = [e for e in self._found if e.label == name]
        by_commit = [e for e in self._found if e.commit and len(name) >= 4 and e.commit.startswith(name)]
        if by_label or by_commit:
            return by_label or by_commit
        known = {e.label for e in self._found if e.label} | {e.commit[:12] for e in self._found if e.commit}
        raise NotFoundError("label, commit or file", name, known)


def _load_path(path: str) -> list[BenchExecution]:
    if os.path.isdir(path) or os.path.basename(path) == layout.BENCH_FILE:
        return load_file_executions(path)
    return load_foreign(path)


# ---------------------------------------------------------------- judging


def compare_executions(base: Executions, head: Executions, options: CompareOptions) -> ComparisonReport:
    """Every metric that both sides have, corrected for their number; what failed on a side is an error, not a gap."""
    return build_report(base, head, compare_sides(base, head, options), options)


def compare_sides(
    base: Executions, head: Executions, options: CompareOptions
) -> dict[Key, tuple[SamplePair, Comparison]]:
    there = {execution.method for execution in head.found}
    methods = [method for method in dict.fromkeys(e.method for e in base.found) if method in there]
    keys = [(method, metric) for method in methods for metric in _common_metrics(method, base, head, options)]
    pairs = [_build_pair(key, base, head, options) for key in keys]
    return dict(zip(keys, zip(pairs, compare_pairs(pairs), strict=True), strict=True))


def _build_pair(key: Key, base: Executions, head: Executions, options: CompareOptions) -> SamplePair:
    direction = (options.directions or {}).get(key[1]) or direction_of(key[1])
    question = Question(direction, options.min_effect, options.alpha)
    return SamplePair(" ".join(key), _collect(base, key, options), _collect(head, key, options), question)


def build_report(
    base: Executions, head: Executions, compared: Mapping[Key, tuple[SamplePair, Comparison]], options: CompareOptions
) -> ComparisonReport:
    metrics = tuple(
        MetricComparison(method, metric, _side(pair.base), _side(pair.head), build_finding(comparison))
        for (method, metric), (pair, comparison) in compared.items()
    )
    findings = [*_find_missing(base, head), *(metric.finding for metric in metrics)]
    notes = [_describe_single(side, key[0]) for key in compared for side in (base, head) if _is_single(side, key)]
    notes += [] if options.everything else [note for side in (base, head) if (note := _describe_dirt(side))]
    notes += [f"{method}: only {head.name} has it" for method in _find_new(base, head)]
    counted = sum(comparison.p is not None for _, comparison in compared.values())
    return ComparisonReport(base.name, head.name, metrics, Verdict.of(findings, counted), tuple(dict.fromkeys(notes)))


def _side(samples: Samples) -> Side:
    return Side(samples.label, samples.clean, len(samples.values))


def _find_missing(base: Executions, head: Executions) -> list[Finding]:
    """A benchmark that did not succeed on a side, or that head has lost: one that is new there is no fault."""
    there = {e.method for e in head.found}
    lost = [method for method in dict.fromkeys(e.method for e in base.found) if method not in there]
    findings = [Finding(VerdictKind.ERROR, method, f"{base.name} has it, {head.name} does not") for method in lost]
    return findings + [finding for side in (base, head) for finding in _find_failed(side)]


def _find_failed(side: Executions) -> Iterator[Finding]:
    for method in dict.fromkeys(e.method for e in side.found):
        here = [e for e in side.found if e.method == method]
        failed = [e for e in here if not e.result.is_figure]
        if failed:
            reason = failed[0].result.findings[0].message if failed[0].result.findings else failed[0].state
            message = f"{len(failed)} of {len(here)} executions of {side.name} failed: {reason}"
            yield Finding(VerdictKind.ERROR, method, message)


def _find_new(base: Executions, head: Executions) -> list[str]:
    known = {e.method for e in base.found}
    return [method for method in dict.fromkeys(e.method for e in head.found) if method not in known]


def _common_metrics(method: str, base: Executions, head: Executions, options: CompareOptions) -> list[str]:
    names = [{n for e in side.good(method) for n in e.result.numbers} for side in (base, head)]
    common = names[0] & names[1]
    missing = [name for name in options.metrics if name not in common]
    if missing and common:
        raise NotFoundError("metric", missing[0], common)
    return [name for name in sorted(common) if not options.metrics or name in options.metrics]


def _collect(side: Executions, key: Key, options: CompareOptions) -> Samples:
    """One value for each execution; the raw samples where there is a single one, which says less."""
    method, metric = key
    mine = [e for e in side.good(method) if metric in e.result.numbers]
    if _is_single(side, key):
        return Samples(mine[0].result.samples[metric], side.name, is_one_process=True)
    dirt = {} if options.everything else {n: e.contaminated[0] for n, e in enumerate(mine) if e.contaminated}
    return Samples(tuple(e.result.numbers[metric] for e in mine), side.name, dirt)


def _is_single(side: Executions, key: Key) -> bool:
    mine = [e for e in side.good(key[0]) if key[1] in e.result.numbers]
    return len(mine) == 1 and len(mine[0].result.samples.get(key[1], ())) > 1


def _describe_single(side: Executions, method: str) -> str:
    what = "its samples do not tell how processes differ"
    return f"{method}: {side.name} is one process; {what} ({PROCESS_SPREAD:.0%} is assumed): use --trials"


def _describe_dirt(side: Executions) -> str | None:
    count = sum(bool(e.contaminated) for e in side.found)
    what = "1 contaminated execution is" if count == 1 else f"{count} contaminated executions are"
    hint = "--all takes them, --foreign-limit SHARE allows others more"
    return f"{side.name}: {what} left out of {len(side.found)} ({hint})" if count else None


# ---------------------------------------------------------------- run both, in turns


def compare_git(
    span: str,
    request: BenchRequest,
    options: CompareOptions,
    run: Run = run_benchmarks,
    tell: Tell = lambda _line: None,
) -> ComparisonReport:
    """`base..head`: both are checked out beside the user's tree, which is not touched, and run in turns. What fails is
    run again, and only what fails again is a FAIL."""
    names = parse_span(span)
    with open_workshop(request, options.build) as workshop:
        base, head = (load_commit(workshop.repository, name) for name in names)
        variants = (workshop.check_out("base", base), workshop.check_out("head", head))
        found = Contest(replace(request, variants=variants), options, run, tell).run()
    return replace(found, base=_describe(base), head=_describe(head))


def _describe(commit: Commit) -> str:
    return f"{commit.short} {commit.subject}"


def parse_span(span: str) -> tuple[str, str]:
    base, dots, head = span.partition("..")
    if not dots or not base or not head.strip("."):
        raise UsageError(f"--git {span!r} names no two commits", "write --git base..head, such as --git main..HEAD")
    return base, head.lstrip(".")


def split_variants(
    executions: Sequence[BenchExecution], variants: Sequence[BenchVariant]
) -> tuple[Executions, Executions]:
    base, head = (Executions(v.label, tuple(e for e in executions if e.label == v.label)) for v in variants)
    return base, head


class Contest:
    """Both sides in turns, until every metric has its verdict. What was seen first raises a suspicion; only new
    executions may confirm it."""

    def __init__(self, request: BenchRequest, options: CompareOptions, run: Run, tell: Tell) -> None:
        self._request = replace(request, extra={**request.extra, **COMPARED})
        self._options = options
        self._run = run
        self._tell = tell
        self.end: BenchReport | None = None  # it was interrupted

    def run(self) -> ComparisonReport:
        first = self.run_round(confirmed=not self._options.confirm)
        suspects = [metric for metric in first.metrics if metric.finding.kind is VerdictKind.FAIL]
        if not suspects or not self._options.confirm or self.end:
            return self._sign(first)
        methods = {metric.method for metric in suspects}
        self._request = replace(
            self._request, methods=tuple(m for m in self._request.methods if m.name in methods or m.is_filter)
        )
        return self._sign(_settle(first, suspects, self.run_round(confirmed=True)))

    def run_round(self, *, confirmed: bool) -> ComparisonReport:
        """Trials until decided. A suspicion ends the round at once unless it is the one that has to confirm it."""
        executions: list[BenchExecution] = []
        options, request = self._options, self._request
        ran = 0
        while True:
            report = self._run(request)
            ran += request.trials
            if report.interrupted or report.problem:
                self.end = report
            executions += [execution for execution in report.executions if not _is_cut_short(execution, report)]
            base, head = split_variants(executions, request.variants)
            if self.end:
                base, head = _keep_common(base, head)
            compared = compare_sides(base, head, options)
            result = build_report(base, head, compared, options)
            comparisons = [comparison for _, comparison in compared.values()]
            step = decide_next(comparisons, confirmed=confirmed, most=options.most, ran=ran)
            if self.end or step.kind == "stop":
                return result
            self._tell(f"{step.reason} ({step.trials} trials on each side)")
            if step.kind == "confirm":
                return result
            request = replace(request, trials=step.trials)

    def _sign(self, report: ComparisonReport) -> ComparisonReport:
        end = self.end
        if end is None:
            return report
        if report.verdict == Verdict.of((), 0):
            message = f"it was ended by {end.interrupted or end.problem} before anything could be compared"
            silence = Finding(VerdictKind.INCONCLUSIVE, "comparison", message)
            report = replace(report, verdict=Verdict.of([silence], 0))
        return replace(report, interrupted=end.interrupted, problem=end.problem)


def _keep_common(base: Executions, head: Executions) -> tuple[Executions, Executions]:
    """What was ended before the other side had its turn is not missing there."""
    common = {e.method for e in base.found} & {e.method for e in head.found}
    kept, other = (replace(side, found=tuple(e for e in side.found if e.method in common)) for side in (base, head))
    return kept, other


def _is_cut_short(execution: BenchExecution, report: BenchReport) -> bool:
    """What our own end took along has not failed."""
    return bool(report.interrupted or report.problem) and execution.state == State.STOPPED


def _settle(
    first: ComparisonReport, suspects: Sequence[MetricComparison], second: ComparisonReport
) -> ComparisonReport:
    by_key = {(metric.method, metric.metric): metric for metric in second.metrics}
    metrics = tuple(
        _settle_metric(metric, by_key.get((metric.method, metric.metric))) if metric in suspects else metric
        for metric in first.metrics
    )
    judged = [metric.finding for metric in first.metrics]
    others = [finding for finding in first.verdict.findings if finding not in judged]
    verdict = Verdict.of([*others, *(metric.finding for metric in metrics)], first.verdict.comparisons)
    return replace(first, metrics=metrics, verdict=verdict, notes=tuple(dict.fromkeys((*first.notes, *second.notes))))


def _settle_metric(first: MetricComparison, second: MetricComparison | None) -> MetricComparison:
    if second is not None and second.finding.kind is VerdictKind.FAIL:
        finding = replace(second.finding, message=f"{second.finding.message}; confirmed by a rerun")
        return replace(second, finding=finding, confirmed=True)
    seen = f"; the rerun says {second.finding.message}" if second is not None else "; the rerun gave nothing"
    message = f"not confirmed: {first.finding.message}{seen}"
    return replace(
        first, finding=replace(first.finding, kind=VerdictKind.INCONCLUSIVE, message=message), confirmed=False
    )
