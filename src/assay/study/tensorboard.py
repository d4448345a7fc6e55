"""`assay sum --tensorboard`: a study for TensorBoard's HParams tab."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from assay.record.index.base import Index
from assay.show.tensorboard import BoardRun, Points, write_board_run
from assay.study.locations import StudyPlace
from assay.study.refresh import refresh_study


def write_hparams_events(index: Index, places: Sequence[StudyPlace], folder: str) -> int:
    """One sub-folder per run with its parameters, last values and series; how many runs."""
    for place in places:
        refresh_study(index, place)
    names = [place.name for place in places]
    summaries = index.load_summaries(names)
    rows = index.load_runs(names)
    for row in rows:
        metrics = summaries.get(row.key, {})
        name = row.key if len(places) > 1 else row.key.partition("/")[2]
        last = {metric: summary.last for metric, summary in metrics.items()}
        write_board_run(folder, BoardRun(name, row.params, last, _load_series(index, row.key, metrics)))
    return len(rows)


def _load_series(index: Index, key: str, metrics: Iterable[str]) -> Iterator[Points]:
    for metric in metrics:
        series = index.load_series(key, metric)
        yield Points(metric, series.steps, series.values, series.times)
