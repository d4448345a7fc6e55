"""Every execution there is: found again after kills, passed over when damaged, read from folders of others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.bench.laboratory import request

from assay.bench.flow.archive import choose_methods, find_place, load_executions, load_file_executions
from assay.bench.flow.history import HistoryOptions, build_history
from assay.bench.flow.run import run_benchmarks
from assay.bench.values.execution import NOT_OBSERVED, BenchExecution
from assay.errors import FormatError, NotFoundError, UsageError
from assay.show.console import CollectingConsole
from assay.values.environment import GitState


@pytest.fixture
def executions(lab: Path) -> tuple[BenchExecution, ...]:
    return run_benchmarks(request("mod.B.fixed", "mod.B.raises", trials=2)).executions


def test_all_of_them_oldest_first(executions: tuple[BenchExecution, ...]) -> None:
    found = load_executions(find_location("runs"))
    assert [e.execution_id for e in found] == [e.execution_id for e in executions]
    assert [e.method for e in load_executions(find_location("runs"), "B.raises")] == ["mod.B.raises"] * 2
    assert [e.result.wall_time for e in load_executions(find_location("runs"), "fixed")] == [2.0, 2.0]


def test_a_place_without_any_is_said(lab: Path) -> None:
    with pytest.raises(UsageError, match="there is no benchmark under"):
        load_executions(find_location("runs"))


def test_one_that_was_never_summed_up_is_made_again(executions: tuple[BenchExecution, ...]) -> None:
    """A supervisor was killed between a child's end and its own writing."""
    run_dir = Path(executions[0].run_dir)
    (run_dir / "benchmark.json").unlink()
    found = load_executions(find_location("runs"), "fixed")
    assert found[0].result.wall_time == 2.0
    assert found[0].execution_id == executions[0].execution_id
    assert found[0].contaminated == (NOT_OBSERVED,), "not observed is not clean"
    with pytest.raises(UsageError, match="1 left out: not observed"):
        build_history("mod.B.fixed", "wall_time", found[:1], HistoryOptions(), [])
    assert json.loads((run_dir / "benchmark.json").read_text())["result"]["wall_time"] == 2.0


def test_a_damaged_one_is_passed_over_and_said(executions: tuple[BenchExecution, ...]) -> None:
    (Path(executions[0].run_dir) / "benchmark.json").write_text('{"format": 1, "result": 3}')
    console = CollectingConsole()
    said = console.lines
    found = load_executions(find_location("runs"), "fixed", console)
    assert len(found) == 1
    assert "benchmark.json is damaged" in said[0]


def test_from_a_file_a_run_directory_or_a_folder_of_them(executions: tuple[BenchExecution, ...], lab: Path) -> None:
    run_dir = executions[0].run_dir
    for path in (run_dir, f"{run_dir}/benchmark.json"):
        assert [e.execution_id for e in load_file_executions(path)] == [executions[0].execution_id]
    shutil.copytree("runs/bench", lab / "sent")
    assert len(load_file_executions(str(lab / "sent"))) == 4
    (lab / "empty").mkdir()
    with pytest.raises(FormatError, match="contains no benchmark"):
        load_file_executions(str(lab / "empty"))


def test_names_of_methods(executions: tuple[BenchExecution, ...]) -> None:
    with pytest.raises(NotFoundError, match="fixd"):
        load_executions(find_location("runs"), "fixd")
    assert choose_methods("one", ["a.one", "a.one.two"]) == ["a.one"]


def test_one_that_is_made_again_knows_its_machine(executions: tuple[BenchExecution, ...]) -> None:
    """Else a killed supervisor would make an environment of its own in the history."""
    run_dir = Path(executions[0].run_dir)
    (run_dir / "benchmark.json").unlink()
    again = load_executions(find_location("runs"), "fixed")[0]
    assert again.setup == executions[0].setup
    assert again.fingerprint == executions[0].fingerprint
    (run_dir / "benchmark.json").unlink()
    (run_dir / "environment.json").write_text("[]")
    assert load_executions(find_location("runs"), "fixed")[0].machine.cpu_model == ""


def test_one_that_is_made_again_knows_its_local_edits(executions: tuple[BenchExecution, ...]) -> None:
    """Else edited code would pass for its commit."""
    run_dir = Path(executions[0].run_dir)
    record = json.loads((run_dir / "run.json").read_text())
    (run_dir / "run.json").write_text(json.dumps(record | {"commit": "c" * 40}))
    known = json.loads((run_dir / "environment.json").read_text())
    git = {"commit": "c" * 40, "branch": "main", "dirty": True, "diff": "- 1", "untracked": ["x"]}

    def load_again(git: object) -> BenchExecution:
        (run_dir / "benchmark.json").unlink(missing_ok=True)
        (run_dir / "environment.json").unlink()  # it may be shared with other runs
        (run_dir / "environment.json").write_text(json.dumps(known | {"git": git}))
        return load_executions(find_location("runs"), "fixed")[0]

    found = load_again(git)
    assert found.git == GitState("c" * 40, "main", True, "- 1", ("x",))
    assert str(found.code).startswith("c" * 40 + "+")
    assert load_again(git | {"commit": "d" * 40}).git is None  # of another tree
    assert load_again("?").git is None
