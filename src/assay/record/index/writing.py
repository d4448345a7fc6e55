"""Write rows, points and verdicts into the tables of the index, always inside the caller's transaction.

Each fact is written twice: in plain columns for people who query the file, and in `run_cache` for Assay's tables.
"""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from assay.record.index import packing
from assay.record.index.base import OWN_FIELDS, RunRow, VerdictRow
from assay.record.index.digest import (
    FIELDS,
    LAYOUT,
    Digest,
    MetricDigest,
    Packed,
    pack_digest,
    pack_summaries,
    unpack_digest,
)
from assay.system.fast_dataclasses import dataclass, field

if TYPE_CHECKING:
    from assay.record.index.base import Database, Refused
    from assay.record.index.buffer import PendingPoints, Summaries

_encode = json.JSONEncoder(separators=(",", ":"), default=packing.plain_object).encode
_encode_strictly = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=packing.plain_object).encode
_STATE, _PARAMS = RunRow._fields.index("state"), RunRow._fields.index("params")
_TAGS = RunRow._fields.index("tags")  # the columns note and received follow
_RUN_COLUMNS = (*(field if field != "commit" else "git_commit" for field in OWN_FIELDS), "active_at")
_PUT_RUN = f"""INSERT INTO runs ({", ".join(_RUN_COLUMNS)}) VALUES ({", ".join("?" * len(_RUN_COLUMNS))})
    ON CONFLICT (key) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _RUN_COLUMNS[1:])}"""  # noqa: S608
_PUT_ROW = """INSERT INTO run_cache (run, run_row) SELECT run, ? FROM runs WHERE key = ?
    ON CONFLICT (run) DO UPDATE SET run_row = excluded.run_row"""
_ADD_CHUNK = "INSERT INTO chunks (run, metric, parts, step_data, value_data, time_data) VALUES (?, ?, ?, ?, ?, ?)"
_SET_CHUNK = "UPDATE chunks SET parts = ?, step_data = ?, value_data = ?, time_data = ? WHERE chunk = ?"
_LOAD_CHUNKS = """SELECT chunk, parts, step_data, value_data, time_data FROM chunks
    WHERE run = ? AND metric = ? ORDER BY chunk DESC"""
_LOAD_DIGEST = "SELECT metrics, summaries, carried FROM run_cache WHERE run = ?"
_SET_DIGEST = """INSERT INTO run_cache (metrics, summaries, carried, run) VALUES (?, ?, ?, ?) ON CONFLICT (run)
    DO UPDATE SET metrics = excluded.metrics, summaries = excluded.summaries, carried = excluded.carried"""
_SET_SUMMARY = f"""INSERT INTO metric_summaries VALUES (?, ?, {", ".join("?" * len(FIELDS))}) ON CONFLICT (run, metric)
    DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in FIELDS)}"""  # noqa: S608
_SET_CURSOR = """INSERT INTO cursors (run, source, bytes_read, state) VALUES (?, ?, ?, ?) ON CONFLICT (run, source)
    DO UPDATE SET bytes_read = excluded.bytes_read, state = excluded.state"""
_VERDICT_COLUMNS = ("study", *VerdictRow._fields)
_ADD_VERDICT = f"""INSERT INTO verdicts ({", ".join(_VERDICT_COLUMNS)})
    VALUES ({", ".join("?" * len(_VERDICT_COLUMNS))})"""  # noqa: S608
_SET_VERDICT_OFFSET = """INSERT INTO verdict_files (study, bytes_read) VALUES (?, ?)
    ON CONFLICT (study) DO UPDATE SET bytes_read = excluded.bytes_read"""
_AMONG_RUNS = "WHERE run IN (SELECT value FROM json_each(?))"
_LARGEST = 2**63 - 1


