"""`assay show`: print everything about one run."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from assay.execute.places import Place, load_entry, load_place, load_wait_reason, render_place
from assay.follow.collect import find_sources
from assay.follow.locations import StudyLocation
from assay.follow.refresh import refresh_one
from assay.follow.run_status import RunStatus, load_shown
from assay.observe.files import describe_unread
from assay.observe.readings import parse_absence, parse_reading
from assay.record import run_directory
from assay.record.checkpoints import describe_checkpoint
from assay.record.index.stored import Index
from assay.record.received import describe, load_received, load_received_facts
from assay.record.run_directory import Attempt, RunRecord
from assay.record.tags import Marks, find_tags_file, load_marks
from assay.show import formatting
from assay.system.files import read_text
from assay.values import layout
from assay.values.document import Document, Facts, Notes, Section, TableBlock, Text
from assay.values.plain import NO_DATE, render_date, render_value
from assay.values.run import JobHandle, Outcome, State, build_command
from assay.values.series import Reading, Summary, best_of, whole_step
from assay.values.table import Column, Table

_FILES_SHOWN = 30
_LONGEST_ABSENCE = 1 << 16


@dataclass(frozen=True, slots=True)
class ReadingsSummary:
    """A summary of the resource readings of a run."""

    count: int
    seconds: float
    peak_rss_bytes: int
    most_processes: int
    mean_cpu_percent: float | None = None
    peak_gpu_memory_bytes: int | None = None
    mean_gpu_percent: float | None = None


@dataclass(frozen=True, slots=True)
class RunDescription:
    key: str
    dir: str
    status: RunStatus
    metrics: Mapping[str, Summary]
    sources: tuple[str, ...]  # files from which the metrics are read
    readings: ReadingsSummary | None
    no_readings: str | None  # why there are no readings
    environment: Mapping[str, Any] | None
    files: Mapping[str, int]  # name -> bytes
    marks: Marks
    children: tuple[str, ...] = ()  # keys of runs that repeat this one with changes
    unread: tuple[str, ...] = ()  # unreadable values and lines of its sources

    @property
    def commands(self) -> dict[str, str]:
        return {c.name: layout.show_command(c.text, self.dir) for c in self.status.record.spec.commands}


def describe_run(
    index: Index, location: StudyLocation, run_dir: str, children: Sequence[str] | None = None
) -> RunDescription:
    """Describe a run; raise FormatError if the folder cannot be read. `children`: keys of the children, if known."""
    status = load_shown(run_dir)
    key = location.key(run_dir)
    refresh_one(index, location, run_dir)
    readings, no_readings = load_readings(os.path.join(run_dir, layout.READINGS_FILE))
    sources = tuple(source.name for source in find_sources(run_dir, status.record.spec))
    unread = [(source, describe_unread(index.load_cursor(key, source).state)) for source in sources]
    return RunDescription(
        key=key,
        dir=run_dir,
        status=status,
        metrics=index.load_summaries(keys=[key]).get(key, {}),
        sources=sources,
        unread=tuple(f"{source}: {text}" for source, text in unread if text),
        readings=readings,
        no_readings=no_readings,
        environment=run_directory.load_environment(run_dir),
        files=dict(load_files(run_dir)),
        children=tuple(find_children(location, key) if children is None else children),
        marks=load_marks(find_tags_file(run_dir)),
    )


def find_children(location: StudyLocation, key: str) -> Iterator[str]:
    """Yield the keys of the runs of the study that `assay rerun` made from the run `key`."""
    mark = f'"parent": {json.dumps(key, ensure_ascii=False)}'  # a text, as parsing thousands of records takes long
    for run_dir in run_directory.find_run_dirs(location.dir):
        with suppress(OSError):
            if mark in read_text(os.path.join(run_dir, layout.RUN_FILE)):
                yield location.key(run_dir)


def load_files(run_dir: str, within: str = "") -> Iterator[tuple[str, int]]:
    """Yield the files of a run with their sizes. A folder is one entry, except folders of media and artifacts."""
    for entry in sorted(os.scandir(os.path.join(run_dir, within)), key=lambda entry: entry.name):
        name = within + entry.name + "/" * entry.is_dir(follow_symlinks=False)
        if name in ("files/", "files/media/", "files/artifacts/"):
            yield from load_files(run_dir, name)
        else:
            inside = [os.path.join(at, file) for at, _, files in os.walk(entry.path) for file in files]
            yield name, sum(os.lstat(path).st_size for path in (inside if name[-1] == "/" else [entry.path]))


def load_readings(path: str) -> tuple[ReadingsSummary | None, str | None]:
    """Return a summary of the readings of a run, and the reason that the file gives if job.sh could not take any."""
    if os.path.isfile(path):  # opening a named pipe would block
        with suppress(OSError), open(path, "rb") as file:
            absence = parse_absence(file.readline(_LONGEST_ABSENCE))
            file.seek(0)
            return build_readings_summary([each for line in file if (each := parse_reading(line)) is not None]), absence
    return None, None


def build_readings_summary(readings: Sequence[Reading]) -> ReadingsSummary | None:
    if not readings:
        return None
    seconds = readings[-1].time - readings[0].time
    used = readings[-1].cpu_s - readings[0].cpu_s
    gpu = [reading.gpu for reading in readings if reading.gpu is not None]
    return ReadingsSummary(
        count=len(readings),
        seconds=seconds,
        peak_rss_bytes=max(reading.peak_rss_bytes for reading in readings),
        most_processes=max(reading.processes for reading in readings),
        mean_cpu_percent=100 * used / seconds if seconds > 0 and used >= 0 else None,
        peak_gpu_memory_bytes=max(each.memory_bytes for each in gpu) if gpu else None,
        mean_gpu_percent=math.fsum(each.utilisation for each in gpu) / len(gpu) if gpu else None,
    )


# ---------------------------------------------------------------- for people


def build_document(run: RunDescription, *, with_environment: bool = False, now: float | None = None) -> Document:
    now = time.time() if now is None else now
    params, more = run.status.record.spec.params, len(run.files) - _FILES_SHOWN
    files = [(name, formatting.render_size(size)) for name, size in run.files.items()]
    sections = [
        Section((Facts(build_state_facts(run, now)),)),
        _build_section("Parameters", [(name, render_value(value)) for name, value in params.items()]),
        Section((Facts(list(run.commands.items()), folds=False),), "Commands"),
        Section((TableBlock(build_metric_table(run.metrics)), Notes(run.unread)), "Metrics"),
        Section(build_attempt_blocks(run, now), "Attempts"),
        _build_section("Resources", [*build_resource_facts(run)]),
        Section((Facts(build_origin_facts(run, now), folds=False),), "Origin"),
        _build_section("Files", [*files[:_FILES_SHOWN], *([("…", f"{more} more")] if more > 0 else [])]),
    ]
    if with_environment:
        sections += build_environment_sections(run.environment, find_node(run))
    return Document(run.key, sections, facts=build_facts(run))


def _build_section(title: str, pairs: Sequence[tuple[str, str]]) -> Section:
    return Section((Facts(pairs),), title)


def build_state_facts(run: RunDescription, now: float) -> list[tuple[str, str]]:
    status = run.status
    outcome, handle, last = status.outcome, status.handle, status.history.last
    reason = f": {outcome.reason}" if outcome and outcome.reason else ""
    facts = [("run", run.key), ("state", f"{status.state}{reason}")]
    if last is not None and last.stop is not None:
        facts.append(("ended by" if last.stop.kind == "rule" else "stopped by", last.stop.who))
    if handle is not None:
        began = _find_begin(run.dir, handle, outcome)
        if handle.executor != "local":
            waited = formatting.render_duration(max(0.0, (began or now) - handle.started_at))
            reason = "" if began else load_wait_reason(handle, run.dir)
            waits = f", waited {waited}" if began else f", waits for {waited} now" + (f": {reason}" if reason else "")
            facts.append(("submitted", render_moment(handle.started_at, now) + waits))
        end = outcome.ended_at if outcome and outcome.ended_at else (None if status.state.is_over else now)
        if began is not None:
            spent = formatting.render_duration(max(0.0, end - began)) if end else ""
            took = f", {'took' if status.state.is_over else 'for'} {spent}" if end else ""
            facts.append(("started", render_moment(began, now) + took))
        slot = f", slot {handle.slot}" if handle.slot else ""
        facts.append(("where", render_place(load_place(run.dir, handle), handle) + slot))
        if handle.image:
            facts.append(("container", handle.image))
        if status.state is State.RUNNING and (entry := load_entry(run.dir, handle)):
            facts.append(("enter", entry))
    return [*facts, *_received_facts(run, now), *_mark_facts(run.marks, now), ("folder", os.path.relpath(run.dir))]


def _received_facts(run: RunDescription, now: float) -> Iterator[tuple[str, str]]:
    received = load_received(run.dir)
    if received is None:
        return
    yield "received", f"{describe(received)}, {render_moment(received.at, now)}"
    if received.adopted_at is not None:
        yield "adopted", f"by {received.adopted_by}, {render_moment(received.adopted_at, now)}"
    elif received.is_foreign:
        yield "adopted", "no; not executed or ranked here: its job.sh, code and checkpoints came with it"


def _find_begin(run_dir: str, handle: JobHandle, outcome: Outcome | None) -> float | None:
    """Return when the run began; None if its farm has not started it."""
    return (outcome.started_at if outcome else None) or run_directory.find_begin(run_dir, handle)


def _mark_facts(marks: Marks, now: float) -> Iterator[tuple[str, str]]:
    if marks.problem:
        yield "tags", marks.problem
    if marks.tags:
        yield "tags", ", ".join(marks.tags)
    for note in marks.notes:
        yield "note", f"{render_moment(note.at, now)}: {note.text}"


def build_metric_table(metrics: Mapping[str, Summary]) -> Table:
    bad = any(summary.bad for summary in metrics.values())
    names = ("last", "step", "best", "at step", "min", "max", "mean", "points", *(("not finite",) if bad else ()))
    numbers = [Column(name, "number") for name in names]
    columns = [each._replace(digits=12) if "step" in each.name else each for each in numbers]
    rows = []
    for name, each in sorted(metrics.items()):
        cells = [name, each.last, each.last_step, *best_of(each), each.min, each.max, each.mean, each.count]
        rows.append([*cells, each.bad] if bad else cells)
    return Table((Column("metric"), *columns), rows)


def build_attempt_blocks(run: RunDescription, now: float) -> list[TableBlock]:
    """Build a table of the attempts if the run has several."""
    attempts = run.status.history.attempts
    if len(attempts) < 2:
        return []
    columns = [
        Column("#", "number"),
        Column("state", "state"),
        Column("started", "age", align="left"),
        Column("time", "clock"),
        Column("exit codes"),
        Column("slot"),
        Column("reason"),
    ]
    rows = [_attempt_cells(attempt, run, now) for attempt in attempts]
    begins = [each.handle.begins.checkpoint if each.handle and each.handle.begins else "" for each in attempts]
    if any(begins):  # some attempts continue from a checkpoint
        columns.insert(2, Column("from"))
        for row, checkpoint in zip(rows, begins, strict=True):
            row.insert(2, describe_checkpoint(checkpoint) if checkpoint else "")
    return [TableBlock(Table(tuple(columns), rows))]


def _attempt_cells(attempt: Attempt, run: RunDescription, now: float) -> list[Any]:
    is_last = attempt.number == run.status.attempt
    outcome = attempt.outcome or (run.status.outcome if is_last else None)
    handle = attempt.handle
    started = _find_begin(run.dir, handle, outcome) if handle else None
    ended = outcome.ended_at if outcome else None
    order = run.status.commands
    codes = sorted(attempt.codes, key=lambda name: order.index(name) if name in order else len(order))
    return [
        attempt.number,
        str(outcome.state if outcome else run.status.state if is_last else "?"),
        now - started if started is not None else None,
        ended - started if started is not None and ended is not None else None,
        " ".join(f"{name} {attempt.codes[name]}" for name in codes),
        handle.slot if handle else None,
        outcome.reason if outcome else "",
    ]


def build_resource_facts(run: RunDescription) -> Iterator[tuple[str, str]]:
    outcome, readings = run.status.outcome, run.readings
    seen = readings.peak_rss_bytes if readings else None
    peak = outcome.peak_rss_bytes if outcome and outcome.peak_rss_bytes else seen
    if peak is not None:
        yield "peak memory", formatting.render_size(peak)
    if outcome and outcome.cpu_s is not None:
        yield "CPU time", formatting.render_duration(outcome.cpu_s)
    if readings is None:
        if run.no_readings is not None:
            yield "readings", f"none: {run.no_readings}"
        return
    share = f", CPU {readings.mean_cpu_percent:.0f}%" if readings.mean_cpu_percent is not None else ""
    count = formatting.render_count(readings.count, "reading")
    processes = formatting.render_count(readings.most_processes, "process", "processes")
    yield "readings", f"{count} over {formatting.render_duration(readings.seconds)}{share}, up to {processes}"
    if readings.peak_gpu_memory_bytes is not None:
        used = f"{readings.mean_gpu_percent:.0f}% on average" if readings.mean_gpu_percent is not None else "-"
        yield "GPU", f"{formatting.render_size(readings.peak_gpu_memory_bytes)} at most, {used}"


def build_origin_facts(run: RunDescription, now: float) -> list[tuple[str, str]]:
    record = run.status.record
    git = (run.environment or {}).get("git") or {}
    dirty = ", with changes that are not committed" if git.get("dirty") else ""
    commit = record.commit or git.get("commit")
    code = f"{record.code_hash}, copied to {layout.CODE_DIR}/" if record.code_hash else record.workdir
    origin = record.origin or {}
    facts = [
        ("id", record.spec.id),
        ("imported", f"from {record.tool}: {origin.get('path')}" if origin else ""),
        ("id there", str(origin.get("id", ""))),
        ("study file", f"{record.source} ({record.dialect})" if record.source else ""),
        ("overrides", build_command((), record.overrides)),
        ("settings", build_command((), options=[f"--set={text}" for text in record.settings])),
        ("parent", record.parent or ""),
        ("children", ", ".join(run.children)),
        ("made", render_moment(record.created_at, now) if record.created_at else ""),
        ("commit", f"{commit}{dirty}" if commit else ""),
        ("code", "" if origin else code),
        *(
            ("code before", f"{code_hash} until attempt {number}, kept in {layout.CODE_DIR}.{number}/")
            for number, code_hash in (record.earlier_codes or {}).items()
        ),
        ("by hand", show_job(run.dir) if run.commands and not is_untouched(run) else ""),
    ]
    return [(label, value) for label, value in facts if value]


def is_untouched(run: RunDescription) -> bool:
    """Whether job.sh came from another machine, so that no command that executes it may be printed."""
    received = load_received(run.dir)
    return received is not None and received.needs_code


def show_job(run_dir: str) -> str:
    """Return a shell command that executes the run's commands again."""
    return build_command(("bash",), [os.path.relpath(os.path.join(run_dir, layout.JOB_FILE))])


