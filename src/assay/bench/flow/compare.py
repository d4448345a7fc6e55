"""`assay bench compare`: compares two labels, commits or files, or runs two checked-out commits in turns."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property

from assay.bench.flow.archive import find_location, is_named, load_executions, load_file_executions
from assay.bench.flow.history import advise_all, list_invalid
from assay.bench.flow.sides import (
    Duel,
    Executions,
    Key,
    check_out,
    choose_side,
    collect_samples,
    commit_files,
    describe_aside,
    describe_code,
    describe_environments,
    describe_invalid,
    find_duels,
    find_pinned,
    is_single,
    list_names,
    open_trees,
)
from assay.bench.importers.formats import load_foreign
from assay.bench.judge.environments import doubt, doubt_load, shorten
from assay.bench.judge.samples import (
    ALPHA,
    PROCESS_SPREAD,
    THRESHOLD,
    Question,
    SamplePair,
    build_finding,
    build_pair,
    compare_pairs,
    decide_next,
    find_fewest,
)
from assay.bench.records import BENCH_FILE, Baseline, load_named, load_triage
from assay.bench.values.comparison import BenchSide, ComparisonReport, MetricComparison, SampleComparison, Samples
from assay.bench.values.execution import (
    COMPARED,
    CPU_TIME,
    PEAK_GPU_MEMORY,
    PEAK_MEMORY,
    BenchExecution,
    BenchMethod,
    BenchReport,
    BenchRequest,
    BenchVariant,
    group_by,
    is_sensitive,
)
from assay.code.checkout import load_commit
from assay.errors import AssayError, NotFoundError, UsageError, check_known
from assay.execute.machine_lease import keeping_lease
from assay.follow.api import record_verdicts
from assay.record.run_directory import load_record
from assay.show.console import SILENT, Console
from assay.show.formatting import render_count
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import is_inside
from assay.values.series import Direction, direction_of
from assay.values.state import State
from assay.values.verdict import Finding, Verdict, VerdictKind

Run = Callable[[BenchRequest], BenchReport]
_OBSERVED = {PEAK_MEMORY, PEAK_GPU_MEMORY}
DEFAULT_TRIALS = 10
DEFAULT_MOST = 30


@dataclass(frozen=True, slots=True)
class CompareOptions:
    metrics: tuple[str, ...] = ()  # empty: all metrics that both sides have
    directions: Mapping[str, Direction] | None = None
    min_effect: float = THRESHOLD
    alpha: float = ALPHA
    most: int = DEFAULT_MOST  # trials on each side, after which the result is INCONCLUSIVE
    everything: bool = False  # contaminated and profiled executions count as well
    in_turns: bool = False  # both sides ran in turns: the load of other processes affects both alike
    across: bool = False  # compare executions of different environments as if the environments were equal
    confirm: bool = True
    build: str | None = None  # command that is run in each work tree first


# ---------------------------------------------------------------- recorded executions


def compare_recorded(
    base: str, head: str, method: str | None, root: str | None, options: CompareOptions, console: Console = SILENT
) -> ComparisonReport:
    """Compare two labels, commits (or their beginnings), run directories, folders of them, or other tools' files."""
    known = _Known(root, method, console)
    sides = known.load(base), known.load(head)
    if sides[0].identities == sides[1].identities:
        count = render_count(len(sides[0].found), "execution")
        what = f"{base} and {head} are" if base != head else f"base and head are both {base},"
        raise UsageError(f"{what} the same {count}: there is nothing to compare", "name two labels, commits or files")
    return _record(compare_executions(*sides, options), root)


def compare_baseline(
    name: str, run: Callable[[], BenchReport] | None, method: str | None, root: str | None, options: CompareOptions,
    console: Console = SILENT, asked: Sequence[BenchMethod] = (),
) -> ComparisonReport:  # fmt: skip
    """Compare a baseline with the executions of `run`, or without `run` with the newest measured code. A benchmark that
    `asked` names and that was not executed is reported as missing."""
    known = _Known(root, method, console)
    base = known.load_baseline(name)
    report = run() if run is not None else None
    if report is None:
        return _record(compare_executions(base, known.load_newest(base), options), root)
    here, is_ended = {each.method for each in report.executions}, bool(report.interrupted or report.problem)
    gone = {each.method: each for each in base.found if each.method not in here}  # an execution of each missing method
    rest = [method for method, each in gone.items() if is_ended or not _is_asked(each, asked)]
    base = replace(base, found=tuple(each for each in base.found if each.method not in rest))
    if not base.found and here:
        raise UsageError(f"the baseline {name} has no execution of {', '.join(sorted(here))}", "`assay bench baseline`")
    compared = compare_executions(base, Executions("now", report.executions), options)
    notes = (f"{name} has other benchmarks, which were not executed now: {shorten(rest)}",) if rest else ()
    compared = replace(compared, notes=(*compared.notes, *notes))
    return _record(sign_end(compared, report if is_ended else None), root)


