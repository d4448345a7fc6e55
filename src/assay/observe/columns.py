"""Metrics as columns of numbers: readers fill them without creating an object per point."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence

Column = tuple["array[float]", "array[float]", "array[float]"]
Columns = dict[str, Column]  # metric → steps, values, times; NaN for a missing step or time

NONE = math.nan


def parse_number(text: str | bytes) -> float | None:
    """Parse a number with sign, exponent, nan and inf, but not Python's `1_000`: in a log, this is not a number."""
    values = parse_numbers((text,))
    return values[0] if values else None


def parse_numbers(texts: Sequence[str | bytes]) -> list[float] | None:
    """Parse all texts without a loop in Python; None if a text is not a number."""
    try:
        values = list(map(float, texts))
    except ValueError:
        return None
    # the joined texts are searched once for underscores: texts of numbers are short, and have one type
    is_bytes = bool(texts) and isinstance(texts[0], bytes)
    has_underscore = b"_" in b"".join(texts) if is_bytes else "_" in "".join(texts)  # type: ignore[arg-type]
    return None if has_underscore else values


def add_value(columns: Columns, metric: str, step: float, value: float, time: float) -> None:
    column = columns.get(metric)
    if column is None:
        column = columns[metric] = (array("d"), array("d"), array("d"))
    column[0].append(step)
    column[1].append(value)
    column[2].append(time)


def add_column(
    columns: Columns, metric: str, steps: Iterable[float], values: Iterable[float], times: Iterable[float]
) -> None:
    """Add a column; the three sequences must be equally long."""
    column = columns.get(metric)
    if column is None:
        columns[metric] = (array("d", steps), array("d", values), array("d", times))
        return
    column[0].extend(steps)
    column[1].extend(values)
    column[2].extend(times)
