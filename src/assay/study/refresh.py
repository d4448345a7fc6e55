"""Bring the index up to date with the run directories: ours, and those that the originals filled."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from assay.errors import AssayError, InfrastructureError
from assay.execute.local import LocalExecutor
from assay.record import run_directory
from assay.record.folders import Changes, find_changes
from assay.record.index.base import Index, RunRow, VerdictRow
from assay.record.tags import find_tags_file, load_marks
from assay.show.console import SILENT, Console
from assay.study.attempts import Action, Decision, RetryPolicy, decide
from assay.study.collect import UNREAD, build_row, read_sources
from assay.study.locations import StudyLocation, find_studies
from assay.study.opening import open_index
from assay.system.fast_dataclasses import replace
from assay.system.files import append_line
from assay.values import layout
from assay.values.plain import build_plain, parse_plain
from assay.values.run import JobHandle, Liveness, RunSpec, State
from assay.values.secrets import hide_named
from assay.values.verdict import Verdict

_SIBLINGS = 20  # runs of a study that are asked for its file


def refresh_root(index: Index, root: str, console: Console = SILENT) -> int:
    """Every study under the root; how many runs were read."""
    return sum(refresh_study(index, StudyLocation(root, name), console) for name in find_studies(root))


def refresh_study(index: Index, location: StudyLocation, console: Console = SILENT) -> int:
    """Read what changed since the index saw it; how many runs that were."""
    with suppress(OSError):
        read_verdicts(index, location)
    return apply_changes(
        index, location, find_changes(location.dir, location.name, index.load_runs([location.name])), console
    )


def apply_changes(index: Index, location: StudyLocation, changes: Changes, console: Console) -> int:
    if not changes:
        return 0
    with index.batch():
        for path, stamp, is_ours, known_at in changes.changed:
            try:
                refresh_run(index, location, path, stamp, is_ours, known_at)
            except (AssayError, OSError) as error:
                console.warning(f"{path}: {error.message if isinstance(error, AssayError) else error}")
        if changes.gone:
            index.forget_runs(changes.gone)
    return len(changes.changed)


def refresh_one(index: Index, location: StudyLocation, run_dir: str) -> None:
    """Bring the index up to date with a single run of ours."""
    known = index.load_runs(keys=[location.key(run_dir)])
    refresh_run(index, location, run_dir, os.stat(run_dir).st_mtime, True, known[0].created_at if known else None)


def refresh_run(
    index: Index, location: StudyLocation, path: str, stamp: float, is_ours: bool, known_at: float | None
) -> None:
    """`known_at`: what was read of a directory that was made at another time, and removed since, is forgotten."""
    key = location.key(path)
    marks = load_marks(find_tags_file(path))
    if not is_ours:
        row = _foreign_row(key, path, stamp)
        read_sources(index, key, path, RunSpec(row.id, row.name, row.params, ()))
        started_at = index.load_cursor(key, layout.LOGX_METRICS_FILE).state.get("start")
        reason = "; ".join(filter(None, (row.reason, marks.problem)))
        index.put_runs([row._replace(started_at=started_at, tags=marks.tags, note=marks.note, reason=reason)])
        return
    record = run_directory.try_record(path)
    if record is None:
        name, study = os.path.basename(path), key.partition("/")[0]
        reason = describe_damage(path)
        row = RunRow(key, study, name, "", State.DAMAGED, 0, {}, reason=reason, stamp=stamp)
        index.put_runs([row._replace(tags=marks.tags, note=marks.note)])
        return
    history = load_history(path)
    last = history.last
    outcome, handle = (last.outcome, last.handle) if last else (None, None)
    number = last.number if last else 0
    row = build_row(record.spec, record, key, history.state, number, outcome, handle, stamp, marks)
    row = replace_state(row, path, record, history)
    if known_at is not None and known_at != record.created_at:
        index.forget_points(key)
    try:
        read_sources(index, key, path, record.spec, final=row.state.is_over)
    except (AssayError, OSError):  # listed all the same, and read again by whoever looks next
        index.put_runs([row._replace(stamp=UNREAD)])
        raise
    index.put_runs([row])


# ---------------------------------------------------------------- damaged runs


def describe_damage(run_dir: str) -> str:
    """What is wrong with run.json, and the command that repairs it, or makes room for another trial."""
    is_trial = layout.parse_trial_name(os.path.basename(run_dir)) is not None
    what = "make room for another trial" if is_trial else "repair it"
    return f"{run_directory.find_damage(run_dir) or 'it was damaged'}; {what}: {build_repair(run_dir)}"


def build_repair(run_dir: str) -> str:
    """`assay run` completes the folder, or builds it again; where no study file is known, the folder is moved away."""
    study_dir, name = os.path.split(run_dir)
    record = next(
        filter(None, map(run_directory.try_record, islice(run_directory.find_run_dirs(study_dir), _SIBLINGS))), None
    )
    is_trial = layout.parse_trial_name(name) is not None  # only its own record knew what it tried
    if is_trial or record is None or not record.spec.commands or not os.path.isfile(record.source):
        away = os.path.join(study_dir, f".{name}.damaged")
        return shlex.join(["mv", "--", _near(run_dir), _near(away)])
    root = _near(os.path.dirname(study_dir))
    options = [] if root == layout.DEFAULT_ROOT and "ASSAY_ROOT" not in os.environ else ["--root", root]
    return shlex.join(["assay", "run", _near(record.source), f"--study={os.path.basename(study_dir)}", *options])


def _near(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def replace_state(row: RunRow, path: str, record: run_directory.RunRecord, history: run_directory.History) -> RunRow:
    """Whether a run that no file calls finished still lives; what nobody concluded is concluded for the table alone."""
    if row.state.is_over or not history.attempts:
        # A run without commands was opened by a script of its own; nobody watches it, so it counts as done
        return row._replace(state=State.DONE if not history.attempts and not record.spec.commands else row.state)
    commands = tuple(command.name for command in record.spec.commands)
    decision = conclude(path, history, commands)
    outcome = decision.outcome
    return row._replace(
        state=decision.state,
        exit_code=outcome.exit_code if outcome else None,
        reason=outcome.reason if outcome else "",
        ended_at=outcome.ended_at if outcome else None,
    )


def load_history(path: str) -> run_directory.History:
    """The attempts of a run; what a job left on its farm is linked first."""
    history = run_directory.load_history(path)
    handle = history.last.handle if history.last else None
    if handle is None or history.state.is_over or not handle.farm_root:
        return history
    liveness(handle, path)
    return run_directory.load_history(path)


def conclude(path: str, history: run_directory.History, commands: tuple[str, ...]) -> Decision:
    """What the files and the process table say about a run that nobody has concluded."""
    decision = decide(history, commands, lambda handle: liveness(handle, path), RetryPolicy())
    if decision.state is State.LOST:  # or it ended after its files were read: they are complete by now
        decision = decide(
            run_directory.load_history(path), commands, lambda handle: liveness(handle, path), RetryPolicy()
        )
    handle = decision.handle
    if decision.action is Action.FOLLOW and handle and handle.executor != "local":
        from assay.execute.submit import has_begun

        return decision if has_begun(handle, path) else replace(decision, state=State.QUEUED)
    return decision


def liveness(handle: JobHandle, run_dir: str) -> Liveness:
    if handle.executor == "ssh":
        from assay.execute.ssh_jobs import load_liveness as load_ssh_liveness

        return load_ssh_liveness(handle, run_dir)
    if handle.executor != "local":
        from assay.execute.submit import load_liveness

        return load_liveness(handle, run_dir)
    executor = LocalExecutor()
    try:
        return executor.liveness(handle, "")
    finally:
        executor.close()


# ---------------------------------------------------------------- directories that the originals filled


def _foreign_row(key: str, path: str, stamp: float) -> RunRow:
    """What could not be read is said as the row's reason, and costs no other row anything."""
    from assay.record import originals

    name, study = os.path.basename(path), key.partition("/")[0]
    if os.path.exists(os.path.join(path, layout.MLRUNNER_PARAM_FILE)):
        run = originals.load_mlrunner_run(path)
        row = RunRow(
            key, study, name, "", _mlrunner_state(run.stat), 1, hide_named(run.params), origin="mlrunner", stamp=stamp
        )
        return row._replace(reason="; ".join(run.problems))
    problems: list[str] = []
    hparams = originals.load_hparams(path, problems) or originals.load_submitted_params(path)
    # what was LOGDIR in the file differs in every run and says nothing
    params = hide_named(
        {key: value for key, value in hparams.items() if key != "logdir" or not str(value).endswith(name)}
    )
    row = RunRow(key, study, name, "", State.DONE, 1, params, origin="runx", stamp=stamp)
    return row._replace(reason="; ".join(problems))


