"""The index in PostgreSQL, on a real server."""

from __future__ import annotations

import re
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from math import nan
from pathlib import Path

import pytest
from tests.contracts.index import IndexContract, full_row, put_points, row
from tests.postgres import PostgresServer, run_postgres
from tests.study_processes import until

from assay.errors import InfrastructureError, MissingExtraError, UsageError
from assay.exchange import postgres_index
from assay.exchange.postgres_index import PostgresIndex, name_schema, parse_address
from assay.follow.opening import open_index
from assay.follow.refresh import refresh_root
from assay.record.index import schema
from assay.record.index.base import Cursor, VerdictRow

pytestmark = pytest.mark.services("postgres")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with run_postgres() as running:
        yield running


@dataclass
class PostgresStore:
    address: str
    root: Path

    @property
    def opener(self) -> str:
        return f"load('assay.exchange.postgres_index:PostgresIndex')({self.address!r}, {str(self.root)!r})"

    def open(self) -> PostgresIndex:
        return PostgresIndex(self.address, self.root)


@pytest.fixture
def store(server: PostgresServer, tmp_path: Path) -> PostgresStore:
    return PostgresStore(server.address(), tmp_path)


class TestPostgresIndex(IndexContract):
    @pytest.fixture
    def store(self, server: PostgresServer, tmp_path: Path) -> PostgresStore:
        return PostgresStore(server.address(), tmp_path)


def read_plain(server: PostgresServer, root: Path, query: str) -> list[tuple[object, ...]]:
    return server.sql(f"SET search_path TO {name_schema(root)}", query)


# ---------------------------------------------------------------- as a person with psql meets it


def test_the_plain_columns_say_what_the_row_says(server: PostgresServer, store: PostgresStore) -> None:
    given_row = full_row()
    with store.open() as index:
        index.put_runs([given_row])
    ((key, state, commit, rss, tags),) = read_plain(
        server, store.root, "SELECT key, state, git_commit, peak_rss_bytes, tags FROM runs"
    )
    assert (key, state, commit, rss, tags) == (given_row.key, "timeout", "def", 1 << 40, ["good", "größe"])
    found = dict(read_plain(server, store.root, "SELECT parameter, type || ':' || value FROM parameters"))
    assert found["lr"] == "real:0.0001"
    assert found["n"] == "integer:3"
    assert found["text"] == "text:ü\n\ufffd'"
    assert read_plain(server, store.root, "SELECT tag FROM tags ORDER BY tag") == [("good",), ("größe",)]


def test_nan_is_null_and_odd_values_never_break_a_query(server: PostgresServer, store: PostgresStore) -> None:
    with store.open() as index:
        odd = {"a": nan, "b": "a\udcff\0", "c": 10**30, "d": Path("x"), "e": "\\u0000 \\\\u0000"}
        index.put_runs([row("grid/odd", params=odd, reason="a\udcff\0", peak_rss_bytes=10**30)])
        put_points(index, "grid/odd", [nan], metric="lo\0ss")
        assert index.load_metric_names() == ["lo\ufffdss"]
        assert index.load_series("grid/odd", "lo\0ss").values
        (mine,) = index.load_runs()
        assert (mine.reason, mine.peak_rss_bytes) == ("a\udcff\0", 10**30)
        index.add_verdicts(
            "grid", [VerdictRow(None, 1.0, "x", "F", "F", "a", "b\0", nan)], start=0, end=9, expected_offset=0
        )
    assert len(read_plain(server, store.root, "SELECT * FROM parameters")) == 5
    assert read_plain(server, store.root, "SELECT min, bad FROM metrics") == [(None, 1)]
    assert read_plain(server, store.root, "SELECT value FROM verdicts") == [(None,)]
    assert read_plain(server, store.root, "SELECT runs, done FROM studies") == [(1, 1)]


def test_roots_are_kept_apart_and_shared_by_their_path(server: PostgresServer, tmp_path: Path) -> None:
    first, second = (
        PostgresStore(server.address(), tmp_path / "Größe 'a"),
        PostgresStore(server.address(), tmp_path / "b"),
    )
    (tmp_path / "link").symlink_to(second.root)
    with first.open() as index, second.open() as other, PostgresIndex(server.address(), tmp_path / "link") as same:
        index.put_runs([row("grid/a")])
        other.put_runs([row("grid/b")])
        assert [each.key for each in index.load_runs()] == ["grid/a"]
        assert [each.key for each in same.load_runs()] == ["grid/b"]
        assert index.place.endswith(f"(schema {name_schema(first.root)})")
    ((root,),) = read_plain(server, first.root, "SELECT value FROM about WHERE name = 'root'")
    assert root == str(first.root)


