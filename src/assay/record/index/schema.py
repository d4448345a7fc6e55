"""The tables and views of the index, and how its file is created. `docs/reference/formats-index.md` is for users.

The statements below are the logical schema. Types in braces are filled in for each database. Column names do not
need quotes in any database.

There are no migrations: the index is a copy, so a file of another version is set aside and built again. An index
in PostgreSQL may be in use by others, so only `assay index rebuild` replaces it.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress

from assay.system.files import rename
from assay.system.locks import locked

VERSION = 11
APPLICATION_ID = 0x41535359  # "ASSY"
BUSY_TIMEOUT_S = 30.0
_DAMAGED = (
    *("SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_FORMAT", "SQLITE_SCHEMA"),
    *("SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_TOOBIG", "SQLITE_RANGE"),
)

TYPES = {
    "number": "INTEGER PRIMARY KEY",  # set by the database on insert
    "integer": "INTEGER",
    "real": "REAL",
    "json": "TEXT",
    "bytes": "BLOB",
    "clustered": "WITHOUT ROWID",  # stored in the order of the primary key
}

TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) {clustered};

CREATE TABLE runs (
    run {number}, key TEXT NOT NULL UNIQUE, study TEXT NOT NULL, name TEXT, id TEXT, state TEXT, attempt {integer},
    params {json}, title TEXT, tag TEXT, created_at {real}, started_at {real}, ended_at {real}, host TEXT, job TEXT,
    slot TEXT, exit_code {integer}, reason TEXT, code_hash TEXT, git_commit TEXT, peak_rss_bytes {integer},
    cpu_s {real}, origin TEXT, parent TEXT, trial {integer}, tags {json}, note TEXT, received {json}, active_at {real}
);
CREATE INDEX runs_study ON runs (study);
CREATE TABLE names (number {number}, name TEXT NOT NULL UNIQUE, checksum {bytes} NOT NULL);
CREATE TABLE metric_summaries (
    run {integer} NOT NULL, metric {integer} NOT NULL, count {integer} NOT NULL, bad {integer} NOT NULL,
    last {real}, last_step {real}, min {real}, min_step {real}, max {real}, max_step {real}, mean {real},
    first_time {real}, last_time {real}, PRIMARY KEY (run, metric)
) {clustered};
CREATE TABLE verdicts (
    verdict {number}, study TEXT NOT NULL, key TEXT, judged_at {real} NOT NULL, source TEXT NOT NULL,
    result TEXT NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, message TEXT NOT NULL, value {real},
    expected {real}, step {real}, effect {real}, interval_low {real}, interval_high {real}
);
CREATE INDEX verdicts_study ON verdicts (study, judged_at);
CREATE TABLE verdict_files (study TEXT PRIMARY KEY, bytes_read {integer} NOT NULL) {clustered};

CREATE TABLE cursors (
    run {integer} NOT NULL, source {integer} NOT NULL, bytes_read {integer} NOT NULL, state TEXT NOT NULL,
    PRIMARY KEY (run, source)
) {clustered};
CREATE TABLE chunks (
    chunk {number}, run {integer} NOT NULL, metric {integer} NOT NULL, parts {bytes} NOT NULL,
    step_data {bytes} NOT NULL, value_data {bytes} NOT NULL, time_data {bytes} NOT NULL
);
CREATE INDEX chunks_series ON chunks (run, metric);
CREATE TABLE run_cache (
    run {number}, run_row {bytes}, metrics {bytes}, summaries {bytes}, carried {bytes}
);

CREATE VIEW studies AS
    SELECT study, count(*) AS runs, sum(CASE WHEN state = 'done' THEN 1 ELSE 0 END) AS done,
        sum(CASE WHEN state IN ('failed', 'timeout', 'lost', 'damaged') THEN 1 ELSE 0 END) AS failed,
        sum(CASE WHEN state = 'running' THEN 1 ELSE 0 END) AS running,
        min(created_at) AS created_at, max(active_at) AS active_at
    FROM runs WHERE state IS NOT NULL GROUP BY study;
CREATE VIEW metrics AS
    SELECT r.run, r.key, r.study, n.name AS metric, s.count, s.bad, s.last, s.last_step, s.min, s.min_step,
        s.max, s.max_step, s.mean, s.first_time, s.last_time
    FROM metric_summaries s JOIN runs r ON r.run = s.run JOIN names n ON n.number = s.metric;
"""