def _is_asked(execution: BenchExecution, asked: Sequence[BenchMethod]) -> bool:
    """Return whether a suite or a filter in `asked` includes the method of an execution."""
    words: list[str] = []
    with suppress(AssayError, OSError, ValueError):
        words = [word for each in load_record(execution.run_dir).spec.commands for word in shlex.split(each.text)]
    for method in asked:
        owner, is_filter, pattern = method.text.partition(".filter:")
        start, name = os.path.normpath(method.text), execution.method.removeprefix(f"{owner}.")
        if is_filter and name != execution.method and re.match(pattern, name):
            return True
        if method.is_filter and any(word.startswith((f"{start}::", f"{start}/")) for word in words):
            return True
    return False


def _record(report: ComparisonReport, root: str | None) -> ComparisonReport:
    """Record the verdict in the study, and from there in the index; without a study nothing is recorded."""
    location = find_location(root)
    if not os.path.isdir(location.dir):
        return report
    doubts = record_verdicts(location, "bench compare", {None: report.verdict})
    return replace(report, notes=(*report.notes, *doubts))


class _Known:
    """The recorded executions, read once, and only if a side is not a file or an execution was declared invalid."""

    def __init__(self, root: str | None, method: str | None, console: Console) -> None:
        self._location = find_location(root)
        self._method = method
        self._console = console

    @cached_property
    def _every(self) -> list[BenchExecution]:
        return load_executions(self._location, console=self._console)

    def load(self, name: str) -> Executions:
        if os.path.isdir(name) or (os.path.basename(name) == BENCH_FILE and os.path.exists(name)):
            return self._build(name, load_file_executions(name), name)
        if os.path.exists(name):
            return self._build(name, load_foreign(name), name)
        if found := choose_side(self._every, name):
            return self._build(name, found, self._location.dir)
        baselines = load_named(self._location.dir, Baseline)
        if name in baselines:
            return self.load_baseline(name)
        raise NotFoundError("label, commit, baseline or file", name, list_names(self._every) | {*baselines})

    def _build(self, name: str, found: Sequence[BenchExecution], path: str) -> Executions:
        if self._method:
            found = [e for e in found if is_named(self._method, e.method)]
        if not found:
            raise UsageError(f"{name} has no execution of {self._method}")
        triage = load_triage(self._location.dir) if is_inside(path, self._location.dir) else []
        # a triage covers the executions between two others, so the whole history is needed
        is_triaged = any(each.judgement == "invalid" for each in triage)
        return Executions(name, tuple(found), list_invalid(self._every, triage) if is_triaged else {})

    def load_baseline(self, name: str) -> Executions:
        return self._build(name, find_pinned(name, self._location.dir, self._every), self._location.dir)

    def load_newest(self, base: Executions) -> Executions:
        """Return the newest measured code that is not in the base, with all its executions of the same label."""
        pinned = {each.run_dir for each in base.found}
        others = [e for e in self._every if e.run_dir not in pinned and not e.void and not e.is_compared]
        if not others:
            hint = "execute some: `assay bench run METHOD --trials 10`"
            raise UsageError(f"nothing was executed besides the baseline {base.name}", hint)
        newest = max(others, key=lambda each: each.at or 0.0)
        name = newest.label or (newest.commit or "")[:12] or "newest"
        meant = [each for each in others if (each.code, each.label) == (newest.code, newest.label)]
        return self._build(f"newest-{name}" if name == base.name else name, meant, self._location.dir)


# ---------------------------------------------------------------- judging


