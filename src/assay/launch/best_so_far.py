"""The best of the runs that have ended, while a study runs."""

from __future__ import annotations

import math
from typing import NamedTuple

from assay.follow.collect import Collector
from assay.follow.entry import Entry
from assay.launch.supervise import Supervisor
from assay.show.formatting import render_number
from assay.values.series import Direction, Summary, direction_of, metric_priority
from assay.values.state import has_result
from assay.values.study import Study


class Goal(NamedTuple):
    """A metric, which way is better, and which of its values a run goes by."""

    metric: str
    direction: Direction
    at: str = "best"

    def measure(self, summary: Summary) -> float:
        name = self.direction if self.at == "best" else self.at
        value: float = getattr(summary, name)
        return value

    def is_better(self, value: float, than: float) -> bool:
        return value < than if self.direction == "min" else value > than


class Leader(NamedTuple):
    run: str
    value: float
    goal: Goal
    is_new: bool = False  # it ended since the last look

    def render_value(self) -> str:
        return f"{self.goal.metric} {render_number(self.value)} ({self.goal.direction})"


def choose_goal(study: Study) -> Goal | None:
    """The metric that the study judges its runs by: of its search, else of its first check; None: it has neither."""
    if study.search is not None:
        objective = study.search.objectives[0]
        return Goal(objective.metric, objective.direction, study.search.at)
    if not study.checks:
        return None
    check = study.checks[0]
    bounds: dict[tuple[bool, bool], Direction] = {(True, False): "max", (False, True): "min"}
    direction = bounds.get((check.min is not None, check.max is not None)) or direction_of(check.metric)
    return Goal(check.metric, direction, check.at)


def _counts(entry: Entry) -> bool:
    return has_result(entry.state, entry.outcome.reason if entry.outcome else "")


class BestSoFar:
    """The best of this call's runs that are done, also of those that were done before it.

    Without a goal it is found by the most informative metric of the first run that ends.
    """

    def __init__(self, goal: Goal | None = None) -> None:
        self._goal = goal
        self._ended: list[Entry] = []  # since the last look
        self._has_looked = False
        self.leader: Leader | None = None

    def note(self, entry: Entry) -> None:
        """A run has ended."""
        if _counts(entry):
            self._ended.append(entry)

    def update(self, supervisor: Supervisor) -> Leader | None:
        """The best run now. One read of the index where runs have ended since the last call, else nothing."""
        if self.leader is not None and self.leader.is_new:
            self.leader = self.leader._replace(is_new=False)
        collector = supervisor.observer
        if not self._ended or not isinstance(collector, Collector):
            return self.leader
        ended, self._ended = self._ended, []
        new = {entry.dir for entry in ended}
        if not self._has_looked:
            earlier = [entry for entry in supervisor.entries if _counts(entry) and entry.dir not in new]
            ended, self._has_looked = [*earlier, *ended], True
        summaries = collector.load_summaries(ended)
        for entry in ended:
            self._compare(entry, summaries.get(entry.dir, {}), entry.dir in new)
        return self.leader

    def _compare(self, entry: Entry, metrics: dict[str, Summary], is_new: bool) -> None:
        if self._goal is None and metrics:
            name = min(metrics, key=metric_priority)
            self._goal = Goal(name, direction_of(name))
        if self._goal is None or self._goal.metric not in metrics:
            return
        value = self._goal.measure(metrics[self._goal.metric])
        if math.isfinite(value) and (self.leader is None or self._goal.is_better(value, self.leader.value)):
            self.leader = Leader(entry.spec.name, value, self._goal, is_new)
