"""Numbers of a check where tables, plots and histories find them: one point for each layer."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator

from assay.values import layout
from assay.values.model import CaseReport, ModelReport, Step

POINTS_FILE = "model.jsonl"  # in metrics/


def write_figures(run_dir: str, report: ModelReport) -> None:
    """`metrics/model.jsonl`: errors and times over the layers' numbers, and the full model's under `full.`."""
    lines = [json.dumps(point) for point in build_points(report)]
    if not lines:
        return
    folder = os.path.join(run_dir, layout.METRICS_DIR)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, POINTS_FILE), "w", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))


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
    for step in Step:
        fresh = [each for each in case.steps if each.step is step and each.is_ok and not each.cached]
        if fresh:
            found[f"{step}_s"] = min(fresh[-1].times_s) if fresh[-1].times_s else fresh[-1].elapsed_s
    return {name: value for name, value in found.items() if not math.isnan(value)}
