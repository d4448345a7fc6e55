"""The tables and views as a person with a SQLite client sees them."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Iterator
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contracts.index import full_row, put_points, row
from tests.study_processes import StudyProcesses, open_study_processes

from assay.follow.locations import StudyLocation
from assay.follow.refresh import read_verdicts
from assay.follow.verdicts import record_verdicts
from assay.record.index import schema
from assay.record.index.base import Cursor, VerdictRow
from assay.record.index.sqlite import SqliteIndex
from assay.values.run import State
from assay.values.verdict import Finding, Verdict, VerdictKind

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "formats-index.md"
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)

STUDY = """
study: fit
command: 'echo "loss {lr}"; [ {lr} != 0.5 ]'
params: {lr: [0.1, 0.2, 0.5]}
metrics: {loss: 'loss ({number})'}
checks: [{metric: loss, max: 0.15}]
"""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[SqliteIndex]:
    with SqliteIndex(tmp_path / "index.sqlite3") as opened:
        yield opened


def ask(index: SqliteIndex, query: str) -> list[dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(index.path)) as client:
        client.row_factory = sqlite3.Row
        return [dict(found) for found in client.execute(query)]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[list[dict[str, Any]]]]:
    """The result of each query of the page after a study with a failed run and a check that fails."""
    with open_study_processes(tmp_path_factory.mktemp("queries")) as shop:
        shop.write("fit.yml", STUDY)
        assert shop.run("--slots", "0", file="fit.yml").code == 1
        yield _ask_all(shop)


def _ask_all(shop: StudyProcesses) -> list[list[dict[str, Any]]]:
    (path,) = Path(shop.env["ASSAY_CACHE_DIR"]).rglob("*.sqlite3")
    with contextlib.closing(sqlite3.connect(path)) as client:
        client.row_factory = sqlite3.Row
        return [[dict(row) for row in client.execute(query)] for query in QUERIES]


def test_the_documented_queries_answer_what_they_promise(answers: list[list[dict[str, Any]]]) -> None:
    best, failed, losses, verdicts, studies = answers
    assert best == [{"key": "fit/lr=0.1", "best_loss": 0.1, "min_step": best[0]["min_step"]}]
    assert [(one["key"], one["state"], one["exit_code"]) for one in failed] == [("fit/lr=0.5", "failed", 1)]
    assert failed[0]["reason"]
    assert [(one["lr"], one["runs"], one["final_loss"]) for one in losses] == [
        (0.1, 1, 0.1),
        (0.2, 1, 0.2),
        (0.5, 1, 0.5),
    ]
    assert {(one["key"], one["source"], one["kind"]) for one in verdicts} == {
        ("fit/lr=0.1", "checks", "PASS"),
        ("fit/lr=0.2", "checks", "FAIL"),
    }
    assert [(one["study"], one["runs"], one["done"], one["failed"]) for one in studies] == [("fit", 3, 2, 1)]


def test_every_table_view_and_column_is_documented(index: SqliteIndex) -> None:
    page = PAGE.read_text()
    found = ask(index, "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite%'")
    for table in [one["name"] for one in found]:
        assert f"| `{table}`" in page
        for column in ask(index, f"SELECT name FROM pragma_table_info('{table}')"):
            assert f"`{column['name']}`" in page, f"{table}.{column['name']}"


def test_the_plain_columns_say_what_the_row_says(index: SqliteIndex) -> None:
    given_row = full_row()
    index.put_runs([given_row])
    (found,) = ask(index, "SELECT * FROM runs")
    plain = given_row._asdict() | {"git_commit": given_row.commit, "state": given_row.state.value}
    assert json.loads(found.pop("params")) == plain.pop("params") | {"inf": "inf"}
    assert json.loads(found.pop("tags")) == list(plain.pop("tags"))
    assert {name: value for name, value in found.items() if name in plain} == {
        name: plain[name] for name in found if name in plain
    }
    assert set(found) - set(plain) == {"run", "active_at"}
    index.put_runs([given_row._replace(state=State.FAILED, params={"lr": 2})])
    assert ask(index, "SELECT state, params FROM runs") == [{"state": "failed", "params": '{"lr": 2}'}]


def test_parameters_are_rows_with_their_types(index: SqliteIndex) -> None:
    index.put_runs([row(params={"lr": 0.1, "steps": 3, "name": "größe", "deep": [1, 2], "on": True, "none": None})])
    found = {one["parameter"]: (one["type"], one["value"]) for one in ask(index, "SELECT * FROM parameters")}
    assert found == {
        "lr": ("real", 0.1),
        "steps": ("integer", 3),
        "name": ("text", "größe"),
        "deep": ("array", "[1,2]"),
        "on": ("true", "true"),
        "none": ("null", None),
    }


@pytest.mark.parametrize("value", [nan, inf, [-inf], {"deep": nan}, "a\udcff", 10**30, Path("x"), b"bytes"])
def test_odd_values_never_break_a_query(index: SqliteIndex, value: Any) -> None:
    index.put_runs([row("grid/odd", params={"odd": value, "lr": 0.1}, reason="a\udcff", peak_rss_bytes=10**30)])
    index.put_runs([row("grid/b", params={"lr": 0.2})])
    found = ask(index, "SELECT value FROM parameters WHERE parameter = 'lr' ORDER BY value")
    assert [one["value"] for one in found] == [0.1, 0.2]
    assert len(ask(index, "SELECT * FROM parameters")) == 3
    assert len(ask(index, "SELECT * FROM runs")) == 2
    (mine,) = [each for each in index.load_runs() if each.key == "grid/odd"]
    assert mine.reason == "a\udcff"
    assert mine.peak_rss_bytes == 10**30


@given(st.lists(st.tuples(st.sampled_from(["a.log", "b.log"]), st.lists(st.floats(), max_size=4)), max_size=6))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_view_of_metrics_says_what_summaries_say(
    index: SqliteIndex, written: list[tuple[str, list[float]]]
) -> None:
    index.clear()
    for source, values in written:
        put_points(index, "grid/a", values, source=source)
        put_points(index, "grid/a", values[::2], metric="half", source=source)
    check_metrics(index)
    index.forget_points("grid/a", "a.log")
    check_metrics(index)


def check_metrics(index: SqliteIndex) -> None:
    expected = index.load_summaries().get("grid/a", {})
    found = {one["metric"]: one for one in ask(index, "SELECT * FROM metrics")}
    assert set(found) == set(expected)
    for name, summary in expected.items():
        for field in ("count", "bad", "last", "last_step", "min", "min_step", "max", "max_step", "mean"):
            wanted = getattr(summary, field)
            assert found[name][field] == (None if wanted is None or isnan(wanted) else wanted), field


def test_a_run_that_only_has_points_is_in_no_study(index: SqliteIndex) -> None:
    put_points(index, "grid/a", [1.0])
    assert ask(index, "SELECT * FROM studies") == []
    assert ask(index, "SELECT key, state FROM runs") == [{"key": "grid/a", "state": None}]
    index.put_runs([row()])
    assert [(one["study"], one["runs"]) for one in ask(index, "SELECT * FROM studies")] == [("grid", 1)]


def test_points_of_a_chunk_are_arrays_of_doubles(index: SqliteIndex) -> None:
    """The arrays are as formats-index.md describes them."""
    import struct

    index.add_columns("grid/a", "a.log", Cursor(1), {"loss": ([1, 2], [0.5, 0.25], None)}, expected_offset=0)
    (found,) = ask(index, "SELECT * FROM chunks")
    assert struct.unpack("=2d", found["step_data"]) == (1.0, 2.0)
    assert struct.unpack("=2d", found["value_data"]) == (0.5, 0.25)
    assert found["time_data"] == b""
    (source,) = ask(index, "SELECT number FROM names WHERE name = 'a.log'")
    assert struct.unpack("=2q", found["parts"][:16]) == (source["number"], 2)


def test_a_second_database_needs_only_its_types() -> None:
    """The logical schema names no type of SQLite's, and no column that would need quotes."""
    import string

    for _, name, _, _ in string.Formatter().parse(schema.TABLES):
        assert name is None or name in schema.TYPES
    assert not re.search(r"\b(INTEGER|REAL|BLOB|WITHOUT|AUTOINCREMENT)\b|\"", schema.TABLES)