def compare_executions(base: Executions, head: Executions, options: CompareOptions) -> ComparisonReport:
    """Compare the benchmarks that both sides have. p is corrected for the number of metrics; a failure is reported."""
    base, head = (side.put_aside(everything=options.everything) for side in (base, head))
    return compare_sides(base, head, options)[0]


def compare_sides(
    base: Executions, head: Executions, options: CompareOptions
) -> tuple[ComparisonReport, list[SampleComparison]]:
    """Return the report, and the statistics that show how many more trials are needed."""
    there = {execution.method for execution in head.found}
    methods = dict.fromkeys(e.method for e in base.found if e.method in there)
    keys = [(method, metric) for method in methods for metric in _common_metrics(method, base, head, options)]
    duels = [duel for key in keys for duel in find_duels(key, base, head, across=options.across)]
    pairs = []
    for duel in duels:
        metric = duel.key[1]
        ours, theirs = (
            collect_samples(side.name, each, metric, everything=options.everything, in_turns=options.in_turns)
            for side, each in ((base, duel.base), (head, duel.head))
        )
        question = Question(_direction(metric, options), options.min_effect, options.alpha)
        pairs.append(SamplePair(duel.subject, ours, theirs, question))
    found = list(map(_doubt, duels, pairs, compare_pairs(pairs)))
    metrics = tuple(
        MetricComparison(
            *duel.key,
            _side(pair.base),
            _side(pair.head),
            build_finding(one),
            setup=duel.setup,
            detectable=one.detectable,
        )
        for duel, pair, one in zip(duels, pairs, found, strict=True)
    )
    # a method that only head has is not an error
    lost = [method for method in base.methods if method not in head.methods]
    findings = [Finding(VerdictKind.ERROR, method, f"{base.name} has it, {head.name} does not") for method in lost]
    common = [method for method in base.methods if method in head.methods]
    findings += [finding for side in (base, head) for finding in _find_idle(side, common)]
    findings += [*_find_failed(base, head), *_find_unkept(base, head), *_find_gone(base, head, options)]
    findings += [metric.finding for metric in metrics]
    verdict = Verdict.of(findings, sum(one.p is not None for one in found))
    notes = tuple(dict.fromkeys(_describe(base, head, duels, options)))
    return ComparisonReport(base.name, head.name, metrics, verdict, notes), found


def _doubt(duel: Duel, pair: SamplePair, found: SampleComparison) -> SampleComparison:
    """Doubt a difference if the sides differ in more than their code."""
    if duel.differences:
        return doubt(found, duel.differences, describe_code(duel))
    if not is_sensitive(duel.key[1]):
        return found
    loads = [
        [each.load for number, each in enumerate(side) if number not in samples.contaminated]
        for side, samples in ((duel.base, pair.base), (duel.head, pair.head))
    ]
    return doubt_load(found, loads[0], loads[1], pair.question)


def _direction(metric: str, options: CompareOptions) -> Direction:
    return (options.directions or {}).get(metric) or direction_of(metric)


def _describe(base: Executions, head: Executions, duels: Sequence[Duel], options: CompareOptions) -> Iterator[str]:
    """Yield the notes that are printed with the verdicts."""
    for method in dict.fromkeys(duel.key[0] for duel in duels):
        mine = [duel for duel in duels if duel.key[0] == method]
        yield from describe_environments(method, base, head, mine, options.across)
    for duel in duels:
        for side, found in ((base, duel.base), (head, duel.head)):
            if is_single(found, duel.key[1]):
                what = f"its samples do not show how processes differ ({PROCESS_SPREAD:.0%} is assumed)"
                yield f"{duel.key[0]}: {side.name} is one process; {what}: use --trials"
    for side in (base, head):
        yield from describe_invalid(side, dict.fromkeys(duel.key for duel in duels))
        yield from _describe_disturbed(side, duels, options)
        yield from describe_aside(side)
    every = [*base.found, *head.found]
    loads = [each.load for each in every if each.contaminated and each.load is not None]
    if loads and options.in_turns and not options.everything:
        share = f"others used {min(loads):.0%} to {max(loads):.0%} of the CPUs in {len(loads)} of {len(every)}"
        yield f"{share} executions, which count: base and head ran in turns"
    yield from (f"{method}: only {head.name} has it" for method in head.methods if method not in base.methods)


