"""Bring the index up to date with the run directories of Assay and of other tools."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from assay import plugins
from assay.errors import AssayError, InfrastructureError
from assay.execute.places import has_begun, load_liveness, load_wait_reason
from assay.follow.attempts import Decision, RetryPolicy, decide
from assay.follow.collect import UNREAD, Summaries, build_row, read_sources
from assay.follow.locations import StudyLocation, find_studies, show_near
from assay.record import run_directory
from assay.record.checkpoints import find_newer
from assay.record.folders import Changes, FolderChange, build_change, find_changes
from assay.record.index.base import RunRow, VerdictRow
from assay.record.index.packing import pack_row, unpack_rows
from assay.record.index.stored import Index
from assay.record.received import load_received, load_received_facts
from assay.record.tags import NO_MARKS, Marks, find_tags_file, load_marks
from assay.show.console import SILENT, CollectingConsole, Console
from assay.system.fast_dataclasses import replace
from assay.system.files import parse_json
from assay.system.processes import map_in_two
from assay.values import layout
from assay.values.plain import parse_plain
from assay.values.run import FolderRun, RunSpec, State
from assay.values.secrets import hide_named
from assay.values.study import LOCAL
from assay.values.verdict import Verdict

_TRIES = 3
_SIBLINGS = 20  # most runs of a study whose records are searched for the name of its file


def refresh_root(index: Index, root: str, console: Console = SILENT, *, stores_points: bool = False) -> int:
    """Read every study under the root; return how many runs were read."""
    locations = [StudyLocation(root, name) for name in find_studies(root)]
    return sum(refresh_study(index, location, console, stores_points=stores_points) for location in locations)


def refresh_study(
    index: Index, location: StudyLocation, console: Console = SILENT, *, stores_points: bool = False
) -> int:
    """Read changed runs and return their number. For new runs store only summaries, unless `stores_points`."""
    with suppress(OSError):
        read_verdicts(index, location)
    changes = find_changes(location.dir, location.name, index.load_runs([location.name]))
    return apply_changes(index, location, changes, console, stores_points=stores_points)


def apply_changes(
    index: Index, location: StudyLocation, changes: Changes, console: Console = SILENT, *, stores_points: bool = False
) -> int:
    if not changes:
        return 0
    changed = changes.changed
    stores_points = stores_points or index.store_points is None  # an index that cannot store points later
    summarised = set() if all(each.is_new for each in changed) else set(index.find_summarised([location.name]))
    with index.batch() as refused:
        index.expect_new(location.key(change.path) for change in changed if change.is_new)
        read = set() if stores_points else _summarise_foreign_runs(index, location, changed)
        for change in changed:
            key = location.key(change.path)
            if key in summarised:
                index.forget_points(key)
            if key not in read:
                _try_refresh(index, location, change, console, stores_points=stores_points)
        if changes.gone:
            index.forget_runs(changes.gone)
    for _ in range(_TRIES):  # another process first stored points of `refused` and may have ended: read the rest here
        again = {key for key, _ in refused}
        with index.batch() as refused:
            for change in changed if again else ():
                if location.key(change.path) in again:
                    _try_refresh(index, location, change, console, stores_points=True)
    return len(changed)


def _try_refresh(
    index: Index, location: StudyLocation, change: FolderChange, console: Console, *, stores_points: bool
) -> None:
    try:
        refresh_run(index, location, change, stores_points=stores_points)
    except (AssayError, OSError) as error:
        console.warning(f"{change.path}: {error.message if isinstance(error, AssayError) else error}")


def store_points(index: Index, location: StudyLocation) -> None:
    """Store the points of those runs of a study whose summaries alone are stored."""
    summarised = set(index.find_summarised([location.name]))
    rows = [row for row in index.load_runs([location.name]) if row.key in summarised]
    index.put_runs([row._replace(stamp=UNREAD) for row in rows])  # if this process dies, the next reader reads the runs
    found = [build_change(os.path.join(location.root, row.key)) for row in rows]
    changed = [change for change in found if change is not None]  # removed runs are forgotten by the next refresh
    console = CollectingConsole()
    apply_changes(index, location, Changes(changed, []), console, stores_points=True)
    if console.lines:
        raise InfrastructureError("\n".join(console.lines), "its points cannot be shown: repair or move the run")


def refresh_one(index: Index, location: StudyLocation, run_dir: str) -> None:
    """Bring the index up to date with a single run that Assay made."""
    key = location.key(run_dir)
    known = index.load_runs(keys=[key])
    if known and key in index.find_summarised([location.name]):
        index.put_runs([known[0]._replace(stamp=UNREAD)])
        index.forget_points(key)
    change = FolderChange(run_dir, os.stat(run_dir).st_mtime, True, known[0].created_at if known else None)
    refresh_run(index, location, change, stores_points=True)


def refresh_run(index: Index, location: StudyLocation, change: FolderChange, *, stores_points: bool) -> None:
    key, path = location.key(change.path), change.path
    marks = _load_marks(change)
    if not change.is_ours:
        row = _foreign_row(key, change, marks)
        read_sources(index, key, path, RunSpec(row.id, row.name, row.params, ()), change.names)
        started_at = index.load_cursor(key, layout.LOGX_METRICS_FILE).state.get("start")
        index.put_runs([row._replace(started_at=started_at)])
        return
    record = run_directory.try_record(path)
    if record is None:
        name, study = os.path.basename(path), key.partition("/")[0]
        reason = describe_damage(path)
        row = RunRow(key, study, name, "", State.DAMAGED, 0, {}, reason=reason, stamp=change.stamp)
        index.put_runs([row._replace(tags=marks.tags, note=marks.note, received=load_received_facts(path))])
        return
    history = load_history(path)
    last = history.last
    outcome, handle = (last.outcome, last.handle) if last else (None, None)
    number = last.number if last else 0
    row = build_row(record.spec, record, path, key, history.state, number, outcome, handle, change.stamp, marks)
    row = replace_state(row, path, record, history)
    if change.known_at is not None and change.known_at != record.created_at:  # the points are of a removed directory
        index.forget_points(key)
    try:
        found = Summaries()
        is_brief = change.is_new and row.state.is_over and not stores_points
        if is_brief:
            read_sources(found, key, path, record.spec)
        if is_brief and not found.is_broken:  # no file was replaced during the read
            index.add_summaries(key, found.states, found.carry())
        else:
            read_sources(index, key, path, record.spec, final=row.state.is_over)
    except (AssayError, OSError):  # the run is listed nevertheless, and the next reader reads it again
        index.put_runs([row._replace(stamp=UNREAD)])
        raise
    index.put_runs([row])


def _load_marks(change: FolderChange) -> Marks:
    has_none = change.names is not None and layout.TAGS_FILE not in change.names
    return NO_MARKS if has_none else load_marks(find_tags_file(change.path))


# ---------------------------------------------------------------- damaged runs


def describe_damage(run_dir: str) -> str:
    """Describe the damage, with the command that repairs the run or, for a trial, moves it out of the way."""
    study_dir, name = os.path.split(run_dir)
    is_trial = layout.parse_trial_name(name) is not None  # only the damaged record had the values of the trial
    what = "make room for another trial" if is_trial else "repair it"
    siblings = (each for each in run_directory.find_run_dirs(study_dir) if load_received(each) is None)
    record = next(filter(None, map(run_directory.try_record, islice(siblings, _SIBLINGS))), None)
    if is_trial or record is None or not record.spec.commands or not os.path.isfile(record.source):
        words = ["mv", "--", show_near(run_dir), show_near(os.path.join(study_dir, f".{name}.damaged"))]
    else:  # `assay run` completes or rebuilds the folder
        root = show_near(os.path.dirname(study_dir))
        options = [] if root == layout.DEFAULT_ROOT and "ASSAY_ROOT" not in os.environ else ["--root", root]
        words = ["assay", "run", show_near(record.source), f"--study={os.path.basename(study_dir)}", *options]
    return f"{run_directory.find_damage(run_dir) or 'it was damaged'}; {what}: {shlex.join(words)}"


def replace_state(row: RunRow, path: str, record: run_directory.RunRecord, history: run_directory.History) -> RunRow:
    """Return `row`, with the state from files and processes if the run is not concluded. Nothing is written."""
    if row.state.is_over or not history.attempts:
        # a run without commands and attempts was made by another tool
        return row._replace(state=State.DONE if not history.attempts and not record.spec.commands else row.state)
    decision = conclude(path, history, run_directory.find_commands(record.spec))
    outcome, handle = decision.outcome, decision.handle
    started_at, ended_at = row.started_at, outcome.ended_at if outcome else None
    if handle is not None and outcome is not None and ended_at is not None:
        started_at, ended_at = run_directory.find_span(path, handle, outcome.codes, ended_at)
    elif handle is not None:
        started_at = run_directory.find_begin(path, handle)
    return row._replace(
        started_at=started_at,
        state=decision.state,
        exit_code=outcome.exit_code if outcome else None,
        reason=outcome.reason if outcome else _find_wait_reason(decision, path, history),
        cause=outcome.cause if outcome else "",
        ended_at=ended_at,
        # such a run is read again each time: other hosts, and scripts' exit codes, leave no trace in the folder
        stamp=UNREAD if decision.state is State.LOST and (outcome is None or not record.spec.commands) else row.stamp,
    )


def _find_wait_reason(decision: Decision, path: str, history: run_directory.History) -> str:
    if history.last is not None and history.last.stop is not None:
        return f"asked to stop ({history.last.stop.why}), and has not confirmed it"
    if decision.state is not State.QUEUED or decision.handle is None:
        return ""
    return load_wait_reason(decision.handle, path)


def load_history(path: str) -> run_directory.History:
    """Return the attempts of a run, after creating links to the files that its job left on a farm."""
    history = run_directory.load_history(path)
    handle = history.last.handle if history.last else None
    if handle is None or history.state.is_over or not handle.farm_root:
        return history
    load_liveness(handle, path)
    return run_directory.load_history(path)


def conclude(path: str, history: run_directory.History, commands: tuple[str, ...]) -> Decision:
    """Decide about a run that is not concluded, from its files and the process table."""
    look = partial(load_liveness, run_dir=path), RetryPolicy(), partial(find_newer, path)
    decision = decide(history, commands, *look)
    if decision.state is State.LOST:  # the attempt may have ended after its files were read, which are complete now
        decision = decide(run_directory.load_history(path), commands, *look)
    handle = decision.handle
    if decision.state is State.RUNNING and handle and handle.executor != LOCAL:
        return decision if has_begun(handle, path) else replace(decision, state=State.QUEUED)
    return decision


# ---------------------------------------------------------------- directories that other tools filled


def _foreign_row(key: str, change: FolderChange, marks: Marks) -> RunRow:
    """Build the row of another tool's run; errors become its reason and do not affect other rows."""
    origin, run = _load_foreign(change.path)
    return RunRow(
        key,
        key.partition("/")[0],
        os.path.basename(change.path),
        "",
        run.state,
        1,
        hide_named(run.params),
        reason="; ".join(filter(None, (*run.problems, marks.problem))),
        origin=origin or "another tool",
        tags=marks.tags,
        note=marks.note,
        files=change.files,
        stamp=change.stamp if origin else 0.0,  # without a plug-in for the tool, the run is read again each time
    )


