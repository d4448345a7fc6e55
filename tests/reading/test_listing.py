"""Tables of studies and runs."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from assay.follow.refresh import refresh_study
from assay.reading import listing
from assay.record.index.base import RunRow, StudyRow
from assay.show.table import render_table
from assay.values.run import State

LONG = "x" * 40


def run(
    name: str, state: State = State.DONE, metrics: dict[str, tuple[float, float]] | None = None, **more: Any
) -> listing.ListedRun:
    return listing.ListedRun(RunRow(f"s/{name}", "s", name, "", state, 1, {})._replace(**more), metrics or {})


def names(table: Any) -> list[str]:
    return [column.name for column in getattr(table, "table", table).columns]


def test_only_columns_with_something_to_say() -> None:
    assert names(listing.build_run_table([run("a")], 0.0)) == ["run", "state"]
    more = run("a", reason="broke", slot="0")
    assert names(listing.build_run_table([more], 0.0)) == ["run", "state", "slot", "reason"]


def test_time_goes_on_while_it_runs() -> None:
    assert run("a", State.RUNNING, started_at=10.0).row.elapsed_s(25.0) == 15.0
    assert run("a", started_at=10.0, ended_at=12.0).row.elapsed_s(25.0) == 2.0
    assert run("a", State.LOST, started_at=10.0).row.elapsed_s(25.0) is None
    assert run("a").row.elapsed_s(25.0) is None


def test_columns_give_way_to_names() -> None:
    metrics = {"loss": (1.0, 3.0), "acc": (0.5, 3.0), "lr": (0.1, math.nan)}
    runs = [run(LONG, metrics=metrics, slot="cpu")]
    assert names(listing.build_run_table(runs, 0.0, 200)) == ["run", "state", "slot", "step", "acc", "loss", "lr"]
    assert names(listing.build_run_table(runs, 0.0, 54)) == ["run", "state", "step", "acc"]
    assert names(listing.build_run_table(runs, 0.0, 20)) == ["run", "state"]


def test_an_upload_is_marked_also_where_there_is_little_room() -> None:
    upload = {"how": "upload", "from": "192.0.2.7", "by": "upload token 123abc", "at": 1.0}
    metrics = {"loss": (0.12345, 300.0), "val_accuracy": (0.98765, 300.0), "throughput": (1234.5, 300.0)}
    more = {"slot": "gpu0", "attempt": 2, "started_at": 0.0, "ended_at": 4000.0}
    runs = [
        run("lr=0.1,seed=0", metrics=metrics, **more),
        run("lr=0.2,seed=0", metrics=metrics, received=upload, **more),
    ]
    for width in (80, 60, 40):
        found = listing.build_run_table(runs, 0.0, width)
        assert "received" in names(found), width
        assert "upload" in render_table(found.table, width=width)


def test_a_failed_run_does_not_cost_the_others_their_metrics() -> None:
    metrics = {"loss": (1.0, 3.0), "acc": (0.5, 3.0)}
    fine = [run(f"learning_rate=0.{n},norm=batch", metrics=metrics, slot="cpu") for n in range(3)]
    reason = "train ended with exit code 1: out of memory"
    bad = [run(f"learning_rate=1.{n},norm=batch", State.FAILED, slot="cpu", reason=reason) for n in range(7)]
    found = listing.build_run_table([*fine, *bad[:1]], 0.0, 80)
    assert names(found) == ["run", "state", "slot", "step", "acc", "loss"]
    assert found.remarks == (f"failed: learning_rate=1.0,norm=batch: {reason}",)
    many = listing.build_run_table([*fine, *bad], 0.0, 80)
    assert len(many.remarks) == 6
    assert many.remarks[-1] == "and 2 more; `assay show` explains a single run"
    assert "reason" in names(listing.build_run_table([*fine, *bad], 0.0, 200))
    assert listing.build_run_table([*fine, *bad], 0.0, 200).remarks == ()


def test_studies_with_the_newest_last() -> None:
    rows = [("old", 1.0), ("new", 9.0), ("never", None)]
    studies = [listing.ListedStudy("/r", StudyRow(name, {State.DONE: 2}, time)) for name, time in rows]
    table = listing.build_study_table(studies, 10.0)
    assert [row[0] for row in table.rows] == ["never", "old", "new"]
    assert [row[-1] for row in table.rows] == [None, 9.0, 1.0]
    assert "root" not in names(table)
    studies.append(listing.ListedStudy("/q", StudyRow("x", {}, None)))
    assert "root" in names(listing.build_study_table(studies, 10.0))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_run_that_gets_its_directory_while_ls_looks_is_listed_once(cli, own_bench, monkeypatch, moment: str) -> None:
    own_bench.write("s.yml", "study: s\ncommand: 'true'\nsweep: {x: [1, 2]}\ncode: live\n")
    assert cli("run", "s.yml").code == 0
    folder, aside = own_bench.root / "s/x=2", own_bench.root / "aside"
    folder.rename(aside)
    plan = {"format": 1, "runs": {"x=1": "1", "x=2": "2"}}
    (own_bench.root / "s/.assay/plan.json").write_text(json.dumps(plan))

    def refresh(index: Any, location: Any, console: Any) -> None:
        if moment == "before":
            aside.rename(folder)
        refresh_study(index, location, console)
        if moment == "after":
            aside.rename(folder)

    monkeypatch.setattr(listing, "refresh_study", refresh)
    assert [run["name"] for run in json.loads(cli("ls", "s", "--json").out)] == ["x=1", "x=2"]
