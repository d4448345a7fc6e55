"""Figures of other tools become executions like any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.errors import AssayError
from assay.flows.bench.archive import find_place, load_executions
from assay.flows.bench.history import HistoryOptions, load_histories
from assay.flows.bench.imports import import_files

FORMATS = Path(__file__).resolve().parents[2] / "formats"


def write_google(path: Path, *names: str, real_time: float = 1.0) -> str:
    rows = [{"name": name, "real_time": real_time, "cpu_time": 0.5, "time_unit": "ms"} for name in names]
    path.write_text(json.dumps({"context": {"date": "2024-05-01T10:00:00+00:00"}, "benchmarks": rows}))
    return str(path)


def test_they_are_runs_of_the_study_and_in_its_history(lab: Path) -> None:
    files = [write_google(lab / f"{n}.json", "BM/one", real_time=1.0 + n / 100) for n in range(8)]
    found = import_files(files, "runs", "nightly")
    assert (found.new, found.known, found.methods) == (8, 0, ("BM/one",))
    executions = load_executions(find_place("runs"), "BM/one")
    assert sorted(e.result.wall_time for e in executions) == pytest.approx([(100 + n) / 1e5 for n in range(8)])
    assert {e.label for e in executions} == {"nightly"}
    assert {e.source for e in executions} == {"google-benchmark"}
    (history,) = load_histories("wall_time", "BM/one", HistoryOptions("runs"))
    assert len(history.series[0].points) == 8


def test_the_same_file_twice_adds_nothing(lab: Path) -> None:
    file = write_google(lab / "g.json", "BM/one", "BM/two")
    assert import_files([file], "runs").new == 2
    again = import_files([file], "runs", "another label")
    assert (again.new, again.known) == (0, 2)
    assert {e.label for e in load_executions(find_place("runs"))} == {None}  # nothing is overwritten


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "null", "\x00\x01", "[1, 2]", '{"benchmarks": 3}'])
def test_a_file_that_cannot_be_read_adds_nothing_of_any(lab: Path, text: str) -> None:
    good = write_google(lab / "g.json", "BM/one")
    bad = lab / "bad.json"
    bad.write_text(text)
    with pytest.raises(AssayError, match=r"bad\.json"):
        import_files([good, str(bad)], "runs")
    assert not (lab / "runs" / "bench").exists()


def test_a_file_that_is_not_there(lab: Path) -> None:
    with pytest.raises(AssayError, match=r"nowhere\.json"):
        import_files([str(lab / "nowhere.json")], "runs")


def test_a_place_that_cannot_be_written(lab: Path) -> None:
    (lab / "file").write_text("")
    with pytest.raises(AssayError):
        import_files([write_google(lab / "g.json", "BM")], "file")


def test_names_that_are_no_file_names(lab: Path) -> None:
    file = write_google(lab / "g.json", "../../etc/passwd", "a b/c:d<e>?", "x" * 300, "ünï/1")
    found = import_files([file], "runs")
    assert found.new == 4
    assert len(list((lab / "runs" / "bench").iterdir())) - (lab / "runs" / "bench" / ".assay").exists() == 4
    assert {e.method for e in load_executions(find_place("runs"))} == set(found.methods)
