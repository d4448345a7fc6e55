"""Tables of runs that the index has not seen: summaries first, points when something asks for them."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.fork_server import call_assay

from assay.errors import InfrastructureError
from assay.follow import refresh
from assay.follow.collect import Follower, find_sources
from assay.follow.locations import StudyLocation
from assay.follow.opening import open_index
from assay.follow.refresh import refresh_study
from assay.reading.run_reader import load_fresh_table
from assay.record import run_directory
from assay.record.index.stored import Index
from assay.show.console import CollectingConsole
from assay.values.run import Command, JobHandle, Outcome, RunSpec, State
from assay.values.study import Pattern

LINES = "start,start/step,0,timestamp,100.0\n" + "".join(
    f"val,loss,{loss},acc,0.5,epoch,{epoch},timestamp,{200.5 + epoch}\n" for epoch, loss in enumerate((3.0, 1.0, 2.0))
)
UNEVEN = LINES + "val,loss,0.25,epoch,3,timestamp,204.5\ndamaged\n"
SPEC = RunSpec("0", "c", {}, (Command("train", "true"),), patterns=(Pattern("loss", r"loss ([\d.]+)"),))


def write_foreign(study: Path, name: str, text: str = LINES) -> Path:
    run = study / name
    run.mkdir(parents=True)
    (run / "hparams.json").write_text(json.dumps({"lr": 0.1}))
    (run / "metrics.csv").write_text(text)
    settle(run)
    return run


def settle(run: Path) -> None:
    for path in (*run.rglob("*"), run):
        os.utime(path, (1.0, 1.0))


def write_own(study: Path, lines: str) -> Path:
    run = study / SPEC.name
    assert run_directory.write_run_dir(str(run), run_directory.RunRecord(SPEC, study.name, "uid", 0.0), "")
    (run / "train.log").write_text(lines)
    return run


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / "cache"))
    study = tmp_path / "root" / "study"
    write_foreign(study, "a")
    write_foreign(study, "b", UNEVEN)
    run = write_own(study, "loss 2.5\nloss 1.5\n")
    run_directory.publish_lease(str(run), JobHandle("local", "0", "host", 1, 0, "boot", None, 1, 1.0))
    run_directory.write_outcome(str(run), Outcome(State.DONE, 1, {"train": 0}))
    (run / "metrics").mkdir()
    (run / "metrics" / "0.jsonl").write_text('{"step": 1, "acc": 0.5}\n{"step": 2, "acc": 0.75}\n')
    settle(run)
    return tmp_path / "root"


@pytest.fixture
def location(root: Path) -> StudyLocation:
    return StudyLocation(str(root), "study")


def describe(index: Index) -> tuple[Any, Any]:
    return index.load_runs(), index.load_summaries()


def losses(index: Index, key: str) -> list[float]:
    return index.load_series(key, "loss").values.tolist()


@pytest.mark.needs(compat=True)
def test_a_table_needs_no_points_and_is_the_same_without_them(root: Path, location: StudyLocation) -> None:
    with open_index(root) as index:
        assert refresh_study(index, location) == 3
        summarised = describe(index)
        starts = index.load_cursors("metrics.csv")
        assert index.find_summarised() == ["study/a", "study/b", "study/c"]
        assert index.query("SELECT count(*) FROM chunks").rows == [(0,)]
        assert refresh_study(index, location) == 0
        assert losses(index, "study/b") == [3.0, 1.0, 2.0, 0.25]  # reads the points of the whole study
        assert index.find_summarised() == []
        assert losses(index, "study/c") == [2.5, 1.5]
        assert index.load_series("study/c", "acc").values.tolist() == [0.5, 0.75]
        assert describe(index) == summarised
        stored = index.load_cursors("metrics.csv")
        assert {key: each.state for key, each in stored.items()} == {key: each.state for key, each in starts.items()}
        assert refresh_study(index, location) == 0


def test_a_summarised_run_that_changes_is_read_whole(root: Path, location: StudyLocation) -> None:
    with open_index(root) as index:
        refresh_study(index, location)
        with (root / "study" / "a" / "metrics.csv").open("a") as file:
            file.write("val,loss,0.5,acc,0.5,epoch,3,timestamp,300.0\n")
        (root / "study" / "b" / "metrics.csv").write_text("")
        assert refresh_study(index, location) == 2
        assert index.find_summarised() == ["study/c"]
        assert losses(index, "study/a") == [3.0, 1.0, 2.0, 0.5]
        assert index.load_summaries()["study/a"]["loss"].min == 0.5
        assert "study/b" not in index.load_summaries()


@pytest.mark.parametrize("moment", ["before it begins", "after runs were marked"])
@pytest.mark.needs(compat=True)
def test_a_process_that_dies_while_it_stores_points_loses_nothing(
    root: Path, location: StudyLocation, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_index(root) as index:
        refresh_study(index, location)
        before = index.load_summaries()

    def die(*_arguments: object, **_more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, open_index(root) as index:
        patch.setattr(*((index, "put_runs") if moment == "before it begins" else (refresh, "apply_changes")), die)
        with pytest.raises(KeyboardInterrupt):
            index.load_series("study/a", "loss")
    with open_index(root) as index:
        refresh_study(index, location)
        assert losses(index, "study/a") == [3.0, 1.0, 2.0]
        assert index.load_summaries() == before
        assert refresh_study(index, location) == 0


def test_a_run_that_is_gone_gives_an_error_and_not_an_empty_series(root: Path, location: StudyLocation) -> None:
    with open_index(root) as index:
        refresh_study(index, location)
        (root / "study" / "a").rename(root / "elsewhere")
        with pytest.raises(InfrastructureError, match="study/a"):
            index.load_series("study/a", "loss")
        assert losses(index, "study/b")[0] == 3.0


def test_what_another_process_had_begun_to_store_is_completed(
    root: Path, location: StudyLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stored one of the two files of a run between our look and our writing, and died."""
    with open_index(root) as index, open_index(root) as other:
        summarise = index.add_summaries

        def overtaken(key: str, *more: Any) -> None:
            if key == "study/c":
                source, _ = find_sources(str(root / key), SPEC)
                Follower(other, key, str(root / key), source).read(other, final=True)
            summarise(key, *more)

        monkeypatch.setattr(index, "add_summaries", overtaken)
        refresh_study(index, location)
        assert index.find_summarised() == ["study/a", "study/b"]
        assert losses(index, "study/c") == [2.5, 1.5]
        assert index.load_series("study/c", "acc").values.tolist() == [0.5, 0.75]


