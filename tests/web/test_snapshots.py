"""Studies in memory: what is shown is what there is, also after a pause and beside something damaged."""

from __future__ import annotations

import shutil
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.study.workbench import BAD, GOOD, Bench
from tests.web.conftest import open_client

from assay.errors import NotFoundError
from assay.values.state import State
from assay.web import snapshots
from assay.web.snapshots import Snapshots


@pytest.fixture
def root(served: Bench, tmp_path: Path) -> Path:
    """Two studies of four runs."""
    for name in ("one", "two"):
        shutil.copytree(served.root / "fit", tmp_path / "runs" / name)
    return tmp_path / "runs"


@pytest.fixture
def held(root: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshots:
    """Without its thread: nobody has looked for a while."""
    held = Snapshots((str(root),))
    for name in ("one", "two"):
        assert len(held.load(name).table.rows) == 4
    monkeypatch.setattr(snapshots, "_OLD_S", 0.0)
    return held


def test_after_a_pause_the_first_look_is_not_an_old_one(held: Snapshots, root: Path) -> None:
    shutil.rmtree(root / "one" / GOOD)
    assert not held.holds("one")
    assert len(held.load("one").table.rows) == 3


def test_a_study_that_was_deleted_is_not_found(held: Snapshots, root: Path) -> None:
    shutil.rmtree(root / "one")
    with pytest.raises(NotFoundError, match="one"):
        held.load("one")
    assert len(held.load("two").table.rows) == 4


def test_a_run_that_cannot_be_read_keeps_no_other_from_being_seen(held: Snapshots, root: Path) -> None:
    file = root / "one" / BAD / "run.json"
    file.write_text(file.read_text().replace('"ordinal":', f'"ordinal": {"9" * 5000}, "was":', 1))
    assert "9999" in file.read_text()
    assert held.load("one").counts[State.DAMAGED] == 1
    shutil.rmtree(root / "two" / GOOD)
    assert len(held.load("two").table.rows) == 3
    assert set(held.load_studies()) == {"one", "two"}


def test_a_bug_in_one_study_is_said_there_and_the_others_are_refreshed(
    held: Snapshots, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_changes = snapshots.find_changes

    def fail(folder: str, name: str, rows: object) -> object:
        if name == "one":
            raise KeyError("nobody expects this")
        return find_changes(folder, name, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshots, "find_changes", fail)
    assert held.load("one").problems == ("a bug in Assay: KeyError: 'nobody expects this'",)
    shutil.rmtree(root / "two" / GOOD)
    assert len(held.load("two").table.rows) == 3


def test_few_threads_hold_points_at_once(held: Snapshots, root: Path) -> None:
    """A million points take tens of megabytes while they are read: of many readers of long curves the others wait."""
    inside, most, lock = 0, 0, threading.Lock()

    def read(run: str) -> float:
        nonlocal inside, most
        with held.read_points(str(root)) as index:
            with lock:
                inside += 1
                most = max(most, inside)
            time.sleep(0.02)
            series = index.load_series(f"one/{run}", "loss")
            with lock:
                inside -= 1
        return series.values[-1]

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(read, [GOOD] * 8))) == 1
    assert most == 2


def test_a_long_curve_takes_memory_only_while_it_is_made(root: Path) -> None:
    count = 100_000
    run = root / "one" / GOOD / "metrics"
    run.mkdir(exist_ok=True)
    (run / "1-1-1.jsonl").write_text("".join(f'{{"step":{i},"a":{i % 97}}}\n' for i in range(count)))
    with open_client(root) as client:
        address = "/api/studies/one/curves?metric=a"
        assert client.get(address).json()["curves"][0]["points"] == count
        tracemalloc.start()
        for rows in range(1, 9):  # not from the answers that are kept
            assert client.get(f"{address}&rows={rows}").status_code == 200
        left, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (
        peak < 8 * 8 * count
    )  # three columns of 8 bytes, as stored and as arrays; objects for all points would be 4 more
    assert left < 8 * count
