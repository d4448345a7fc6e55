"""A session's results: where they come from, the archive that is kept of them, how they are sent."""

from __future__ import annotations

import email.message
import email.parser
import io
import json
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from assay.compat.torq.dashboard import (
    MANIFEST,
    CaseResult,
    ResultSession,
    build_archive,
    build_session,
    check_server,
    find_server,
    keep_session,
    send_session,
)
from assay.errors import InfrastructureError, UsageError

RESULT = CaseResult("t.py::f", "passed")


def test_without_a_server_there_is_none() -> None:
    assert find_server({}) is None
    assert find_server({"TORQ_PERF_SERVER": ""}) is None
    assert find_server({"TORQ_PERF_SERVER": "http://localhost:8080/"}) == "http://localhost:8080"
    with pytest.raises(UsageError):
        find_server({"TORQ_PERF_SERVER": "localhost:8080"})


def test_at_home_git_reports_what_was_tested(tmp_path: Path) -> None:
    for words in (["init", "-q", "-b", "trunk"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    session = build_session([RESULT], str(tmp_path), {})
    assert session.branch == "refs/heads/trunk"
    assert session.commit is not None
    assert len(session.commit) == 40
    assert session.batch == "default"
    other = build_session([RESULT], str(tmp_path), {})
    assert other.workflow_url != session.workflow_url, "two sessions are never taken for one"


def test_in_a_workflow_its_variables_report_it(tmp_path: Path) -> None:
    env = {
        "GITHUB_SHA": "abc",
        "GITHUB_REF": "refs/pull/1/merge",
        "GITHUB_RUN_ID": "5",
        "GITHUB_REPOSITORY": "owner/repo",
        "GITHUB_RUN_ATTEMPT": "2",
        "TORQ_PERF_BATCH_NAME": "sim",
        "TORQ_PERF_TEST_PLAN": "nightly",
    }
    session = build_session([RESULT], str(tmp_path), env)
    assert (session.commit, session.branch, session.batch, session.test_plan) == (
        "abc",
        "refs/pull/1/merge",
        "sim",
        "nightly",
    )
    assert session.workflow_url == "https://github.com/owner/repo/actions/runs/5/attempts/2"


def test_outside_a_repository_the_commit_is_not_known(tmp_path: Path) -> None:
    session = build_session([], str(tmp_path), {})
    assert (session.commit, session.branch) == (None, None)


def test_kept_results_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.zip"
    keep_session(build_session([RESULT], str(tmp_path), {}), str(path))
    with zipfile.ZipFile(path) as archive:
        assert json.loads(archive.read("test_session.json"))["test_runs"][0]["name"] == "f"
    assert [entry.name for entry in path.parent.iterdir()] == ["results.zip"], "nothing is left beside it"


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match="cannot be kept in"):
        keep_session(build_session([RESULT], str(tmp_path), {}), str(tmp_path / "file" / "results.zip"))


# ---------------------------------------------------------------- sending


@dataclass
class Dashboard:
    """A server on loopback that answers in turn, and keeps what it was sent."""

    url: str = ""
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    archives: list[bytes] = field(default_factory=list)


def read_file(headers: Any, body: bytes) -> bytes:
    head = f"Content-Type: {headers['Content-Type']}\r\n\r\n".encode()
    message = email.parser.BytesParser().parsebytes(head + body)
    (part,) = message.get_payload()
    assert isinstance(part, email.message.Message)
    assert part.get_param("name", header="Content-Disposition") == "file"
    assert part.get_content_type() == "application/zip"
    assert part.get_filename() == "bundle.zip"
    start = body.index(b"\r\n\r\n") + 4
    return body[start : body.rindex(b"\r\n--")]


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dashboard]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    found = Dashboard()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.paths.append(self.path)
            found.tokens.append(self.headers["Authorization"])
            found.archives.append(read_file(self.headers, body))
            code, answer = found.answers.pop(0) if found.answers else (201, b'{"id": 7}')
            self.send_response(code)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://host", "http://", "nonsense"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="TORQ_PERF_SERVER="):
        check_server(url)


