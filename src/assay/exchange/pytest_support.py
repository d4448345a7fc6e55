"""Uploads of tests: the runs of each test are sent to ASSAY_SERVER, and the link to the runs is printed.

No test fails because the server does not answer or refuses: one line at the end reports the problem. Tests may run in
worker processes; each worker sends its own runs, and the process that the user started prints the links.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from assay.exchange.upload import OutgoingRun, UploadRefusedError, find_finished, find_server, upload_runs
from assay.values.pytest_names import RUNS

LINK, _PROBLEM = "assay_link", "assay_upload_problem"  # names of properties of a test's report
_MOST_NAME = 80
_LONG_S = 5.0


class Uploads:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        self.session = build_session_name()
        self._problems: list[str] = []
        self._is_away = False
        self._printed = ""  # the last printed link

    # ---------------------------------------------------------------- in the process that runs a test

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        folder = getattr(item, RUNS, None)
        if call.when == "teardown" and folder is not None:
            name = re.sub(r"[^\w.+=,@-]+", "_", item.name)[:_MOST_NAME].strip("._-") or "test"
            study = f"{name}-{self.session}"  # the name is unique for the test and the session
            sent = self.send(lambda: (OutgoingRun(study, run_dir) for run_dir in find_finished(folder)))
            report.user_properties.append(sent)
        return report

    def send(self, find: Callable[[], Iterator[OutgoingRun]]) -> tuple[str, str]:
        """Upload runs; return the name of a report's property and the link or the problem. No error is raised."""
        if self._is_away:
            return _PROBLEM, ""
        began = time.monotonic()
        try:
            server = find_server(None, os.environ)
            targets = list(find())
            return LINK, upload_runs(targets, server, attempts=1).links[-1] if targets else ""
        except Exception as error:  # noqa: BLE001 nothing here may fail a test
            message = str(getattr(error, "message", None) or f"{type(error).__name__}: {error}")
            # give up on a server that does not answer, or takes long to refuse
            self._is_away = not isinstance(error, UploadRefusedError) or time.monotonic() - began > _LONG_S
            return _PROBLEM, message.partition("\n")[0]

    # ---------------------------------------------------------------- in the process that the user has started

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._is_worker:
            return
        for name, text in report.user_properties:
            if name in (LINK, _PROBLEM):
                self.report(name, str(text))

    def report(self, name: str, text: str) -> None:
        """Print the link or remember the problem that `send` returned."""
        if name == _PROBLEM:
            self._problems.append(text)
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if name == LINK and text not in ("", self._printed) and reporter is not None:
            self._printed = text  # several tests may have one page
            reporter.ensure_newline()
            if reporter._tw.width_of_current_line:  # noqa: SLF001 the line has progress dots
                reporter.write("\n")
            reporter.write_line(f"result: {text}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._problems:
            why = next(filter(None, self._problems), "")
            count = len(self._problems)
            what = "the results of 1 test were" if count == 1 else f"the results of {count} tests were"
            terminalreporter.write_line(f"warning: {what} not uploaded: {why}")


def build_session_name() -> str:
    """Return the number of the CI job and its attempt, else a random name."""
    number, attempt = os.environ.get("GITHUB_RUN_ID"), os.environ.get("GITHUB_RUN_ATTEMPT") or "1"
    return f"{number}.{attempt}" if number else uuid.uuid4().hex[:8]
