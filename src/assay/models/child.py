"""The command of a model's run: `python -m assay child model RUN_DIR REQUEST`.

REQUEST is JSON, or the path of a JSON file. The command keeps a worker process for each back end, prints a line for
each case, and writes the report `model.json` to the run directory. The report contains what the target does wrong; the
command exits with the report's exit code, so that the state of the run agrees with the report.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

from assay.errors import AssayError, InfrastructureError
from assay.models.flow.artifact_builder import ArtifactBuilder, Scratch
from assay.models.flow.bisect import bisect_model
from assay.models.flow.check import check_model
from assay.models.flow.reduce import reduce_failure
from assay.models.records import MODEL_ERROR_FILE, MODEL_TENSORS_DIR, MODEL_TRACE_FILES, write_report
from assay.models.report.check import render_case_line
from assay.models.report.summary import find_fresh
from assay.models.store.artifacts import ArtifactStore
from assay.models.trace import Slice, render_chrome, render_perfetto, render_slices_csv
from assay.models.values.model import CaseReport, ModelReport, ModelRequest, Step
from assay.plugins import read_child_words
from assay.system.files import read_text, require_folder, write_atomic
from assay.values import layout
from assay.values.plain import build_plain, parse_plain

_GOALS = {"check": check_model, "compare": check_model, "bisect": bisect_model, "reduce": reduce_failure}
POINTS_FILE = "model.jsonl"  # in the folder metrics/


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    run_dir, request = read_child_words("model", words, run_dir=require_folder, request=_load_request)
    try:
        return int(examine(request, run_dir).exit_code)
    except (AssayError, OSError) as error:
        # an OSError is the system's: a full disk, a folder without permission to write
        refused = error if isinstance(error, AssayError) else InfrastructureError(f"the check cannot continue: {error}")
        content = {"message": refused.message, "hint": refused.hint, "exit_code": int(refused.exit_code)}
        with suppress(OSError):  # the waiting command raises the error again
            write_atomic(os.path.join(run_dir, MODEL_ERROR_FILE), json.dumps(build_plain(content)))
        return int(refused.exit_code)


def _load_request(text: str) -> ModelRequest:
    try:
        return parse_plain(ModelRequest, json.loads(text if text.startswith("{") else read_text(text)))
    except (TypeError, KeyError) as error:
        raise ValueError(error) from error


def examine(request: ModelRequest, run_dir: str) -> ModelReport:
    if request.folder:
        sys.path.insert(0, request.folder)  # functions that make inputs are imported from this folder
    keep = os.path.join(run_dir, MODEL_TENSORS_DIR)
    explain_to = partial(print, flush=True) if request.explain else None
    with Scratch() as own, ArtifactBuilder(ArtifactStore(request.store or own), request.limits) as builder:
        builder.recompute, builder.explain_to, builder.failure_dir = request.recompute, explain_to, keep
        report = _GOALS[request.goal](request, builder, keep, lambda case: print(render_case_line(case), flush=True))
        slices = tuple(builder.slices)
    write_metrics(run_dir, report)
    write_trace(run_dir, slices)
    write_report(run_dir, report)  # the report is written last: it shows that all files are complete
    return report


def write_metrics(run_dir: str, report: ModelReport) -> None:
    """Write `metrics/model.jsonl`: errors and times over the layers' numbers, and the full model's under `full.`."""
    lines = [json.dumps(point) for point in build_points(report)]
    if not lines:
        return
    folder = os.path.join(run_dir, layout.METRICS_DIR)
    os.makedirs(folder, exist_ok=True)
    write_atomic(os.path.join(folder, POINTS_FILE), "".join(f"{line}\n" for line in lines))


def build_points(report: ModelReport) -> Iterator[dict[str, float]]:
    now = time.time()
    for case in report.cases:
        numbers = build_numbers(case)
        if case.layer is None:
            yield {"time": now, **{f"full.{name}": value for name, value in numbers.items()}}
        elif numbers:
            yield {"step": case.layer.number, "time": now, **numbers}


def build_numbers(case: CaseReport) -> dict[str, float]:
    """Return the errors and times of a case, without times that come from the store."""
    found = {
        "local_error": max((each.error for each in case.local), default=math.nan),
        "accumulated_error": max((each.error for each in case.accumulated), default=math.nan),
    }
    found |= {f"{step}_s": min(measured) for step in Step if (measured := find_fresh(case, step))}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def write_trace(run_dir: str, slices: Sequence[Slice]) -> None:
    """Write `trace.json`, `.pb` and `.csv`: every step of every computed case, on a track per target and step."""
    texts = {"chrome": render_chrome(slices).encode(), "perfetto": render_perfetto(slices)}
    texts["csv"] = render_slices_csv(slices).encode()
    for form, name in MODEL_TRACE_FILES.items():
        write_atomic(os.path.join(run_dir, name), texts[form])


if __name__ == "__main__":
    sys.exit(main())
