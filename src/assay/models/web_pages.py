"""The pages of models: all checks; a check with its layers, graph and tensors; a session of tests with its baseline."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from assay.errors import NotFoundError, UsageError
from assay.follow.api import StudyLocation
from assay.models.flow.run import name_method
from assay.models.pages import (
    LEVELS,
    build_model_page,
    build_tensor_blocks,
    build_times,
    choose_layers,
    group_checks,
    is_model_study,
    list_checks,
)
from assay.models.records import MODEL_FILE
from assay.models.report.summary import render_error, render_ms
from assay.models.session_pages import (
    build_measured_changes,
    build_session_page,
    build_session_times,
    choose_tested,
    is_session_study,
    list_sessions,
)
from assay.plugins import find_function
from assay.show.formatting import render_count
from assay.values.verdict import VerdictKind
from assay.web.api import Alarm, Navigation, Pages, Snapshots, StudySnapshot, build_address, get, get_site

_MOST_COMPARED = 8


def show_all(request: Request) -> Response:
    """Show the checks of every root, and the studies that contain sessions of tests."""
    snapshots, is_of_sessions = get_site(request).snapshots, find_function("sessions.is_study")
    checks, sessions = [], []
    for slug, (location, row) in snapshots.load_studies().items():
        if is_model_study(location):
            snapshot = snapshots.load(slug)
            # checks are not cached with the table: a report may be replaced in the same folder
            groups = group_checks(list_checks(snapshot.location, snapshot.table.rows))
            checks.append((snapshot, groups, len(snapshot.table.rows)))
        elif is_of_sessions is not None and is_of_sessions(row.name):
            snapshot = snapshots.load(slug)
            if is_session_study(snapshot.table.rows):
                sessions.append((snapshot, list_sessions(snapshot.table.rows)))
    return get_site(request).render(request, "models.html", checks=checks, sessions=sessions)


def _find(request: Request) -> StudySnapshot:
    snapshots, slug = get_site(request).snapshots, request.path_params["study"]
    known = [name for name, location in snapshots.find_locations().items() if is_model_study(location)]
    if slug not in known:
        raise NotFoundError("study of models", slug, known)
    return snapshots.load(slug)


def show_check(request: Request) -> Response:
    snapshot, run = _find(request), request.path_params["run"]
    row = snapshot.table.rows[snapshot.get_row(run)]
    checks = list_checks(snapshot.location, snapshot.table.rows)
    find, only_wrong = request.query_params.get("layer", "")[:200], request.query_params.get("wrong") == "1"
    page = build_model_page(snapshot.location, row, checks)
    me = next((check for check in checks if check.run == run), None)
    same = [check for check in checks if me and check.subject == me.subject]
    layers = choose_layers(page.layers, find, only_wrong=only_wrong)
    times = _find_times(request, snapshot, name_method(page.report)) if page.report else ""
    return get_site(request).render(
        request, "model.html", snapshot=snapshot, run=run, page=page, same=same, me=me, levels=LEVELS, layers=layers,
        render_error=render_error, render_ms=render_ms, find=find, only_wrong=only_wrong, times=times,
    )  # fmt: skip


def _find_times(request: Request, snapshot: StudySnapshot, method: str) -> str:
    """Return the address of this model's times in the benchmarks of the same root; empty if there are none."""
    is_archive = find_function("benchmarks.is_archive")
    if is_archive is None:
        return ""
    snapshots = get_site(request).snapshots
    known = snapshots.find_locations().items()
    slugs = [slug for slug, each in known if is_archive(each) and each.root == snapshot.location.root]
    for slug in slugs:
        if any(row.params.get("method") == method for row in snapshots.load(slug).table.rows):
            return build_address("benchmarks", slug, "history", method=method)
    return ""


def show_tensors(request: Request) -> Response:
    snapshot, run = _find(request), request.path_params["run"]
    snapshot.get_row(run)
    case, number = request.query_params.get("case", ""), request.query_params.get("number", "0")
    if not number.isdecimal() or len(number) > 6:
        raise UsageError(f"number is not a whole number: {number!r}")
    blocks, known = build_tensor_blocks(snapshot.location, run, case, int(number))
    return get_site(request).render(
        request, "tensors.html", snapshot=snapshot, run=run, case=case, number=int(number), blocks=blocks, known=known
    )


def show_times(request: Request) -> Response:
    """Show the run times of layers of several checks side by side."""
    snapshot, runs = _find(request), request.query_params.getlist("run")[:_MOST_COMPARED]
    for run in runs:
        snapshot.get_row(run)
    blocks = build_times(snapshot.location, runs)
    return get_site(request).render(request, "times.html", snapshot=snapshot, runs=runs, blocks=blocks)


def show_session(request: Request) -> Response:
    site = get_site(request)
    snapshot = site.snapshots.load(request.path_params["study"])
    rows = snapshot.table.rows
    query = request.query_params
    page = build_session_page(snapshot.location, rows, request.path_params["session"], query.get("baseline") or None)
    tests = query.getlist("test")[:_MOST_COMPARED]
    for test in tests:
        snapshot.get_row(os.path.basename(test))
    numbers = {name: column.last for name, column in snapshot.table.metrics.items()}
    blocks = build_session_times(rows, numbers, tests) if tests else ()
    view = {name: query.get(name, "")[:200] for name in ("q", "before", "now")}
    base = page.baseline.id if page.baseline else ""
    changes = build_measured_changes(rows, numbers, page.card.id, base) if base else ()
    address_of = partial(build_address, "models", snapshot.slug, "sessions", page.card.id)
    lines = choose_tested(page.lines, view["q"], view["before"], view["now"])
    return site.render(
        request, "session.html", snapshot=snapshot, page=page, sessions=list_sessions(rows), blocks=blocks,
        changes=changes, tests=tests, view=view, lines=lines,
        address_of=lambda **new: address_of(**{"baseline": base, **new}),
    )  # fmt: skip


def find_alarms(snapshots: Snapshots, known: Mapping[str, StudyLocation]) -> Iterator[Alarm]:
    found: Counter[str] = Counter()
    for slug, location in known.items():
        if is_model_study(location):
            rows = [row for row in snapshots.load(slug).table.rows if row.state.is_over]
            checks = list_checks(location, rows)  # an upload that passed does not hide a failure that occurred here
            sides = [[each for each in checks if bool(each.received) is received] for received in (False, True)]
            newest = [each[0] for side in sides for each in group_checks(side)]
            found.update("ERROR" if check.kind is None else str(check.kind) for check in newest)
    found.pop(str(VerdictKind.PASS), None)
    for kind, count in found.items():
        yield Alarm("/models", count, f"{render_count(count, 'model check')} {kind}", kind, build_address("models"))


def build_card(_slug: str, location: StudyLocation) -> tuple[str, Mapping[str, Any]] | None:
    link = {"text": "Verdicts of each model", "path": "/models"}
    return ("parts/link.html", link) if is_model_study(location) else None


def find_related(slug: str, run: str, files: set[str]) -> Sequence[tuple[str, str]]:
    return [("Model report", build_address("models", slug, "checks", run))] if MODEL_FILE in files else []


PAGES = Pages(
    [
        get("/models", show_all),
        get("/models/{study}/times", show_times),
        get("/models/{study}/checks/{run}", show_check),
        get("/models/{study}/checks/{run}/tensors", show_tensors),
        get("/models/{study}/sessions/{session}", show_session),
    ],
    Navigation("Models", "/models", 3),
    templates=os.path.join(os.path.dirname(__file__), "templates"),
    find_alarms=find_alarms,
    card=build_card,
    find_related=find_related,
)
