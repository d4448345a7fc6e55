"""The runs of a study as Python objects, for notebooks and scripts.

import assay
runs = assay.runs("norm-ablation")
frame = runs.to_pandas()
for run in runs:
    print(run.name, run.state, run.metrics.get("test.acc"))
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.errors import MissingExtraError, NotFoundError
from assay.reading import api as reading
from assay.show.notebook import render_runs
from assay.values.series import metric_priority
from assay.values.state import State
from assay.values.table import Column, Table
from assay.values.where import parse_where

if TYPE_CHECKING:
    from pandas import DataFrame

    from assay.reading.api import LoadedRuns

__all__ = ["Run", "Runs", "Series", "runs"]


_OWN = ("name", "state", "seconds")  # the keys of every row
_MOST_METRICS = 6  # columns in a notebook's table


class Series(NamedTuple):
    """One metric of one run, point by point; a missing step or time is NaN."""

    steps: list[float]
    values: list[float]
    times: list[float]


@dataclass(frozen=True, slots=True)
class Run:
    """One run as it was when `assay.runs` was called."""

    name: str
    state: str
    params: Mapping[str, Any]
    dir: str
    metrics: Mapping[str, float]  # last values
    best: Mapping[str, float]  # best values, in the direction that the metric's name implies
    id: str = ""
    attempt: int = 1
    seconds: float | None = None  # how long the last attempt took
    reason: str = ""
    tags: tuple[str, ...] = ()  # set by `assay tag`
    note: str = ""  # the texts of `assay note`, one after another
    ended_at: float | None = None  # when the last attempt ended, in seconds since the epoch
    received: Mapping[str, Any] | None = None  # for an uploaded or pulled run: how, from, by, at

    def log(self, command: str | None = None) -> str:
        """Return the newest output of the command that failed, else of the last command that began."""
        with open(reading.find_log(self.dir, command), encoding="utf-8", errors="replace") as file:
            return file.read()


class Runs:
    """The runs of a study, or some of them. Iterable, and subscriptable by a run's name or its position."""

    study: str
    root: str

    def __init__(
        self, study: str, root: str, runs: list[Run], loaded: LoadedRuns | None = None, rows: Sequence[int] = ()
    ) -> None:
        self.study = study
        self.root = root
        self._runs = runs
        self._loaded = loaded  # all runs of the study; item i of `runs` is row `rows[i]` of its table
        self._rows = rows

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"<{len(self)} runs of {self.study!r} in {self.root!r}>"

    def _repr_html_(self) -> str:
        """Return a table for a notebook."""
        return render_runs(self.study, build_table(self._runs), count_states(self._runs))

    def __getitem__(self, name: str | int) -> Run:
        if not isinstance(name, str):
            return self._runs[name]
        found = next((run for run in self._runs if run.name == name), None)
        if found is None:
            raise NotFoundError("run", name, [run.name for run in self._runs])
        return found

    def where(self, expression: str) -> Runs:
        """Return the runs that match, as in `assay sum --where`: `runs.where("lr < 0.1 and best(loss) < 0.3")`."""
        where = parse_where(expression)
        return self._choose(reading.choose_rows(where, self._loaded.table) if self._loaded else ())

    def pareto(self, *names: str) -> Runs:
        """Return the finished runs that no other run beats in all `names`: `runs.pareto("loss", "time", "size:max")`.

        `names`: metrics, compared by their best values, parameters, or `time`. The result is sorted by the first name.
        """
        return self._choose(reading.find_pareto_runs(self._loaded.table, self._rows, names) if self._loaded else ())

    def _choose(self, rows: Sequence[int]) -> Runs:
        mine = dict(zip(self._rows, self._runs, strict=True))
        kept = [i for i in rows if i in mine]
        return Runs(self.study, self.root, [mine[i] for i in kept], self._loaded, kept)

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat dict per run: name, state, seconds, parameters, metrics (last) and `best <metric>`.

        A name that would hide another key gets a longer one: `param name`, `last <metric>`.
        """
        taken = {*_OWN, *(name for run in self._runs for name in run.params)}
        return [_build_row(run, taken) for run in self._runs]

    def to_pandas(self) -> DataFrame:
        """Return `rows()` as a data frame, indexed by the runs' names."""
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtraError("a data frame", "frames") from error
        frame = pd.DataFrame(self.rows())
        return frame.set_index("name") if len(frame) else frame

    def series(self, run: str | Run, metric: str) -> Series:
        """Return all points of one metric of one run."""
        chosen = run if isinstance(run, Run) else self[run]
        if metric not in chosen.metrics:
            raise NotFoundError("metric", metric, chosen.metrics)
        return Series(*reading.load_points(self.root, f"{self.study}/{os.path.basename(chosen.dir)}", metric))


def _build_row(run: Run, taken: set[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": run.name, "state": run.state, "seconds": run.seconds}
    row.update({f"param {name}" if name in _OWN else name: value for name, value in run.params.items()})
    for metric, value in run.metrics.items():
        row[f"last {metric}" if metric in taken else metric] = value
    row.update({f"best {metric}": value for metric, value in run.best.items()})
    return row


def count_states(runs: Sequence[Run]) -> dict[str, int]:
    """Return the number of runs in each state; states that can still change come last."""
    found = [run.state for run in runs]
    order = sorted(State, key=lambda state: not state.is_over)
    return {str(state): found.count(state) for state in order if state in found}


def build_table(runs: Sequence[Run]) -> Table:
    """Build a table of runs: state, the parameters that differ, the most informative metrics, time."""
    params = reading.differing_params([run.params for run in runs], ())
    metrics = sorted(dict.fromkeys(name for run in runs for name in run.metrics), key=metric_priority)[:_MOST_METRICS]
    columns = [Column("run"), Column("state", "state")]
    columns += [Column(name, digits=None) for name in params]
    columns += [*(Column(name, "number") for name in metrics), Column("time", "clock")]
    rows = [
        (run.name, run.state, *map(run.params.get, params), *map(run.metrics.get, metrics), run.seconds) for run in runs
    ]
    return Table(tuple(columns), rows)


def runs(study: str, root: str | None = None, *, where: str | None = None) -> Runs:
    """Return the runs of a study, by its name or folder, or of `study/pattern*`; the index is updated from the run
    directories first. `where`: only the runs that match, as in `assay sum --where`."""
    loaded = reading.load_study_runs(study, root)
    every = range(len(loaded.fields))
    found = Runs(loaded.location.name, loaded.location.root, [Run(**each) for each in loaded.fields], loaded, every)
    if loaded.patterns:
        found = found._choose(reading.match_rows(loaded.table, loaded.patterns))  # noqa: SLF001 same module
    return found if where is None else found.where(where)


class _CallableModule(ModuleType):
    """Makes `assay.runs("study")` work also after `import assay.runs`, which sets `assay.runs` to this module."""

    def __call__(self, study: str, root: str | None = None, *, where: str | None = None) -> Runs:
        return runs(study, root, where=where)


sys.modules[__name__].__class__ = _CallableModule
