"""Models as tests: which cases there are, what they are called, and which of them are expected to fail.

A test that asks for `assay_case`, itself or through a fixture, is run once for each case of each model: every layer and
the full model, for each target or hardware type, for each chip. Names come from the graphs; nothing runs before a test.
"""

from __future__ import annotations

import os
import types
import warnings
from collections.abc import Sequence
from typing import Any

import pytest

from assay.models.pytest_support import expected_failures, fixtures
from assay.models.pytest_support import report as model_report
from assay.models.pytest_support.options import ModelOptions
from assay.models.pytest_support.plan import CACHE_SECTION, Given, Plan, get_plan, set_plan
from assay.models.pytest_support.report import tell_reasons

CASE, TARGET, HARDWARE, CHIP = "assay_case", "assay_target", "assay_hardware", "assay_chip"


# ---------------------------------------------------------------- before collection


def announce(config: pytest.Config) -> None:
    set_plan(config)
    config.addinivalue_line("markers", "assay_models(*patterns): of all models, those whose names match")


def offer_fixtures(config: pytest.Config) -> None:
    """All of ours but those that another plugin has under the same name."""
    others = [each for each in config.pluginmanager.get_plugins() if not _is_conftest(each)]
    offered = types.ModuleType("assay_model_fixtures")
    for name in fixtures.NAMES:
        if not any(hasattr(other, name) for other in others):
            setattr(offered, name, getattr(fixtures, name))
    config.pluginmanager.register(offered, "assay-model-fixtures")
    config.pluginmanager.register(model_report, "assay-model-report")


def _is_conftest(plugin: object) -> bool:
    return os.path.basename(getattr(plugin, "__file__", None) or "") == "conftest.py"


def refuse_options(config: pytest.Config) -> None:
    """What was mistyped on the command line is said at once. Without options of ours nothing is even read."""
    plan = get_plan(config)
    asked = plan.options
    if asked.chips is None and asked.reference is None and not asked.targets:
        return
    from assay.errors import AssayError

    try:
        if asked.chips is not None:
            _ = plan.chips
        if asked.targets:
            _ = plan.targets
        plan.build_reference(asked.reference)
    except AssayError as error:
        raise pytest.UsageError(error.render()) from None


# ---------------------------------------------------------------- collection


def parametrize(metafunc: pytest.Metafunc) -> None:
    asked = set(metafunc.fixturenames) & {CASE, TARGET, HARDWARE, CHIP}
    if not asked:
        return
    from assay.errors import AssayError

    plan = get_plan(metafunc.config)
    try:
        if CASE in asked:
            _parametrize_cases(metafunc, plan, plan.targets if TARGET in asked else plan.hardware)
        else:
            _parametrize_parts(metafunc, plan, asked)
    except AssayError as error:
        said = error.render()
    else:
        return
    raise pytest.Collector.CollectError(said)  # behind the handler: pytest would print the error as its cause


def _parametrize_cases(metafunc: pytest.Metafunc, plan: Plan, middles: Sequence[str]) -> None:
    rows = [row for row in plan.build_rows(middles) if _is_wanted(metafunc, row)]
    if not plan.models:
        rows = [plan.build_empty(middles[0])]
    metafunc.parametrize(CASE, rows, ids=[row.label for row in rows], indirect=True)


def _is_wanted(metafunc: pytest.Metafunc, row: Given) -> bool:
    """A test of somebody's own may be for some models only."""
    from fnmatch import fnmatchcase

    marks = list(metafunc.definition.iter_markers("assay_models"))
    patterns = [pattern for mark in marks for pattern in mark.args]
    assert row.model is not None
    assert row.case is not None
    names = (row.model.shown, row.case.shown)
    return not marks or any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _parametrize_parts(metafunc: pytest.Metafunc, plan: Plan, asked: set[str]) -> None:
    """A test that has to do with the chips alone is run once for each of them, not once for each layer."""
    for name, known in ((TARGET, "targets"), (HARDWARE, "hardware"), (CHIP, "chips")):
        if name in asked:
            values = getattr(plan, known)
            metafunc.parametrize(name, values, ids=list(values), indirect=True)


def is_model_test(item: pytest.Item) -> bool:
    return CASE in getattr(item, "fixturenames", ())


def place_in_file(item: pytest.Item) -> None:
    """An imported test is the importing file's: reports do not point into Assay."""
    if getattr(getattr(item, "function", None), "__module__", "") == "assay.models":
        setattr(item, "reportinfo", lambda: (item.path, 0, item.name))  # noqa: B010 mypy: a method


# ---------------------------------------------------------------- expected failures


def expect_failures(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    from assay.errors import AssayError

    plan = get_plan(config)
    for item in items:
        item.user_properties.append((model_report.PROPERTY_CASE, expected_failures.find_label(item.name)))
    try:
        lists = expected_failures.Lists(plan.project.settings.expected_failures, plan.project.folder)
        for item in items:
            _mark(item, lists.find(item), plan.options)
        strange = lists.find_strange([case.shown for model in plan.models for case in model.cases])
    except AssayError as error:
        raise pytest.UsageError(error.render()) from None
    _warn_of_models(plan)
    for entry in strange if not plan.options.folders else ():
        text = f"{entry.where}: there is no such case: {entry.name}"
        warnings.warn_explicit(pytest.PytestWarning(text), None, entry.path, entry.line)


def _warn_of_models(plan: Plan) -> None:
    """Settings for models that are not there. With a folder of its own, these are not the models that they speak of."""
    from assay.models.flow.project import find_strange_models

    for text in find_strange_models(plan.project, plan.models) if plan.models and not plan.options.folders else ():
        warnings.warn(pytest.PytestWarning(text), stacklevel=1)


def _mark(item: pytest.Item, entry: expected_failures.Entry | None, options: ModelOptions) -> None:
    if entry is None:
        return
    runs = options.try_xfails or (options.issue is not None and entry.is_linked(options.issue))
    if entry.issue:
        item.user_properties.append((model_report.PROPERTY_ISSUE, entry.issue))
    item.add_marker(pytest.mark.xfail(reason=entry.reason, run=runs, strict=True))


# ---------------------------------------------------------------- the end


def summarize(reporter: Any, config: pytest.Config) -> None:
    """Where dumps are, and what was said about the cache; also of tests that ran in other processes."""
    reports = [report for found in reporter.stats.values() for report in found if hasattr(report, "sections")]
    lines = [text for report in reports for title, text in report.sections if CACHE_SECTION in title]
    if lines:
        reporter.section(CACHE_SECTION)
        for text in dict.fromkeys("\n".join(lines).splitlines()):
            reporter.write_line(text)
    _tell_folders(reporter, get_plan(config))
    tell_reasons(reporter)


def _tell_folders(reporter: Any, plan: Plan) -> None:
    asked = plan.options
    ir_dir = None if asked.ir_dir is None else plan.ir_dir
    named = (("IR", ir_dir), ("compile profiles", asked.compile_profile_dir), ("run profiles", asked.run_profile_dir))
    for what, folder in named:
        if folder is not None and any(names for _, _, names in os.walk(folder)):
            reporter.write_line(f"{what}: {folder}")
