"""The index of a team: a PostgreSQL database, in which each output root has a schema of its own.

The statements are those of `stored.py`. This module opens the database, translates what SQLite writes differently, and
connects again after the server was restarted. Passwords are in no text that leaves it.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import blake2b
from math import isnan
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from assay.errors import InfrastructureError, MissingExtraError, UsageError
from assay.record.index.base import Answer, Refused
from assay.record.index.packing import storable
from assay.record.index.schema import OPENED_IN_POSTGRES, POSTGRES_TYPES, TABLES, VERSION
from assay.record.index.statements import find_acting
from assay.record.index.stored import QUERY_LIMIT_S, StoredIndex, check_query

if TYPE_CHECKING:
    import psycopg

    from assay.record.index.buffer import Buffer

SCHEMES = ("postgresql://", "postgres://")
CONNECT_TIMEOUT_S = 10
LOCK_TIMEOUT_S = 30
_WAITS_S = (0.0, 0.1, 0.2, 0.4, 0.8, 1.5, 2.0)  # before each attempt to connect again
_LARGEST = 2**63 - 1
_ESCAPED_NUL = r"(?<!\\)((?:\\\\)*)\\u0000"  # in JSON; jsonb does not take it
_AMONG = r"([\w.]+) IN \(SELECT value FROM json_each\(\?\)\)"
_LOCAL = "or use an index on this machine alone: ASSAY_INDEX=local assay …"


# ---------------------------------------------------------------- addresses


class DatabaseAddress(NamedTuple):
    """Where the database is, as libpq's own keywords; never shown whole."""

    keywords: dict[str, str]

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    @property
    def shown(self) -> str:
        known = self.keywords
        user = f"{known['user']}@" if "user" in known else ""
        port = f":{known['port']}" if "port" in known else ""
        return f"postgresql://{user}{known.get('host', '')}{port}/{known.get('dbname', '')}"

    def hide(self, text: str) -> str:
        """A message of the database, on one line and without the password."""
        for secret in sorted(filter(None, (self.keywords.get("password"), self.keywords.get("sslpassword"))), key=len):
            text = text.replace(secret, "***")
        return " ".join(text.split())


def parse_address(text: str) -> DatabaseAddress:
    """Parsed here: libpq repeats what it cannot read in its messages, the password included."""
    hint = "as in ASSAY_INDEX=postgresql://user@host/database; special characters of a password are written as %40"
    scheme = next((each for each in SCHEMES if text.startswith(each)), None)
    if scheme is None:
        raise UsageError("ASSAY_INDEX is neither an address of PostgreSQL nor `local`", hint)
    rest, _, query = text.removeprefix(scheme).partition("?")
    place, _, database = rest.partition("/")
    login, _, hosts = place.rpartition("@")
    user, _, password = login.partition(":")
    if any(mark in database + query for mark in "@#") or re.search(r"%(?![0-9a-fA-F]{2})", text):
        raise UsageError("the address in ASSAY_INDEX cannot be read", hint)
    pairs = [re.fullmatch(r"(\[[^]]*\]|[^:\[\]]*)(?::(\d*))?", each) for each in hosts.split(",")]
    if None in pairs:
        raise UsageError("the address in ASSAY_INDEX cannot be read: its host or port is not one", hint)
    found = [(each[1].strip("[]"), each[2] or "") for each in pairs if each is not None]
    keywords = {
        "user": unquote(user),
        "password": unquote(password),
        "host": ",".join(unquote(host) for host, _ in found),
        "port": ",".join(port for _, port in found) if any(port for _, port in found) else "",
        "dbname": unquote(database),
        **dict(parse_qsl(query)),
    }
    return DatabaseAddress({name: value for name, value in keywords.items() if value})


def name_schema(root: str | os.PathLike[str]) -> str:
    """The schema of a root: the end of its path for people, and a checksum of the whole path."""
    real = os.path.realpath(root)
    plain = re.sub(r"[^a-z0-9]+", "_", os.path.basename(real).lower()).strip("_")[:24]
    digest = blake2b(os.fsencode(real), digest_size=5).hexdigest()
    return "_".join(filter(None, ("assay", plain, digest)))


