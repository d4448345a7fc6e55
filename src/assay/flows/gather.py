"""Gathering: one training is recorded at its checkpoints; then replicas repeat the recorded segments for the noise."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from assay.errors import FormatError, UsageError
from assay.flows.prepared import Report
from assay.flows.segments import (
    FileFollower,
    Listening,
    LogFollower,
    Scene,
    SegmentFollower,
    build_check_command,
    build_gather_command,
    build_run,
    build_spec,
    build_stamp,
    check_store,
    describe_end,
    describe_places,
    find_log,
    find_unread,
    load_log,
    run_specs,
)
from assay.flows.supervise import Entry
from assay.flows.sweep import Doors
from assay.judge.drift import build_rule_facts
from assay.judge.noise import Noise, check_margin, measure_golden_noise, summarise_noise
from assay.observe.recorder import LogReader, Recording, TrainingRecorder, Values
from assay.record import golden as manifests
from assay.record import rundir
from assay.values import layout
from assay.values.golden import Golden, GoldenTestReport, Rule, Segment, SegmentRun, Track
from assay.values.run import RunSpec, State
from assay.values.verdict import Finding, Verdict, VerdictKind

GATHER_PREFIX = "gather-"
_SEED = re.compile(r"(?:^|\s)-{0,2}([\w.-]*seed[\w.-]*)[= ](\S+)", re.IGNORECASE)


def gather_test(scene: Scene, doors: Doors) -> GoldenTestReport:
    """Train once, record, repeat the segments, measure the noise, write the manifest.

    Until all that has come to a good end the golden that was there stays, with its checkpoints; what there is of the
    new one stands beside it, in `<manifest>.partial`.
    """
    scene = place_checkpoints(scene)
    check_store(scene)
    work = _Gathering(scene)
    report = run_specs(scene, [work.spec], replace(doors, observe=lambda inner: Listening(inner, work.follow)))
    entry = report.entries[0]
    work.conclude(entry)
    runs = [build_run(entry, work.recorder.last_step)]
    is_cut = bool(report.interrupted or report.problem)
    if work.golden is not None and entry.state is State.DONE and not is_cut and work.replicas:
        report, more = work.replicate(doors)
        runs += more
    work.measure()
    work.settle(is_cut or bool(report.interrupted or report.problem))
    return replace(work.report(runs), interrupted=report.interrupted, problem=report.problem)


# ---------------------------------------------------------------- the training


class _Follower:
    """Reads the training's log and keeps the manifest up to date with every recording that is full."""

    def __init__(self, work: _Gathering) -> None:
        self._work = work
        self._log = LogFollower()
        self._files = FileFollower()

    def read(self, entry: Entry, final: bool) -> None:
        data = self._log.read(entry)
        filled = self._work.recorder.feed(data) if data else False
        if not self._work.scene.test.same_line:
            self._files.read(entry, final, self._work.file_values)
        if filled and not final:
            self._work.save(entry, complete=False)


