"""Segments that are run again from their checkpoints: what differs between equal runs is noise."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from assay.golden import manifests
from assay.golden.flow.followers import Listening, SegmentFollower, describe_end
from assay.golden.flow.segments import (
    GoldenContext,
    build_check_command,
    build_run,
    build_spec,
    build_stamp,
    run_segments,
    use_variant,
)
from assay.golden.judge.noise import Noise
from assay.golden.judge.pointwise import render_fraction
from assay.golden.recorder import Values
from assay.golden.values import Golden, Rule, Segment, SegmentRun, Track
from assay.study.api import Entry, Report, RunHooks
from assay.values.run import RunSpec, State
from assay.values.verdict import Finding, VerdictKind

Job = tuple[int, int, str]  # the segment's index, the replica's number, the variant's name or ""


@dataclass(slots=True)
class Replication:
    """Every segment of a golden, `count` times more, and once by each variant."""

    context: GoldenContext
    golden: Golden  # with the replicas' values as soon as they exist
    count: int
    runs: list[SegmentRun] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    _found: dict[Job, Values] = field(default_factory=dict)

    def run(self, hooks: RunHooks) -> Report:
        """If it is unknown how the program counts its steps, one run shows it before the others start."""
        names = ["" for _ in range(self.count)] + [variant.name for variant in self.context.test.variants]
        jobs = [(index, at, name) for at, name in enumerate(names, 1) for index in range(len(self.golden.segments))]
        report = None
        if self.golden.steps_beyond is None:
            report, jobs = self._learn(jobs, hooks)
        if jobs and (report is None or not (report.interrupted or report.problem)):
            report, short = self._run_jobs(jobs, self.golden.steps_beyond or 0, hooks)
            if short and not self.golden.steps_beyond and not (report.interrupted or report.problem):
                self.golden = replace(self.golden, steps_beyond=1)
                report, _ = self._run_jobs(short, 1, hooks)
        assert report is not None
        self.golden = replace(self.golden, segments=_add_replicas(self.golden.segments, self._found))
        self._report_lost_steps()
        return report

    def learn(self, hooks: RunHooks) -> Report:
        """Only how the program counts: one run, whose values are not kept."""
        return self._learn([(index, 1, "") for index in range(len(self.golden.segments))], hooks)[0]

    def _learn(self, jobs: Sequence[Job], hooks: RunHooks) -> tuple[Report, list[Job]]:
        """By the segment that reaches furthest from its checkpoint: a segment that was cut short cannot lack a step.

        Returns how it ended, and the jobs that are still to be run.
        """
        job = max(jobs, key=lambda each: (_reach(self._segment(each)), -each[1]))
        report, short = self._run_jobs([job], 0, hooks)
        if job in self._found:
            self.golden = replace(self.golden, steps_beyond=1 if short else 0)
        if short:
            del self._found[job]
        return report, [each for each in jobs if each != job or short]

    def _run_jobs(self, jobs: Sequence[Job], beyond: int, hooks: RunHooks) -> tuple[Report, list[Job]]:
        """How it ended, and the jobs that lack exactly the last step."""
        stamp = build_stamp()
        specs = {job: self._build_spec(job, stamp, beyond) for job in jobs}
        report, followers = follow_specs(self.context, list(specs.values()), hooks)
        entries = {entry.spec.name: entry for entry in report.entries}
        for job, spec in specs.items():
            self._take(job, entries[spec.name], followers.get(spec.name))
        short = [job for job in jobs if job in self._found and falls_one_short(self._segment(job), self._found[job])]
        return report, short

    def _take(self, job: Job, entry: Entry, follower: SegmentFollower | None) -> None:
        self.runs.append(build_run(entry, follower.values.last_step if follower else None))
        if entry.state is State.DONE and follower is not None:
            self._found[job] = follower.values
            return
        subject = f"segment {self._segment(job).start_step}"
        self.findings.append(self._build_error(subject, f"{_name(job)} failed: {describe_end(entry)}"))

    def _segment(self, job: Job) -> Segment:
        return self.golden.segments[job[0]]

    def _build_error(self, subject: str, message: str, step: float | None = None) -> Finding:
        return Finding(VerdictKind.ERROR, f"{self.context.test.name} {subject}", message, step=step)

    def _build_spec(self, job: Job, stamp: str, beyond: int) -> RunSpec:
        segment, (_, number, variant) = self._segment(job), job
        context = next(
            (use_variant(self.context, each) for each in self.context.test.variants if each.name == variant), None
        )
        context = context or self.context
        checkpoint = manifests.find_checkpoint(self.context.manifest, segment.checkpoint) or segment.checkpoint
        seed = number if any(rule.kind == "unmatched" for rule in self.context.test.rules) else None
        text = build_check_command(context, checkpoint, segment.start_step, beyond, seed)
        params = {"mode": "replica", "start_step": segment.start_step, "replica": number}
        params |= {"variant": variant} if variant else {}
        name = f"replica-{stamp}-s{segment.start_step}-{os.path.basename(checkpoint)[:20]}-{number}"
        return build_spec(context, name, text, params)

    def _report_lost_steps(self) -> None:
        """A replica that logs other steps than the training did cannot be compared with it, nor can a check."""
        for job, values in self._found.items():
            segment = self._segment(job)
            for metric, step in _find_lost(segment, values):
                subject = f"segment {segment.start_step} {metric}"
                message = f"{_name(job)} logs no {metric} at step {step}; the training did"
                finding = self._build_error(subject, message, step)
                if finding not in self.findings:
                    self.findings.append(finding)


def _reach(segment: Segment) -> int:
    steps = [step for labels in segment.tracks.values() for runs in labels.values() for step in runs[0].steps]
    return max(steps, default=segment.start_step) - segment.start_step


def _name(job: Job) -> str:
    return f"the variant {job[2]}" if job[2] else "a replica"


def _find_lost(segment: Segment, values: Values) -> Iterator[tuple[str, int]]:
    """Metrics of which a run lacks steps, and the first one of those."""
    for metric, labels in segment.tracks.items():
        lost = {step for runs in labels.values() for step in runs[0].steps} - values.steps_of(metric)
        if lost:
            yield metric, min(lost)


def follow_specs(
    context: GoldenContext, specs: Sequence[RunSpec], hooks: RunHooks
) -> tuple[Report, dict[str, SegmentFollower]]:
    """Run them and read their logs; returns the readers by the runs' names."""
    followers: dict[str, SegmentFollower] = {}

    def follow(entry: Entry) -> SegmentFollower:
        followers[entry.spec.name] = SegmentFollower(context.test)
        return followers[entry.spec.name]

    report = run_segments(context, specs, replace(hooks, observe=lambda inner: Listening(inner, follow)))
    return report, followers


