"""`from assay.convergence import do_convergence_test`: as the convergence harness's users call it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.golden_lab import Lab

from assay.convergence import (
    ConvergenceFailure,
    MissingConfigurationOptionException,
    MissingMandatoryFlagException,
    do_convergence_test,
)
from assay.errors import ConfigError, UsageError
from assay.values.verdict import VerdictKind

SOURCE = Path(__file__).parents[1] / "src"
NAME = "convergence_harness_manifest.json"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("ASSAY_ROOT", str(tmp_path / "runs"))
    monkeypatch.setenv("ASSAY_SLOTS", "cpu:2")
    return Lab(tmp_path)


def test_it_gathers_and_checks(lab: Lab) -> None:
    do_convergence_test(lab.store, NAME, lab.file, do_gather=True)
    assert lab.manifest_path.exists()
    do_convergence_test(str(lab.store), NAME, str(lab.file))


def test_a_regression_raises_an_assertion_error_with_the_findings(lab: Lab) -> None:
    do_convergence_test(lab.store, NAME, lab.file, True)
    lab.change(scale=2.0)
    with pytest.raises(AssertionError, match="FAIL segment") as caught:
        do_convergence_test(lab.store, NAME, lab.file)
    failure = caught.value
    assert isinstance(failure, ConvergenceFailure)
    assert any(finding.kind is VerdictKind.FAIL for finding in failure.findings)
    assert failure.report.tests[0].segments[0].verdict.kind is VerdictKind.FAIL


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


def test_other_mistakes_are_config_errors(lab: Lab) -> None:
    lab.test["metrics"]["loss"]["comparison"] = "=>"
    lab.write()
    with pytest.raises(ConfigError) as caught:
        do_convergence_test(lab.store, NAME, lab.file)
    assert not isinstance(caught.value, KeyError)
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


@pytest.mark.parametrize("optimise", [[], ["-O"]])
def test_in_a_one_line_test_function_it_fails_when_it_should(lab: Lab, optimise: list[str]) -> None:
    do_convergence_test(lab.store, NAME, lab.file, do_gather=True)
    test = lab.folder / "test_one.py"
    call = f"do_convergence_test({str(lab.store)!r}, {NAME!r}, {str(lab.file)!r})"
    test.write_text(f"from assay.convergence import do_convergence_test\n\n\ndef test_it():\n    {call}\n")
    command = [
        sys.executable,
        *optimise,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        "--rootdir",
        str(lab.folder),
        str(test),
    ]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}

    def outcome() -> str:
        return subprocess.run(
            command, env=environment, cwd=lab.folder, capture_output=True, text=True, check=False
        ).stdout

    assert "1 passed" in outcome()
    lab.change(scale=2.0)
    said = outcome()
    assert "1 failed" in said
    assert "ConvergenceFailure" in said


def test_importing_it_is_light() -> None:
    code = "import sys, assay.convergence\nprint(sorted({'numpy', 'yaml', 'click', 'pytest'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
