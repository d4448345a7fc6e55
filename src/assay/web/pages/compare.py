"""The page that compares runs: their differences in parameters, metrics, environment and code."""

from __future__ import annotations

import math
import os
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from assay.errors import FormatError, NotFoundError, UsageError
from assay.follow.api import show_command
from assay.follow.locations import FoundRun
from assay.plots import api as plotting
from assay.reading.api import select_rows
from assay.reading.ranking import best_values, differing_params, parse_number
from assay.reading.run_diff import compare, flatten_environment, render_code_diff
from assay.record import run_directory
from assay.record.index.base import IndexTable, MetricColumns, RunRow
from assay.record.index.stored import Index
from assay.show.formatting import render_duration, render_number
from assay.values.plain import render_value
from assay.values.secrets import hide_spec
from assay.values.series import Direction, direction_of, metric_priority
from assay.values.where import parse_where
from assay.web.pages.page_view import COUNTERS, METRIC, StudyView, read_x, view_params
from assay.web.pages.run_files import split_diff
from assay.web.pages.study_page import build_selected_curves
from assay.web.routes import TEXT, Routes, UrlParam, many, ref, send
from assay.web.site import build_address, build_query, get_site, load_study
from assay.web.snapshots import StudySnapshot

_MOST_METRICS = 40
_MOST_PARAMS = 600
_MOST_FACTS = 300  # facts of an environment that are shown
_MOST_LINES = 5000  # lines of a code difference that are shown
_LARGEST_FILE = 1 << 18  # bytes; larger files are not compared line by line
_LONGEST_DIFF_S = 2.0
_LONGEST_TEXT = 300


class Cell(NamedTuple):
    """A field of one run. `change`: the difference to the base run; `value`: the number that sorts the runs."""

    text: str = ""
    change: str = ""
    is_best: bool = False
    value: float | None = None  # None: `text` sorts the runs

    @property
    def sort_key(self) -> tuple[bool, float, str]:
        return (True, 0.0, self.text) if self.value is None else (False, self.value, "")


class ComparedField(NamedTuple):
    """A field, such as a parameter, with a cell for each run."""

    name: str
    cells: Sequence[Cell]
    is_number: bool = False


class FieldGroup(NamedTuple):
    title: str
    fields: Sequence[ComparedField]
    hidden: int = 0  # number of fields that are equal in all runs and not shown


class Choice(NamedTuple):
    """The runs that an address chooses by `names` and `where`, each with its study."""

    snapshot: StudySnapshot
    names: list[str]
    where: str
    table: IndexTable
    studies: list[StudySnapshot]

    def name(self, i: int) -> str:
        """Return the name of a run as the query `run=` accepts it."""
        run, slug = self.table.rows[i].folder, self.studies[i].slug
        return run if slug == self.snapshot.slug else f"{slug}/{run}"


def pick_rows(found: Sequence[tuple[StudySnapshot, int]]) -> IndexTable:
    """Return a table of the rows `found` in the same order; rows may come from several studies."""
    tables = [(study.table, i) for study, i in found]
    names = dict.fromkeys(name for table, i in tables for name, column in table.metrics.items() if column.count[i])
    columns = {name: MetricColumns(name, *_pick_columns(name, tables)) for name in names}
    return IndexTable([table.rows[i] for table, i in tables], columns)


def _pick_columns(name: str, tables: Sequence[tuple[IndexTable, int]]) -> Iterator[array[float]]:
    found = [(table.metrics.get(name), i) for table, i in tables]
    for field, empty in zip(MetricColumns._fields[1:], (0.0, 0.0, *[math.nan] * 9), strict=True):
        values = (getattr(column, field)[i] if column and column.count[i] else empty for column, i in found)
        yield array("d", values)


def build_groups(choice: Choice, everything: bool, base: int | None) -> list[FieldGroup]:
    """Build the groups of fields, with `everything` also fields that are equal in all runs. Metrics are compared with
    the run `base`, or if `base` is None with the best run of each metric."""
    rows = choice.table.rows
    if len(rows) < 2:
        message = f"a comparison needs two runs or more; here {'is one' if rows else 'is none'}"
        raise UsageError(message, "mark them in the study's table, or change the filter")
    params, metrics = _build_params(rows, everything), _build_metrics(choice.table, everything, base)
    groups = (params, metrics, _build_environment(choice, everything))
    return [group for group in groups if group.fields or group.hidden]


