"""The results of a test session: written as Torq's archive, and sent to Torq's dashboard."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import time
import uuid
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from assay.errors import InfrastructureError, UsageError
from assay.show.formatting import clean
from assay.system.files import parse_json, write_atomic
from assay.system.git import run_git
from assay.system.http_post import TIMEOUT_S, NotHttpError, is_web_address, post


class CaseResult(NamedTuple):
    """The result of one test of a session. `facts` are fields of the manifest: outcome (passed, failed, skipped, xfail,
    nxpass), and if they are known linked_issue, measurements, metadata and failed_phase."""

    nodeid: str
    facts: Mapping[str, Any]
    failure: str = ""  # the text that pytest would print
    profile: str | None = None  # path of a file


class ResultSession(NamedTuple):
    """The results of a session, and the other fields of its manifest."""

    results: Sequence[CaseResult]
    facts: Mapping[str, str | None]


SERVER, TOKEN = "TORQ_PERF_SERVER", "TORQ_PERF_SERVER_TOKEN"
BATCH, PLAN = "TORQ_PERF_BATCH_NAME", "TORQ_PERF_TEST_PLAN"


def find_server(env: Mapping[str, str]) -> str | None:
    """Return the address for results without a slash at the end, or None if it is not set. Raise UsageError for an
    invalid address, so that it is reported before tests run."""
    url = env.get(SERVER)
    if url and not is_web_address(url):
        raise UsageError(f"{SERVER}={url} is not a valid address", "such as http://localhost:8080")
    return url.rstrip("/") if url else None


def build_session(results: Sequence[CaseResult], folder: str, env: Mapping[str, str]) -> ResultSession:
    """Build the session of the results. Variables of CI have precedence over git in the folder, since CI may have
    checked out a merge commit of its own."""
    facts = {
        "git_commit": env.get("GITHUB_SHA") or _ask_git(folder, "rev-parse", "HEAD"),
        "git_branch": env.get("GITHUB_REF") or _ask_git(folder, "symbolic-ref", "HEAD"),
        "workflow_url": _find_workflow(env),
        "test_plan": env.get(PLAN) or "",
        "batch_name": env.get(BATCH) or "default",
    }
    return ResultSession(results, facts)


def _ask_git(folder: str, *words: str) -> str | None:
    try:
        done = run_git(folder, *words)
    except UsageError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _find_workflow(env: Mapping[str, str]) -> str:
    """Return the address of the CI job, which identifies a session on the dashboard; without CI a random name."""
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
    """Send the results and return their address. In a GitHub workflow, also add a link to its summary."""
    number = send_session(server, build_archive(session), env.get(TOKEN))
    address = f"{server}/test-sessions/{number}/#batch-{session.facts['batch_name']}"
    if env.get("GITHUB_STEP_SUMMARY"):
        try:
            with open(env["GITHUB_STEP_SUMMARY"], "a", encoding="utf-8") as stream:
                stream.write(f"[Test results]({address})\n\n")
        except OSError as error:
            raise InfrastructureError(f"the workflow's summary cannot be written: {error.strerror}") from error
    return address


# ---------------------------------------------------------------- the dashboard's server


_UPLOAD = "/api/test-sessions/upload_zip/"
_ATTEMPTS = 3
_MOST_SAID = 300  # characters of the server's error


def send_session(
    server: str, archive: bytes, token: str | None = None, sleep: Callable[[float], None] = time.sleep
) -> str:
    """Send the archive and return the number that the dashboard gave it. Try again if the server does not answer or
    reports an error of its own, within the time limit for one answer."""
    boundary = uuid.uuid4().hex
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="bundle.zip"\r\n'
        "Content-Type: application/zip\r\n\r\n"
    )
    body = head.encode() + archive + f"\r\n--{boundary}--\r\n".encode()
    problem, deadline = "", time.monotonic() + TIMEOUT_S
    for attempt in range(_ATTEMPTS):
        if attempt:
            if deadline - time.monotonic() < 2.0 * 2.0**attempt:
                break
            sleep(2.0**attempt)
        try:
            status, answer = post(server + _UPLOAD, body, headers, max(1.0, deadline - time.monotonic()))
        except OSError as error:
            problem = str(error) or type(error).__name__
            if isinstance(error, NotHttpError):
                break
            continue
        said = answer.decode(errors="replace")[:_MOST_SAID]
        if status // 100 == 2:
            if number := _find_number(answer):
                return quote(number[:_MOST_SAID], safe="~")  # quoted for an address
            problem = f"its answer has no number of the session: {said}"
            break
        problem = f"{status} {http.client.responses.get(status, '')}: {said}".rstrip(": \n")
        if status < 500:
            break
    name = urlsplit(server).netloc.rpartition("@")[2]
    raise InfrastructureError(f"the results could not be sent to {name}: {clean(problem)}")


def _find_number(answer: bytes) -> str:
    with suppress(ValueError, KeyError, TypeError):
        number = parse_json(answer)["id"]
        return str(number) if isinstance(number, str | int) else ""
    return ""


# ---------------------------------------------------------------- a session as an archive


MANIFEST = "test_session.json"
_LOGS, _PROFILES = "failure_logs", "profiles"
_UNITS = {"compilation_time": "s", "e2e_inference_time": "s"}
FileNames = tuple[str | None, str | None]  # a test's log and profile in the archive; None: no file
_MOST_LENGTH = 150  # the longest name of a file, since programs that unpack have limits


def build_archive(session: ResultSession) -> bytes:
    """Build the archive in memory: logs are short texts, and profiles have a few megabytes at most."""
    buffer = io.BytesIO()
    files = [_name_files(result, index) for index, result in enumerate(session.results)]
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, json.dumps(build_manifest(session, files), indent=1))
        for result, (log, profile) in zip(session.results, files, strict=True):
            if log:
                archive.writestr(log, result.failure)
            if result.profile and profile:
                archive.write(result.profile, profile)
    return buffer.getvalue()


def build_manifest(session: ResultSession, files: Sequence[FileNames]) -> dict[str, Any]:
    measured = dict.fromkeys(name for result in session.results for name in result.facts.get("measurements", ()))
    return {
        **session.facts,
        "metrics": [{"name": name, "unit": _UNITS.get(name, "")} for name in measured],
        "test_runs": list(map(_build_run, session.results, files)),
    }


def _build_run(result: CaseResult, files: FileNames) -> dict[str, Any]:
    """Build the fields of a test without unknown ones, for which the dashboard has defaults."""
    module, _, test = result.nodeid.partition("::")
    match = re.fullmatch(r"(.*?)\[(.*)\]", test, re.DOTALL)
    title, parameters = (match[1], match[2]) if match else (test, "")
    named = dict(zip(("failure_log_file", "profiling_file"), files, strict=True))
    known = {key: value for key, value in {**result.facts, **named}.items() if value}
    return {"module": module, "name": title, "parameters": parameters, **known}


def _name_files(result: CaseResult, index: int) -> FileNames:
    """Return portable names of the test's log and profile in the archive, which `index` keeps distinct."""
    name = f"{index:04d}-" + re.sub(r"[^\w.+-]+", "_", result.nodeid).strip("_")[-_MOST_LENGTH:]
    log = f"{_LOGS}/{name}.log" if result.failure else None
    return log, f"{_PROFILES}/{name}{os.path.splitext(result.profile)[1]}" if result.profile else None
