"""Rank runs: the order of a table's rows, the parameters that distinguish them, and groups of runs."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter, le
from typing import Any, TypeVar

from assay.errors import NotFoundError, UsageError, check_known
from assay.reading.kept_table import KeptTable, has_param, list_param, remember
from assay.record.index.base import IndexTable, MetricColumns
from assay.system.fast_dataclasses import NamedTuple, dataclass
from assay.values.series import Direction, direction_of, mean_and_sd, metric_priority
from assay.values.state import State

T = TypeVar("T")
_MISSING = object()
_LARGEST = 1 << 1023  # larger integers cannot be converted to float
_NUMBER = r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*"


class SortKey(NamedTuple):
    """A key to sort by: a metric by the best value of each run, a parameter by its value, `time` by the run's duration.
    `direction` is the better direction of a metric. `is_reversed` reverses only the order of the rows."""

    name: str
    direction: Direction
    is_metric: bool = True
    is_time: bool = False
    is_reversed: bool = False
    at: str = "best"  # or last, min, max, mean, if the study's search judges runs by this value

    def __str__(self) -> str:
        """Return the key as a text for `--sort`."""
        return f"{self.name}:{self.direction}"

    @property
    def order(self) -> Direction:
        """The order of the rows; `min`: the lowest first."""
        return self.direction if not self.is_reversed else "max" if self.direction == "min" else "min"

    def values(self, column: MetricColumns) -> Sequence[float]:
        """Return the values by which the runs are compared."""
        found: Sequence[float] = getattr(column, self.direction if self.at == "best" else self.at)
        return found

    def find_step(self, column: MetricColumns, i: int) -> float:
        """Return the step of the run's value; NaN for a mean."""
        steps = getattr(column, f"{self.direction if self.at == 'best' else self.at}_step", None)
        return math.nan if steps is None else float(steps[i])


Asked = str | SortKey  # `loss`, `loss:min`, or a complete key
_TIME = "time"  # the name of the duration, unless a metric or a parameter has this name
Params = Sequence[Mapping[str, Any]]  # item i belongs to row i of the table


def choose_sort(asked: Sequence[Asked], data: IndexTable, params: Iterable[Mapping[str, Any]]) -> tuple[SortKey, ...]:
    """Parse keys such as `acc`, `acc:max`, `lr:max`, most important first; default: the metric of highest priority."""
    if not asked:
        name = min(data.metrics, key=metric_priority, default=None)
        return (SortKey(name, direction_of(name)),) if name is not None else ()
    known = _Known(data, params)
    return tuple(each if isinstance(each, SortKey) else _build_sort_key(each, known) for each in asked)


@dataclass(frozen=True, slots=True)
class _Known:
    """The names by which rows can be sorted. A search for a parameter usually ends at the first run."""

    data: IndexTable
    params: Iterable[Mapping[str, Any]]

    def __contains__(self, name: object) -> bool:
        return name in self.data.metrics or self.is_param(name)

    def is_param(self, name: object) -> bool:
        if isinstance(self.params, ParamsOf) and not has_param(self.data, name):
            return False
        return any(name in each for each in self.params)


def _build_sort_key(asked: str, known: _Known) -> SortKey:
    metrics = known.data.metrics
    name, direction = parse_sort(asked, known)
    if name in metrics:
        return SortKey(name, direction or direction_of(name))
    if known.is_param(name):
        return SortKey(name, direction or "min", is_metric=False)
    if name == _TIME:
        return SortKey(name, direction or "min", is_metric=False, is_time=True)
    params = dict.fromkeys(chain.from_iterable(known.params))
    raise NotFoundError("metric or parameter", name, [*metrics, *params, _TIME])


def parse_sort(asked: str, known: Container[str]) -> tuple[str, Direction | None]:
    """Split a key into name and direction. A name may contain a colon, so the whole text is tried first."""
    if asked in known:
        return asked, None
    name, colon, word = asked.rpartition(":")
    if not colon:
        return asked, None
    directions: dict[str, Direction] = {"min": "min", "max": "max"}
    if word not in directions:
        raise UsageError(f"bad direction {word!r} in {asked}", f"write {name}:min or {name}:max")
    return name, directions[word]


def differing_params(params: Sequence[Mapping[str, Any]], ignore: Sequence[str] = ()) -> list[str]:
    """Return the parameters with several values, in order of appearance; a missing parameter counts as a value."""
    names = dict.fromkeys(chain.from_iterable(params))
    return [name for name in names if name not in ignore and _vary(each.get(name, _MISSING) for each in params)]


def _vary(values: Iterable[Any]) -> bool:
    """Whether the values are not all equal. 1, 1.0 and true are different values, as in the ids of runs."""
    rest = iter(values)
    kind = type(first := next(rest))
    return any(value is not first and (value != first or type(value) is not kind) for value in rest)