def find_node(run: RunDescription) -> str | None:
    """Return the host of the last attempt."""
    last = run.status.history.last
    return load_place(run.dir, last.handle).host if last else None


def build_environment_sections(fields: Mapping[str, Any] | None, node: str | None) -> list[Section]:
    """Build the sections about the host that submitted the run. `node` is the host that executed the run."""
    if fields is None:
        return [Section((Text("(environment.json is missing or damaged)"),), "Environment")]
    plain = [
        (key, formatting.render_size(value) if key.endswith("_bytes") else render_value(value))
        for key, value in fields.items()
        if not isinstance(value, dict | list) and value is not None and key != "format"
    ]
    gpus = [(f"GPU {gpu.get('index')}", str(gpu.get("name"))) for gpu in fields.get("gpus") or ()]
    git = fields.get("git") or {}
    line = [("command line", " ".join(fields.get("command_line") or ()))]
    is_other = node is not None and node != fields.get("host")
    title = "Environment of the machine that submitted it" if is_other else "Environment"
    facts = [(key, render_value(value)) for key, value in git.items() if key != "diff" and value not in (None, [])]
    sections = [_build_section(title, [*plain, *gpus, *line]), _build_section("Git", facts)]
    for name, title in (("packages", "Packages"), ("job_packages", "Packages of the runs' python")):
        versions = [(package, str(version)) for package, version in (fields.get(name) or {}).items()]
        sections.append(_build_section(title, versions))
    return sections