@pytest.mark.needs(compat=True)
def test_many_runs_are_read_by_two_processes_as_by_one(root: Path, location: StudyLocation) -> None:
    for number in range(250):
        write_foreign(root / "study", f"many-{number:03}", LINES.replace("3.0", f"{number}.5"))
    (root / "study" / "many-200" / "hparams.json").write_text("{")
    with open_index(root) as index:
        refresh_study(index, location)
        in_two = [row._replace(stamp=0.0) for row in index.load_runs()], index.load_summaries()
        index.clear()
        blocker = threading.Event()
        thread = threading.Thread(target=blocker.wait)  # what has threads does not fork
        thread.start()
        try:
            refresh_study(index, location)
        finally:
            blocker.set()
            thread.join()
        assert ([row._replace(stamp=0.0) for row in index.load_runs()], index.load_summaries()) == in_two
    assert len(in_two[0]) == 253
    assert in_two[1]["study/many-249"]["loss"].max == 249.5
    assert "hparams.json" in next(row.reason for row in in_two[0] if row.name == "many-200")


def test_a_run_that_is_not_over_is_followed_by_its_points(root: Path, location: StudyLocation) -> None:
    (root / "study" / "c").rename(root / "elsewhere")
    write_own(root / "study", "loss 1.5\nloss")
    with open_index(root) as index:
        load_fresh_table(index, [location], CollectingConsole())
        assert "study/c" not in index.find_summarised()
        assert losses(index, "study/c") == [1.5]


@pytest.mark.needs(compat=True)
def test_status_shows_what_is_not_stored_and_queries_of_points_store_it(root: Path) -> None:
    def assay(*arguments: str) -> str:
        done = call_assay([*arguments, "--root", str(root)], cwd=root, env=os.environ, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def count_summarised() -> int:
        found: int = json.loads(assay("index", "status", "--json"))[0]["summarised"]
        return found

    assay("sum", "study")
    assert count_summarised() == 3
    assert "; those of 3 runs are stored when" in assay("index", "status")
    assert json.loads(assay("index", "query", "SELECT count(*) AS n FROM metrics", "--json")) == [{"n": 6}]
    assert count_summarised() == 3
    assert json.loads(assay("index", "query", "SELECT count(*) AS n FROM Chunks", "--json")) == [{"n": 6}]
    assert "are stored when" not in assay("index", "status")
    assay("index", "rebuild")
    assert count_summarised() == 0
