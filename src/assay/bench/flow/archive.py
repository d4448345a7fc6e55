"""Load executions: of the study `bench`, or of a given folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from assay.bench.flow.execution_builder import ENV_EXTRA, JobContext, build_execution
from assay.bench.records import load_execution, write_execution
from assay.bench.values.execution import STUDY, BenchExecution
from assay.bench.values.layout import BENCH_FILE
from assay.errors import AssayError, FormatError, NotFoundError, UsageError
from assay.record import run_directory
from assay.record.index.base import RunRow
from assay.record.index.sqlite import open_index
from assay.show.console import SILENT, Console
from assay.study.api import StudyLocation, closing_quietly, find_study_location, refresh_study
from assay.values.environment import GitState
from assay.values.machine import Machine

_PARAMETERS = re.compile(r"(?<=\w)(\[.*\]|\(.*\))$")


def find_location(root: str | None) -> StudyLocation:
    return find_study_location(STUDY, root)


def load_executions(
    location: StudyLocation, method: str | None = None, console: Console = SILENT
) -> list[BenchExecution]:
    """Oldest first; all of a method, named in full or by its end (`Class.method`), with or without its parameters."""
    rows = _load_rows(location, console)
    if not rows:
        raise UsageError(f"there is no benchmark under {location.root}", "run one: assay bench run module.Class.method")
    chosen = set(choose_methods(method, (str(row.params.get("method", "")) for row in rows))) if method else None
    found = [
        execution
        for row in rows
        if (chosen is None or row.params.get("method") in chosen) and (execution := _load(location, row, console))
    ]
    return sorted(found, key=lambda execution: (execution.started_at or 0.0, execution.execution_id))


def choose_methods(name: str, known: Iterable[str]) -> list[str]:
    """A full name, or an end of one; several only where they differ in their parameters alone: `time_x(10)`."""
    names = sorted(set(known))
    if name in names:
        return [name]
    ends = [each for each in names if is_named(name, each)]
    if len({_strip_parameters(each) for each in ends}) > 1:
        raise UsageError(f"{name!r} matches {len(ends)} benchmarks", "one of: " + ", ".join(ends[:6]))
    if not ends:
        raise NotFoundError("benchmark", name, names)
    return ends


def is_named(name: str, method: str) -> bool:
    """Whether `name` is the full name or its end after a `.`, `:` or `/`; parameters may be left out."""
    ends = tuple(f"{mark}{name}" for mark in ".:/")
    return any(full == name or full.endswith(ends) for full in (method, _strip_parameters(method)))


def _strip_parameters(method: str) -> str:
    """`test_sort[10]` and asv's `time_x(10)` without what is in brackets."""
    return _PARAMETERS.sub("", method)


def _load_rows(location: StudyLocation, console: Console) -> list[RunRow]:
    with closing_quietly(open_index(location.root)) as index:
        refresh_study(index, location, console)
        return [row for row in index.load_runs([location.name]) if row.state.is_over]


def _load(location: StudyLocation, row: RunRow, console: Console) -> BenchExecution | None:
    run_dir = os.path.join(location.root, row.key)
    try:
        return load_execution(run_dir) or _rebuild(run_dir, row)
    except (AssayError, OSError) as error:
        console.warning(f"{row.key}: {error.message if isinstance(error, AssayError) else error}")
        return None


def _rebuild(run_dir: str, row: RunRow) -> BenchExecution | None:
    """The supervisor was killed before it could write benchmark.json; what the child wrote is used."""
    record = run_directory.load_record(run_dir)
    last = run_directory.load_history(run_dir).last
    if not record.spec.commands:
        return None
    extra: dict[str, object] = {}
    with suppress(ValueError):
        extra = json.loads(dict(record.spec.env).get(ENV_EXTRA, "{}"))
    known = _load_environment(run_dir)
    git = _build_git(known, record.commit)
    around = JobContext(_build_machine(known), git, record.commit, extra=extra, is_observed=False)
    execution = build_execution(run_dir, record.spec, last.outcome if last else None, str(row.state), around)
    with suppress(OSError):  # a read-only folder: it is built again the next time
        write_execution(run_dir, execution)
    return execution


def _load_environment(run_dir: str) -> Mapping[str, Any]:
    """What was written before the run began; nothing is known of the machine during the run."""
    return run_directory.load_environment(run_dir) or {}


def _build_machine(known: Mapping[str, Any]) -> Machine:
    try:
        gpus = known.get("gpus") or []
        return Machine(
            host=known.get("host") or "",
            os=known.get("os") or "",
            python=known.get("python") or "",
            cpu_model=known.get("cpu") or "",
            logical_cpus=known.get("cpu_count") or 0,
            memory_bytes=known.get("memory_bytes") or 0,
            accelerator_model=gpus[0]["name"] if gpus else "",
            accelerator_count=len(gpus),
            accelerator_driver=known.get("driver") or "",
        )
    except (AttributeError, LookupError, TypeError):
        return Machine()


def _build_git(known: Mapping[str, Any], commit: str | None) -> GitState | None:
    """Local edits are part of the code, like the commit."""
    git = known.get("git")
    if not isinstance(git, dict) or commit is None or git.get("commit") != commit:
        return None
    untracked = tuple(str(name) for name in git.get("untracked") or ())
    return GitState(commit, git.get("branch"), bool(git.get("dirty")), str(git.get("diff") or ""), untracked)


def load_file_executions(path: str) -> list[BenchExecution]:
    """A run directory, a folder of them, or a `benchmark.json`."""
    folder = os.path.dirname(path) if os.path.basename(path) == BENCH_FILE else path
    single = load_execution(folder)
    if single is not None:
        return [single]
    found = [load_execution(run_dir) for run_dir in run_directory.find_run_dirs(folder)]
    executions = [execution for execution in found if execution is not None]
    if not executions:
        raise FormatError(f"{path} contains no benchmark", "name a run directory, or a folder of them")
    return executions
