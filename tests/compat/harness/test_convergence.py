"""`from assay.convergence import do_convergence_test`: as the convergence harness's users call it."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.golden_training import Lab, run_in_process

from assay.convergence import (
    ConvergenceFailure,
    MissingConfigurationOptionException,
    MissingMandatoryFlagException,
    do_convergence_test,
)
from assay.errors import ConfigError, UsageError
from assay.values.verdict import VerdictKind

SOURCE = Path(__file__).parents[3] / "src"
NAME = "convergence_harness_manifest.json"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    run_in_process(monkeypatch)
    monkeypatch.setenv("ASSAY_ROOT", str(tmp_path / "runs"))
    monkeypatch.setenv("ASSAY_SLOTS", "cpu:2")
    return Lab(tmp_path)


def test_a_regression_raises_an_assertion_error_with_the_findings(lab: Lab) -> None:
    do_convergence_test(lab.store, NAME, lab.file, True)
    lab.change(scale=2.0)
    with pytest.raises(AssertionError, match="FAIL segment") as caught:
        do_convergence_test(lab.store, NAME, lab.file)
    failure = caught.value
    assert isinstance(failure, ConvergenceFailure)
    assert any(finding.kind is VerdictKind.FAIL for finding in failure.findings)
    assert failure.report.tests[0].segments[0].verdict.kind is VerdictKind.FAIL


def test_a_value_that_is_a_hundred_times_better_passes_with_a_warning(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    do_convergence_test(lab.store, NAME, lab.file, True)
    for scale, is_noted in ((0.96, False), (0.01, True)):
        lab.change(scale=scale)
        do_convergence_test(lab.store, NAME, lab.file)
        shown = capsys.readouterr().err
        assert ("suspiciously better: -99%" in shown and "in the same unit?" in shown) is is_noted
        assert shown.count("suspiciously") == is_noted, "one line for all segments"


def test_what_is_not_a_pass_is_a_failure(lab: Lab) -> None:
    with pytest.raises(ConvergenceFailure, match="there is no golden recording"):
        do_convergence_test(lab.store, NAME, lab.file)
    lab.change(exit=3)
    with pytest.raises(ConvergenceFailure, match="exit code 3"):
        do_convergence_test(lab.store, NAME, lab.file, do_gather=True)


def test_missing_sections_and_flags_are_key_errors(lab: Lab) -> None:
    flag = lab.test["flags"]["run"].pop("run_for")
    lab.write()
    with pytest.raises(MissingMandatoryFlagException, match="run_for is missing"):
        do_convergence_test(lab.store, NAME, lab.file)
    lab.test["flags"]["run"]["run_for"] = flag
    del lab.test["flags"]["gather"]
    lab.write()
    with pytest.raises(MissingConfigurationOptionException, match="the section gather is missing") as caught:
        do_convergence_test(lab.store, NAME, lab.file, do_gather=True)
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, ConfigError)
    assert caught.value.problems
    assert issubclass(MissingMandatoryFlagException, KeyError)


SECTIONS = {"gather": ("checkpoint_output",), "run": ("checkpoint_input", "start_step", "run_for")}


def _build_flags(common: bool, misc: tuple[str, ...], without: tuple[str, ...], flags: str) -> dict[str, Any]:
    """The part `flags` of a file; `without` these sections, and with all, none, or all but the last of our flags."""
    found: dict[str, Any] = {"common": {"log": {"key": "--log", "value": 1}}} if common else {}
    for mode, names in SECTIONS.items():
        kept = {"all": names, "none": (), "all but the last": names[:-1]}[flags]
        section: dict[str, Any] = {name: {"key": f"--{name}", "set_in_script": True} for name in kept}
        found[mode] = {**section, "misc": {"x": {"key": "--x"}}} if mode in misc else section
    return {name: section for name, section in found.items() if name not in without}


@pytest.mark.parametrize("flags", ["all", "none", "all but the last"])
@pytest.mark.parametrize("mode", ["gather", "run"])
def test_the_originals_192_cases_of_flags_raise_what_the_original_raises(lab: Lab, mode: str, flags: str) -> None:
    """Both sections must be there, whatever the mode; then the mode's own flags, and only those."""
    lab.store.write_text("no folder: a file that is accepted is not run")
    cases = [
        (common, misc, without)
        for common in (False, True)
        for misc in ((), ("gather",), ("run",), ("gather", "run"))
        for without in ((), ("gather",), ("run",), ("gather", "run"))
    ]
    for common, misc, without in cases:
        lab.test["flags"] = _build_flags(common, misc, without, flags)
        lab.write()
        expected = ConvergenceFailure if flags == "all" else MissingMandatoryFlagException
        with pytest.raises(MissingConfigurationOptionException if without else expected) as caught:
            do_convergence_test(lab.store, NAME, lab.file, do_gather=mode == "gather")
        assert type(caught.value) is (MissingConfigurationOptionException if without else expected)
    assert len(cases) * 6 == 192


