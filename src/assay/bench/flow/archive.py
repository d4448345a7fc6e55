"""The executions of the study `bench`: load executions, and add results that other tools and products measured.

Results of other tools become runs of the study, as if they had been run here.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from assay.bench.flow.execution_builder import (
    JobSurroundings,
    build_environment,
    build_execution,
    build_fingerprint,
    find_contamination,
)
from assay.bench.flow.machine import CpuMeter, describe_machine, load_context, load_machine, open_meter
from assay.bench.importers.formats import Foreign, load_foreign_file
from assay.bench.importers.result import DIGEST, identify_result
from assay.bench.records import BENCH_FILE, load_execution, write_execution, write_points
from assay.bench.values.execution import NOT_REPORTED, STUDY, BenchExecution, BenchMetric, BenchResult
from assay.errors import AssayError, NotFoundError, UsageError
from assay.execute.script import JobText, render_job
from assay.follow.api import StudyLocation, check_writable, closing_quietly, open_index, refresh_study
from assay.launch.api import find_study_location
from assay.observe.devices import Devices
from assay.observe.environment import load_environment
from assay.reading.api import describe_unranked
from assay.record import run_directory
from assay.record.index.base import RunRow
from assay.record.received import describe_facts
from assay.show.console import SILENT, Console
from assay.show.formatting import render_count
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.values.environment import Environment
from assay.values.plain import parse_plain
from assay.values.run import RunSpec, spec_id
from assay.values.state import State
from assay.values.study import CodePolicy
from assay.values.verdict import Finding, VerdictKind

_MOST_LETTERS, _MOST_BYTES = 150, 240  # the longest name of a folder: file systems allow 255 bytes
PARAMETERS = re.compile(r"(?<=\w)(\[.*\]|\(.*\))$")


def find_location(root: str | None) -> StudyLocation:
    return find_study_location(STUDY, root)


def load_executions(
    location: StudyLocation, method: str | None = None, console: Console = SILENT
) -> list[BenchExecution]:
    """Load executions, oldest first: all, or those of a method, given by its full name or its end (`Class.method`)."""
    with closing_quietly(open_index(location.root, console.warning, is_needed=False)) as index:
        refresh_study(index, location, console)
        rows = [row for row in index.load_runs([location.name]) if row.state.is_over]
    if not rows:
        raise UsageError(f"there is no benchmark under {location.root}", "run one: assay bench run module.Class.method")
    chosen = set(choose_methods(method, (str(row.params.get("method", "")) for row in rows))) if method else None
    meant = [row for row in rows if chosen is None or row.params.get("method") in chosen]
    executions = load_rows(location, meant, console)
    for line in describe_received(executions):
        console.message(line)
    return executions


def describe_received(executions: Sequence[BenchExecution]) -> list[str]:
    """Describe for each sender how many executions were received: they are in the history, but were not run here."""
    notes = [note for execution in executions for note in execution.notes[:1] if note.startswith(_RECEIVED)]
    every = render_count(len(executions), "execution")
    return [f"{notes.count(note)} of {every}: {note}" for note in dict.fromkeys(notes)]


def load_rows(location: StudyLocation, rows: Iterable[RunRow], console: Console = SILENT) -> list[BenchExecution]:
    """Load executions, oldest first. An execution that cannot be read gives a warning, and counts as failed."""
    every = list(rows)
    # an upload that is not adopted does not change the verdict on a benchmark that was executed here
    ours = {row.params.get("method") for row in every if not row.is_foreign}
    if left := [row for row in every if row.is_foreign and row.params.get("method") in ours]:
        console.message(describe_unranked((len(left), left[0]), [location]))
    found = []
    for row in every:
        execution = _load(location, row, console) if row not in left else None
        if execution and row.received:
            note = f"{_RECEIVED}{describe_facts(row.received)}"
            execution = replace(execution, notes=(note, *execution.notes))
        found += [execution] if execution else []
    return sorted(found, key=lambda each: (each.at or 0.0, each.started_at or 0.0, each.execution_id))


_RECEIVED = "received: "


def choose_methods(name: str, known: Iterable[str]) -> list[str]:
    """Return methods by their full name, or by its end if the methods found differ only in parameters: `time_x(10)`."""
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
    """Return whether `name` is the full name or its end after a `.`, `:` or `/`; parameters may be left out."""
    ends = tuple(f"{mark}{name}" for mark in ".:/")
    return any(full == name or full.endswith(ends) for full in (method, _strip_parameters(method)))


def _strip_parameters(method: str) -> str:
    """Remove the parameters in brackets from `test_sort[10]` or asv's `time_x(10)`."""
    return PARAMETERS.sub("", method)