# ---------------------------------------------------------------- fields


def _build_params(rows: Sequence[RunRow], everything: bool) -> FieldGroup:
    params = [row.params for row in rows]
    every = list(dict.fromkeys(name for each in params for name in each))
    shown = every if everything else differing_params(params)
    fields = [ComparedField("state", [Cell(str(row.state)) for row in rows])]
    if any(row.took_s is not None for row in rows):
        times = [Cell() if row.took_s is None else Cell(render_duration(row.took_s), value=row.took_s) for row in rows]
        fields.append(ComparedField("time", times, is_number=True))
    if any(row.tags for row in rows):
        fields.append(ComparedField("tags", [Cell(", ".join(row.tags)) for row in rows]))
    for name in shown[:_MOST_PARAMS]:
        known = [each[name] for each in params if name in each]
        is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)
        cells = [
            Cell(_shorten(render_value(each[name])), value=parse_number(each[name])) if name in each else Cell()
            for each in params
        ]
        fields.append(ComparedField(name, cells, is_number=is_number))
    return FieldGroup("Parameters", fields, len(every) - len(shown[:_MOST_PARAMS]))


def _build_metrics(table: IndexTable, everything: bool, base: int | None) -> FieldGroup:
    """Build a field for the last value of each metric, and for its best value if it has several values."""
    fields, hidden = [], 0
    names = sorted(table.metrics, key=metric_priority)
    for name in names[:_MOST_METRICS]:
        column, direction = table.metrics[name], direction_of(name)
        looks: list[tuple[str, Sequence[float]]] = [(name, column.last)]
        best = best_values(column, direction)
        if any(count > 1 for count in column.count) and list(best) != list(column.last):
            looks.append((f"best {name}", best))
        for title, values in looks:
            known = [value if count else None for value, count in zip(values, column.count, strict=True)]
            if not everything and len(known) > 1 and len({repr(value) for value in known}) == 1:
                hidden += 1
                continue
            fields.append(ComparedField(title, _build_numbers(known, direction, base), is_number=True))
    return FieldGroup("Metrics", fields, hidden + max(0, len(names) - _MOST_METRICS))


def _build_numbers(values: Sequence[float | None], direction: Direction, base: int | None) -> list[Cell]:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    best = (min if direction == "min" else max)(finite) if finite else None
    other = best if base is None else values[base]
    cells = []
    for place, value in enumerate(values):
        if value is None:
            cells.append(Cell())
            continue
        change = ""
        if other is not None and math.isfinite(other) and math.isfinite(value) and place != base:
            change = f"{value - other:+.3g}" if value != other else ("" if base is None else "±0")
        is_best = value == best and any(other != best for other in finite)
        cells.append(Cell(render_number(value, 6), change, is_best, value))
    return cells


def _build_environment(choice: Choice, everything: bool) -> FieldGroup:
    """Build the fields of the environment; fields that are equal in all runs are left out unless `everything`."""
    pairs = zip(choice.table.rows, choice.studies, strict=True)
    facts = [_load_facts(row, os.path.join(study.location.root, row.key)) for row, study in pairs]
    known = list(dict.fromkeys(name for each in facts for name in each))
    shown = known if everything else [name for name in known if len({each.get(name) for each in facts}) > 1]
    fields = [
        ComparedField(name, [Cell(_shorten(each[name])) if name in each else Cell() for each in facts])
        for name in shown[:_MOST_FACTS]
    ]
    return FieldGroup("Environment and code", fields, len(known) - len(fields))


def _load_facts(row: RunRow, run_dir: str) -> Mapping[str, str]:
    record = run_directory.try_record(run_dir)
    commands = hide_spec(record.spec).commands if record else ()
    code = {"code": row.code_hash[:12]} if row.code_hash else {}
    facts = flatten_environment(run_dir, record.commit if record else row.commit, within_root=True)
    return {**facts, **code, **{f"command {each.name}": each.text for each in commands}}


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} …"


# ---------------------------------------------------------------- code


