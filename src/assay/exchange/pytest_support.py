"""ASSAY_SERVER: what each test of ours has run is sent there, and the link to it is printed.

A convergence check sends its runs; a test of a model becomes a run with its outcome, times and failure. No test fails
because a server is away or refuses: one line at the end tells. Tests may run in other processes; runs are sent from
where they were made, and the process that the user has called prints the links.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from assay.compat.torq.pytest_session import build_result
from assay.golden.pytest_support import RUNS
from assay.models.api import PROPERTY_CASE

if TYPE_CHECKING:
    from assay.exchange.upload import Target

PLUGIN = "assay-uploads"
_LINK, _PROBLEM = "assay_link", "assay_upload_problem"  # properties of a report
_MOST_NAME = 80
_LONG_S = 5.0


def watch_uploads(config: pytest.Config) -> None:
    if os.environ.get("ASSAY_SERVER", "").strip():
        config.pluginmanager.register(Uploads(config), PLUGIN)


class Uploads:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        self._session = build_session_name()
        self._reports: dict[str, dict[str, pytest.TestReport]] = {}
        self._problems: list[str] = []
        self._is_away = False
        self._stored = ""  # STUDY~SESSION of the tests of models, once one was written
        self._told = ""  # the link that was printed last

    # ---------------------------------------------------------------- where a test runs

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        folder = getattr(item, RUNS, None)
        if call.when == "teardown" and folder is not None:
            study = _clean(f"{item.name}-{self._session}")
            report.user_properties.append(self._send(lambda: _find_runs(folder, study)))
        return report

    def _send(self, find: Any) -> tuple[str, str]:
        """The link, or what went wrong. Whatever it is: the test has run, and what it found is the result."""
        if self._is_away:
            return _PROBLEM, ""
        began = time.monotonic()
        try:
            from assay.exchange.upload import find_server, upload_runs

            server = find_server(None, os.environ)
            targets = list(find())
            return _LINK, upload_runs(targets, server, attempts=1).links[-1] if targets else ""
        except Exception as error:  # noqa: BLE001 nothing here may fail a test
            message = str(getattr(error, "message", None) or f"{type(error).__name__}: {error}")
            # who does not answer, or takes long to refuse, is not asked again
            self._is_away = "it refuses" not in message or time.monotonic() - began > _LONG_S
            return _PROBLEM, message.partition("\n")[0]

    # ---------------------------------------------------------------- in the process that the user has called

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._is_worker:
            return
        phases = self._reports.setdefault(report.nodeid, {})
        phases[report.when or ""] = report
        if report.when != "teardown":
            return
        del self._reports[report.nodeid]
        given: dict[str, Any] = {name: value for each in phases.values() for name, value in each.user_properties}
        if given.get(PROPERTY_CASE):
            self._tell(*self._send_case(report.nodeid, phases))
        for name in (_LINK, _PROBLEM):
            if name in given:
                self._tell(name, given[name])

    def _send_case(self, nodeid: str, phases: dict[str, pytest.TestReport]) -> tuple[str, str]:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="assay-upload-") as folder:
            name, text = self._send(lambda: self._write_case(nodeid, phases, folder))
        is_sent = name == _LINK and bool(text)
        server = os.environ["ASSAY_SERVER"].strip().rstrip("/")
        return name, f"{server}/test-sessions/{self._stored}/" if is_sent else text

    def _write_case(self, nodeid: str, phases: dict[str, pytest.TestReport], folder: str) -> Iterator[Target]:
        """The test as a run, as the server makes it of Torq's session."""
        import io
        import zipfile
        from dataclasses import replace

        from assay.compat.torq.dashboard import build_archive, build_session
        from assay.compat.torq.session_runs import store_session
        from assay.exchange.upload import Target

        session = build_session([build_result(nodeid, phases)], str(self._config.rootpath), os.environ)
        session = replace(session, workflow_url=self._session)
        unpacked, root = os.path.join(folder, "session"), os.path.join(folder, "root")
        os.mkdir(root)
        with zipfile.ZipFile(io.BytesIO(build_archive(session))) as archive:
            archive.extractall(unpacked)  # our own
        stored = store_session(unpacked, os.path.join(folder, "aside"), root, time.time())
        self._stored = f"{stored.study}~{stored.id}"
        for run in stored.runs:
            yield Target(run.study, os.path.join(root, run.study, run.run))

    def _tell(self, name: str, text: str) -> None:
        if name == _PROBLEM:
            self._problems.append(text)
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if name == _LINK and text not in ("", self._told) and reporter is not None:
            self._told = text  # tests of models share the page of their session
            reporter.ensure_newline()
            if reporter._tw.width_of_current_line:  # noqa: SLF001 behind the dots of other processes' tests
                reporter.write("\n")
            reporter.write_line(f"result: {text}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._problems:
            why = next(filter(None, self._problems), "")
            count = len(self._problems)
            what = "the results of 1 test were" if count == 1 else f"the results of {count} tests were"
            terminalreporter.write_line(f"warning: {what} not uploaded: {why}")


def build_session_name() -> str:
    """Of CI's job, else one that no other session has."""
    number, attempt = os.environ.get("GITHUB_RUN_ID"), os.environ.get("GITHUB_RUN_ATTEMPT") or "1"
    return f"{number}.{attempt}" if number else uuid.uuid4().hex[:8]


def _find_runs(root: str, study: str) -> Iterator[Target]:
    """All finished runs of a test, under a study that no other test and no other session has."""
    from assay.exchange.upload import Target, find_finished

    for run_dir in find_finished(root):
        yield Target(study, run_dir)


def _clean(name: str) -> str:
    head, dash, session = name.rpartition("-")
    head = re.sub(r"[^\w.+=,@-]+", "_", head)[:_MOST_NAME].strip("._-") or "test"
    return f"{head}{dash}{session}"
