"""`assay golden gather` and `check`: every test of a file, each with its own manifest and its own verdict."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from assay.config.settings import Settings, load_settings
from assay.errors import AssayError, UsageError
from assay.golden import manifests
from assay.golden.flow.check import check_test
from assay.golden.flow.gather import count_test, gather_test
from assay.golden.flow.segments import Explain, GoldenContext, GoldenOptions, build_arguments, build_context, load_file
from assay.golden.records import list_ids, load_report, write_report
from assay.golden.values import GoldenFile, GoldenReport, GoldenTestReport, ReportMode
from assay.judge.statistics import load_numpy, needed_for, t_quantile
from assay.launch.api import RunHooks
from assay.system.fast_dataclasses import replace
from assay.values.verdict import Finding, Verdict, VerdictKind

_EXPLAINED = "explain: "  # what notes of an explanation begin with

Run = Callable[[GoldenContext, RunHooks], GoldenTestReport]


def gather_file(options: GoldenOptions, hooks: RunHooks | None = None) -> GoldenReport:
    """Record every test of the file."""
    if options.counting:
        return _each_test(load_file(options, ("run",)), options, hooks or RunHooks(), count_test)
    # the original gathers even without the flags of a check
    file = load_file(options, ("gather",) if options.is_harness and not options.replicas else ("gather", "run"))
    if options.replicas != 0 and any(test.replicas for test in file.tests):
        _check_libraries(file)
    return _each_test(file, options, hooks or RunHooks(), gather_test)


def check_file(options: GoldenOptions, hooks: RunHooks | None = None) -> GoldenReport:
    """Check every test of the file against its golden recording."""
    file = load_file(options, ("run",))
    _check_libraries(file)
    return _each_test(file, options, hooks or RunHooks(), check_test, "check")


@needed_for("judging windows of a training curve")
def _check_libraries(file: GoldenFile) -> None:
    """What judging or measuring noise will need, before a training that may take hours. Raises MissingExtraError."""
    if any(rule.kind in ("paired", "unmatched") for test in file.tests for rule in test.rules):
        load_numpy()
        t_quantile(1, 0.25)


def _each_test(
    file: GoldenFile, options: GoldenOptions, hooks: RunHooks, run: Run, mode: ReportMode = "gather"
) -> GoldenReport:
    """One after another; a test that fails or cannot be run does not stop the next one."""
    began = time.time()
    for warning in file.warnings:
        hooks.console.warning(str(warning))
    reports: list[GoldenTestReport] = []
    settings: Settings | None = None
    for test in file.tests:
        try:
            settings = settings or load_settings(os.getcwd(), os.environ)
            context = build_context(file, test, options, settings)
            reports.append(run(context, hooks))
            if options.explain is not None and not reports[-1].interrupted:
                reports[-1] = _add_notes(reports[-1], options.explain(context, reports[-1], hooks))
            if run is not count_test:
                _keep(context, mode, file.source, reports[-1], hooks)
        except AssayError as error:
            manifest = manifests.manifest_path(os.path.abspath(options.store), test.name, options.manifest_name)
            verdict = Verdict.of([Finding(VerdictKind.ERROR, test.name, error.render())], 0)
            reports.append(GoldenTestReport(test.name, manifest, verdict, exit_code=error.exit_code))
        if reports[-1].interrupted:
            break
    return GoldenReport(mode, options.file, tuple(reports), time.time() - began)


def explain_file(options: GoldenOptions, explain: Explain, hooks: RunHooks) -> GoldenReport:
    """What began the difference that the last check of each test found; nothing is checked again."""

    def explain_last(context: GoldenContext, hooks: RunHooks) -> GoldenTestReport:
        checks = [wanted for wanted, mode in list_ids(context.location) if mode == "check"]
        if not checks:
            hint = f"check and explain it: assay golden check {build_arguments(options)} --explain"
            raise UsageError(f"{context.test.name} was not checked yet", hint)
        _, report = load_report(context.location, max(checks))
        return _add_notes(report, explain(context, report, hooks))

    return _each_test(load_file(options, ("run",)), options, hooks, explain_last, "check")


def _add_notes(report: GoldenTestReport, lines: Sequence[str]) -> GoldenTestReport:
    """In place of those of an earlier explanation."""
    others = [note for note in report.notes if not note.startswith(_EXPLAINED)]
    return replace(report, notes=(*others, *(f"{_EXPLAINED}{line}" for line in lines)))


def _keep(context: GoldenContext, mode: ReportMode, source: str, report: GoldenTestReport, hooks: RunHooks) -> None:
    """Keep the report for the page. One that cannot be kept is still the caller's answer."""
    try:
        write_report(context.location, mode, source, report)
    except OSError as error:
        hooks.console.warning(f"the report was not kept for the page: {error}")
