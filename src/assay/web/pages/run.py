"""The page of a run: everything that `assay show` prints, its readings over time, its verdicts, its logs and files."""

from __future__ import annotations

import math
import os
import queue
import time
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from assay.errors import AssayError, FormatError, NotFoundError, UsageError
from assay.follow.api import LimitedProcess
from assay.follow.locations import StudyLocation, advise_adopting, show_command
from assay.follow.log_tails import find_failed_log, load_tail
from assay.observe.readings import parse_reading
from assay.plots import api as plotting
from assay.reading import run_description
from assay.reading.ranking import SortKey
from assay.reading.run_description import RunDescription
from assay.record import run_directory
from assay.record.index.base import IndexTable, RunRow
from assay.record.index.stored import Index
from assay.show.chart import Line, LineChart
from assay.system.files import is_special
from assay.values import layout
from assay.values.document import Facts, TableBlock
from assay.values.plain import render_value
from assay.values.series import direction_of, metric_priority
from assay.values.state import FAILED
from assay.web.interface import ask_pages
from assay.web.pages import run_files
from assay.web.pages.page_view import COUNTERS, StudyView, read_x, view_params
from assay.web.pages.profiles import is_profile
from assay.web.pages.study_page import build_answer, build_selected_curves, find_names
from assay.web.pages.verdicts import load_run_verdicts
from assay.web.routes import COUNT, Routes, Schema, UrlParam, quote, ref, send
from assay.web.security import FRAME_POLICY
from assay.web.site import Site, build_address, get_site, load_study
from assay.web.snapshots import StudySnapshot

_MOST_READINGS = 50_000  # longer runs show every second reading, or every fourth …
_LONGEST_JOB_LOG = 1 << 20
_MOST_VERDICTS = 200
_LONGEST_READING = 4096


class Failure(NamedTuple):
    """The reason why a run failed, as `assay run` prints it. `lines` are the last lines of the file `log`."""

    reason: str
    attempts: int = 1
    log: str = ""
    lines: Sequence[str] = ()


def build_run_page(
    index: Index, location: StudyLocation, run_dir: str, children: Sequence[str], differing: frozenset[str]
) -> dict[str, Any]:
    """Build the content of the page. `differing`: the parameters in which the runs of the study differ. In the result
    `problems` names unreadable files, `verdicts` begins with the newest, `repeat` has effects and their commands."""
    run, readings = describe_served(index, location, run_dir, children), _find_readings(run_dir)
    now = time.time()
    record = run.status.record
    params = [(name, render_value(value)) for name, value in record.spec.params.items()]
    git = (run.environment or {}).get("git")
    changes = git.get("diff") if isinstance(git, dict) else ""
    name = os.path.basename(run_dir)
    facts = run_description.build_state_facts(run, now)
    sections = run_description.build_environment_sections(run.environment, run_description.find_node(run))
    return {
        "facts": [pair for pair in facts if pair[0] not in ("run", "state", "note")],
        "notes": run.marks.notes,
        "problems": _find_problems(run),
        "differing": [pair for pair in params if pair[0] in differing],
        "same": [pair for pair in params if pair[0] not in differing],
        "commands": _build_commands(run, now),
        "attempts": run_description.build_attempt_blocks(run, now),
        "metrics": [TableBlock(run_description.build_metric_table(run.metrics))] if run.metrics else [],
        "resources": [*run_description.build_resource_facts(run)],
        "readings": list(readings.columns) if len(readings.times) > 1 else [],
        "verdicts": load_run_verdicts(location, name)[:_MOST_VERDICTS],
        "origin": run_description.build_origin_facts(run, now),
        "environment": [each for each in sections if any(isinstance(b, Facts) and b.pairs for b in each.blocks)],
        "variables": list(record.spec.env),
        "code_changes": changes if isinstance(changes, str) else "",
        "parent": record.parent or "",
        "children": children,
        "repeat": _build_repeats(location, name, run),
    }


def describe_served(index: Index, location: StudyLocation, run_dir: str, children: Sequence[str]) -> RunDescription:
    """Describe a run; an environment file is ignored if it is a link to outside the root."""
    run = run_description.describe_run(index, location, run_dir, children)
    is_outside = run.environment is not None and run_directory.leaves_root(run_dir, layout.ENVIRONMENT_FILE)
    return replace(run, environment=None) if is_outside else run


