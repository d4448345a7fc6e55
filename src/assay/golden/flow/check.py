"""Checks a golden recording: runs each segment, judges all metrics, and repeats runs while INCONCLUSIVE."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.errors import ConfigError
from assay.follow.api import Entry, record_verdicts
from assay.golden import manifests
from assay.golden.flow.followers import SegmentFollower, describe_end, find_log, find_unread, follow_runs, load_log
from assay.golden.flow.runs import (
    describe_early,
    describe_origin,
    falls_one_short,
    find_differences,
    find_other_environment,
    load_origin,
)
from assay.golden.flow.segments import ENDED_WELL, GoldenContext, build_run, build_stamp, choose_golden
from assay.golden.judge.convergence import count_peers, judge_segment, judge_so_far
from assay.golden.judge.effects import default_delta
from assay.golden.judge.evidence import (
    choose_rules,
    find_absent,
    find_dead,
    find_looser,
    find_seedless,
    find_unjudged,
    list_labels,
    list_rules,
)
from assay.golden.judge.golden import find_refusals, measure_golden_noise
from assay.golden.recorder import Values
from assay.golden.values import (
    SUSPICIOUSLY_BETTER,
    Golden,
    GoldenTestReport,
    MetricReport,
    Rule,
    SameReport,
    Segment,
    SegmentReport,
    SegmentRun,
    Track,
    Variant,
    describe_gap,
)
from assay.launch.api import Report, RunHooks
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.values.run import RunSpec, State
from assay.values.study import Problem
from assay.values.verdict import Finding, Verdict, VerdictKind

CHECK_PREFIX = "check-"

Tracks = Mapping[str, Mapping[str, Track]]  # metric → label → one run


def check_test(context: GoldenContext, hooks: RunHooks) -> GoldenTestReport:
    """Check every segment of the golden with the current program. The store is only read."""
    context = choose_golden(context)
    golden = context.load_golden(_hint_to_gather(context))
    rules = choose_rules(context.test.rules, golden, context.options.only)
    context = replace(context, test=replace(context.test, rules=rules))
    unjudged, notes = _find_unjudged(context, golden)
    refusals = find_refusals(context.test.rules, measure_golden_noise(context.test.rules, golden))
    if refusals and not context.is_original:
        places = [(finding.message, f"golden.metrics.{rule.metric}", rule.position) for rule, finding in refusals]
        raise ConfigError([Problem(*each) for each in places])
    judging = [segment for segment in golden.segments if list_rules(rules, golden, segment)]
    states = [_SegmentCheck(context, segment, golden) for segment in judging]
    others: dict[Variant, list[_SegmentCheck]] = {}
    for each in context.test.same:  # `rebase --from check` takes the runs of the canonical configuration alone
        prefix = f"same-{re.sub(r'[^a-zA-Z0-9_.-]', '-', each.name)[:40]}-"
        others[each] = [_SegmentCheck(context.use_same(each), segment, golden, prefix=prefix) for segment in judging]
    end = _run_rounds(context, [*states, *(state for group in others.values() for state in group)], hooks)
    same = tuple(_report_same(each, group) for each, group in others.items())
    reports = tuple(state.report() for state in states)
    runs = [run.dir for report in reports for run in report.runs]
    origin = load_origin(runs[0]) if runs else {}
    judged = list(zip(states, reports, strict=True))
    findings = [finding for report in reports for finding in report.verdict.findings]
    findings += [Finding(VerdictKind.ERROR, context.test.name, text) for text in _find_odd(context, golden)]
    tracks = [state.past_tracks() for state in states] if all(state.values for state in states) else []
    part = replace(golden, segments=tuple(judging))
    seed_flag = context.test.seed_flag
    dead = [*find_dead(part, tracks), *find_seedless(rules, part, seed_flag, tracks)] if tracks else []
    findings += [Finding(VerdictKind.INCONCLUSIVE, context.test.name, text) for text in (*unjudged, *dead)]
    if end is not None:
        message = f"not everything was run: {end.interrupted or end.problem}"
        findings.append(Finding(VerdictKind.ERROR, context.test.name, message))
    is_bad = any(finding.kind is not VerdictKind.PASS for finding in findings)
    every = [*findings, *(finding for each in same for finding in each.verdict.findings)]
    judgements = [*(report.verdict for report in reports), *(each.verdict for each in same)]
    verdict = Verdict.of(every, sum(each.comparisons for each in judgements))
    doubts = record_verdicts(context.location, "golden check", {None: verdict})
    return GoldenTestReport(
        test=context.test.name,
        manifest=context.manifest,
        verdict=verdict,
        golden=golden,
        segments=reports,
        notes=(
            *context.describe_locations(),
            *find_other_environment(context, golden, origin),
            *(line for state, report in judged for line in state.describe_stop(report)),
            *(
                f"log: {state.log} (segment {state.segment.start_step})"
                for state, report in judged
                if state.log and report.verdict.kind is not VerdictKind.PASS
            ),
            *(line for each, group in zip(same, others.values(), strict=True) for line in _describe_same(each, group)),
            *(line for state in states for line in state.describe_overrun()),
            *notes,
            *_describe_acceptance(context, findings),
            *_describe_search(context, golden, origin, findings),
        ),
        warnings=(
            *doubts,
            *_build_warnings(context, golden),
            *_describe_counting(context, golden, states),
            *(f"{found.subject}: {found.message}" for _, found in refusals),
            *_describe_better(findings),
        ),
        differs=tuple(find_differences(context, golden, origin)) if is_bad else (),
        interrupted=end.interrupted if end else None,
        problem=end.problem if end else None,
        same=same,
        origin=describe_origin(context, origin),
    )


def _describe_better(findings: Sequence[Finding]) -> list[str]:
    """Warn of values that pass because better values always pass; only the largest difference is shown."""
    passed = [each for each in findings if each.kind is VerdictKind.PASS]
    if not (better := [each for each in passed if each.message.startswith(SUSPICIOUSLY_BETTER)]):
        return []
    most = max(better, key=lambda each: abs(each.effect or 0.0))
    others = f"; {len(better) - 1} more such findings" if len(better) > 1 else ""
    return [f"{most.subject}: {most.message.splitlines()[0]}{others}: is it the same metric, in the same unit?"]


def _report_same(configuration: Variant, states: Sequence[_SegmentCheck]) -> SameReport:
    """Report a configuration with its name in the findings: all configurations have the same segments and metrics."""

    def rename(verdict: Verdict) -> Verdict:
        found = tuple(replace(each, subject=f"{configuration.name}, {each.subject}") for each in verdict.findings)
        return replace(verdict, findings=found)

    reports = []
    for report in (state.report() for state in states):
        metrics = tuple(replace(metric, verdict=rename(metric.verdict)) for metric in report.metrics)
        reports.append(replace(report, verdict=rename(report.verdict), metrics=metrics))
    findings = [finding for report in reports for finding in report.verdict.findings]
    verdict = Verdict.of(findings, sum(report.verdict.comparisons for report in reports))
    return SameReport(configuration.name, configuration.title, verdict, tuple(reports))


def _describe_same(report: SameReport, states: Sequence[_SegmentCheck]) -> list[str]:
    """Describe a configuration's logs, and that it may have been ignored if its values are equal bit for bit."""
    judged = zip(states, report.segments, strict=True)
    bad = [(state.log, each) for state, each in judged if state.log and each.verdict.kind is not VerdictKind.PASS]
    lines = [f"log: {log} ({report.name}, segment {each.start_step})" for log, each in bad]
    pairs = [
        (track.values, recordings)
        for each in report.segments
        for metric in each.metrics
        for label, recordings in metric.golden.items()
        for track in metric.check.get(label, ())
    ]
    if pairs and all(values in [each.values for each in recordings] for values, recordings in pairs):
        lines.append(f"{report.name} is equal bit for bit to the recording: does the program read {report.title}?")
    return lines


