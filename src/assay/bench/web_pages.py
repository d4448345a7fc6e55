"""The web pages of benchmarks: verdicts, largest changes, histories, environments, comparisons and triage."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from assay.bench.page.contents import (
    BenchArchive,
    Zoom,
    build_environments,
    build_history_page,
    is_archive,
    list_columns,
    list_commits,
)
from assay.bench.page.overview import SORTS, build_overview, choose_lines, find_changes
from assay.bench.page.sides import build_comparison
from assay.bench.records import BENCH_FILE
from assay.errors import NotFoundError, UsageError, check_known
from assay.follow.api import StudyLocation
from assay.show.formatting import render_count
from assay.values.verdict import VerdictKind
from assay.web.api import (
    TEXT,
    Alarm,
    Navigation,
    Operation,
    Pages,
    Snapshots,
    StudySnapshot,
    build_address,
    call,
    get,
    get_site,
    post,
    ref,
    send,
)

_JUDGEMENTS = ("ack", "wontfix", "invalid", "open")
_LONGEST_NOTE = 2000
_PAGE = 300  # the most benchmarks on a page
_PATIENCE_S = 1.0
_MOST_EXECUTIONS = 5000  # the most executions in a table of all benchmarks
_Built = TypeVar("_Built")


def show_all(request: Request) -> Response:
    """Show all benchmarks of every root. Unjudged benchmarks are marked; the page reloads until all are judged."""
    site, query = get_site(request), request.query_params
    view = {name: query.get(name, "")[:200] for name in ("q", "kind", "suite", "sort")}
    check_known("order", [view["sort"]] if view["sort"] else (), SORTS)
    number = query.get("page", "1")
    if not number.isdecimal() or len(number) > 6:
        raise UsageError(f"page is not a whole number: {number!r}")
    found, reading = [], list[StudyLocation]()
    for slug, location in site.snapshots.find_locations().items():
        if not is_archive(location):
            continue
        snapshot = _load_soon(site.snapshots, slug)
        if snapshot is None:
            reading.append(location)
            continue
        archive = load_kept(snapshot)
        overview = build_overview(snapshot.location, archive.groups)
        lines = choose_lines(overview, view["q"], view["kind"], view["suite"], view["sort"] or "name")
        shown = lines[(int(number) - 1) * _PAGE : int(number) * _PAGE] if int(number) else []
        by_suite = groupby(shown, key=lambda line: line.suite)  # the lines are sorted by suite
        groups = [(name, list(each)) for name, each in by_suite] if view["sort"] in ("", "name") else [("", shown)]
        found.append((snapshot, overview, groups, len(lines), find_changes(lines)))
    most = max((count for *_, count, _ in found), default=0)
    return site.render(
        request,
        "benchmarks.html",
        found=found,
        reading=reading,
        view=view,
        page=int(number),
        pages=-(-most // _PAGE),
        waiting=sum(overview.waiting for _, overview, *_ in found),
        here=build_address("benchmarks", **view, page=int(number) if int(number) > 1 else None),
        address_of=lambda **new: build_address("benchmarks", **{**view, **new}),
    )


def _load_soon(snapshots: Snapshots, slug: str) -> StudySnapshot | None:
    """Load the executions; None while a large archive is read from its folders, during which the page asks again."""
    if not snapshots.holds(slug):
        thread = threading.Thread(target=snapshots.load, args=(slug,), name="assay-read", daemon=True)
        thread.start()
        thread.join(_PATIENCE_S)
    return snapshots.load(slug) if snapshots.holds(slug) else None


def load_kept(snapshot: StudySnapshot) -> BenchArchive:
    return snapshot.remember("bench", lambda: BenchArchive(snapshot.location, snapshot.table.rows))


def _find(request: Request) -> tuple[StudySnapshot, BenchArchive]:
    """Return the snapshot and the archive of the study that the request's address names."""
    snapshots, slug = get_site(request).snapshots, request.path_params["study"]
    known = [name for name, location in snapshots.find_locations().items() if is_archive(location)]
    check_known("archive of benchmarks", [slug], known)
    snapshot = snapshots.load(slug)
    return snapshot, load_kept(snapshot)


def show_history(request: Request) -> Response:
    snapshot, archive = _find(request)
    query = request.query_params
    method, metric = query.get("method", ""), query.get("metric", "")
    zoom = Zoom(query.get("from", "").strip(), query.get("to", "").strip(), query.get("log") == "1")
    page = build_history_page(archive, method, metric or None, zoom)
    root, ran = snapshot.location.root, {each.execution_id: each for each in archive.of(method)}
    return get_site(request).render(
        request,
        "benchmark.html",
        snapshot=snapshot,
        method=method,
        page=page,
        zoom=zoom,
        problems=archive.problems,
        commits=lambda change: list_commits(root, change, ran.get(change.execution_id)),
        shell=shlex.join,
        address_of=lambda **new: build_address(
            "benchmarks",
            snapshot.slug,
            "history",
            **{"method": method, "metric": metric, "from": zoom.start, "to": zoom.end, "log": zoom.is_log, **new},
        ),
    )


