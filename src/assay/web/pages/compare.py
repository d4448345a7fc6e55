"""Two runs or more beside each other: what differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from assay.errors import NotFoundError, UsageError
from assay.follow.api import StudyLocation, show_command
from assay.reading.api import select_rows
from assay.record.index.base import Table
from assay.values.where import parse_where
from assay.web.answers import send
from assay.web.operations import TEXT, Operation, Param, many, ref
from assay.web.pages.compare_page import ComparePage, build_chosen_curves, build_comparison, pick_rows
from assay.web.pages.page_view import read_x, view_params
from assay.web.pages.run_files import split_diff
from assay.web.routes import get
from assay.web.site import Site, build_address, build_query, get_site
from assay.web.snapshots import StudySnapshot

_MOST_RUNS = 1000
_MOST_CURVES = 50
_MOST_CHARTS = 12
_PER_PAGE = 50
_SWITCHES = ("all", "turn", "best", "to", "x", "charts", "sort", "page")


class Choice(NamedTuple):
    """The runs of an address, each with where it is."""

    snapshot: StudySnapshot
    names: list[str]
    table: Table
    locations: list[StudyLocation]
    slugs: list[str]


def choose(site: Site, request: Request) -> Choice:
    """`?run=A&run=B&run=OTHER-STUDY/C`, of these only what `where` says; without names all runs that it chooses."""
    snapshot = site.snapshots.load(request.path_params["study"])
    names, where = _read_runs(request.query_params)
    if len(names) > _MOST_RUNS:
        raise UsageError(f"{len(names)} runs are too many to be compared on one page", f"at most {_MOST_RUNS}")
    if names:
        found = [_find(site, snapshot, name) for name in names]
    else:
        found = [(snapshot, i) for i in select_rows(snapshot.table, parse_where(where) if where else None)]
    if len(found) > _MOST_RUNS:
        raise UsageError(
            f"{len(found)} runs are too many to be compared on one page",
            f"choose at most {_MOST_RUNS} with a filter: {build_address('studies', snapshot.slug, 'compare')}?where=…",
        )
    if len({each.location.root for each, _ in found}) > 1:
        raise UsageError("runs of two roots cannot be compared on one page", "in a terminal: assay diff RUN RUN")
    table = pick_rows([(each.table, i) for each, i in found])
    keep = list(range(len(found)))
    if where and names:
        keep = select_rows(table, parse_where(where))
        table = pick_rows([(table, i) for i in keep])
    chosen = [found[i][0] for i in keep]
    return Choice(snapshot, names, table, [each.location for each in chosen], [each.slug for each in chosen])


def _read_runs(query: QueryParams) -> tuple[list[str], str]:
    """The names of runs, and the expression."""
    return list(dict.fromkeys(query.getlist("run"))), query.get("where", "").strip()


def _find(site: Site, snapshot: StudySnapshot, name: str) -> tuple[StudySnapshot, int]:
    study, slash, run = name.rpartition("/")
    other = site.snapshots.load(study) if slash else snapshot
    return other, other.get_row(run)


def show(request: Request) -> Response:
    site, query = get_site(request), request.query_params
    choice, page, base, problem = None, None, None, None
    try:
        choice = choose(site, request)
        base = _find_base(choice, query)
        with site.snapshots.open_index(choice.snapshot.location.root) as index:
            page = build_comparison(index, choice.locations, choice.table, bool(query.get("all")), base)
    except NotFoundError:
        raise
    except UsageError as error:  # a wrong filter is answered where it was typed
        problem = error
    switches = {name: query[name] for name in _SWITCHES if query.get(name)}
    names, where = _read_runs(query)
    chosen = {"run": names, "where": where}

    def link(**changes: object) -> str:
        """The address of this page with something else."""
        return f"{request.url.path}?{_build_query(**{**chosen, **switches, **changes})}"

    order, number, last = _order(page, switches)
    charts = page.metrics if page else []
    most = len(charts) if switches.get("charts") else _MOST_CHARTS
    return site.render(
        request,
        "compare.html",
        status=400 if problem else 200,
        snapshot=site.snapshots.load(request.path_params["study"]),
        page=page,
        problem=problem,
        switches=switches,
        where=where,
        names=names,
        link=link,
        base=base,
        order=order[(number - 1) * _PER_PAGE : number * _PER_PAGE],
        number=number,
        last=last,
        per_page=_PER_PAGE,
        metrics=charts[:most],
        left_out=len(charts) - len(charts[:most]),
        curves=f"/api{request.url.path}/curves?{_build_query(**chosen, x=switches.get('x'))}",
        runs=_list_runs(choice) if choice and page else [],
        command=_find_command(choice) if choice and page else "",
        split_diff=split_diff,
    )


def _list_runs(choice: Choice) -> list[tuple[str, str, str]]:
    """The name of each as it is shown, its address, and its name in this page's address."""
    several = len(set(choice.slugs)) > 1
    return [
        (
            f"{row.study}/{row.name}" if several else row.name,
            build_address("studies", slug, "runs", row.key.partition("/")[2]),
            _name_run(choice, i),
        )
        for i, (row, slug) in enumerate(zip(choice.table.rows, choice.slugs, strict=True))
    ]


