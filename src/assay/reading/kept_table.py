"""A table that serves many requests and caches values that were computed from its columns."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from assay.record.index.base import IndexTable

T = TypeVar("T")
_MOST_VALUES = 1_500_000  # limit of numbers in the cached columns, orders and pages: 12 MB
_FEWEST, _MOST_MADE = 8, 500
_NOTHING: Any = object()


class KeptTable(IndexTable):
    """A table whose rows and columns do not change: a changed table is a new object."""

    _made: dict[Hashable, Any]

    @classmethod
    def of(cls, table: IndexTable) -> KeptTable:
        kept = cls(*table)
        kept._made = {}
        return kept


def remember(table: IndexTable, what: Hashable, make: Callable[[], T]) -> T:
    """Return a value of a table. A kept table caches its values and drops the least recently used value first; for any
    other table, the value is computed each time. Threads do not wait: several may compute the same value at once."""
    if not isinstance(table, KeptTable):
        return make()
    made = table._made  # noqa: SLF001
    found: T = made.get(what, _NOTHING)
    if found is _NOTHING:
        found = make()
        while len(made) >= max(_FEWEST, min(_MOST_MADE, _MOST_VALUES // max(1, len(table.rows)))):
            made.pop(next(iter(list(made))), None)
    made[what] = made.pop(what, found)
    return found


def list_param(table: IndexTable, name: str, missing: Any = None) -> list[Any]:
    """Return the value of the parameter in each row."""
    return remember(table, ("param", name, missing), lambda: [row.params.get(name, missing) for row in table.rows])


def has_param(table: IndexTable, name: object) -> bool:
    """Whether any row has the parameter. A search usually ends at the first row."""
    if not isinstance(table, KeptTable):
        return any(name in row.params for row in table.rows)
    return name in remember(table, "params", lambda: frozenset(name for row in table.rows for name in row.params))