def _load(location: StudyLocation, row: RunRow, console: Console) -> BenchExecution | None:
    """Load an execution, which counts as failed if its file cannot be read or is from an earlier attempt: without a
    failed execution the execution before it would be the newest."""
    run_dir = os.path.join(location.root, row.key)
    try:
        found = load_execution(run_dir) or _rebuild(run_dir, row)
    except (AssayError, OSError) as error:
        text = error.message if isinstance(error, AssayError) else str(error)
        console.warning(f"{row.key}: {text}")
        return _build_failed(run_dir, row, text)
    if found is not None and row.state in _FAILED and found.state != row.state:
        return _build_failed(run_dir, row, f"its run is {row.state}{f': {row.reason}' if row.reason else ''}")
    return found


_FAILED = (State.FAILED, State.TIMEOUT, State.LOST)


def _build_failed(run_dir: str, row: RunRow, problem: str) -> BenchExecution | None:
    method, label = str(row.params.get("method") or ""), row.params.get("label")
    if not method:
        return None
    result = BenchResult(method, False, True, findings=(Finding(VerdictKind.ERROR, method, problem),))
    return BenchExecution(
        os.path.basename(run_dir), method, 1, result, run_dir, run_dir, row.started_at or row.created_at, row.ended_at,
        str(label) if label else None, row.commit, state=str(row.state),
    )  # fmt: skip


_UNKNOWN = {"host": "", "user": "", "os": "", "cpu": "", "cpu_count": 0, "memory_bytes": 0, "python": ""}


def _rebuild(run_dir: str, row: RunRow) -> BenchExecution | None:
    """Rebuild an execution from the child's report: the supervisor was killed before it could write benchmark.json."""
    record = run_directory.load_record(run_dir)
    last = run_directory.load_history(run_dir).last
    if not record.spec.commands:
        return None
    around = load_context(run_dir)  # only the wrapper of a run on a farm records the surroundings
    if not around.is_observed:
        # this environment was recorded before the run began; local edits are part of the code, as the commit is
        known = parse_plain(Environment, {**_UNKNOWN, **(run_directory.load_environment(run_dir) or {})})
        git = known.git if known.git and known.git.commit == record.commit else None
        around = JobSurroundings(describe_machine(known), git, record.commit, is_observed=False)
    execution = build_execution(run_dir, record.spec, last.outcome if last else None, str(row.state), around)
    with suppress(OSError):  # a read-only folder: the execution is built again next time
        write_execution(run_dir, execution)
    return execution


def load_file_executions(path: str) -> list[BenchExecution]:
    """Load executions from a run directory, a folder of run directories, or a `benchmark.json`."""
    folder = os.path.dirname(path) if os.path.basename(path) == BENCH_FILE else path
    single = load_execution(folder)
    if single is not None:
        return [single]
    found = [load_execution(run_dir) for run_dir in run_directory.find_run_dirs(folder)]
    executions = [execution for execution in found if execution is not None]
    if not executions:
        raise UsageError(f"{path} contains no benchmark", "name a run directory, or a folder of them")
    return executions


# ---------------------------------------------------------------- files of other tools


@dataclass(frozen=True, slots=True)
class Imported:
    new: int
    known: int  # executions that existed already
    methods: tuple[str, ...]
    failed: tuple[str, ...] = ()  # methods that the other tool recorded as failed; they are imported too
    notes: tuple[str, ...] = ()  # notes on content of the files that is not an execution
    problems: tuple[str, ...] = ()  # files that could not be imported, and why


