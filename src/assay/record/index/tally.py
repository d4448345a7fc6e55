"""The running summary of one metric of one run.

It comes out the same however the points were grouped: the sum is kept and grows value by value, in order,
never by partial sums (nor by `sum`, which since Python 3.12 corrects itself within one call only).
"""

from __future__ import annotations

import struct
from functools import reduce
from math import isfinite, isnan, nan
from operator import add
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable, Sequence

    from assay.record.index.base import Series
    from assay.values.series import Summary

FIELDS = (
    "count",
    "bad",
    "last",
    "last_step",
    "min",
    "min_step",
    "max",
    "max_step",
    "mean",
    "first_time",
    "last_time",
)
LAYOUT = struct.Struct(f"={len(FIELDS)}d")
NO_SUMMARY = LAYOUT.pack(0, 0, *[nan] * (len(FIELDS) - 2))  # of a run that does not have the metric


class Tally:
    """What a summary needs to go on. NaN: none yet."""

    __slots__ = (
        "bad",
        "count",
        "first_time",
        "last",
        "last_step",
        "last_time",
        "max",
        "max_step",
        "min",
        "min_step",
        "total",
    )

    def __init__(self) -> None:
        self.count = self.bad = 0
        self.total = 0.0  # of the finite values
        self.last = self.last_step = self.first_time = self.last_time = nan
        self.min = self.min_step = self.max = self.max_step = nan

    @classmethod
    def restore(cls, packed: bytes, total: float) -> Tally:
        tally = cls()
        count, bad, *numbers = LAYOUT.unpack(packed)
        tally.last, tally.last_step, tally.min, tally.min_step, tally.max, tally.max_step = numbers[:6]
        _, tally.first_time, tally.last_time = numbers[6:]
        tally.count, tally.bad, tally.total = int(count), int(bad), total
        return tally

    def extend(self, series: Series) -> None:
        steps, times = series.steps, series.times
        values = series.values.tolist()  # an array would create its floats again in each of the passes below
        if not values:
            return
        total = reduce(add, values, self.total)
        if isfinite(total):  # then so is every value
            self.total = total
            self._extend_bounds(values, steps)
        else:
            self._extend_finite(values, steps)
        self.count += len(values)
        self.last, self.last_step = values[-1], steps[-1] if steps else nan
        if times:
            self._extend_times(times)

    def _extend_finite(self, values: list[float], steps: array[float]) -> None:
        """The slow way, when some values are not finite, or the sum is not any more."""
        indices = [index for index, value in enumerate(values) if isfinite(value)]
        self.bad += len(values) - len(indices)
        finite = [values[index] for index in indices]
        self.total = reduce(add, finite, self.total)
        if finite:
            self._extend_bounds(finite, [steps[index] for index in indices] if steps else ())

    def _extend_bounds(self, values: Sequence[float], steps: Sequence[float]) -> None:
        """Of equal values the first one counts. `not >=` is also true of the NaN in the beginning."""
        low, high = min(values), max(values)
        if not low >= self.min:
            self.min, self.min_step = low, steps[values.index(low)] if steps else nan
        if not high <= self.max:
            self.max, self.max_step = high, steps[values.index(high)] if steps else nan

    def _extend_times(self, times: array[float]) -> None:
        holes = isnan(times[0]) or isnan(times[-1])
        known = [time for time in times if not isnan(time)] if holes else times
        if known:
            self.first_time = known[0] if isnan(self.first_time) else self.first_time
            self.last_time = known[-1]

    @property
    def mean(self) -> float:
        finite = self.count - self.bad
        return self.total / finite if finite else nan

    def pack(self) -> bytes:
        """For the compact copy; `total` is stored next to it."""
        return LAYOUT.pack(
            self.count,
            self.bad,
            self.last,
            self.last_step,
            self.min,
            self.min_step,
            self.max,
            self.max_step,
            self.mean,
            self.first_time,
            self.last_time,
        )


def parse_summaries(metrics: Iterable[str], packed: Iterable[bytes]) -> list[Summary]:
    """Many at once: one pass over their joined bytes."""
    from assay.values.series import Summary

    unpacked = LAYOUT.iter_unpack(b"".join(packed))
    return [
        Summary(
            metric,
            int(count),
            last,
            None if isnan(last_step) else last_step,
            low,
            None if isnan(low_step) else low_step,
            high,
            None if isnan(high_step) else high_step,
            mean,
            int(bad),
            None if isnan(first_time) else first_time,
            None if isnan(last_time) else last_time,
        )
        for metric, (count, bad, last, last_step, low, low_step, high, high_step, mean, first_time, last_time) in zip(
            metrics, unpacked, strict=True
        )
    ]
