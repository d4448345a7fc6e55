"""Gathering: one training is recorded at its checkpoints; then replicas repeat the recorded segments for the noise."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

from assay.errors import FormatError, UsageError
from assay.follow.api import Entry
from assay.golden import manifests
from assay.golden.flow.followers import Listening, RunFiles, describe_end, find_log, find_unread, load_log
from assay.golden.flow.runs import (
    Replication,
    build_provenance,
    choose_training,
    describe_noise,
    describe_quiet,
    load_code_marks,
    lock_store,
)
from assay.golden.flow.segments import (
    GoldenContext,
    build_run,
    can_check,
    check_store,
    describe_locations,
    run_segments,
)
from assay.golden.judge.evidence import find_dead
from assay.golden.judge.golden import (
    find_equal,
    find_far_variants,
    find_idle_variants,
    find_refusals,
    measure_golden_noise,
    summarise_noise,
)
from assay.golden.recorder import LogReader, SegmentRecording, TrainingRecorder, Values
from assay.golden.values import Golden, GoldenTest, GoldenTestReport, Segment, SegmentRun, Track
from assay.launch.api import Report, RunHooks
from assay.show.console import CollectingConsole, Console
from assay.system.fast_dataclasses import replace
from assay.values.run import RunSpec, State
from assay.values.verdict import Finding, Verdict, VerdictKind

_NOT_COUNTED = "how the program counts its steps is not recorded"


def gather_test(context: GoldenContext, hooks: RunHooks) -> GoldenTestReport:
    """Train once, record, repeat the segments, measure the noise, write the manifest.

    Until all that has finished, the previous golden stays with its checkpoints; the new one is written next to it, to
    `<manifest>.partial`.
    """
    context = choose_checkpoints(context)
    check_store(context)
    with lock_store(context):
        work = _Gathering(context, *choose_training(context, hooks))
        report = run_segments(context, [work.spec], replace(hooks, observe=lambda inner: Listening(inner, work.follow)))
        entry = report.entries[0]
        work.conclude(entry)
        work.runs.append(build_run(entry, work.recorder.last_step))
        if work.golden is not None and entry.state is State.DONE and not (report.interrupted or report.problem):
            report = work.repeat(work.golden, hooks) or report
        work.measure()
        work.settle(bool(report.interrupted or report.problem))
        return replace(work.report(), interrupted=report.interrupted, problem=report.problem)


def count_test(context: GoldenContext, hooks: RunHooks) -> GoldenTestReport:
    """Record in an existing golden how its program counts its steps: one run of one segment."""
    golden = manifests.load_manifest(context.manifest, context.test.name)
    if not golden.segments:
        raise UsageError("the golden recording has no segment", "gather it again")
    work = Replication(context, replace(golden, steps_beyond=None), 0)
    report = work.learn(hooks)
    findings, steps = list(work.findings), work.golden.steps_beyond
    if steps is not None:
        manifests.write_offset(context.manifest, work.golden)
        how = (
            "a check trains one step further than the file asks" if steps else "a check trains as far as the file asks"
        )
        findings.append(Finding(VerdictKind.PASS, context.test.name, f"the counting is recorded: {how}"))
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


# ---------------------------------------------------------------- the training


class _Follower:
    """Reads the training's log and keeps the manifest up to date with every complete recording."""

    def __init__(self, work: _Gathering) -> None:
        self._work = work
        self._files = RunFiles()

    def read(self, entry: Entry, final: bool) -> None:
        data = self._files.read_log(entry)
        filled = self._work.recorder.feed(data) if data else False
        if not self._work.context.test.same_line:
            self._files.read_metrics(entry, final, self._work.file_values)
        if filled and not final:
            self._work.save(entry, complete=False)