def _find_command(choice: Choice) -> str:
    """The command that compares two runs of one study."""
    rows, places = choice.table.rows, choice.locations
    if len(rows) != 2 or places[0] != places[1]:
        return ""
    return show_command(["diff"], places[0], *(row.key.partition("/")[2] for row in rows))


def _find_base(choice: Choice, query: QueryParams) -> int | None:
    """The run that metrics are compared with: that of `to`, or the first that was marked; None: the best of each."""
    wanted = query.get("to", "")
    names = [_name_run(choice, i) for i in range(len(choice.table.rows))]
    if wanted in names:
        return names.index(wanted)
    return 0 if choice.names and not query.get("best") and wanted != "best" else None


def _name_run(choice: Choice, i: int) -> str:
    """The name of a run as `run=` takes it."""
    run, slug = choice.table.rows[i].key.partition("/")[2], choice.slugs[i]
    return run if slug == choice.snapshot.slug else f"{slug}/{run}"


def _order(page: ComparePage | None, switches: Mapping[str, str]) -> tuple[list[int], int, int]:
    """The runs in the order that was asked for; the page of them, and the last one there is."""
    if page is None:
        return [], 1, 1
    sort = switches.get("sort", "")
    last = -(-len(page.rows) // _PER_PAGE)
    wanted = switches.get("page", "")
    number = min(int(wanted), last) if wanted.isdecimal() and len(wanted) < 9 else 1
    return page.order_by(sort.removeprefix("-"), is_falling=sort.startswith("-")), max(1, number), last


def _build_query(**values: object) -> str:
    return build_query({name: value for name, value in values.items() if value})


def send_curves(request: Request) -> Response:
    """One metric of the compared runs, of many the best ones."""
    site = get_site(request)
    choice = choose(site, request)
    metric, x = request.query_params.get("metric", ""), read_x(request.query_params.get("x", ""))
    known = [name for name, column in choice.table.metrics.items() if any(count > 1 for count in column.count)]
    if metric not in choice.table.metrics:
        raise NotFoundError("metric", metric, known)
    locations = list(dict.fromkeys(choice.locations))
    beside = [row for slug in dict.fromkeys(choice.slugs) for row in site.snapshots.load(slug).table.rows]
    with site.snapshots.read_points(choice.snapshot.location.root) as index:
        curves = build_chosen_curves(index, locations, choice.table, metric, x, _MOST_CURVES, beside)
    return send(curves)


ROUTES = [
    get("/studies/{study}/compare", show),
    get(
        "/api/studies/{study}/compare/curves",
        send_curves,
        Operation(
            "compareCurves",
            "One metric of the runs that are compared, of many the 50 best",
            ref("Curves"),
            (
                Param("metric", "which metric", needed=True),
                Param(
                    "run",
                    "a run of the study, or STUDY/RUN of another; without any, all that `where` chooses",
                    many(TEXT),
                ),
                *view_params("where", "x"),
            ),
        ),
    ),
]
