"""The results of a test session: kept as Torq's archive, sent to Torq's dashboard."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence

from assay.compat.torq.server import check_server, send_session
from assay.compat.torq.session_archive import build_archive
from assay.compat.torq.values import CaseResult, ResultSession
from assay.errors import InfrastructureError, UsageError
from assay.system.files import write_atomic
from assay.system.git import run_git

SERVER, TOKEN, BATCH, PLAN = (
    "TORQ_PERF_SERVER",
    "TORQ_PERF_SERVER_TOKEN",
    "TORQ_PERF_BATCH_NAME",
    "TORQ_PERF_TEST_PLAN",
)


def find_server(env: Mapping[str, str]) -> str | None:
    """Where results are to be sent. Raises UsageError for an invalid address, before a test has run."""
    return check_server(env[SERVER]) if env.get(SERVER) else None


def build_session(
    results: Sequence[CaseResult], folder: str, env: Mapping[str, str], plan: str | None = None
) -> ResultSession:
    """What CI says of itself comes before what git says of the folder: CI may have checked out a merge of its own."""
    return ResultSession(
        results=tuple(results),
        commit=env.get("GITHUB_SHA") or _ask_git(folder, "rev-parse", "HEAD"),
        branch=env.get("GITHUB_REF") or _ask_git(folder, "symbolic-ref", "HEAD"),
        workflow_url=_find_workflow(env),
        test_plan=plan or env.get(PLAN) or "",
        batch=env.get(BATCH) or "default",
    )


def _ask_git(folder: str, *words: str) -> str | None:
    try:
        done = run_git(folder, *words)
    except UsageError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _find_workflow(env: Mapping[str, str]) -> str:
    """The dashboard tells sessions apart by it: where there is no CI, a name that no other session has."""
    number, repository = env.get("GITHUB_RUN_ID"), env.get("GITHUB_REPOSITORY")
    if not number or not repository:
        return uuid.uuid4().hex
    server, attempt = env.get("GITHUB_SERVER_URL") or "https://github.com", env.get("GITHUB_RUN_ATTEMPT") or "1"
    return f"{server}/{repository}/actions/runs/{number}/attempts/{attempt}"


def keep_session(session: ResultSession, path: str) -> None:
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        write_atomic(path, build_archive(session))
    except OSError as error:
        raise InfrastructureError(f"the results cannot be kept in {path}: {error.strerror}") from error


def publish_session(session: ResultSession, server: str, env: Mapping[str, str]) -> str:
    """The address of the results. In a GitHub workflow its summary links to them as well."""
    number = send_session(server, build_archive(session), env.get(TOKEN))
    address = f"{server}/test-sessions/{number}/#batch-{session.batch}"
    if env.get("GITHUB_STEP_SUMMARY"):
        try:
            with open(env["GITHUB_STEP_SUMMARY"], "a", encoding="utf-8") as stream:
                stream.write(f"[Test results]({address})\n\n")
        except OSError as error:
            raise InfrastructureError(f"the workflow's summary cannot be written: {error.strerror}") from error
    return address