class _Gathering:
    """The state of one gathering."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.replicas = scene.options.replicas if scene.options.replicas is not None else scene.test.replicas
        self.recorder = _Recorder(scene)
        self.file_values = Values()
        self.spec = _choose_spec(scene)
        self.golden: Golden | None = None
        self.findings: list[Finding] = []
        self.warnings: list[str] = []
        self.notes: list[str] = describe_places(scene)
        self.manifest = manifests.partial_path(scene.manifest)
        self._hashes: dict[str, str | None] = {}
        self._refusals: list[Finding] = []
        self._log = ""
        self._before, self._replacing = _load_before(scene)

    def follow(self, _entry: Entry) -> _Follower:
        """A new attempt trains from the start: what the one before it recorded does not count."""
        self.recorder = _Recorder(self.scene)
        self.file_values = Values()
        return _Follower(self)

    def save(self, entry: Entry, complete: bool) -> None:
        over = [recording for recording in self.recorder.recordings if recording.is_over]
        golden = self._build(entry, over, complete)
        if golden.segments:
            self.golden = golden
            self._write_partial(golden)

    def _write_partial(self, golden: Golden) -> None:
        """Never complete, whatever it holds: nobody has found it good yet."""
        manifests.write_manifest(self.manifest, replace(golden, complete=False))

    def conclude(self, entry: Entry) -> None:
        self.recorder.finish()
        is_done = entry.state is State.DONE
        last = self.recorder.describe_last_save() if is_done else None
        self.warnings += [text for text in self.recorder.warnings if text != last]
        self.notes += [text for text in self.recorder.warnings if text == last]
        if not is_done:
            self._find(VerdictKind.ERROR, "training", f"the training did not end well: {describe_end(entry)}")
        self.save(entry, complete=is_done)
        self._log = find_log(entry)
        self._look_for_gaps(entry)

    def _find(self, kind: VerdictKind, subject: str, message: str) -> None:
        self.findings.append(Finding(kind, f"{self.scene.test.name} {subject}", message))

    # ------------------------------------------------------------ from recordings to a golden

    def _build(self, entry: Entry, recordings: Sequence[Recording], complete: bool) -> Golden:
        found = [self._build_segment(recording) for recording in recordings]
        return Golden(
            test=self.scene.test.name,
            segments=tuple(segment for segment in found if segment is not None),
            steps_per_segment=self.scene.test.steps_to_record,
            provenance=build_provenance(self.scene, entry),
            history=self._before.history if self._before else (),
            complete=complete,
        )

    def _build_segment(self, recording: Recording) -> Segment | None:
        tracks: dict[str, dict[str, tuple[Track, ...]]] = {}
        for metric in {name for name, _ in recording.values.found}:
            tracks[metric] = {label: (track,) for label, track in recording.values.tracks(metric).items()}
        for metric, track in self._cut_files(recording).items():
            tracks.setdefault(metric, {"": (track,)})
        if not tracks or recording.values.problems:
            return None
        path = self._find_saved(recording)
        if path is None:
            return None
        return Segment(recording.start_step, self._relative(path), _in_order(tracks, self.scene), self._hash(path))

    def _cut_files(self, recording: Recording) -> Mapping[str, Track]:
        """What files say about the same steps."""
        limit = recording.limit if recording.limit is not None else recording.start_step + recording.length
        wanted = {rule.metric for rule in self.scene.test.rules}
        cut: dict[str, Track] = {}
        for metric in {name for name, _ in self.file_values.found} & wanted:
            track = self.file_values.tracks(metric)[""]
            rows = [
                row
                for row in zip(track.steps, track.values, track.texts, strict=True)
                if recording.start_step < row[0] <= limit
            ]
            if rows:
                cut[metric] = Track(*(tuple(column) for column in zip(*rows, strict=True)))
        return cut

    def _find_saved(self, recording: Recording) -> str | None:
        """The checkpoint that a save line names; a pattern that cuts the path short is helped out."""
        named = recording.saved.path
        rest = recording.saved.rest
        longer = named + (rest.split()[0] if rest[:1].strip() else "")
        candidates = dict.fromkeys([longer, named, longer.rstrip("\"'.,;:)"), (named + rest).strip()])
        paths = [os.path.normpath(os.path.join(self.scene.folder, name)) for name in candidates if name]
        found = [path for path in paths if os.path.lexists(path)]
        inside = [path for path in found if path.startswith(self.scene.store + os.sep)]
        return next(iter(inside or found), None)

    def _relative(self, path: str) -> str:
        folder = os.path.dirname(self.scene.manifest)
        if path.startswith(folder + os.sep):
            return os.path.relpath(path, folder)
        warning = f"the checkpoint {path} lies outside the store: the golden cannot be moved to another machine"
        if warning not in self.warnings:
            self.warnings.append(warning)
        return path

    def _hash(self, path: str) -> str | None:
        if path not in self._hashes:
            self._hashes[path] = manifests.hash_checkpoint(path)
        return self._hashes[path]

    def _look_for_gaps(self, entry: Entry) -> None:
        """What a user must know about this recording; nothing recorded is never a success."""
        recorder = self.recorder
        if not recorder.steps:
            self._find(
                VerdictKind.ERROR,
                "log",
                f"no line matches the pattern of the step ({_stream_words(self.scene, entry)})",
            )
        if not recorder.saves:
            self._find(
                VerdictKind.ERROR,
                "log",
                f"no line says that a checkpoint was saved ({_stream_words(self.scene, entry)})",
            )
        told = {problem for recording in recorder.recordings for problem in recording.values.problems}
        for problem in recorder.disorder[:1]:
            if problem not in told:
                self._find(VerdictKind.ERROR, "log", problem)
        for recording in recorder.recordings:
            subject = f"segment {recording.start_step}"
            for problem in recording.values.problems:
                self._find(VerdictKind.ERROR, subject, f"{problem}; this segment is not recorded")
            if not recording.is_empty and not recording.values.problems and self._find_saved(recording) is None:
                self._find(
                    VerdictKind.ERROR,
                    subject,
                    f"the checkpoint {recording.saved.path} is not there; this segment is not recorded",
                )
        self._look_for_metrics(entry)

    def _look_for_metrics(self, entry: Entry) -> None:
        segments = self.golden.segments if self.golden else ()
        parsed = self.scene.test.parsed_metrics
        why = find_unread(self.scene.test, load_log(entry)) if segments else {}
        for rule in self.scene.test.rules:
            if any(rule.metric in segment.tracks for segment in segments) or not segments:
                continue
            if rule.metric in parsed or not self.scene.is_original:
                cause = f": it {why[rule.metric]}" if rule.metric in why else ""
                self._find(VerdictKind.ERROR, rule.metric, f"was not logged in any recorded segment{cause}")
            else:
                self._find(VerdictKind.INCONCLUSIVE, rule.metric, "no parser reads it, so a check cannot pass")

    # ------------------------------------------------------------ replicas

    def replicate(self, doors: Doors) -> tuple[Report, list[SegmentRun]]:
        """Each segment again, from its checkpoint: what differs between equal runs is noise."""
        golden = self.golden
        assert golden is not None
        jobs = [(index, number) for number in range(1, self.replicas + 1) for index in range(len(golden.segments))]
        beyond = 0
        runs: list[SegmentRun] = []
        found: dict[tuple[int, int], Values] = {}
        while True:
            stamp = build_stamp()
            specs = {job: self._replica_spec(golden.segments[job[0]], job[1], stamp, beyond) for job in jobs}
            followers: dict[str, SegmentFollower] = {}

            def follow(entry: Entry, followers: dict[str, SegmentFollower] = followers) -> SegmentFollower:
                followers[entry.spec.name] = SegmentFollower(self.scene.test)
                return followers[entry.spec.name]

            report = run_specs(
                self.scene, list(specs.values()), replace(doors, observe=lambda inner: Listening(inner, follow))
            )
            entries = {entry.spec.name: entry for entry in report.entries}
            short = []
            for job, spec in specs.items():
                entry, follower = entries[spec.name], followers.get(spec.name)
                runs.append(build_run(entry, follower.values.last_step if follower else None))
                if entry.state is not State.DONE or follower is None:
                    self._find(
                        VerdictKind.ERROR,
                        f"segment {golden.segments[job[0]].start_step}",
                        f"a replica did not end well: {describe_end(entry)}",
                    )
                    continue
                found[job] = follower.values
                if not beyond and falls_one_short(golden.segments[job[0]], follower.values):
                    short.append(job)
            if report.interrupted or report.problem or not short:
                break
            jobs, beyond = short, 1
        self.golden = replace(golden, segments=_add_replicas(golden.segments, found), steps_beyond=beyond)
        self._look_for_lost_steps(found)
        return report, runs

    def _replica_spec(self, segment: Segment, number: int, stamp: str, beyond: int) -> RunSpec:
        checkpoint = manifests.find_checkpoint(self.scene.manifest, segment.checkpoint) or segment.checkpoint
        seed = number if any(rule.kind == "unmatched" for rule in self.scene.test.rules) else None
        text = build_check_command(self.scene, checkpoint, segment.start_step, beyond, seed)
        params = {"mode": "replica", "start_step": segment.start_step, "replica": number}
        return build_spec(
            self.scene,
            f"replica-{stamp}-s{segment.start_step}-{os.path.basename(checkpoint)[:20]}-{number}",
            text,
            params,
        )

    def _look_for_lost_steps(self, found: Mapping[tuple[int, int], Values]) -> None:
        """A replica that logs other steps than the training did cannot be compared with it, nor can a check."""
        assert self.golden is not None
        for (index, _), values in found.items():
            segment = self.golden.segments[index]
            for metric, labels in segment.tracks.items():
                steps = {step for runs in labels.values() for step in runs[0].steps} if labels else set()
                lost = steps - values.steps_of(metric)
                if lost:
                    subject, first = f"segment {segment.start_step} {metric}", min(lost)
                    finding = Finding(
                        VerdictKind.ERROR,
                        f"{self.scene.test.name} {subject}",
                        f"a replica logs no {metric} at step {first}; the training did",
                        step=first,
                    )
                    if finding not in self.findings:
                        self.findings.append(finding)

    # ------------------------------------------------------------ the end

    def measure(self) -> None:
        """Noise, where there are replicas; and values that nothing can be compared with."""
        if self.golden is None:
            return
        judged = {rule.metric for rule in self.scene.test.rules}
        for place in manifests.find_not_finite(self.golden, judged):
            self._find(VerdictKind.ERROR, "recording", f"{place}: this is no good recording")
        others = {metric for segment in self.golden.segments for metric in segment.tracks} - judged
        self.warnings += manifests.find_not_finite(self.golden, others)
        found = measure_golden_noise(self.scene.test.rules, self.golden)
        self.golden = replace(self.golden, noise=summarise_noise(found))
        self.notes += describe_noise(found, self.scene.test.rules)
        for _, finding in find_refusals(self.scene.test.rules, found):
            if self.scene.is_original:
                self.warnings.append(f"{finding.subject}: {finding.message}")
            else:
                self._refusals.append(finding)

    def settle(self, is_cut: bool) -> None:
        """The new golden takes the old one's place, or stays beside it."""
        bad = [found for found in self.findings if found.kind in (VerdictKind.ERROR, VerdictKind.FAIL)]
        # a rule that is too narrow can be mended in the file: that is no reason to train again
        is_good = not bad and not is_cut and not (self._refusals and self._before)
        self.findings += self._refusals
        if self.golden is not None and is_good:
            self._replace(self.golden)
            return
        if self.golden is not None:
            self.golden = replace(self.golden, complete=False)
            self._write_partial(self.golden)
        if self._replacing is not None:
            self.notes.append(f"the golden recording that was there stays as it was: {self.scene.manifest}")
        if bad:
            self.notes.append(f"log: {self._log}")

    def _replace(self, golden: Golden) -> None:
        """First the manifest, then what only the old one needed."""
        path = self.scene.manifest
        old = manifests.load_references(path) if self._before else None
        manifests.write_manifest(path, golden)
        self.manifest = path
        with contextlib.suppress(OSError):
            os.unlink(manifests.partial_path(path))
        manifests.remove_checkpoints(path, old or ())
        if self._replacing is not None:
            self.warnings.append(self._replacing)

    def report(self, runs: Sequence[SegmentRun]) -> GoldenTestReport:
        segments = self.golden.segments if self.golden else ()
        values = sum(
            len(track.steps)
            for segment in segments
            for labels in segment.tracks.values()
            for found in labels.values()
            for track in found
        )
        if segments:
            self.findings.append(
                Finding(VerdictKind.PASS, self.scene.test.name, f"{len(segments)} segments, {values} values recorded")
            )
        return GoldenTestReport(
            test=self.scene.test.name,
            manifest=self.manifest,
            verdict=Verdict.of(self.findings, values),
            golden=self.golden,
            runs=tuple(runs),
            notes=tuple(self.notes),
            warnings=tuple(dict.fromkeys(self.warnings)),
        )