@dataclass(frozen=True, slots=True)
class ParamsOf:
    """Iterates over the parameters of the rows `keep`."""

    data: IndexTable
    keep: Sequence[int]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return (self.data.rows[i].params for i in self.keep)


def find_differing(data: IndexTable, keep: Sequence[int], ignore: Sequence[str] = ()) -> list[str]:
    """Return `differing_params` of the rows `keep`. A kept table caches which parameters differ over all its rows."""
    if not isinstance(data, KeptTable) or not keep:
        return differing_params(list(ParamsOf(data, keep)), ignore) if keep else []
    every = remember(data, "differing", lambda: differing_params([row.params for row in data.rows]))
    columns = {name: list_param(data, name, _MISSING) for name in every if name not in ignore}
    return [name for name, values in columns.items() if _vary(map(values.__getitem__, keep))]


def sort_some(data: IndexTable, keep: Sequence[int], keys: Sequence[SortKey], start: int, end: int | None) -> list[int]:
    """Sort the rows `keep` and return those from `start` to `end`. A whole kept table is sorted only once."""
    if not isinstance(data, KeptTable):
        return sort_rows(data, keep, keys, [row.params for row in data.rows])[start:end]

    def sort_all() -> array[int]:
        return array("l", sort_rows(data, range(len(data.rows)), keys, [row.params for row in data.rows]))

    whole = remember(data, ("order", keys), sort_all)
    if len(keep) == len(whole):
        return whole[start:end].tolist()
    return list(islice(filter(frozenset(keep).__contains__, whole), start, end))


def sort_rows(data: IndexTable, keep: Sequence[int], keys: Sequence[SortKey], params: Params) -> list[int]:
    """Sort by the keys, most important first, missing values last. Sorts are stable: the last key is applied first."""
    order = list(keep)
    for key in reversed(keys):
        if not key.is_metric:
            found = [data.rows[i].took_s if key.is_time else params[i].get(key.name) for i in order]
            order = sort_values(order, found, key.order)
            continue
        column = data.metrics[key.name]
        values, rest = key.values(column), list[int]()
        if 0.0 in column.count or not math.isfinite(sum(values)):  # this is rare, and quick to check
            rest = [i for i in order if not (column.count[i] > 0 and math.isfinite(values[i]))]
            order = [i for i in order if column.count[i] > 0 and math.isfinite(values[i])]
        order = sorted(order, key=values.__getitem__, reverse=key.order == "max") + rest
    return order


def sort_values(items: Sequence[T], values: Sequence[Any], direction: Direction) -> list[T]:
    """Sort items by values: numbers, then texts, then missing ones, in this order for either direction."""
    numbers, texts, missing = [], [], []
    for item, value in zip(items, values, strict=True):
        number = parse_number(value)
        if value is None or (number is not None and number != number):  # noqa: PLR0124
            missing.append(item)
        elif number is not None:
            numbers.append((number, item))
        else:
            texts.append((str(value), item))
    is_reversed = direction == "max"
    ordered = [sorted(part, key=itemgetter(0), reverse=is_reversed) for part in (numbers, texts)]
    return [item for part in ordered for _, item in part] + missing


def parse_number(value: Any) -> float | None:
    """Return a number, or the number in a string such as `1e-4`, which YAML reads as a string; else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value if isinstance(value, float) or abs(value) < _LARGEST else math.copysign(math.inf, value > 0 or -1)
    return float(value) if isinstance(value, str) and re.fullmatch(_NUMBER, value, re.ASCII) else None


# ---------------------------------------------------------------- groups


class RunGroup(NamedTuple):
    """Runs that differ only in the grouped parameters. `runs`: rows that count; `others`: how many do not count."""

    study: str
    params: dict[str, Any]
    runs: list[int]
    others: int


class GroupValue(NamedTuple):
    """Mean, standard deviation and number of the values of a metric, one for each run of a group that has it."""

    mean: float | None
    sd: float | None
    n: int


def build_groups(
    data: IndexTable,
    keep: Sequence[int],
    group_by: Sequence[str],
    ignore: Sequence[str] = (),
    counted: frozenset[State] | None = None,
) -> list[RunGroup]:
    """Group runs of equal study and parameters except `group_by`; only done runs count unless `counted` is given."""
    check_known("parameter", group_by, dict.fromkeys(name for i in keep for name in data.rows[i].params))
    shown = differing_params([data.rows[i].params for i in keep], (*ignore, *group_by))
    members: dict[tuple[str, str], list[int]] = {}
    for i in keep:
        row = data.rows[i]
        members.setdefault((row.study, repr([row.params.get(name) for name in shown])), []).append(i)
    groups = []
    for (study, _), rows in members.items():
        first = data.rows[rows[0]].params
        runs = [i for i in rows if data.rows[i].state in (counted or (State.DONE,))]
        params = {name: first[name] for name in shown if name in first}
        groups.append(RunGroup(study, params, runs, len(rows) - len(runs)))
    return groups


def measure_group(column: MetricColumns, group: RunGroup, values: Sequence[float] | None = None) -> GroupValue:
    """Return the mean and standard deviation over the group of `values` (default: last values), and their number."""
    chosen = column.last if values is None else values
    found = [chosen[i] for i in group.runs if column.count[i]]
    return GroupValue(*mean_and_sd(found), len(found))


def sort_groups(data: IndexTable, groups: Sequence[RunGroup], keys: Sequence[SortKey]) -> list[RunGroup]:
    """Sort the groups like rows, by the mean of the runs' best values."""
    order = list(groups)
    for key in reversed(keys):
        order = sort_values(order, [_group_sort_value(data, group, key) for group in order], key.order)
    return order


