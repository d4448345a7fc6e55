"""What the scripts of `benchmarks/` measure is kept: all of them are in the list, and each writes figures."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOP = Path(__file__).resolve().parents[2]
FOLDER = TOP / "benchmarks"
SCRIPT = "_all"
PRINTING = """
from measuring import render_count, render_ratio, render_share
print(render_ratio("ours / theirs", 0.5, at_most=0.4, of_each=[0.25, 0.75]))
print(render_share("found", 9, 10))
print(render_count("kills", 0, 300))
"""


def test_every_script_is_in_the_list_and_keeps_figures(script: ModuleType) -> None:
    scripts = {path.stem: path.read_text() for path in FOLDER.glob("[a-z]*.py") if path.stem != "measuring"}
    assert scripts.keys() == {*script.ORDER, *script.BY_HAND}
    assert len(script.ORDER) == len(set(script.ORDER))
    keeps = re.compile(r"\brender_(ratio|share|count)\(")
    assert [name for name, text in scripts.items() if not keeps.search(text)] == []


@pytest.mark.parametrize(("hits", "interval"), [(0, (0.0, 0.161)), (10, (0.299, 0.701)), (20, (0.839, 1.0))])
def test_the_interval_of_a_rate(script: ModuleType, hits: int, interval: tuple[float, float]) -> None:
    import measuring

    assert measuring.find_interval(hits, 20) == pytest.approx(interval, abs=0.001)


def test_figures_become_a_file_and_the_file_a_page(script: ModuleType, tmp_path: Path) -> None:
    env = os.environ | {"RESULTS": str(tmp_path)}
    code = f"import sys; sys.argv = [{str(FOLDER / 'sample.py')!r}, '--small']\n" + PRINTING
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDER, env=env, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert printed == [
        "ours / theirs: 0.50 (0.25 to 0.75)   target: at most 0.4   MISSED",
        "found: 9 of 10, 90.0% [59.6%, 98.2%]",
        "kills: 0 of 300 (95%: at most 1.00%)",
    ]
    record = json.loads((tmp_path / "sample.json").read_text())
    assert (record["script"], record["arguments"]) == ("sample", ["--small"])
    assert record["commit"]
    page = "".join(script._report.build_part(record))
    assert "| ours / theirs | 0.50 | 0.25 to 0.75 | ≤ 0.4 **missed** |" in page
    assert "| found | 9 of 10 | 95%: 59.6% to 98.2% | |" in page
    assert "| kills | 0 failed of 300 | 95%: at most 1.00% | |" in page