def build_verdict(kind: VerdictKind = VerdictKind.FAIL) -> Verdict:
    return Verdict.of([Finding(kind, "a loss", "too large", 2.0, 1.0, 7.0, 1.0, (0.5, 1.5))], 1)


def test_a_verdict_is_kept_in_the_study_and_found_in_the_index(tmp_path: Path, index: SqliteIndex) -> None:
    location = StudyLocation(str(tmp_path), "grid")
    assert record_verdicts(location, "checks", {"a": build_verdict()}, index) == []
    (found,) = ask(index, "SELECT * FROM verdicts")
    assert (found["key"], found["result"], found["kind"], found["value"]) == ("grid/a", "FAIL", "FAIL", 2.0)
    assert (found["interval_low"], found["interval_high"]) == (0.5, 1.5)
    read_verdicts(index, location)
    assert len(ask(index, "SELECT * FROM verdicts")) == 1
    index.clear()
    read_verdicts(index, location)
    assert ask(index, "SELECT key, judged_at FROM verdicts") == [{"key": "grid/a", "judged_at": found["judged_at"]}]


def test_a_damaged_or_unfinished_line_costs_no_other(tmp_path: Path, index: SqliteIndex) -> None:
    location = StudyLocation(str(tmp_path), "grid")
    record_verdicts(location, "checks", {"a": build_verdict()}, index)
    file = tmp_path / "grid" / ".assay" / "verdicts.jsonl"
    with file.open("a") as more:
        more.write('not json\n[]\n{"at": 1, "source": "x", "verdicts": [{"kind": "?"}]}\n')
    record_verdicts(location, "checks", {None: build_verdict(VerdictKind.PASS)}, index)
    with file.open("a") as more:
        more.write('{"at": 1')
    read_verdicts(index, location)
    assert [one["key"] for one in ask(index, "SELECT key FROM verdicts")] == ["grid/a", None]


