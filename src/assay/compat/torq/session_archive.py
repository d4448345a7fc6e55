"""A test session as the archive that Torq's dashboard takes: `test_session.json`, failure logs, profiles."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from assay.compat.torq.values import CaseResult, ResultSession

MANIFEST = "test_session.json"
_LOGS, _PROFILES = "failure_logs", "profiles"
_UNITS = {"compilation_time": "s", "e2e_inference_time": "s"}
_MOST_LENGTH = 150  # of a file's name: what unpacks it has limits


def build_archive(session: ResultSession) -> bytes:
    """In memory: logs are texts of a terminal, profiles a few megabytes at most."""
    buffer = io.BytesIO()
    names = {result.nodeid: f"{index:04d}-{_name(result.nodeid)}" for index, result in enumerate(session.results)}
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, json.dumps(build_manifest(session, names), indent=1))
        for result in session.results:
            if result.failure:
                archive.writestr(f"{_LOGS}/{names[result.nodeid]}.log", result.failure)
            if result.profile:
                archive.write(
                    result.profile, f"{_PROFILES}/{names[result.nodeid]}{os.path.splitext(result.profile)[1]}"
                )
    return buffer.getvalue()


def build_manifest(session: ResultSession, names: Mapping[str, str]) -> dict[str, Any]:
    measured = dict.fromkeys(name for result in session.results for name in result.measurements)
    return {
        "git_commit": session.commit,
        "git_branch": session.branch,
        "workflow_url": session.workflow_url,
        "test_plan": session.test_plan,
        "batch_name": session.batch,
        "metrics": [{"name": name, "unit": _UNITS.get(name, "")} for name in measured],
        "test_runs": [dict(_build_run(result, names[result.nodeid])) for result in session.results],
    }


def _build_run(result: CaseResult, name: str) -> Iterator[tuple[str, Any]]:
    """What is not known is not there: the dashboard asks with defaults."""
    module, _, test = result.nodeid.partition("::")
    match = re.fullmatch(r"(.*?)\[(.*)\]", test, re.DOTALL)
    yield "module", module
    yield "name", match[1] if match else test
    yield "parameters", match[2] if match else ""
    yield "outcome", result.outcome
    if result.linked_issue:
        yield "linked_issue", result.linked_issue
    if result.measurements:
        yield "measurements", dict(result.measurements)
    if result.metadata:
        yield "metadata", dict(result.metadata)
    if result.failed_phase:
        yield "failed_phase", result.failed_phase
    if result.failure:
        yield "failure_log_file", f"{_LOGS}/{name}.log"
    if result.profile:
        yield "profiling_file", f"{_PROFILES}/{name}{os.path.splitext(result.profile)[1]}"


def _name(nodeid: str) -> str:
    """Plain on every file system; the number before it tells names apart that come to the same."""
    return re.sub(r"[^\w.+-]+", "_", nodeid).strip("_")[-_MOST_LENGTH:]
