"""Uploads to ASSAY_SERVER: each test of a model is sent as a run with its outcome, times and failure.

The plugin of `exchange` sends the run, prints the link and reports errors.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
import zipfile
from collections.abc import Iterator

import pytest

from assay.compat.torq.dashboard import build_archive, build_session
from assay.compat.torq.pytest_session import build_result, find_properties
from assay.compat.torq.session_runs import store_session
from assay.exchange.api import LINK, OutgoingRun, Uploads
from assay.values.pytest_names import PROPERTY_CASE


class ModelUploads:
    """Sends runs from the process that the user started."""

    def __init__(self, uploads: Uploads, folder: str) -> None:
        self._uploads = uploads
        self._folder = folder
        self._reports: dict[str, dict[str, pytest.TestReport]] = {}
        self._stored = ""  # STUDY~SESSION after the first run was written

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        phases = self._reports.setdefault(report.nodeid, {})
        phases[report.when or ""] = report
        if report.when == "teardown":
            del self._reports[report.nodeid]
            if not find_properties(phases).get(PROPERTY_CASE):
                return
            with tempfile.TemporaryDirectory(prefix="assay-upload-") as folder:
                name, text = self._uploads.send(lambda: self._write(report.nodeid, phases, folder))
            server = os.environ["ASSAY_SERVER"].strip().rstrip("/")
            is_sent = name == LINK and bool(text)
            self._uploads.report(name, f"{server}/test-sessions/{self._stored}/" if is_sent else text)

    def _write(self, nodeid: str, phases: dict[str, pytest.TestReport], folder: str) -> Iterator[OutgoingRun]:
        """Write a test as the run that the server would make from Torq's session."""
        session = build_session([build_result(nodeid, phases)], self._folder, os.environ)
        session = session._replace(facts={**session.facts, "workflow_url": self._uploads.session})
        unpacked, root = os.path.join(folder, "session"), os.path.join(folder, "root")
        os.mkdir(root)
        with zipfile.ZipFile(io.BytesIO(build_archive(session))) as archive:
            archive.extractall(unpacked)  # this process built the archive
        stored = store_session(unpacked, os.path.join(folder, "aside"), root, time.time())
        self._stored = f"{stored.study}~{stored.id}"
        for run in stored.runs:
            yield OutgoingRun(run.study, os.path.join(root, run.study, run.run))
