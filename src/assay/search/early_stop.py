"""Applies the rules of `stop:` while a study runs, to every run that has recorded new points.

Each rung of a run is judged once, with the points that the study's runs have recorded there at that time. Points that
other runs record later do not end a run that has passed. If a run is taken over from a supervisor that has died, its
earlier rungs count as judged by that supervisor, so the run is judged from its next rung on.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

from assay.errors import AssayError, did_you_mean
from assay.follow.entry import Entry
from assay.follow.locations import StudyLocation
from assay.follow.refresh import refresh_study
from assay.launch.steps import RunContext, RunStep
from assay.launch.supervise import LOOK_S, LoopSettings
from assay.observe.columns import Columns
from assay.record import run_directory
from assay.record.index.stored import Index
from assay.search.judge import COMPARING, RungCurve, build_curve, judge_curve
from assay.system.fast_dataclasses import replace
from assay.values.run import Ending, State
from assay.values.study import StopRule

_REST_S = 60.0  # the time without reads after a failure of the index
_LOAD_S = 0.2  # longest time in which one call loads points of other runs, as the supervisor's loop waits for it
_LOOK_SHARE = 20  # a search for new points in a large study takes a while: the pause after it is this many times longer
_MOST_NAMES = 8


class EarlyStop:
    """The points of a study's runs at the rungs of the study's rules.

    Points of this supervisor's runs are added as they are read. For other runs, the index returns how many points there
    are, and the points are loaded if that number has changed.
    """

    def __init__(
        self,
        rules: Sequence[StopRule],
        index: Index,
        location: StudyLocation,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules = rules
        self._metrics = list(dict.fromkeys(rule.metric for rule in rules))
        self._index = index
        self._location = location
        self._clock = clock
        self._curves: list[dict[str, RungCurve]] = [{} for _ in rules]  # for each rule: key of a run → curve
        self._counts: dict[tuple[str, str], int] = {}  # (key, metric) → number of points in the curves
        self._stale: set[tuple[str, str]] = set()  # (key, metric) of curves that have to be loaded again
        self._judged: dict[tuple[str, int], list[int]] = {}  # (key, attempt) → number of judged rungs, by rule
        self._exempt: dict[tuple[str, int], bool] = {}  # (key, attempt) → whether the attempt was begun by hand
        self._next_look = -math.inf
        self._is_ready = False  # whether all points of earlier calls have been loaded

    def note(self, key: str, columns: Columns) -> None:
        """Add points that a run has recorded since the last call."""
        for metric in self._metrics:
            if metric not in columns:
                continue
            steps, values, _ = columns[metric]
            if (key, metric) not in self._counts or not self._add(key, metric, steps, values):
                self._stale.add((key, metric))

    def _add(self, key: str, metric: str, steps: Sequence[float], values: Sequence[float]) -> bool:
        """Add points to the curves of a run. Return False if the points do not follow those that are known."""
        count = self._counts[key, metric]
        numbered = [count + i if math.isnan(step) else step for i, step in enumerate(steps, 1)]
        curves = [self._curves[i][key] for i, rule in enumerate(self._rules) if rule.metric == metric]
        if sorted(numbered) != numbered or numbered[0] < curves[0].last_step:
            return False
        for curve in curves:
            for step, value in zip(numbered, values, strict=True):
                curve.add(step, value)
        self._counts[key, metric] = count + len(values)
        return True

    def prune(self, entries: Sequence[Entry]) -> dict[str, Ending]:
        """Return directory → ending of each run that a rule ends."""
        keys = {self._location.key(entry.dir): entry for entry in entries}
        new = [key for key, entry in keys.items() if (key, entry.attempt) not in self._judged]
        self._stale |= {(key, metric) for key in new for metric in self._metrics}  # points of earlier attempts count
        try:
            self._load_points(keys)
        except (AssayError, OSError):  # the index can be rebuilt; until that is done, no run is ended
            self._next_look = self._clock() + _REST_S
            return {}
        if not self._is_ready:
            return {}
        return {entry.dir: ending for entry in entries if (ending := self._judge(entry)) is not None}

    def _load_points(self, own: Collection[str]) -> None:
        """Load the points of runs whose points in the index are not the known ones; `own` runs are loaded first."""
        began = self._clock()
        if began >= self._next_look:
            self._find_stale(own)
            self._next_look = began + max(LOOK_S, _LOOK_SHARE * (self._clock() - began))
        for key, metric in sorted(self._stale, key=lambda pair: pair[0] not in own):
            if key not in own and self._clock() - began > _LOAD_S:
                return
            self._stale.discard((key, metric))
            series = self._index.load_series(key, metric)
            for curves, rule in zip(self._curves, self._rules, strict=True):
                if rule.metric == metric:
                    curves[key] = build_curve(rule, series.steps, series.values)
            self._counts[key, metric] = len(series.values)
        self._is_ready = True

    def _find_stale(self, own: Collection[str]) -> None:
        table = self._index.load_table([self._location.name], self._metrics)
        compared = {rule.metric for rule in self._rules if rule.rule in COMPARING}
        for metric, columns in table.metrics.items():
            for row, count in zip(table.rows, columns.count, strict=True):
                is_wanted = (metric in compared or row.key in own) and not row.is_foreign  # an upload does not end runs
                if is_wanted and count != self._counts.get((row.key, metric), 0):
                    self._stale.add((row.key, metric))

    def _judge(self, entry: Entry) -> Ending | None:
        key, attempt = self._location.key(entry.dir), entry.attempt
        owns = [curves.get(key) for curves in self._curves]
        judged = self._judged.get((key, attempt))
        if judged is None:
            is_ours = entry.handle is not None and entry.handle.supervisor_pid == os.getpid()
            judged = [0 if is_ours or own is None else len(own.rungs) for own in owns]
            self._judged[key, attempt] = judged
        if self._is_exempt(entry, key):
            return None
        for i, (rule, own) in enumerate(zip(self._rules, owns, strict=True)):
            if own is None:
                continue
            others = (curve for other, curve in self._curves[i].items() if other != key)
            since, judged[i] = judged[i], len(own.rungs)
            if ending := judge_curve(rule, own, others, since):
                return ending
        return None

    def _is_exempt(self, entry: Entry, key: str) -> bool:
        """Return whether an attempt was begun by hand: by job.sh, or by `assay rerun` of a run that a rule ended."""
        if (key, entry.attempt) not in self._exempt:
            is_exempt = entry.handle is not None and entry.handle.supervisor_pid == 0
            if not is_exempt and entry.attempt > 1 and entry.since is None:
                attempts = run_directory.load_history(entry.dir).attempts
                is_exempt = any(each.outcome and each.outcome.state is State.PRUNED for each in attempts)
            self._exempt[key, entry.attempt] = is_exempt
        return self._exempt[key, entry.attempt]

    def describe_missing(self, entries: Sequence[Entry]) -> list[str]:
        """Warn of metrics that no run has ever recorded, after runs have ended."""
        if not any(entry.finished_here for entry in entries):
            return []
        try:
            names = self._index.load_metric_names([self._location.name])
        except (AssayError, OSError):
            return []
        missing = [metric for metric in self._metrics if metric not in names]
        if not names:
            return [f"stop: no run has reported {metric}, nor any other metric" for metric in missing]
        shown = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
        hints = {metric: f" ({hint})" if (hint := did_you_mean(metric, names)) else "" for metric in missing}
        return [f"stop: no run has reported {metric}; the runs report: {shown}{hints[metric]}" for metric in missing]


class StopStep(RunStep):
    _early_stop: EarlyStop

    def begin(self, context: RunContext, loop: LoopSettings) -> LoopSettings:
        prepared = context.prepared
        with suppress(AssayError, OSError):  # runs that cannot be read are left out of comparisons
            refresh_study(context.index, prepared.location)  # a new index may not have runs of earlier calls
        self._early_stop = EarlyStop(prepared.study.stop, context.index, prepared.location)
        context.collector.listen = self._early_stop.note
        return replace(loop, prune=self._early_stop.prune)

    def describe_end(self, entries: Sequence[Entry]) -> Iterable[str]:
        return self._early_stop.describe_missing(entries)
