"""examples/bench runs as its README says; torch's part only where torch is."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.fork_server import call_assay

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "bench"


def bench(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    own = {"ASSAY_SLOTS_DIR": str(tmp_path / "slots"), "ASSAY_CACHE_DIR": str(tmp_path / "cache")}
    words = ["bench", "run", *arguments, "--json", "--foreign-limit", "1", "--root", str(tmp_path / "runs")]
    env = {**os.environ, **own, "PYTHONDONTWRITEBYTECODE": "1"}
    done = call_assay(words, cwd=EXAMPLES, env=env, timeout=280)
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
