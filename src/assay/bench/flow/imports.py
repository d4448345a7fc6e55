"""`assay bench import`: results of other tools become runs of the study `bench`, as if they had been run here."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from assay.bench.flow.archive import find_location
from assay.bench.flow.execution_builder import build_environment, build_fingerprint
from assay.bench.flow.observer import write_points
from assay.bench.importers.formats import Foreign, load_foreign_file
from assay.bench.importers.result import DIGEST, identify_result
from assay.bench.records import load_execution, write_execution
from assay.bench.values.execution import NOT_REPORTED, STUDY, BenchExecution, BenchMetric, BenchResult
from assay.errors import AssayError, UsageError
from assay.execute.script import JobText, render_job
from assay.plan.identity import spec_id
from assay.record import run_directory
from assay.record.index.sqlite import open_index
from assay.show.console import SILENT, Console
from assay.study.api import StudyLocation, check_writable, closing_quietly, refresh_study
from assay.values.machine import Timings
from assay.values.run import RunSpec
from assay.values.study import CodePolicy

_MOST_LETTERS, _MOST_BYTES = 150, 240  # of a folder's name: file systems take 255 bytes
KIND = "model"


@dataclass(frozen=True, slots=True)
class Imported:
    new: int
    known: int  # existed already
    methods: tuple[str, ...]
    failed: tuple[str, ...] = ()  # methods that the other tool recorded as failed; they are imported too
    notes: tuple[str, ...] = ()  # on content of the files that is not an execution
    problems: tuple[str, ...] = ()  # files that could not be imported, and why


def import_files(
    paths: Sequence[str],
    root: str | None,
    label: str | None = None,
    console: Console = SILENT,
) -> Imported:
    """An invalid file adds nothing and does not stop the others. Raises UsageError if no file has a result."""
    files, problems = _load_files(paths)
    found = [execution for file in files.values() for execution in file.executions]
    notes = tuple(f"{path}: {note}" for path, file in files.items() for note in file.notes)
    if not found:
        _give_up(problems, notes)
    location = find_location(root)
    check_writable(location)
    os.makedirs(location.dir, exist_ok=True)
    new = sum(write_as_run(location, execution, label) for execution in found)
    with closing_quietly(open_index(location.root)) as index:
        refresh_study(index, location, console)
    return Imported(
        new,
        len(found) - new,
        tuple(sorted({execution.method for execution in found})),
        tuple(sorted({execution.method for execution in found if execution.result.has_exception})),
        notes,
        tuple(problem.message for problem in problems),
    )


def _load_files(paths: Sequence[str]) -> tuple[dict[str, Foreign], list[UsageError]]:
    files: dict[str, Foreign] = {}
    problems: list[UsageError] = []
    for path in dict.fromkeys(paths):
        try:
            files[path] = load_foreign_file(path)
        except UsageError as error:
            problems.append(error)
    return files, problems


def _give_up(problems: Sequence[UsageError], notes: Sequence[str]) -> NoReturn:
    if len(problems) == 1:
        raise problems[0]
    words = [*(problem.message for problem in problems), *notes]
    hints = dict.fromkeys(problem.hint for problem in problems if problem.hint)
    raise UsageError("\n".join(("there is no result in any of these files", *words)), next(iter(hints), None))


# ---------------------------------------------------------------- one execution


def write_as_run(location: StudyLocation, execution: BenchExecution, label: str | None, kind: str = "import") -> bool:
    """False: it exists already. Nothing is overwritten: ids of other tools may be shared, and a further execution with
    the same id gets a suffix made from its content."""
    mark = execution.extra.get(DIGEST)
    own = os.path.join(location.dir, _name_folder(execution))
    if mark is None:  # an id that we made identifies the execution
        return _write_run(own, location, execution, label, kind)
    apart = os.path.join(location.dir, _name_folder(execution, mark))
    if os.path.lexists(apart):
        return False
    if _write_run(own, location, execution, label, kind):
        return True
    marked = replace(execution, execution_id=f"{execution.execution_id}-{mark}")
    return not _is_same(own, execution) and _write_run(apart, location, marked, label, kind)


def _is_same(run_dir: str, execution: BenchExecution) -> bool:
    """By the content of the other tool's file; an execution of our own by its results."""
    try:
        there = load_execution(run_dir)
    except (AssayError, OSError):
        return False
    if there is None:
        return False
    if DIGEST in there.extra:
        return bool(there.extra[DIGEST] == execution.extra[DIGEST])
    return identify_result(there) == identify_result(execution)


def _name_folder(execution: BenchExecution, mark: str = "") -> str:
    """Named like our own executions. Always a plain name, whatever the id is: it does not leave the study's folder and
    is not hidden."""
    words = ".".join(execution.method.split(".")[-2:])
    begin = _clean(execution.execution_id) or "import"
    name = f"{begin[: _MOST_LETTERS // 2]}-{mark}_{_clean(words)}" if mark else f"{begin}_{_clean(words)}"
    return name[:_MOST_LETTERS].encode("utf-8", "replace")[:_MOST_BYTES].decode("utf-8", "ignore").rstrip("._")


def _clean(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", text).lstrip("._")


def _write_run(run_dir: str, location: StudyLocation, execution: BenchExecution, label: str | None, kind: str) -> bool:
    chosen = label or execution.label
    params = {"method": execution.method, "kind": kind, "trial": execution.trial, "source": execution.source}
    if chosen:
        params["label"] = chosen
    name = os.path.basename(run_dir)
    spec = RunSpec(
        spec_id((), params), name, params, (), title=execution.execution_id, tag=chosen, code=CodePolicy("live")
    )
    record = run_directory.RunRecord(
        spec,
        location.name,
        run_directory.new_uid(),
        execution.started_at or time.time(),
        workdir=".",
        commit=execution.commit,
    )
    job = render_job(spec, JobText(record.uid, record.study, record.workdir))

    def fill(aside: str) -> None:
        kept = replace(execution, label=chosen)
        write_execution(aside, kept)
        write_points(aside, kept)

    return run_directory.write_run_dir(run_dir, record, job, fill)


# ---------------------------------------------------------------- times that another product measured


def add_timings(root: str, timings: Timings, label: str | None = None) -> BenchExecution:
    """Write the run and add it to the index, so that histories and change points include it."""
    setup = build_environment(timings.machine, None, timings.tools)
    execution = BenchExecution(
        execution_id=timings.id,
        method=timings.method,
        trial=1,
        result=build_result(timings),
        run_dir="",
        output_dir="",
        started_at=timings.started_at,
        ended_at=timings.ended_at,
        label=label,
        commit=timings.commit,
        setup=setup,
        fingerprint=build_fingerprint(setup),
        machine=timings.machine,
        contaminated=timings.contaminated,
        extra=dict(timings.extra),
    )
    location = StudyLocation(root, STUDY)
    os.makedirs(location.dir, exist_ok=True)
    write_as_run(location, execution, label, KIND)
    with closing_quietly(open_index(location.root)) as index:
        refresh_study(index, location)
    return execution


def build_result(timings: Timings) -> BenchResult:
    whole = timings.samples.get(timings.wall_time)
    return BenchResult(
        name=timings.method,
        succeeded=timings.succeeded,
        iters=len(whole) if whole else None,
        wall_time=min(whole) if whole else NOT_REPORTED,
        metrics=tuple(BenchMetric(name, min(values)) for name, values in timings.samples.items()),
        samples={name: values for name, values in timings.samples.items() if len(values) > 1},
    )
