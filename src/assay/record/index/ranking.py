"""Which run is best: the order of a table's rows, and the parameters that tell them apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from assay.errors import NotFoundError, UsageError
from assay.record.index.base import MetricColumns
from assay.record.index.base import Table as IndexTable
from assay.values.telling import Direction, direction_of, tellingness


class SortKey(NamedTuple):
    metric: str
    direction: Direction


def choose_sort(asked: str | None, data: IndexTable, keep: Sequence[int]) -> SortKey | None:
    """`acc`, `acc:max`, `loss:min`; without a wish the most telling metric."""
    if asked is None:
        name = min(data.metrics, key=tellingness, default=None)
        return SortKey(name, direction_of(name)) if name is not None else None
    name, direction = parse_sort(asked, data.metrics)
    if name in data.metrics:
        return SortKey(name, direction or direction_of(name))
    params = {key for i in keep for key in data.rows[i].params}
    if name in params:
        return None
    raise NotFoundError("metric", name, [*data.metrics, *params])


def parse_sort(asked: str, known: Mapping[str, Any]) -> tuple[str, Direction | None]:
    """A metric's own name may hold a colon, so it is tried whole first."""
    if asked in known:
        return asked, None
    name, colon, word = asked.rpartition(":")
    if not colon:
        return asked, None
    directions: dict[str, Direction] = {"min": "min", "max": "max"}
    if word not in directions:
        raise UsageError(f"bad direction {word!r} in --sort {asked}", f"write {name}:min or {name}:max")
    return name, directions[word]


def differing_params(params: Sequence[Mapping[str, Any]], ignore: Sequence[str] = ()) -> list[str]:
    """Parameters that take more than one value over these runs, in order of appearance; missing counts as a value."""
    names = dict.fromkeys(chain.from_iterable(params))
    return [name for name in names if name not in ignore and _varies(params, name)]


def _varies(params: Sequence[Mapping[str, Any]], name: str) -> bool:
    first = params[0].get(name, _MISSING)
    return any((value := each.get(name, _MISSING)) is not first and value != first for each in params)


_MISSING = object()


def sort_rows(data: IndexTable, keep: Sequence[int], sort: SortKey | None, asked: str | None) -> list[int]:
    """Best first; runs without a finite value last, in the order they were made."""
    if sort is None:
        if asked is None:
            return list(keep)
        name = parse_sort(asked, {})[0]
        return sorted(keep, key=lambda i: _value_key(data.rows[i].params.get(name)))
    column = data.metrics[sort.metric]
    values = best_values(column, sort.direction)
    is_whole = 0.0 not in column.count and math.isfinite(sum(values))  # mostly, and soon seen
    usable = keep if is_whole else [i for i in keep if column.count[i] > 0 and math.isfinite(values[i])]
    rest = sorted(set(keep).difference(usable)) if len(usable) < len(keep) else []
    return sorted(usable, key=values.__getitem__, reverse=sort.direction == "max") + rest


def _value_key(value: Any) -> tuple[int, float, str]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return (1, 0.0, str(value))
    return (0, float(value), "")


def best_values(column: MetricColumns, direction: Direction) -> Sequence[float]:
    return column.min if direction == "min" else column.max
