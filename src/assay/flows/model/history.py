"""Times of a check as an execution of the study `bench`, so that histories and change points see them too.

Only what was measured counts, and only as a whole: a check of all cases in which nothing came from the cache. An
execution that lacks the numbers of a layer says that the layer broke, and so it is: cases that are wrong leave theirs
out. What a simulator tells of a run's time is an estimate, and raises no alarm: it is left out as well.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from assay.flows.bench.conclude import build_fingerprint, build_setup
from assay.flows.bench.imports import write_as_run
from assay.flows.collect import closing_quietly
from assay.flows.ingest import refresh_study
from assay.flows.model.figures import find_fresh
from assay.flows.places import StudyPlace
from assay.observe.devices import Devices
from assay.observe.environment import load_environment
from assay.observe.machine import CpuMeter, find_contamination, load_machine
from assay.record.index.sqlite import open_index
from assay.values.benchmark import NOT_REPORTED, BenchExecution, BenchMetric, BenchResult, Machine
from assay.values.benchmark import STUDY as BENCH_STUDY
from assay.values.model import CaseReport, ModelReport, ModelRequest, Step
from assay.values.verdict import VerdictKind

FOREIGN_LIMIT = 0.1  # of all cores: as for benchmarks
KIND = "model"


def _open_meter() -> CpuMeter | None:
    try:
        return CpuMeter()
    except (OSError, ValueError, IndexError):
        return None


@dataclass(slots=True)
class Witness:
    """Looks at the machine before a check, and once more behind it."""

    begun_at: float = field(default_factory=time.time)
    meter: CpuMeter | None = field(default_factory=_open_meter)

    def look(
        self, folder: str, own_cpu_s: float, complain: Callable[[str], None] = lambda _text: None
    ) -> tuple[Machine, str | None]:
        """The machine as it stood, and the commit of what lies in the folder."""
        devices = Devices()
        environment = load_environment(folder, (), devices, complain=complain)
        machine = load_machine(environment, devices, ())
        foreign = self.meter.foreign_share(own_cpu_s, machine.logical_cpus) if self.meter else None
        return replace(machine, foreign_cpu=foreign, packages={}), environment.git.commit if environment.git else None


def add_to_history(
    root: str,
    request: ModelRequest,
    report: ModelReport,
    witness: Witness,
    own_cpu_s: float,
    label: str | None,
    complain: Callable[[str], None] = lambda _text: None,
) -> BenchExecution | None:
    """None: there is nothing to add, and `describe_gap` says why."""
    if describe_gap(request, report):
        return None
    machine, commit = witness.look(request.folder or os.getcwd(), own_cpu_s, complain)
    setup = build_setup(machine, None, report.tools)
    execution = BenchExecution(
        execution_id=os.path.basename(report.run_dir)[-26:],
        method=name_method(report),
        trial=1,
        result=build_result(report),
        run_dir="",
        output_dir="",
        started_at=witness.begun_at,
        ended_at=time.time(),
        label=label,
        commit=commit,
        setup=setup,
        fingerprint=build_fingerprint(setup),
        machine=machine,
        contaminated=find_contamination(machine, FOREIGN_LIMIT),
        extra={"run": report.run_dir, "model": report.model, "reference": report.reference},
    )
    place = StudyPlace(root, BENCH_STUDY)
    os.makedirs(place.dir, exist_ok=True)
    write_as_run(place, execution, label, KIND)
    with closing_quietly(open_index(place.root)) as index:
        refresh_study(index, place, lambda _text: None)
    return execution


def describe_gap(request: ModelRequest, report: ModelReport) -> str:
    """Why a check gives no figures for the history; empty where it does."""
    if request.goal != "check":
        return "it was no check"
    if request.only:
        return "only some cases were computed"
    steps = [step for case in _choose_cases(report) for step in case.steps]
    if not steps:
        return "no case is right"
    return "some times are from the cache" if any(step.cached for step in steps) else ""


def _choose_cases(report: ModelReport) -> list[CaseReport]:
    return [case for case in report.cases if case.verdict.kind is VerdictKind.PASS]


def name_method(report: ModelReport) -> str:
    """`model.<stem>.<target>`, in letters that a command line takes."""
    return ".".join([KIND, *(re.sub(r"[^\w+-]+", "_", part) for part in (report.stem, report.target))])


def build_result(report: ModelReport) -> BenchResult:
    """`Conv_3.compile_s`, `full_model.run_s`: the shortest counts, as in the table; all of them are samples."""
    samples = {
        f"{_label(case)}.{step}_s": found
        for case in _choose_cases(report)
        for step in _choose_steps(report)
        if (found := find_fresh(case, step))
    }
    full = samples.get("full_model.run_s")
    return BenchResult(
        name=name_method(report),
        succeeded=report.verdict.kind is VerdictKind.PASS,
        iters=len(full) if full else None,
        wall_time=min(full) if full else NOT_REPORTED,
        metrics=tuple(BenchMetric(name, min(values)) for name, values in samples.items()),
        samples={name: values for name, values in samples.items() if len(values) > 1},
    )


def _choose_steps(report: ModelReport) -> tuple[Step, ...]:
    return tuple(step for step in Step if step is not Step.RUN or not report.is_estimate)


def _label(case: CaseReport) -> str:
    return case.layer.label if case.layer else "full_model"