def _compare_code(index: Index, choice: Choice) -> tuple[str, str] | None:
    """Return the difference in the code of two runs, as `diff -u` prints it, and why the difference is missing or
    incomplete. Return None unless there are two runs."""
    if len(choice.studies) != 2:
        return None
    pairs = zip(choice.table.rows, choice.studies, strict=True)
    runs = [FoundRun(study.location, os.path.join(study.location.root, row.key)) for row, study in pairs]
    try:
        found = compare(index, index, *runs, within_root=True)
    except FormatError as error:
        return "", error.message
    if found.code_note:
        return "", found.code_note
    lines: list[str] = []
    deadline = time.monotonic() + _LONGEST_DIFF_S
    for line in render_code_diff(found, _LARGEST_FILE):
        lines.append(line)
        if len(lines) >= _MOST_LINES or time.monotonic() > deadline:
            return "\n".join(lines), f"only the first {len(lines)} lines of the difference are shown"
    return "\n".join(lines), "" if lines else "The code is the same."


# ---------------------------------------------------------------- requests

ROUTES = Routes()
_WHICH_RUNS = "a run of the study, or STUDY/RUN of another study; without it all runs that `where` chooses"
_CURVE_PARAMS = (METRIC, UrlParam("run", _WHICH_RUNS, many(TEXT)), *view_params("where", "x", "zoom"))
_MOST_RUNS = 1000
_MOST_CURVES = 50
_MOST_CHARTS = 12
_PER_PAGE = 50
_SWITCHES = ("all", "turn", "best", "to", "x", "charts", "sort", "page")


def choose(request: Request) -> Choice:
    """Return the runs that `?run=A&run=B&run=OTHER-STUDY/C` names, or without names all runs, filtered by `where`."""
    snapshot, snapshots = load_study(request), get_site(request).snapshots
    names, where = _read_runs(request.query_params)
    chosen = [] if names else select_rows(snapshot.table, parse_where(where) if where else None)
    if len(names or chosen) > _MOST_RUNS:
        page = build_address("studies", snapshot.slug, "compare")
        hint = f"at most {_MOST_RUNS}" if names else f"choose at most {_MOST_RUNS} with a filter: {page}?where=…"
        raise UsageError(f"{len(names or chosen)} runs are too many to be compared on one page", hint)
    found = [(snapshot, i) for i in chosen]
    for name in names:
        study, slash, run = name.rpartition("/")
        other = snapshots.load(study) if slash else snapshot
        found.append((other, other.get_row(run)))
    if len({each.location.root for each, _ in found}) > 1:
        raise UsageError("runs of two roots cannot be compared on one page", "in a terminal: assay diff RUN RUN")
    if where and names:
        found = [found[i] for i in select_rows(pick_rows(found), parse_where(where))]
    return Choice(snapshot, names, where, pick_rows(found), [each for each, _ in found])


def _read_runs(query: QueryParams) -> tuple[list[str], str]:
    return list(dict.fromkeys(query.getlist("run"))), query.get("where", "").strip()


@ROUTES.page("/studies/{study}/compare")
def show(request: Request) -> Response:
    site, query = get_site(request), request.query_params
    names, where = _read_runs(query)
    switches = {name: query[name] for name in _SWITCHES if query.get(name)}
    values: dict[str, Any] = {"groups": None, "problem": None, "base": None, "metrics": ()}
    try:
        choice = choose(request)
        base = _find_base(choice, query)
        groups = build_groups(choice, bool(query.get("all")), base)
        with site.snapshots.open_index(choice.snapshot.location.root) as index:
            values |= {"groups": groups, "base": base, "code": _compare_code(index, choice)}
        values |= _build_runs(choice, groups, switches)
    except NotFoundError:
        raise
    except UsageError as error:  # show the error next to the filter
        values["problem"] = error
    chosen = {"run": names, "where": where}

    def link(**changes: object) -> str:
        """Return the address of this page with a changed query."""
        return f"{request.url.path}?{_build_query(**{**chosen, **switches, **changes})}"

    return site.render(
        request,
        "compare.html",
        status=400 if values["problem"] else 200,
        snapshot=load_study(request),
        switches=switches,
        where=where,
        names=names,
        link=link,
        per_page=_PER_PAGE,
        curves=f"/api{request.url.path}/curves?{_build_query(**chosen, x=switches.get('x'))}",
        split_diff=split_diff,
        **values,
    )