# The views that read JSON, for SQLite: each database reads JSON in its own way.
OPENED = """
CREATE VIEW parameters AS
    SELECT r.run, r.key, r.study, p.key AS parameter, p.type AS type,
        CASE p.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE p.value END AS value
    FROM runs r, json_each(r.params) p;
CREATE VIEW tags AS SELECT r.run, r.key, r.study, t.value AS tag FROM runs r, json_each(r.tags) t;
"""


def open_database(path: str, root: str) -> tuple[sqlite3.Connection, str]:
    """Return a connection to a ready index, created if needed, and why an older file was set aside, or ""."""
    if path == ":memory:":
        return _connect(path, root)[0], ""
    if os.path.exists(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(f"{path} is not writable")
        connection, fault = _connect(path, None)
        if fault is None:  # the usual case, without a lock
            return connection, ""
        connection.close()
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    with locked(f"{path}.lock", create=True):  # switching to WAL and setting aside must not overlap
        connection, fault = _connect(path, root)
        if not fault:
            return connection, ""
        connection.close()
        set_aside(path)
        return _connect(path, root)[0], fault


def _connect(path: str, new_root: str | None) -> tuple[sqlite3.Connection, str | None]:
    """Return a connection and the result of `_find_fault`; with a root, create the index in a blank file."""
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        fault = _find_fault(connection)
        if fault == "" and new_root is not None:
            _create(connection, new_root)
            fault = None
        if fault is None:
            # In WAL mode NORMAL waits for the disk only at a checkpoint. OFF would never wait, but a power cut may then
            # leave a readable file with wrong content.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA wal_autocheckpoint = 4000")
    except BaseException:
        connection.close()
        raise
    return connection, fault


def _find_fault(connection: sqlite3.Connection) -> str | None:
    """Return why the file cannot be used; None if it is ready, empty if it is new."""
    try:
        if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
            return ""
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application != APPLICATION_ID:
            # WAL is switched on before there is a table: if the creator is killed in between, the file is blank
            is_blank = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
            return "" if is_blank else "it is not an index of Assay"
        if version != VERSION:
            return f"it has format {version}, this Assay uses {VERSION}"
        connection.execute("SELECT run FROM runs LIMIT 1").fetchall()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if not is_damage(error):
            raise
        return f"it is damaged ({error})"
    return None


def _create(connection: sqlite3.Connection, root: str) -> None:
    connection.execute("PRAGMA page_size = 8192")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    for statement in (TABLES.format_map(TYPES) + OPENED).split(";"):
        connection.execute(statement)
    connection.execute("INSERT INTO about VALUES ('root', ?)", (os.fsencode(root).decode("utf-8", "backslashreplace"),))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def is_damage(error: Exception, path: str = "") -> bool:
    """Whether an error shows damage: statements and values never vary, so their errors come from a damaged file.

    Python's own errors (text that is not UTF-8, also when SQLite's message quotes a schema) have no error name.
    """
    name = getattr(error, "sqlite_errorname", None)
    if isinstance(error, UnicodeDecodeError):
        return True
    if name == "SQLITE_READONLY":  # a damaged header also causes this
        return bool(path) and os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK)
    if not isinstance(error, sqlite3.OperationalError | sqlite3.IntegrityError | sqlite3.DataError) and name is None:
        return False
    return name is None or name == "SQLITE_ERROR" or name.startswith(_DAMAGED)


def set_aside(path: str) -> None:
    """Rename an unusable index, so that it can be examined; one that was set aside before is removed."""
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}.aside{suffix}")
        with suppress(FileNotFoundError):
            rename(f"{path}{suffix}", f"{path}.aside{suffix}")
