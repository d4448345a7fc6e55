"""Times of a check, for the benchmark history.

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

from assay.models.flow.metrics import find_fresh
from assay.models.values.model import CaseReport, ModelReport, ModelRequest, Step
from assay.observe.devices import Devices
from assay.observe.environment import load_environment
from assay.observe.machine import CpuMeter, find_contamination, load_machine
from assay.values.machine import Machine
from assay.values.timings import Timings
from assay.values.verdict import VerdictKind

FOREIGN_LIMIT = 0.1  # of all cores: as for benchmarks
KIND = "model"


def _open_meter() -> CpuMeter | None:
    try:
        return CpuMeter()
    except (OSError, ValueError, IndexError):
        return None


@dataclass(slots=True)
class MachineObserver:
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


def build_timings(
    request: ModelRequest,
    report: ModelReport,
    observer: MachineObserver,
    own_cpu_s: float,
    complain: Callable[[str], None] = lambda _text: None,
) -> Timings | None:
    """None: there is nothing to keep, and `describe_gap` says why."""
    if describe_gap(request, report):
        return None
    machine, commit = observer.look(request.folder or os.getcwd(), own_cpu_s, complain)
    return Timings(
        id=os.path.basename(report.run_dir)[-26:],
        method=name_method(report),
        samples=collect_samples(report),
        wall_time="full_model.run_s",
        succeeded=report.verdict.kind is VerdictKind.PASS,
        machine=machine,
        tools=report.tools,
        commit=commit,
        started_at=observer.begun_at,
        ended_at=time.time(),
        contaminated=find_contamination(machine, FOREIGN_LIMIT),
        extra={"run": report.run_dir, "model": report.model, "reference": report.reference},
    )


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


def collect_samples(report: ModelReport) -> dict[str, tuple[float, ...]]:
    """`Conv_3.compile_s`, `full_model.run_s`: every time that was measured."""
    return {
        f"{_label(case)}.{step}_s": tuple(found)
        for case in _choose_cases(report)
        for step in _choose_steps(report)
        if (found := find_fresh(case, step))
    }


def _choose_steps(report: ModelReport) -> tuple[Step, ...]:
    return tuple(step for step in Step if step is not Step.RUN or not report.is_estimate)


def _label(case: CaseReport) -> str:
    return case.layer.label if case.layer else "full_model"