def _find_problems(run: RunDescription) -> list[str]:
    """Return the problems with the files of the run, as `assay show` reports them."""
    found = []
    if run.status.is_damaged and run.status.outcome:
        found.append(run.status.outcome.reason)
    elif run.environment is None and not run.status.record.origin and run.status.record.spec.commands:
        found.append(f"{layout.ENVIRONMENT_FILE} is missing or damaged: where it ran is not known")
    if run.marks.problem:
        found.append(run.marks.problem)
    for attempt in run.status.history.attempts:
        if attempt.contradictory:
            names = ", ".join(sorted(attempt.contradictory))
            found.append(f"attempt {attempt.number}: {names} has exit markers that contradict each other")
    path = os.path.join(run.dir, layout.READINGS_FILE)
    if os.path.lexists(path) and is_special(path):
        found.append(f"{layout.READINGS_FILE} is not a file: there are no readings")
    return found


def _build_repeats(location: StudyLocation, name: str, run: RunDescription) -> list[tuple[str, str]]:
    commands = []
    if run_description.is_untouched(run):
        what, command = advise_adopting(location, name)
        commands.append((what.capitalize(), command))
    elif run.commands:
        if run.status.state.is_over:
            commands.append(("Run it again, as a new attempt", show_command(["rerun"], location, name)))
        if run.status.state in FAILED and run.status.record.code_hash:
            old = show_command(["rerun"], location, name, options=["--old-code"])
            commands.append(("The same with its recorded code", old))
        commands.append(("The same commands by hand, as a new attempt", run_description.show_job(run.dir)))
    return [*commands, ("Everything about it, in a terminal", show_command(["show"], location, name))]


def find_failure(run_dir: str, row: RunRow) -> Failure | None:
    """Return why the run failed, with the log of the failed or else the last command; None if it did not fail."""
    if row.state not in FAILED:
        return None
    with suppress(AssayError, OSError):
        record = run_directory.try_record(run_dir)
        commands = tuple(each.name for each in record.spec.commands) if record else ()
        if record and (found := find_failed_log(run_dir, record.spec.log_name, commands)):
            path = run_files.find_file(run_dir, os.path.basename(found))
            return Failure(row.reason, row.attempt, os.path.basename(path), load_tail(path))
    return Failure(row.reason, row.attempt)


# ---------------------------------------------------------------- commands


def _build_commands(run: RunDescription, now: float) -> list[dict[str, Any]]:
    """Return each command with its text and its result in each attempt. `code` is None if the command has not ended or
    its exit code is unknown; `is_late`: the time limit ended the command."""
    spans = _load_spans(run)
    attempts = run.status.history.attempts
    found = []
    for name, text in run.commands.items():
        tries = []
        for attempt in attempts:
            span, code = spans.get((name, attempt.number)), attempt.codes.get(name)
            if span is None and code is None:
                continue  # the command was skipped or has not begun
            begin, end = span or (None, None)
            if end is None and attempt.number == run.status.attempt and not run.status.state.is_over:
                end = now
            seconds = max(0.0, end - begin) if begin is not None and end is not None else None
            is_late = name in attempt.timeouts
            tries.append({"attempt": attempt.number, "code": code, "seconds": seconds, "is_late": is_late})
        found.append({"name": name, "text": text, "tries": tries})
    return found


def _load_spans(run: RunDescription) -> dict[tuple[str, int], tuple[float, float | None]]:
    """Return the start and end of each command in each attempt, from job.log. The lines of job.log are in order of
    time, and a line belongs to the last attempt that had started."""
    path = os.path.join(run.dir, layout.JOB_LOG)
    spans: dict[tuple[str, int], tuple[float, float | None]] = {}
    if not os.path.isfile(path):
        return spans
    with open(path, "rb") as file:
        lines = file.read(_LONGEST_JOB_LOG).decode("utf-8", "replace").splitlines()
    begins = [(each.number, each.handle.started_at if each.handle else 0.0) for each in run.status.history.attempts]
    for words in map(str.split, lines):
        if len(words) < 3 or words[2] not in ("start", "exit"):
            continue
        try:
            stamp = float(words[0].replace(",", "."))
        except ValueError:
            continue
        number = max((number for number, begin in begins if begin <= stamp + 1), default=1)
        if words[2] == "start":
            spans[words[1], number] = (stamp, None)
        else:
            last = max((each for name, each in spans if name == words[1]), default=None)
            if last is not None:
                spans[words[1], last] = (spans[words[1], last][0], stamp)
    return spans


