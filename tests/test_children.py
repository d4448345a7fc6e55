"""`python -m assay child NAME`: what job.sh starts; job.sh of earlier versions runs as well."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.__main__ import CHILDREN
from assay.bench.child_report import load_story

JOBS = Path(__file__).parent / "formats" / "jobs"
MODULE = """
from assay.bench import report_benchmark
def quick(): report_benchmark(wall_time=1.0)
def lists():
    import sys
    print(sorted({"click", "yaml"} & set(sys.modules)), sys.argv[1:3])
"""


def call_child(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "assay", "child", *words]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", sorted(CHILDREN))
def test_each_child_has_a_program(name: str) -> None:
    module, function = CHILDREN[name].split(":")
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize("words", [[], ["banch"]])
def test_a_child_that_does_not_exist(words: list[str], tmp_path: Path) -> None:
    done = call_child(*words, folder=tmp_path)
    assert done.returncode == 2
    assert "bench" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_benchmark_sees_its_own_command_line_and_nothing_of_ours(tmp_path: Path) -> None:
    """No click, no yaml: the program under test may bring its own."""
    (tmp_path / "mod.py").write_text(MODULE)
    done = call_child("bench", "run", "mod.lists", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "[] ['run', 'mod.lists']"


def write_old_job(name: str, folder: Path) -> Path:
    """A run directory as an earlier version left it."""
    run_dir = folder / "runs" / name / "old"
    run_dir.mkdir(parents=True)
    text = (JOBS / f"{name}.sh").read_text(encoding="utf-8")
    (run_dir / "job.sh").write_text(text.replace("@PYTHON@", sys.executable).replace("@FOLDER@", str(folder)))
    return run_dir


def run_by_hand(run_dir: Path) -> int:
    argv = ["bash", str(run_dir / "job.sh")]
    env = {name: value for name, value in os.environ.items() if not name.startswith("ASSAY_")}
    return subprocess.run(argv, env=env, stdout=subprocess.DEVNULL, timeout=120, check=False).returncode


def test_job_sh_of_an_earlier_benchmark(tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text(MODULE)
    run_dir = write_old_job("bench", tmp_path)
    assert run_by_hand(run_dir) == 0, (run_dir / "bench.log").read_text()
    story = load_story(str(run_dir / "report.jsonl"))
    assert [report["wall_time"] for report in story.reports] == [1.0]


def write_relu(path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"], name="Relu_0")], "g", [x], [y])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)


def test_job_sh_of_an_earlier_model_check(tmp_path: Path) -> None:
    write_relu(tmp_path / "relu.onnx")
    run_dir = write_old_job("model", tmp_path)
    assert run_by_hand(run_dir) == 0, (run_dir / "model.log").read_text()
    assert json.loads((run_dir / "model.json").read_text())["cases"]


def test_an_earlier_model_check_that_fails_ends_with_its_exit_code(tmp_path: Path) -> None:
    run_dir = write_old_job("model", tmp_path)  # there is no model
    assert run_by_hand(run_dir) == 2
    assert "relu.onnx" in json.loads((run_dir / "error.json").read_text())["message"]
