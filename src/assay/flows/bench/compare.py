"""`assay bench compare`: two labels, two commits, two files; or two checked-out commits, run in turns."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from assay.config.settings import load_settings
from assay.errors import NotFoundError, UsageError
from assay.flows.bench.archive import find_place, load_executions, load_file_executions
from assay.flows.bench.run import find_bench_place, run_benchmarks
from assay.flows.bench.statistics import Pair, compare_pairs
from assay.flows.sweep import Doors
from assay.record.imported import load_foreign
from assay.stage.checkout import Commit, build, find_repository, load_commit, open_tree, switch
from assay.values import layout
from assay.values.bench_history import ComparisonReport, MetricComparison, Side
from assay.values.benchmark import BenchExecution, BenchReport, BenchRequest, BenchVariant
from assay.values.series import Direction, direction_of
from assay.values.verdict import Finding, Verdict, VerdictKind

Tell = Callable[[str], None]
DEFAULT_TRIALS = 10
TREES_DIR = "trees"


@dataclass(frozen=True, slots=True)
class CompareOptions:
    metrics: tuple[str, ...] = ()  # none: all that both sides have
    directions: Mapping[str, Direction] | None = None
    min_effect: float = 0.02
    everything: bool = False  # contaminated executions count as well
    confirm: bool = True
    build: str | None = None  # run in each work tree first


# ---------------------------------------------------------------- what is there already


def compare_recorded(
    base: str, head: str, method: str | None, root: str | None, options: CompareOptions
) -> ComparisonReport:
    """Sides are labels, commits (or the beginning of one), run directories, folders of them, or other tools' files."""
    known = _Known(root, method)
    sides = known.load(base), known.load(head)
    return compare_executions((base, sides[0]), (head, sides[1]), options)


class _Known:
    """The history is read once, and only when a side is no file."""

    def __init__(self, root: str | None, method: str | None) -> None:
        self._root = root
        self._method = method
        self._found: list[BenchExecution] | None = None

    def load(self, name: str) -> list[BenchExecution]:
        found = _load_path(name) if os.path.exists(name) else self._load_recorded(name)
        if self._method:
            found = [e for e in found if e.method == self._method or e.method.endswith(f".{self._method}")]
        if not found:
            raise UsageError(f"{name} has no execution of {self._method}")
        return found

    def _load_recorded(self, name: str) -> list[BenchExecution]:
        if self._found is None:
            self._found = load_executions(find_place(self._root))
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


def compare_executions(
    base: tuple[str, Sequence[BenchExecution]], head: tuple[str, Sequence[BenchExecution]], options: CompareOptions
) -> ComparisonReport:
    """Every metric that both sides have, corrected for their number; what failed on a side is an error, not a gap."""
    notes: list[str] = []
    sides = [_keep_good(name, found, options, notes) for name, found in (base, head)]
    methods = [m for m in dict.fromkeys(e.method for e in base[1]) if any(e.method == m for e in head[1])]
    findings = _find_missing(base, head)
    keys = [(method, metric) for method in methods for metric in _common_metrics(method, sides, options)]
    values = {key: (_collect(sides[0], *key, notes), _collect(sides[1], *key, notes)) for key in keys}
    pairs = [
        Pair(f"{method} {metric}", *values[method, metric], _direction(metric, options)) for method, metric in keys
    ]
    judged = compare_pairs(pairs, options.min_effect) if pairs else []
    metrics = tuple(
        MetricComparison(
            method, metric, Side(base[0], values[method, metric][0]), Side(head[0], values[method, metric][1]), finding
        )
        for (method, metric), finding in zip(keys, judged, strict=True)
    )
    verdict = Verdict.of([*findings, *judged], len(metrics))
    return ComparisonReport(base[0], head[0], metrics, verdict, tuple(dict.fromkeys(notes)))


def _direction(metric: str, options: CompareOptions) -> Direction:
    return (options.directions or {}).get(metric) or direction_of(metric)


def _keep_good(
    name: str, found: Sequence[BenchExecution], options: CompareOptions, notes: list[str]
) -> list[BenchExecution]:
    good = [e for e in found if not e.result.has_exception and not e.refused]
    clean = good if options.everything else [e for e in good if not e.contaminated]
    if len(clean) < len(good) and clean:
        notes.append(f"{name}: {len(good) - len(clean)} contaminated executions are left out")
    elif good and not clean:
        notes.append(f"{name}: every execution is contaminated; they are taken all the same")
    return clean or good


def _find_missing(
    base: tuple[str, Sequence[BenchExecution]], head: tuple[str, Sequence[BenchExecution]]
) -> list[Finding]:
    """A benchmark that one side does not have, or that did not succeed there."""
    findings = []
    for (name, found), (other, others) in ((base, head), (head, base)):
        for method in dict.fromkeys(e.method for e in others):
            here = [e for e in found if e.method == method]
            failed = [e for e in here if e.result.has_exception]
            if not here:
                findings.append(Finding(VerdictKind.ERROR, method, f"{other} has it, {name} does not"))
            elif failed:
                reason = failed[0].result.findings[0].message if failed[0].result.findings else failed[0].state
                message = f"{len(failed)} of {len(here)} executions of {name} failed: {reason}"
                findings.append(Finding(VerdictKind.ERROR, method, message))
    return findings


def _common_metrics(method: str, sides: Sequence[Sequence[BenchExecution]], options: CompareOptions) -> list[str]:
    names = [{name for e in side if e.method == method for name in e.result.numbers} for side in sides]
    common = [name for name in sorted(names[0] & names[1]) if not options.metrics or name in options.metrics]
    missing = [name for name in options.metrics if name not in names[0] & names[1]]
    if missing:
        raise NotFoundError("metric", missing[0], names[0] & names[1])
    return common


