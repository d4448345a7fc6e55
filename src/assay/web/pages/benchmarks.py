"""Benchmarks: the verdict of each, the largest changes, histories, environments, two sides compared, triage."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay.bench.api import (
    Archive,
    Overview,
    build_comparison,
    build_environments,
    build_history_page,
    build_overview,
    get_triage_stamp,
    is_archive,
    list_columns,
    load_archive,
)
from assay.errors import NotFoundError, UsageError
from assay.values.document import Block
from assay.web.actions import call
from assay.web.routes import get, post
from assay.web.site import get_site
from assay.web.snapshots import Snapshot

_JUDGEMENTS = ("ack", "wontfix", "invalid", "open")
_LONGEST_NOTE = 2000


def show_all(request: Request) -> Response:
    """Of every root that has benchmarks."""
    site = get_site(request)
    slugs = [slug for slug, location in site.snapshots.find_locations().items() if is_archive(location)]
    found = []
    for slug in slugs:
        snapshot = site.snapshots.load(slug)
        archive = _load(snapshot)
        found.append((snapshot, archive, _load_overview(snapshot, archive)))
    return site.render(request, "benchmarks.html", found=found)


def _load(snapshot: Snapshot) -> Archive:
    return snapshot.remember("bench", lambda: load_archive(snapshot.location))


def _load_overview(snapshot: Snapshot, archive: Archive) -> Overview:
    """Made again when an execution or a judgement has come."""
    return snapshot.remember(("bench overview", get_triage_stamp(snapshot.location)), lambda: build_overview(archive))


def _find(request: Request) -> tuple[Snapshot, Archive]:
    """The archive of the address."""
    snapshots, slug = get_site(request).snapshots, request.path_params["study"]
    known = [name for name, location in snapshots.find_locations().items() if is_archive(location)]
    if slug not in known:
        raise NotFoundError("archive of benchmarks", slug, known)
    snapshot = snapshots.load(slug)
    return snapshot, _load(snapshot)


def show_history(request: Request) -> Response:
    snapshot, archive = _find(request)
    method, metric = (request.query_params.get(name, "") for name in ("method", "metric"))
    page = build_history_page(archive, method, metric or None)
    return get_site(request).render(
        request, "benchmark.html", snapshot=snapshot, method=method, page=page, shell=shlex.join
    )


def show_environments(request: Request) -> Response:
    snapshot, archive = _find(request)
    columns = list_columns(archive)
    method, by = request.query_params.get("method", ""), request.query_params.getlist("by") or columns[:1]
    blocks: Sequence[Block] = ()
    problem = ""
    try:
        blocks = build_environments(archive, method or None, by)
    except NotFoundError:
        raise
    except UsageError as error:  # nothing that succeeded without disturbance
        problem = error.message
    return get_site(request).render(
        request,
        "environments.html",
        snapshot=snapshot,
        archive=archive,
        columns=columns,
        by=by,
        method=method,
        blocks=blocks,
        problem=problem,
        shell=shlex.join,
    )


def show_comparison(request: Request) -> Response:
    snapshot, archive = _find(request)
    base, head, method = (request.query_params.get(name, "") for name in ("base", "head", "method"))
    report, problem = None, ""
    blocks: Sequence[Block] = ()
    if base and head:
        try:
            report, blocks = build_comparison(archive, base, head, method or None)
        except NotFoundError:
            raise
        except UsageError as error:
            problem = error.message
    return get_site(request).render(
        request,
        "sides.html",
        snapshot=snapshot,
        archive=archive,
        sides=archive.list_sides(),
        base=base,
        head=head,
        method=method,
        report=report,
        blocks=blocks,
        problem=problem,
        shell=shlex.join,
    )


async def triage(request: Request) -> Response:
    """A form with `metric`, `method`, `change`, `judgement` and `note`; the answer is what the command prints."""
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
    archive.of(method)
    if judgement not in _JUDGEMENTS:
        raise UsageError(f"there is no judgement {judgement!r}", f"there are {', '.join(_JUDGEMENTS)}")
    if not metric or not change or len(note) > _LONGEST_NOTE or "\0" in note:
        raise UsageError(f"metric and change are needed; a note has at most {_LONGEST_NOTE} characters")
    options = [f"--note={note}", f"--root={snapshot.location.root}"]
    words = ["bench", "triage", *options, "--", metric, method, change, judgement]
    code, said = call(words)
    answer = {"command": shlex.join(["assay", *words]), "code": code, "said": said}
    # htmx loads the page again: the verdict may be another one now
    return JSONResponse(answer, 409 if code else 200, headers={} if code else {"hx-refresh": "true"})


ROUTES = [
    get("/benchmarks", show_all),
    get("/benchmarks/{study}/history", show_history),
    get("/benchmarks/{study}/environments", show_environments),
    get("/benchmarks/{study}/compare", show_comparison),
    post("/api/benchmarks/{study}/triage", triage),
]
