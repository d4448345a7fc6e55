"""The page of a study: its table, its curves, and the effects of its parameters."""

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
from assay.web.pages import study_page as content
from assay.web.pages.page_view import TABS, StudyView, view_params
from assay.web.pages.studies import build_shares
from assay.web.routes import Routes, encode_json, encode_text, ref
from assay.web.site import build_address, get_site, load_study, read_query
from assay.web.snapshots import StudySnapshot

ROUTES = Routes()
_CURVE_PARAMS = view_params("where", "states", "group", "metric", "x", "smooth", "log", "log_x", "best", "zoom", "by")
_PER_PAGE = (20, 50, 100, 200, 500)
_SHORT_WHERE = 200  # characters, a dozen comparisons: a longer expression would delay all other requests
_SHORT_ROWS = ("20", "50", "100")
_MANY_COLUMNS = 20  # with more columns than this the menu of columns has a search field
_CHARTED = ("where", "states", "metric", "log")
_ON_FORM: Mapping[str, Sequence[str]] = {  # fields that the form of a tab sends; other fields of the address are kept
    "table": ("where", "states", "group", "rows"),
    "curves": (*_CHARTED, "log_x", "x", "smooth", "best", "group"),
    "scatter": (*_CHARTED, "log_x", "param", "color"),
    "slices": (*_CHARTED, "params"),
    "parallel": (*_CHARTED, "params"),
    "importance": ("where", "states", "metric"),
}


@ROUTES.page("/studies/{study}")
async def show(request: Request) -> Response:
    """Show the page, without a thread if the study is in memory: waiting for a thread would take longer."""
    query = request.query_params
    is_short = "group" not in query and query.get("tab", "table") == "table"
    is_short = is_short and len(query.get("where", "")) <= _SHORT_WHERE and query.get("rows", "50") in _SHORT_ROWS
    if is_short and get_site(request).snapshots.holds(request.path_params["study"]):
        return _show(request)
    return await run_in_threadpool(_show, request)


def _show(request: Request) -> Response:
    snapshot, query = load_study(request), read_query(request)
    view = StudyView.from_query(query)
    values: dict[str, Any] = {"built": None, "blocks": (), "charts": ()}
    values |= {"problem": None, "is_where": False, "offers": ()}
    try:
        if "columns" in query:
            usual = view._replace(show=(), hide=())
            is_usual = query["columns"][-1] == "usual"
            chosen = usual if is_usual else content.choose_columns(snapshot, view, query.get("col", ()))
            return RedirectResponse(f"{request.url.path}{chosen.to_query()}", 303)
        if view.tab == "table":
            asked = view
            built = values["built"] = snapshot.remember(view, lambda: content.build_table(snapshot, asked))
            view = view._replace(page=built.page)
        elif view.tab == "curves":
            values["charts"] = snapshot.remember(view, lambda: content.choose_charts(snapshot, view))
        else:
            values["blocks"] = snapshot.remember(view, lambda: content.build_plots(snapshot, view))
    except UsageError as error:  # show the error on the page with the filter
        is_where = isinstance(error, WhereError)
        values |= {"problem": error, "is_where": is_where, "offers": _offer(view.where) if is_where else ()}
    where, states = view.where, f"run.state in ({', '.join(view.states)})" if view.states else ""
    if states:
        where = f"({where}) and {states}" if where else states
    response = get_site(request).render(
        request,
        "study.html",
        view=view,
        tabs=TABS,
        names=content.find_names(snapshot),
        fields=FIELDS,
        examples=content.build_examples(snapshot),
        fields_shown=_ON_FORM.get(view.tab, _CHARTED),
        compare=build_address("studies", snapshot.slug, "compare", where=where),
        per_page=_PER_PAGE,
        many=_MANY_COLUMNS,
        **_build_head(snapshot),
        **values,
    )
    # the address of this view, without fields that have their default
    response.headers["hx-push-url"] = request.url.path + view.to_query(page=view.page).removesuffix("?")
    return response


def _offer(text: str) -> list[str]:
    """Suggest expressions for a text that is a part of a name, or a state."""
    word = text.strip()
    if not word or not set(word).isdisjoint("=<>~()\"'"):
        return []
    return [*([f"state == {word}"] if word in map(str, State) else []), f'name ~ "*{word}*"']


def _build_head(snapshot: StudySnapshot) -> dict[str, Any]:
    return {
        "snapshot": snapshot,
        "counts": snapshot.counts,
        "shares": build_shares(snapshot.counts),
        "pace": content.measure_pace(snapshot),
        "not_finite": content.count_not_finite(snapshot),
        "best": content.find_best(snapshot),
    }


@ROUTES.page("/studies/{study}/table.csv")
def send_csv(request: Request) -> Response:
    """Send all pages of the table as a file to save."""
    snapshot, view = load_study(request), StudyView.from_query(read_query(request))
    text = render_csv(content.build_plain_table(snapshot, view, whole=True))
    name = re.sub(r"[^\w.-]+", "_", snapshot.location.name, flags=re.ASCII)
    headers = {"content-disposition": f'attachment; filename="{name}.csv"', "cache-control": "no-store"}
    return Response(encode_text(text), media_type="text/csv", headers=headers)


@ROUTES.page("/studies/{study}/head")
def show_head(request: Request) -> Response:
    """Send the states of the runs, which the page requests after an event."""
    return get_site(request).render(request, "parts/study_head.html", **_build_head(load_study(request)))


@ROUTES.page("/studies/{study}/find")
def find_named(request: Request) -> Response:
    """Redirect to a run by the name that a chart shows, which may differ from the name of the run's directory."""
    snapshot = load_study(request)
    name = request.query_params.get("name", "")
    row = next((row for row in snapshot.table.rows if row.name == name), None)
    if row is None:
        raise NotFoundError("run", name, [row.name for row in snapshot.table.rows])
    return RedirectResponse(build_address("studies", snapshot.slug, "runs", row.folder), 303)


@ROUTES.json("/api/studies/{study}/curves", "showCurves", ref("Curves"), _CURVE_PARAMS)
def send_curves(request: Request) -> Response:
    """The curves of one metric, thinned to what a screen shows; highs and lows stay"""
    snapshot, view = load_study(request), StudyView.from_query(read_query(request))
    snapshots = get_site(request).snapshots

    def make() -> bytes:
        with snapshots.read_points(snapshot.location.root) as index:
            return encode_json(content.build_curves(index, snapshot, view))

    body = snapshots.answer(snapshot, ("curves", view), make)
    return Response(body, media_type="application/json", headers={"cache-control": "no-store"})
