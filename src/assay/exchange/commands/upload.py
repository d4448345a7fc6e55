"""`assay upload`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from assay.errors import UsageError
from assay.show.console import Console
from assay.values.options import Request, argument, json_option, option, quiet_option, root_option, where_option

if TYPE_CHECKING:
    from assay.values.where import Where


class UploadRequest(Request):
    names: tuple[str, ...] = argument("NAME...", multiple=True)
    server: str | None = option("--server", metavar="URL", help="Where `assay serve` runs.  [default: ASSAY_SERVER]")
    where: Where | None = where_option()
    quiet: bool = quiet_option()
    as_json: bool = json_option()
    root: str | None = root_option()


def upload(request: UploadRequest, console: Console) -> int:
    """Send finished runs to an `assay serve` that others look at, and print the link.

    NAME is a study, STUDY/RUN, or a pattern as 'STUDY/lr=0.1*'. The token is read from ASSAY_TOKEN. Secrets are never
    sent. What is there already is not changed.
    """
    from assay.exchange.upload import OutgoingRun, find_server, upload_runs
    from assay.follow.run_status import load_status
    from assay.reading.choosing import find_chosen_runs
    from assay.show.formatting import render_count, render_size

    console = console.quieted(request.quiet or request.as_json)
    server = find_server(request.server, os.environ)
    runs = find_chosen_runs(request.names, request.where, request.root)
    finished = [run for run in runs if load_status(run.dir).state.is_over]
    for run in runs:
        if run not in finished:
            console.message(f"{run.key} is not finished and was left out; send it when it is")
    if not finished:
        raise UsageError("there is no finished run to send", "which runs there are: assay ls STUDY")
    sent = upload_runs([OutgoingRun(run.location.name, run.dir) for run in finished], server)
    for note in sent.notes:
        console.warning(note)
    if request.as_json:
        console.write_json({"runs": sent.runs, "links": sent.links, "bytes": sent.bytes, "notes": sent.notes})
        return 0
    new = sum(bool(run.get("is_new")) for run in sent.runs)
    console.message(f"sent {render_count(len(sent.runs), 'run')}, {render_size(sent.bytes)}: {new} new there")
    for link in sent.links:
        console.print(link)
    return 0
