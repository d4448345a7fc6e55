from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from assay.record.folders import find_changes, find_foreign_dirs, find_run_dirs
from assay.record.index.base import RunRow
from assay.values.state import State

OLD = 1_000_000.0
NEWER = 1_000_100.0


def make(study: Path, name: str, *files: str, at: float = OLD) -> Path:
    """Make a folder with these files, all of the same age."""
    folder = study / name
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("")
        os.utime(folder / file, (at, at))
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder, (at, at))
    return folder


def row(name: str, *, state: State = State.DONE, stamp: float = OLD, origin: str = "assay", attempt: int = 1) -> RunRow:
    made = (OLD, ()) if origin == "assay" else (None, ("metrics.csv", "stat"))
    known = RunRow(f"s/{name}", "s", name, "", state, attempt, {}, origin=origin, stamp=stamp)
    return known._replace(created_at=made[0], files=made[1])


def names(study: Path, *rows: RunRow) -> list[str]:
    return [os.path.basename(change.path) for change in find_changes(str(study), "s", rows).changed]


def touch(path: Path, at: float) -> None:
    os.utime(path, (at, at))


def test_runs_and_foreign_folders_by_name(tmp_path: Path) -> None:
    make(tmp_path, "b", "run.json")
    make(tmp_path, "a", "run.json", "hparams.json")
    make(tmp_path, "x", "metrics.csv")
    make(tmp_path, "m", "param")
    make(tmp_path, "nothing", "notes.txt")
    make(tmp_path, ".assay", "run.json")
    make(tmp_path, ".assay/.tmp-x", "run.json")  # a run that is being made
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "foreign link").symlink_to("x")
    assert [os.path.basename(path) for path in find_run_dirs(str(tmp_path))] == ["a", "b"]
    assert [os.path.basename(path) for path in find_foreign_dirs(str(tmp_path))] == ["m", "x"]


@pytest.mark.parametrize("find", [find_run_dirs, find_foreign_dirs])
def test_no_study_no_runs(tmp_path: Path, find) -> None:
    (tmp_path / "file").write_text("")
    assert list(find(str(tmp_path / "missing"))) == []
    assert list(find(str(tmp_path / "file"))) == []


def test_a_new_run_is_a_change_and_nothing_else_is(tmp_path: Path) -> None:
    make(tmp_path, "new", "run.json")
    make(tmp_path, "foreign", "hparams.json")
    make(tmp_path, "nothing", "notes.txt")
    changes = find_changes(str(tmp_path), "s", [])
    assert [(os.path.basename(c.path), c.stamp, c.is_ours) for c in changes.changed] == [
        ("foreign", OLD, False),
        ("new", OLD, True),
    ]
    assert changes.gone == []


def test_what_is_over_and_untouched_is_left_alone(tmp_path: Path) -> None:
    make(tmp_path, "a", "run.json")
    make(tmp_path, "b", "hparams.json", "metrics.csv")
    changes = find_changes(str(tmp_path), "s", [row("a"), row("b", origin="runx")])
    assert not changes
    assert changes == ([], [])


def test_a_touched_run_is_read_again(tmp_path: Path) -> None:
    touch(make(tmp_path, "a", "run.json"), NEWER)
    assert names(tmp_path, row("a")) == ["a"]


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING])
def test_a_run_that_is_not_over_is_always_read(tmp_path: Path, state: State) -> None:
    make(tmp_path, "a", "run.json")
    assert names(tmp_path, row("a", state=state, stamp=NEWER)) == ["a"]


@pytest.mark.parametrize(
    ("origin", "files", "growing"),
    [("runx", ("hparams.json", "metrics.csv"), "metrics.csv"), ("mlrunner", ("param", "stat"), "stat")],
)
def test_a_file_that_changes_is_noticed_though_its_folder_is_old(
    tmp_path: Path, origin: str, files: tuple[str, ...], growing: str
) -> None:
    folder = make(tmp_path, "x", *files)
    assert names(tmp_path, row("x", origin=origin)) == []
    touch(folder / growing, NEWER)
    assert names(tmp_path, row("x", origin=origin)) == ["x"]


def test_only_files_that_were_there_are_looked_at_again(tmp_path: Path) -> None:
    make(tmp_path, "x", "hparams.json", "metrics.csv")
    make(tmp_path, "m", "param", "stat")
    changes = find_changes(str(tmp_path), "s", [])
    assert [change.files for change in changes.changed] == [("stat",), ("metrics.csv",)]
    known = row("x", origin="runx")._replace(files=("metrics.csv",))
    assert names(tmp_path, known, row("m", origin="mlrunner")) == []
    (tmp_path / "x" / "stat").write_text("train: failed\n")  # this also changes the folder
    assert names(tmp_path, known, row("m", origin="mlrunner")) == ["x"]


def test_a_script_that_nobody_supervises_is_noticed_while_it_logs(tmp_path: Path) -> None:
    folder = make(tmp_path, "a", "run.json", "metrics/main.jsonl")
    assert names(tmp_path, row("a", attempt=0)) == []
    touch(folder / "metrics" / "main.jsonl", NEWER)
    assert names(tmp_path, row("a", attempt=0)) == ["a"]
    assert names(tmp_path, row("a", attempt=1)) == []  # the supervisor has read the run to its end


def test_a_folder_that_is_gone_or_emptied_is_forgotten(tmp_path: Path) -> None:
    make(tmp_path, "kept", "run.json")
    touch(make(tmp_path, "emptied"), NEWER)
    make(tmp_path, "new", "run.json")
    changes = find_changes(str(tmp_path), "s", [row("kept"), row("emptied"), row("removed")])
    assert [os.path.basename(change.path) for change in changes.changed] == ["new"]
    assert changes.gone == ["s/emptied", "s/removed"]


def test_a_file_changed_just_now_is_looked_at_once_more(tmp_path: Path) -> None:
    """The clock may not have ticked since the first change: a second one would have the same time."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "metrics.csv").write_text("")
    (change,) = find_changes(str(tmp_path), "s", []).changed
    assert change.stamp < os.stat(tmp_path / "x" / "metrics.csv").st_mtime
    assert names(tmp_path, row("x", origin="runx", stamp=change.stamp)) == ["x"]


def test_a_run_that_was_read_before_the_clock_went_back_is_read_again(tmp_path: Path) -> None:
    make(tmp_path, "x", "run.json")
    assert names(tmp_path, row("x", stamp=time.time())) == []
    assert names(tmp_path, row("x", stamp=time.time() + 3600)) == ["x"]


def test_a_study_that_is_gone_has_lost_its_runs(tmp_path: Path) -> None:
    assert find_changes(str(tmp_path / "missing"), "s", [row("a")]) == ([], ["s/a"])