def test_a_slash_at_the_end_does_no_harm() -> None:
    assert check_server("http://localhost:8080/") == "http://localhost:8080"


@pytest.mark.parametrize("archive", [b"PK\x03\x04", bytes(range(256)) * 40 + b"\r\n--x\r\n"])
def test_the_archive_arrives_as_it_is(dashboard: Dashboard, archive: bytes) -> None:
    assert send_session(dashboard.url, archive) == "7"
    assert dashboard.archives == [archive]
    assert dashboard.paths == ["/api/test-sessions/upload_zip/"]
    assert dashboard.tokens == [None]


def test_a_token_is_sent_along(dashboard: Dashboard) -> None:
    send_session(dashboard.url, b"x", "secret")
    assert dashboard.tokens == ["Bearer secret"]


def test_a_server_in_trouble_is_asked_again_with_more_and_more_time(dashboard: Dashboard) -> None:
    dashboard.answers = [(503, b"later"), (500, b"oh"), (200, b'{"id": "abc"}')]
    waited: list[float] = []
    assert send_session(dashboard.url, b"x", sleep=waited.append) == "abc"
    assert waited == [2.0, 4.0]
    assert len(dashboard.archives) == 3


def test_it_gives_up_after_three(dashboard: Dashboard) -> None:
    dashboard.answers = [(500, b"oh")] * 5
    with pytest.raises(InfrastructureError, match=r"could not be sent to 127.0.0.1:\d+: 500 Internal Server Error: oh"):
        send_session(dashboard.url, b"x", sleep=lambda _: None)
    assert len(dashboard.archives) == 3


def test_a_refusal_is_not_asked_again(dashboard: Dashboard) -> None:
    dashboard.answers = [(403, b'{"detail": "no token"}')]
    with pytest.raises(InfrastructureError, match=r"403 Forbidden: .*no token"):
        send_session(dashboard.url, b"x", sleep=lambda _: None)
    assert len(dashboard.archives) == 1


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b"{}"])
def test_an_answer_without_a_number_is_reported(dashboard: Dashboard, answer: bytes) -> None:
    dashboard.answers = [(200, answer)]
    with pytest.raises(InfrastructureError, match="no number"):
        send_session(dashboard.url, b"x", sleep=lambda _: None)


def test_what_it_reports_cannot_write_to_the_terminal(dashboard: Dashboard) -> None:
    dashboard.answers = [(200, b'{"id": "\\u001b[2J/x"}'), (200, b"\x1b[2Jevil"), (403, b"\x1b[2Jevil")]
    assert send_session(dashboard.url, b"x") == "%1B%5B2J%2Fx"  # a part of an address
    for _ in range(2):
        with pytest.raises(InfrastructureError) as caught:
            send_session(dashboard.url, b"x")
        assert "\x1b" not in caught.value.render()
        assert "evil" in caught.value.render()


def test_a_redirection_is_a_refusal(dashboard: Dashboard) -> None:
    dashboard.answers = [(302, b"")]
    with pytest.raises(InfrastructureError, match="302 Found"):
        send_session(dashboard.url, b"x", "secret")


@pytest.mark.parametrize("token", ["se\ncret", "secr\u00e9t\u0141"])
def test_a_token_that_cannot_be_sent_is_not_printed(dashboard: Dashboard, token: str) -> None:
    with pytest.raises(InfrastructureError) as caught:
        send_session(dashboard.url, b"x", token, sleep=lambda _: None)
    assert "cr" not in caught.value.render().partition("sent to")[2]


def test_no_server_listens(closed_port: int) -> None:
    with pytest.raises(InfrastructureError, match="refused"):
        send_session(f"http://127.0.0.1:{closed_port}", b"x", sleep=lambda _: None)