def describe_noise(found: Sequence[Noise], rules: Sequence[Rule] = ()) -> list[str]:
    """For each metric the noisiest place: what a check of this set-up can and cannot tell. Exact ones have no delta."""
    exact = {rule.metric for rule in rules if rule.kind == "exact"}
    worst: dict[str, Noise] = {}
    for noise in found:
        if noise.metric in exact:
            continue
        if noise.metric not in worst or noise.per_window > worst[noise.metric].per_window:
            worst[noise.metric] = noise
    return [
        f"{noise.metric}: noise {_share(noise.per_window)} per window, {_share(noise.per_step)} per step "
        f"({noise.replicas} replicas); one check finds {_share(noise.detectable[0])} and more; "
        f"suggested delta {_share(noise.suggested_delta)}"
        for noise in worst.values()
    ]


def _share(value: float) -> str:
    return f"{100 * value:.2g}%"


def find_refusals(rules: Sequence[Rule], found: Sequence[Noise]) -> list[tuple[Rule, Finding]]:
    """Rules that ask for more than the noise allows."""
    pairs = [(rule, check_margin(rule, noise)) for rule in rules for noise in found if noise.metric == rule.metric]
    return [(rule, finding) for rule, finding in pairs if finding is not None]


def falls_one_short(segment: Segment, values: Values) -> bool:
    """A program that counts from 0 and was told to stop at N logs N-1 last: it lacks exactly the last step."""
    steps = sorted({step for labels in segment.tracks.values() for runs in labels.values() for step in runs[0].steps})
    seen = {step for track in values.found.values() for step in track}
    missing = [step for step in steps if step not in seen]
    return len(steps) > 1 and missing == steps[-1:] and max(seen, default=0) < steps[-1]


