"""The summaries of a run's metrics: running summaries, and packed ones in the run's row: a table reads only these.

A running summary is the same however the points were grouped: its sum grows value by value, in order, never by
partial sums (nor by `sum`, which since Python 3.12 corrects rounding only within one call).

In a packed digest, `metrics` has the numbers of the metrics, in order; `summaries` as many summaries of `Tally.pack`.
`carried` is what only a writer needs to continue: the exact running sum of each metric, and its number of chunks
since the last merge.
"""

from __future__ import annotations

import struct
from array import array
from functools import reduce
from math import isfinite, isnan, nan
from operator import add
from typing import TYPE_CHECKING

from assay.record.index.base import MetricColumns
from assay.record.index.packing import DamagedError, checksum, unseal, unseal_all
from assay.system.fast_dataclasses import NamedTuple
from assay.values.series import Summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FIELDS = MetricColumns._fields[1:]
LAYOUT = struct.Struct(f"={len(FIELDS)}d")
NO_SUMMARY = LAYOUT.pack(0, 0, *[nan] * (len(FIELDS) - 2))  # the summary of a metric that a run does not have


class Tally:
    """The running summary of a metric. NaN: there is no value yet."""

    __slots__ = (*(name for name in FIELDS if name != "mean"), "total")

    def __init__(self) -> None:
        self.count = self.bad = 0
        self.total = 0.0  # the sum of the finite values
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

    def extend(self, steps: Sequence[float], values: Sequence[float], times: Sequence[float]) -> None:
        """Add points. Of the times, only the first and the last are needed, if those are not NaN."""
        if isinstance(values, array):
            values = values.tolist()  # an array would create its floats again in each pass below
        if not values:
            return
        total = reduce(add, values, self.total)
        if isfinite(total):  # a finite sum has only finite values
            self.total = total
            self._extend_bounds(values, steps)
        else:
            # the slow case: some values are not finite, or the sum of finite ones is too large
            indices = [index for index, value in enumerate(values) if isfinite(value)]
            self.bad += len(values) - len(indices)
            finite = [values[index] for index in indices]
            self.total = reduce(add, finite, self.total)
            if finite:
                self._extend_bounds(finite, [steps[index] for index in indices] if steps else ())
        self.count += len(values)
        self.last, self.last_step = values[-1], steps[-1] if steps else nan
        has_holes = bool(times) and (isnan(times[0]) or isnan(times[-1]))
        known = [time for time in times if not isnan(time)] if has_holes else times
        if known:
            self.first_time = known[0] if isnan(self.first_time) else self.first_time
            self.last_time = known[-1]

    def _extend_bounds(self, values: Sequence[float], steps: Sequence[float]) -> None:
        """Update min and max; the first of equal values counts. `not >=` is also true for the initial NaN."""
        low, high = min(values), max(values)
        if not low >= self.min:
            self.min, self.min_step = low, steps[values.index(low)] if steps else nan
        if not high <= self.max:
            self.max, self.max_step = high, steps[values.index(high)] if steps else nan

    @property
    def mean(self) -> float:
        finite = self.count - self.bad
        return self.total / finite if finite else nan

    def pack(self) -> bytes:
        """Pack the summary without `total`, which is stored separately."""
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

    def carry(self) -> tuple[bytes, float]:
        """Return the summary and its `total`, from which `restore` builds the tally again, also in another process."""
        return self.pack(), self.total


def parse_summaries(metrics: Iterable[str], packed: Iterable[bytes]) -> list[Summary]:
    """Parse many summaries at once, in one pass over their joined bytes."""
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


class Packed(NamedTuple):
    """The digest of a run as it is stored. The fields are None if the run has no metrics."""

    metrics: bytes | None = None
    summaries: bytes | None = None
    carried: bytes | None = None


class MetricDigest:
    """The digest of one metric of a run: its summary, and the number of its unmerged chunks."""

    __slots__ = ("loose", "tally")

    def __init__(self, tally: Tally | None = None, loose: int = 0) -> None:
        self.tally = tally or Tally()
        self.loose = loose


Digest = dict[int, MetricDigest]  # number of a metric → its digest


def pack_digest(digest: Digest) -> Packed:
    """Pack metrics in the order of their numbers, so that runs with the same metrics have equal bytes."""
    return _pack({number: (*each.tally.carry(), each.loose) for number, each in digest.items()})