def _build_runs(choice: Choice, groups: Sequence[FieldGroup], switches: Mapping[str, str]) -> dict[str, Any]:
    """Build the values of the page besides fields. `runs`: each run's shown name, its address, and its name in the
    query; `order`: the runs on this page; `command`: the command that compares two runs of one study."""
    rows, studies, metrics = choice.table.rows, choice.studies, choice.table.metrics
    several = len({study.slug for study in studies}) > 1
    names = [f"{row.study}/{row.name}" if several else row.name for row in rows]
    links = [build_address("studies", study.slug, "runs", row.folder) for row, study in zip(rows, studies, strict=True)]
    runs = [*zip(names, links, map(choice.name, range(len(rows))), strict=True)]
    sort, wanted, last = switches.get("sort", ""), switches.get("page", ""), -(-len(rows) // _PER_PAGE)
    number = max(1, min(int(wanted), last)) if wanted.isdecimal() and len(wanted) < 9 else 1
    order = _order(rows, groups, sort.removeprefix("-"), is_falling=sort.startswith("-"))
    curves = [name for name, each in metrics.items() if name not in COUNTERS and any(n > 1 for n in each.count)]
    curves.sort(key=metric_priority)
    most = len(curves) if switches.get("charts") else _MOST_CHARTS
    is_pair = len(rows) == 2 and studies[0].location == studies[1].location
    return {
        "rows": rows,
        "runs": runs,
        "order": order[(number - 1) * _PER_PAGE : number * _PER_PAGE],
        "number": number,
        "last": last,
        "metrics": curves[:most],
        "left_out": len(curves) - len(curves[:most]),
        "command": show_command(["diff"], studies[0].location, *(row.folder for row in rows)) if is_pair else "",
    }


def _order(rows: Sequence[RunRow], groups: Sequence[FieldGroup], title: str, *, is_falling: bool) -> list[int]:
    """Sort the runs by a field (`Metrics/loss`) or by name (`run`), runs without a value last. With any other title the
    runs keep their order."""
    every = range(len(rows))
    if title == "run":
        return sorted(every, key=lambda i: rows[i].name, reverse=is_falling)
    fields = (field for group in groups for field in group.fields if f"{group.title}/{field.name}" == title)
    if (field := next(fields, None)) is None:
        return [*every]
    cells = field.cells
    known = [i for i in every if cells[i].text and not math.isnan(cells[i].value or 0.0)]
    known.sort(key=lambda i: cells[i].sort_key, reverse=is_falling)
    return [*dict.fromkeys((*known, *every))]


def _find_base(choice: Choice, query: QueryParams) -> int | None:
    """Return the run that metrics are compared with: the run `to`, else the first named run, else None."""
    wanted = query.get("to", "")
    first = 0 if choice.names and not query.get("best") and wanted != "best" else None
    return next((i for i in range(len(choice.studies)) if choice.name(i) == wanted), first)


def _build_query(**values: object) -> str:
    return build_query({name: value for name, value in values.items() if value})


@ROUTES.json("/api/studies/{study}/compare/curves", "compareCurves", ref("Curves"), _CURVE_PARAMS)
def send_curves(request: Request) -> Response:
    """One metric of the runs that are compared, of many the 50 best"""
    choice = choose(request)
    query = request.query_params
    metric, x, zoom = query.get("metric", ""), read_x(query.get("x", "")), query.get("zoom", "")
    known = [name for name, column in choice.table.metrics.items() if any(count > 1 for count in column.count)]
    if metric not in choice.table.metrics:
        raise NotFoundError("metric", metric, known)
    counts = choice.table.metrics[metric].count
    keep = [i for i, count in enumerate(counts) if count]
    studies = {study.slug: study for study in choice.studies}.values()
    beside = [row for study in studies for row in study.table.rows]
    locations = [study.location for study in studies]
    selection = plotting.PlottedRuns(choice.table, keep, locations, {metric: int(max(counts))}, beside=beside)
    with get_site(request).snapshots.read_points(choice.snapshot.location.root) as index:
        view = StudyView(metric=metric, x=x, best=_MOST_CURVES, zoom=zoom)
        return send(build_selected_curves(index, selection, view))