def _run_rounds(context: GoldenContext, states: Sequence[_SegmentCheck], hooks: RunHooks) -> Report | None:
    """Run all segments, then repeatedly those that need another run. Return the report of a round that ended early."""
    by_name: dict[str, _SegmentCheck] = {}

    def follow(entry: Entry) -> SegmentFollower:
        return by_name[entry.spec.name].follow()

    def decide(entry: Entry) -> str | None:
        return by_name[entry.spec.name].decide() if context.options.early_stop else None

    hooks = replace(follow_runs(hooks, follow), decide=decide)
    jobs = [state for state in states if state.prepare()]
    while jobs:
        stamp = build_stamp()
        specs = [state.build_spec(stamp, index) for index, state in enumerate(jobs)]
        by_name.update({spec.name: state for spec, state in zip(specs, jobs, strict=True)})
        report = context.run_segments(specs, hooks)
        for entry in report.entries:
            by_name[entry.spec.name].take(entry)
        if report.interrupted or report.problem:
            return report
        jobs = [state for state in jobs if state.needs_another()]
    return None


def check_variants(
    context: GoldenContext, variants: Sequence[GoldenContext], golden: Golden, segment: Segment, hooks: RunHooks
) -> tuple[tuple[SegmentReport, ...], Report | None]:
    """Check one segment with several variants of the same test, all of them spread over the slots."""
    states = [_SegmentCheck(variant, segment, golden) for variant in variants]
    end = _run_rounds(context, states, hooks)
    return tuple(state.report() for state in states), end


