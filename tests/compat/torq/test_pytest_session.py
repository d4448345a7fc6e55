"""Results of a session: kept and sent where that is requested."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.bad_servers import answering
from tests.compat.torq.test_dashboard import Dashboard, dashboard
from tests.models.pytest_support.nested_project import RELU, RELU_NEG, Project, PytestRun, build_project

from assay.compat.torq import dashboard as dashboard_module
from assay.compat.torq.pytest_session import SessionWatch

__all__ = ["dashboard"]
TARGETS = ("--assay-target=sim", "--assay-target=wrong", "--assay-target=lacking")
Loaded = tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, bytes]]


def load(path: Path) -> Loaded:
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files["test_session.json"])
    return manifest, {run["parameters"]: run for run in manifest["test_runs"]}, files


def add_models(project: Project) -> None:
    """Cases of each outcome, on the three targets."""
    project.model("good", RELU)
    project.model("net", RELU_NEG)
    project.write(
        "tests/test_onnx_model-xfails.txt",
        "test_onnx_model[net_layer_Neg_1-wrong-default] owner/repo#3\ngood_layer_Relu_0-sim-default owner/repo#4\n",
    )


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, PytestRun]:
    """One session whose results are kept, with profiles."""
    project = build_project(tmp_path_factory.mktemp("my project"))
    add_models(project)
    chosen = "good and not lacking or net_layer_Neg_1 and not sim"
    options = ("--issue", "4", "--report-output-file=out/results.zip", "--run-profile=profiles", "-k", chosen)
    return project, project.pytest(*TARGETS, *options)


def check_outcomes(loaded: Loaded) -> None:
    manifest, runs, files = loaded
    assert runs["good_full_model-sim-default"]["outcome"] == "passed"
    assert runs["good_full_model-sim-default"]["measurements"]["e2e_inference_time"] > 0
    assert runs["good_full_model-sim-default"]["metadata"]["compiler"] == "sim"
    failed = runs["good_full_model-wrong-default"]
    assert (failed["outcome"], failed["failed_phase"]) == ("failed", "call")
    assert b"differs from" in files[failed["failure_log_file"]]
    expected = runs["net_layer_Neg_1-wrong-default"]
    assert (expected["outcome"], expected["linked_issue"]) == ("xfail", "owner/repo#3")
    surprise = runs["good_layer_Relu_0-sim-default"]
    assert (surprise["outcome"], surprise["linked_issue"]) == ("nxpass", "owner/repo#4")
    refused = runs["net_layer_Neg_1-lacking-default"]
    assert (refused["outcome"], refused["failed_phase"]) == ("failed", "setup")
    assert b"no Neg on this chip" in files[refused["failure_log_file"]]
    assert {"compilation_time", "e2e_inference_time"} <= {metric["name"] for metric in manifest["metrics"]}


def test_every_outcome_is_in_the_archive(session: tuple[Project, PytestRun]) -> None:
    project, output = session
    assert f"results: {project.folder}/out/results.zip" in output.out
    loaded = load(project.folder / "out" / "results.zip")
    assert len(loaded[1]) == 6
    check_outcomes(loaded)


def test_profiles_are_in_the_archive(session: tuple[Project, PytestRun]) -> None:
    _, runs, files = load(session[0].folder / "out" / "results.zip")
    assert all(files[runs[f"good_{case}-sim-default"]["profiling_file"]] for case in ("full_model", "layer_Relu_0"))


@pytest.mark.services("backends")
def test_other_processes_report_every_outcome_and_one_sends_them(project: Project, dashboard: Dashboard) -> None:
    add_models(project)
    options = ("--issue", "4", "--report-output-file=results.zip", "-n", "2")
    project.pytest(*TARGETS, *options, env={"TORQ_PERF_SERVER": dashboard.url})
    check_outcomes(load(project.folder / "results.zip"))
    assert len(dashboard.archives) == 1


def test_results_are_sent_without_times_from_the_cache(
    session: tuple[Project, PytestRun], dashboard: Dashboard, tmp_path: Path
) -> None:
    """Times that an earlier session measured are not new measurements."""
    summary = tmp_path / "summary.md"
    env = {
        "TORQ_PERF_SERVER": dashboard.url,
        "TORQ_PERF_SERVER_TOKEN": "secret",
        "TORQ_PERF_BATCH_NAME": "nightly",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    output = session[0].pytest("-k", "good_full and sim", env=env)
    link = f"{dashboard.url}/test-sessions/7/#batch-nightly"
    assert output.code == 0
    assert f"Test results available at {link}" in output.out
    assert link in summary.read_text()
    assert dashboard.tokens == ["Bearer secret"]
    (archive,) = dashboard.archives
    path = tmp_path / "sent.zip"
    path.write_bytes(archive)
    manifest, runs, _ = load(path)
    assert manifest["batch_name"] == "nightly"
    assert runs["good_full_model-sim-default"]["outcome"] == "passed"
    assert not {"compilation_time", "e2e_inference_time"} & {metric["name"] for metric in manifest["metrics"]}
    assert "secret" not in output.out


def publish(server: str, folder: Path) -> str:
    """The only line that is printed."""
    (line,) = SessionWatch(None, server, str(folder))._publish()
    return line


def test_a_server_that_refuses_is_a_warning(dashboard: Dashboard, tmp_path: Path) -> None:
    dashboard.answers = [(403, b"who are you")]
    line = publish(dashboard.url, tmp_path)
    assert line.startswith("warning: the results could not be sent")
    assert "who are you" in line


def test_a_server_that_does_not_speak_http_is_a_warning(session: tuple[Project, PytestRun]) -> None:
    with answering([b"\x16\x03\x01 hello garbage\r\n\r\n"]) as url:
        env = {"TORQ_PERF_SERVER": url, "TORQ_PERF_SERVER_TOKEN": "secret"}
        output = session[0].pytest("-k", "good_full and sim", env=env)
    assert output.code == 0
    assert "warning: the results could not be sent" in output.out
    assert "1 passed" in output.out
    assert "Traceback" not in output.out
    assert "\x16" not in output.out


def test_any_other_error_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("\x1b[2J")

    monkeypatch.setattr(dashboard_module, "publish_session", fail)
    line = publish("http://lab.invalid", tmp_path)
    assert line.startswith("warning: ")
    assert "\x1b" not in line


def test_an_invalid_address_is_refused_before_a_test_runs(project: Project) -> None:
    project.model("net", RELU)
    output = project.pytest(env={"TORQ_PERF_SERVER": "localhost:8080"})
    assert output.code == 4
    assert "TORQ_PERF_SERVER=localhost:8080 is not a valid address" in output.out
    assert project.calls == []


def test_a_session_without_models_sends_nothing(project: Project, dashboard: Dashboard) -> None:
    project.write("tests/test_onnx_model.py", "def test_other() -> None:\n    pass\n")
    output = project.pytest("--report-output-file=results.zip", env={"TORQ_PERF_SERVER": dashboard.url})
    assert output.code == 0
    assert dashboard.archives == []
    assert not os.path.exists(project.folder / "results.zip")
