"""`assay golden` and `assay convergence`: every test of a file, each with its own manifest and its own verdict; and the
golden recordings on disk, with their noise and the smallest effect that a check would find."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.errors import AssayError, UsageError
from assay.golden import manifests
from assay.golden.config import load_golden_file
from assay.golden.flow.check import check_test
from assay.golden.flow.followers import NO_LINE, NO_STEP_LINE, count_lines, find_unread
from assay.golden.flow.gather import choose_checkpoints, count_test, gather_test
from assay.golden.flow.segments import (
    GoldenContext,
    GoldenOptions,
    build_check_command,
    build_context,
    build_gather_command,
    choose_tests,
    describe_locations,
    hide_command,
)
from assay.golden.harness_file import Mode
from assay.golden.judge.effects import default_delta, find_first_delta
from assay.golden.judge.golden import Noise, find_creep, measure_golden_noise, parse_rules
from assay.golden.recorder import LogReader, RunRecorder
from assay.golden.records import write_report
from assay.golden.values import Golden, GoldenFile, GoldenReport, GoldenTest, GoldenTestReport, ReportMode, Rule
from assay.judge.statistics import load_numpy, needed_for, t_quantile
from assay.launch.api import RunHooks, first_program
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.verdict import Finding, Verdict, VerdictKind

__all__ = ["GoldenOptions", "RunHooks", "check_file", "gather_file", "load_recordings", "validate_file"]


def gather_file(options: GoldenOptions, hooks: RunHooks | None = None) -> GoldenReport:
    """Record every test of the file."""
    if options.counting:
        return _each_test(_load_file(options, ("run",)), options, hooks or RunHooks(), count_test)
    # the original gathers even without the flags of a check
    file = _load_file(options, ("gather",) if options.is_harness and not options.replicas else ("gather", "run"))
    if options.replicas != 0 and any(test.replicas for test in file.tests):
        _check_libraries(file)
    return _each_test(file, options, hooks or RunHooks(), gather_test)


def check_file(options: GoldenOptions, hooks: RunHooks | None = None) -> GoldenReport:
    """Check every test of the file against its golden recording."""
    file = _load_file(options, ("run",))
    _check_libraries(file)
    return _each_test(file, options, hooks or RunHooks(), check_test)


@needed_for("judging windows of a training curve")
def _check_libraries(file: GoldenFile) -> None:
    """What judging or measuring noise will need, before a training that may take hours. Raises MissingExtraError."""
    if any(rule.kind in ("paired", "unmatched") for test in file.tests for rule in test.rules):
        load_numpy()
        t_quantile(1, 0.25)


def _load_file(options: GoldenOptions, needs: Sequence[Mode]) -> GoldenFile:
    file = load_golden_file(options.file, needs)
    return replace(file, tests=choose_tests(file, options.tests))


Run = Callable[[GoldenContext, RunHooks], GoldenTestReport]


def _each_test(file: GoldenFile, options: GoldenOptions, hooks: RunHooks, run: Run) -> GoldenReport:
    """One after another; a test that fails or cannot be run does not stop the next one."""
    began = time.time()
    for warning in file.warnings:
        hooks.console.warning(str(warning))
    reports: list[GoldenTestReport] = []
    mode: ReportMode = "check" if run is check_test else "gather"
    for test in file.tests:
        try:
            context = build_context(file, test, options)
            reports.append(run(context, hooks))
            if run is not count_test:
                _keep(context, mode, file.source, reports[-1], hooks)
        except AssayError as error:
            manifest = manifests.manifest_path(os.path.abspath(options.store), test.name, options.manifest_name)
            verdict = Verdict.of([Finding(VerdictKind.ERROR, test.name, error.render())], 0)
            reports.append(GoldenTestReport(test.name, manifest, verdict, exit_code=error.exit_code))
        if reports[-1].interrupted:
            break
    return GoldenReport(mode, options.file, tuple(reports), time.time() - began)


def _keep(context: GoldenContext, mode: ReportMode, source: str, report: GoldenTestReport, hooks: RunHooks) -> None:
    """For the page. A report that cannot be kept is still the caller's answer."""
    try:
        write_report(context.location, mode, source, report)
    except OSError as error:
        hooks.console.warning(f"the report was not kept for the page: {error}")


# ---------------------------------------------------------------- validate


@dataclass(frozen=True, slots=True)
class Validation:
    """What can be known without running anything."""

    file: GoldenFile
    commands: tuple[tuple[str, str, str], ...]  # test, gather or check, what would run
    notes: tuple[str, ...]
    problems: tuple[str, ...]


def validate_file(options: GoldenOptions, log: str | None = None) -> Validation:
    """The file, its commands, and, with a sample log, what its patterns find there."""
    file = _load_file(options, ("gather", "run"))
    data = None
    if log is not None:
        try:
            with open(log, "rb") as sample:
                data = sample.read()
        except OSError as error:
            raise UsageError(f"the log {log} cannot be read: {error.strerror}") from None
    commands: list[tuple[str, str, str]] = []
    notes: list[str] = []
    problems: list[str] = []
    for test in file.tests:
        context = build_context(file, test, options)
        commands += _build_commands(choose_checkpoints(context), notes)
        notes += [f"{test.name}: {note}" for note in describe_locations(context)]
        program = first_program(build_gather_command(context))
        if program and not _has_program(program, context):
            problems.append(f"{test.name}: the program {program!r} was not found")
        if data is not None:
            problems += _try_patterns(context.test, data, notes)
    return Validation(file, tuple(commands), tuple(notes), tuple(problems))


def _has_program(program: str, context: GoldenContext) -> bool:
    if os.sep in program:
        return os.access(os.path.join(context.folder, program), os.X_OK)
    return shutil.which(program, path=dict(context.test.env).get("PATH")) is not None