@dataclass(slots=True)
class _SegmentCheck:
    """One segment of a check in progress."""

    context: GoldenContext
    segment: Segment
    golden: Golden
    beyond: int = 0
    follower: SegmentFollower | None = None
    stopped: str | None = None  # why the run was stopped early
    judged_to: int | None = None
    runs: list[SegmentRun] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)  # findings about the runs, not about a metric
    log: str = ""  # the log of the last run
    prefix: str = CHECK_PREFIX  # the prefix of its runs' names

    @property
    def rules(self) -> tuple[Rule, ...]:
        return list_rules(self.context.test.rules, self.golden, self.segment)

    def prepare(self) -> bool:
        """Choose how far its runs go; return whether the segment can be run."""
        self.beyond = self.golden.steps_beyond or 0
        if problem := self.context.find_checkpoint_problem(self.segment):
            self._find(problem)
        return not problem

    def _find(self, message: str) -> None:
        finding = Finding(VerdictKind.ERROR, f"segment at {self.segment.start_step}", message)
        if finding not in self.findings:
            self.findings.append(finding)

    def build_spec(self, stamp: str, index: int) -> RunSpec:
        name = f"{self.prefix}{stamp}-{index}-s{self.segment.start_step}"
        number = self.context.count_recorded_checks(self.golden) + len(self.runs) + 1
        return self.context.build_segment_spec(name, self.segment, beyond=self.beyond, number=number)

    def follow(self) -> SegmentFollower:
        self.follower = SegmentFollower(self.context.test, self.segment.last_step)
        self.judged_to = None
        return self.follower

    def decide(self) -> str | None:
        """Return the reason to stop now, judging by what has been logged so far, if there is one."""
        values = self.follower.values if self.follower else Values()
        if values.last_step in (None, self.judged_to):
            return None
        self.judged_to = values.last_step
        now, earlier = self._tracks_of(values), self.past_tracks()
        peers = count_peers(self.context.test.rules, self.golden)
        for rule in self.rules:
            for label, track in now.get(rule.metric, {}).items():
                found = judge_so_far(rule, self.segment, track, label=label, earlier=earlier, peers=peers)
                if found is not None:
                    self.stopped = f"{rule.metric} {label}".strip() + f": {found.message.splitlines()[0]}"
                    return self.stopped
        return None

    def take(self, entry: Entry) -> None:
        """Take the values of a run that has ended, and how it ended."""
        values = self.follower.values if self.follower else Values()
        if entry.state in ENDED_WELL:
            self.stopped = None  # the run ended before it could be stopped
        early, last = self.stopped if entry.state is State.STOPPED else None, values.last_step
        run = build_run(entry, last, early)
        if early and last is not None:
            ran, left = max(1, last - self.segment.start_step), max(0, self.segment.last_step - last)
            run = replace(run, saved_steps=left, saved_s=(run.elapsed_s or 0.0) * left / ran)
        self.runs.append(run)
        self.values.append(values)
        self.log = find_log(entry)
        for problem in values.problems:
            self._find(problem)
        if elsewhere := describe_early(self.context, self.segment, values, self.golden.repeats_start):
            self._find(f"the check {elsewhere}")
        if entry.state in ENDED_WELL:
            test, judged = self.context.test, {rule.metric for rule in self.rules}
            missing = {metric for metric in judged & test.parsed_metrics if not values.steps_of(metric)}
            why = find_unread(test, load_log(entry)) if missing else {}
            wanted = {test.step.metric} if test.step and test.step.metric in why else missing & why.keys()
            for metric in sorted(wanted):
                self._find(f"{metric}: {why[metric]}")
            for problem in values.find_partial(sorted(judged)):
                self._find(problem)
        elif early is None:
            self._find(f"the check failed: {describe_end(entry)}")

    def needs_another(self) -> bool:
        """Whether another run is needed: the last one was one step short, or the verdict is inconclusive."""
        last = self.runs[-1]
        if last.state not in ENDED_WELL or self.findings:
            return False
        if self.golden.steps_beyond is None and not self.beyond and falls_one_short(self.segment, self.values[-1]):
            self.beyond = 1
            self.runs.pop()
            self.values.pop()
            return True
        most = self.context.options.most_checks or self.context.test.most_checks
        return len(self.runs) < most and self.report().verdict.kind is VerdictKind.INCONCLUSIVE

    def _tracks_of(self, values: Values) -> Tracks:
        """Return a run's values at the golden's steps; labels that the golden lacks are kept as a difference."""
        found: dict[str, dict[str, Track]] = {}
        for metric, label in values.found:
            golden = self.segment.tracks.get(metric, {}).get(label)
            found.setdefault(metric, {})[label] = values.cut(metric, label, golden[0].steps if golden else None)
        return found

    def past_tracks(self) -> list[Tracks]:
        return [self._tracks_of(values) for values in self.values]

    def report(self) -> SegmentReport:
        runs = self.past_tracks()
        judged = [self._judge(rule, runs) for rule in self.rules] if runs else []
        metrics = tuple(report for report in judged if report is not None)
        findings = [*self.findings, *(finding for report in metrics for finding in report.verdict.findings)]
        if self.stopped and not any(finding.kind is VerdictKind.FAIL for finding in findings):
            subject = f"segment at {self.segment.start_step}"
            findings.append(Finding(VerdictKind.FAIL, subject, f"stopped early: {self.stopped}"))
        verdict = Verdict.of(findings, sum(report.verdict.comparisons for report in metrics))
        return SegmentReport(self.segment.start_step, self.segment.checkpoint, verdict, metrics, tuple(self.runs))

    def describe_stop(self, report: SegmentReport) -> Iterator[str]:
        """Describe an early stop in one line, for all metrics that it left undecided."""
        last = self.values[-1].last_step if self.values else None
        if self.stopped is not None and last is not None:
            kept = {metric.metric for metric in report.metrics}
            others = [rule.metric for rule in self.rules if rule.metric not in kept]
            rest = f"; not judged there: {', '.join(others)}" if others else ""
            yield f"segment {self.segment.start_step} was stopped at step {last}{rest}"

    def describe_overrun(self) -> Iterator[str]:
        """Describe in one line a run that went on beyond the requested length."""
        start, length = self.segment.start_step, self.context.test.steps_to_record
        end = max([start + length + self.beyond, *self.segment.steps])
        last = max((step for values in self.values for step in values.steps), default=start)
        if self.context.test.has_length and last > end:
            yield f"segment {start}: the check went on to step {last}; its segment ends at step {end}"

    def _judge(self, rule: Rule, runs: Sequence[Tracks]) -> MetricReport | None:
        """Judge one metric; None if the run was stopped for another metric before this one was decided."""
        labels = self.segment.tracks.get(rule.metric, {})
        seen = {label for run in runs for label in run.get(rule.metric, {})} | set(labels)
        found = [run.get(rule.metric, {}) for run in runs]
        check = {label: tuple(each[label] for each in found if label in each) for label in seen}
        verdict = judge_segment(rule, self.segment, runs, peers=count_peers(self.context.test.rules, self.golden))
        last = self.values[-1].last_step
        if self.stopped is not None and last is not None:  # the steps that were not run are not gaps
            kept = [found for found in verdict.findings if found.step is None or found.step <= last]
            if all(found.kind in (VerdictKind.PASS, VerdictKind.INCONCLUSIVE) for found in kept):
                return None
            verdict = Verdict.of(kept, verdict.comparisons)
        delta = default_delta(rule) if rule.kind != "margin" else rule.margin
        return MetricReport(rule, verdict, labels, check, self.golden.noise.get(rule.metric), delta)


