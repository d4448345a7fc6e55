"""A session's results: where they come from, the archive that is kept of them, how they are sent."""

from __future__ import annotations

import email.message
import email.parser
import io
import json
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.data_servers import taking

from assay.compat.torq.dashboard import (
    MANIFEST,
    CaseResult,
    ResultSession,
    build_archive,
    build_session,
    find_server,
    keep_session,
    send_session,
)
from assay.errors import InfrastructureError, UsageError

RESULT = CaseResult("t.py::f", {"outcome": "passed"})


def test_the_server_is_named_by_a_variable() -> None:
    assert find_server({}) is None
    assert find_server({"TORQ_PERF_SERVER": ""}) is None
    assert find_server({"TORQ_PERF_SERVER": "http://localhost:8080/"}) == "http://localhost:8080"
    for url in ("localhost:8080", "ftp://host", "http://", "nonsense"):
        with pytest.raises(UsageError, match="TORQ_PERF_SERVER="):
            find_server({"TORQ_PERF_SERVER": url})


def test_git_or_the_workflow_reports_what_was_tested(tmp_path: Path) -> None:
    facts = build_session([], str(tmp_path), {}).facts
    assert (facts["git_commit"], facts["git_branch"]) == (None, None), "outside a repository"
    for words in (["init", "-q", "-b", "trunk"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    facts, other = (build_session([RESULT], str(tmp_path), {}).facts for _ in range(2))
    assert (facts["git_branch"], len(facts["git_commit"] or "")) == ("refs/heads/trunk", 40)
    assert facts["batch_name"] == "default"
    assert other["workflow_url"] != facts["workflow_url"], "two sessions are never taken for one"
    env = {"GITHUB_SHA": "abc", "GITHUB_REF": "refs/pull/1/merge", "GITHUB_RUN_ID": "5", "GITHUB_RUN_ATTEMPT": "2"}
    env |= {"GITHUB_REPOSITORY": "owner/repo", "TORQ_PERF_BATCH_NAME": "sim", "TORQ_PERF_TEST_PLAN": "nightly"}
    assert build_session([RESULT], str(tmp_path), env).facts == {
        "git_commit": "abc",
        "git_branch": "refs/pull/1/merge",
        "workflow_url": "https://github.com/owner/repo/actions/runs/5/attempts/2",
        "test_plan": "nightly",
        "batch_name": "sim",
    }


def test_kept_results_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.zip"
    keep_session(build_session([RESULT], str(tmp_path), {}), str(path))
    with zipfile.ZipFile(path) as archive:
        assert json.loads(archive.read("test_session.json"))["test_runs"][0]["name"] == "f"
    assert [entry.name for entry in path.parent.iterdir()] == ["results.zip"], "nothing is left beside it"

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
    (part,) = email.parser.BytesParser().parsebytes(head + body).get_payload()
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

    def answer(path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        found.paths.append(path)
        found.tokens.append(headers["Authorization"])
        found.archives.append(read_file(headers, body))
        return found.answers.pop(0) if found.answers else (201, b'{"id": 7}')

    with taking(answer) as found.url:
        yield found


def test_the_archive_arrives_as_it_is(dashboard: Dashboard) -> None:
    archives = [b"PK\x03\x04", bytes(range(256)) * 40 + b"\r\n--x\r\n"]
    assert [send_session(dashboard.url, archive) for archive in archives] == ["7", "7"]
    send_session(dashboard.url, b"x", "secret")
    assert dashboard.archives == [*archives, b"x"]
    assert dashboard.paths == ["/api/test-sessions/upload_zip/"] * 3
    assert dashboard.tokens == [None, None, "Bearer secret"]


def test_a_server_in_trouble_is_asked_again_with_more_and_more_time(dashboard: Dashboard) -> None:
    dashboard.answers = [(503, b"later"), (500, b"oh"), (200, b'{"id": "abc"}')]
    waited: list[float] = []
    assert send_session(dashboard.url, b"x", sleep=waited.append) == "abc"
    assert waited == [2.0, 4.0]
    assert len(dashboard.archives) == 3
    dashboard.answers = [(500, b"oh")] * 5
    with pytest.raises(InfrastructureError, match=r"could not be sent to 127.0.0.1:\d+: 500 Internal Server Error: oh"):
        send_session(dashboard.url, b"x", sleep=lambda _: None)
    assert len(dashboard.archives) == 6


@pytest.mark.parametrize(
    ("code", "answer", "words"),
    [
        (403, b'{"detail": "no token"}', r"403 Forbidden: .*no token"),
        (302, b"", "302 Found"),  # a redirection
        (200, b"<html>", "no number"),
        (200, b"{}", "no number"),
        (200, b"\x1b[2Jevil", "evil"),
        (403, b"\x1b[2Jevil", "evil"),
    ],
)
def test_a_refusal_is_reported_and_not_asked_again(dashboard: Dashboard, code: int, answer: bytes, words: str) -> None:
    dashboard.answers = [(code, answer)]
    with pytest.raises(InfrastructureError, match=words) as caught:
        send_session(dashboard.url, b"x", "secret", sleep=lambda _: None)
    assert len(dashboard.archives) == 1
    assert "\x1b" not in caught.value.render(), "what it reports cannot write to the terminal"


def test_a_number_becomes_a_part_of_an_address(dashboard: Dashboard) -> None:
    dashboard.answers = [(200, b'{"id": "\\u001b[2J/x"}')]
    assert send_session(dashboard.url, b"x") == "%1B%5B2J%2Fx"


def test_no_secret_is_printed(dashboard: Dashboard, closed_port: int) -> None:
    for token in ("se\ncret", "secr\u00e9t\u0141"):  # which cannot be sent
        with pytest.raises(InfrastructureError) as caught:
            send_session(dashboard.url, b"x", token, sleep=lambda _: None)
        assert "cr" not in caught.value.render().partition("sent to")[2]
    with pytest.raises(InfrastructureError, match="refused") as caught:
        send_session(f"http://user:secret@127.0.0.1:{closed_port}", b"x", sleep=lambda _: None)
    assert "secret" not in caught.value.render()


# ---------------------------------------------------------------- the archive


FACTS: dict[str, str | None] = {"git_commit": "abc", "workflow_url": "job-1", "batch_name": "one"}
NODE = "tests/test_onnx_model.py::test_onnx_model_llvmcpu_torq[net_layer_Conv_3-sim-default]"


def unpack(*results: CaseResult) -> tuple[dict[str, Any], dict[str, bytes]]:
    data = build_archive(ResultSession(results, FACTS))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        files = {name: archive.read(name) for name in archive.namelist()}
    return json.loads(files.pop(MANIFEST)), files


def test_a_passed_test_has_its_names_and_measurements() -> None:
    assert unpack() == ({**FACTS, "metrics": [], "test_runs": []}, {})
    facts = {"outcome": "passed", "measurements": {"compilation_time": 0.5}, "metadata": {"compiler": "torq"}}
    manifest, files = unpack(CaseResult(NODE, {**facts, "linked_issue": None}))
    names = {"module": "tests/test_onnx_model.py", "name": "test_onnx_model_llvmcpu_torq"}
    assert manifest["test_runs"] == [{**names, "parameters": "net_layer_Conv_3-sim-default", **facts}]
    assert manifest["metrics"] == [{"name": "compilation_time", "unit": "s"}]
    assert files == {}


def test_what_a_node_id_is_made_of() -> None:
    ids = {
        "t.py::plain": ("t.py", "plain", ""),
        "t.py::Class::method[a]": ("t.py", "Class::method", "a"),
        "t.py::f[a[0]-b]": ("t.py", "f", "a[0]-b"),
        "t.py::f[line\nbreak]": ("t.py", "f", "line\nbreak"),
        "t.py": ("t.py", "", ""),
    }
    manifest, _ = unpack(*(CaseResult(nodeid, {}) for nodeid in ids))
    runs = manifest["test_runs"]
    assert [(run["module"], run["name"], run["parameters"]) for run in runs] == list(ids.values())


def test_logs_and_profiles_are_found_by_what_the_manifest_says(tmp_path: Path) -> None:
    profile = tmp_path / "x_runtime.pb"
    profile.write_bytes(b"\x0a\x00")
    facts = {"outcome": "failed", "linked_issue": "owner/repo#12", "failed_phase": "setup"}
    manifest, files = unpack(CaseResult(NODE, facts, "größe ≠", str(profile)))
    run = manifest["test_runs"][0]
    assert run.items() >= facts.items()
    assert files == {run["failure_log_file"]: "größe ≠".encode(), run["profiling_file"]: b"\x0a\x00"}
    assert run["failure_log_file"].startswith("failure_logs/")
    assert run["profiling_file"].startswith("profiles/")


def test_a_name_keeps_its_own_file_leads_nowhere_else_and_is_not_too_long() -> None:
    ids = ["t.py::f[a b]", "t.py::f[a/b]", "../../etc/t.py::f[" + "x" * 1000 + "]"]
    manifest, files = unpack(*(CaseResult(nodeid, {}, str(i)) for i, nodeid in enumerate(ids)))
    assert [files[run["failure_log_file"]] for run in manifest["test_runs"]] == [b"0", b"1", b"2"]
    assert all(name.count("/") == 1 and len(name) < 200 for name in files)