def write_rows(db: Database, rows: Collection[RunRow]) -> None:
    plain = [
        (
            *row[:_STATE],
            row.state.value,
            row.attempt,
            encode_params(row.params),
            *row[_PARAMS + 1 : _TAGS],
            _encode(row.tags) if row.tags else "[]",
            row.note,
            _encode(row.received) if row.received else None,
            packing.last_activity(row),
        )
        for row in rows
    ]
    try:
        db.executemany(_PUT_RUN, plain)
    except (UnicodeEncodeError, OverflowError, sqlite3.ProgrammingError, sqlite3.InterfaceError):
        db.executemany(_PUT_RUN, [tuple(map(_storable_value, row)) for row in plain])  # SQLite cannot store some values
    db.executemany(_PUT_ROW, [(packing.pack_row(row), row.key) for row in rows])


def encode_params(params: Mapping[str, Any]) -> str:
    """Encode numbers that JSON does not have as strings: one malformed object would break the whole view."""
    try:
        text = _encode_strictly(dict(params))
    except ValueError:
        text = _encode_strictly(_replace_numbers(json.loads(_encode(dict(params)))))
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _replace_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_replace_numbers(each) for each in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _storable_value(value: Any) -> Any:
    if isinstance(value, int):
        return value if abs(value) <= _LARGEST else None
    return value if value is None or isinstance(value, float) else packing.storable(str(value))


def write_summaries(db: Database, summarised: Mapping[str, Summaries], number: Callable[[str], int]) -> list[Refused]:
    """Write the summaries of runs without points; return the other runs. A cursor at 0 marks points to be read."""
    if not summarised:
        return []
    runs = _load_numbers(db, list(summarised))
    query = f"SELECT run, max(bytes_read) FROM cursors {_AMONG_RUNS} GROUP BY run"  # noqa: S608
    known = dict(db.execute(query, (json.dumps(list(runs.values())),)).fetchall())
    _forget_runs(db, [run for run, offset in known.items() if not offset])  # another process stored these summaries
    packed: dict[int, Packed] = {}
    cursors: list[tuple[int, int, int, str]] = []
    for key, (states, summaries) in summarised.items():
        run = runs[key]
        if known.get(run):
            continue
        packed[run] = pack_summaries({number(metric): found for metric, found in summaries.items()})
        for name, state in states.items():
            source = number(name)
            cursors.append((run, source, 0, seal_cursor(run, source, 0, _encode(dict(state)))))
    db.executemany(_SET_CURSOR, cursors)
    db.executemany(_SET_SUMMARY, [row for run, digest in packed.items() for row in _build_summaries(run, digest)])
    db.executemany(_SET_DIGEST, [(*digest, run) for run, digest in packed.items()])
    return [(key, "") for key in summarised if known.get(runs[key])]


@dataclass(slots=True)
class _Work:
    """The state of the index before a write, and the rows to write."""

    runs: dict[str, int]
    offsets: dict[tuple[int, int], int]
    digests: dict[int, Digest]  # number of a run → its digest
    cursors: dict[tuple[int, int], str] = field(default_factory=dict)
    chunks: list[tuple[Any, ...]] = field(default_factory=list)
    touched: dict[tuple[int, int], MetricDigest] = field(default_factory=dict)


def write_points(
    db: Database, entries: Mapping[str, Sequence[PendingPoints]], number: Callable[[str], int]
) -> list[Refused]:
    """Write points that count and whose stored cursor is still where their reader began; return the refused ones."""
    if not entries:
        return []
    work = _load_work(db, entries)
    refused: dict[Refused, None] = {}
    for key, per_source in entries.items():
        for entry in per_source:
            if not _add_points(work, work.runs[key], entry, number):
                refused[key, entry.source] = None
    cursors = [
        (*place, work.offsets[place], seal_cursor(*place, work.offsets[place], state))
        for place, state in work.cursors.items()
    ]
    db.executemany(_SET_CURSOR, cursors)
    db.executemany(_ADD_CHUNK, work.chunks)
    for (run, metric), digested in work.touched.items():
        if digested.loose > packing.MAX_LOOSE_CHUNKS:
            # merge the chunks since the last merge into one, with the chunk before them unless it is full
            found = db.execute(f"{_LOAD_CHUNKS} LIMIT ?", (run, metric, digested.loose + 1)).fetchall()[::-1]
            chunks = [packing.unpack_chunk(packing.name_owner(run, metric), *row[1:]) for row in found]
            is_full = len(chunks[0].series.values) >= packing.FULL_CHUNK_POINTS
            start = 1 if len(found) > digested.loose and is_full else 0
            _set_chunk(db, found[start][0], packing.join_chunks(chunks[start:]), packing.name_owner(run, metric))
            db.executemany("DELETE FROM chunks WHERE chunk = ?", [(row[0],) for row in found[start + 1 :]])
            digested.loose = 0
    packed = {run: pack_digest(work.digests[run]) for run in dict.fromkeys(run for run, _ in work.touched)}
    plain = [row for run, digest in packed.items() for row in _build_summaries(run, digest) if row[:2] in work.touched]
    db.executemany(_SET_SUMMARY, plain)
    db.executemany(_SET_DIGEST, [(*digest, run) for run, digest in packed.items()])
    return list(refused)


