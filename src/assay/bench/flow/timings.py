"""Times that another product measured, kept as an execution of the study `bench`."""

from __future__ import annotations

import os

from assay.bench.flow.execution_builder import build_fingerprint, build_setup
from assay.bench.flow.imports import write_as_run
from assay.bench.values.execution import NOT_REPORTED, STUDY, BenchExecution, BenchMetric, BenchResult
from assay.record.index.sqlite import open_index
from assay.study.api import StudyPlace, closing_quietly, refresh_study
from assay.values.timings import Timings

KIND = "model"


def add_timings(root: str, timings: Timings, label: str | None = None) -> BenchExecution:
    """Write the run and add it to the index, so that histories and change points include it."""
    setup = build_setup(timings.machine, None, timings.tools)
    execution = BenchExecution(
        execution_id=timings.id,
        method=timings.method,
        trial=1,
        result=build_result(timings),
        run_dir="",
        output_dir="",
        started_at=timings.started_at,
        ended_at=timings.ended_at,
        label=label,
        commit=timings.commit,
        setup=setup,
        fingerprint=build_fingerprint(setup),
        machine=timings.machine,
        contaminated=timings.contaminated,
        extra=dict(timings.extra),
    )
    place = StudyPlace(root, STUDY)
    os.makedirs(place.dir, exist_ok=True)
    write_as_run(place, execution, label, KIND)
    with closing_quietly(open_index(place.root)) as index:
        refresh_study(index, place, lambda _text: None)
    return execution


def build_result(timings: Timings) -> BenchResult:
    whole = timings.samples.get(timings.wall_time)
    return BenchResult(
        name=timings.method,
        succeeded=timings.succeeded,
        iters=len(whole) if whole else None,
        wall_time=min(whole) if whole else NOT_REPORTED,
        metrics=tuple(BenchMetric(name, min(values)) for name, values in timings.samples.items()),
        samples={name: values for name, values in timings.samples.items() if len(values) > 1},
    )
