"""Results of a session with models: kept, sent to Torq's dashboard and to ASSAY_SERVER, where that is requested."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.bad_servers import answering
from tests.compat.torq.test_dashboard import Dashboard, dashboard
from tests.models.pytest_support.nested_project import RELU, RELU_NEG, Project
from tests.web_client import READER, UPLOADER, open_client, server

from assay.compat.torq import dashboard as dashboard_module
from assay.compat.torq.pytest_session import SessionWatch

__all__ = ["dashboard", "server"]
TARGETS = ("--assay-target=sim", "--assay-target=wrong", "--assay-target=lacking")
Loaded = tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, bytes]]
# What the project's own program does by numpy and onnxruntime, for the two operators of these models.
RUN = f"""#!{sys.executable} -S
import array, sys
words = [word.partition("=") for word in sys.argv[2:] if word.startswith("--") and "=" in word]
paths, by = {{name: value for name, _, value in words}}, 1.5 if "--by" in sys.argv else 1.0
model = open(sys.argv[1], "rb").read()
data = open(paths["--input"], "rb").read()
values = array.array("f", data[-16:])
values = [max(value, 0.0) for value in values] if b"Relu" in model else values
values = [-value for value in values] if b"Neg" in model else values
open(paths["--output"], "wb").write(data[:-16] + array.array("f", [value * by for value in values]).tobytes())
"""


def load(path: Path) -> Loaded:
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files["test_session.json"])
    return manifest, {run["parameters"]: run for run in manifest["test_runs"]}, files


def add_models(project: Project) -> None:
    """Cases of each outcome, on the three targets."""
    project.write("tools/sim-run", RUN)
    project.model("good", RELU)
    project.model("net", RELU_NEG)
    project.write(
        "tests/test_onnx_model-xfails.txt",
        "test_onnx_model[net_layer_Neg_1-wrong-default] owner/repo#3\ngood_layer_Relu_0-sim-default owner/repo#4\n",
    )


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


def test_every_outcome_is_kept_and_sent(
    project: Project, dashboard: Dashboard, server: tuple[str, Path], tmp_path: Path
) -> None:
    url, root = server
    summary = tmp_path / "summary.md"
    env = {
        "TORQ_PERF_SERVER": dashboard.url,
        "TORQ_PERF_SERVER_TOKEN": "secret",
        "TORQ_PERF_BATCH_NAME": "one",
        "TORQ_PERF_TEST_PLAN": "nightly",
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_RUN_ID": "",
    }
    ours = {"ASSAY_SERVER": url, "ASSAY_TOKEN": UPLOADER}
    add_models(project)
    chosen = "good and not lacking or net_layer_Neg_1 and not sim"
    options = ("--issue", "4", "--report-output-file=out/results.zip", "--run-profile=profiles", "-k", chosen)
    output = project.pytest(*TARGETS, *options, env=env | ours)
    assert output.code == 1
    assert "secret" not in output.out
    assert UPLOADER not in output.out
    # kept
    assert f"results: {project.folder}/out/results.zip" in output.out
    loaded = load(project.folder / "out" / "results.zip")
    assert len(loaded[1]) == 6
    check_outcomes(loaded)
    _, runs, files = loaded
    assert all(files[runs[f"good_{case}-sim-default"]["profiling_file"]] for case in ("full_model", "layer_Relu_0"))
    # sent to the dashboard
    link = f"{dashboard.url}/test-sessions/7/#batch-one"
    assert f"Test results available at {link}" in output.out
    assert link in summary.read_text()
    assert dashboard.tokens == ["Bearer secret"]
    (archive,) = dashboard.archives
    (tmp_path / "sent.zip").write_bytes(archive)
    check_outcomes(load(tmp_path / "sent.zip"))
    # each test is a run of our server
    (link,) = re.findall(rf"^result: {url}(/test-sessions/torq-nightly~\S+)$", output.out, re.MULTILINE)
    with open_client(root) as client:
        page = client.get(link)
        assert (page.status_code, "<h1>Session" in page.text, "6 tests" in page.text) == (200, True, True)
        sent = client.get("/api/studies/torq-nightly/runs").json()
    assert sorted(run["state"] for run in sent) == ["done", "done", "failed", "failed", "failed", "failed"]
    assert len({run["params"]["session"] for run in sent}) == 1
    logs = [path.read_text() for path in root.glob("torq-nightly/*/test.log")]
    assert sum("differs from" in log for log in logs) == 2
    # again, from the cache: times that an earlier session measured are not new measurements
    more = {"TORQ_PERF_SERVER": url, "TORQ_PERF_SERVER_TOKEN": UPLOADER, "TORQ_PERF_TEST_PLAN": "again"}
    output = project.pytest("-k", "good_full and sim", env=env | more | {"ASSAY_SERVER": url, "ASSAY_TOKEN": READER})
    assert output.code == 0
    assert f"Test results available at {url}/test-sessions/torq-again~" in output.out, "Torq's variables, our server"
    (run,) = [path for path in (root / "torq-again").iterdir() if path.name != ".assay"]
    assert json.loads((run / "run.json").read_text())["spec"]["params"]["outcome"] == "passed"
    assert not (run / "metrics").exists()
    assert "not uploaded: the runs could not be sent" in output.out, "a token that may only read fails no test"
    assert "403" in output.out


@pytest.mark.services("backends")
def test_other_processes_report_every_outcome_and_one_sends_them(
    project: Project, dashboard: Dashboard, server: tuple[str, Path]
) -> None:
    url, root = server
    add_models(project)
    env = {"TORQ_PERF_SERVER": dashboard.url, "ASSAY_SERVER": url, "ASSAY_TOKEN": UPLOADER}
    output = project.pytest(*TARGETS, "--issue", "4", "--report-output-file=results.zip", "-n", "2", env=env)
    check_outcomes(load(project.folder / "results.zip"))
    assert len(dashboard.archives) == 1
    assert len(re.findall(rf"^result: {url}(/test-sessions/torq-tests~\S+)$", output.out, re.MULTILINE)) == 1
    assert len([path for path in (root / "torq-tests").iterdir() if path.name != ".assay"]) > 6


def test_servers_that_cannot_be_used_are_warnings(project: Project) -> None:
    add_models(project)
    with answering([b"\x16\x03\x01 hello garbage\r\n\r\n"]) as url:
        env = {"TORQ_PERF_SERVER": url, "TORQ_PERF_SERVER_TOKEN": "secret"}
        env |= {"ASSAY_SERVER": "http://127.0.0.1:9", "ASSAY_TOKEN": "secret-0123456789"}
        output = project.pytest("-k", "good_full and sim", env=env)
    assert output.code == 0
    assert "1 passed" in output.out
    first, second = sorted(line for line in output.out.splitlines() if line.startswith("warning:"))
    assert first.startswith("warning: the results could not be sent")
    assert second.startswith("warning: the results of 1 test were not uploaded: ")
    assert "it does not answer" in second
    for word in ("Traceback", "\x16", "secret", "result:"):
        assert word not in output.out


def test_any_refusal_or_error_is_a_warning(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dashboard.answers = [(403, b"who are you")]
    (line,) = SessionWatch(None, dashboard.url, str(tmp_path))._publish()
    assert line.startswith("warning: the results could not be sent")
    assert "who are you" in line

    def fail(*_: object) -> None:
        raise MemoryError("\x1b[2J")

    monkeypatch.setattr(dashboard_module, "publish_session", fail)
    (line,) = SessionWatch(None, "http://lab.invalid", str(tmp_path))._publish()
    assert line.startswith("warning: ")
    assert "\x1b" not in line


def test_an_invalid_address_is_refused_before_a_test_runs_and_without_models_nothing_is_sent(
    project: Project, dashboard: Dashboard
) -> None:
    project.model("net", RELU)
    output = project.pytest(env={"TORQ_PERF_SERVER": "localhost:8080"})
    assert output.code == 4
    assert "TORQ_PERF_SERVER=localhost:8080 is not a valid address" in output.out
    assert project.calls == []
    project.write("tests/test_onnx_model.py", "def test_other() -> None:\n    pass\n")
    output = project.pytest("--report-output-file=results.zip", env={"TORQ_PERF_SERVER": dashboard.url})
    assert output.code == 0
    assert dashboard.archives == []
    assert not (project.folder / "results.zip").exists()
