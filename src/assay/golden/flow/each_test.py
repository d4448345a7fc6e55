"""`assay golden gather`, `check` and `validate`: every test of a file, each with its own manifest and verdict."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence

from assay.config.settings import Settings, load_settings
from assay.errors import AssayError, UsageError
from assay.golden import manifests
from assay.golden.config import load_golden_file
from assay.golden.flow.check import check_test
from assay.golden.flow.followers import NO_LINE, NO_STEP_LINE, count_lines, find_unread, read_values
from assay.golden.flow.gather import count_test, gather_test
from assay.golden.flow.segments import (
    Explain,
    GoldenContext,
    GoldenOptions,
    build_context,
    build_contexts,
    choose_tests,
)
from assay.golden.harness_file import Mode
from assay.golden.records import list_ids, load_report, write_report
from assay.golden.report.document import render_golden
from assay.golden.values import DEFAULT_STORE, GoldenFile, GoldenReport, GoldenTest, GoldenTestReport, ReportMode
from assay.judge.statistics import load_numpy, needed_for, t_quantile
from assay.launch.api import RunHooks, first_program
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.values.units import parse_slot_flags
from assay.values.verdict import Finding, Judgement, Verdict, VerdictKind

_EXPLAINED = "explain: "  # prefix of the notes of an explanation

Run = Callable[[GoldenContext, RunHooks], GoldenTestReport]


def gather_file(options: GoldenOptions, hooks: RunHooks | None = None) -> GoldenReport:
    """Record every test of the file."""
    if options.counting:
        return _each_test(load_golden_file(options.file, ("run",)), options, hooks or RunHooks(), count_test)
    # the original harness gathers even without the flags of a check
    needs: Sequence[Mode] = ("gather",) if options.is_harness and not options.replicas else ("gather", "run")
    file = load_golden_file(options.file, needs)
    tests = choose_tests(file, options.tests)
    if options.replicas != 0 and any(test.replicas for test in tests):
        _check_libraries(tests)
    return _each_test(file, options, hooks or RunHooks(), gather_test)


def check_file(options: GoldenOptions, hooks: RunHooks | None = None) -> GoldenReport:
    """Check every test of the file against its golden recording."""
    file = load_golden_file(options.file, ("run",))
    _check_libraries(choose_tests(file, options.tests))
    return _each_test(file, options, hooks or RunHooks(), check_test, "check")


@needed_for("judging windows of a training curve")
def _check_libraries(tests: Sequence[GoldenTest]) -> None:
    """Load the libraries for judging and measuring noise before a long training begins. Raises MissingExtraError."""
    if any(rule.kind in ("paired", "unmatched") for test in tests for rule in test.rules):
        load_numpy()
        t_quantile(1, 0.25)


def _each_test(
    file: GoldenFile, options: GoldenOptions, hooks: RunHooks, run: Run, mode: ReportMode = "gather"
) -> GoldenReport:
    """Run one test after another; a test that fails or cannot be run does not stop the next one."""
    began = time.time()
    for warning in file.warnings:
        hooks.console.warning(str(warning))
    reports: list[GoldenTestReport] = []
    settings: Settings | None = None
    for test in choose_tests(file, options.tests):
        try:
            settings = settings or load_settings(os.getcwd(), os.environ)
            context = build_context(file, test, options, settings)
            reports.append(run(context, hooks))
            if options.explain is not None and not reports[-1].interrupted:
                reports[-1] = _add_notes(reports[-1], options.explain(context, reports[-1], hooks))
            try:
                if run is not count_test:
                    write_report(context.location, mode, file.source, reports[-1])
            except OSError as error:  # the caller still gets the report
                hooks.console.warning(f"the report was not kept for the page: {error}")
        except AssayError as error:
            manifest = manifests.manifest_path(os.path.abspath(options.store), test.name, options.manifest_name)
            verdict = Verdict.of([Finding(VerdictKind.ERROR, test.name, error.render())], 0)
            reports.append(GoldenTestReport(test.name, manifest, verdict, exit_code=error.exit_code))
        if reports[-1].interrupted:
            break
    return GoldenReport(mode, options.file, tuple(reports), time.time() - began)


def explain_file(options: GoldenOptions, explain: Explain, hooks: RunHooks) -> GoldenReport:
    """Explain the difference that the last check of each test found, without another check."""

    def explain_last(context: GoldenContext, hooks: RunHooks) -> GoldenTestReport:
        if not (checks := [wanted for wanted, mode in list_ids(context.location) if mode == "check"]):
            hint = f"check and explain it: assay golden check {options.build_arguments()} --explain"
            raise UsageError(f"{context.test.name} was not checked yet", hint)
        _, report = load_report(context.location, max(checks))
        return _add_notes(report, explain(context, report, hooks))

    return _each_test(load_golden_file(options.file, ("run",)), options, hooks, explain_last, "check")


def _add_notes(report: GoldenTestReport, lines: Sequence[str]) -> GoldenTestReport:
    """Replace the notes of an earlier explanation by `lines`."""
    others = [note for note in report.notes if not note.startswith(_EXPLAINED)]
    return replace(report, notes=(*others, *(f"{_EXPLAINED}{line}" for line in lines)))


@dataclass(slots=True)
class Validation:
    """The findings of a validation, for which nothing was run."""

    file: GoldenFile
    commands: list[tuple[str, str, str]] = field(default_factory=list)  # test; gather, check or same; command
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def validate_file(options: GoldenOptions, log: str | None = None) -> Validation:
    """Load a file and list its commands and problems and, with a sample log, what the patterns match in the log."""
    found, data = Validation(load_golden_file(options.file)), None
    if log is not None:
        try:
            with open(log, "rb") as sample:
                data = sample.read()
        except OSError as error:
            raise UsageError(f"the log {log} cannot be read: {error.strerror}") from None
    for context in build_contexts(found.file, options):
        name = context.test.name
        found.commands += _list_commands(context.choose_checkpoints(), found.notes)
        found.notes += [f"{name}: {note}" for note in context.describe_locations()]
        program = first_program(context.build_gather_command()) or ""
        inside, path = os.path.join(context.folder, program), dict(context.test.env).get("PATH")
        has_program = os.access(inside, os.X_OK) if os.sep in program else shutil.which(program, path=path)
        if program and not has_program:
            found.problems.append(f"{name}: the program {program!r} was not found")
        if data is not None:
            found.problems += _try_patterns(context.test, data, found.notes)
    return found


def _list_commands(context: GoldenContext, notes: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the commands of a gathering, of a check of each segment, and of each configuration that must agree."""
    name, hide = context.test.name, context.hide_command
    yield name, "gather", hide(context.build_gather_command())
    try:
        golden = manifests.load_manifest(context.manifest, name)
        for segment in golden.segments:
            path = context.find_checkpoint(segment) or segment.checkpoint
            text = context.build_check_command(path, segment.start_step, golden.steps_beyond or 0)
            yield name, "check", hide(text)
    except UsageError:
        notes.append(f"{name}: no golden recording yet; the check's command is an example")
        yield name, "check", hide(context.build_check_command("CHECKPOINT", 0))
    for each in context.test.same:
        text = hide(context.use_same(each).build_check_command("CHECKPOINT", 0))
        variables = " ".join(f"{variable}={shlex.quote(value)}" for variable, value in each.env)
        yield name, f"same {each.name}", f"{variables} {text}".strip()


