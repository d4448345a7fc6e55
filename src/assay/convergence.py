"""The convergence harness's helper for tests: `do_convergence_test(storage_path, manifest_suffix, test_config_path)`.

    from assay.convergence import do_convergence_test

    def test_bert_still_converges():
        do_convergence_test("golden", "convergence_harness_manifest.json", "configs/bert.yml")

`do_convergence_test` returns if every test of the file passes, else it raises `ConvergenceFailure`, an AssertionError
with the report, also under `python -O`. The environment, the working directory and `sys.path` do not change.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from assay.errors import ConfigError
from assay.golden.api import GoldenReport, MissingFlag, MissingOption, MissingSection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.values.verdict import Finding

__all__ = [
    "ConvergenceFailure",
    "MissingConfigurationOptionException",
    "MissingMandatoryFlagException",
    "do_convergence_test",
]


class _MissingKeyError(ConfigError, KeyError):
    """A ConfigError that is also a KeyError, which users of the original harness catch."""

    __str__ = ConfigError.__str__


class MissingConfigurationOptionException(_MissingKeyError):  # noqa: N818 the original's name
    """A section that the configuration must have is missing."""


class MissingMandatoryFlagException(_MissingKeyError):  # noqa: N818 the original's name
    """A flag that the harness must set is not named in the configuration."""


class ConvergenceFailure(AssertionError):  # noqa: N818 it is an assertion that failed
    """The verdict is not PASS: `report` is the whole report, and `findings` are the reasons."""

    def __init__(self, report: GoldenReport) -> None:
        from assay.golden.api import describe_headline, render_golden

        self.report = report
        super().__init__(f"{describe_headline(report)}\n{render_golden(report)}")

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for test in self.report.tests for finding in test.verdict.findings)


def do_convergence_test(
    storage_path: str | os.PathLike[str],
    manifest_suffix: str,
    test_config_path: str | os.PathLike[str],
    do_gather: bool = False,
    *,
    timeout_s: float | None = None,
    only: Sequence[str] = (),
) -> None:
    """Gather the results of every test of a configuration, or check them against the gathered results. `timeout_s`:
    limit of each run. `only`: the metrics, or labels of metrics as in `loss MLM`, to judge; the default is all."""
    from assay.golden.api import GoldenOptions, check_file, gather_file
    from assay.launch.api import RunHooks
    from assay.show.console import Console
    from assay.values.verdict import VerdictKind

    options = GoldenOptions(
        file=os.fspath(test_config_path),
        store=os.path.abspath(os.fspath(storage_path)),
        manifest_name=manifest_suffix,
        replicas=0,
        timeout_s=timeout_s,
        only=tuple(only),
        command_line=tuple(sys.argv),
        is_harness=True,
    )
    try:
        report = (gather_file if do_gather else check_file)(options, RunHooks(console=Console(quiet=True)))
    except ConfigError as error:
        # the first problem with a flag or section of `flags`, else any other problem, selects the harness's exception
        kinds = [type(problem) for problem in error.problems]
        first = next((kind for kind in kinds if kind in (MissingSection, MissingFlag)), None)
        if first is MissingFlag:
            raise MissingMandatoryFlagException(error.problems) from None
        if first is MissingSection or MissingOption in kinds:
            raise MissingConfigurationOptionException(error.problems) from None
        raise
    if report.interrupted:
        raise KeyboardInterrupt
    if report.kind is not VerdictKind.PASS or any(test.exit_code for test in report.tests):
        raise ConvergenceFailure(report)
    for test in report.tests:
        for warning in test.warnings:
            Console().warning(f"{test.test}: {warning}")