# ---------------------------------------------------------------- refusals


def test_another_format_is_refused_until_it_is_built_again(server: PostgresServer, store: PostgresStore) -> None:
    with store.open() as index:
        index.put_runs([row()])
    read_plain(server, store.root, "UPDATE about SET value = '99' WHERE name = 'format'")
    with pytest.raises(InfrastructureError, match=f"format 99, this Assay uses {schema.VERSION}") as caught:
        store.open()
    assert "assay index rebuild" in (caught.value.hint or "")
    assert read_plain(server, store.root, "SELECT key FROM runs") == [("grid/a",)]
    with PostgresIndex(store.address, store.root, renew=True) as index:
        assert index.load_runs() == []
    store.open().close()


@pytest.mark.parametrize("renew", [False, True])
def test_a_schema_that_is_not_ours_is_left_alone(server: PostgresServer, store: PostgresStore, renew: bool) -> None:
    name = name_schema(store.root)
    server.sql(f"CREATE SCHEMA {name}", f"CREATE TABLE {name}.about (name TEXT, value TEXT)")
    with pytest.raises(InfrastructureError, match="not an index of Assay"):
        PostgresIndex(store.address, store.root, renew=renew)
    tables = server.sql(f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{name}'")
    assert tables == [("about",)]


@pytest.mark.parametrize(
    "call",
    [
        *(
            "pg_terminate_backend(0)",
            "pg_advisory_lock(1)",
            "pg_read_file('x')",
            "lo_create(0)",
            "\"lo_export\" (1, 'x')",
        ),
        *("set_config('transaction_read_only', 'off', false)", "query_to_xml('DELETE FROM runs', true, true, '')"),
        *("nextval('runs_run_seq')", "setval('runs_run_seq', 99)"),
        *("pg_read_file/**/('x')", "pg_read_file -- x\n('x')", "pg_read_file /* /* */ ' */ ('x')"),
        *("""U&"pg\\005fread_file"('x')""", "pg_catalog . pg_reload_conf/**/()", "$a$'$a$ || pg_reload_conf()"),
        *("E'\\'' || pg_reload_conf()", "'' || pg_reload_conf() || ''"),
        *("(SELECT count(*) FROM ts_stat('select 1'))", "table_to_xml('runs', true, true, '')"),
        *(
            "schema_to_xml('x', true, true, '')",
            "database_to_xml(true, true, '')",
            "cursor_to_xml('x', 1, true, true, '')",
        ),
    ],
)
def test_a_query_calls_nothing_that_acts(store: PostgresStore, call: str) -> None:
    with store.open() as index:
        index.put_runs([row()])
        for statement in (f"SELECT {call}", f"WITH x AS (SELECT 1) SELECT key FROM runs WHERE {call} IS NULL"):
            with pytest.raises(UsageError, match="refused"):
                index.query(statement)
        assert index.query("SELECT pg_typeof(key) AS kind FROM runs").rows == [("text",)]
        index.put_runs([row("grid/b")])
        assert index.query("SELECT max(run) FROM runs").rows == [(2,)]


@pytest.mark.parametrize(
    "expression",
    [
        "'pg_version' || 'pg_read_file(1)'",
        "1 /* pg_read_file() */ -- pg_reload_conf()",
        "$$ pg_reload_conf() $$",
        "(SELECT count(*) FROM pg_catalog.pg_class c WHERE c.relname = 'pg_version')",
        "lower('A') || log(10)",
        "1 AS pg_version",
        "E'it\\'s'",
    ],
)
def test_ordinary_queries_are_not_refused(store: PostgresStore, expression: str) -> None:
    with store.open() as index:
        assert len(index.query(f"SELECT {expression}").rows) == 1


def test_who_may_not_read_or_write_is_told_what_the_owner_gives(server: PostgresServer, store: PostgresStore) -> None:
    with store.open() as index:
        index.put_runs([row()])
        put_points(index, "grid/a", [1.0])
    server.sql("DROP ROLE IF EXISTS visitor", "CREATE ROLE visitor LOGIN PASSWORD 'visitor-password'")
    address = server.address("visitor", "visitor-password")
    with pytest.raises(InfrastructureError, match="may not read") as caught:
        PostgresIndex(address, store.root)
    given = re.findall("GRANT [^;]+", caught.value.hint or "")
    assert len(given) == 2
    server.sql(*given)
    with PostgresIndex(address, store.root) as index:
        assert [each.key for each in index.load_runs()] == ["grid/a"]
        assert list(index.load_series("grid/a", "loss").values) == [1.0]
        assert index.query("SELECT count(*) FROM runs").rows == [(1,)]
        with pytest.raises(InfrastructureError, match="permission denied") as caught:
            index.put_runs([row("grid/b")])
        assert "may only read" in (caught.value.hint or "")
    with pytest.raises(InfrastructureError, match="permission denied"):  # nor may it make another
        PostgresIndex(address, store.root / "other")
    server.sql(*re.findall("GRANT [^;)]+", caught.value.hint or ""))
    with PostgresIndex(address, store.root) as index:
        index.put_runs([row("grid/b")])
        assert index.query("SELECT count(*) FROM runs").rows == [(2,)]
    server.sql("DROP OWNED BY visitor", "DROP ROLE visitor")


def test_a_server_without_room_is_named_and_what_waits_is_written_later(
    server: PostgresServer, store: PostgresStore
) -> None:
    full = "BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END"
    with store.open() as index, index.batch():
        read_plain(
            server,
            store.root,
            f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {full} $$;"
            "CREATE TRIGGER refuse BEFORE INSERT ON chunks FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        index.put_runs([row()])
        assert index.add_columns("grid/a", "a.log", Cursor(1), {"loss": (None, [1.0], None)}, expected_offset=0)
        with pytest.raises(InfrastructureError, match="No space left on device") as caught:
            index.flush()
        assert "no disk space" in (caught.value.hint or "")
        assert read_plain(server, store.root, "SELECT key FROM runs") == []  # the whole transaction is undone
        read_plain(server, store.root, "DROP TRIGGER refuse ON chunks")
        assert index.flush() == []
        assert list(index.load_series("grid/a", "loss").values) == [1.0]


def test_what_cannot_be_reached_is_named_and_a_password_never_shown(server: PostgresServer, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="does not exist"):
        PostgresIndex(server.address(database="nowhere"), tmp_path)
    with pytest.raises(InfrastructureError, match="cannot be reached") as caught:
        PostgresIndex("postgresql://u:s3cret-word@127.0.0.1:1/db", tmp_path)
    assert "s3cret-word" not in f"{caught.value} {caught.value.hint}"
    with pytest.raises(InfrastructureError, match="password authentication failed") as caught:
        PostgresIndex(server.address(password="wr@ng-s3cret"), tmp_path)
    assert "wr@ng" not in repr(caught.value) + str(caught.value.hint)
    assert caught.value.__cause__ is None
    assert ".pgpass" in (caught.value.hint or "")
    told = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
    assert "wr@ng" not in told.replace("wr@ng-s3cret", "", told.count('password="wr@ng-s3cret"'))
    assert "s3cret" not in repr(parse_address(server.address(password="wr@ng-s3cret")))


# ---------------------------------------------------------------- how often the server is asked


def test_forty_new_runs_need_no_more_questions_than_two(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_INDEX", server.address())
    plain = postgres_index._Connection.execute
    asked: list[str] = []

    def execute(self: postgres_index._Connection, sql: str, parameters: tuple[object, ...] = ()) -> object:
        asked.append(sql)
        return plain(self, sql, parameters)

    counts = []
    for number in (2, 40):
        root = tmp_path / str(number)
        for run in range(number):
            (root / "study" / f"run-{run}").mkdir(parents=True)
            (root / "study" / f"run-{run}" / "metrics.csv").write_text("val,loss,1.5,epoch,0,timestamp,1.0\n" * 3)
        with monkeypatch.context() as patch, open_index(root) as index:
            patch.setattr(postgres_index._Connection, "execute", execute)
            steps = []
            for stores_points in (False, None, True):  # summaries, then their points, then all of it again
                asked.clear()
                if stores_points is None:
                    assert len(index.load_series("study/run-1", "loss").values) == 3
                else:
                    index.clear()
                    assert refresh_root(index, str(root), stores_points=stores_points) == number
                steps.append(len(asked))
            assert len(index.load_series("study/run-1", "loss").values) == 3
            counts.append(steps)
    assert counts[0] == counts[1]


# ---------------------------------------------------------------- restarts


def test_a_restart_between_two_calls_is_not_noticed(server: PostgresServer, store: PostgresStore) -> None:
    with store.open() as index:
        put_points(index, "grid/a", [1.0])
        for number, act in enumerate((lambda: index.load_cursor("grid/a", "a.log"), index.load_runs, index.load_table)):
            server.stop()
            server.start()
            act()
            put_points(index, "grid/a", [float(number)])
        server.stop()
        server.start()
        put_points(index, "grid/a", [9.0])
        assert list(index.load_series("grid/a", "loss").values) == [1.0, 0.0, 1.0, 2.0, 9.0]


def test_what_was_being_written_when_the_server_went_is_stored_once(
    server: PostgresServer, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are ended in the middle of transactions, and after the commit before its answer."""
    plain = postgres_index._Connection.execute
    calls, commits = 0, 0

    def execute(self: postgres_index._Connection, sql: str, parameters: tuple[object, ...] = ()) -> object:
        nonlocal calls, commits
        calls, commits = calls + 1, commits + (sql == "COMMIT")
        is_late = sql == "COMMIT" and commits in (3, 6)
        if is_late:
            plain(self, sql)
        if is_late or calls in (4, 9, 40, 75, 110):
            server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'assay'")
        return plain(self, sql, parameters)

    refused = 0
    with store.open() as index:
        monkeypatch.setattr(postgres_index._Connection, "execute", execute)
        for _ in range(20):
            start = index.load_cursor("grid/a", "a.log").offset
            columns = {"loss": ([start], [float(start)], None)}
            refused += not index.add_columns("grid/a", "a.log", Cursor(start + 1), columns, expected_offset=start)
        monkeypatch.undo()
        series = index.load_series("grid/a", "loss")
        assert list(series.values) == [float(number) for number in range(20)]
        assert index.load_summaries()["grid/a"]["loss"].count == 20
    assert refused == 2  # both were stored; their answers were lost, so another could have written them


def test_a_batch_waits_for_a_server_that_is_away(
    server: PostgresServer, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_index, "_WAITS_S", (0.0, 0.01))
    with store.open() as index, index.batch():
        server.stop()
        try:
            index.put_runs([row()])
            put_on = index.add_columns("grid/a", "a.log", Cursor(1), {"loss": (None, [1.0], None)}, expected_offset=0)
            assert put_on
            for _ in range(2):
                with pytest.raises(InfrastructureError, match="cannot be reached"):
                    index.flush()
        finally:
            server.start()
        assert index.flush() == []
        assert list(index.load_series("grid/a", "loss").values) == [1.0]


def test_processes_that_write_through_a_restart_lose_and_double_nothing(
    server: PostgresServer, store: PostgresStore
) -> None:
    store.open().close()
    answers: list[int] = []
    arguments = [[600, True, seed] for seed in range(3)]
    workers = threading.Thread(target=lambda: answers.extend(TestPostgresIndex().run_workers(store, "race", arguments)))
    workers.start()
    with store.open() as index:
        until(lambda: index.load_cursor("grid/a", "a.log").offset, "all have opened the index, and one has written")
    server.stop()  # not in a thread: the server ends with the one that started it
    server.start()
    workers.join()
    assert len(answers) == 3
    with store.open() as index:
        assert list(index.load_series("grid/a", "loss").values) == [float(number) for number in range(600)]
        assert index.load_summaries()["grid/a"]["loss"].count == 600
    assert sum(answers) <= 600  # a commit whose answer was lost is counted by no process


# ---------------------------------------------------------------- addresses


def test_addresses_are_read_as_libpq_reads_them(tmp_path: Path) -> None:
    """One that cannot be read is not repeated."""
    for text, expected in (
        ("postgresql://h/d", {"host": "h", "dbname": "d"}),
        ("postgres://u@h:5/d", {"user": "u", "host": "h", "port": "5", "dbname": "d"}),
        ("postgresql://u:p%40@[::1]:5/d", {"user": "u", "password": "p@", "host": "::1", "port": "5", "dbname": "d"}),
        ("postgresql://u:p%2F@h/d", {"user": "u", "password": "p/", "host": "h", "dbname": "d"}),
        ("postgresql://u:a@b@h/d", {"user": "u", "password": "a@b", "host": "h", "dbname": "d"}),
        ("postgresql://a:1,b:2/d", {"host": "a,b", "port": "1,2", "dbname": "d"}),
        ("postgresql:///d?host=/run/pg&sslmode=require", {"host": "/run/pg", "dbname": "d", "sslmode": "require"}),
        ("postgresql://", {}),
    ):
        found = parse_address(text)
        assert found.keywords == expected
        assert expected.get("password", "\0") not in found.shown
    assert parse_address("postgresql://u:ab@h/d?sslpassword=abc").hide("ab abc") == "*** ***"
    wrong = [f"postgresql://{login}/d" for login in ("u:hu/sh@h", "u:hush%zz@h", "u:hu?sh@h", "u:hush@h:port")]
    for text in (*wrong, "mysql://u:hush@h/d", "hush"):
        with pytest.raises(UsageError) as caught:
            PostgresIndex(text, tmp_path)
        assert "hu" not in f"{caught.value.message} {caught.value.hint}", text


def test_without_psycopg_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match="PostgreSQL") as caught:
        PostgresIndex("postgresql://h/d", tmp_path)
    assert "assay[postgres]" in (caught.value.hint or "")
