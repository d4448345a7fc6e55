"""A dry run: what would happen, and not a single file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from assay.study.prepared import Prepared, left_commands, wanted_commands
from assay.values import layout
from assay.values.run import JobRequest, RunSpec


def build_dry_lines(prepared: Prepared) -> Iterator[str]:
    """Every command line that would be started, with the run directory filled in, as the shell would get it."""
    kept = 0
    folder = prepared.place.dir
    present = _list_names(folder)
    for spec in prepared.plan.runs:
        is_new = spec.name not in present
        left = wanted_commands(spec, prepared.options.commands) if is_new else left_commands(prepared, spec)
        kept += not left
        for command in (command for command in spec.commands if command.name in left):
            yield build_line(prepared, spec, command.text, run_dir=f"{folder}/{spec.name}")
    if kept:
        runs = f"{kept} of {len(prepared.plan.runs)} runs"
        yield f"# {runs} {'is' if kept == 1 else 'are'} kept: finished, under way, or failed"


def _list_names(folder: str) -> set[str]:
    """One look at the study's folder instead of one for each run."""
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def build_line(prepared: Prepared, spec: RunSpec, text: str, attempt: int = 1, run_dir: str = "") -> str:
    """The training command, inside what submits it where there is a farm; tagged runs are named, as runx shows them."""
    run_dir, farm = run_dir or prepared.dir_of(spec), prepared.farm
    if farm is None:
        return layout.show_command(text, run_dir)
    from assay.execute.farm import build_state_dir
    from assay.execute.submit import render_submit_line

    label = spec.name if spec.tag else ""
    request = JobRequest(run_dir, job_name(prepared, spec), attempt, farm_resources=spec.farm_resources, label=label)
    training = layout.show_command(text, build_state_dir(farm, run_dir))
    return render_submit_line(farm, request, training)


def job_name(prepared: Prepared, spec: RunSpec) -> str:
    return f"{prepared.place.name}_{spec.name}"


def build_dry_rows(prepared: Prepared) -> list[dict[str, Any]]:
    return [
        {
            "name": spec.name,
            "id": spec.id,
            "dir": prepared.dir_of(spec),
            "params": dict(spec.params),
            "commands": {c.name: layout.show_command(c.text, prepared.dir_of(spec)) for c in spec.commands},
            "left": left_commands(prepared, spec),
        }
        for spec in prepared.plan.runs
    ]
