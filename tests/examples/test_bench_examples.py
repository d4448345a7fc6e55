"""examples/bench runs as its README says; torch's part only where torch is."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "bench"


def bench(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    env = {
        **os.environ,
        "ASSAY_SLOTS_DIR": str(tmp_path / "slots"),
        "ASSAY_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "assay", "bench", "run", *arguments, "--json", "--foreign-limit", "1", "--root", str(tmp_path / "runs")],
        cwd=EXAMPLES, env=env, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.needs(bench=True)
def test_numpy(tmp_path: Path) -> None:
    found = bench(tmp_path, "numpy_bench.MatMul.filter:.*", "numpy_bench.sort_numbers", "--args", '{"size": 64}')
    numbers = {execution["method"]: execution["numbers"] for execution in found["executions"]}
    assert set(numbers) == {
        "numpy_bench.MatMul.square",
        "numpy_bench.MatMul.single_precision",
        "numpy_bench.sort_numbers",
    }
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
