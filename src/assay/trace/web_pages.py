"""The page of traces: the traces of two runs compared, or the trace of one run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from assay.errors import AssayError, NotFoundError
from assay.follow.api import StudyLocation
from assay.record.folders import find_run_dirs
from assay.trace.records import list_traces
from assay.values.document import Block
from assay.web.api import Navigation, Pages, build_address, get, get_site

_MOST_RUNS = 300  # the most runs that are listed, newest first


def show(request: Request) -> Response:
    """Show the page. `?a=STUDY/RUN&b=STUDY/RUN` selects one or two of the runs that the page lists."""
    site = get_site(request)
    known = find_traced(site.snapshots.find_locations())
    a, b = (request.query_params.get(name, "") for name in "ab")
    for name in filter(None, (a, b)):
        if name not in known:
            raise NotFoundError("run with a trace", name, list(known))
    blocks: Sequence[Block] = ()
    problem = ""
    try:
        if a:
            from assay.trace.comparing import load_recording
            from assay.trace.report import build_report

            document, _ = build_report(load_recording(known[a]), load_recording(known[b]) if b else None)
            blocks = document.blocks[1:]  # without the document's heading
    except AssayError as error:  # the trace is damaged, or of another version
        problem = error.message
    return site.render(request, "traces.html", keys=list(known), a=a, b=b, blocks=blocks, problem=problem)


def find_traced(locations: Mapping[str, StudyLocation]) -> dict[str, str]:
    """Find runs with traces: STUDY/RUN → directory, newest first."""
    found = {
        f"{slug}/{os.path.basename(run_dir)}": run_dir
        for slug, location in locations.items()
        for run_dir in find_run_dirs(location.dir)
        if list_traces(run_dir)
    }
    newest = sorted(found, key=lambda key: -os.stat(found[key]).st_mtime)
    return {key: found[key] for key in newest[:_MOST_RUNS]}


def find_related(slug: str, run: str, files: set[str]) -> Sequence[tuple[str, str]]:
    is_traced = any(name.startswith("trace/rank-") for name in files)
    return [("Traces", build_address("traces", a=f"{slug}/{run}"))] if is_traced else []


PAGES = Pages(
    [get("/traces", show)],
    Navigation("Traces", "/traces", 4),
    templates=os.path.join(os.path.dirname(__file__), "templates"),
    find_related=find_related,
)
