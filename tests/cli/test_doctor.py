"""`assay doctor`."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from tests.study.workbench import Bench


def findings(cli, *arguments: str) -> dict[str, dict[str, str]]:
    return {each["name"]: each for each in json.loads(cli("doctor", "--json", *arguments).out)["findings"]}


def test_all_is_well_here(cli, own_bench: Bench) -> None:
    result = cli("doctor")
    assert result.code == 0, result.out
    assert "✗" not in result.out
    assert result.out.endswith("everything that is needed works\n")
    found = findings(cli)
    assert {"python", "bash", "timeout", "git", "/proc", "pidfd", "clock", "output root", "slots"} <= set(found)
    assert found["output root"]["text"] == f"{own_bench.root} (will be made)"
    assert not own_bench.root.exists()


def test_a_missing_program(cli, own_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = own_bench.folder / "bin"
    folder.mkdir()
    bash = shutil.which("bash")
    assert bash
    (folder / "bash").symlink_to(bash)
    monkeypatch.setenv("PATH", str(folder))
    result = cli("doctor")
    assert result.code == 1
    assert "✗ timeout" in result.out
    assert "install GNU coreutils" in result.out
    assert findings(cli)["git"]["grade"] == "missing"  # useful, not needed


@pytest.mark.parametrize(
    ("version", "grade"), [("4.3.30", "broken"), ("4.4.0", "ok"), ("5.2.15", "ok"), ("", "broken")]
)
def test_the_version_of_bash(cli, own_bench: Bench, monkeypatch: pytest.MonkeyPatch, version: str, grade: str) -> None:
    folder = own_bench.folder / "bin"
    folder.mkdir()
    (folder / "bash").write_text(f"#!/bin/sh\necho 'GNU bash, version {version}(1)-release'\n")
    (folder / "bash").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    assert findings(cli)["bash"]["grade"] == grade


def test_a_root_that_is_no_folder(cli, own_bench: Bench) -> None:
    own_bench.write("file", "")
    result = cli("doctor", "--root", "file/inside")
    assert result.code == 1
    assert findings(cli, "--root", "file")["output root"]["grade"] == "broken"


def test_gpus(cli, own_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = {"name": "Great GPU", "memory_bytes": 16 << 30, "free_bytes": 8 << 30}
    own_bench.write("gpus.json", json.dumps({"driver": "555.1", "gpus": [gpu]}))
    monkeypatch.setenv("ASSAY_FAKE_NVML", str(own_bench.folder / "gpus.json"))
    found = findings(cli)
    assert "Great GPU" in found["GPU 0"]["text"]
    assert found["driver"]["text"] == "555.1"


def test_a_broken_settings_file(cli, own_bench: Bench) -> None:
    own_bench.write("assay.toml", "root = 3\n")
    result = cli("doctor")
    assert result.code == 1
    assert "✗ settings" in result.out
