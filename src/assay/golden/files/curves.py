"""A recording in a file of another tool, as curves: of a golden every value, of a run those at the golden's steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, isfinite

from assay.golden.files.formats import (
    CSV,
    EVENTS,
    JSON_LINES,
    MLLOG,
    TITAN,
    Facts,
    Point,
    open_document,
    parse_lines,
    refuse,
)
from assay.golden.files.sources import Source
from assay.golden.values import Track
from assay.system.fast_dataclasses import dataclass

Wanted = Mapping[str, frozenset[int]]  # metric → the steps that are kept
_LINES = (CSV, EVENTS, JSON_LINES, MLLOG, TITAN)
_MOST_VALUES = 1_000_000  # of a golden
_MOST_METRICS = 10_000


@dataclass(slots=True)
class Extent:
    """All steps of a metric, also those that were not kept."""

    first: float = inf
    last: float = -inf
    count: int = 0
    bad: tuple[float, float | str] | None = None  # the first step whose value is not a finite number, and the value
    widest: float = 0.0  # between two steps that follow each other
    empty: float = -inf  # the last step with null, or an empty cell

    @property
    def interval(self) -> float:
        """Between two steps, in the mean; 0 of a single one."""
        return (self.last - self.first) / (self.count - 1) if self.count > 1 else 0.0

    @property
    def is_cut(self) -> bool:
        """Whether it became empty: where the next value was due, and until the end. Many tools write NaN as null."""
        return self.count > 1 and self.empty - self.last >= self.widest


@dataclass(frozen=True, slots=True)
class CurveFile:
    """One recording. `name`: as messages name it."""

    name: str
    format: str
    tracks: Mapping[str, Track]
    extents: Mapping[str, Extent]
    facts: Facts


def load_curves(source: Source, wanted: Wanted | None = None) -> list[CurveFile]:
    """The recordings of a file: RCP files and goldens of ours hold several. Raises UsageError where it holds none."""
    path, facts, found = source.paths[0], Facts(), list[_Collector]()
    if source.format in _LINES:
        found.append(_Collector(wanted))
        for each in source.paths:
            found[0].add(each, parse_lines(each, source.format, facts))
    else:
        for points in open_document(path, source.format, source.entry, facts):
            found.append(_Collector(wanted))
            found[-1].add(path, points)
    if not any(each.extents for each in found):
        texts = [f"{name} is {text!r} at step {step:g}" for each in found for name, (step, text) in each.texts.items()]
        hint = "each value needs a step: a key or column named step, global_step, iteration, iter or epoch"
        why = f"; {texts[0]}, which is not a number" if texts else ""
        refuse(source.name, f"it holds no value with a step{why}", "write numbers as in 0.5" if texts else hint)
    return [CurveFile(source.name, source.format, each.build_tracks(), each.extents, facts) for each in found]


class _Collector:
    """Values by metric and step. `wanted`: other values are counted alone, so that a long run takes little memory."""

    def __init__(self, wanted: Wanted | None) -> None:
        self.wanted = wanted
        self.values: dict[str, dict[int, float]] = {}
        self.extents: dict[str, Extent] = {}
        self.texts: dict[str, tuple[float, str]] = {}
        self.empty: dict[str, float] = {}

    def add(self, path: str, points: Iterable[Point]) -> None:
        for metric, step, value in points:
            if not isfinite(step):
                continue
            if value is None:
                self.empty[metric] = max(step, self.empty.get(metric, step))
                continue
            if isinstance(value, str):
                self.texts.setdefault(metric, (step, value))
                continue
            extent = self.extents.setdefault(metric, Extent())
            extent.count += 1
            if extent.count == 1 and len(self.extents) > _MOST_METRICS:
                refuse(path, f"it has more than {_MOST_METRICS} metrics")
            extent.widest = max(extent.widest, step - extent.last if extent.count > 1 else 0.0)
            extent.first, extent.last = min(step, extent.first), max(step, extent.last)
            if extent.bad is None and not isfinite(value):
                extent.bad = step, value
            if self.wanted is None or step in self.wanted.get(metric, ()):
                self._keep(path, metric, step, value)
        for metric in self.texts.keys() & self.extents.keys():  # a name that never has a number is not a metric
            self.extents[metric].bad = self.texts[metric]
        for metric in self.empty.keys() & self.extents.keys():
            self.extents[metric].empty = self.empty[metric]

    def build_tracks(self) -> dict[str, Track]:
        found = {metric: sorted(values.items()) for metric, values in self.values.items()}
        rows = {metric: [(step, value, repr(value)) for step, value in each] for metric, each in found.items()}
        return {metric: Track(*(tuple(column) for column in zip(*each, strict=True))) for metric, each in rows.items()}

    def _keep(self, path: str, metric: str, step: float, value: float) -> None:
        values, at = self.values.setdefault(metric, {}), int(step)
        if at != step:
            refuse(path, f"{metric}: the step {step:g} is not a whole number", "count iterations, not parts of epochs")
        if repr(values.setdefault(at, value)) != repr(value):
            hint = "keep one of them; of a run that was resumed, give the file of one attempt"
            refuse(path, f"{metric} has step {at} twice, {values[at]!r} and {value!r}", hint)
        if len(values) > _MOST_VALUES:
            refuse(
                path, f"{metric} has more than {_MOST_VALUES:,} values", "keep every tenth step of a golden, or fewer"
            )
