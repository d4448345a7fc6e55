"""Gathers a golden: records one training at its checkpoints, then repeats the recorded segments to measure noise."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

from assay.errors import FormatError, UsageError
from assay.follow.api import Entry
from assay.golden import manifests
from assay.golden.flow.followers import (
    LiveReader,
    RunOutput,
    SegmentFollower,
    describe_end,
    find_log,
    find_unread,
    follow_runs,
    load_log,
)
from assay.golden.flow.runs import (
    Replication,
    build_provenance,
    choose_training,
    describe_noise,
    describe_quiet,
    load_code_marks,
    lock_store,
)
from assay.golden.flow.segments import ENDED_WELL, GoldenContext, build_run, choose_golden, name_golden
from assay.golden.judge.evidence import find_dead, find_seedless
from assay.golden.judge.golden import (
    find_equal,
    find_far_variants,
    find_idle_variants,
    find_refusals,
    measure_golden_noise,
    summarise_noise,
)
from assay.golden.recorder import LogReader, SegmentRecording, TrainingRecorder, Values
from assay.golden.values import Golden, GoldenTest, GoldenTestReport, Segment, SegmentRun
from assay.launch.api import Report, RunHooks
from assay.show.console import CollectingConsole, Console
from assay.show.formatting import render_count
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.values.run import RunSpec, State
from assay.values.verdict import Finding, Verdict, VerdictKind

_MOST_NAMED = 3  # problems of a recording that are listed one by one
_NOT_COUNTED = "how the program counts its steps is not recorded"


def gather_test(context: GoldenContext, hooks: RunHooks) -> GoldenTestReport:
    """Train once, record, repeat the segments, measure the noise, write the manifest. Until the gathering has finished,
    the previous golden and its checkpoints are kept, and the new golden is written to `<manifest>.partial`."""
    context = name_golden(context).choose_checkpoints()
    context.check_store()
    build = _StartGathering if context.test.from_start else _Gathering
    with lock_store(context):
        work = build(context, *choose_training(context, hooks))
        report = context.run_segments([work.spec], follow_runs(hooks, work.follow))
        entry = report.entries[0]
        work.conclude(entry)
        work.runs.append(build_run(entry, work.last_step))
        if work.golden is not None and entry.state in ENDED_WELL and not (report.interrupted or report.problem):
            report = work.repeat(work.golden, hooks) or report
        work.measure()
        work.settle(bool(report.interrupted or report.problem))
        return replace(work.report(), interrupted=report.interrupted, problem=report.problem)


def count_test(context: GoldenContext, hooks: RunHooks) -> GoldenTestReport:
    """Record in an existing golden how its program counts its steps: one run of one segment."""
    context = choose_golden(context)
    golden = context.load_golden()
    if not context.can_check:
        hint = "--counting is for checkpoints with `resume` and `length`"
        raise UsageError(f"{context.test.name} has no length to count: nothing is to be recorded", hint)
    if not golden.segments:
        raise UsageError("the golden recording has no segment", "gather it again")
    work = Replication(context, replace(golden, steps_beyond=None), 0)
    report = work.learn(hooks)
    findings, steps = list(work.findings), work.golden.steps_beyond
    if steps is not None:
        manifests.write_offset(context.manifest, work.golden)
        how = "one step further than" if steps else "as far as"
        message = f"the counting is recorded: a check trains {how} the file asks"
        findings.append(Finding(VerdictKind.PASS, context.test.name, message))
    return GoldenTestReport(
        test=context.test.name,
        manifest=context.manifest,
        verdict=Verdict.of(findings, 1 if steps is not None else 0),
        golden=work.golden,
        runs=tuple(work.runs),
        notes=tuple(finding.message for finding in findings if finding.kind is VerdictKind.PASS),
        interrupted=report.interrupted,
        problem=report.problem,
    )


class _Gathering:
    """The state of one gathering, which follows its training."""

    def __init__(self, context: GoldenContext, spec: RunSpec, notes: Sequence[str]) -> None:
        self.context = context
        self.spec = spec
        self.replicas = context.options.replicas if context.options.replicas is not None else context.test.replicas
        self.golden: Golden | None = None
        self.runs: list[SegmentRun] = []
        self.findings: list[Finding] = []
        self.console = CollectingConsole()  # lines of this console are warnings in the report
        self.notes: list[str] = [*notes, *context.describe_locations()]
        self.manifest = context.manifest + manifests.PARTIAL_SUFFIX
        self._segments = SegmentBuilder(context, self.console)
        self._refusals: list[Finding] = []
        self._log = ""
        self._marks = load_code_marks(context)
        self._before: Golden | None = None
        self._replacing: str | None = None  # the message for when the existing golden is replaced
        try:
            self._before = manifests.load_manifest(context.manifest, context.test.name)
            when = self._before.provenance.get("gathered_at")
            self._replacing = f"the golden recording {'of ' + str(when) if when else 'that existed'} is replaced"
        except UsageError:
            pass
        except FormatError as error:
            self._replacing = f"{error.message}; it is replaced"
        self.follow()

    @property
    def last_step(self) -> int | None:
        return self.recorder.last_step

    def follow(self, _entry: Entry | None = None) -> LiveReader:
        """Follow a new attempt, which trains from the start: recordings of earlier attempts are discarded."""
        test = self.context.test
        reader = LogReader(test.step, test.metrics, test.save, named_groups=not test.same_line)
        self.recorder = TrainingRecorder(reader, test.steps_to_record, test.same_line)
        self.file_values, self._files = Values(), RunOutput()
        return self

    def read(self, entry: Entry, final: bool) -> None:
        """Read the log, and keep the manifest up to date with every complete recording."""
        data = self._files.read_log(entry)
        filled = self.recorder.feed(data) if data else False
        if not self.context.test.same_line:
            self._files.read_metrics(entry, final, self.file_values)
        if filled and not final:
            self.save(entry, complete=False)

    def find_end(self) -> None:
        """Return None: a training with checkpoints ends by itself."""

    def save(self, entry: Entry, complete: bool) -> None:
        over = [recording for recording in self.recorder.recordings if recording.is_over]
        found = [self._segments.build(recording, self.file_values) for recording in over]
        if segments := [segment for segment in found if segment is not None]:
            self.golden = self._build_golden(entry, segments, complete)
            manifests.write_manifest(self.manifest, replace(self.golden, complete=False))  # `settle` accepts the golden

    def conclude(self, entry: Entry) -> None:
        self._log = find_log(entry)
        if entry.state not in ENDED_WELL:
            self._find(VerdictKind.ERROR, "training", f"the training failed: {describe_end(entry)}")
        self._record(entry)
        self._report_metrics(entry)

    def _record(self, entry: Entry) -> None:
        is_done = entry.state is State.DONE
        self.recorder.finish()
        last = self.recorder.describe_last_save() if is_done else None
        self.console.lines += [text for text in self.recorder.warnings if text != last]
        self.notes += [text for text in self.recorder.warnings if text == last]
        self.save(entry, complete=is_done)
        self._report_gaps()

    def _find(self, kind: VerdictKind, subject: str, message: str) -> None:
        self.findings.append(Finding(kind, f"{self.context.test.name} {subject}", message))

    def _build_golden(self, entry: Entry, segments: Sequence[Segment], complete: bool) -> Golden:
        test = self.context.test
        return Golden(
            test=test.name,
            segments=tuple(segments),
            steps_per_segment=test.steps_to_record,
            provenance=build_provenance(self.context, entry, self._marks),
            history=self._before.history if self._before else (),
            complete=complete,
            steps_beyond=None if test.has_length and not test.from_start else 0,
        )

    def _report_unmatched(self, what: str) -> None:
        stream = {"both": "the log", "stdout": "stdout", "stderr": "stderr"}[self.context.test.stream]
        self._find(VerdictKind.ERROR, "log", f"no line matches the pattern of {what} ({stream} is in {self._log})")

    def _report_gaps(self) -> None:
        """Report gaps of the recording; an empty recording is an error."""
        recorder = self.recorder
        if not recorder.steps:
            self._report_unmatched("the step")
        if not recorder.saves:
            self._report_unmatched("a saved checkpoint")
        known = {problem for recording in recorder.recordings for problem in recording.values.problems}
        for problem in recorder.disorder[:1]:
            if problem not in known:
                self._find(VerdictKind.ERROR, "log", problem)
        found: list[tuple[int, str]] = []
        for recording in recorder.recordings:
            problems = recording.values.problems
            if not problems and not recording.is_empty and self._segments.find_saved(recording) is None:
                problems = [f"the checkpoint {recording.saved.path} does not exist"]
            found += [(recording.start_step, problem) for problem in problems]
        for start, problem in found[:_MOST_NAMED]:
            where = f"segment {start}"
            self._find(VerdictKind.ERROR, where, f"{where}: {problem}; this segment is not recorded")
        if rest := sorted({start for start, _ in found[_MOST_NAMED:]}):
            where = f"segments {rest[0]} to {rest[-1]}" if rest[1:] else f"segment {rest[0]}"
            more = render_count(len(found) - _MOST_NAMED, "more problem")
            self._find(VerdictKind.ERROR, where, f"{where}: {more}, the last one: {found[-1][1]}; not recorded")

    def _report_metrics(self, entry: Entry) -> None:
        segments = self.golden.segments if self.golden else ()
        parsed = self.context.test.parsed_metrics
        why = find_unread(self.context.test, load_log(entry)) if segments else {}
        for rule in self.context.test.rules:
            if not segments or any(rule.metric in segment.tracks for segment in segments):
                continue
            if rule.metric in parsed or not self.context.is_original:
                cause = f": it {why[rule.metric]}" if rule.metric in why else ""
                what = f"{rule.metric}: was not logged in any recorded segment{cause}"
                self._find(VerdictKind.ERROR, rule.metric, what)
            else:
                what = f"{rule.metric}: no parser reads it, so a check cannot pass"
                self._find(VerdictKind.INCONCLUSIVE, rule.metric, what)

    def repeat(self, golden: Golden, hooks: RunHooks) -> Report | None:
        """Run each segment again for the noise or, without replicas, one segment to learn how the program counts its
        steps. If the run of one segment fails, the recording is valid, and a check learns how the program counts."""
        work = Replication(self.context, golden, self.replicas)
        if self.replicas or self.context.test.variants:
            report = work.run(hooks)
            self.findings += work.findings
        elif golden.steps_beyond is None and self.context.can_check:
            report = work.learn(hooks)
            self.console.lines += [f"{_NOT_COUNTED}: {found.message}" for found in work.findings]
        else:
            return None
        self.golden = work.golden
        self.runs += work.runs
        return report

    def measure(self) -> None:
        """Measure noise from replicas; report values that are not finite."""
        if self.golden is None:
            return
        rules = self.context.test.rules
        judged = {rule.metric for rule in rules}
        for what in manifests.find_not_finite(self.golden, judged):
            self._find(VerdictKind.ERROR, "recording", f"{what}: the recording is not valid")
        self.console.lines += manifests.find_not_finite(self.golden, set(self.golden.metrics) - judged)
        found = measure_golden_noise(rules, self.golden)
        self.golden = replace(self.golden, noise=summarise_noise(found))
        self.notes += describe_noise(found, rules)
        seedless = find_seedless(rules, self.golden, self.context.test.seed_flag)
        for text in [*find_dead(self.golden), *seedless]:  # the original harness warns, and a check is INCONCLUSIVE
            if self.context.is_original:
                self.console.warning(text)
            else:
                self._find(VerdictKind.INCONCLUSIVE, "recording", text)
        for name in find_idle_variants(rules, self.golden):
            self.console.warning(f"the variant {name} changes nothing: equal bit for bit to the recording")
        for text in find_far_variants(rules, self.golden):
            self.console.warning(text)
        is_unsure = not self.context.test.variants and not self.context.is_original and not self.findings
        if is_unsure and find_equal(rules, self.golden):
            self.notes += describe_quiet(self.context)
        for _, finding in find_refusals(rules, found):
            if self.context.is_original:
                self.console.warning(f"{finding.subject}: {finding.message}")
            else:
                self._refusals.append(replace(finding, label=finding.subject))

    def settle(self, is_cut: bool) -> None:
        """Replace the old golden by the new one, or keep the old golden and the new one as `<manifest>.partial`."""
        bad = [found for found in self.findings if found.kind in (VerdictKind.ERROR, VerdictKind.FAIL)]
        doubts = [found for found in self.findings if found.kind is VerdictKind.INCONCLUSIVE]  # no check of it can pass
        # a rule that is too narrow can be fixed in the file, without training again
        is_good = not bad and not is_cut and not (self._before and (self._refusals or doubts))
        self.findings += self._refusals
        if self.golden is not None and is_good:
            self._replace(self.golden)
            return
        if self.golden is not None:
            self.golden = replace(self.golden, complete=False)
            manifests.write_manifest(self.manifest, self.golden)
        if self._replacing is not None:
            how = "; remove that file and gather again to accept the new one" if doubts and not (bad or is_cut) else ""
            self.notes.append(f"the previous golden recording is unchanged: {self.context.manifest}{how}")
        if bad:
            self.notes.append(f"log: {self._log}")

    def _replace(self, golden: Golden) -> None:
        """Write the new manifest, then remove the checkpoints that only the old manifest needed."""
        path = self.context.manifest
        old = manifests.load_references(path) if self._before else None
        manifests.write_manifest(path, golden)
        self.manifest = path
        with contextlib.suppress(OSError):
            os.unlink(path + manifests.PARTIAL_SUFFIX)
        manifests.remove_checkpoints(path, old or ())
        if self._replacing is not None:
            self.console.warning(self._replacing)

    def report(self) -> GoldenTestReport:
        values = self.golden.values if self.golden else 0
        if self.golden and self.golden.segments:
            message = f"{len(self.golden.segments)} segments, {values} values recorded"
            self.findings.append(Finding(VerdictKind.PASS, self.context.test.name, message))
        return GoldenTestReport(
            test=self.context.test.name,
            manifest=self.manifest,
            verdict=Verdict.of(self.findings, values),
            golden=self.golden,
            runs=tuple(self.runs),
            notes=tuple(self.notes),
            warnings=tuple(dict.fromkeys(self.console.lines)),
        )


class _StartGathering(_Gathering):
    """A gathering without checkpoints: the first steps of the training are its only segment."""

    @property
    def last_step(self) -> int | None:
        return self._follower.values.last_step

    def follow(self, _entry: Entry | None = None) -> LiveReader:
        self._follower = SegmentFollower(self.context.test)
        return self._follower

    def _record(self, entry: Entry) -> None:
        """Record the first steps, unless the training failed or its log contradicts itself."""
        values, test = self._follower.values, self.context.test
        advice = "; to count lines instead, leave `step` out of metrics" if test.step and values.is_disordered else ""
        for problem in values.problems:
            self._find(VerdictKind.ERROR, "log", f"{problem}; nothing is recorded{advice}")
        end = values.find_end(test.steps_to_record)
        wanted = test.parsed_metrics | {rule.metric for rule in test.rules}  # in metric files only judged metrics
        tracks: dict[str, manifests.Labels] = {}
        for (metric, label), found in values.found.items():
            steps = sorted(step for step in found if end is not None and step <= end)
            if steps and metric in wanted:
                tracks.setdefault(metric, {})[label] = (values.cut(metric, label, steps),)
        if not tracks and entry.state in (*ENDED_WELL, State.TIMEOUT):
            self._report_nothing(find_unread(test, load_log(entry)))
        if end is None or not tracks or values.problems or entry.state not in ENDED_WELL:
            return
        self.golden = self._build_golden(entry, [Segment(0, "", _order_tracks(test, tracks))], complete=True)
        if not values.reaches(end):
            text = f"the training ended at step {self.golden.segments[0].last_step}, before its segment of "
            self.console.warning(f"{text}{test.steps_to_record} steps was complete: all of it is recorded")

    def _report_nothing(self, unread: Mapping[str, str]) -> None:
        test = self.context.test
        names = ["the step"] if test.step is not None and test.step.metric in unread else []
        names += [rule.metric for rule in test.rules if rule.metric in unread]
        for name in names:
            self._report_unmatched(name)
        if not names:
            judged = [rule.metric for rule in test.rules]
            text = f"{', '.join(judged)} was not logged in the first {test.steps_to_record} steps"
            self._find(VerdictKind.ERROR, "log", "; ".join([text, *self._follower.values.find_partial(judged)]))


def _order_tracks(test: GoldenTest, tracks: dict[str, manifests.Labels]) -> dict[str, manifests.Labels]:
    """Return the tracks in the order of the file, whatever their order in the log."""
    names = [pattern.metric for pattern in test.metrics]
    order = sorted(tracks, key=lambda name: (names.index(name) if name in names else len(names), name))
    return {name: tracks[name] for name in order}


@dataclass(slots=True)
class SegmentBuilder:
    _context: GoldenContext
    _console: Console
    _hashes: dict[str, str | None] = field(default_factory=dict)

    def build(self, recording: SegmentRecording, file_values: Values) -> Segment | None:
        tracks: dict[str, manifests.Labels] = {}
        for metric, label in recording.values.found:
            tracks.setdefault(metric, {})[label] = (recording.values.cut(metric, label),)
        limit = recording.limit if recording.limit is not None else recording.start_step + recording.length
        steps, judged = range(recording.start_step + 1, limit + 1), {rule.metric for rule in self._context.test.rules}
        for metric, label in file_values.found:  # values in files, for the same steps
            track = file_values.cut(metric, label, steps)
            if track.steps and metric in judged:
                tracks.setdefault(metric, {label: (track,)})
        if not tracks or recording.values.problems:
            return None
        if (path := self.find_saved(recording)) is None:
            return None
        if path not in self._hashes:
            self._hashes[path] = manifests.hash_checkpoint(path)
        ordered, folder = _order_tracks(self._context.test, tracks), os.path.dirname(self._context.manifest)
        shown = os.path.relpath(path, folder) if path.startswith(folder + os.sep) else path
        if shown == path:
            text = f"the checkpoint {path} is outside the store: the golden cannot be moved to another machine"
            self._console.warning(text)
        return Segment(recording.start_step, shown, ordered, self._hashes[path])

    def find_saved(self, recording: SegmentRecording) -> str | None:
        """Find the checkpoint that a save line names; a path that the pattern cut short is completed."""
        named, rest, _ = recording.saved
        longer = named + (rest.split()[0] if rest[:1].strip() else "")
        candidates = dict.fromkeys([longer, named, longer.rstrip("\"'.,;:)"), (named + rest).strip()])
        paths = [os.path.normpath(os.path.join(self._context.folder, name)) for name in candidates if name]
        found = [path for path in paths if os.path.lexists(path)]
        inside = [path for path in found if path.startswith(self._context.store + os.sep)]
        return next(iter(inside or found), None)