class _Gathering:
    """The state of one gathering."""

    def __init__(self, context: GoldenContext, spec: RunSpec, notes: Sequence[str]) -> None:
        self.context = context
        self.spec = spec
        self.replicas = context.options.replicas if context.options.replicas is not None else context.test.replicas
        self.recorder = _build_recorder(context.test)
        self.file_values = Values()
        self.golden: Golden | None = None
        self.runs: list[SegmentRun] = []
        self.findings: list[Finding] = []
        self.console = CollectingConsole()  # its lines are the report's warnings
        self.notes: list[str] = [*notes, *describe_locations(context)]
        self.manifest = manifests.partial_path(context.manifest)
        self._segments = SegmentBuilder(context, self.console)
        self._refusals: list[Finding] = []
        self._log = ""
        self._marks = load_code_marks(context)
        self._before, self._replacing = _load_before(context)

    def follow(self, _entry: Entry) -> _Follower:
        """A new attempt trains from the start: what the one before it recorded does not count."""
        self.recorder = _build_recorder(self.context.test)
        self.file_values = Values()
        return _Follower(self)

    def save(self, entry: Entry, complete: bool) -> None:
        over = [recording for recording in self.recorder.recordings if recording.is_over]
        golden = self._build(entry, over, complete) if over else None  # a run that never began has no directory
        if golden is not None and golden.segments:
            self.golden = golden
            self._write_partial(golden)

    def _write_partial(self, golden: Golden) -> None:
        """Never marked complete: it has not been accepted yet."""
        manifests.write_manifest(self.manifest, replace(golden, complete=False))

    def conclude(self, entry: Entry) -> None:
        self.recorder.finish()
        is_done = entry.state is State.DONE
        last = self.recorder.describe_last_save() if is_done else None
        self.console.lines += [text for text in self.recorder.warnings if text != last]
        self.notes += [text for text in self.recorder.warnings if text == last]
        if not is_done:
            self._find(VerdictKind.ERROR, "training", f"the training failed: {describe_end(entry)}")
        self.save(entry, complete=is_done)
        self._log = find_log(entry)
        self._report_gaps(entry)

    def _find(self, kind: VerdictKind, subject: str, message: str) -> None:
        self.findings.append(Finding(kind, f"{self.context.test.name} {subject}", message))

    # ------------------------------------------------------------ from recordings to a golden

    def _build(self, entry: Entry, recordings: Sequence[SegmentRecording], complete: bool) -> Golden:
        found = [self._segments.build(recording, self.file_values) for recording in recordings]
        return Golden(
            test=self.context.test.name,
            segments=tuple(segment for segment in found if segment is not None),
            steps_per_segment=self.context.test.steps_to_record,
            provenance=build_provenance(self.context, entry, self._marks),
            history=self._before.history if self._before else (),
            complete=complete,
        )

    def _report_gaps(self, entry: Entry) -> None:
        """Report gaps of the recording; an empty one is never a success."""
        recorder = self.recorder
        stream = {"both": "the log", "stdout": "stdout", "stderr": "stderr"}[self.context.test.stream]
        where = f"{stream} is in {find_log(entry)}"
        if not recorder.steps:
            self._find(VerdictKind.ERROR, "log", f"no line matches the pattern of the step ({where})")
        if not recorder.saves:
            self._find(VerdictKind.ERROR, "log", f"no line matches the pattern of a saved checkpoint ({where})")
        known = {problem for recording in recorder.recordings for problem in recording.values.problems}
        for problem in recorder.disorder[:1]:
            if problem not in known:
                self._find(VerdictKind.ERROR, "log", problem)
        for recording in recorder.recordings:
            problems = list(recording.values.problems)
            if not problems and not recording.is_empty and self._segments.find_saved(recording) is None:
                problems = [f"the checkpoint {recording.saved.path} does not exist"]
            for problem in problems:
                subject = f"segment {recording.start_step}"
                self._find(VerdictKind.ERROR, subject, f"{problem}; this segment is not recorded")
        self._report_metrics(entry)

    def _report_metrics(self, entry: Entry) -> None:
        segments = self.golden.segments if self.golden else ()
        parsed = self.context.test.parsed_metrics
        why = find_unread(self.context.test, load_log(entry)) if segments else {}
        for rule in self.context.test.rules:
            if not segments or any(rule.metric in segment.tracks for segment in segments):
                continue
            if rule.metric in parsed or not self.context.is_original:
                cause = f": it {why[rule.metric]}" if rule.metric in why else ""
                self._find(VerdictKind.ERROR, rule.metric, f"was not logged in any recorded segment{cause}")
            else:
                self._find(VerdictKind.INCONCLUSIVE, rule.metric, "no parser reads it, so a check cannot pass")

    # ------------------------------------------------------------ the end

    def repeat(self, golden: Golden, hooks: RunHooks) -> Report | None:
        """Each segment again, for the noise. Without replicas: how the program counts its steps, by one run; if that
        fails the recording is still valid, and a check finds out."""
        work = Replication(self.context, golden, self.replicas)
        if self.replicas or self.context.test.variants:
            report = work.run(hooks)
            self.findings += work.findings
        elif can_check(self.context):
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
        judged = {rule.metric for rule in self.context.test.rules}
        for what in manifests.find_not_finite(self.golden, judged):
            self._find(VerdictKind.ERROR, "recording", f"{what}: the recording is not valid")
        self.console.lines += manifests.find_not_finite(self.golden, set(self.golden.metrics) - judged)
        found = measure_golden_noise(self.context.test.rules, self.golden)
        self.golden = replace(self.golden, noise=summarise_noise(found))
        self.notes += describe_noise(found, self.context.test.rules)
        for text in find_dead(self.golden):  # the original's command warns, and a check is INCONCLUSIVE
            if self.context.is_original:
                self.console.warning(text)
            else:
                self._find(VerdictKind.INCONCLUSIVE, "recording", text)
        self._report_variants(self.golden)
        for _, finding in find_refusals(self.context.test.rules, found):
            if self.context.is_original:
                self.console.warning(f"{finding.subject}: {finding.message}")
            else:
                self._refusals.append(finding)

    def _report_variants(self, golden: Golden) -> None:
        rules = self.context.test.rules
        for name in find_idle_variants(rules, golden):
            self.console.warning(f"the variant {name} changes nothing: equal bit for bit to the recording")
        for text in find_far_variants(rules, golden):
            self.console.warning(text)
        if not self.context.test.variants and not self.context.is_original and find_equal(rules, golden):
            self.notes += describe_quiet(self.context)

    def settle(self, is_cut: bool) -> None:
        """The new golden replaces the old one, or stays next to it."""
        bad = [found for found in self.findings if found.kind in (VerdictKind.ERROR, VerdictKind.FAIL)]
        # a rule that is too narrow can be fixed in the file, without training again
        is_good = not bad and not is_cut and not (self._refusals and self._before)
        self.findings += self._refusals
        if self.golden is not None and is_good:
            self._replace(self.golden)
            return
        if self.golden is not None:
            self.golden = replace(self.golden, complete=False)
            self._write_partial(self.golden)
        if self._replacing is not None:
            self.notes.append(f"the previous golden recording is unchanged: {self.context.manifest}")
        if bad:
            self.notes.append(f"log: {self._log}")

    def _replace(self, golden: Golden) -> None:
        """Write the manifest first, then remove what only the old one needed."""
        path = self.context.manifest
        old = manifests.load_references(path) if self._before else None
        manifests.write_manifest(path, golden)
        self.manifest = path
        with contextlib.suppress(OSError):
            os.unlink(manifests.partial_path(path))
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


