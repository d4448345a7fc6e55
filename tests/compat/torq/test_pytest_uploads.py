"""Each test of a model is sent to ASSAY_SERVER as a run, and no test fails because of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.models.pytest_support.nested_project import RELU, Project, build_project
from tests.web_client import READER, UPLOADER, open_client, server

__all__ = ["server"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Every session has the same models and the same cache: only the first one runs the tools."""
    found = build_project(tmp_path_factory.mktemp("models"))
    found.model("net", RELU)
    return found


@pytest.mark.parametrize(
    "processes",
    [pytest.param((), id="alone"), pytest.param(("-n", "2"), id="two", marks=pytest.mark.services("backends"))],
)
def test_each_test_of_a_model_is_a_run(models: Project, server: tuple[str, Path], processes: tuple[str, ...]) -> None:
    url, root = server
    env = {"ASSAY_SERVER": url, "ASSAY_TOKEN": UPLOADER, "TORQ_PERF_TEST_PLAN": "nightly", "GITHUB_RUN_ID": ""}
    found = models.pytest("--assay-target=sim", "--assay-target=wrong", *processes, env=env)
    assert found.code == 1, found.out  # `wrong` is
    (link,) = re.findall(rf"^result: {url}(/test-sessions/torq-nightly~\S+)$", found.out, re.MULTILINE)
    assert UPLOADER not in found.out
    with open_client(root) as client:
        page = client.get(link)
        assert (page.status_code, "<h1>Session" in page.text, "4 tests" in page.text) == (200, True, True)
        runs = client.get("/api/studies/torq-nightly/runs").json()
    assert sorted(run["state"] for run in runs) == ["done", "done", "failed", "failed"]
    assert len({run["params"]["session"] for run in runs}) == 1
    failed = next(run for run in runs if run["state"] == "failed")
    assert "differs from" in (root / failed["key"] / "test.log").read_text()


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({"ASSAY_SERVER": "http://127.0.0.1:9", "ASSAY_TOKEN": "secret-0123456789"}, "it does not answer"),
        ({"ASSAY_SERVER": "http://127.0.0.1:9", "ASSAY_TOKEN": ""}, "ASSAY_TOKEN is not set"),
        ({"ASSAY_SERVER": "nonsense", "ASSAY_TOKEN": "secret-0123456789"}, "not a plain http"),
    ],
)
def test_a_server_that_is_away_fails_no_test(models: Project, env: dict[str, str], problem: str) -> None:
    found = models.pytest("--assay-target=sim", "-k", "full", env=env)
    assert found.code == 0, found.out
    (line,) = [line for line in found.out.splitlines() if line.startswith("warning:")]
    assert line.startswith("warning: the results of 1 test were not uploaded: ")
    assert problem in line
    assert "secret" not in found.out
    assert "result:" not in found.out


def test_a_server_that_refuses_fails_no_test(models: Project, server: tuple[str, Path]) -> None:
    env = {"ASSAY_SERVER": server[0], "ASSAY_TOKEN": READER}
    found = models.pytest("--assay-target=sim", "-k", "full", env=env)
    assert found.code == 0
    assert "not uploaded: the runs could not be sent" in found.out
    assert "403" in found.out
    assert list(server[1].iterdir()) == []


def test_torqs_own_variables_lead_to_our_server(models: Project, server: tuple[str, Path]) -> None:
    url, root = server
    found = models.pytest(env={"TORQ_PERF_SERVER": url, "TORQ_PERF_SERVER_TOKEN": UPLOADER})
    assert found.code == 0
    assert f"Test results available at {url}/test-sessions/torq-tests~" in found.out
    assert UPLOADER not in found.out
    assert len([path for path in (root / "torq-tests").iterdir() if path.name != ".assay"]) == 2
