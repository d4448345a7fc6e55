"""The command `assay stop`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.errors import ExitCode
from assay.follow.locations import names_study
from assay.launch.stop import stop as stop_runs
from assay.reading.choosing import find_chosen_runs
from assay.show.console import Console
from assay.values.options import Request, argument, json_option, option, root_option, where_option

if TYPE_CHECKING:
    from assay.values.where import Where

_MANY_RUNS = 20  # if more runs are stopped, only the runs that were running are listed


class StopRequest(Request):
    names: tuple[str, ...] = argument("NAME...", multiple=True)
    where: Where | None = where_option()
    grace: float = option(
        "--grace", type=float, minimum=0, default=10.0, metavar="S", help="Seconds between TERM and KILL."
    )
    reason: str = option("--reason", default="", metavar="TEXT", help="The reason, kept with the run.")
    as_json: bool = json_option()
    root: str | None = root_option()


def stop(request: StopRequest, console: Console) -> int:
    """Stop runs and everything they started: studies, runs, or patterns such as 'STUDY/lr=0.1*'.

    The supervisor of a study that is named as a whole is stopped too, so that no further run of the study starts; with
    --where the supervisor goes on.
    """
    runs = find_chosen_runs(request.names, request.where, request.root)
    is_whole = request.where is None
    whole = {run.location for run in runs if is_whole and any(names_study(name, run) for name in request.names)}
    report = stop_runs(runs, whole, request.grace, request.reason)
    if request.as_json:
        console.write_json(
            [
                {"run": run.key, "state": str(run.state), "was_running": run.was_running, "text": run.text}
                for run in report.runs
            ]
        )
    else:
        only_running = len(report.runs) > _MANY_RUNS
        for run in report.runs:
            if run.was_running or not run.is_well or not only_running:
                console.print(f"{run.key}: {run.text}")
        idle = sum(not run.was_running for run in report.runs)
        if only_running and idle:
            console.print(f"{idle} were not running")
        if counted := report.count():
            console.print(counted)
        for note in report.notes:
            console.print_lines(note)
    if not report.runs:
        console.error(f"{', '.join(request.names)}: no runs yet")
    return int(ExitCode.OK if report.is_well else ExitCode.FAILED)