def _collect(side: Sequence[BenchExecution], method: str, metric: str, notes: list[str]) -> tuple[float, ...]:
    """One value for each execution; the raw samples where there is a single one, which says less."""
    mine = [e for e in side if e.method == method and metric in e.result.numbers]
    values = [e.result.numbers[metric] for e in mine]
    samples = mine[0].result.samples.get(metric, ()) if len(mine) == 1 else ()
    if len(samples) > 1:
        notes.append(f"{method}: one process only; its samples say nothing about how processes differ: use --trials")
        values = list(samples)
    return tuple(value for value in values if math.isfinite(value))


# ---------------------------------------------------------------- run both, in turns


def compare_git(
    span: str,
    request: BenchRequest,
    options: CompareOptions,
    doors: Doors | None = None,
    tell: Tell = lambda _line: None,
) -> ComparisonReport:
    """`base..head`: both are checked out beside the user's tree, which is not touched, and run in turns. What fails is
    run again, and only what fails again is a FAIL."""
    workshop = open_workshop(request, options.build)
    commits = [load_commit(workshop.repository, name) for name in parse_span(span)]
    variants = tuple(workshop.open(side, commit) for side, commit in zip(("base", "head"), commits, strict=True))
    request = replace(request, variants=variants)
    report = run_benchmarks(request, doors)
    result = compare_variants(report, variants, options)
    suspects = [metric for metric in result.metrics if metric.finding.kind is VerdictKind.FAIL]
    if suspects and options.confirm and not (report.interrupted or report.problem):
        tell(f"{len(suspects)} metrics look worse: running again to confirm")
        result = _confirm(request, result, suspects, options, doors)
    return replace(result, base=_describe(commits[0]), head=_describe(commits[1]))


def _describe(commit: Commit) -> str:
    return f"{commit.short} {commit.subject}"


def parse_span(span: str) -> tuple[str, str]:
    base, dots, head = span.partition("..")
    if not dots or not base or not head.strip("."):
        raise UsageError(f"--git {span!r} names no two commits", "write --git base..head, such as --git main..HEAD")
    return base, head.lstrip(".")


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where commits of a repository are checked out and built, beside the user's own tree."""

    repository: str
    inside: str  # the folder that benchmarks run in, relative to the repository
    folder: str  # of the trees
    build: str | None

    def open(self, side: str, commit: Commit) -> BenchVariant:
        """A tree at this commit; the same place every time, so that compiled parts can stay."""
        tree = open_tree(self.repository, os.path.join(self.folder, side))
        switch(tree, commit.sha, keep_ignored=self.build is not None)
        folder = os.path.normpath(os.path.join(tree.path, self.inside))
        if not os.path.isdir(folder):
            raise UsageError(f"commit {commit.short} has no folder {self.inside}")
        problem = build(tree, self.build, folder) if self.build else None
        if problem:
            raise UsageError(f"commit {commit.short} cannot be built: {problem}")
        return BenchVariant(f"{side}-{commit.short}", folder, commit.sha)


def open_workshop(request: BenchRequest, build_command: str | None) -> Workshop:
    folder = os.path.abspath(request.folder or os.getcwd())
    repository = find_repository(folder)
    place = find_bench_place(request.root, load_settings(os.getcwd(), os.environ))
    key = hashlib.blake2b(repository.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    trees = os.path.join(place.dir, layout.STUDY_META_DIR, TREES_DIR, key)
    return Workshop(
        repository, os.path.relpath(os.path.realpath(folder), os.path.realpath(repository)), trees, build_command
    )


def compare_variants(
    report: BenchReport, variants: Sequence[BenchVariant], options: CompareOptions
) -> ComparisonReport:
    sides = [(variant.label, [e for e in report.executions if e.label == variant.label]) for variant in variants]
    result = compare_executions(sides[0], sides[1], options)
    return replace(result, interrupted=report.interrupted, problem=report.problem)


def _confirm(
    request: BenchRequest,
    first: ComparisonReport,
    suspects: Sequence[MetricComparison],
    options: CompareOptions,
    doors: Doors | None,
) -> ComparisonReport:
    """New executions alone decide: what was seen first has raised the suspicion and may not be its witness."""
    methods = {metric.method for metric in suspects}
    again = replace(request, methods=tuple(m for m in request.methods if m.name in methods or m.is_filter))
    report = run_benchmarks(again, doors)
    second = compare_variants(report, request.variants, options)
    by_key = {(metric.method, metric.metric): metric for metric in second.metrics}
    metrics = tuple(
        _settle(metric, by_key.get((metric.method, metric.metric))) if metric in suspects else metric
        for metric in first.metrics
    )
    errors = [finding for finding in first.verdict.findings if finding.kind is VerdictKind.ERROR]
    verdict = Verdict.of([*errors, *(metric.finding for metric in metrics)], first.verdict.comparisons)
    return replace(
        first,
        metrics=metrics,
        verdict=verdict,
        interrupted=report.interrupted,
        problem=report.problem,
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
    )


def _settle(first: MetricComparison, second: MetricComparison | None) -> MetricComparison:
    if second is not None and second.finding.kind is VerdictKind.FAIL:
        finding = replace(second.finding, message=f"{second.finding.message}; confirmed by a rerun")
        return replace(second, finding=finding, confirmed=True)
    seen = f"; the rerun says {second.finding.message}" if second is not None else "; the rerun gave nothing"
    finding = replace(
        first.finding, kind=VerdictKind.INCONCLUSIVE, message=f"not confirmed: {first.finding.message}{seen}"
    )
    return replace(first, finding=finding, confirmed=False)