# ---------------------------------------------------------------- curves


class _Readings(NamedTuple):
    times: Sequence[float]
    columns: Mapping[str, Sequence[float]]


def _build_timed(
    table: IndexTable, number: int, readings: _Readings, view: StudyView, times: Sequence[float], ys: Sequence[float]
) -> dict[str, Any]:
    """Return a curve over time, on the same axis for each curve: the time of all metrics and readings of the run."""
    name, row, read_at = view.metric, table.rows[number], readings.times
    columns = [column for column in table.metrics.values() if column.count[number]]
    firsts = [plotting.find_start(table, number), *(time for time in read_at[:1] if row.started_at is None)]
    lasts = [*(column.last_time[number] for column in columns), row.ended_at, *read_at[-1:]]
    start = min((time for time in firsts if math.isfinite(time)), default=read_at[0] if read_at else 0.0)
    end = max((each for each in lasts if each is not None and math.isfinite(each)), default=start)
    seconds, unit = plotting.choose_time_unit(end - start)
    pairs = sorted((time - start, i) for i, time in enumerate(times) if math.isfinite(time))
    line = Line(name, [second / seconds for second, _ in pairs], [ys[i] for _, i in pairs])
    chart = LineChart((line,), "", f"time since the start of the run ({unit})", name)
    answer = build_answer(chart, SortKey(name, direction_of(name)), {name: row}, view)
    return {**answer, "x_range": [0.0, (end - start) / seconds]}


def _find_readings(run_dir: str) -> _Readings:
    path = os.path.join(run_dir, layout.READINGS_FILE)
    with suppress(OSError):
        if os.path.isfile(path):
            info = os.stat(path)
            return _load_readings(path, info.st_mtime_ns, info.st_size)
    return _Readings((), {})


@lru_cache(maxsize=4)  # a page requests its charts one by one
def _load_readings(path: str, _changed_ns: int, _size: int) -> _Readings:
    found = [array("d") for _ in range(9)]
    stride, count = 1, 0
    with open(path, "rb") as file:
        for line in iter(lambda: file.readline(_LONGEST_READING), b""):
            reading = parse_reading(line)
            if reading is None or (found[0] and reading.time < found[0][-1]):
                continue
            count += 1
            if count % stride:
                continue
            values = [reading.time, reading.cpu_s, reading.rss_bytes / 2**30, reading.processes, *[math.nan] * 5]
            if gpu := reading.gpu:
                values[4:] = gpu.utilisation, gpu.memory_bytes / 2**30, gpu.power_w, gpu.temperature_c, gpu.sm_clock_mhz
            for column, value in zip(found, values, strict=True):
                column.append(value)
            if len(found[0]) >= _MOST_READINGS:
                found = [column[::2] for column in found]
                stride *= 2
    times, cpu, memory, processes, *gpus = found
    columns: dict[str, Sequence[float]] = {
        "CPU, % of one core": [math.nan, *(_measure_cpu(times, cpu, i) for i in range(1, len(times)))],
        "memory, GiB": memory,
        "processes": processes,
    }
    labels = ("GPU, %", "GPU memory, GiB", "GPU power, W", "GPU temperature, °C", "GPU clock, MHz")
    columns |= {label: column for label, column in zip(labels, gpus, strict=True) if any(map(math.isfinite, column))}
    return _Readings(times, columns)


def _measure_cpu(times: Sequence[float], used: Sequence[float], i: int) -> float:
    """Return the use of CPU in percent since the last reading; NaN when a new attempt counts from zero."""
    seconds, spent = times[i] - times[i - 1], used[i] - used[i - 1]
    return 100 * spent / seconds if seconds > 0 and spent >= 0 else math.nan


def choose_metrics(table: IndexTable, number: int) -> tuple[list[str], bool]:
    """Return the metrics with more than one value, the most informative first, and whether any of them has times."""
    names = [name for name, column in table.metrics.items() if column.count[number] > 1 and name not in COUNTERS]
    timed = any(math.isfinite(table.metrics[name].last_time[number]) for name in names)
    return sorted(names, key=metric_priority), timed


