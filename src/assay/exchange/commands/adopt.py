"""`assay adopt`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.errors import UsageError
from assay.exchange.adopt import adopt_runs
from assay.launch.commands.rerun import split_words
from assay.reading.choosing import find_chosen_runs
from assay.show.console import Console
from assay.values.options import Request, argument, json_option, option, root_option, where_option

if TYPE_CHECKING:
    from assay.values.where import Where


class AdoptRequest(Request):
    names: tuple[str, ...] = argument("RUN... [PARAMETER=VALUE]...", multiple=True)
    file: str | None = option(
        "--file", metavar="FILE", help="Your study file.  [default: that of the study's newest run that was made here]"
    )
    where: Where | None = where_option()
    as_json: bool = json_option()
    root: str | None = root_option()


def adopt(request: AdoptRequest, console: Console) -> int:
    """Take runs that were uploaded as runs of your study: they are ranked, continued and repeated from then on.

    job.sh and code/ are made again from your study file; logs and metrics stay. All else that came with a run, its
    checkpoints too, moves to received/ in its folder and is not used. A run that is not one of the file is refused.
    """
    names, overrides = split_words(request.names, request.root, console)
    runs = find_chosen_runs(names, request.where, request.root)
    if not runs:
        raise UsageError(f"{', '.join(names)}: no runs")
    done = adopt_runs(runs, request.file, overrides)
    if request.as_json:
        console.write_json([{"run": each.key, "file": each.file or None} for each in done])
        return 0
    for each in done:
        what = f"job.sh and code made again from {each.file}" if each.file else "it has no command"
        console.print(f"adopted {each.key}: {what}")
    return 0
