"""benchmark.json: what is written comes back, what is damaged says so, what is newer is not guessed at."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from assay.bench.records import BENCH_FILE, load_execution, write_execution
from assay.bench.values.execution import BenchExecution, BenchMetric, BenchResult, Framework, GpuState, Machine, Peaks
from assay.errors import FormatError
from assay.values.environment import GitState
from assay.values.verdict import Finding, VerdictKind


def full(run_dir: Path) -> BenchExecution:
    finding = Finding(VerdictKind.FAIL, "m", "low", 1.0, 2.0, 3.0, -0.5, (-0.6, -0.4), ((1.0, 2.0),))
    metrics, extras, samples = (BenchMetric("acc", 0.5, 0.1, 0.9),), {"x": 1.5, "t": "text"}, {"wall_time": (1.0, 2.0)}
    result = BenchResult("m.C.f", False, True, 10, 2.5, 1.5, 4.0, metrics, extras, samples, (finding,))
    gpu = GpuState(0, "G", 1, 2, 3.0, 4, 5.0, ("hw_thermal",), (7,))
    return BenchExecution(
        execution_id="id", method="m.C.f", trial=3, result=result, run_dir=str(run_dir), output_dir=str(run_dir / "output"),
        started_at=1.0, ended_at=2.0, label="l", commit="c", git=GitState("c", "main", True, "diff", ("new.txt",)),
        setup={"python": "3.11"}, fingerprint="f", framework=Framework("torch", "2", "b", "12", "9"),
        machine=Machine(host="h", gpus=(gpu,), throttled=("hw_thermal",), packages={"numpy": "2"}),
        peaks=Peaks(1, 2, 3.0, 4.0, 5, 6.0), contaminated=("load",), refused=True, profiles=("profile/x.json",), extra={"a": [1]},
    )  # fmt: skip


def test_everything_comes_back_and_unknown_keys_are_passed_over(tmp_path: Path) -> None:
    write_execution(str(tmp_path), full(tmp_path))
    assert load_execution(str(tmp_path)) == full(tmp_path)
    path = tmp_path / BENCH_FILE
    content = json.loads(path.read_text())
    for place in (content, content["result"], content["machine"]["gpus"][0]):
        place["later"] = 1
    path.write_text(json.dumps(content))
    assert load_execution(str(tmp_path)) == full(tmp_path)
    for text in ("", "{}", '{"format": 1}', '{"format": 99}', '{"format": 1, "result": 3}', "[1]"):
        path.write_text(text)
        with pytest.raises(FormatError, match=BENCH_FILE):
            load_execution(str(tmp_path))


@pytest.mark.parametrize(("inside", "output"), [("output", "{}/output"), ("/somewhere/else", "/somewhere/else")])
def test_a_run_can_be_moved(tmp_path: Path, inside: str, output: str) -> None:
    (tmp_path / "old").mkdir()
    written = replace(full(tmp_path / "old"), output_dir=str(tmp_path / "old" / inside))
    write_execution(str(tmp_path / "old"), written)
    (tmp_path / "old").rename(tmp_path / "new")
    found = load_execution(str(tmp_path / "new"))
    assert found is not None
    assert found.output_dir == output.format(tmp_path / "new")
    assert load_execution(str(tmp_path / "old")) is None
