from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.contracts.index import IndexContract, put_and_fail, put_points, row

from assay.errors import InfrastructureError
from assay.record.index import buffer, packing, schema
from assay.record.index.base import Cursor
from assay.record.index.sqlite import SqliteIndex, open_index
from assay.system.files import index_path


@dataclass
class SqliteStore:
    path: Path

    @property
    def opener(self) -> str:
        return f"SqliteIndex({str(self.path)!r})"

    def open(self) -> SqliteIndex:
        return SqliteIndex(self.path)


class TestSqliteIndex(IndexContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> SqliteStore:
        return SqliteStore(tmp_path / "cache" / "index.sqlite3")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index.sqlite3"


@pytest.fixture
def index(path: Path) -> Iterator[SqliteIndex]:
    with SqliteIndex(path) as opened:
        yield opened


def count_rows(index: SqliteIndex, table: str) -> int:
    return int(index._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_a_new_file_is_not_a_reset(path: Path) -> None:
    with SqliteIndex(path) as index:
        assert (index.was_reset, index.reset_reason, index.is_temporary) == (False, "", False)
        assert index._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_an_index_opens_again_with_what_it_held(path: Path) -> None:
    with SqliteIndex(path) as index:
        index.put_runs([row()])
        put_points(index, "grid/a", [1.0])
    with SqliteIndex(path) as index:
        assert not index.was_reset
        assert [one.key for one in index.load_runs()] == ["grid/a"]
        put_points(index, "grid/a", [2.0])
        assert index.load_summaries()["grid/a"]["loss"].mean == 1.5


def test_hostile_paths_are_ordinary(hostile_path: Path) -> None:
    with SqliteIndex(hostile_path / "i.sqlite3", hostile_path) as index:
        index.put_runs([row()])
        stored = index._db.execute("SELECT value FROM about WHERE name = 'root'").fetchone()[0]
    assert stored == str(hostile_path)
    with SqliteIndex(hostile_path / "i.sqlite3") as index:
        assert len(index.load_runs()) == 1


@pytest.mark.parametrize("statement", ["PRAGMA user_version = 99", "PRAGMA user_version = 0"])
def test_another_version_is_set_aside_and_made_again(path: Path, statement: str) -> None:
    with SqliteIndex(path) as index:
        index.put_runs([row()])
        index._db.execute(statement)
    with SqliteIndex(path) as index:
        assert index.was_reset
        assert "format" in index.reset_reason
        assert index.load_runs() == []
        index.put_runs([row("grid/b")])
    with closing(sqlite3.connect(f"{path}.aside")) as aside:
        assert aside.execute("SELECT key FROM runs").fetchall() == [("grid/a",)]
    with SqliteIndex(path) as index:
        assert not index.was_reset
        assert [one.key for one in index.load_runs()] == ["grid/b"]


@pytest.mark.parametrize(
    "damage",
    [b"this is not a database" * 100, b"SQLite format 3\0" + b"\xff" * 5000],
    ids=["text", "header only"],
)
def test_a_damaged_file_is_set_aside_and_made_again(path: Path, damage: bytes) -> None:
    path.write_bytes(damage)
    with SqliteIndex(path) as index:
        assert index.was_reset
        assert "damaged" in index.reset_reason
        index.put_runs([row()])
        assert len(index.load_runs()) == 1
    assert Path(f"{path}.aside").read_bytes() == damage


def drop_runs(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE runs")


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: os.truncate(path, 8192 + 100),
        lambda path: path.write_bytes(path.read_bytes().replace(b"CREATE TABLE runs", b"CREATE T\xccBLE runs")),
        drop_runs,
    ],
    ids=["it lost its end", "a schema that SQLite quotes", "without its tables"],
)
def test_an_index_that_was_damaged_is_set_aside_and_made_again(path: Path, damage: Callable[[Path], object]) -> None:
    with SqliteIndex(path) as index:
        index.put_runs([row()])
    damage(path)
    with SqliteIndex(path) as index:
        assert "damaged" in index.reset_reason
        assert index.load_runs() == []


def test_a_second_damage_replaces_what_was_set_aside(path: Path) -> None:
    for text in (b"first damage" * 100, b"second damage" * 100):
        path.write_bytes(text)
        with SqliteIndex(path) as index:
            assert index.was_reset
    assert Path(f"{path}.aside").read_bytes().startswith(b"second")
    assert sorted(os.listdir(path.parent)) == ["index.sqlite3", "index.sqlite3.aside", "index.sqlite3.lock"]


def test_somebody_elses_database_is_set_aside(path: Path) -> None:
    with closing(sqlite3.connect(path)) as foreign:
        foreign.execute("CREATE TABLE precious (x)")
    with SqliteIndex(path) as index:
        assert index.reset_reason == "it is not an index of Assay"


@pytest.mark.parametrize("wal", [False, True])
def test_a_creator_killed_half_way_leaves_nothing_to_reset(path: Path, wal: bool) -> None:
    path.touch()
    if wal:
        half = sqlite3.connect(path)
        half.execute("PRAGMA journal_mode = WAL")
        half.close()
    with SqliteIndex(path) as index:
        assert not index.was_reset
        index.put_runs([row()])


def test_a_handle_that_is_open_during_a_reset_goes_on_without_disturbing(path: Path) -> None:
    with SqliteIndex(path) as old:
        old.put_runs([row("grid/old")])
        old._db.execute("PRAGMA user_version = 99")
        with SqliteIndex(path) as new:
            assert new.was_reset
            old.put_runs([row("grid/older")])
            new.put_runs([row("grid/new")])
            assert [one.key for one in new.load_runs()] == ["grid/new"]
    with SqliteIndex(path) as again:
        assert [one.key for one in again.load_runs()] == ["grid/new"]


def test_a_file_that_breaks_in_use_is_set_aside_with_advice(path: Path) -> None:
    with SqliteIndex(path) as index:
        index.put_runs([row(f"grid/{number}", reason="x" * 200) for number in range(2000)])
    with SqliteIndex(path) as index:
        with open(path, "r+b") as file:  # damage everything after the first pages
            file.seek(2 * 8192)
            file.write(b"\xff" * (os.path.getsize(path) - 2 * 8192))
        with pytest.raises(InfrastructureError, match="malformed") as caught:
            index.load_runs()
        assert "built again" in (caught.value.hint or "")
        assert index.was_reset
        assert "damaged" in index.reset_reason
        assert index.load_runs() == []
        index.put_runs([row()])
        assert len(index.load_runs()) == 1
    assert os.path.exists(f"{path}.aside")


@pytest.mark.parametrize("read", ["load_runs", "load_table", "load_summaries", "load_metric_names", "load_studies"])
def test_a_run_without_its_compact_copy_is_damage(path: Path, read: str) -> None:
    """Without the error, this would be a run without metrics, or no run."""
    with SqliteIndex(path) as index:
        index.put_runs([row("grid/a"), row("grid/b")])
        put_points(index, "grid/a", [1.0])
        index._db.execute("DELETE FROM run_cache WHERE run = 1")
        with pytest.raises(InfrastructureError, match="damaged"):
            getattr(index, read)()


def test_points_of_a_run_without_its_compact_copy_are_not_added(path: Path) -> None:
    with SqliteIndex(path) as index:
        put_points(index, "grid/a", [1.0])
        index._db.execute("DELETE FROM run_cache")
        with pytest.raises(InfrastructureError, match="damaged"):
            index.add_columns("grid/a", "a.log", Cursor(2), {"loss": (None, [2.0], None)}, expected_offset=1)


def test_the_index_of_a_root_lies_in_the_cache_and_knows_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "runs"
    root.mkdir()
    (tmp_path / "link").symlink_to(root)
    with open_index(root) as index:
        index.put_runs([row()])
        assert index.path == index_path(root, os.environ)
        assert index.path.startswith(str(tmp_path / "cache" / "index"))
    with open_index(tmp_path / "link") as index:  # another path to the same root
        assert [one.key for one in index.load_runs()] == ["grid/a"]
        assert index._db.execute("SELECT value FROM about").fetchall() == [(str(root),)]
    with open_index(tmp_path / "other") as index:
        assert index.load_runs() == []
    assert os.listdir(root) == []
    assert (tmp_path / "cache" / "index").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("folder", ["file/cache", "cache"], ids=["not writable", "with a folder of the file's name"])
def test_without_a_usable_cache_the_index_is_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / folder))
    if folder == "cache":
        os.makedirs(index_path(tmp_path, os.environ))
    with open_index(tmp_path) as index:
        assert index.is_temporary
        assert not index.was_reset
        index.put_runs([row()])
        put_points(index, "grid/a", [1.0])
        assert index.load_table().metrics["loss"].last[0] == 1.0
    assert blocked.read_bytes() == b""