def _describe_disturbed(side: Executions, duels: Sequence[Duel], options: CompareOptions) -> Iterator[str]:
    """Describe how many executions do not count for which metrics, and which metrics do count."""
    if options.everything:
        return
    metrics = list(dict.fromkeys(duel.key[1] for duel in duels))
    left = {
        metric: [e for e in side.found if metric in e.numbers and e.find_disturbance(metric, in_turns=options.in_turns)]
        for metric in metrics
    }
    if names := [metric for metric in metrics if left[metric]]:
        count = len({id(execution) for found in left.values() for execution in found})
        what = "1 contaminated execution is" if count == 1 else f"{count} contaminated executions are"
        hint = "include them with --all"
        if CPU_TIME in metrics and CPU_TIME not in names:
            hint += f"; {CPU_TIME} counts, judge by it alone with --only {CPU_TIME}"
        yield f"{side.name}: {what} left out of {len(side.found)} for {', '.join(names)} ({hint})"


def _side(samples: Samples) -> BenchSide:
    return BenchSide(samples.label, samples.clean, len(samples.values), samples.disturbed)


def _find_gone(base: Executions, head: Executions, options: CompareOptions) -> Iterator[Finding]:
    """Find metrics that some or all executions of head lack: a removed or renamed metric was not compared. Peaks of
    memory are ignored: they are not part of a report, but measured from outside where that is possible."""
    for method in base.methods:
        ours, theirs = ([set(e.numbers) - _OBSERVED for e in side.good(method)] for side in (base, head))
        if not ours or not theirs:
            continue
        new = sorted(set().union(*theirs) - set().union(*ours))
        for metric in sorted(set().union(*ours)):
            count = sum(metric not in names for names in theirs)
            is_meant = not options.metrics or metric in options.metrics
            if is_meant and (count == len(theirs) or (count and all(metric in names for names in ours))):
                lacks = "does not report it" if count == len(theirs) else f"lacks it in {count} of {len(theirs)}"
                hint = f" (only {head.name} has {shorten(new)})" if new else ""
                message = f"{base.name} reports {metric}, {head.name} {lacks}{hint}"
                yield Finding(VerdictKind.ERROR, method, message)


def _find_idle(side: Executions, methods: Sequence[str]) -> Iterator[Finding]:
    """Find benchmarks that could not be compared because no execution of a side counts."""
    there = {e.method for e in side.found}
    for method in methods:
        if method not in there:
            reasons = side.count_aside(method)
            counts = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
            advice = advise_all(reasons)
            message = f"no execution of {side.name} counts: {counts}" + (f" ({advice})" if advice else "")
            yield Finding(VerdictKind.INCONCLUSIVE, method, message)


def _find_failed(base: Executions, head: Executions) -> Iterator[Finding]:
    """Find benchmarks that failed: on one side an ERROR; on both INCONCLUSIVE, which shows nothing about the change."""
    failures: dict[str, list[str]] = {}
    for side in (base, head):
        for method, here in group_by(side.found, lambda e: e.method).items():
            if failed := [e for e in here if not e.result.is_measured and not side.is_invalid(e)]:
                failures.setdefault(method, []).append(_describe_failed(failed, len(here), side.name))
    for method, texts in failures.items():
        if len(texts) == 1:
            yield Finding(VerdictKind.ERROR, method, texts[0])
        else:
            message = f"it fails on both sides, before and after: {'; '.join(texts)}"
            yield Finding(VerdictKind.INCONCLUSIVE, method, message)


def _describe_failed(failed: Sequence[BenchExecution], count: int, side: str) -> str:
    reason = failed[0].result.findings[0].message if failed[0].result.findings else failed[0].state
    return f"{len(failed)} of {render_count(count, 'execution')} of {side} failed: {reason}"


def _find_unkept(base: Executions, head: Executions) -> Iterator[Finding]:
    """Find bounds that head violates, whatever its speed. Bounds that base always violated too are not reported."""
    kept = {e.method for e in base.found if e.result.succeeded}
    for method in dict.fromkeys(e.method for e in head.found if e.method in kept):
        here = [e for e in head.good(method) if not head.is_invalid(e)]
        if failed := [e for e in here if not e.result.succeeded]:
            yield Finding(VerdictKind.FAIL, method, _describe_failed(failed, len(here), head.name))