def find_children(rows: Sequence[RunRow], key: str) -> list[str]:
    return [row.key for row in rows if row.parent == key]


# ---------------------------------------------------------------- requests

ROUTES = Routes()
_CURVE_PARAMS = (
    UrlParam("metric", "which metric"),
    UrlParam("reading", "instead of a metric: a reading of the machine, for example `memory, GiB`"),
    *view_params("x", "zoom"),
)
_LOG_ANSWER: Schema = {"anyOf": [ref("LogPart"), ref("LogMatches")]}
_LOG_PARAMS = (
    UrlParam("command", "which command; without it the failed command, else the last"),
    UrlParam("attempt", "which attempt; without it the last", {"type": "integer", "minimum": 1}),
    UrlParam("file", "instead of a command: a file of the run by its name"),
    UrlParam("from", "the first byte; without it the end of the log, or the beginning of a search", COUNT),
    UrlParam("find", "instead of a part: lines that hold these words"),
)
_MOST_CHARTS = 24  # charts that are shown without a click
_MOST_SEARCHES = 3  # searches at once, each of which may take seconds
_SEARCH_S = 10.0  # CPU time of a search
_searchers: queue.SimpleQueue[LimitedProcess] = queue.SimpleQueue()  # in the server searches would delay every thread
for _ in range(_MOST_SEARCHES):
    _searchers.put(LimitedProcess())


def find_run(request: Request) -> tuple[Site, StudySnapshot, int, str]:
    """Return the site, the study, and the row and directory of the run that the request's path names."""
    snapshot = load_study(request)
    row = snapshot.get_row(request.path_params["run"])
    return get_site(request), snapshot, row, os.path.join(snapshot.location.dir, request.path_params["run"])


@ROUTES.page("/studies/{study}/runs/{run}")
def show(request: Request) -> Response:
    site, snapshot, number, run_dir = find_run(request)
    row, table, location = snapshot.table.rows[number], snapshot.table, snapshot.location
    differing = frozenset(find_names(snapshot).differing)
    page, problem = None, ""
    try:
        with site.snapshots.open_index(location.root) as index:
            page = build_run_page(index, location, run_dir, find_children(table.rows, row.key), differing)
    except FormatError as error:  # the page still shows the files
        problem = error.message
    metrics, has_times = choose_metrics(table, number)
    is_timed = request.query_params.get("x") == "time" and has_times
    files, failure = run_files.list_files(run_dir), find_failure(run_dir, row)
    most = len(metrics) if request.query_params.get("all") else _MOST_CHARTS
    return site.render(
        request,
        "run.html",
        snapshot=snapshot,
        row=row,
        run=request.path_params["run"],
        page=page,
        problem=problem,
        metrics=metrics[:most],
        left_out=len(metrics) - len(metrics[:most]),
        has_times=has_times,
        is_timed=is_timed,
        files=files,
        shown=run_files.list_shown(run_dir, files),
        logged=run_files.list_logged(run_dir, files),
        failure=failure,
        log=(failure.log if failure else "") or run_files.find_default_log(run_dir),
        related=_find_related(site, snapshot, request.path_params["run"], {file.name for file in files}),
        links=_link_runs(site, snapshot, [*page["children"], page["parent"]] if page else []),
        split_diff=run_files.split_diff,
        quoted=lambda text: quote(text, safe="/"),
    )


def _find_related(site: Site, snapshot: StudySnapshot, run: str, files: set[str]) -> list[tuple[str, str]]:
    """Return the text and the address of each page about the run that a plug-in has, and of its profiles."""
    slug = snapshot.slug
    links = ask_pages(
        site.pages, "find_related", lambda links: [(str(text), str(to)) for text, to in links], slug, run, files
    )
    profiles = [("Profiles", build_address("profiles", slug, run))] if any(map(is_profile, files)) else []
    return [*chain.from_iterable(links), *profiles]


