"""What `benchmarks/busy.py` makes of executions that were recorded on a busy machine (two cores, a load of 10 to 20)."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.needs(bench=True)
SCRIPT = "busy"
RECORDED = Path(__file__).with_name("busy.json")


def test_every_recorded_execution_was_disturbed(script: ModuleType) -> None:
    """Without rules by metric nothing of this would count."""
    rows = [row for _, calm, slow in script.load_kept([RECORDED]) for row in (*calm, *slow)]
    loads = [row[3] for row in rows if row[3] is not None]
    assert len(loads) > 0.8 * len(rows)
    assert min(loads) > 0.1


def test_a_step_is_found_under_load_and_nothing_else(script: ModuleType) -> None:
    found = script.judge([RECORDED])
    alarms = {what: (kinds.count("FAIL"), len(kinds)) for what, kinds in found.items()}
    assert alarms == {
        "history, +30%": (6, 6),
        "history, no change": (0, 12),
        "compare cpu_time, +30%": (17, 18),
        "compare cpu_time, no change": (0, 18),
        "compare wall_time, +30%": (17, 18),
        "compare wall_time, no change": (0, 18),
    }


def test_more_work_that_comes_with_more_load_is_not_blamed_on_the_code(script: ModuleType) -> None:
    _, calm, slow = script.load_kept([RECORDED])[0]
    quiet = [[*row[:3], 0.05] for row in calm[:15]]
    assert script.judge_history([*calm[:15], *slow[15:30]]) == "FAIL"
    assert script.judge_history([*quiet, *slow[15:30]]) == "INCONCLUSIVE"


def test_what_is_kept_can_be_read_again(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "WORK", ("copy",))
    script.record(tmp_path / "kept.json", 1)
    ((name, calm, slow),) = script.load_kept([tmp_path / "kept.json"])
    assert (name, len(calm), len(slow)) == ("copy", 1, 1)
    assert calm[0][2] > 0
    assert json.loads(RECORDED.read_text()).keys() == {"loop", "sort", "copy"}