def _describe_acceptance(context: GoldenContext, findings: Sequence[Finding]) -> list[str]:
    """Return the commands that accept an intended change."""
    kinds = {finding.kind for finding in findings} - {VerdictKind.PASS}
    options = context.options
    if kinds != {VerdictKind.CHANGED} or options.is_harness:
        return []
    tail = options.build_arguments()
    lines = [
        "if this change is intended, accept it",
        f"  once:            assay golden check {tail} --allow-changed",
        f"  from now on:     assay golden rebase {tail} --from check --reason 'an intended change'",
    ]
    if not context.is_original:
        lines += [
            f"  as harmless:     name it under golden.variants in {options.file}, then",
            f"                   assay golden rebase {tail} --allow-wider --reason 'a harmless change'",
        ]
    return lines


def _describe_search(
    context: GoldenContext, golden: Golden, origin: Mapping[str, Any], findings: Sequence[Finding]
) -> list[str]:
    """Return the command that finds the commit that a FAIL came with, if git has the code of the golden."""
    good, bad = golden.provenance.get("commit"), origin.get("commit")
    is_failed = any(finding.kind is VerdictKind.FAIL for finding in findings)
    if not is_failed or not good or bad in (None, good) or golden.provenance.get("dirty") or context.options.is_harness:
        return []
    tail = f"{context.options.build_arguments()} --good {str(good)[:12]} --bad {str(bad)[:12]}"
    return [f"which commit it came with: assay golden bisect {tail}"]