def _mlrunner_state(stat: Mapping[str, str]) -> State:
    """An ownerless `running` is unfinished: whoever wrote it is gone."""
    if "failed" in stat.values():
        return State.FAILED
    if stat and all(word == "finished" for word in stat.values()):
        return State.DONE
    return State.STOPPED


# ------------------------------------------------------------ verdicts, kept in .assay/verdicts.jsonl of their study


def record_verdicts(
    location: StudyLocation, source: str, verdicts: Mapping[Any, Verdict], index: Index | None = None
) -> list[str]:
    """Keep what was judged, by run name (None: the study as a whole); what went wrong with that, as warnings.

    A verdict that cannot be kept is still the caller's answer, so nothing is raised.
    """
    if not verdicts:
        return []
    facts = [{"run": run, **build_plain(verdict)} for run, verdict in verdicts.items()]
    try:
        os.makedirs(os.path.join(location.dir, layout.STUDY_META_DIR), exist_ok=True)
        append_line(_find_file(location), {"at": time.time(), "source": source, "verdicts": facts})
        if index is not None:
            read_verdicts(index, location)
        else:
            with open_index(location.root) as opened:
                read_verdicts(opened, location)
    except (InfrastructureError, OSError) as error:
        return [f"the verdict was not recorded: {error}"]
    return []