def render_moment(seconds: float | None, now: float) -> str:
    """Return a local time, and how long ago it was."""
    if seconds is None:
        return "-"
    stamp = render_date(seconds, "%Y-%m-%d %H:%M:%S")
    return stamp if stamp == NO_DATE else f"{stamp} ({formatting.render_age(now - seconds)})"


# ---------------------------------------------------------------- for machines


def build_facts(run: RunDescription) -> dict[str, Any]:
    record, status = run.status.record, run.status
    return {
        "key": run.key,
        "dir": run.dir,
        "name": record.spec.name,
        "id": record.spec.id,
        "study": record.study,
        "state": str(status.state),
        "reason": status.outcome.reason if status.outcome else "",
        "exit_code": status.outcome.exit_code if status.outcome else None,
        "params": dict(record.spec.params),
        "commands": run.commands,
        "attempts": [
            _attempt_facts(attempt, record, load_place(run.dir, attempt.handle)) for attempt in status.history.attempts
        ],
        "metrics": {name: _summary_facts(summary) for name, summary in run.metrics.items()},
        "metric_sources": list(run.sources),
        "unread": list(run.unread),
        "readings": asdict(run.readings) if run.readings else None,
        "no_readings": run.no_readings,
        "created_at": record.created_at,
        "source": record.source,
        "overrides": list(record.overrides),
        "settings": list(record.settings),
        "parent": record.parent,
        "children": list(run.children),
        "file_hash": record.file_hash,
        "dialect": record.dialect,
        "origin": dict(record.origin) if record.origin else None,
        "received": load_received_facts(run.dir),
        "code_hash": record.code_hash,
        "commit": record.commit,
        "environment": run.environment,
        "tags": list(run.marks.tags),
        "notes": [note._asdict() for note in run.marks.notes],
        "files": dict(run.files),
    }


def _attempt_facts(attempt: Attempt, record: RunRecord, place: Place) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "host": place.host,
        "job": place.job,
        "code_hash": record.find_code(attempt.number),
        "lease": asdict(attempt.handle) if attempt.handle else None,
        "stop": asdict(attempt.stop) if attempt.stop else None,
        "outcome": {**asdict(attempt.outcome), "state": str(attempt.outcome.state)} if attempt.outcome else None,
        "codes": dict(attempt.codes),
    }


def _summary_facts(summary: Summary) -> dict[str, Any]:
    best, step = best_of(summary)
    facts = {**asdict(summary), "best": best, "best_step": step}
    return {name: whole_step(value) if name.endswith("_step") else value for name, value in facts.items()}
