"""One study: its table, its curves, and what its parameters do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from assay.errors import NotFoundError, UsageError
from assay.reading.api import FIELDS
from assay.show.table import render_csv
from assay.values.state import State
from assay.values.where import WhereError
from assay.web.answers import encode_json, encode_text
from assay.web.pages.page_view import TABS, StudyView, view_params
from assay.web.pages.studies import build_shares
from assay.web.pages.study_page import (
    build_curves,
    build_examples,
    build_plain_table,
    build_plots,
    build_table,
    choose_charts,
    choose_columns,
    count_not_finite,
    find_best,
    find_names,
    measure_pace,
)
from assay.web.routes import Routes, ref
from assay.web.site import build_address, get_site, read_query
from assay.web.snapshots import StudySnapshot

ROUTES = Routes()
_CURVE_PARAMS = view_params("where", "states", "group", "metric", "x", "smooth", "log", "log_x", "best", "by")
_PER_PAGE = (20, 50, 100, 200, 500)
_SHORT_WHERE = 200  # characters: a dozen comparisons; with a longer one a request would hold up all others
_SHORT_ROWS = ("20", "50", "100")
_MANY_COLUMNS = 20  # above it the choice has a field to search in
_CHARTED = ("where", "states", "metric", "log")
_ON_FORM: Mapping[str, Sequence[str]] = {  # what the form of a view asks for; the rest of the address is kept
    "table": ("where", "states", "group", "rows"),
    "curves": (*_CHARTED, "log_x", "x", "smooth", "best", "group"),
    "scatter": (*_CHARTED, "log_x", "param", "color"),
    "slices": (*_CHARTED, "params"),
    "parallel": (*_CHARTED, "params"),
    "importance": ("where", "states", "metric"),
}


@ROUTES.page("/studies/{study}")
async def show(request: Request) -> Response:
    """A page of the table of a study in memory takes milliseconds, less than to wait for a thread among others."""
    query = request.query_params
    is_short = "group" not in query and query.get("tab", "table") == "table"
    is_short = is_short and len(query.get("where", "")) <= _SHORT_WHERE and query.get("rows", "50") in _SHORT_ROWS
    if is_short and get_site(request).snapshots.holds(request.path_params["study"]):
        return _show(request)
    return await run_in_threadpool(_show, request)


def _show(request: Request) -> Response:
    site = get_site(request)
    snapshot = site.snapshots.load(request.path_params["study"])
    location, table = snapshot.location, snapshot.table
    query = read_query(request)
    view = StudyView.from_query(query)
    names = find_names(location, table)
    values: dict[str, Any] = {
        "built": None,
        "blocks": (),
        "charts": (),
        "problem": None,
        "is_where": False,
        "offers": (),
    }
    try:
        if "columns" in query:
            return RedirectResponse(f"{request.url.path}{_choose_columns(snapshot, view, query).to_query()}", 303)
        if view.tab == "table":
            asked = view
            built = values["built"] = snapshot.remember(view, lambda: build_table(location, table, asked, names))
            view = view._replace(page=built.page)
        elif view.tab == "curves":
            values["charts"] = snapshot.remember(view, lambda: choose_charts(location, table, view))
        else:
            values["blocks"] = snapshot.remember(view, lambda: build_plots(location, table, view, names))
    except UsageError as error:  # a wrong filter is answered on the page where it was typed
        values["problem"] = error
        values["is_where"] = isinstance(error, WhereError)
        values["offers"] = _offer(view.where) if values["is_where"] else ()
    response = site.render(
        request,
        "study.html",
        view=view,
        tabs=TABS,
        names=names,
        fields=FIELDS,
        examples=snapshot.remember("examples", lambda: build_examples(table, names)) if table.rows else (),
        fields_shown=_ON_FORM.get(view.tab, _CHARTED),
        compare=build_address("studies", snapshot.slug, "compare", where=_build_where(view)),
        per_page=_PER_PAGE,
        many=_MANY_COLUMNS,
        **_build_head(snapshot),
        **values,
    )
    # the address of what is shown, without what has its default
    response.headers["hx-push-url"] = request.url.path + view.to_query(page=view.page).removesuffix("?")
    return response


def _offer(text: str) -> list[str]:
    """Expressions that may be meant by a part of a name, or by a state."""
    word = text.strip()
    if not word or not set(word).isdisjoint("=<>~()\"'"):
        return []
    return [*([f"state == {word}"] if word in map(str, State) else []), f'name ~ "*{word}*"']


def _choose_columns(snapshot: StudySnapshot, view: StudyView, query: Mapping[str, Sequence[str]]) -> StudyView:
    if query["columns"][-1] == "usual":
        return view._replace(show=(), hide=())
    names = find_names(snapshot.location, snapshot.table)
    return choose_columns(snapshot.location, snapshot.table, view, names, query.get("col", ()))


def _build_where(view: StudyView) -> str:
    """What the table shows, as one expression."""
    states = f"run.state in ({', '.join(view.states)})" if view.states else ""
    if not view.where or not states:
        return view.where or states
    return f"({view.where}) and {states}"


def _build_head(snapshot: StudySnapshot) -> dict[str, Any]:
    location, table = snapshot.location, snapshot.table
    counts = snapshot.counts
    return {
        "snapshot": snapshot,
        "counts": counts,
        "shares": build_shares(counts),
        "pace": measure_pace(table, counts.get(State.QUEUED, 0)) if counts.get(State.RUNNING) else None,
        "not_finite": snapshot.remember("not finite", lambda: count_not_finite(table)),
        "best": find_best(location, table),
    }


@ROUTES.page("/studies/{study}/table.csv")
def send_csv(request: Request) -> Response:
    """What the table shows, all pages of it, to be saved."""
    snapshot = get_site(request).snapshots.load(request.path_params["study"])
    location, table = snapshot.location, snapshot.table
    view = StudyView.from_query(read_query(request))
    names = find_names(location, table)
    text = render_csv(build_plain_table(location, table, view, names, whole=True))
    name = re.sub(r"[^\w.-]+", "_", location.name, flags=re.ASCII)
    headers = {"content-disposition": f'attachment; filename="{name}.csv"', "cache-control": "no-store"}
    return Response(encode_text(text), media_type="text/csv", headers=headers)


@ROUTES.page("/studies/{study}/head")
def show_head(request: Request) -> Response:
    """How the runs stand: asked for when an event says that they changed."""
    site = get_site(request)
    snapshot = site.snapshots.load(request.path_params["study"])
    return site.render(request, "parts/study_head.html", **_build_head(snapshot))


@ROUTES.page("/studies/{study}/find")
def find_named(request: Request) -> Response:
    """A run by the name that a chart shows, which its directory may not have."""
    snapshot = get_site(request).snapshots.load(request.path_params["study"])
    name = request.query_params.get("name", "")
    row = next((row for row in snapshot.table.rows if row.name == name), None)
    if row is None:
        raise NotFoundError("run", name, [row.name for row in snapshot.table.rows])
    return RedirectResponse(build_address("studies", snapshot.slug, "runs", row.folder), 303)


@ROUTES.json("/api/studies/{study}/curves", "showCurves", ref("Curves"), _CURVE_PARAMS)
def send_curves(request: Request) -> Response:
    """The curves of one metric, thinned to what a screen shows; highs and lows stay"""
    site = get_site(request)
    snapshot = site.snapshots.load(request.path_params["study"])
    view = StudyView.from_query(read_query(request))

    def make() -> bytes:
        with site.snapshots.read_points(snapshot.location.root) as index:
            return encode_json(build_curves(index, snapshot.location, snapshot.table, view))

    body = site.snapshots.answer(snapshot, ("curves", view), make)
    return Response(body, media_type="application/json", headers={"cache-control": "no-store"})
