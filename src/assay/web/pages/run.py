"""One run: what it was, how it went, its logs and files."""

from __future__ import annotations

import os

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from assay.errors import UsageError
from assay.study.api import StudyView, build_run_blocks, find_file, list_files, load_log, search_log
from assay.values.where import quote_where
from assay.web.routes import get
from assay.web.site import Site, get_site
from assay.web.snapshots import Snapshot


def find_run(request: Request) -> tuple[Site, Snapshot, int, str]:
    """The run of the address: its row, and its directory."""
    site = get_site(request)
    snapshot = site.snapshots.load(request.path_params["study"])
    row = snapshot.get_row(request.path_params["run"])
    return site, snapshot, row, os.path.join(snapshot.location.dir, request.path_params["run"])


def show(request: Request) -> Response:
    site, snapshot, number, run_dir = find_run(request)
    row, table = snapshot.table.rows[number], snapshot.table
    children = [each.key for each in table.rows if each.parent == row.key]
    with site.snapshots.open_index(snapshot.location.root) as index:
        blocks, problem = build_run_blocks(index, snapshot.location, run_dir, children)
    return site.render(
        request,
        "run.html",
        snapshot=snapshot,
        row=row,
        run=request.path_params["run"],
        blocks=blocks,
        problem=problem,
        metrics=[name for name, column in table.metrics.items() if column.count[number] > 1],
        files=list_files(run_dir),
        query=StudyView(tab="curves", where=f"run.name == {quote_where(row.name)}").to_query(),
    )


def send_log(request: Request) -> Response:
    """A part of a log as JSON: its end, or from an offset on; with `find` the lines that hold these words."""
    _, _, _, run_dir = find_run(request)
    query = request.query_params
    command = query.get("command") or None
    attempt, start = (_read_whole(query.get(name), name) for name in ("attempt", "from"))
    if query.get("find"):
        found = search_log(run_dir, command, attempt, query["find"])
        items = [{"offset": each.offset, "line": each.line} for each in found.items]
        return _send({"matches": items, "searched": found.searched, "size": found.size, "is_whole": found.is_whole})
    return _send(load_log(run_dir, command, attempt, start)._asdict())


def _send(value: object) -> Response:
    return JSONResponse(value, headers={"cache-control": "no-store"})


def _read_whole(text: str | None, name: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise UsageError(f"{name} is not a whole number: {text!r}")
    return int(text)


def send_file(request: Request) -> Response:
    """To be saved, never shown: what a run wrote may be a page with scripts."""
    _, _, _, run_dir = find_run(request)
    path = find_file(run_dir, request.path_params["file"])
    return FileResponse(
        path,
        media_type="application/octet-stream",
        filename=os.path.basename(path),
        headers={"content-security-policy": "sandbox"},
    )


ROUTES = [
    get("/studies/{study}/runs/{run}", show),
    get("/studies/{study}/runs/{run}/files/{file:path}", send_file),
    get("/api/studies/{study}/runs/{run}/log", send_log),
]
