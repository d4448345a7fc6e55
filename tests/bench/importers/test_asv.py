"""asv's folder: results, the machine's file among them, and the list of benchmarks above."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.bench.importers.formats import load_foreign, load_foreign_file
from assay.bench.values.execution import BenchExecution
from assay.errors import UsageError
from assay.values.series import direction_of

MACHINE = {"arch": "x86_64", "cpu": "AMD", "machine": "box", "num_cpu": "8", "os": "Linux", "ram": "16", "version": 1}
BENCHMARKS = {
    "suite.Odd.measure": {"code": "…", "name": "suite.Odd.measure", "type": "time", "unit": "seconds", "version": "v"},
    "suite.track_y": {"code": "…", "name": "suite.track_y", "type": "track", "unit": "bytes", "version": "v"},
    "version": 2,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As `asv run` leaves it."""
    found = tmp_path / "results" / "box"
    found.mkdir(parents=True)
    (found / "machine.json").write_text(json.dumps(MACHINE))
    (found.parent / "benchmarks.json").write_text(json.dumps(BENCHMARKS))
    return found


def write(folder: Path, results: dict[str, Any], **fields: Any) -> Path:
    path = folder / "aaaa-env.json"
    content = {"commit_hash": "c0ffee", "date": 1_700_000_000_000, "result_columns": ["result", "params", "version"]}
    path.write_text(json.dumps({**content, "results": results, "version": 2, **fields}))
    return path


def load(path: Path) -> dict[str, BenchExecution]:
    return {each.method: each for each in load_foreign(str(path))}


def test_what_failed_is_a_failed_execution(folder: Path) -> None:
    results = {
        "suite.time_x": [[1.0, 2.0, None], [["10", "20", "30"]]],
        "suite.time_broken": [None, []],
        "suite.time_all": [None, [["1", "2"], ["'a'", "'b'"]]],
        "suite.time_odd": [["text"], []],
        "suite.track_y": [[5], []],
    }
    found = load(write(folder, results))
    failed = {name: each.result.findings[0].message for name, each in found.items() if not each.succeeded}
    assert failed == {
        "suite.time_x(30)": "it failed when asv ran it",
        "suite.time_broken": "it failed when asv ran it",
        **{f"suite.time_all({n}, {x!r})": "it failed when asv ran it" for n in (1, 2) for x in "ab"},
        "suite.time_odd": "its result is 'text', which is not a number",
    }
    assert not any(found[name].result.is_measured for name in failed)
    assert {name for name in found if name not in failed} == {"suite.time_x(10)", "suite.time_x(20)", "suite.track_y"}
    path = folder / "old.json"  # of version 1
    path.write_text(json.dumps({"commit_hash": "c", "results": {"time_x": None, "time_y": {"result": None}}}))
    assert [each.succeeded for each in load(path).values()] == [False, False]


def test_what_was_skipped_is_reported_and_no_failure(folder: Path) -> None:
    path = write(folder, {"suite.time_x": [[1.0, float("nan")], [["10", "20"]]]})
    found = load_foreign_file(str(path))
    assert [each.method for each in found[0]] == ["suite.time_x(10)"]
    assert found[1] == ("suite.time_x(20) was skipped by asv: there is no result",)
    path = write(folder, {"suite.time_x": [[float("nan")], []]})
    with pytest.raises(UsageError, match=r"no result in it; suite\.time_x was skipped"):
        load_foreign(str(path))


def test_the_machine_s_file_fills_in_what_results_do_not_say(folder: Path) -> None:
    (found,) = load(write(folder, {"suite.time_x": [[1.0], []]})).values()
    assert (found.setup["cpu_model"], found.setup["cpus"]) == ("AMD", "8")
    assert (found.machine.host, found.machine.os) == ("box", "Linux")
    (own,) = load(write(folder, {"suite.time_x": [[1.0], []]}, params={"cpu": "EPYC", "num_cpu": None})).values()
    assert (own.setup["cpu_model"], own.setup["cpus"]) == ("EPYC", "8"), "a result knows better"


def test_a_damaged_machine_s_file_costs_no_result(folder: Path) -> None:
    for text in ("", "[]", "{", '{"other": 1}', "[" * 100_000):
        (folder / "machine.json").write_text(text)
        (found,) = load(write(folder, {"suite.time_x": [[1.0], []]})).values()
        assert (found.result.wall_time, found.setup) == (1.0, {})


def test_the_list_of_benchmarks_tells_kinds_and_units(folder: Path) -> None:
    found = load(write(folder, {"suite.Odd.measure": [[0.5], []], "suite.track_y": [[7], []]}))
    assert found["suite.Odd.measure"].result.wall_time == 0.5
    assert found["suite.track_y"].result.numbers == {"track_y": 7}
    assert found["suite.track_y"].result.extras == {"unit": "bytes"}


def test_what_is_tracked_keeps_its_name_and_lower_is_better_where_that_does_not_tell(folder: Path) -> None:
    for name, metric, direction in (
        ("suite.track_loss", "track_loss", "min"),
        ("suite.Net.track_accuracy", "track_accuracy", "max"),
        ("suite.TrackSize", "track_TrackSize", "min"),
        ("suite.pretty", "track_pretty", "min"),
    ):
        (folder / "../benchmarks.json").write_text(json.dumps({"version": 2, name: {"name": name, "type": "track"}}))
        found = load(write(folder, {name: [[7, 8], [["1.5", "'a.b'"]]]})).values()
        assert [each.result.numbers for each in found] == [{metric: 7}, {metric: 8}]
        assert direction_of(metric) == direction


def test_they_are_known_and_no_results(folder: Path) -> None:
    for place, words in (("machine.json", "describes the machine"), ("../benchmarks.json", "describes the benchmarks")):
        found = load_foreign_file(str(folder / place))
        assert found[0] == ()
        assert words in found[1][0]
        with pytest.raises(UsageError, match="there is no result in it"):
            load_foreign(str(folder / place))


def test_equal_figures_of_two_machines_are_two(folder: Path) -> None:
    path = write(folder, {"suite.track_y": [[7], []]})
    (here,) = load(path).values()
    (folder / "machine.json").write_text(json.dumps({**MACHINE, "machine": "other"}))
    (there,) = load(path).values()
    assert here.execution_id != there.execution_id