# ---------------------------------------------------------------- statements


@lru_cache(maxsize=256)
def _translate(statement: str) -> str:
    """SQLite's way of writing it in PostgreSQL's: a list comes as JSON in both."""

    def among(found: re.Match[str]) -> str:
        kind = "bigint" if found[1].endswith("run") else "text"
        return f"{found[1]} = ANY (ARRAY(SELECT json_array_elements_text(?::json))::{kind}[])"

    return re.sub(_AMONG, among, statement).replace("?", "%s")


def _adapt(value: Any) -> Any:
    """What SQLite does by itself: NaN is NULL. And what PostgreSQL does not take."""
    kind = type(value)
    if kind is float:
        return None if isnan(value) else value
    if kind is str:
        return value if value.isascii() and "\0" not in value else storable(value)
    if kind is int:
        return value if -_LARGEST <= value <= _LARGEST else None
    return value.tobytes() if kind is array else value


def _adapt_run(value: Any) -> Any:
    adapted = _adapt(value)
    if type(adapted) is str and adapted[:1] in "{[" and "\\u0000" in adapted:
        return re.sub(_ESCAPED_NUL, r"\1\\ufffd", adapted)
    return adapted


class _Connection:
    """As that of `sqlite3`, as far as the index uses it."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.raw = connection

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Any:
        return self.raw.execute(_translate(sql), list(map(_adapt, parameters)) or None, binary=True)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> None:
        if sql.startswith("INSERT INTO chunks "):
            self._copy_chunks(parameters)
            return
        adapt = _adapt_run if sql.startswith("INSERT INTO runs ") else _adapt
        rows = [list(map(adapt, row)) for row in parameters]
        if rows:
            with self.raw.cursor() as cursor:
                cursor.executemany(_translate(sql), rows)

    def _copy_chunks(self, rows: Iterable[Sequence[Any]]) -> None:
        columns = "run, metric, parts, step_data, value_data, time_data"
        copy = self.raw.cursor().copy(f"COPY chunks ({columns}) FROM STDIN (FORMAT BINARY)")
        with copy as target:
            target.set_types(["int8", "int8", "bytea", "bytea", "bytea", "bytea"])
            for row in rows:
                target.write_row([_adapt(value) for value in row])


# ---------------------------------------------------------------- the index


class ConnectionLostError(InfrastructureError):
    """The server ended the connection, or cannot be reached any more."""


class PostgresIndex(StoredIndex):
    """Several machines at once: one writer of a root at a time, each for as long as one flush takes.

    A lost connection is opened again with growing pauses, and what was being written is written again: the stored
    cursors show which of it had arrived. While the server stays away, each further call tries once and fails.
    """

    _db: _Connection

    def __init__(self, address: str, root: str | os.PathLike[str], *, renew: bool = False) -> None:
        super().__init__()
        self._address, self._root, self.schema = parse_address(address), os.path.realpath(root), name_schema(root)
        self.place = f"{self._address.shown} (schema {self.schema})"
        self._lock = int.from_bytes(blake2b(self.schema.encode(), digest_size=8).digest(), "little", signed=True)
        self._is_away = False
        self._db = self._connect(CONNECT_TIMEOUT_S)
        try:
            with self._translated():
                self._prepare(renew)
        except BaseException:
            self._disconnect()
            raise

    # ---------------------------------------------------------------- opening

    def _connect(self, timeout_s: int) -> _Connection:
        try:
            import psycopg
        except ImportError:
            raise MissingExtraError("an index in PostgreSQL", "postgres") from None
        keywords: dict[str, Any] = {"connect_timeout": timeout_s, "application_name": "assay", "keepalives_idle": 30}
        # The index is a copy: what a crash of the server takes is read again. A stopped client blocks others briefly.
        settings = {"search_path": self.schema, "synchronous_commit": "off", "client_min_messages": "warning"}
        settings |= {"standard_conforming_strings": "on"}  # as `find_acting` reads texts
        settings |= {"lock_timeout": f"{LOCK_TIMEOUT_S}s", "idle_in_transaction_session_timeout": "60s"}
        try:
            raw = psycopg.connect(autocommit=True, **(keywords | self._address.keywords))
            raw.execute("; ".join(f"SET {name} TO '{value}'" for name, value in settings.items()))
        except psycopg.Error as error:
            raise self._explain_refusal(str(error)) from None  # its context has the address
        return _Connection(raw)

    def _explain_refusal(self, message: str) -> InfrastructureError:
        reason = self._address.hide(message)
        if "password" in reason or "authentication" in reason or "pg_hba" in reason:
            hint = f"check the user and the password in ASSAY_INDEX (or in ~/.pgpass), {_LOCAL}"
        elif "does not exist" in reason:
            hint = f"create it on the server, {_LOCAL}"
        else:
            hint = f"start the server, or correct ASSAY_INDEX, {_LOCAL}"
        return ConnectionLostError(f"the index {self._address.shown} cannot be reached: {reason}", hint)

    def _prepare(self, renew: bool) -> None:
        fault = self._find_fault()
        if fault is None and not renew:
            return
        self._begin(writes=True)
        fault = self._find_fault()  # another process may have made it since
        if fault is None:
            self._roll_back()
            return
        if fault and not renew:
            raise InfrastructureError(fault, "build it again for everybody who uses it: assay index rebuild")
        if fault:
            self._db.execute(f"DROP SCHEMA {self.schema} CASCADE")
        self._db.execute(f"CREATE SCHEMA {self.schema}")
        for statement in (TABLES.format_map(POSTGRES_TYPES) + OPENED_IN_POSTGRES).split(";"):
            if statement.strip():
                self._db.raw.execute(statement)
        facts = [("root", os.fsencode(self._root).decode("utf-8", "backslashreplace")), ("format", str(VERSION))]
        self._db.executemany("INSERT INTO about (name, value) VALUES (?, ?)", facts)
        self._db.execute("COMMIT")

    def _find_fault(self) -> str | None:
        """None: ready. "": there is none yet. Else why it cannot be used, in a message."""
        query = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = ?"
        exists = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = ?"
        if self._db.execute(exists, (self.schema,)).fetchone() is None:
            return ""
        columns = set(self._db.execute(query, (self.schema,)).fetchall())
        known = {("about", "name"), ("about", "value"), ("runs", "key")}
        facts = dict(self._db.execute("SELECT name, value FROM about").fetchall()) if known <= columns else {}
        if "format" not in facts:
            raise InfrastructureError(
                f"the schema {self.schema} in {self._address.shown} is not an index of Assay, or you may not read it",
                f"ask its owner for the right to read: {self._write_grant('SELECT')}; where it is not one, give"
                f" ASSAY_INDEX another database, {_LOCAL}",
            )
        if facts["format"] != str(VERSION):
            return f"the index {self.place} has format {facts['format']}, this Assay uses {VERSION}"
        return None

    def _reconnect(self) -> None:
        self._disconnect()
        waits = (0.0,) if self._is_away else _WAITS_S
        for wait_s in waits:
            time.sleep(wait_s)
            try:
                self._db = self._connect(3)
                with self._translated():
                    fault = self._find_fault()
            except ConnectionLostError as error:
                self._is_away, failure = True, error
            else:
                self._is_away = False
                if fault is not None:
                    raise InfrastructureError(fault or f"the index {self.place} was removed", "give the command again")
                return
        raise failure

    # ---------------------------------------------------------------- transactions

    def _begin(self, *, writes: bool) -> None:
        import psycopg

        lock = f"SELECT pg_advisory_xact_lock({self._lock})"
        begin = f"BEGIN; {lock}" if writes else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        try:
            self._db.raw.execute(begin)
        except psycopg.OperationalError:
            if not self._db.raw.closed:
                raise
            self._reconnect()
            self._db.raw.execute(begin)

    def _roll_back(self) -> None:
        import psycopg

        with suppress(psycopg.Error):
            self._db.raw.execute("ROLLBACK")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        import psycopg

        try:
            yield
        except sqlite3.DatabaseError as error:  # DamagedError: a checksum
            message = f"the index {self.place} is damaged ({error})"
            raise InfrastructureError(message, "build it again: assay index rebuild") from error
        except psycopg.Error as error:
            raise self._build_error(error) from None

    def _build_error(self, error: psycopg.Error) -> InfrastructureError:
        from psycopg import errors

        reason = self._address.hide(error.diag.message_primary or str(error))
        kind, hint = InfrastructureError, "build it again: assay index rebuild"
        if isinstance(error, errors.InsufficientPrivilege | errors.ReadOnlySqlTransaction):
            grant = self._write_grant("SELECT, INSERT, UPDATE, DELETE")
            hint = f"this user may only read: ask the owner for more rights ({grant}), {_LOCAL}"
        elif isinstance(error, errors.LockNotAvailable):
            hint = f"another process has been writing for {LOCK_TIMEOUT_S} s; look for one that is stopped (state T)"
        elif isinstance(error, errors.DiskFull | errors.OutOfMemory | errors.TooManyConnections):
            hint = f"the server has no room left, {_LOCAL}"
        elif self._db.raw.closed:
            kind, hint = ConnectionLostError, "the server may be restarting: give the command again"
        return kind(f"the index {self.place} failed: {reason}", hint)

    def _write_grant(self, rights: str) -> str:
        """What the owner of the schema gives to psql."""
        user = '"{}"'.format(self._db.raw.info.user.replace('"', '""'))
        schema = f"SCHEMA {self.schema}"
        return f"GRANT USAGE ON {schema} TO {user}; GRANT {rights} ON ALL TABLES IN {schema} TO {user}"

    def _write(self, buffer: Buffer) -> list[Refused]:
        for _ in range(2):
            try:
                return super()._write(buffer)
            except ConnectionLostError:
                if self._is_away:
                    raise
        return super()._write(buffer)

    def _find(self, query: str, parameters: Sequence[Any]) -> Any:
        try:
            return super()._find(query, parameters)
        except ConnectionLostError:
            self._reconnect()
            return super()._find(query, parameters)

    def _disconnect(self) -> None:
        self._db.raw.close()

    # ---------------------------------------------------------------- for people

    def query(self, statement: str) -> Answer:
        import psycopg

        check_query(statement)
        if found := find_acting(statement):
            raise UsageError(f"the query was refused: {found} may do more than read", "use psql for it")
        self._write_waiting()
        with self._translated():
            self._begin(writes=False)
            self._db.raw.execute(f"SET LOCAL statement_timeout TO '{QUERY_LIMIT_S:.0f}s'")
        try:
            # a prepared statement is a single one; the first answer has its columns
            cursor = self._db.raw.execute(statement, prepare=True)
            names = [column.name for column in cursor.description or ()]
            return Answer(names, [tuple(map(_show, row)) for row in cursor])
        except psycopg.errors.QueryCanceled:
            message = f"the query took longer than {QUERY_LIMIT_S:.0f} s"
            raise UsageError(message, "ask for less: LIMIT, or a condition on the study") from None
        except psycopg.Error as error:
            if self._db.raw.closed:
                raise self._build_error(error) from None
            reason = self._address.hide(error.diag.message_primary or str(error))
            raise UsageError(f"the query was refused: {reason}") from None
        finally:
            self._roll_back()

    def load_size(self) -> int:
        total = "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        found = self._find(f"{total} WHERE nspname = ? AND relkind = 'r'", (self.schema,))
        return int(found[0] or 0)

    def compact(self) -> None:
        self._write_waiting()
        names = ("runs", "names", "metric_summaries", "verdicts", "verdict_files", "cursors", "chunks", "run_cache")
        with self._translated():
            self._db.raw.execute(f"VACUUM (ANALYZE) {', '.join(names)}")


def _show(value: Any) -> Any:
    """As SQLite would answer: numbers, texts and bytes alone."""
    from decimal import Decimal

    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, dict | list):
        import json

        return json.dumps(value, ensure_ascii=False)
    is_plain = value is None or isinstance(value, int | float | str | bytes)
    return value if is_plain else str(value)
