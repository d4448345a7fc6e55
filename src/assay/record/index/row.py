"""The compact copy of a run's row that tables are read from: the whole row as `marshal` writes it, and a checksum.

It is read three times as fast as the columns of `runs`. marshal cannot run code, and its format 4 is the same in
every Python that we support; the file is in the user's own cache directory.
"""

from __future__ import annotations

import marshal
import sqlite3
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from zlib import adler32

from assay.record.index.base import RunRow
from assay.values.state import State

_FORMAT = 4
_STATE = RunRow._fields.index("state")
_PARAMS = RunRow._fields.index("params")
_STATES = {state.value: state for state in State}


# ---------------------------------------------------------------- checksums


class DamagedError(sqlite3.DatabaseError):
    """What is stored does not fit its checksum. SQLite notices damage of its own structures, not of what they hold."""

    sqlite_errorname = "SQLITE_CORRUPT"


def checksum(*pieces: Any) -> bytes:
    """Of bytes and texts one after another. Adler-32 notices each changed byte, in a third of a CRC's time."""
    total = 1
    for piece in pieces:
        total = adler32(piece.encode("utf-8", "surrogatepass") if type(piece) is str else piece, total)
    return total.to_bytes(_SEAL, "little")


def unseal(sealed: bytes, *more: Any) -> bytes:
    """What was stored before its checksum, which covers `more` as well. Raises DamagedError."""
    try:
        body = sealed[:-_SEAL]
        if checksum(*more, body) == sealed[-_SEAL:]:
            return body
    except TypeError:  # another type came out than was stored
        pass
    raise DamagedError("a checksum does not fit")


_SEAL = 4


# ---------------------------------------------------------------- rows


def last_activity(row: RunRow) -> float:
    return max(row.stamp, row.ended_at or 0.0, row.started_at or 0.0, row.created_at or 0.0)


def pack_row(row: RunRow) -> bytes:
    head, tail = row[:_STATE], row[_STATE + 1 : _PARAMS]
    whole: Any = (*head, row.state.value, *tail, dict(row.params), *row[_PARAMS + 1 :])
    try:
        packed = marshal.dumps(whole, _FORMAT)
    except ValueError:  # something that is not JSON-like
        packed = marshal.dumps(tuple(map(_plain, whole)), _FORMAT)
    return packed + checksum(packed)


def _plain(value: Any) -> Any:
    import json

    return json.loads(json.dumps(value, default=plain_object))


def plain_object(value: object) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def unpack_rows(packed: Iterable[bytes]) -> list[RunRow]:
    """First all values, then all rows: so rows are next to each other in memory, and iterating is faster."""
    whole = list(map(marshal.loads, map(unseal, packed)))
    build = partial(tuple.__new__, RunRow)  # without the Python of its own `__new__`
    return [build((*row[:_STATE], _STATES[row[_STATE]], *row[_STATE + 1 :])) for row in whole]


def storable(text: str) -> str:
    """SQLite takes no text that is not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
