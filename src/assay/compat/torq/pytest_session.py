"""Writes the results of a session that tests models (`--report-output-file`), and sends them (TORQ_PERF_SERVER).

If neither the option nor the variable is set, no plugin is registered. A session without a test of a model sends
nothing. Only the process that the user started sends results: it also gets the reports of pytest's worker processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from assay.models.api import read_options
from assay.values.pytest_names import PROPERTY_CASE, PROPERTY_ISSUE, PROPERTY_PROFILE

if TYPE_CHECKING:
    from assay.compat.torq.dashboard import CaseResult

_MEASUREMENTS = {"compile_s": "compilation_time", "run_s": "e2e_inference_time"}
_METADATA = ("compiler", "runtime")
_PHASES = ("setup", "call", "teardown")


def watch_session(config: pytest.Config) -> None:
    """Watch the session if results are requested, in the process that the user started."""
    if hasattr(config, "workerinput"):
        return
    path = read_options(config).report_file
    if path is None and not os.environ.get("TORQ_PERF_SERVER"):
        return
    from assay.compat.torq.dashboard import find_server
    from assay.errors import AssayError

    try:
        server = find_server(os.environ)
    except AssayError as error:
        raise pytest.UsageError(error.render()) from None
    config.pluginmanager.register(SessionWatch(path, server, str(config.rootpath)), "assay-model-session")


class SessionWatch:
    def __init__(self, path: str | None, server: str | None, folder: str) -> None:
        self._path = path
        self._server = server
        self._folder = folder
        self._reports: dict[str, dict[str, pytest.TestReport]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.setdefault(report.nodeid, {})[report.when or ""] = report

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not any(find_properties(phases).get(PROPERTY_CASE) for phases in self._reports.values()):
            return
        for line in self._publish():
            terminalreporter.write_line(line)

    def _publish(self) -> Iterator[str]:
        """Write and send the results, and yield lines to print. Problems do not change the result of the tests."""
        from assay.compat.torq.dashboard import build_session, keep_session, publish_session
        from assay.errors import AssayError
        from assay.show.formatting import clean

        try:
            results = [build_result(nodeid, phases) for nodeid, phases in self._reports.items()]
            session = build_session(results, self._folder, os.environ)
            if self._path is not None:
                keep_session(session, self._path)
                yield f"results: {self._path}"
            if self._server is not None:
                yield f"Test results available at {publish_session(session, self._server, os.environ)}"
        except AssayError as error:
            yield f"warning: {error.render()}"
        except Exception as error:  # noqa: BLE001 nothing here may fail a session
            yield f"warning: the results could not be sent: {clean(f'{type(error).__name__}: {error}')}"


# ---------------------------------------------------------------- one test


def build_result(nodeid: str, phases: dict[str, pytest.TestReport]) -> CaseResult:
    from assay.compat.torq.dashboard import CaseResult

    given = find_properties(phases)
    outcome, phase = _find_outcome(phases)
    profile = given.get(PROPERTY_PROFILE)
    facts = {
        "outcome": outcome,
        "linked_issue": given.get(PROPERTY_ISSUE),
        "measurements": {name: given[key] for key, name in _MEASUREMENTS.items() if key in given},
        "metadata": {key: str(given[key]) for key in _METADATA if key in given},
        "failed_phase": phase,
    }
    failure = ""
    if phase is not None:
        report = phases[phase]
        sections = [f"--- {title} ---\n{text}" for title, text in report.sections if text.strip()]
        failure = "\n".join(filter(None, (report.longreprtext, *sections)))
    return CaseResult(nodeid, facts, failure, profile if profile and os.path.isfile(profile) else None)


def find_properties(phases: dict[str, pytest.TestReport]) -> dict[str, Any]:
    return {name: value for phase in _PHASES if phase in phases for name, value in phases[phase].user_properties}


def _find_outcome(phases: dict[str, pytest.TestReport]) -> tuple[str, str | None]:
    """Return the outcome as the dashboard names it, and the phase that failed, or None."""
    known = [(phase, phases[phase]) for phase in _PHASES if phase in phases]
    phase, report = next(((phase, report) for phase, report in known if report.outcome != "passed"), known[-1])
    expected = any(hasattr(report, "wasxfail") for _, report in known)
    if report.outcome == "failed":
        # pytest reports the pass of a strict xfail as a failure without a location
        return ("nxpass", None) if str(report.longrepr).startswith("[XPASS(strict)]") else ("failed", phase)
    if report.outcome == "skipped":
        return ("xfail" if expected else "skipped"), None
    return ("nxpass" if expected else "passed"), None