def _link_runs(site: Site, snapshot: StudySnapshot, keys: list[str]) -> dict[str, str]:
    """Return the addresses of the runs `keys` by key; runs that do not exist are left out."""
    found = {}
    for key in filter(None, keys):
        study, _, run = key.partition("/")
        try:
            other = snapshot if study == snapshot.location.name else site.snapshots.load(study)
            other.get_row(run)
        except NotFoundError:
            continue
        found[key] = build_address("studies", other.slug, "runs", run)
    return found


@ROUTES.json("/api/studies/{study}/runs/{run}/curves", "showRunCurve", ref("Curves"), _CURVE_PARAMS)
def send_curves(request: Request) -> Response:
    """One metric of a run, or one of its readings, thinned to what a screen shows; over time all have the same axis"""
    site, snapshot, number, run_dir = find_run(request)
    table, row, query = snapshot.table, snapshot.table.rows[number], request.query_params
    reading, metric = query.get("reading", ""), query.get("metric", "")
    metric = metric or next(iter(choose_metrics(table, number)[0]), "")
    view = StudyView(metric=reading or metric, x=read_x(query.get("x", "")), zoom=query.get("zoom", ""))
    readings = _find_readings(run_dir) if reading or view.x == "time" else _Readings((), {})
    if reading:
        if reading not in readings.columns:
            raise NotFoundError("reading", reading, list(readings.columns))
        return send(_build_timed(table, number, readings, view, readings.times, readings.columns[reading]))
    known = [name for name, column in table.metrics.items() if column.count[number]]
    if metric not in known:
        raise NotFoundError("metric", metric, known)
    with site.snapshots.read_points(snapshot.location.root) as index:
        if view.x == "time":
            series = index.load_series(row.key, metric)
            if not any(map(math.isfinite, series.times)):
                raise UsageError(f"{metric} has no times", "metrics of assay.log have them")
            return send(_build_timed(table, number, readings, view, series.times, series.values))
        counts = {metric: int(table.metrics[metric].count[number])}
        selection = plotting.PlottedRuns(table, [number], [snapshot.location], counts)
        answer = build_selected_curves(index, selection, view)
    return send({**answer, "curves": [{**curve, "name": metric} for curve in answer["curves"]]})


@ROUTES.json("/api/studies/{study}/runs/{run}/log", "showLog", _LOG_ANSWER, _LOG_PARAMS)
def send_log(request: Request) -> Response:
    """A part of a log, or with `find` the lines that hold these words"""
    _, _, _, run_dir = find_run(request)
    query = request.query_params
    attempt, start = (_read_whole(query.get(name), name) for name in ("attempt", "from"))
    path = run_files.choose_log(run_dir, query.get("file") or None, query.get("command") or None, attempt)
    words = query.get("find", "")
    if not words:
        return send(run_files.load_log(path, start))
    if len(words) > 1000:
        raise UsageError("a search has at most 1000 characters")
    try:
        searcher = _searchers.get(timeout=0.3)
    except queue.Empty:
        raise HTTPException(429, "other searches are going on; try again in a moment") from None
    try:
        return send(searcher.call("assay.web.pages.run_files:search_log", path, words, start or 0, limit_s=_SEARCH_S))
    finally:
        _searchers.put(searcher)


def _read_whole(text: str | None, name: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise UsageError(f"{name} is not a whole number: {text[:40]!r}")
    return int(text)


@ROUTES.page("/studies/{study}/runs/{run}/files/{file:path}")
def send_file(request: Request) -> Response:
    """Send a file as a download, since the file may be a page with scripts. With `view` the browser shows a picture,
    which is recognised by its bytes and cannot be executed, or a page in a sandboxed frame of the run's page, without
    scripts, forms, an origin of its own and requests."""
    _, _, _, run_dir = find_run(request)
    path = run_files.find_file(run_dir, request.path_params["file"])
    with open(path, "rb"):  # an unreadable file is refused before the answer begins
        kind = run_files.find_media_kind(path) if request.query_params.get("view") else None
    headers = {"content-security-policy": "sandbox; default-src 'none'", "cache-control": "no-store"}
    if kind == run_files.PAGE_KIND:
        headers |= {"content-security-policy": FRAME_POLICY, "x-frame-options": "SAMEORIGIN"}
    if kind:
        return FileResponse(path, media_type=kind, headers={**headers, "content-disposition": "inline"})
    return FileResponse(path, headers=headers, media_type="application/octet-stream", filename=os.path.basename(path))