def test_a_file_that_was_replaced_is_read_from_the_beginning(tmp_path: Path, index: SqliteIndex) -> None:
    location = StudyLocation(str(tmp_path), "grid")
    for run in "abc":
        record_verdicts(location, "checks", {run: build_verdict()}, index)
    (tmp_path / "grid" / ".assay" / "verdicts.jsonl").unlink()
    record_verdicts(location, "checks", {"d": build_verdict()}, index)
    assert [one["key"] for one in ask(index, "SELECT key FROM verdicts")] == ["grid/d"]


def test_of_two_readers_of_the_same_bytes_one_stores_them(index: SqliteIndex) -> None:
    rows = [VerdictRow("grid/a", 1.0, "checks", "PASS", "PASS", "a", "fine")]
    assert index.add_verdicts("grid", rows, start=0, end=10, expected_offset=0)
    assert not index.add_verdicts("grid", rows, start=0, end=10, expected_offset=0)
    assert index.add_verdicts("grid", rows, start=10, end=20, expected_offset=10)
    assert len(ask(index, "SELECT * FROM verdicts")) == 2


def test_a_verdict_that_cannot_be_kept_is_a_warning(tmp_path: Path, index: SqliteIndex) -> None:
    (tmp_path / "grid").write_text("a file where the study should be")
    (said,) = record_verdicts(StudyLocation(str(tmp_path), "grid"), "checks", {"a": build_verdict()}, index)
    assert "not recorded" in said
