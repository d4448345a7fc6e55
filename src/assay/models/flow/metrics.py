"""Numbers of a check where tables, plots and viewers find them: one point for each layer, one slice for each step."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence

from assay.models.report.trace import render_chrome, render_perfetto, render_slices_csv
from assay.models.values.model import CaseReport, ModelReport, Step, StepOutcome
from assay.models.values.trace import Slice
from assay.system.files import TEMPORARY_SUFFIX, write_atomic
from assay.values import layout

POINTS_FILE = "model.jsonl"  # in metrics/


def write_figures(run_dir: str, report: ModelReport) -> None:
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
    """Times that were remembered instead of measured are no figures."""
    found = {
        "local_error": max((each.error for each in case.local), default=math.nan),
        "accumulated_error": max((each.error for each in case.accumulated), default=math.nan),
    }
    found |= {f"{step}_s": min(measured) for step in Step if (measured := find_fresh(case, step))}
    return {name: value for name, value in found.items() if not math.isnan(value)}


def find_fresh(case: CaseReport, step: Step) -> tuple[float, ...]:
    """Seconds that were measured now: of each timed execution, or of the step as a whole; none where it is from the
    store or failed."""
    outcomes: list[StepOutcome] = [
        each for each in case.steps if each.step is step and each.is_ok and not each.cached and not each.is_copy
    ]
    return (outcomes[-1].times_s or (outcomes[-1].elapsed_s,)) if outcomes else ()


# ---------------------------------------------------------------- what was done when


def write_trace(run_dir: str, slices: Sequence[Slice]) -> None:
    """`trace.json`, `.pb` and `.csv`: every step of every case that was computed, on a track per target and step."""
    texts = {"chrome": render_chrome(slices).encode(), "perfetto": render_perfetto(slices)}
    texts["csv"] = render_slices_csv(slices).encode()
    for form, name in layout.MODEL_TRACE_FILES.items():
        _write_bytes(os.path.join(run_dir, name), texts[form])


def _write_bytes(path: str, content: bytes) -> None:
    aside = f"{path}{TEMPORARY_SUFFIX}"
    with open(aside, "wb") as file:
        file.write(content)
    os.replace(aside, path)