# ---------------------------------------------------------------- values of a run for a segment


def falls_one_short(segment: Segment, values: Values) -> bool:
    """A program that counts from 0 and is asked to stop at N logs N-1 last: it lacks exactly the last step."""
    steps = sorted({step for labels in segment.tracks.values() for runs in labels.values() for step in runs[0].steps})
    seen = {step for track in values.found.values() for step in track}
    missing = [step for step in steps if step not in seen]
    return len(steps) > 1 and missing == steps[-1:] and max(seen, default=0) < steps[-1]


def _add_replicas(segments: Sequence[Segment], found: Mapping[Job, Values]) -> tuple[Segment, ...]:
    added = []
    for index, segment in enumerate(segments):
        here = [(name, found[place, at, name]) for place, at, name in sorted(found) if place == index]
        variants = {name: _cut_all(segment, values) for name, values in here if name}
        added.append(replace(_add_runs(segment, [values for name, values in here if not name]), variants=variants))
    return tuple(added)


def _cut_all(segment: Segment, values: Values) -> dict[str, dict[str, Track]]:
    return {
        metric: {label: cut_track(values, metric, label, first[0].steps) for label, first in labels.items()}
        for metric, labels in segment.tracks.items()
    }


def _add_runs(segment: Segment, runs: Sequence[Values]) -> Segment:
    tracks = {
        metric: {
            label: (*first, *_complete_tracks(runs, metric, label, first[0].steps)) for label, first in labels.items()
        }
        for metric, labels in segment.tracks.items()
    }
    return replace(segment, tracks=tracks)


def _complete_tracks(runs: Sequence[Values], metric: str, label: str, steps: Sequence[int]) -> list[Track]:
    """Replicas that have every step; missing steps have been reported."""
    cut = [cut_track(values, metric, label, steps) for values in runs]
    return [track for track in cut if len(track.steps) == len(steps)]


def cut_track(values: Values, metric: str, label: str, steps: Sequence[int]) -> Track:
    """The values of one run at the steps that the golden has; steps that it lacks are left out."""
    found = values.found.get((metric, label), {})
    rows = [(step, *found[step]) for step in steps if step in found]
    return Track(tuple(row[0] for row in rows), tuple(row[1] for row in rows), tuple(row[2] for row in rows))


# ---------------------------------------------------------------- notes


def describe_noise(found: Sequence[Noise], rules: Sequence[Rule] = ()) -> list[str]:
    """For each metric the noisiest segment: what a check can and cannot show. Exact rules have no delta."""
    exact = {rule.metric for rule in rules if rule.kind == "exact"}
    worst: dict[str, Noise] = {}
    for noise in found:
        if noise.metric in exact:
            continue
        if noise.metric not in worst or noise.per_window > worst[noise.metric].per_window:
            worst[noise.metric] = noise
    return [
        f"{noise.metric}: noise {render_fraction(noise.per_window)} per window, "
        f"{render_fraction(noise.per_step)} per step ({noise.replicas} replicas); "
        f"CHANGED from {render_fraction(noise.outside)}, "
        f"FAIL from {render_fraction(max(noise.outside, noise.detectable[0]))}; "
        f"suggested delta {render_fraction(noise.suggested_delta)}"
        for noise in worst.values()
    ]


def describe_quiet(context: GoldenContext) -> list[str]:
    """Of replicas that are equal bit for bit: what to add to the file, so that harmless changes are known."""
    threads = "1" if dict(context.test.env).get("OMP_NUM_THREADS") == "2" else "2"
    return [
        "the replicas are equal bit for bit: nothing shows how far other kernels or threads move a metric,",
        "so any difference above rounding (0.001%) is CHANGED",
        f"declare a harmless change in {context.options.file}, such as",
        "  golden:",
        "    variants:",
        f"      other-threads: {{env: {{OMP_NUM_THREADS: {threads}}}}}",
        "and gather again: differences as large as a variant's pass",
    ]
