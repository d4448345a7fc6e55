"""Results of a session: kept, sent, and nobody's business unless asked for."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.bad_servers import answering
from tests.compat.torq.test_dashboard import Dashboard, dashboard
from tests.models.pytest_support.lab import RELU, RELU_NEG, Project

from assay.compat.torq import dashboard as dashboard_module
from assay.compat.torq.pytest_session import SessionWatch

__all__ = ["dashboard"]


def load(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files["test_session.json"])
    return manifest, {run["parameters"]: run for run in manifest["test_runs"]}, files


@pytest.mark.parametrize(
    "processes",
    [pytest.param((), id="alone"), pytest.param(("-n", "2"), id="two", marks=pytest.mark.services("backends"))],
)
def test_every_outcome_is_in_the_archive(project: Project, processes: tuple[str, ...]) -> None:
    project.model("good", RELU)
    project.model("net", RELU_NEG)
    project.write(
        "tests/test_onnx_model-xfails.txt",
        "test_onnx_model[net_layer_Neg_1-wrong-default] owner/repo#3\ngood_layer_Relu_0-sim-default owner/repo#4\n",
    )
    options = ("--assay-target=sim", "--assay-target=wrong", "--issue", "4", "--report-output-file=out/results.zip")
    said = project.pytest(*options, *processes)
    assert f"results: {project.folder}/out/results.zip" in said.out
    manifest, runs, files = load(project.folder / "out" / "results.zip")
    assert len(runs) == 10
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
    assert {"compilation_time", "e2e_inference_time"} <= {metric["name"] for metric in manifest["metrics"]}


def test_times_from_the_cache_are_no_new_measurements(project: Project) -> None:
    project.model("net", RELU)
    for is_first in (True, False):
        project.pytest("-k", "full", "--report-output-file=results.zip")
        manifest, runs, _ = load(project.folder / "results.zip")
        measured = runs["net_full_model-sim-default"].get("measurements", {})
        assert ("e2e_inference_time" in measured, "compilation_time" in measured) == (is_first, is_first)
        assert runs["net_full_model-sim-default"]["outcome"] == "passed"
    assert not {"compilation_time", "e2e_inference_time"} & {metric["name"] for metric in manifest["metrics"]}


def test_a_step_that_failed_is_told_by_its_phase(project: Project) -> None:
    project.model("net", RELU)
    project.pytest("--extra-compiler-options=--lacks Relu", "--report-output-file=results.zip")
    _, runs, files = load(project.folder / "results.zip")
    for run in runs.values():
        assert (run["outcome"], run["failed_phase"]) == ("failed", "setup")
        assert b"no Relu on this chip" in files[run["failure_log_file"]]


def test_profiles_travel_along(project: Project) -> None:
    project.model("net", RELU)
    project.pytest("--run-profile=profiles", "--report-output-file=results.zip")
    _, runs, files = load(project.folder / "results.zip")
    assert all(files[run["profiling_file"]] for run in runs.values())


def test_results_are_sent_and_the_link_is_printed(project: Project, dashboard: Dashboard, tmp_path: Path) -> None:
    project.model("net", RELU)
    summary = tmp_path / "summary.md"
    env = {
        "TORQ_PERF_SERVER": dashboard.url,
        "TORQ_PERF_SERVER_TOKEN": "secret",
        "TORQ_PERF_BATCH_NAME": "nightly",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    said = project.pytest(env=env)
    link = f"{dashboard.url}/test-sessions/7/#batch-nightly"
    assert said.code == 0
    assert f"Test results available at {link}" in said.out
    assert link in summary.read_text()
    assert dashboard.tokens == ["Bearer secret"]
    (archive,) = dashboard.archives
    path = tmp_path / "sent.zip"
    path.write_bytes(archive)
    manifest, runs, _ = load(path)
    assert manifest["batch_name"] == "nightly"
    assert len(runs) == 2
    assert "secret" not in said.out


@pytest.mark.services("backends")
def test_two_processes_send_once(project: Project, dashboard: Dashboard) -> None:
    project.model("net", RELU)
    project.pytest("-n", "2", env={"TORQ_PERF_SERVER": dashboard.url})
    assert len(dashboard.archives) == 1


def test_a_server_that_refuses_changes_no_verdict(project: Project, dashboard: Dashboard) -> None:
    project.model("net", RELU)
    dashboard.answers = [(403, b"who are you")]
    said = project.pytest(env={"TORQ_PERF_SERVER": dashboard.url})
    assert said.code == 0
    assert "warning: the results could not be sent" in said.out
    assert "who are you" in said.out


def test_a_server_that_does_not_speak_http_changes_no_verdict(project: Project) -> None:
    project.model("net", RELU)
    with answering([b"\x16\x03\x01 hello garbage\r\n\r\n"]) as url:
        said = project.pytest(env={"TORQ_PERF_SERVER": url, "TORQ_PERF_SERVER_TOKEN": "secret"})
    assert said.code == 0
    assert "warning: the results could not be sent" in said.out
    assert "2 passed" in said.out
    assert "Traceback" not in said.out
    assert "\x16" not in said.out


def test_whatever_goes_wrong_changes_no_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("\x1b[2J")

    monkeypatch.setattr(dashboard_module, "publish_session", fail)
    (line,) = SessionWatch(None, "http://lab.invalid", str(tmp_path))._publish()
    assert line.startswith("warning: ")
    assert "\x1b" not in line


def test_what_is_no_address_is_said_before_a_test_runs(project: Project) -> None:
    project.model("net", RELU)
    said = project.pytest(env={"TORQ_PERF_SERVER": "localhost:8080"})
    assert said.code == 4
    assert "TORQ_PERF_SERVER=localhost:8080 is not a valid address" in said.out
    assert project.calls == []


def test_a_session_without_models_sends_nothing(project: Project, dashboard: Dashboard) -> None:
    project.write("tests/test_onnx_model.py", "def test_other() -> None:\n    pass\n")
    said = project.pytest("--report-output-file=results.zip", env={"TORQ_PERF_SERVER": dashboard.url})
    assert said.code == 0
    assert dashboard.archives == []
    assert not os.path.exists(project.folder / "results.zip")
