"""Two runs or more beside each other: what differs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from assay.errors import UsageError
from assay.study.api import StudyView, build_comparison, select_rows
from assay.values.where import parse_where, quote_where
from assay.web.routes import get
from assay.web.site import get_site

_MOST_RUNS = 500


def show(request: Request) -> Response:
    """`?run=A&run=B`, or all that `where` chooses."""
    site = get_site(request)
    snapshot = site.snapshots.load(request.path_params["study"])
    names = list(dict.fromkeys(request.query_params.getlist("run")))
    where = request.query_params.get("where", "").strip()
    chosen = [snapshot.get_row(name) for name in names]
    if where or not names:
        matching = select_rows(snapshot.table, parse_where(where) if where else None)
        chosen = [i for i in chosen if i in set(matching)] if names else matching
    if len(chosen) < 2:
        raise UsageError("a comparison needs two runs or more", "mark them in the study's table")
    if len(chosen) > _MOST_RUNS:
        raise UsageError(f"{len(chosen)} runs are too many to be compared on one page", f"choose at most {_MOST_RUNS}")
    with site.snapshots.open_index(snapshot.location.root) as index:
        blocks, rows = build_comparison(index, snapshot.location, snapshot.table, chosen)
    wanted = ", ".join(quote_where(row.name) for row in rows)
    view = StudyView(tab="curves", where=f"run.name in ({wanted})", best=50)
    return site.render(
        request,
        "compare.html",
        snapshot=snapshot,
        rows_=rows,
        blocks=blocks,
        where=where,
        names=names,
        metrics=[name for name, column in snapshot.table.metrics.items() if any(column.count[i] > 1 for i in chosen)],
        query=view.to_query(),
    )


ROUTES = [get("/studies/{study}/compare", show)]