def _build_recorder(test: GoldenTest) -> TrainingRecorder:
    reader = LogReader(test.step, test.metrics, test.save, named_groups=not test.same_line)
    return TrainingRecorder(reader, test.steps_to_record, test.same_line)


# ---------------------------------------------------------------- before the training


def choose_checkpoints(context: GoldenContext) -> GoldenContext:
    """Choose a checkpoint folder in which nothing that a golden needs is overwritten."""
    return replace(context, checkpoints=manifests.choose_checkpoint_dir(context.manifest, context.checkpoints))


def _load_before(context: GoldenContext) -> tuple[Golden | None, str | None]:
    """The existing golden, and the message when it is replaced."""
    try:
        before = manifests.load_manifest(context.manifest, context.test.name)
    except UsageError:
        return None, None
    except FormatError as error:
        return None, f"{error.message}; it is replaced"
    when = before.provenance.get("gathered_at")
    return before, f"the golden recording {'of ' + str(when) if when else 'that existed'} is replaced"


class SegmentBuilder:
    def __init__(self, context: GoldenContext, console: Console) -> None:
        self._context = context
        self._console = console
        self._hashes: dict[str, str | None] = {}

    def build(self, recording: SegmentRecording, file_values: Values) -> Segment | None:
        tracks: dict[str, dict[str, tuple[Track, ...]]] = {}
        for metric in {name for name, _ in recording.values.found}:
            tracks[metric] = {label: (track,) for label, track in recording.values.tracks(metric).items()}
        for metric, track in self._cut_files(recording, file_values).items():
            tracks.setdefault(metric, {"": (track,)})
        if not tracks or recording.values.problems:
            return None
        path = self.find_saved(recording)
        if path is None:
            return None
        if path not in self._hashes:
            self._hashes[path] = manifests.hash_checkpoint(path)
        names = [pattern.metric for pattern in self._context.test.metrics]  # the file's order, whatever the log's
        order = sorted(tracks, key=lambda name: (names.index(name) if name in names else len(names), name))
        ordered = {name: tracks[name] for name in order}
        return Segment(recording.start_step, self._relative(path), ordered, self._hashes[path])

    def _cut_files(self, recording: SegmentRecording, file_values: Values) -> Mapping[str, Track]:
        """Values in files for the same steps."""
        limit = recording.limit if recording.limit is not None else recording.start_step + recording.length
        wanted = {rule.metric for rule in self._context.test.rules}
        cut: dict[str, Track] = {}
        for metric in {name for name, _ in file_values.found} & wanted:
            track = file_values.tracks(metric)[""]
            rows = [
                row
                for row in zip(track.steps, track.values, track.texts, strict=True)
                if recording.start_step < row[0] <= limit
            ]
            if rows:
                cut[metric] = Track(*(tuple(column) for column in zip(*rows, strict=True)))
        return cut

    def find_saved(self, recording: SegmentRecording) -> str | None:
        """The checkpoint that a save line names; a path that the pattern cut short is completed."""
        named = recording.saved.path
        rest = recording.saved.rest
        longer = named + (rest.split()[0] if rest[:1].strip() else "")
        candidates = dict.fromkeys([longer, named, longer.rstrip("\"'.,;:)"), (named + rest).strip()])
        paths = [os.path.normpath(os.path.join(self._context.folder, name)) for name in candidates if name]
        found = [path for path in paths if os.path.lexists(path)]
        inside = [path for path in found if path.startswith(self._context.store + os.sep)]
        return next(iter(inside or found), None)

    def _relative(self, path: str) -> str:
        folder = os.path.dirname(self._context.manifest)
        if path.startswith(folder + os.sep):
            return os.path.relpath(path, folder)
        text = f"the checkpoint {path} is outside the store: the golden cannot be moved to another machine"
        self._console.warning(text)
        return path