def test_a_path_that_cannot_be_opened_is_said_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match="cannot be opened") as caught:
        SqliteIndex(tmp_path / "file" / "index.sqlite3")
    assert "ASSAY_CACHE_DIR" in (caught.value.hint or "")


def test_a_file_that_may_not_be_written_cannot_be_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteIndex(path) as index:
        index.put_runs([row()])
    monkeypatch.setattr(schema.os, "access", lambda *_: False)  # root may write everything, so pretend that it may not
    with pytest.raises(InfrastructureError, match="not writable"):
        SqliteIndex(path)


def test_small_chunks_are_merged(index: SqliteIndex) -> None:
    most = 0
    for number in range(400):
        put_points(index, "grid/a", [float(number)], source="ab"[number % 2])
        most = max(most, count_rows(index, "chunks"))
    assert most <= packing.MAX_LOOSE_CHUNKS + 1
    assert list(index.load_series("grid/a", "loss").values) == [float(number) for number in range(400)]


def test_a_full_chunk_is_not_written_again(index: SqliteIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.record.index.packing.FULL_CHUNK_POINTS", 100)
    for number in range(400):
        put_points(index, "grid/a", [float(number)])
    sizes = [size // 8 for (size,) in index._db.execute("SELECT length(value_data) FROM chunks ORDER BY chunk")]
    assert sizes[:3] == [130, 130, 130]  # 65 loose chunks, twice, make a full one
    assert list(index.load_series("grid/a", "loss").values) == [float(number) for number in range(400)]
    assert list(index.load_series("grid/a", "loss").steps) == [float(number) for number in range(400)]


def test_a_batch_makes_one_chunk_of_many_calls(index: SqliteIndex) -> None:
    with index.batch():
        for number in range(50):
            put_points(index, "grid/a", [float(number)])
    assert count_rows(index, "chunks") == 1


def test_columns_without_anything_take_no_room(index: SqliteIndex) -> None:
    index.add_columns("grid/a", "a.log", Cursor(1), {"loss": (None, [1.0] * 100, None)}, expected_offset=0)
    sizes = index._db.execute("SELECT length(step_data), length(value_data), length(time_data) FROM chunks").fetchall()
    assert sizes == [(0, 800, 0)]


def test_forgetting_leaves_no_rows_behind(index: SqliteIndex) -> None:
    put_points(index, "grid/a", [1.0], source="a.log")
    put_points(index, "grid/a", [1.0], metric="only", source="a.log")
    put_points(index, "grid/a", [1.0], source="b.log")
    index.forget_points("grid/a", "a.log")
    assert count_rows(index, "metric_summaries") == 1, "the metric that only a.log had is gone"
    index.forget_points("grid/a", "b.log")
    assert [count_rows(index, table) for table in ("chunks", "cursors", "metric_summaries")] == [0, 0, 0]
    put_points(index, "grid/a", [1.0])
    index.forget_runs(["grid/a"])
    tables = ("chunks", "cursors", "metric_summaries", "run_cache", "runs")
    assert [count_rows(index, table) for table in tables] == [0] * 5


def test_a_very_large_batch_writes_by_itself(index: SqliteIndex, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer, "MAX_WAITING", 1000)
    many = (None, [1.0] * 1000, None)
    with SqliteIndex(path) as other, index.batch() as refused:
        for number in range(9):
            index.put_runs([row(f"grid/{number}")])
        assert other.load_runs() == []
        index.put_runs([row("grid/9")])
        assert len(other.load_runs()) == 10
        put_points(other, "grid/1", [5.0])
        assert not index.add_columns("grid/1", "a.log", Cursor(1), {"loss": many}, expected_offset=0)
        assert refused == [("grid/1", "a.log")]
        assert index.add_columns("grid/2", "a.log", Cursor(1), {"loss": many}, expected_offset=0)
        assert other.load_summaries()["grid/2"]["loss"].count == 1000


@pytest.fixture
def blocker(path: Path, index: SqliteIndex) -> Iterator[sqlite3.Connection]:
    """Another process that holds the write lock; the test's index does not wait for it."""
    index._db.execute("PRAGMA busy_timeout = 0")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield connection
    connection.close()


def test_a_locked_index_can_still_be_read(index: SqliteIndex, blocker: sqlite3.Connection) -> None:
    assert index.load_runs() == []


def test_a_write_that_fails_says_so_and_can_be_repeated(index: SqliteIndex, blocker: sqlite3.Connection) -> None:
    with pytest.raises(InfrastructureError, match="locked") as caught:
        put_points(index, "grid/a", [1.0])
    assert "another process" in (caught.value.hint or "")
    blocker.execute("ROLLBACK")
    put_points(index, "grid/a", [1.0])
    assert index.load_summaries()["grid/a"]["loss"].count == 1


def test_what_a_batch_could_not_write_waits_for_the_next_flush(index: SqliteIndex, blocker: sqlite3.Connection) -> None:
    with index.batch():
        index.put_runs([row("grid/a")])
        put_points(index, "grid/a", [1.0])
        with pytest.raises(InfrastructureError, match="locked"):
            index.flush()
        put_points(index, "grid/a", [2.0])
        blocker.execute("ROLLBACK")
        assert index.flush() == []
    assert [one.key for one in index.load_runs()] == ["grid/a"]
    assert list(index.load_series("grid/a", "loss").values) == [1.0, 2.0]


def test_the_users_error_is_not_hidden_by_ours(index: SqliteIndex, blocker: sqlite3.Connection) -> None:
    with pytest.raises(ZeroDivisionError):
        put_and_fail(index, row("grid/a"))
    blocker.execute("ROLLBACK")
    index.put_runs([row("grid/b")])
    assert sorted(one.key for one in index.load_runs()) == ["grid/a", "grid/b"]


def test_a_full_disk_is_said_with_what_to_do_and_undone_whole(index: SqliteIndex) -> None:
    put_points(index, "grid/a", [1.0])
    pages = index._db.execute("PRAGMA page_count").fetchone()[0]
    index._db.execute(f"PRAGMA max_page_count = {pages}")
    new_metric = {"loss": (None, [1.0], None), "new": (None, [0.5] * 100_000, None)}
    with pytest.raises(InfrastructureError, match="full") as caught:
        index.add_columns("grid/a", "a.log", Cursor(2), new_metric, expected_offset=1)
    assert "free space" in (caught.value.hint or "")
    assert index.load_summaries()["grid/a"]["loss"].count == 1
    assert index.load_cursor("grid/a", "a.log").offset == 1
    index._db.execute("PRAGMA max_page_count = 1000000")
    assert index.add_columns("grid/a", "a.log", Cursor(2), new_metric, expected_offset=1)
    assert index.load_metric_names() == ["loss", "new"]  # the number of `new` was rolled back, and given again


def test_the_garbage_collector_is_left_as_it_was(index: SqliteIndex) -> None:
    import gc

    index.load_runs()
    assert gc.isenabled()
    gc.disable()
    try:
        index.load_table()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_older_index_is_announced_when_it_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / "cache"))
    said: list[str] = []
    with open_index(tmp_path, said.append) as index:
        index._db.execute("PRAGMA user_version = 3")
    assert said == []
    open_index(tmp_path, said.append).close()
    assert len(said) == 1
    assert "format 3" in said[0]
    assert "run directories" in said[0]