def read_verdicts(index: Index, location: StudyLocation) -> None:
    """Read what the file holds beyond what the index has seen; all of it where it is shorter than before."""
    path, known = _find_file(location), index.load_verdict_offset(location.name)
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
    rows = [row for line in data.splitlines() for row in _parse_line(line, location)]
    index.add_verdicts(location.name, rows, start=start, end=start + len(data), expected_offset=known)


def _find_file(location: StudyLocation) -> str:
    return os.path.join(location.dir, layout.STUDY_META_DIR, layout.VERDICTS_FILE)


def _parse_line(line: bytes, location: StudyLocation) -> Iterable[VerdictRow]:
    """A line that a power cut damaged is ignored."""
    try:
        content = json.loads(line)
        at, source = float(content["at"]), str(content["source"])
        return [row for each in content["verdicts"] for row in _build_rows(each, at, source, location)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []


def _build_rows(facts: Mapping[str, Any], at: float, source: str, location: StudyLocation) -> Iterable[VerdictRow]:
    verdict, run = parse_plain(Verdict, facts), facts.get("run")
    key = f"{location.name}/{run}" if run is not None else None
    for found in verdict.findings:
        low, high = found.interval or (None, None)
        yield VerdictRow(
            key,
            at,
            source,
            verdict.kind.value,
            found.kind.value,
            found.subject,
            found.message,
            found.value,
            found.expected,
            found.step,
            found.effect,
            low,
            high,
        )
