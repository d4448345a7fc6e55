"""`assay golden check --against GOLDEN --from PATH` and `assay golden import`, which read files and run nothing."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from assay.errors import NotFoundError, UsageError, suggest
from assay.golden import manifests
from assay.golden.files.formats import CONVERGED, MLLOG, RCP, refuse
from assay.golden.files.sources import CurveFile, GoldenSource, choose_sources, list_sources, load_curves
from assay.golden.judge.against import NOISE_UNKNOWN, describe_unit
from assay.golden.judge.convergence import count_peers, judge_segment
from assay.golden.judge.evidence import find_dead, is_cost
from assay.golden.judge.golden import measure_golden_noise, summarise_noise
from assay.golden.judge.pairing import CheckRun
from assay.golden.judge.pointwise import measure_relative, render_effect
from assay.golden.requests import GoldenCheckRequest, GoldenImportRequest
from assay.golden.values import (
    Golden,
    GoldenReport,
    GoldenTestReport,
    MetricReport,
    Rule,
    Segment,
    SegmentReport,
    Track,
)
from assay.judge.statistics import needed_for
from assay.show.formatting import join_first, render_number
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.verdict import Finding, Verdict, VerdictKind

_MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class Goldens:
    """The recordings of one environment; `tracks` has those with every step of the metric's longest golden."""

    environment: str
    files: tuple[CurveFile, ...]
    tracks: Mapping[str, tuple[Track, ...]]
    warnings: tuple[str, ...]


def load_goldens(path: str, history: str | None, environment: str | None, runs: Sequence[GoldenSource] = ()) -> Goldens:
    """Load the goldens of one environment. Raises UsageError if one is unusable, or several environments fit."""
    sources = _leave_out(list_sources(path), runs, path)
    like = [each.key for each in runs]
    if runs and all(each.format == RCP for each in sources):  # choose references by the run's batch size (:::MLLOG)
        size = load_curves(runs[0])[0].facts.get("global_batch_size")
        like += [each.key for each in sources if each.facts and each.facts.get("BS") == size]
    chosen = choose_sources(sources, path, environment, like)
    files = own = [each for source in chosen for each in load_curves(source)]
    if history is not None:
        earlier_files = _leave_out(list_sources(history), runs, history)
        found = choose_sources(earlier_files, history, environment, [chosen[0].key])
        earlier = [each for source in found for each in load_curves(source)]
        files = [each for each in files if all(each.tracks != other.tracks for other in earlier)] + earlier
    bad = [(file.name, metric, *each.bad) for file in files for metric, each in file.extents.items() if each.bad]
    for name, metric, step, value in bad[:1]:
        message = f"{metric} is {_render_bad(value)} at step {step:g}: a golden that is not finite is refused"
        refuse(name, message, "record a run that is good, and use that")
    tracks = {}
    for metric in dict.fromkeys(name for file in own for name in file.tracks):
        steps = max(({*file.tracks[metric].steps} for file in own if metric in file.tracks), key=len)
        known = [file.tracks[metric] for file in files if metric in file.tracks]  # runs of `history` may be longer
        tracks[metric] = tuple(track.cut(steps) for track in known if steps.issubset(track.steps))
    short = {metric: len(files) - len(runs) for metric, runs in tracks.items() if len(runs) < len(files)}
    lack = "lack it or some of its steps, and are left out"
    warnings = [f"{metric}: {lost} of {len(files)} goldens {lack}" for metric, lost in short.items()]
    if names := sorted({name for file in own for name in file.stepless}):
        stepless = join_first(names, _MOST_NAMES)
        warnings.append(f"{stepless}: values of the golden that have no step, which are not judged")
    return Goldens(chosen[0].key, tuple(files), tracks, tuple(warnings))


def _leave_out(sources: Sequence[GoldenSource], runs: Sequence[GoldenSource], where: str) -> list[GoldenSource]:
    """Return the recordings without those of the tested run, which would always pass."""
    own = {os.path.realpath(path) for run in runs for path in run.paths}
    if not (found := [each for each in sources if not own.issuperset(map(os.path.realpath, each.paths))]):
        raise UsageError(f"{where} is the run itself: there is nothing to compare it with", "name another golden")
    return found


def _render_bad(value: float | str) -> str:
    return f"{value!r} (not a number)" if isinstance(value, str) else f"{value:g}"


