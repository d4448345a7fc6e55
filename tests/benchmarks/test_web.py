"""The runs that `benchmarks/web.py` shows are filled in through what scripts call."""

from __future__ import annotations

import json
import os
import sys
from array import array
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.needs(exchange=True)
SCRIPT = "_web_servers"


def test_runs_are_filled_with_parameters_and_metrics(script: ModuleType, tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "runs"
    data.mkdir()
    (data / "table.json").write_text(json.dumps([{"params": {"lr": 0.1}, "metrics": {"loss": 1.0}}] * 2))
    for name in ("long", "curve-0"):
        (data / f"{name}.bin").write_bytes(array("d", [2.0, 1.0]).tobytes())
    stored = script.fill(sys.executable, script.FILL_ASSAY, data, target, os.environ, 60.0)
    assert stored == {"runs": 2, "points of the long curve": 2, "curves": 1}
    assert json.loads((target / "table" / "run-00001" / "run.json").read_text())["params"] == {"lr": 0.1}
    assert {path.name for path in target.iterdir() if path.is_dir()} >= {"table", "long", "overlay"}