def test_credentials_in_the_address_are_not_printed(closed_port: int) -> None:
    with pytest.raises(InfrastructureError) as caught:
        send_session(f"http://user:secret@127.0.0.1:{closed_port}", b"x", sleep=lambda _: None)
    assert "secret" not in caught.value.render()


# ---------------------------------------------------------------- the archive


NODE = "tests/test_onnx_model.py::test_onnx_model_llvmcpu_torq[net_layer_Conv_3-sim-default]"


def unpack(*results: CaseResult) -> tuple[dict[str, Any], dict[str, bytes]]:
    data = build_archive(ResultSession(results, "abc", "refs/heads/main", "job-1", "nightly", "one"))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        files = {name: archive.read(name) for name in archive.namelist()}
    return json.loads(files.pop(MANIFEST)), files


def test_the_session_is_described() -> None:
    manifest, files = unpack()
    assert manifest == {
        "git_commit": "abc",
        "git_branch": "refs/heads/main",
        "workflow_url": "job-1",
        "test_plan": "nightly",
        "batch_name": "one",
        "metrics": [],
        "test_runs": [],
    }
    assert files == {}


def test_a_passed_test_has_its_names_and_measurements() -> None:
    manifest, files = unpack(
        CaseResult(NODE, "passed", measurements={"compilation_time": 0.5}, metadata={"compiler": "torq"})
    )
    assert manifest["test_runs"] == [
        {
            "module": "tests/test_onnx_model.py",
            "name": "test_onnx_model_llvmcpu_torq",
            "parameters": "net_layer_Conv_3-sim-default",
            "outcome": "passed",
            "measurements": {"compilation_time": 0.5},
            "metadata": {"compiler": "torq"},
        }
    ]
    assert manifest["metrics"] == [{"name": "compilation_time", "unit": "s"}]
    assert files == {}


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("t.py::plain", ("t.py", "plain", "")),
        ("t.py::Class::method[a]", ("t.py", "Class::method", "a")),
        ("t.py::f[a[0]-b]", ("t.py", "f", "a[0]-b")),
        ("t.py::f[line\nbreak]", ("t.py", "f", "line\nbreak")),
        ("t.py", ("t.py", "", "")),
    ],
)
def test_what_a_node_id_is_made_of(nodeid: str, expected: tuple[str, str, str]) -> None:
    manifest, _ = unpack(CaseResult(nodeid, "passed"))
    run = manifest["test_runs"][0]
    assert (run["module"], run["name"], run["parameters"]) == expected


def test_logs_and_profiles_are_found_by_what_the_manifest_says(tmp_path: Path) -> None:
    profile = tmp_path / "x_runtime.pb"
    profile.write_bytes(b"\x0a\x00")
    failed = CaseResult(NODE, "failed", "owner/repo#12", failed_phase="setup", failure="größe ≠", profile=str(profile))
    manifest, files = unpack(failed)
    run = manifest["test_runs"][0]
    assert run["linked_issue"] == "owner/repo#12"
    assert run["failed_phase"] == "setup"
    assert files == {run["failure_log_file"]: "größe ≠".encode(), run["profiling_file"]: b"\x0a\x00"}
    assert run["failure_log_file"].startswith("failure_logs/")
    assert run["profiling_file"].startswith("profiles/")


def test_names_that_come_to_the_same_keep_their_own_files() -> None:
    first, second = CaseResult("t.py::f[a b]", "failed", failure="1"), CaseResult("t.py::f[a/b]", "failed", failure="2")
    manifest, files = unpack(first, second)
    assert [files[run["failure_log_file"]] for run in manifest["test_runs"]] == [b"1", b"2"]


def test_a_name_leads_nowhere_else_and_is_not_too_long() -> None:
    _, files = unpack(CaseResult("../../etc/t.py::f[" + "x" * 1000 + "]", "failed", failure="1"))
    (name,) = files
    assert name.count("/") == 1
    assert len(name) < 200
