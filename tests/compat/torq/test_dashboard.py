"""A session's results: where they come from, where they are kept."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from assay.compat.torq.dashboard import build_session, find_server, keep_session
from assay.compat.torq.values import CaseResult
from assay.errors import InfrastructureError, UsageError

RESULT = CaseResult("t.py::f", "passed")


def test_without_a_server_there_is_none() -> None:
    assert find_server({}) is None
    assert find_server({"TORQ_PERF_SERVER": ""}) is None
    assert find_server({"TORQ_PERF_SERVER": "http://localhost:8080/"}) == "http://localhost:8080"
    with pytest.raises(UsageError):
        find_server({"TORQ_PERF_SERVER": "localhost:8080"})


def test_at_home_git_says_what_was_tested(tmp_path: Path) -> None:
    for words in (["init", "-q", "-b", "trunk"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    session = build_session([RESULT], str(tmp_path), {})
    assert session.branch == "refs/heads/trunk"
    assert session.commit is not None
    assert len(session.commit) == 40
    assert session.batch == "default"
    other = build_session([RESULT], str(tmp_path), {})
    assert other.workflow_url != session.workflow_url, "two sessions are never taken for one"


def test_in_a_workflow_its_variables_say_it(tmp_path: Path) -> None:
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


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match="cannot be kept in"):
        keep_session(build_session([RESULT], str(tmp_path), {}), str(tmp_path / "file" / "results.zip"))
