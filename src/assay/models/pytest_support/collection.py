"""Models as tests: which cases there are, their names, and which of them are expected to fail.

A test that uses `assay_case`, itself or through a fixture, runs once for each case of each model: every layer and the
full model, for each target or hardware type, for each chip. Names come from the graphs; collecting executes nothing.

Cases that are expected to fail are in `<module>-xfails.txt` next to the test file, or in the file of the settings:

    # a comment
    test_onnx_model[net_layer_Conv_3-sim-default] owner/repo#12

A line names a test by its name, its whole node id, or the part between the brackets, and may link an issue. A listed
case is not run; if --try-xfails or --issue runs it and it passes, the test fails: the list is out of date.
"""

from __future__ import annotations

import os
import re
import types
import warnings
from collections.abc import Sequence
from typing import Any

import pytest

from assay.errors import AssayError, UsageError
from assay.models.pytest_support import case as model_case
from assay.models.pytest_support import fixtures
from assay.models.pytest_support.case import CACHE_SECTION, find_label, report_reasons
from assay.models.pytest_support.options import Given, get_plan
from assay.system.fast_dataclasses import dataclass
from assay.system.files import read_text
from assay.values.pytest_names import PROPERTY_CASE, PROPERTY_ISSUE

_LINE = re.compile(
    r"(?P<name>\S.*?)(?:\s+\[?(?P<issue>[\w.-]+/[\w.-]+#\d+|#\d+|https?://\S+?/\d+)\]?)?(?:\s+#(?:\s.*)?)?\s*"
)


@dataclass(frozen=True, slots=True)
class ExpectedFailure:
    name: str
    issue: str | None
    path: str  # path of the list
    line: int

    @property
    def where(self) -> str:
        return f"{os.path.basename(self.path)}:{self.line}"

    @property
    def reason(self) -> str:
        return f"expected to fail ({self.where})" + (f": {self.issue}" if self.issue else "")

    def is_linked(self, issue: str) -> bool:
        """Return whether the failure is linked to this issue: `12`, `#12` or `owner/repo#12`."""
        if self.issue is None:
            return False
        number = re.split(r"[#/]", self.issue)[-1]
        return issue == self.issue or issue.removeprefix("#") == number


def load_entries(path: str) -> tuple[ExpectedFailure, ...]:
    """Load the entries of a list; none if there is no such file. Raises UsageError if it cannot be read."""
    try:
        text = read_text(path, "strict")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the list of expected failures {path} cannot be read: {error}") from error
    lines = [line.strip() for line in text.splitlines()]
    matches = [(number, _LINE.fullmatch(line)) for number, line in enumerate(lines, 1) if not line.startswith("#")]
    return tuple(ExpectedFailure(match["name"], match["issue"], path, number) for number, match in matches if match)


class Lists:
    """The lists of expected failures for a session, each of which is read once."""

    def __init__(self, common: str | None, folder: str) -> None:
        self._loaded: dict[str, tuple[ExpectedFailure, ...]] = {}
        self._common = os.path.join(folder, common) if common else None
        if self._common is not None and not os.path.exists(self._common):
            raise UsageError(f"the list of expected failures {self._common} does not exist")

    def find(self, item: pytest.Item) -> ExpectedFailure | None:
        names = {item.name, item.nodeid, find_label(item.name)}
        params = getattr(getattr(item, "callspec", None), "params", {})
        label = getattr(params.get("assay_case"), "label", None)
        if label is not None:  # the list has the label itself: pytest writes letters beyond ASCII as `\xe9`
            names |= {name.replace(find_label(item.name), label) for name in names}
        for path in (f"{os.path.splitext(str(item.path))[0]}-xfails.txt", self._common or ""):
            if path and path not in self._loaded:
                self._loaded[path] = load_entries(path)
            found = (entry for entry in self._loaded.get(path, ()) if entry.name in names)
            if entry := next(found, None):
                return entry
        return None

    def find_unmatched(self, cases: Sequence[str]) -> list[ExpectedFailure]:
        """Find entries that match no case of any hardware and chip: mistyped, or of a model that is missing."""
        entries = [entry for entries in self._loaded.values() for entry in entries]
        spelled = [name for case in cases for name in (case, case.encode("unicode_escape").decode())]
        return [
            entry for entry in entries if not any(find_label(entry.name).startswith(f"{case}-") for case in spelled)
        ]


CASE, MODULE, TARGET, HARDWARE, CHIP = "assay_case", "assay_module", "assay_target", "assay_hardware", "assay_chip"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "assay_models(*patterns): run the test only for models whose names match")
    files = [(each, getattr(each, "__file__", None) or "") for each in config.pluginmanager.get_plugins()]
    others = [each for each, file in files if os.path.basename(file) != "conftest.py"]
    offered = types.ModuleType("assay_model_fixtures")
    for name in fixtures.NAMES:  # another plugin's fixture of the same name is kept
        if not any(hasattr(other, name) for other in others):
            setattr(offered, name, getattr(fixtures, name))
    config.pluginmanager.register(offered, "assay-model-fixtures")
    config.pluginmanager.register(model_case, "assay-model-report")
    refuse_options(config)