def import_results(
    paths: Sequence[str], root: str | None, label: str | None = None, console: Console = SILENT
) -> Imported:
    """Import files. An invalid file adds nothing, others are imported. Raises UsageError if no file has a result."""
    files: dict[str, Foreign] = {}
    problems: list[UsageError] = []
    for path in dict.fromkeys(paths):
        try:
            files[path] = load_foreign_file(path)
        except UsageError as error:
            problems.append(error)
    found = [execution for executions, _ in files.values() for execution in executions]
    notes = tuple(f"{path}: {note}" for path, (_, mine) in files.items() for note in mine)
    if not found and len(problems) == 1:
        raise problems[0]
    if not found:
        lines = ["there is no result in any of these files", *(problem.message for problem in problems), *notes]
        raise UsageError("\n".join(lines), next((problem.hint for problem in problems if problem.hint), None))
    location = find_location(root)
    check_writable(location)
    os.makedirs(location.dir, exist_ok=True)
    new = sum(write_as_run(location, execution, label) for execution in found)
    with closing_quietly(open_index(location.root, console.warning, is_needed=False)) as index:
        refresh_study(index, location, console)
    return Imported(
        new,
        len(found) - new,
        tuple(sorted({execution.method for execution in found})),
        tuple(sorted({execution.method for execution in found if execution.result.has_exception})),
        notes,
        tuple(problem.message for problem in problems),
    )


# ---------------------------------------------------------------- one execution


def write_as_run(location: StudyLocation, execution: BenchExecution, label: str | None, kind: str = "import") -> bool:
    """Write an execution as a run; return False if it already exists. Nothing is overwritten: ids of other tools may
    repeat, and a further execution with the same id gets a suffix made from its content."""
    mark = execution.extra.get(DIGEST)
    own = os.path.join(location.dir, _name_folder(execution))
    if mark is None:  # an id that Assay made identifies the execution
        return _write_run(own, location, execution, label, kind)
    apart = os.path.join(location.dir, _name_folder(execution, mark))
    if os.path.lexists(apart):
        return False
    if _write_run(own, location, execution, label, kind):
        return True
    with suppress(AssayError, OSError):
        there = load_execution(own)
        # equal content of the imported files, or results equal to those of an execution of our own
        if there and (there.extra.get(DIGEST) or identify_result(there)) in (mark, identify_result(execution)):
            return False
    marked = replace(execution, execution_id=f"{execution.execution_id}-{mark}")
    return _write_run(apart, location, marked, label, kind)


def _name_folder(execution: BenchExecution, mark: str = "") -> str:
    """Return a folder name like those of our own executions: plain and not hidden, whatever the execution's id is."""
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


@dataclass(slots=True)
class TimingsWatch:
    """Reads the state of the machine before a measurement, and again when its times are added to the history."""

    begun_at: float = field(default_factory=time.time)
    meter: CpuMeter | None = field(default_factory=open_meter)

    def add(
        self,
        root: str,
        label: str | None,
        folder: str,
        own_cpu_s: float,
        complain: Callable[[str], None],
        *,
        id: str,  # noqa: A002 as executions are named
        method: str,
        samples: Mapping[str, tuple[float, ...]],
        wall_time: str,
        succeeded: bool,
        tools: Mapping[str, str],
        extra: Mapping[str, str],
    ) -> BenchExecution:
        """Write the run and add it to the index, so that histories and change points include it.

        `folder`: the code that was measured. `samples`: seconds by name; `wall_time`: the name of the samples that give
        the execution's wall time. `tools`: name → version; only executions with equal tools are compared.
        """
        devices = Devices()
        environment = load_environment(folder, (), devices, complain=complain)
        machine = load_machine(environment, devices, ())
        foreign = self.meter.foreign_fraction(own_cpu_s, machine.logical_cpus) if self.meter else None
        machine = replace(machine, foreign_cpu=foreign, packages={})
        setup = build_environment(machine, None, tools)
        execution = BenchExecution(
            id, method, 1, build_result(method, samples, wall_time, succeeded), "", "", self.begun_at, time.time(),
            label, environment.git.commit if environment.git else None, setup=setup, extra=dict(extra),
            fingerprint=build_fingerprint(setup), machine=machine, contaminated=find_contamination(machine),
        )  # fmt: skip
        location = StudyLocation(root, STUDY)
        os.makedirs(location.dir, exist_ok=True)
        write_as_run(location, execution, label, "model")
        with closing_quietly(open_index(location.root, is_needed=False)) as index:
            refresh_study(index, location)
        return execution


def build_result(method: str, samples: Mapping[str, tuple[float, ...]], wall_time: str, succeeded: bool) -> BenchResult:
    """Build a result from the shortest sample of each name."""
    whole = samples.get(wall_time)
    return BenchResult(
        name=method,
        succeeded=succeeded,
        iters=len(whole) if whole else None,
        wall_time=min(whole) if whole else NOT_REPORTED,
        metrics=tuple(BenchMetric(name, min(values)) for name, values in samples.items()),
        samples={name: values for name, values in samples.items() if len(values) > 1},
    )
