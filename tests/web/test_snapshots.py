"""Studies in memory: what is shown is what there is, also after a pause and beside something damaged."""

from __future__ import annotations

import shutil
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.finished_study import BAD, GOOD, Bench, until
from tests.web_client import open_client

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
    """Snapshots without their thread: nothing was read for a while."""
    held = Snapshots((str(root),))
    for name in ("one", "two"):
        assert len(held.load(name).table.rows) == 4
    monkeypatch.setattr(snapshots, "_OLD_S", 0.0)
    return held


@pytest.fixture
def two(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshots:
    """Two roots, both with a study `one`: of four runs, and of three. What was read is not old."""
    shutil.copytree(root / "one", tmp_path / "second" / "one")
    shutil.rmtree(tmp_path / "second" / "one" / GOOD)
    monkeypatch.setattr(snapshots, "_OLD_NAMES_S", 0.0)
    held = Snapshots((str(root), str(tmp_path / "second")))
    assert [len(held.load(name).table.rows) for name in ("one", "one~2")] == [4, 3]
    return held


def test_the_word_of_a_deleted_study_means_the_one_of_the_next_root(two: Snapshots, root: Path) -> None:
    shutil.rmtree(root / "one")
    assert not two.holds("one")
    assert len(two.load("one").table.rows) == 3
    with pytest.raises(NotFoundError, match="one~2"):
        two.load("one~2")
    assert two.load_studies()["one"][0] == two.load("one").location


def test_a_study_that_was_renamed_is_found_by_its_new_name_alone(two: Snapshots, root: Path) -> None:
    (root / "one").rename(root / "other")
    assert len(two.load("other").table.rows) == 4
    assert two.load("one").location.root != str(root)
    (root.parent / "second" / "one").rename(root.parent / "second" / "third")
    with pytest.raises(NotFoundError, match="one"):
        two.load("one")


def test_a_root_that_is_not_there_is_named(two: Snapshots, root: Path) -> None:
    root.rename(root.parent / "elsewhere")
    (root.parent / "second" / "one").rename(root.parent / "second" / "third")
    with pytest.raises(NotFoundError) as caught:
        two.load("one")
    assert str(root) in (caught.value.hint or "")
    assert set(two.load_studies()) == {"third"}
    with open_client(root, root.parent / "second") as client:
        page = client.get("/studies").text
        assert "is not there" in page
        assert str(root) in page
        assert "third" in page
        assert client.get("/studies/one").status_code == 404


def test_the_thread_forgets_what_a_word_no_longer_means(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_OLD_NAMES_S", 1000.0)  # a request does not look
    held = Snapshots((str(root),))
    held.load("one")
    held.start()
    try:
        (root / "one").rename(root / "other")
        until(lambda: not held.holds("one"), "it is forgotten")
        with pytest.raises(NotFoundError):
            held.load("one")
    finally:
        held.close()


def test_after_a_pause_the_first_look_is_not_an_old_one(held: Snapshots, root: Path) -> None:
    shutil.rmtree(root / "one" / GOOD)
    assert not held.holds("one")
    assert len(held.load("one").table.rows) == 3
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
    count = 45_000
    run = root / "one" / GOOD / "metrics"
    run.mkdir(exist_ok=True)
    (run / "1-1-1.jsonl").write_text("".join(f'{{"step":{i},"a":{i % 97}}}\n' for i in range(count)))
    with open_client(root) as client:
        address = "/api/studies/one/curves?metric=a"
        assert client.get(address).json()["curves"][0]["points"] == count
        tracemalloc.start()
        for rows in range(1, 4):  # not from the answers that are kept
            assert client.get(f"{address}&rows={rows}").status_code == 200
        left, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    # three columns of 8 bytes, as stored and as arrays; objects for all points would be 4 more
    assert peak < 8 * 8 * count
    assert left < 8 * count


def test_an_index_that_was_deleted_is_filled_again(held: Snapshots, root: Path) -> None:
    with held.open_index(str(root)) as index:
        before = list(index.load_series(f"one/{GOOD}", "loss").values)
        assert before
        place = Path(index.place)
    for path in place.parent.glob(f"{place.name}*"):
        path.unlink()
    held.load("one")
    with held.open_index(str(root)) as index:
        assert list(index.load_series(f"one/{GOOD}", "loss").values) == before