def _common_metrics(method: str, base: Executions, head: Executions, options: CompareOptions) -> list[str]:
    names = [{n for e in side.good(method) for n in e.numbers} for side in (base, head)]
    common = names[0] & names[1]
    if common:  # a requested metric that only head lacks is known: `_find_gone` reports it
        check_known("metric", options.metrics, names[0])
    return [name for name in sorted(common) if not options.metrics or name in options.metrics]


# ---------------------------------------------------------------- run both sides in turns


def compare_revisions(
    a_rev: str | None,
    b_rev: str | None,
    request: BenchRequest,
    options: CompareOptions,
    run: Run,
    console: Console = SILENT,
    environments: tuple[str | None, str | None] = (None, None),
) -> ComparisonReport:
    """Check out both commits next to the user's tree, which is not touched, and run them in turns; without `b_rev` side
    b is the user's files, without `a_rev` both sides are. A benchmark that fails is run again to confirm the FAIL."""
    sides = tuple(BenchVariant(name, environment=each) for name, each in zip("ab", environments, strict=True))
    if a_rev is None:
        with keeping_lease():
            return _record(Contest(replace(request, variants=sides), options, run, console).run(), request.root)
    with open_trees(request, options.build, console) as checkouts, keeping_lease():
        base = load_commit(checkouts.repository, a_rev)
        head = load_commit(checkouts.repository, b_rev) if b_rev is not None else commit_files(checkouts, request)
        trees = (check_out(checkouts, "base", base), check_out(checkouts, "head", head))
        variants = tuple(replace(tree, environment=side.environment) for tree, side in zip(trees, sides, strict=True))
        found = Contest(replace(request, variants=variants), options, run, console).run()
    found = replace(found, base=f"{base.short} {base.subject}", head=f"{head.short} {head.subject}")
    return _record(found, request.root)


def parse_span(span: str, flag: str = "--git") -> tuple[str, str]:
    base, dots, head = span.partition("..")
    if not dots or not base or not head.strip("."):
        raise UsageError(
            f"{flag} {span!r} does not name two commits", f"write {flag} base..head, such as {flag} main..HEAD"
        )
    return base, head.lstrip(".")


class Contest:
    """Runs both sides in turns until every metric has its verdict; new executions confirm a first FAIL."""

    def __init__(self, request: BenchRequest, options: CompareOptions, run: Run, console: Console) -> None:
        # the fewest trials with which a metric can fail: p is corrected for the number of metrics; commands and
        # benchmarks that are timed by Assay have wall time, CPU time and memory
        fewest = find_fewest(options.alpha / max(1, (len(options.metrics) or 3) * len(request.methods)))
        trials = max(request.trials, min(fewest, options.most))
        self._request = replace(request, extra={**request.extra, **COMPARED}, trials=trials)
        # both sides run in turns on one machine: differences come from the commits
        self._options = replace(options, across=True, in_turns=True)
        self._run = run
        self._console = console
        self.end: BenchReport | None = None  # set when the comparison was interrupted

    def run(self) -> ComparisonReport:
        first = self.run_round(confirmed=not self._options.confirm)
        suspects = [metric for metric in first.metrics if metric.finding.kind is VerdictKind.FAIL]
        if not suspects or not self._options.confirm or self.end:
            return sign_end(first, self.end)
        methods = {metric.method for metric in suspects}
        self._request = replace(
            self._request, methods=tuple(m for m in self._request.methods if m.name in methods or m.is_filter)
        )
        return sign_end(_settle(first, suspects, self.run_round(confirmed=True), self._options), self.end)

    def run_round(self, *, confirmed: bool) -> ComparisonReport:
        """Run trials until every metric is decided. A FAIL ends the round at once, unless it is the confirmation."""
        executions: list[BenchExecution] = []
        options, request = self._options, self._request
        ran = 0
        while True:
            report = self._run(request)
            ran += request.trials
            if report.interrupted or report.problem:
                self.end = report
            # a benchmark that was interrupted together with the call has not failed
            executions += [e for e in report.executions if self.end is None or e.state != State.STOPPED]
            base, head = (
                Executions(v.label, tuple(e for e in executions if e.label == v.label)).put_aside(
                    everything=options.everything
                )
                for v in request.variants
            )
            if self.end:  # a benchmark that was interrupted before one side's turn is not missing on that side
                common = {e.method for e in base.found} & {e.method for e in head.found}
                base, head = (
                    replace(side, found=tuple(e for e in side.found if e.method in common)) for side in (base, head)
                )
            result, found = compare_sides(base, head, options)
            step = decide_next(found, confirmed=confirmed, most=options.most, ran=ran)
            if self.end or step is None:
                return result
            self._console.message(f"{step.reason} ({step.trials} trials on each side)")
            if step.kind == "confirm":
                return result
            request = replace(request, trials=step.trials)