def _build_commands(context: GoldenContext, notes: list[str]) -> list[tuple[str, str, str]]:
    name = context.test.name
    found = [(name, "gather", hide_command(context, build_gather_command(context)))]
    try:
        golden = manifests.load_manifest(context.manifest, name)
    except UsageError:
        notes.append(f"{name}: no golden recording yet; the check's command is an example")
        return [*found, (name, "check", hide_command(context, build_check_command(context, "CHECKPOINT", 0)))]
    for segment in golden.segments:
        path = manifests.find_checkpoint(context.manifest, segment.checkpoint) or segment.checkpoint
        text = build_check_command(context, path, segment.start_step, golden.steps_beyond or 0)
        found.append((name, "check", hide_command(context, text)))
    return found


def _try_patterns(test: GoldenTest, data: bytes, notes: list[str]) -> list[str]:
    """Patterns that match nothing, and metrics that are never on a line that is read."""
    text = data.decode("utf-8", "replace").replace("\r", "\n")
    problems = []
    unread = find_unread(test, data)
    for pattern in (test.step, test.save, *test.metrics):
        count = count_lines(pattern, text)
        where = f"{pattern.position}: " if pattern.position else ""
        if count:
            notes.append(f"{test.name} {pattern.metric}: matches {count} lines")
        else:
            problems.append(f"{where}{test.name} {pattern.metric}: {NO_LINE}")
    recorder = RunRecorder(LogReader(test.step, test.metrics, named_groups=not test.same_line), test.same_line)
    recorder.feed(data)
    recorder.finish()
    problems += [f"{test.name}: {problem}" for problem in recorder.values.problems]
    problems += [f"{test.name} {metric}: {why}" for metric, why in unread.items() if why == NO_STEP_LINE]
    return problems


# ---------------------------------------------------------------- recordings on disk


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """One metric over all segments and labels: the worst of them."""

    metric: str
    rule: str
    per_step: float
    per_window: float
    delta: float | None
    one_check: float
    most_checks: float
    suggested_delta: float | None  # an exact rule has none
    replicas: int
    first_delta: float | None = None  # of the first window, if it has its own
    outside: float | None = None  # the smallest difference that is CHANGED


@dataclass(frozen=True, slots=True)
class Recording:
    golden: Golden
    manifest: str
    rules: tuple[Rule, ...]
    sensitivity: tuple[Sensitivity, ...]
    creep: tuple[str, ...] = ()


def load_recordings(path: str, store: str | None = None, name: str = manifests.DEFAULT_NAME) -> tuple[Recording, ...]:
    """`path` is a store, a manifest, or a convergence file; only for the last one `store` and `name` matter."""
    if os.path.isdir(path):
        return tuple(_load(manifest, None) for manifest in _find_manifests(path))
    if _is_manifest(path):
        return (_load(path, None),)
    file = load_golden_file(path, ("run",))
    if store is None:
        raise UsageError(f"the store of {path} is not given", "name its store: -s DIR")
    return tuple(_load(manifests.manifest_path(store, test.name, name), test.rules, test.name) for test in file.tests)


def _find_manifests(store: str) -> list[str]:
    found = [os.path.join(store, name) for name in sorted(os.listdir(store)) if name.endswith(".json")]
    known = [path for path in found if _is_manifest(path)]
    if not known:
        raise UsageError(f"there is no golden recording in {store}", "gather one: assay golden gather FILE -s STORE")
    return known


def _is_manifest(path: str) -> bool:
    """By content; a damaged one counts as well, so that its problem is reported."""
    try:
        with open(path, "rb") as file:
            start = file.read(4096).lstrip()
    except FileNotFoundError:
        raise UsageError(
            f"{path} does not exist", "name a store, a manifest, or a convergence file with -s STORE"
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    return start.startswith(b"{") and (b"ckpt_logs" in start or path.endswith(f"_{manifests.DEFAULT_NAME}"))


def _load(manifest: str, rules: Sequence[Rule] | None, test: str | None = None) -> Recording:
    name = test or os.path.basename(manifest).removesuffix(f"_{manifests.DEFAULT_NAME}").removesuffix(".json")
    golden = manifests.load_manifest(manifest, name)
    # an older manifest names no rules: each metric is judged as paired
    known = rules if rules is not None else parse_rules(golden) or [Rule(metric) for metric in golden.metrics]
    chosen = tuple(known)
    last: Any = golden.history[-1].get("since_first", {}) if golden.history else {}
    creep = find_creep(last, chosen, len(golden.history)) if isinstance(last, Mapping) else []
    return Recording(golden, os.path.abspath(manifest), chosen, build_sensitivity(golden, chosen), tuple(creep))


def build_sensitivity(golden: Golden, rules: Sequence[Rule]) -> tuple[Sensitivity, ...]:
    noises = measure_golden_noise(rules, golden)
    return tuple(
        _combine(rule, [noise for noise in noises if noise.metric == rule.metric])
        for rule in rules
        if any(noise.metric == rule.metric for noise in noises)
    )


def _combine(rule: Rule, noises: Sequence[Noise]) -> Sensitivity:
    return Sensitivity(
        rule.metric,
        rule.kind,
        max(noise.per_step for noise in noises),
        max(noise.per_window for noise in noises),
        rule.margin if rule.kind == "margin" else None if rule.kind == "exact" else default_delta(rule),
        max(noise.detectable[0] for noise in noises),
        max(noise.detectable[-1] for noise in noises),
        None if rule.kind == "exact" else max(noise.suggested_delta for noise in noises),
        min(noise.replicas for noise in noises),
        find_first_delta(rule),
        max(noise.outside for noise in noises) if rule.kind in ("paired", "unmatched") else None,
    )