def _group_sort_value(data: IndexTable, group: RunGroup, key: SortKey) -> Any:
    if key.is_time:
        return mean_and_sd([seconds for i in group.runs if (seconds := data.rows[i].took_s) is not None])[0]
    if not key.is_metric:
        return group.params.get(key.name)
    column = data.metrics[key.name]
    mean = measure_group(column, group, key.values(column)).mean
    return mean if mean is not None and math.isfinite(mean) else None


def best_values(column: MetricColumns, direction: Direction) -> Sequence[float]:
    return column.min if direction == "min" else column.max


def combine_columns(
    columns: Sequence[Sequence[float]], order: Sequence[int], choose: Callable[..., float]
) -> list[float | None]:
    """Return for each row of `order` the largest or smallest finite value; None for a row without a finite value."""
    every = [list(map(column.__getitem__, order)) for column in columns]
    picked = [values for index, values in enumerate(every) if values not in every[:index]]  # each distinct column once
    if picked and all(math.isfinite(sum(values)) for values in picked):
        return list(map(choose, *picked)) if len(picked) > 1 else list(picked[0])
    rows = zip(*picked, strict=True) if picked else [()] * len(order)
    return [choose(finite) if (finite := [value for value in row if math.isfinite(value)]) else None for row in rows]


# ---------------------------------------------------------------- several metrics at once


class Front(NamedTuple):
    """The items that no other item dominates, sorted by the first key, and how many were compared."""

    items: list[int]
    compared: int
    without: int  # items without a finite number for one of the keys


def find_pareto_rows(data: IndexTable, keep: Sequence[int], keys: Sequence[SortKey]) -> Front:
    """Find the rows that no other row dominates. To dominate is to be at least as good by every key, better by one."""
    columns = [[row_value(data, i, key) for i in keep] for key in keys]
    return _find_front(keep, columns, keys)


def find_pareto_groups(data: IndexTable, groups: Sequence[RunGroup], keys: Sequence[SortKey]) -> Front:
    """Find the groups that no other group dominates, by the means of their runs."""
    columns = [[_group_sort_value(data, group, key) for group in groups] for key in keys]
    return _find_front(range(len(groups)), columns, keys)


def find_pareto_runs(data: IndexTable, keep: Sequence[int], names: Sequence[Asked]) -> list[int]:
    """Find the done runs that no other done run dominates. `names` are two or more keys."""
    if len(names) < 2:
        raise UsageError("a Pareto front needs two or more names", "as in pareto('loss', 'time')")
    done = [i for i in keep if data.rows[i].state is State.DONE and not data.rows[i].is_foreign]
    return find_pareto_rows(data, done, choose_sort(names, data, [data.rows[i].params for i in keep])).items


def row_value(data: IndexTable, i: int, key: SortKey) -> Any:
    if key.is_time:
        return data.rows[i].took_s
    if not key.is_metric:
        return data.rows[i].params.get(key.name)
    column = data.metrics[key.name]
    return key.values(column)[i] if column.count[i] else None


def _find_front(items: Sequence[int], columns: Sequence[Sequence[Any]], keys: Sequence[SortKey]) -> Front:
    signs = [1 if key.direction == "min" else -1 for key in keys]
    points = {}
    for item, values in zip(items, zip(*columns, strict=True), strict=True):
        numbers = [number for value in values if (number := parse_number(value)) is not None and math.isfinite(number)]
        if len(numbers) == len(signs):
            points[item] = tuple(sign * number for sign, number in zip(signs, numbers, strict=True))
    compared = list(points)
    return Front([compared[at] for at in find_front(list(points.values()))], len(points), len(items) - len(points))


def find_front(points: Sequence[tuple[float, ...]]) -> list[int]:
    """Return the indexes of the points that no other point dominates, in the order of the points. Less is better, and
    equal points stay. In sorted order only an earlier point can dominate; with two coordinates, only the last found."""
    front: list[int] = []
    for at in sorted(range(len(points)), key=lambda at: points[at]):
        point = points[at]
        rivals = front[-1:] if len(point) == 2 else front
        if not any(points[each] != point and all(map(le, points[each], point)) for each in rivals):
            front.append(at)
    return front