def show_environments(request: Request) -> Response:
    snapshot, archive = _find(request)
    is_large = archive.count > _MOST_EXECUTIONS  # a table of all benchmarks would take too long
    method = request.query_params.get("method", "") or (archive.methods[0] if is_large else "")
    columns = list_columns(archive, method)
    by = request.query_params.getlist("by") or columns[:1]
    blocks, problem = _try(lambda: build_environments(archive, method, by))
    return get_site(request).render(
        request,
        "environments.html",
        snapshot=snapshot,
        archive=archive,
        columns=columns,
        by=by,
        method=method,
        is_large=is_large,
        blocks=blocks or (),
        problem=problem,
        shell=shlex.join,
    )


def _try(build: Callable[[], _Built]) -> tuple[_Built | None, str]:
    """Build a part of a page, or return why it is empty, such as failed executions. An unknown name is an error."""
    try:
        return build(), ""
    except NotFoundError:
        raise
    except UsageError as error:
        return None, error.message


def show_comparison(request: Request) -> Response:
    snapshot, archive = _find(request)
    base, head, method = (request.query_params.get(name, "") for name in ("base", "head", "method"))
    built, problem = _try(lambda: build_comparison(archive, base, head, method)) if base and head else (None, "")
    return get_site(request).render(
        request,
        "sides.html",
        snapshot=snapshot,
        archive=archive,
        sides=archive.list_sides(),
        base=base,
        head=head,
        method=method,
        report=built and built[0],
        blocks=built[1] if built else (),
        problem=problem,
        shell=shlex.join,
    )


async def triage(request: Request) -> Response:
    """Triage a change by a form with `metric`, `method`, `change`, `judgement` and `note`; return the call's result."""
    body = await request.body()
    return await run_in_threadpool(_triage, request, body)


def _triage(request: Request, body: bytes) -> Response:
    snapshot, archive = _find(request)
    try:
        given = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=20)
    except ValueError as error:
        raise UsageError(f"the form cannot be read: {error}") from error
    metric, method, change, judgement, note = (
        given.get(name, [""])[-1].strip() for name in ("metric", "method", "change", "judgement", "note")
    )
    check_known("benchmark", [method], archive.groups)
    if judgement not in _JUDGEMENTS:
        raise UsageError(f"there is no judgement {judgement!r}", f"there are {', '.join(_JUDGEMENTS)}")
    if not metric or not change or len(note) > _LONGEST_NOTE or "\0" in note:
        raise UsageError(f"metric and change are needed; a note has at most {_LONGEST_NOTE} characters")
    options = [f"--note={note}", f"--root={snapshot.location.root}"]
    words = ["bench", "triage", *options, "--", metric, method, change, judgement]
    code, said = call(words)
    answer = {"command": shlex.join(["assay", *words]), "code": code, "said": said}
    return send(answer, 409 if code else 200)


# ---------------------------------------------------------------- on other pages


def find_alarms(snapshots: Snapshots, known: Mapping[str, StudyLocation]) -> Iterator[Alarm]:
    archives = [snapshots.load(slug) for slug, location in known.items() if is_archive(location)]
    overviews = [build_overview(each.location, load_kept(each).groups) for each in archives]
    judged = [line.judged for each in overviews for line in each.lines if line.judged]
    broken = sum(VerdictKind.ERROR in each.kinds.values() for each in judged)
    unjudged = sum(find_changes(each.lines).open_count for each in overviews)
    waiting = sum(each.waiting for each in overviews)
    for count, noun, what, kind, sort in (
        (broken, "benchmark", "ERROR", "ERROR", "verdict"),
        (unjudged, "benchmark change", "not triaged", "FAIL", "change"),
        (waiting, "benchmark", "not judged yet", "INCONCLUSIVE", None),
    ):
        if count:
            text, address = f"{render_count(count, noun)} {what}", build_address("benchmarks", sort=sort)
            yield Alarm("/benchmarks", count, text, kind, address, is_note=sort is None)


def build_card(_slug: str, location: StudyLocation) -> tuple[str, Mapping[str, Any]] | None:
    link = {"text": "Histories and verdicts", "path": "/benchmarks"}
    return ("parts/link.html", link) if is_archive(location) else None


def find_related(_slug: str, _run: str, files: set[str]) -> Sequence[tuple[str, str]]:
    return [("Benchmark history", build_address("benchmarks"))] if BENCH_FILE in files else []


_FOLDER = os.path.dirname(__file__)
_JUDGEMENT = {
    "type": "object",
    "required": ["metric", "method", "change", "judgement"],
    "properties": {
        **dict.fromkeys(("metric", "method", "change"), TEXT),
        "judgement": {"enum": list(_JUDGEMENTS)},
        "note": {"type": "string", "maxLength": _LONGEST_NOTE},
    },
}
_TRIAGE = Operation(
    "triage",
    "Record a judgement about a change of a benchmark, as `assay bench triage`",
    ref("Action"),
    refusals=(400, 404, 409),
    body={"application/x-www-form-urlencoded": {"schema": ref("Judgement")}},
    schemas={"Judgement": _JUDGEMENT},
)
PAGES = Pages(
    [
        get("/benchmarks", show_all),
        get("/benchmarks/{study}/history", show_history),
        get("/benchmarks/{study}/environments", show_environments),
        get("/benchmarks/{study}/compare", show_comparison),
        post("/api/benchmarks/{study}/triage", triage, _TRIAGE),
    ],
    Navigation("Benchmarks", "/benchmarks", 2),
    os.path.join(_FOLDER, "templates"),
    os.path.join(_FOLDER, "static"),
    find_alarms,
    build_card,
    find_related,
)
