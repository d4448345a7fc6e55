"""`assay golden` and `assay convergence`: every test of a file, each with its own manifest and its own verdict."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from assay.errors import AssayError, NotFoundError, UsageError
from assay.golden import manifests
from assay.golden.config import load_golden_file
from assay.golden.flow.check import check_test
from assay.golden.flow.followers import NO_LINE, NO_STEP_LINE, count_lines, find_unread
from assay.golden.flow.gather import count_test, gather_test, place_checkpoints
from assay.golden.flow.segments import (
    GoldenContext,
    GoldenOptions,
    build_check_command,
    build_context,
    build_gather_command,
    describe_locations,
    hide_command,
)
from assay.golden.harness_file import Mode
from assay.golden.recorder import LogReader, RunRecorder
from assay.golden.values import GoldenFile, GoldenReport, GoldenTest, GoldenTestReport
from assay.judge.statistics import load_numpy, t_quantile
from assay.study.api import RunHooks, first_program
from assay.values.units import parse_duration
from assay.values.verdict import Finding, Verdict, VerdictKind

__all__ = ["GoldenOptions", "RunHooks", "check_file", "gather_file", "load_file", "parse_duration", "validate_file"]


def gather_file(options: GoldenOptions, hooks: RunHooks | None = None) -> GoldenReport:
    """Record every test of the file."""
    if options.counting:
        return _each_test(load_file(options, "check"), options, hooks or RunHooks(), count_test)
    makes_replicas = options.replicas is None or options.replicas > 0
    file = load_file(options, "gather", replicas=makes_replicas)
    if makes_replicas and any(test.replicas for test in file.tests):
        check_libraries(file)
    return _each_test(file, options, hooks or RunHooks(), gather_test)


def check_file(options: GoldenOptions, hooks: RunHooks | None = None) -> GoldenReport:
    """Check every test of the file against its golden recording."""
    file = load_file(options, "check")
    check_libraries(file)
    return _each_test(file, options, hooks or RunHooks(), check_test)


def check_libraries(file: GoldenFile) -> None:
    """What judging or measuring noise will need, before a training that may take hours. Raises MissingExtraError."""
    if any(rule.kind in ("paired", "unmatched") for test in file.tests for rule in test.rules):
        load_numpy()
        t_quantile(1, 0.25)


def load_file(options: GoldenOptions, mode: str, replicas: bool = False) -> GoldenFile:
    needs: tuple[Mode, ...] = ("run",)
    if mode == "gather":  # the original gathers even without the flags of a check
        needs = ("gather",) if options.is_harness else ("gather", "run")
    file = load_golden_file(options.file, needs)
    if mode == "gather" and replicas and (options.replicas or any(test.replicas for test in file.tests)):
        file = load_golden_file(options.file, ("gather", "run"))
    return replace(file, tests=_choose(file.tests, options.tests))


def _choose(tests: Sequence[GoldenTest], names: Sequence[str] | None) -> tuple[GoldenTest, ...]:
    known = [test.name for test in tests]
    for name in names or ():
        if name not in known:
            raise NotFoundError("test", name, known)
    return tuple(test for test in tests if not names or test.name in names)


Run = Callable[[GoldenContext, RunHooks], GoldenTestReport]


def _each_test(file: GoldenFile, options: GoldenOptions, hooks: RunHooks, run: Run) -> GoldenReport:
    """One after another; a test that fails or cannot be run does not stop the next one."""
    began = time.time()
    for warning in file.warnings:
        hooks.console.warning(str(warning))
    reports: list[GoldenTestReport] = []
    for test in file.tests:
        reports.append(_run_test(file, test, options, hooks, run))
        if reports[-1].interrupted:
            break
    return GoldenReport("check" if run is check_test else "gather", options.file, tuple(reports), time.time() - began)


def _run_test(
    file: GoldenFile, test: GoldenTest, options: GoldenOptions, hooks: RunHooks, run: Run
) -> GoldenTestReport:
    manifest = manifests.manifest_path(os.path.abspath(options.store), test.name, options.manifest_name)
    try:
        return run(build_context(file, test, options), hooks)
    except AssayError as error:
        verdict = Verdict.of([Finding(VerdictKind.ERROR, test.name, error.render())], 0)
        return GoldenTestReport(test.name, manifest, verdict, exit_code=error.exit_code)


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
    file = load_golden_file(options.file)
    file = replace(file, tests=_choose(file.tests, options.tests))
    data = _load_log(log) if log is not None else None
    commands: list[tuple[str, str, str]] = []
    notes: list[str] = []
    problems: list[str] = []
    for test in file.tests:
        context = build_context(file, test, options)
        commands += _build_commands(place_checkpoints(context), notes)
        notes += [f"{test.name}: {note}" for note in describe_locations(context)]
        program = first_program(build_gather_command(context))
        if program and not _is_there(program, context):
            problems.append(f"{test.name}: the program {program!r} was not found")
        if data is not None:
            problems += _try_patterns(context.test, data, notes)
    return Validation(file, tuple(commands), tuple(notes), tuple(problems))


def _is_there(program: str, context: GoldenContext) -> bool:
    import shutil

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


def _load_log(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"the log {path} cannot be read: {error.strerror}") from None


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