def refuse_options(config: pytest.Config) -> None:
    """Report mistyped options before collection. Without options of Assay no settings are read."""
    plan = get_plan(config)
    asked = plan.options
    if asked.chips is None and asked.reference is None and not asked.targets:
        return
    try:
        if asked.chips is not None:
            _ = plan.chips
        if asked.targets and plan.split_targets()[0]:
            _ = plan.targets
        plan.build_reference(asked.reference)
    except AssayError as error:
        raise pytest.UsageError(error.render()) from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    asked = set(metafunc.fixturenames) & {CASE, MODULE, TARGET, HARDWARE, CHIP}
    if not asked:
        return
    plan = get_plan(metafunc.config)
    try:
        if MODULE in asked:
            metafunc.parametrize(MODULE, list(plan.modules), indirect=True)
        elif CASE in asked:
            middles = plan.targets if TARGET in asked else plan.hardware
            rows = [row for row in plan.build_rows(middles) if _is_wanted(metafunc, row)]
            if not plan.models:
                rows = [plan.build_empty(middles[0])]
            metafunc.parametrize(CASE, rows, ids=[row.label for row in rows], indirect=True)
        else:  # a test of the chips alone is run once for each of them, not once for each layer
            for name, known in ((TARGET, "targets"), (HARDWARE, "hardware"), (CHIP, "chips")):
                if name in asked:
                    values = getattr(plan, known)
                    metafunc.parametrize(name, values, ids=list(values), indirect=True)
    except AssayError as error:
        message = error.render()
    else:
        return
    raise pytest.Collector.CollectError(message)  # not in the handler: pytest would print the error as the cause


def _is_wanted(metafunc: pytest.Metafunc, row: Given) -> bool:
    """Return whether a test is for this model: a user's own test may be for some models only."""
    from fnmatch import fnmatchcase

    marks = list(metafunc.definition.iter_markers("assay_models"))
    patterns = [pattern for mark in marks for pattern in mark.args]
    assert row.model is not None
    assert row.case is not None
    names = (row.model.shown, row.case.shown)
    return not marks or any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _is_model_test(item: pytest.Item) -> bool:
    return not {CASE, MODULE}.isdisjoint(getattr(item, "fixturenames", ()))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give an imported test the location of the importing file: reports do not point into Assay."""
    if _is_model_test(item) and getattr(getattr(item, "function", None), "__module__", "") == "assay.models":
        setattr(item, "reportinfo", lambda: (item.path, 0, item.name))  # noqa: B010 mypy: a method


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if _is_model_test(item)]
    if not mine:
        return
    from assay.models.flow.discovery import find_unknown_stems

    plan = get_plan(config)
    asked = plan.options
    for item in mine:
        item.user_properties.append((PROPERTY_CASE, find_label(item.name)))
    try:
        lists = Lists(plan.project.settings.expected_failures, plan.project.folder)
        for item in mine:
            entry = lists.find(item)
            if entry is not None:
                runs = asked.try_xfails or (asked.issue is not None and entry.is_linked(asked.issue))
                if entry.issue:
                    item.user_properties.append((PROPERTY_ISSUE, entry.issue))
                item.add_marker(pytest.mark.xfail(reason=entry.reason, run=runs, strict=True))
        modules = [path.replace("/", "_") for path in plan.project.settings.modules]
        unmatched = lists.find_unmatched([*modules, *(case.shown for model in plan.models for case in model.cases)])
    except AssayError as error:
        raise pytest.UsageError(error.render()) from None
    if asked.folders:  # the project's lists and settings are not for models of these folders
        return
    stems = [model.stem for model in plan.models]
    for text in find_unknown_stems(plan.project.settings, stems) if stems else ():
        warnings.warn(pytest.PytestWarning(text), stacklevel=1)
    for entry in unmatched:
        text = f"{entry.where}: there is no such case: {entry.name}"
        warnings.warn_explicit(pytest.PytestWarning(text), None, entry.path, entry.line)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the folders of dumps and the reasons of hits and misses, also of tests that ran in other processes."""
    reports = [report for found in terminalreporter.stats.values() for report in found if hasattr(report, "sections")]
    lines = [text for report in reports for title, text in report.sections if CACHE_SECTION in title]
    if lines:
        terminalreporter.section(CACHE_SECTION)
        for text in dict.fromkeys("\n".join(lines).splitlines()):
            terminalreporter.write_line(text)
    plan = get_plan(config)
    asked = plan.options
    ir_dir = None if asked.ir_dir is None else plan.ir_dir
    named = (("IR", ir_dir), ("compile profiles", asked.compile_profile_dir), ("run profiles", asked.run_profile_dir))
    for what, folder in named:
        if folder is not None and any(names for _, _, names in os.walk(folder)):
            terminalreporter.write_line(f"{what}: {folder}")
    report_reasons(terminalreporter)