def _add_replicas(segments: Sequence[Segment], found: Mapping[tuple[int, int], Values]) -> tuple[Segment, ...]:
    return tuple(
        _add_runs(segment, [values for (place, _), values in sorted(found.items()) if place == index])
        for index, segment in enumerate(segments)
    )


def _add_runs(segment: Segment, runs: Sequence[Values]) -> Segment:
    tracks = {
        metric: {
            label: (first[0], *_whole_tracks(runs, metric, label, first[0].steps)) for label, first in labels.items()
        }
        for metric, labels in segment.tracks.items()
    }
    return replace(segment, tracks=tracks)


def _whole_tracks(runs: Sequence[Values], metric: str, label: str, steps: Sequence[int]) -> list[Track]:
    """Replicas that have every step; the lack of one has been said."""
    cut = [cut_track(values, metric, label, steps) for values in runs]
    return [track for track in cut if len(track.steps) == len(steps)]


def cut_track(values: Values, metric: str, label: str, steps: Sequence[int]) -> Track:
    """The values of one run at the steps that the golden has; steps that it lacks are simply not there."""
    found = values.found.get((metric, label), {})
    rows = [(step, *found[step]) for step in steps if step in found]
    return Track(tuple(row[0] for row in rows), tuple(row[1] for row in rows), tuple(row[2] for row in rows))