@needed_for("judging a curve by the noise of several goldens")
def check_against(request: GoldenCheckRequest) -> GoldenReport:
    began, path, source = time.time(), request.against or "", request.source or ""
    found = list_sources(source)
    if found[0].format == RCP:
        refuse(source, "an RCP file holds references, and no run", "name it with --against")
    runs = choose_sources(found, source, flag="--from")
    goldens = load_goldens(path, request.history, request.environment, runs)
    names = {metric: request.names.get(metric, metric) for metric in goldens.tracks}
    wanted: dict[str, frozenset[int]] = {}
    for metric, name in names.items():
        wanted[name] = wanted.get(name, frozenset()).union(goldens.tracks[metric][0].steps)
    files = [each for run in runs for each in load_curves(run, wanted)]
    report = _Check(request, goldens, files, names).report()
    return GoldenReport("check", source, (report,), time.time() - began)


@dataclass(slots=True)
class _Check:
    """A check of runs against the goldens of one environment. `names`: metric of the golden → its name in the runs."""

    request: GoldenCheckRequest
    goldens: Goldens
    files: Sequence[CurveFile]
    names: Mapping[str, str]

    def report(self) -> GoldenTestReport:
        self._refuse_unknown()
        metrics = self.request.only or tuple(self.goldens.tracks)
        tracks, notes = self._match_intervals(metrics)
        segment = Segment(min(runs[0].steps[0] for runs in tracks.values()), "", {m: {"": tracks[m]} for m in tracks})
        golden = Golden(self.goldens.environment, (segment,))
        stated = self.request.tolerances
        tolerances = [(metric, stated.get(metric, stated.get(""))) for metric in metrics]
        rules = [
            Rule(name, "level" if is_cost(name) else "noise" if len(tracks[name]) > 1 else "digits", tolerance)
            for name, tolerance in tolerances
            if tolerance is not None or not is_cost(name)
        ]
        steps = {metric: {*runs[0].steps} for metric, runs in tracks.items()}
        sides = [{metric: file.tracks.get(self.names[metric]) for metric in steps} for file in self.files]
        checks = [{name: {"": track.cut(steps[name])} for name, track in side.items() if track} for side in sides]
        reports = tuple(self._judge(rule, golden, checks, rules) for rule in rules)
        found = [(each.metric, finding) for each in reports for finding in each.verdict.findings]
        verdict = Verdict.of([each for _, each in found], sum(each.verdict.comparisons for each in reports))
        dead = find_dead(golden, [checks]) if rules else []
        doubts = [Finding(VerdictKind.INCONCLUSIVE, self.request.source or "", text) for text in dead]
        passed = [f"{metric}: {each.message}" for metric, each in found if each.kind is VerdictKind.PASS]
        shown = {*metrics} - {rule.metric for rule in rules}
        source = self.files[0].name if len(self.files) == 1 else self.request.source or ""
        return GoldenTestReport(
            test=os.path.basename(os.path.abspath(source)),
            manifest=self.request.against or "",
            verdict=Verdict.of([*verdict.findings, *doubts], verdict.comparisons),
            segments=(SegmentReport(segment.start_step, "", verdict, reports),),
            notes=(
                *self._describe_sides(),
                *(text for text in passed if NOISE_UNKNOWN not in text),
                *(self._describe_cost(metric, checks) for metric in metrics if metric in shown),
                *notes,
            ),
            warnings=(*self.goldens.warnings, *(text for text in passed if NOISE_UNKNOWN in text)),
            differs=tuple(
                f"{name} is {self.files[0].facts[name]}, was {value}"
                for name, value in self.goldens.files[0].facts.items()
                if self.files[0].facts.get(name, value) != value
            ),
        )

    def _refuse_unknown(self) -> None:
        """Refuse options that name an unknown metric, and sides without a common metric or a common step."""
        known, found = list(self.goldens.tracks), self._logged
        for name in (*self.request.names, *self.request.only, *filter(None, self.request.tolerances)):
            if name not in known:
                raise NotFoundError("metric of the golden", name, known)
        for name in self.request.names.values():
            if name not in found:
                raise NotFoundError("metric of the run", name, found)
        sides = f"{self.request.against} and {self.request.source} have no"
        if not (both := [metric for metric in known if self.names[metric] in found]):
            names = f"the golden has {join_first(known, _MOST_NAMES)}, the run {join_first(found, _MOST_NAMES)}"
            meant = next((metric for metric in known if suggest(metric, found)), known[0])
            hint = _render_map(meant, found)
            if CONVERGED in known and self.files[0].format == MLLOG:
                hint = "the run did not end with success: it has no run_stop with that status after an evaluation"
            raise UsageError(f"{sides} metric in common: {names}", hint)
        if not any(self.names[metric] in file.tracks for metric in both for file in self.files):
            hint = "count both alike: iterations with iterations, samples with samples"
            raise UsageError(f"{sides} step in common: {self._describe_steps(both[0], self.files[0])}", hint)

    @property
    def _logged(self) -> list[str]:
        return list(dict.fromkeys(name for file in self.files for name in file.extents))

    def _describe_steps(self, metric: str, file: CurveFile) -> str:
        steps, extent = self.goldens.tracks[metric][0].steps, file.extents[self.names[metric]]
        golden = f"{metric} has steps {steps[0]} to {steps[-1]} in the golden, every {_pace(steps):g}"
        return f"{golden}, and {extent.first:g} to {extent.last:g} in the run, every {extent.interval:g}"

    def _match_intervals(self, metrics: Sequence[str]) -> tuple[dict[str, tuple[Track, ...]], list[str]]:
        """Cut the goldens to the steps of runs that log at another interval; return them with a note about each cut."""
        tracks, notes = {metric: self.goldens.tracks[metric] for metric in metrics}, list[str]()
        for file in self.files:
            for metric in (each for each in metrics if self.names[each] in file.tracks):
                steps, common = self.goldens.tracks[metric][0].steps, file.tracks[self.names[metric]].steps
                if len(common) < len(steps) and _has_other_interval(steps, common):
                    tracks[metric] = tuple(track.cut({*common}) for track in tracks[metric])
                    compared = f"compared at {len(common)} of the golden's {len(steps)} steps"
                    notes.append(f"{compared}: {self._describe_steps(metric, file)}")
        return tracks, notes

    def _judge(self, rule: Rule, golden: Golden, checks: Sequence[CheckRun], rules: Sequence[Rule]) -> MetricReport:
        segment, name = golden.segments[0], self.names[rule.metric]
        tracks, absent = segment.tracks[rule.metric], [each for each in self.files if name not in each.tracks]
        if absent:
            verdict = Verdict.of([Finding(VerdictKind.ERROR, name, self._describe_absent(rule.metric, absent[0]))], 0)
            return MetricReport(rule, verdict, tracks, {}, delta=rule.delta)
        peers = count_peers(rules, golden) * len(checks)  # each run is judged alone: good runs do not hide a bad one
        verdicts = [judge_segment(rule, segment, [check], peers=peers) for check in checks]
        titles = [f"{file.name}: " if len(self.files) > 1 else "" for file in self.files]
        findings = [
            replace(each, message=f"{title}{each.message}")
            for title, verdict in zip(titles, verdicts, strict=True)
            for each in verdict.findings
        ]
        found = [
            (title, *bad) for title, file in zip(titles, self.files, strict=True) if (bad := file.extents[name].bad)
        ]
        findings += [
            Finding(VerdictKind.FAIL, name, f"{title}the run is {_render_bad(value)} at step {step:g}")
            for title, step, value in found
            if isinstance(value, str) or step not in tracks[""][0].steps
        ]
        sides = [*((each, rule.metric) for each in self.goldens.files), *((each, name) for each in self.files)]
        cut = [(file.name, file.extents[each]) for file, each in sides if each in file.extents]
        for where, extent in cut:
            # the metric is empty for longer than its widest interval; a last row of other metrics does not count
            if extent.count > 1 and extent.empty - extent.last > extent.widest:
                empty = f"is empty up to step {extent.empty:g}: a NaN, or a crash?"
                message = f"{where} has no value after step {extent.last:g}, and {empty}"
                findings.append(Finding(VerdictKind.INCONCLUSIVE, name, message, step=extent.last))
        verdict = Verdict.of(findings, sum(each.comparisons for each in verdicts))
        curves = {"": tuple(run[rule.metric][""] for run in checks)}
        return MetricReport(rule, verdict, tracks, curves, delta=rule.delta)

    def _describe_absent(self, metric: str, file: CurveFile) -> str:
        if self.names[metric] in file.extents:
            return f"no step in common: {self._describe_steps(metric, file)}"
        others = [name for name in file.extents if name not in self.goldens.tracks]
        both = [f"--only {shlex.quote(name)}" for name in self.goldens.tracks if self.names[name] in file.extents]
        hint = f"it has {join_first([*file.extents], _MOST_NAMES)}"
        if suggest(metric, others):
            hint = _render_map(metric, others)
        elif 0 < len(both) <= _MOST_NAMES:
            hint = f"{' '.join(both)} leaves it out"
        return f"{file.name} has no {self.names[metric]}; {hint}"

    def _describe_cost(self, metric: str, checks: Sequence[CheckRun]) -> str:
        """Describe a metric of time or memory, which is not judged without a tolerance."""
        if not (values := [value for check in checks if metric in check for value in check[metric][""].values]):
            return f"{metric}: the run has none, and it is not judged without --tolerance '{metric}=10%'"
        now, then = median(values), median(value for track in self.goldens.tracks[metric] for value in track.values)
        effect, unit = render_effect(measure_relative(now, then)), describe_unit([now], [then])
        shown = f"{render_number(now, 6)}, the golden {render_number(then, 6)} ({effect})"
        return f"{metric}: {shown} in the median{unit}; not judged without --tolerance '{metric}=10%'"

    def _describe_sides(self) -> list[str]:
        count, extra = len(self.goldens.files), [name for name in self._logged if name not in self.names.values()]
        noise = f"{count} recordings" if count > 1 else f"1 recording, {NOISE_UNKNOWN}"
        golden = f"golden: {self.goldens.environment} ({self.goldens.files[0].format}; {noise})"
        names = join_first([*dict.fromkeys(each.name for each in self.files)], _MOST_NAMES)
        run = f"run: {names} ({self.files[0].format})"
        notes = [f"only in the run, and not judged: {join_first(extra, _MOST_NAMES)}"] if extra else []
        last = max(tracks[0].steps[-1] for tracks in self.goldens.tracks.values())
        ends = [file.extents[name].last for file in self.files for name in self.names.values() if name in file.extents]
        beyond = f"the golden ends at step {last}; the run goes on to {max(ends):g}, and is not judged there"
        return [golden, run, *notes, *([beyond] if max(ends) > last else [])]