def sign_end(report: ComparisonReport, end: BenchReport | None) -> ComparisonReport:
    """Add to a report that the comparison was ended early by `end`; without `end`, return the report unchanged."""
    if end is None:
        return report
    found = report.verdict
    left = "not all trials were run" if report.metrics else "nothing could be compared yet"
    cut = Finding(VerdictKind.INCONCLUSIVE, "comparison", f"it was ended by {end.interrupted or end.problem}: {left}")
    before = () if found == Verdict.of((), 0) else found.findings
    verdict = Verdict.of([*before, cut], found.comparisons)
    return replace(report, verdict=verdict, interrupted=end.interrupted, problem=end.problem)


def _settle(
    first: ComparisonReport, suspects: Sequence[MetricComparison], second: ComparisonReport, options: CompareOptions
) -> ComparisonReport:
    by_key = {(metric.method, metric.metric): metric for metric in second.metrics}
    pooled = _pool(suspects, by_key, options)
    metrics = tuple(
        _settle_metric(metric, by_key.get((metric.method, metric.metric)), pooled) if metric in suspects else metric
        for metric in first.metrics
    )
    judged = [metric.finding for metric in first.metrics]
    others = [finding for finding in first.verdict.findings if finding not in judged]
    verdict = Verdict.of([*others, *(metric.finding for metric in metrics)], first.verdict.comparisons)
    return replace(first, metrics=metrics, verdict=verdict, notes=tuple(dict.fromkeys((*first.notes, *second.notes))))


def _pool(
    suspects: Sequence[MetricComparison], reruns: Mapping[Key, MetricComparison], options: CompareOptions
) -> dict[Key, MetricComparison]:
    """Pool the trials of both rounds, if the rerun alone is not significant and differs in the same direction."""
    agreeing = []
    for one in suspects:
        other = reruns.get((one.method, one.metric))
        is_open = other is not None and other.finding.kind is VerdictKind.INCONCLUSIVE
        if other and is_open and (one.finding.effect or 0.0) * (other.finding.effect or 0.0) > 0:
            sides = [(a.name, a.values + b.values) for a, b in ((one.base, other.base), (one.head, other.head))]
            base, head = (BenchSide(name, values, len(values)) for name, values in sides)
            agreeing.append(replace(one, base=base, head=head, confirmed=True))
    questions = [Question(_direction(one.metric, options), options.min_effect, options.alpha) for one in agreeing]
    pairs = [
        build_pair(one.finding.subject, one.base.values, one.head.values, question)
        for one, question in zip(agreeing, questions, strict=True)
    ]
    judged = zip(agreeing, compare_pairs(pairs), strict=True)
    return {(one.method, one.metric): replace(one, finding=build_finding(found)) for one, found in judged}


def _settle_metric(
    first: MetricComparison, second: MetricComparison | None, pooled: Mapping[Key, MetricComparison]
) -> MetricComparison:
    if second is not None and second.finding.kind is VerdictKind.FAIL:
        finding = replace(second.finding, message=f"{second.finding.message}; confirmed by a rerun")
        return replace(second, finding=finding, confirmed=True)
    both = pooled.get((first.method, first.metric))
    if both is not None and both.finding.kind is VerdictKind.FAIL:
        words = f"{both.finding.message}; in both rounds together, the second agrees with the first"
        return replace(both, finding=replace(both.finding, message=words))
    seen = f"; the rerun: {second.finding.message}" if second is not None else "; the rerun has no result"
    message = f"not confirmed: {first.finding.message}{seen}"
    return replace(
        first, finding=replace(first.finding, kind=VerdictKind.INCONCLUSIVE, message=message), confirmed=False
    )
