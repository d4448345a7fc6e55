"""Columns as points: easier to hold against what a test expects."""

from __future__ import annotations

from typing import NamedTuple

from assay.observe.columns import Columns


class MetricPoint(NamedTuple):
    """One value of one metric."""

    metric: str
    value: float
    step: float | None = None
    time: float | None = None


def build_points(columns: Columns) -> list[MetricPoint]:
    """Metric by metric, each in the order of its file; what is not known is NaN in a column and None in a point."""
    return [
        MetricPoint(metric, value, _or_none(step), _or_none(time))
        for metric, column in columns.items()
        for step, value, time in zip(*column, strict=True)
    ]


def _or_none(number: float) -> float | None:
    return None if number != number else number  # noqa: PLR0124 (only NaN differs from itself)
