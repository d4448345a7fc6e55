"""Numbers of a check for tables, plots, viewers and the benchmark history.

The history gets only complete measurements: a check of all cases in which nothing came from the cache. An execution
without the numbers of a layer says that the layer broke: cases that fail are left out. The run time of a simulator is
an estimate and is left out as well.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from assay.models.trace import Slice, render_chrome, render_perfetto, render_slices_csv
from assay.models.values.layout import MODEL_TRACE_FILES
from assay.models.values.model import FULL_MODEL, CaseReport, ModelReport, ModelRequest, Step
from assay.observe.devices import Devices
from assay.observe.environment import load_environment
from assay.observe.machine import CpuMeter, find_contamination, load_machine
from assay.system.files import write_atomic
from assay.values import layout
from assay.values.machine import Machine, Timings
from assay.values.verdict import VerdictKind

POINTS_FILE = "model.jsonl"  # in metrics/


def write_metrics(run_dir: str, report: ModelReport) -> None:
    """`metrics/model.jsonl`: errors and times over the layers' numbers, and the full model's under `full.`."""
    lines = [json.dumps(point) for point in build_points(report)]
    if not lines:
        return
    folder = os.path.join(run_dir, layout.METRICS_DIR)
    os.makedirs(folder, exist_ok=True)
    write_atomic(os.path.join(folder, POINTS_FILE), "".join(f"{line}\n" for line in lines))


def build_points(report: ModelReport) -> Iterator[dict[str, float]]:
    now = time.time()
    for case in report.cases:
        numbers = {name: value for name, value in build_numbers(case).items() if math.isfinite(value)}
        if case.layer is None:
            yield {"time": now, **{f"full.{name}": value for name, value in numbers.items()}}
        elif numbers:
            yield {"step": case.layer.number, "time": now, **numbers}


def build_numbers(case: CaseReport) -> dict[str, float]:
    """Times that were remembered instead of measured are not results."""
    found = {
        "local_error": max((each.error for each in case.local), default=math.nan),
        "accumulated_error": max((each.error for each in case.accumulated), default=math.nan),
    }
    found |= {f"{step}_s": min(measured) for step in Step if (measured := find_fresh(case, step))}
    return {name: value for name, value in found.items() if not math.isnan(value)}


def find_fresh(case: CaseReport, step: Step) -> tuple[float, ...]:
    """Seconds that were measured now: of each timed execution, or of the step as a whole; none where it is from the
    store or failed."""
    for each in reversed(case.steps):
        if each.step is step and each.is_ok and not each.cached and not each.is_copy:
            return each.times_s or (each.elapsed_s,)
    return ()


# ---------------------------------------------------------------- what was done when


def write_trace(run_dir: str, slices: Sequence[Slice]) -> None:
    """`trace.json`, `.pb` and `.csv`: every step of every case that was computed, on a track per target and step."""
    texts = {"chrome": render_chrome(slices).encode(), "perfetto": render_perfetto(slices)}
    texts["csv"] = render_slices_csv(slices).encode()
    for form, name in MODEL_TRACE_FILES.items():
        write_atomic(os.path.join(run_dir, name), texts[form])


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

    def load_state(self, folder: str, own_cpu_s: float, complain: Callable[[str], None]) -> tuple[Machine, str | None]:
        """The machine as it stood, and the commit of what is in the folder."""
        devices = Devices()
        environment = load_environment(folder, (), devices, complain=complain)
        machine = load_machine(environment, devices, ())
        foreign = self.meter.foreign_fraction(own_cpu_s, machine.logical_cpus) if self.meter else None
        return replace(machine, foreign_cpu=foreign, packages={}), environment.git.commit if environment.git else None


def build_timings(
    request: ModelRequest,
    report: ModelReport,
    observer: MachineObserver,
    own_cpu_s: float,
    complain: Callable[[str], None] = lambda _text: None,
) -> Timings | None:
    """None: it is not a whole measurement."""
    if not is_whole(request, report):
        return None
    machine, commit = observer.load_state(request.folder or os.getcwd(), own_cpu_s, complain)
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


def is_whole(request: ModelRequest, report: ModelReport) -> bool:
    """A check of all cases, of which some passed and none came from the cache."""
    steps = [step for case in _choose_cases(report) for step in case.steps]
    return request.goal == "check" and not request.only and bool(steps) and not any(step.cached for step in steps)


def _choose_cases(report: ModelReport) -> list[CaseReport]:
    return [case for case in report.cases if case.verdict.kind is VerdictKind.PASS]


def name_method(report: ModelReport) -> str:
    """`model.<stem>.<target>`, in letters that a command line takes."""
    return ".".join([KIND, *(re.sub(r"[^\w+-]+", "_", part) for part in (report.stem, report.target))])


def collect_samples(report: ModelReport) -> dict[str, tuple[float, ...]]:
    """`Conv_3.compile_s`, `full_model.run_s`: every time that was measured."""
    samples = {}
    for case in _choose_cases(report):
        label = case.layer.label if case.layer else FULL_MODEL
        for step in Step:
            found = find_fresh(case, step)
            if found and not (step is Step.RUN and report.is_estimate):
                samples[f"{label}.{step}_s"] = found
    return samples