def _in_order(tracks: Mapping[str, Any], scene: Scene) -> dict[str, Any]:
    """Metrics as the file lists them, whatever the log's order."""
    order = [pattern.metric for pattern in scene.test.metrics]
    return dict(
        sorted(tracks.items(), key=lambda item: (order.index(item[0]) if item[0] in order else len(order), item[0]))
    )


class _Recorder(TrainingRecorder):
    """Of one test's log."""

    def __init__(self, scene: Scene) -> None:
        test = scene.test
        reader = LogReader(test.step, test.metrics, test.save, named_groups=not test.same_line)
        super().__init__(reader, test.steps_to_record, test.same_line)
        self.disorder: list[str] = []

    def _enter(self, step: int) -> bool:
        """A step that comes back after the first save, also behind the end of a recording: segments cannot be told."""
        if self.recordings and self.last_step is not None and step < self.last_step:
            self.disorder.append(f"step {step} is logged after step {self.last_step}: out of order")
        return super()._enter(step)

    def describe_last_save(self) -> str | None:
        """What is warned of where the training ends on a save, as most do."""
        last = self.recordings[-1] if self.recordings else None
        if last is None or last.values.first_step is not None:
            return None
        return f"nothing was logged after the checkpoint of step {last.start_step}: it is left out"


