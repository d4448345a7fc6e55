"""`assay stop`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from assay.errors import ExitCode
from assay.show.formatting import clean, clean_lines

if TYPE_CHECKING:
    from assay.study.lookup import FoundRun


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=10.0,
    metavar="S",
    show_default=True,
    help="Seconds between TERM and KILL.",
)
@click.option("--reason", default="", metavar="TEXT", help="Why; kept with the run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--root", metavar="DIR", help="Output root.")
def command(names: tuple[str, ...], grace: float, reason: str, as_json: bool, root: str | None) -> int:
    """Stop runs and everything they started: studies, runs, or patterns such as 'STUDY/lr=0.1*'.

    A study named as a whole also loses its supervisor, so that nothing of it starts any more.
    """
    from assay.show.json_text import render_facts
    from assay.study.lookup import find_runs
    from assay.study.stop import StopOptions, stop

    runs: dict[str, FoundRun] = {}
    whole = {}
    for name in names:
        found = find_runs(name, root)
        runs.update({run.dir: run for run in found})
        whole.update({run.place.dir: run.place for run in found if _names_study(name, run)})
    report = stop(list(runs.values()), whole.values(), StopOptions(grace, reason))
    if as_json:
        facts = [
            {"run": run.key, "state": str(run.state), "was_running": run.was_running, "text": run.text}
            for run in report.runs
        ]
        sys.stdout.write(render_facts(facts))
    else:
        quiet = len(report.runs) > 20  # a large study: only what was running is of interest
        for run in report.runs:
            if run.was_running or not run.is_well or not quiet:
                print(clean(f"{run.key}: {run.text}"))
        idle = sum(not run.was_running for run in report.runs)
        if quiet and idle:
            print(f"{idle} were not running")
        for note in report.notes:
            print(clean_lines(note))
    if not report.runs:
        print(f"{', '.join(names)}: no runs yet", file=sys.stderr)
    return int(ExitCode.OK if report.is_well else ExitCode.FAILED)


def _names_study(name: str, run: FoundRun) -> bool:
    return name.rstrip("/") == run.place.name or os.path.abspath(name) == run.place.dir
