"""Every file in examples/ is read, planned and run as its own comments say, in a copy of its folder."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fork_server import call_assay, call_shell

from assay.config.load import LoadOptions, load_study
from assay.plan.expand import build_plan

EXAMPLES = Path(__file__).parents[2] / "examples"
STUDIES = {
    "charlm": ("sweep.yml", "native", 12),
    "native": ("study.yml", "native", 10),
    "runx": ("sweep.yml", "runx", 4),
    "mlrunner": ("params.yaml", "mlrunner", 7),
}


@pytest.fixture
def example(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of one example's folder, where it may leave its runs."""
    folder = tmp_path / "a copy"
    shutil.copytree(EXAMPLES / request.param, folder, ignore=shutil.ignore_patterns("runs", "logs", "output", "ckpt"))
    return folder


def call(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """As on a user's command line, with this Python's folder first on the path, as an activated environment has it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=240, check=False
    )


def assay(folder: Path, *arguments: str) -> str:
    result = call_shell(shlex.join(["assay", *arguments]), cwd=folder)
    assert result.returncode == 0, f"{arguments}: {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def commands_in_comments(path: Path) -> list[list[str]]:
    """The indented `assay …` and `python …` lines of the file's first comment; two spaces end a command."""
    lines = re.findall(r"^#   ((?:assay|python) .*)$", path.read_text(), re.MULTILINE)
    return [shlex.split(re.split(r"\s{2,}", line)[0]) for line in lines]


@pytest.mark.needs(compat=True)
@pytest.mark.parametrize("name", STUDIES)
def test_it_is_recognised_and_expands_to_what_its_comments_say(name: str) -> None:
    file, dialect, count = STUDIES[name]
    study = load_study(file, LoadOptions(cwd=str(EXAMPLES / name)))
    plan = build_plan(study)
    assert study.dialect == dialect
    assert study.warnings == ()
    assert plan.warnings == ()
    assert len(plan.runs) == count
    assert len({run.name for run in plan.runs}) == count


def test_every_example_folder_is_tested() -> None:
    """Those without a study are run by the tests of harness, bench, gate, models and by test_plug_in.py."""
    found = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert found == {*STUDIES, "convergence", "bench", "gate", "models", "plug-in"}


@pytest.mark.parametrize("name", STUDIES)
def test_its_comments_show_commands(name: str) -> None:
    assert len(commands_in_comments(EXAMPLES / name / STUDIES[name][0])) >= 3


@pytest.mark.needs(plots=True)
@pytest.mark.parametrize(("example", "file"), [("native", "study.yml"), ("charlm", "sweep.yml")], indirect=["example"])
def test_a_native_example_runs_as_its_comments_say(example: Path, file: str) -> None:
    """Of the twelve trainings of charlm two are enough to see it."""
    count = 10 if file == "study.yml" else 2
    text = (example / file).read_text()
    (example / file).write_text(text.replace("hidden: [32, 96]", "hidden: 32").replace("lr: [0.003, 0.01, ", "lr: ["))
    for command in commands_in_comments(example / file):
        assay(example, *command[1:])
    study = "curve-fit" if file == "study.yml" else "charlm"
    rows = json.loads(assay(example, "sum", study, "--json"))
    metric = "test.error" if file == "study.yml" else "eval_loss"
    assert len(rows) == count
    assert all(isinstance(row[metric], float) for row in rows)
    assert len(list((example / "runs" / study).glob("*/run.json"))) == count


@pytest.mark.needs(compat=True)
@pytest.mark.parametrize("example", ["runx"], indirect=True)
def test_the_runx_example_runs_as_its_comments_say(example: Path) -> None:
    commands = commands_in_comments(example / "sweep.yml")
    dry = assay(example, *commands[0][1:])
    assert dry.count("python train.py") == 4
    assert "--init" not in dry
    assert not (example / "logs").exists(), "a dry run writes nothing"
    for command in commands[1:-1]:
        assay(example, *command[1:])
    runs = [path.parent for path in (example / "logs" / "sweep").glob("*/metrics.csv")]
    assert len(runs) == 8, "each finished `assay runx` starts new runs"
    assert {run.name.split("_")[0] for run in runs} == {"sgd", "adam"}
    table = assay(example, *commands[-1][1:])
    assert len([line for line in table.splitlines() if line.startswith(("sgd_", "adam_"))]) == 8


@pytest.mark.needs(compat=True)
@pytest.mark.parametrize("example", ["mlrunner"], indirect=True)
def test_the_mlrunner_example_runs_as_its_comments_say(example: Path) -> None:
    commands = commands_in_comments(example / "params.yaml")
    assay(example, *commands[0][1:])
    assert not (example / "output").exists(), "a dry run writes nothing"
    assert "Tasks: 7" in assay(example, *commands[1][1:])
    assert len(list((example / "output").glob("*/stat"))) == 7
    assert len(list((example / "output").glob("*/log.test.*"))) == 6
    assay(example, *commands[2][1:])
    table = call(example, *commands[3])
    assert table.returncode == 0, table.stderr
    assert table.stdout.count("0.9") >= 4
    assert "test_accuracy" in table.stdout


@pytest.mark.parametrize("example", ["mlrunner"], indirect=True)
def test_the_mlrunner_scripts_refuse_a_missing_step(example: Path) -> None:
    result = call(example, "python", "average.py", "--inputs", ".", "--output", "averaged.json")
    assert result.returncode == 1
    assert "train first" in result.stderr


# ---------------------------------------------------------------- benchmarks


def bench(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    own = {"ASSAY_SLOTS_DIR": str(tmp_path / "slots"), "ASSAY_CACHE_DIR": str(tmp_path / "cache")}
    words = ["bench", "run", *arguments, "--json", "--foreign-limit", "1", "--root", str(tmp_path / "runs")]
    env = {**os.environ, **own, "PYTHONDONTWRITEBYTECODE": "1"}
    done = call_assay(words, cwd=EXAMPLES / "bench", env=env, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.needs(bench=True)
def test_numpy(tmp_path: Path) -> None:
    found = bench(tmp_path, "numpy_bench.MatMul.filter:sq.*", "numpy_bench.sort_numbers", "--args", '{"size": 64}')
    numbers = {execution["method"]: execution["numbers"] for execution in found["executions"]}
    assert set(numbers) == {"numpy_bench.MatMul.square", "numpy_bench.sort_numbers"}
    assert numbers["numpy_bench.MatMul.square"]["gflops_per_second"] > 0
    assert found["executions"][0]["framework"]["name"] == "numpy"


@pytest.mark.services("backends")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch(tmp_path: Path) -> None:
    found = bench(
        tmp_path, "torch_bench.MatMul.half", "torch_bench.Transformer.training_step", "--args", '{"seconds": 0.1}'
    )
    assert [execution["framework"]["name"] for execution in found["executions"]] == ["torch", "torch"]
    assert found["executions"][1]["numbers"]["tokens_per_second"] > 0