def _load_foreign(path: str) -> tuple[str, FolderRun]:
    """Return the tool that made the directory, and its run; an empty name if no plug-in reads the directory."""
    problems = []
    for dialect in plugins.find_dialects():
        try:
            run: FolderRun | None = plugins.load(dialect.folder_reader)(path) if dialect.folder_reader else None
            if run is not None and type(run) is not FolderRun:
                raise TypeError(f"{dialect.folder_reader} returned {type(run).__name__}, not a FolderRun")  # noqa: TRY301
        except (Exception, SystemExit) as error:  # noqa: BLE001 a plug-in may raise any error
            problems.append(f"{dialect.name}: {error}")
            continue
        if run is not None:
            return dialect.name, run
    return "", FolderRun({}, State.LOST, problems=("no installed plug-in reads it", *problems))


def _summarise_foreign_runs(index: Index, location: StudyLocation, changed: Sequence[FolderChange]) -> set[str]:
    """Store the summaries of other tools' runs that the index does not have, and return the keys of these runs."""
    new = [change for change in changed if change.is_new and not change.is_ours]
    if not new:
        return set()
    plugins.find_dialects()  # loaded once before the process forks
    found = [each for each in map_in_two(partial(_summarise_foreign, location), new) if each is not None]
    rows = unpack_rows([row for row, _, _ in found])
    index.put_runs(rows)
    for row, (_, states, summaries) in zip(rows, found, strict=True):
        index.add_summaries(row.key, states, summaries)
    return {row.key for row in rows}


