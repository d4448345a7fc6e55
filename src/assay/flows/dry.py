"""A dry run: what would happen, and not a single file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from assay.flows.prepared import Prepared, left_commands
from assay.values import layout
from assay.values.run import JobRequest, RunSpec


def build_dry_lines(prepared: Prepared) -> Iterator[str]:
    """Every command line that would be started, with the run directory filled in, as the shell would get it."""
    kept = 0
    for spec in prepared.plan.runs:
        run_dir = prepared.dir_of(spec)
        left = left_commands(prepared, spec)
        kept += not left
        for command in (command for command in spec.commands if command.name in left):
            yield build_line(prepared, spec, layout.show_command(command.text, run_dir))
    if kept:
        runs = f"{kept} of {len(prepared.plan.runs)} runs"
        yield f"# {runs} {'is' if kept == 1 else 'are'} kept: finished, under way, or failed"


def build_line(prepared: Prepared, spec: RunSpec, training: str) -> str:
    """The training command, inside what submits it where there is a farm; tagged runs are named, as runx shows them."""
    if prepared.farm is None:
        return training
    from assay.execute.submit import render_submit_line

    request = JobRequest(prepared.dir_of(spec), job_name(prepared, spec), 1, farm_resources=spec.farm_resources)
    return render_submit_line(prepared.farm, request, training, spec.name if spec.tag else None)


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
