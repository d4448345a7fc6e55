"""Run benchmarks: one process per method and trial, each a run of the study `bench`."""

from __future__ import annotations

from assay.flows.sweep import Doors
from assay.values.benchmark import BenchReport, BenchRequest


def run_benchmarks(request: BenchRequest, doors: Doors | None = None) -> BenchReport:
    """Every method, trial by trial. A child that crashes, hangs or never reports is a recorded failure, and the next
    one still runs. Each execution is a run directory of the study `bench` with `benchmark.json` in it, and is in the
    index when this returns."""
    raise NotImplementedError