def _summarise_foreign(location: StudyLocation, change: FolderChange) -> tuple[bytes, Any, Any] | None:
    """Return a packed row and arguments of `add_summaries`, as values of `marshal`; None if the run cannot be read."""
    key, found = location.key(change.path), Summaries()
    try:
        row = _foreign_row(key, change, _load_marks(change))
        read_sources(found, key, change.path, RunSpec(row.id, row.name, row.params, ()), change.names)
    except (AssayError, OSError):  # the run is read again in the usual way, which reports the error
        return None
    if found.is_broken:
        return None
    started_at = found.load_cursor(key, layout.LOGX_METRICS_FILE).state.get("start")
    return pack_row(row._replace(started_at=started_at)), found.states, found.carry()


# ------------------------------------------------------------ verdicts in .assay/verdicts.jsonl of each study


def read_verdicts(index: Index, location: StudyLocation) -> None:
    """Read the lines that were appended since the index last read the verdicts; all lines if the file is shorter."""
    path, known = find_verdicts_file(location), index.load_verdict_offset(location.name)
    size = os.stat(path).st_size if os.path.exists(path) else 0
    if size == known:
        return
    start = known if size > known else 0
    data = b""
    if size:
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read()
    data = data[: data.rfind(b"\n") + 1]  # a line without its end is still being written
    rows: list[VerdictRow] = []
    for line in data.splitlines():
        with suppress(ValueError):  # a line that a power cut damaged is ignored
            rows += read_verdict_line(line, location)
    index.add_verdicts(location.name, rows, start=start, end=start + len(data), expected_offset=known)


def find_verdicts_file(location: StudyLocation) -> str:
    return os.path.join(location.dir, layout.STUDY_META_DIR, layout.VERDICTS_FILE)


def read_verdict_line(line: bytes, location: StudyLocation) -> Sequence[VerdictRow]:
    """Parse a line with verdicts, each at most as good as its findings support; raise ValueError if it is damaged."""
    try:
        content = parse_json(line)
        at, source = float(content["at"]), str(content["source"])
        return [row for each in content["verdicts"] for row in _build_rows(each, at, source, location)]
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(str(error)) from error


def _build_rows(facts: Mapping[str, Any], at: float, source: str, location: StudyLocation) -> Iterable[VerdictRow]:
    verdict, run = parse_plain(Verdict, facts).review(), facts.get("run")
    key = f"{location.name}/{run}" if run is not None else None
    for found in verdict.findings:
        kinds, texts = (verdict.kind.value, found.kind.value), (found.subject, found.message)
        numbers = found.value, found.expected, found.step, found.effect, *(found.interval or (None, None))
        yield VerdictRow(key, at, source, *kinds, *texts, *numbers)