def test_a_flag_that_only_the_other_mode_needs_is_not_missed(lab: Lab) -> None:
    lab.store.write_text("no folder: a file that is accepted is not run")
    flags = lab.test["flags"]
    for mode in ("run", "gather"):
        lab.test["flags"] = {**flags, mode: {}}
        lab.write()
        with pytest.raises(ConvergenceFailure):
            do_convergence_test(lab.store, NAME, lab.file, do_gather=mode == "run")


def test_of_several_tests_the_first_that_lacks_something_decides(lab: Lab) -> None:
    no_flag, no_section = copy.deepcopy(lab.test), copy.deepcopy(lab.test)
    del no_flag["flags"]["run"]["start_step"]
    del no_section["flags"]["gather"]
    orders = {MissingMandatoryFlagException: (no_flag, no_section)}
    orders |= {MissingConfigurationOptionException: (no_section, no_flag)}
    for expected, tests in orders.items():
        lab.config = dict(zip(("one", "two"), tests, strict=True))
        lab.write()
        with pytest.raises(expected):
            do_convergence_test(lab.store, NAME, lab.file)


def test_other_mistakes_are_config_errors(lab: Lab) -> None:
    lab.test["metrics"]["loss"]["comparison"] = "=>"
    lab.write()
    with pytest.raises(ConfigError) as caught:
        do_convergence_test(lab.store, NAME, lab.file)
    assert not isinstance(caught.value, KeyError)
    assert "did you mean '>='?" in str(caught.value)
    with pytest.raises(UsageError, match="there is no file"):
        do_convergence_test(lab.store, NAME, lab.folder / "none.yml")


def test_the_callers_surroundings_stay_as_they_were(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lab.folder)
    before = (dict(os.environ), os.getcwd(), list(sys.path))
    do_convergence_test("relative/store", NAME, "config.yml", do_gather=True)
    lab.change(scale=2.0)
    with pytest.raises(ConvergenceFailure):
        do_convergence_test("relative/store", NAME, "config.yml")
    assert (dict(os.environ), os.getcwd(), list(sys.path)) == before


def test_it_works_without_pytest_and_fails_under_python_O(lab: Lab) -> None:
    """Where an assertion would not fail."""
    code = f"""
import sys
sys.modules["pytest"] = None
from assay.convergence import ConvergenceFailure, do_convergence_test
given = {str(lab.store)!r}, {NAME!r}, {str(lab.file)!r}
do_convergence_test(*given, do_gather=True)
open("change.py", "w").write("{{'scale': 2.0}}")
try:
    do_convergence_test(*given)
except ConvergenceFailure:
    print("failed")
"""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-O", "-c", code]
    done = subprocess.run(command, env=environment, cwd=lab.folder, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "failed"


def test_importing_it_is_light() -> None:
    code = "import sys, assay.convergence\nprint(sorted({'numpy', 'yaml', 'click', 'pytest'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