def _add_points(work: _Work, run: int, entry: PendingPoints, number: Callable[[str], int]) -> bool:
    source = number(entry.source)
    if work.offsets.get((run, source), 0) != entry.expected_offset or (entry.counts and not entry.counts()):
        return False
    work.offsets[run, source] = entry.cursor.offset
    work.cursors[run, source] = _encode(dict(entry.cursor.state)) if entry.cursor.state else "{}"
    digest = work.digests.setdefault(run, {})
    for name, pieces in entry.columns.items():
        series = packing.join_series(pieces)
        if not series.values:
            continue
        metric = number(name)
        digested = digest.get(metric)
        if digested is None:
            digested = digest[metric] = MetricDigest()
        digested.tally.extend(*series)
        digested.loose += 1
        work.touched[run, metric] = digested
        parts = packing.pack_parts([(source, len(series.values))], series, packing.name_owner(run, metric))
        work.chunks.append((run, metric, parts, series.steps, series.values, series.times))
    return True


def _load_work(db: Database, entries: Mapping[str, Sequence[PendingPoints]]) -> _Work:
    runs = _load_numbers(db, list(entries))
    chosen = json.dumps(list(runs.values()))
    query = f"SELECT run, source, bytes_read, state FROM cursors {_AMONG_RUNS}"  # noqa: S608
    offsets = db.execute(query, (chosen,)).fetchall()
    known = {(run, source): offset for run, source, offset, state in offsets if open_cursor(run, source, offset, state)}
    summarised = {run for (run, _), offset in known.items() if not offset}
    begun = [key for key, each in entries.items() if not all(entry.expected_offset for entry in each)]
    _forget_runs(db, [runs[key] for key in begun if runs[key] in summarised])
    known = {place: offset for place, offset in known.items() if place[0] not in summarised}
    if not known:  # runs without cursors have no points
        return _Work(runs, {}, {})
    query = f"SELECT run, metrics, summaries, carried FROM run_cache {_AMONG_RUNS}"  # noqa: S608
    digests = {
        run: unpack_digest(Packed(*packed)) for run, *packed in db.execute(query, (chosen,)) if run not in summarised
    }
    if not digests.keys() >= {run for run, _ in known}:
        raise packing.DamagedError("the summaries of a run are missing")
    return _Work(runs, known, digests)


def _load_numbers(db: Database, keys: list[str]) -> dict[str, int]:
    """Return the numbers of runs by key; a run that has no number gets one with an empty row."""
    query = "SELECT key, run FROM runs WHERE key IN (SELECT value FROM json_each(?))"
    numbers: dict[str, int] = dict(db.execute(query, (json.dumps(keys),)).fetchall())
    new = [key for key in keys if key not in numbers]
    if new:
        db.executemany("INSERT INTO runs (key, study) VALUES (?, ?)", [(key, key.rpartition("/")[0]) for key in new])
        numbers.update(db.execute(query, (json.dumps(new),)).fetchall())
        db.executemany("INSERT INTO run_cache (run) VALUES (?)", [(numbers[key],) for key in new])
    return numbers