def _stream_words(scene: Scene, entry: Entry) -> str:
    name = layout.log_name(entry.spec.log_name, "train", max(1, entry.attempt), "")
    stream = {"both": "the log", "stdout": "stdout", "stderr": "stderr"}[scene.test.stream]
    return f"{stream} is in {os.path.join(entry.dir, name)}"


# ---------------------------------------------------------------- before the training


def _choose_spec(scene: Scene) -> RunSpec:
    """A gathering that was interrupted, or whose supervisor died, is gone on with; otherwise a new one."""
    text = build_gather_command(scene)
    spec = build_spec(scene, f"{GATHER_PREFIX}{build_stamp()}", text, {"mode": "gather"})
    for path in reversed(list(rundir.find_run_dirs(scene.place.dir))):
        name = os.path.basename(path)
        if name.startswith(GATHER_PREFIX) and _is_open(path, spec.id):
            return replace(spec, name=name)
    return spec


def _is_open(path: str, wanted: str) -> bool:
    try:
        record = rundir.load_record(path)
    except (OSError, FormatError):
        return False
    last = rundir.load_history(path).last
    if record.spec.id != wanted or last is None:
        return False
    return last.outcome is None or (last.stop is not None and last.stop.kind == "interrupt")


def place_checkpoints(scene: Scene) -> Scene:
    """Where nothing is overwritten that a golden needs."""
    return replace(scene, checkpoints=manifests.choose_checkpoint_dir(scene.manifest, scene.checkpoints))


def _load_before(scene: Scene) -> tuple[Golden | None, str | None]:
    """The golden that is there, and what to say when it is replaced."""
    try:
        before = manifests.load_manifest(scene.manifest, scene.test.name)
    except UsageError:
        return None, None
    except FormatError as error:
        return None, f"{error.message}; it is replaced"
    when = before.provenance.get("gathered_at")
    return before, f"the golden recording {'of ' + str(when) if when else 'that was there'} is replaced"


def build_provenance(scene: Scene, entry: Entry) -> dict[str, object]:
    """Where a golden comes from: enough to tell why a later one differs."""
    environment = _load_environment(entry.dir)
    git = environment.get("git") or {}
    text = entry.spec.commands[0].text
    return {
        "gathered_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": git.get("commit"),
        "branch": git.get("branch"),
        "dirty": git.get("dirty"),
        "packages": environment.get("job_packages") or environment.get("packages") or {},
        "python": environment.get("python"),
        "host": environment.get("host"),
        "os": environment.get("os"),
        "hardware": {
            "cpu": environment.get("cpu"),
            "cpu_count": environment.get("cpu_count"),
            "gpus": environment.get("gpus"),
            "driver": environment.get("driver"),
        },
        "fingerprint": environment.get("fingerprint"),
        "seeds": {name.lstrip("-"): value for name, value in _SEED.findall(text)},
        "config": scene.options.file,
        "config_hash": scene.config_hash,
        "rules": build_rule_facts(scene.test.rules),
        "command": text,
        "run": entry.dir,
    }


def _load_environment(run_dir: str) -> dict[str, Any]:
    try:
        with open(os.path.join(run_dir, layout.ENVIRONMENT_FILE), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