def _has_other_interval(steps: Sequence[int], common: Sequence[int]) -> bool:
    """Whether a run lacks steps because its interval is longer, not because it ended early or has gaps. Two steps alone
    do not show an interval."""
    pace = _pace(common) if len(common) > 2 else 0.0
    reaches = common[0] < steps[0] + pace and common[-1] + pace > steps[-1]
    return pace > _pace(steps) and reaches and len(common) >= int((common[-1] - common[0]) / pace + 1)


def _pace(steps: Sequence[int]) -> float:
    """Return the median distance between neighbouring steps."""
    return median(b - a for a, b in pairwise(steps)) if len(steps) > 1 else 0.0


def _render_map(metric: str, names: Sequence[str]) -> str:
    """Render the `--map` option for the name that is most similar to `metric`."""
    meant = suggest(metric, names) or ""
    name = next((each for each in names if repr(each) in meant), "NAME")
    option = f"--map {shlex.quote(f'{metric}={name}')}"
    return f"did you mean {option}?" if meant else f"{option} names what the run calls it"


def import_golden(request: GoldenImportRequest, store: str) -> str:
    """Write a golden recording as a manifest and return its path. An existing manifest is not replaced."""
    goldens = load_goldens(request.path, request.history, request.environment)
    if request.name is not None and (os.path.basename(request.name) != request.name or request.name in ("", ".", "..")):
        raise UsageError(f"--name {request.name!r} is not the name of a file", "leave out folders")
    test = request.name or os.path.splitext(os.path.basename(goldens.environment))[0].replace("#", "").strip("-_ ")
    path = manifests.manifest_path(store, test, request.manifest_name)
    if os.path.exists(path):
        raise UsageError(f"{path} exists already", "give the new one another name: --name NAME")
    segment = Segment(0, "", {metric: {"": runs} for metric, runs in goldens.tracks.items()})
    origin = {
        "imported_from": [each.name for each in goldens.files],
        "imported_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "environment": goldens.environment,
        "stated": goldens.files[0].facts,
    }
    golden = Golden(test, (segment,), manifests.VERSION, segment.last_step, origin)
    if segment.replicas > 1:
        rules = [Rule(metric) for metric in goldens.tracks]
        golden = replace(golden, noise=summarise_noise(measure_golden_noise(rules, golden)))
    manifests.write_manifest(path, golden)
    return path
