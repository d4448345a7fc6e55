"""The process that does the work: a line per case, a report at the end, or the reason why there is none."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.example_models import ORT, ask, faulty, find_marked, hide_library, picky, until
from tests.models.report import model_reports as made

from assay.models.child import build_numbers, build_points, main, write_metrics
from assay.models.records import load_report
from assay.models.report.summary import find_fresh
from assay.models.values.model import InputChoice, ModelRequest, Step, StepEnding, StepOutcome, Target
from assay.values.plain import build_plain
from assay.values.verdict import VerdictKind


def call(request: ModelRequest, run_dir: Path) -> int:
    run_dir.mkdir(exist_ok=True)
    return main([str(run_dir), json.dumps(build_plain(request))])


def load_error(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "error.json").read_text())
    return found


def test_a_missing_extra_comes_with_the_command_that_brings_it(
    chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_library("openvino", tmp_path, monkeypatch)
    assert call(ask(chain, tmp_path, Target("openvino", "openvino")), tmp_path / "run") == 2
    assert load_error(tmp_path / "run")["hint"] == "install it: pip install 'assay[openvino]'"


@pytest.mark.usefixtures("lent")
def test_a_run_directory_that_cannot_be_written_is_no_traceback(
    chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics").write_text("a file where a folder should be")
    assert call(ask(chain, tmp_path), tmp_path / "run") == 4
    assert "the check cannot continue" in load_error(tmp_path / "run")["message"]
    assert "Traceback" not in "".join(capsys.readouterr())


@pytest.mark.usefixtures("lent")
def test_a_check_leaves_its_report_figures_and_trace(
    chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(ask(chain, tmp_path), tmp_path / "run") == 0
    report = load_report(str(tmp_path / "run"))
    assert report is not None
    assert report.verdict.kind is VerdictKind.PASS
    made = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert made == ["metrics", "model.json", "trace.csv", "trace.json", "trace.pb"]
    assert all(b"chain_layer_Add_1" in (tmp_path / "run" / name).read_bytes() for name in made if "trace" in name)
    lines = capsys.readouterr().out.splitlines()
    names = ("full_model", "layer_MatMul_0", "layer_Add_1", "layer_Relu_2")
    assert [line.split()[:2] for line in lines] == [["ok", f"chain_{name}"] for name in names]
    trace = (tmp_path / "run" / "trace.csv").read_text()
    assert "ort:unoptimized / compile,chain_layer_Add_1," in trace
    assert "ort / run,chain_activations," in trace


@pytest.mark.usefixtures("lent")
@pytest.mark.parametrize("goal", ["bisect", "reduce"])
def test_the_exit_code_is_the_report_s_and_paths_move_with_it(chain: Path, tmp_path: Path, goal: Any) -> None:
    assert call(ask(chain, tmp_path, faulty("scaled", "sum"), goal=goal), tmp_path / "run") == 1
    (tmp_path / "run").rename(tmp_path / "moved")
    report = load_report(str(tmp_path / "moved"))
    assert report is not None
    assert report.first_wrong == "chain_layer_Add_1"
    assert all(Path(path).exists() for case in report.cases for pair in case.diffs for path in pair)
    if goal == "reduce":
        model = report.command.split()[3]
        assert model == str(tmp_path / "moved" / "tensors" / "chain_reduced.onnx")
        assert Path(model).exists()


@pytest.mark.usefixtures("lent")
def test_functions_are_found_in_the_caller_s_folder(chain: Path, tmp_path: Path) -> None:
    (tmp_path / "caller").mkdir()
    (tmp_path / "caller" / "my_inputs.py").write_text(
        "import numpy as np\ndef make(sample):\n    return {'x': np.full((2, 4), sample + 1, np.float32)}\n"
    )
    inputs = InputChoice(samples=2, function="my_inputs:make")
    request = ask(chain, tmp_path, inputs=inputs, folder=str(tmp_path / "caller"))
    assert call(request, tmp_path / "run") == 0
    report = load_report(str(tmp_path / "run"))
    assert report is not None
    assert report.samples == 2
    sys.path.remove(str(tmp_path / "caller"))


def test_no_worker_outlives_its_parent_and_what_was_made_before_a_kill_is_not_made_again(
    chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARK", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    for name in ("run", "scratch"):
        (tmp_path / name).mkdir()
    request = ask(chain, tmp_path, picky(hang="Relu", says=str(tmp_path / "hangs")), only=("MatMul_0", "Relu_2"))
    argv = [sys.executable, "-m", "assay.models.child", str(tmp_path / "run"), json.dumps(build_plain(request))]
    with subprocess.Popen(argv) as process:
        until((tmp_path / "hangs").exists, "the worker hangs")
        assert len(find_marked(f"MARK={tmp_path}")) >= 3
        process.kill()
    until(lambda: not find_marked(f"MARK={tmp_path}"), "all workers are gone")
    assert not (tmp_path / "run" / "model.json").exists()
    assert list((tmp_path / "scratch").glob("assay-model-*"))
    assert call(ask(chain, tmp_path, ORT, only=("MatMul_0",)), tmp_path / "run") == 0
    assert "chain_activations" not in (tmp_path / "run" / "trace.csv").read_text()
    assert not list((tmp_path / "scratch").glob("assay-model-*")), "also that of the killed one is removed"


def test_times_are_those_that_were_measured_now() -> None:
    """Of each timed execution, the shortest counts; not of a step that failed, was remembered, or only copies."""
    whole, case, failed = made.whole(), made.good(0), made.failed(0)
    assert all(step.cached for step in whole.steps)
    assert (find_fresh(whole, Step.RUN), build_numbers(whole)) == ((), {"local_error": 3e-7})
    assert find_fresh(case, Step.RUN) == (0.002, 0.0015)
    numbers = build_numbers(case)
    assert (numbers["run_s"], numbers["compile_s"], numbers["accumulated_error"]) == (0.0015, 1.234, 2e-7)
    assert (find_fresh(failed, Step.COMPILE), find_fresh(failed, Step.IMPORT)) == ((), (0.25,))
    assert build_numbers(failed) == {"import_s": 0.25}
    copy = StepOutcome(Step.COMPILE, StepEnding.OK, elapsed_s=0.3, command="cp m.onnx")
    assert "compile_s" not in build_numbers(replace(case, steps=(copy,)))
    assert "compile_s" in build_numbers(replace(case, steps=(replace(copy, command="npu-compile m.onnx"),)))


def test_points_stand_at_the_layers_number_and_have_what_json_knows(tmp_path: Path) -> None:
    points = list(build_points(made.report(made.good(4), made.whole())))
    assert (points[0]["step"], points[0]["run_s"]) == (4, 0.0015)
    assert "step" not in points[1]
    assert points[1]["full.local_error"] == 3e-7
    broken = replace(made.good(0), local=(made.comparison("y", math.inf, VerdictKind.FAIL, misplaced=1),))
    write_metrics(str(tmp_path), made.report(broken))
    (line,) = (tmp_path / "metrics" / "model.jsonl").read_text().splitlines()
    assert "local_error" not in json.loads(line)
