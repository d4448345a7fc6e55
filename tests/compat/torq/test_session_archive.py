"""The archive that Torq's dashboard takes."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from assay.compat.torq.session_archive import MANIFEST, build_archive
from assay.compat.torq.values import CaseResult, ResultSession

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