def _build_summaries(run: int, packed: Packed) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of `metric_summaries` from packed summaries."""
    if packed.metrics and packed.summaries:
        numbers, summaries = array("q", packed.metrics), packing.unseal(packed.summaries, packed.metrics)
        for number, summary in zip(numbers, LAYOUT.iter_unpack(summaries), strict=True):
            yield (run, number, *summary)


def _set_chunk(db: Database, number: int, chunk: packing.Chunk, owner: bytes) -> None:
    db.execute(_SET_CHUNK, (packing.pack_parts(chunk.parts, chunk.series, owner), *chunk.series, number))


def seal_cursor(run: int, source: int, offset: int, state: str) -> str:
    """Return the state of a cursor as text, after the checksum of the whole cursor."""
    return packing.checksum(f"{run} {source} {offset} ", state).hex() + state


def open_cursor(run: int, source: int, offset: int, sealed: str) -> str:
    """Return the state of a cursor as text; raise DamagedError if the checksum does not match."""
    if not isinstance(sealed, str) or seal_cursor(run, source, offset, sealed[8:]) != sealed:
        raise packing.DamagedError("a checksum does not fit")
    return sealed[8:]


def forget_points(db: Database, forgotten: Collection[tuple[str, str | None]]) -> None:
    whole = {key for key, source in forgotten if source is None}
    if whole:
        query = "SELECT run FROM runs WHERE key IN (SELECT value FROM json_each(?))"
        _forget_runs(db, [run for (run,) in db.execute(query, (json.dumps(sorted(whole)),)).fetchall()])
    for key, source in forgotten:
        if source is not None and key not in whole:
            _forget_points_of(db, key, packing.storable(source))


def _forget_points_of(db: Database, key: str, source: str) -> None:
    row = db.execute("SELECT run FROM runs WHERE key = ?", (key,)).fetchone()
    if row is None:
        return
    (run,) = row
    query = "SELECT source, name, bytes_read FROM cursors JOIN names ON number = source WHERE run = ?"
    sources = db.execute(query, row).fetchall()
    kept = [number for number, name, offset in sources if name != source and offset]
    if not kept:
        _forget_runs(db, row)
        return
    for number in {number for number, _, _ in sources}.difference(kept):
        db.execute("DELETE FROM cursors WHERE run = ? AND source = ?", (run, number))
        known = unpack_digest(Packed(*db.execute(_LOAD_DIGEST, row).fetchone()))
        others = {metric: _keep_others(db, run, metric, number) for metric in known}
        packed = pack_digest({metric: digested for metric, digested in others.items() if digested.loose})
        db.execute(_SET_DIGEST, (*packed, run))
        db.execute("DELETE FROM metric_summaries WHERE run = ?", row)
        db.executemany(_SET_SUMMARY, _build_summaries(run, packed))


def _forget_runs(db: Database, runs: Sequence[int]) -> None:
    if runs:
        for table in ("chunks", "cursors", "metric_summaries"):
            db.execute(f"DELETE FROM {table} {_AMONG_RUNS}", (json.dumps(runs),))  # noqa: S608
        empty = f"UPDATE run_cache SET metrics = NULL, summaries = NULL, carried = NULL {_AMONG_RUNS}"  # noqa: S608
        db.execute(empty, (json.dumps(runs),))


def _keep_others(db: Database, run: int, metric: int, source: int) -> MetricDigest:
    """Remove a source from the chunks of a metric; return the digest of the other sources' points."""
    digested = MetricDigest()
    for number, *packed in db.execute(_LOAD_CHUNKS, (run, metric)).fetchall()[::-1]:
        chunk = packing.unpack_chunk(packing.name_owner(run, metric), *packed)
        kept = packing.drop_source(chunk, source)
        if kept is None:
            db.execute("DELETE FROM chunks WHERE chunk = ?", (number,))
            continue
        if kept.parts != chunk.parts:
            _set_chunk(db, number, kept, packing.name_owner(run, metric))
        digested.tally.extend(*kept.series)
        digested.loose += 1
    return digested


def write_verdicts(db: Database, study: str, rows: Iterable[VerdictRow], start: int, end: int) -> None:
    if start == 0:
        db.execute("DELETE FROM verdicts WHERE study = ?", (study,))
    db.executemany(_ADD_VERDICT, [(study, *map(_storable_value, row)) for row in rows])
    db.execute(_SET_VERDICT_OFFSET, (study, end))