def pack_summaries(summaries: Mapping[int, tuple[bytes, float]]) -> Packed:
    """Pack the summaries of a run without chunks."""
    return _pack({number: (*each, 0) for number, each in summaries.items()})


def _pack(known: Mapping[int, tuple[bytes, float, int]]) -> Packed:
    numbers = sorted(known)
    if not numbers:
        return Packed()
    summaries = b"".join([known[number][0] for number in numbers])
    carried = array("d", [value for number in numbers for value in known[number][1:]]).tobytes()
    metrics = array("q", numbers).tobytes()
    return Packed(metrics, summaries + checksum(metrics, summaries), carried + checksum(metrics, carried))


def unpack_digest(packed: Packed) -> Digest:
    if packed.metrics is None or packed.summaries is None or packed.carried is None:
        return {}
    numbers, carried = array("q", packed.metrics), array("d", unseal(packed.carried, packed.metrics))
    summaries = unseal(packed.summaries, packed.metrics)
    each = zip(numbers, split_summaries(summaries), carried[::2], carried[1::2], strict=True)
    return {number: MetricDigest(Tally.restore(summary, total), int(loose)) for number, summary, total, loose in each}


def open_all_summaries(metrics: Sequence[bytes | None], summaries: Sequence[bytes | None]) -> list[bytes | None]:
    """Check and open the packed summaries of thousands of runs; raise DamagedError."""
    having = [at for at, has in enumerate(metrics) if has is not None or summaries[at] is not None]
    if len(having) == len(metrics):
        return list(unseal_all([own or b"" for own in summaries], [has or b"" for has in metrics]))
    opened: list[bytes | None] = [None] * len(metrics)
    found = unseal_all([summaries[at] or b"" for at in having], [metrics[at] or b"" for at in having])
    for at, own in zip(having, found, strict=True):
        opened[at] = own
    return opened


def split_summaries(summaries: bytes) -> list[bytes]:
    return [summaries[at : at + LAYOUT.size] for at in range(0, len(summaries), LAYOUT.size)]


def build_metric_columns(
    metrics: Sequence[bytes | None], summaries: Sequence[bytes | None], names: Mapping[int, str]
) -> dict[str, MetricColumns]:
    """Build the columns of a table from the summaries of its runs, only for the metrics in `names`."""
    wanted = [number for number in _find_numbers(metrics) if number in names]
    shape = array("q", wanted).tobytes()
    pairs = zip(metrics, summaries, strict=True)  # usually all runs have the same metrics, so that nothing is arranged
    whole = array("d", b"".join([own if own and has == shape else _arrange(has, own, wanted) for has, own in pairs]))
    width = len(FIELDS)
    strides = [whole[index :: len(wanted) * width] for index in range(len(wanted) * width)]
    ours = [strides[at * width : (at + 1) * width] for at in range(len(wanted))]
    return {names[number]: MetricColumns(names[number], *each) for number, each in zip(wanted, ours, strict=True)}


def build_empty(metric: str, rows: int) -> MetricColumns:
    """Build the columns of a metric that none of the runs has."""
    return MetricColumns(metric, *(array("d", [value]) * rows for value in LAYOUT.unpack(NO_SUMMARY)))


def check_names(metrics: Iterable[bytes | None], names: Mapping[int, str]) -> None:
    """Raise DamagedError if the name of a metric is missing."""
    if not names.keys() >= set(_find_numbers(metrics)):
        raise DamagedError("the name of a metric is missing")


def _find_numbers(metrics: Iterable[bytes | None]) -> list[int]:
    """Return the numbers of all metrics that these runs have."""
    return sorted({number for shape in set(metrics) if shape for number in array("q", shape)})


def _arrange(metrics: bytes | None, summaries: bytes | None, wanted: Sequence[int]) -> bytes:
    """Return a run's summaries in the order of `wanted`, with an empty summary for a metric that it does not have."""
    known = dict(zip(array("q", metrics or b""), split_summaries(summaries or b""), strict=True))
    return b"".join([known.get(number, NO_SUMMARY) for number in wanted])


def find_metrics(metrics: Iterable[bytes | None], names: Mapping[int, str]) -> list[str]:
    """Return the names of all metrics that these runs have, sorted."""
    return sorted(names[number] for number in _find_numbers(metrics))
