"""The summaries of all metrics of a run, packed into its row: a table of ten thousand runs reads nothing else.

`metrics` holds the numbers of the metrics, in order; `summaries` as many summaries, each as `Tally.pack` gives it.
`carried` is what only a writer needs to go on: of each metric the exact running sum, and how many chunks have come
since the last merge.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from assay.record.index.base import MetricColumns
from assay.record.index.row import DamagedError, checksum, unseal
from assay.record.index.tally import FIELDS, LAYOUT, NO_SUMMARY, Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_SIZE = LAYOUT.size


class Packed(NamedTuple):
    """As it is stored. None: the run has no metrics."""

    metrics: bytes | None = None
    summaries: bytes | None = None
    carried: bytes | None = None


class MetricDigest:
    """One metric of one run on its way: what is known of it, and how many of its chunks are loose."""

    __slots__ = ("loose", "tally")

    def __init__(self, tally: Tally | None = None, loose: int = 0) -> None:
        self.tally = tally or Tally()
        self.loose = loose


Digest = dict[int, MetricDigest]  # by the metric's number


def pack_digest(digest: Digest) -> Packed:
    """By number, so that runs with the same metrics are packed alike."""
    numbers = sorted(digest)
    if not numbers:
        return Packed()
    statuses = [digest[number] for number in numbers]
    summaries = b"".join([each.tally.pack() for each in statuses])
    carried = array("d", [value for each in statuses for value in (each.tally.total, each.loose)]).tobytes()
    metrics = array("q", numbers).tobytes()
    return Packed(metrics, summaries + checksum(metrics, summaries), carried + checksum(metrics, carried))


def unpack_digest(packed: Packed) -> Digest:
    if packed.metrics is None or packed.summaries is None or packed.carried is None:
        return {}
    numbers, carried = array("q", packed.metrics), array("d", unseal(packed.carried, packed.metrics))
    summaries = unseal(packed.summaries, packed.metrics)
    each = zip(numbers, split_summaries(summaries), carried[::2], carried[1::2], strict=True)
    return {number: MetricDigest(Tally.restore(summary, total), int(loose)) for number, summary, total, loose in each}


def open_summaries(metrics: bytes | None, summaries: bytes | None) -> bytes | None:
    """The summaries as they were packed. Raises DamagedError."""
    if metrics is None and summaries is None:
        return None
    return unseal(summaries or b"", metrics)


def split_summaries(summaries: bytes) -> list[bytes]:
    return [summaries[at : at + _SIZE] for at in range(0, len(summaries), _SIZE)]


def build_metric_columns(
    metrics: Sequence[bytes | None], summaries: Sequence[bytes | None], names: Mapping[int, str]
) -> dict[str, MetricColumns]:
    """The columns of a table, from what its runs hold; only of the metrics that are named."""
    wanted = [number for number in _find_numbers(metrics) if number in names]
    shape = array("q", wanted).tobytes()
    pairs = zip(metrics, summaries, strict=True)  # mostly all runs have the same metrics, and nothing is to be arranged
    whole = array("d", b"".join([own if own and has == shape else _arrange(has, own, wanted) for has, own in pairs]))
    width = len(FIELDS)
    strides = [whole[index :: len(wanted) * width] for index in range(len(wanted) * width)]
    ours = [strides[at * width : (at + 1) * width] for at in range(len(wanted))]
    return {names[number]: MetricColumns(names[number], *each) for number, each in zip(wanted, ours, strict=True)}


def build_empty(metric: str, rows: int) -> MetricColumns:
    """The columns of a metric that no run has."""
    return MetricColumns(metric, *(array("d", [value]) * rows for value in LAYOUT.unpack(NO_SUMMARY)))


def check_names(metrics: Iterable[bytes | None], names: Mapping[int, str]) -> None:
    """Raises DamagedError where a metric's name is not stored any more."""
    if not names.keys() >= set(_find_numbers(metrics)):
        raise DamagedError("the name of a metric is missing")


def _find_numbers(metrics: Iterable[bytes | None]) -> list[int]:
    """Those that any of these runs has."""
    return sorted({number for shape in set(metrics) if shape for number in array("q", shape)})


def _arrange(metrics: bytes | None, summaries: bytes | None, wanted: Sequence[int]) -> bytes:
    """The summaries of the wanted metrics in their order; a run that does not have one gets an empty one."""
    known = dict(zip(array("q", metrics or b""), split_summaries(summaries or b""), strict=True))
    return b"".join([known.get(number, NO_SUMMARY) for number in wanted])


def find_metrics(metrics: Iterable[bytes | None], names: Mapping[int, str]) -> list[str]:
    """The names of all metrics that these runs have, sorted."""
    return sorted(names[number] for number in _find_numbers(metrics))