def _find_unjudged(context: GoldenContext, golden: Golden) -> tuple[list[str], list[str]]:
    """Return what a PASS will not show, because no rule, or a looser one, judges it; and notes with the commands that
    judge a part of the recording or accept that no more is judged."""
    options, rules = context.options, context.test.rules
    lost, looser = find_unjudged(rules, golden, options.only), find_looser(rules, golden)
    judged = {rule.metric for rule in rules}
    others = [metric for metric in golden.metrics if metric not in judged and metric not in lost]
    notes = [f"recorded but not judged: {', '.join(others)}"] if others else []
    notes += find_absent(rules, golden)
    tail = options.build_arguments()
    check = f"assay golden check {tail}"
    if options.is_harness:
        words = ["-t", options.file, "-s", options.address or options.store, "--manifest-name", options.manifest_name]
        words += ["--root", options.root] if options.root else []
        check = f"assay convergence {shlex.join(words)}"
    known = {rule.metric: list_labels(golden, rule.metric) for rule in rules if rule.metric in golden.metrics}
    judged_parts = [(rule.metric, label) for rule in rules for label in rule.labels or ("",)]
    names = [f"{metric} {label}".strip() for metric, label in judged_parts if label in known.get(metric, ())]
    names += [metric for metric, label in judged_parts if metric in known and not label]
    if lost and names:
        notes.append(f"judge a part alone:  {check} {shlex.join(word for name in names for word in ('--only', name))}")
    if lost or looser:
        notes.append(f"accept from now on:  assay golden rebase {tail} --allow-wider --reason 'an intended change'")
    texts = [f"{name} is recorded and not judged" for name in lost]
    return [*texts, *(f"{text}, since it was recorded" for text in looser)], notes


def _describe_counting(context: GoldenContext, golden: Golden, states: Sequence[_SegmentCheck]) -> list[str]:
    """Warn of a golden that does not state how its program counts steps; name the cost and the command to record it."""
    if not states or golden.steps_beyond is not None:
        return []
    twice, options = sum(state.beyond for state in states), replace(context.options, tests=(context.test.name,))
    cost = f"{twice} of {len(states)} segments were run twice" if twice else "each check tries"
    what = "the golden recording does not state how the program counts its steps"
    return [f"{what}: {cost}; record it once:\n  assay golden gather {options.build_arguments()} --counting"]


def _find_odd(context: GoldenContext, golden: Golden) -> Iterator[str]:
    """Yield problems that make any verdict invalid."""
    judged = {rule.metric for rule in context.test.rules}
    yield from (describe_gap(metric, step) for metric, step in golden.gaps if metric in judged)
    if not golden.segments:
        yield "the golden recording has no segment: gather it again"
    if not golden.complete:
        yield "the golden recording is not complete: its gathering did not finish; gather it again"
    yield from (f"the golden recording is not valid: {what}" for what in manifests.find_not_finite(golden, judged))


def _hint_to_gather(context: GoldenContext) -> str:
    """Return a hint: the command to gather, and other manifests of this test in the same store."""
    if found := context.hint_to_use():
        return found
    options = context.options
    how = "the same command with -g" if options.is_harness else f"`assay golden gather {options.build_arguments()}`"
    hint = f"gather it first: {how}"
    prefix = context.test.name + "_"
    names = [os.path.basename(path) for path in manifests.list_manifests(context.store)]
    partial = os.path.basename(context.manifest + manifests.PARTIAL_SUFFIX)
    if others := [name.removeprefix(prefix) for name in names if name.startswith(prefix) and name != partial]:
        hint += f"; or name an existing one: --manifest-name {' or '.join(others)}"
    if partial in names:
        hint += f"; {partial} is from a gathering that did not finish"
    return hint


def _build_warnings(context: GoldenContext, golden: Golden) -> Iterator[str]:
    for rule in context.test.rules:
        if rule.metric not in context.test.parsed_metrics and context.is_original:
            yield f"{rule.metric}: no parser reads it, so it cannot pass"
        elif golden.segments and rule.metric not in golden.metrics:
            yield f"{rule.metric}: the golden recording does not have it, so it cannot pass"
    steps, host = golden.steps_per_segment, golden.provenance.get("host")
    if steps and steps != context.test.steps_to_record:
        yield f"the golden was recorded over {steps} steps, the file has {context.test.steps_to_record}"
    if host and context.farm is None and host != os.uname().nodename:
        yield f"the golden was recorded on another machine ({host})"