def _try_patterns(test: GoldenTest, data: bytes, notes: list[str]) -> list[str]:
    """Return the patterns that match no line of `data`, and the metrics that are never on a line with the step."""
    text = data.decode("utf-8", "replace").replace("\r", "\n")
    problems = []
    unread = find_unread(test, data)
    for pattern in test.patterns:
        count = count_lines(pattern, text)
        where = f"{pattern.position}: " if pattern.position else ""
        if count:
            notes.append(f"{test.name} {pattern.metric}: matches {count} lines")
        else:
            problems.append(f"{where}{test.name} {pattern.metric}: {NO_LINE}")
    problems += [f"{test.name}: {problem}" for problem in read_values(test, data).problems]
    problems += [f"{test.name} {metric}: {why}" for metric, why in unread.items() if why == NO_STEP_LINE]
    return problems


Path = str | os.PathLike[str]


def check_golden(
    file: Path,
    store: Path = DEFAULT_STORE,
    *,
    tests: Sequence[str] = (),
    root: Path | None = None,
    slots: str | None = None,
    jobs: int | None = None,
    on: str | None = None,
    timeout_s: float | None = None,
    allow_changed: bool = False,
) -> Judgement:
    """Check a training against its golden recording in the folder `store`, as `assay golden check` does."""
    options = GoldenOptions(
        file=os.fspath(file),
        store=os.fspath(store),
        root=os.fspath(root) if root is not None else None,
        slots=parse_slot_flags(slots, jobs),
        on=on,
        tests=tuple(tests),
        timeout_s=timeout_s,
    )
    report = check_file(options)
    if report.interrupted:
        raise KeyboardInterrupt  # the check has stopped its runs
    findings = tuple(finding for test in report.tests for finding in test.verdict.findings)
    return Judgement(report.kind, int(report.exit_code(allow_changed)), findings, render_golden(report))
