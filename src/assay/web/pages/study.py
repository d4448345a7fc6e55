"""One study: its table, its curves, and what its parameters do."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay.errors import UsageError
from assay.study.api import TABS, StudyView, build_curves, build_plots, build_table, find_names
from assay.values.document import TableBlock
from assay.web.pages.studies import build_shares
from assay.web.routes import get
from assay.web.site import get_site, read_query


def show(request: Request) -> Response:
    site = get_site(request)
    snapshot = site.snapshots.load(request.path_params["study"])
    location, table = snapshot.location, snapshot.table
    view = StudyView.from_query(read_query(request))
    names = snapshot.remember("names", lambda: find_names(location, table))
    values: dict[str, Any] = {"summary": None, "blocks": (), "problem": None}
    try:
        if view.tab == "table":
            values["summary"] = snapshot.remember(view, lambda: build_table(location, table, view, names))
        elif view.tab != "curves":
            values["blocks"] = snapshot.remember(view, lambda: build_plots(location, table, view, names))
    except UsageError as error:  # a wrong filter is answered on the page where it was typed
        values["problem"] = error
    shares = build_shares(snapshot.counts)
    return site.render(
        request,
        "study.html",
        snapshot=snapshot,
        view=view,
        tabs=TABS,
        shares=shares,
        names=names,
        block=TableBlock,
        **values,
    )


def show_head(request: Request) -> Response:
    """How the runs stand: asked for when an event says that they changed."""
    site = get_site(request)
    snapshot = site.snapshots.load(request.path_params["study"])
    return site.render(request, "parts/study_head.html", snapshot=snapshot, shares=build_shares(snapshot.counts))


def send_curves(request: Request) -> Response:
    site = get_site(request)
    snapshot = site.snapshots.load(request.path_params["study"])
    view = StudyView.from_query(read_query(request))
    with site.snapshots.open_index(snapshot.location.root) as index:
        curves = build_curves(index, snapshot.location, snapshot.table, view)
    return JSONResponse(curves, headers={"cache-control": "no-store"})


ROUTES = [
    get("/studies/{study}", show),
    get("/studies/{study}/head", show_head),
    get("/api/studies/{study}/curves", send_curves),
]
