"""Reads and writes benchmark.json, judgements on changes (triage.jsonl), baselines, selftests and queues."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Literal, TypeVar

from assay.bench.values.execution import BenchExecution
from assay.errors import FormatError
from assay.record import run_directory
from assay.record.formats import Format, build_damage, read_versioned, render_versioned
from assay.system.fast_dataclasses import asdict, dataclass, replace
from assay.system.files import append_line, load_lines, parse_json, read_text, write_atomic
from assay.system.locks import try_lock_file
from assay.values import layout
from assay.values.plain import parse_plain, parse_strict
from assay.values.run import RunSpec

BENCH_FILE = "benchmark.json"
POINTS_FILE = "bench.jsonl"  # in the folder metrics/
TRIAGE_FILE = "triage.jsonl"  # in the study's folder .assay
QUEUE_PREFIX = "bench-queue."  # prefix of a file with a call's remaining executions, which the call removes at its end
FORMATS = {"benchmark": Format(1, "delete the file: it is made again from what the benchmark reported")}


def write_execution(run_dir: str, execution: BenchExecution) -> None:
    """Write an execution. Paths inside the run directory are stored as relative paths: the directory may be moved."""
    content = asdict(replace(execution, run_dir="", output_dir=make_relative(execution.output_dir, run_dir)))
    write_atomic(os.path.join(run_dir, BENCH_FILE), render_versioned(content, "benchmark", FORMATS))


def make_relative(path: str, run_dir: str) -> str:
    return os.path.relpath(path, run_dir) if path.startswith(run_dir + os.sep) else path


def load_execution(run_dir: str) -> BenchExecution | None:
    """Load the execution of a run directory; None if there is no benchmark.json."""
    path = os.path.join(run_dir, BENCH_FILE)
    try:
        with open(path, "rb") as file:
            text = file.read()
    except (FileNotFoundError, IsADirectoryError):
        return None
    content = read_versioned(text, "benchmark", path, FORMATS)
    try:
        given = {name: value for name, value in content.items() if value is not None}
        found = parse_strict(BenchExecution, given, finite=False)
        return replace(found, run_dir=run_dir, output_dir=os.path.join(run_dir, found.output_dir))
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise build_damage(path, str(error), FORMATS["benchmark"]) from error


def write_points(run_dir: str, execution: BenchExecution) -> None:
    """Write the execution as metrics of its run: one line of numbers, then a line for each sample."""
    lines: list[dict[str, float]] = [dict(execution.numbers)]
    samples = execution.result.samples
    for index in range(max(map(len, samples.values()), default=0)):
        here = {f"samples.{name}": values[index] for name, values in samples.items() if index < len(values)}
        lines.append({"step": index, **here})
    stamp = execution.ended_at or 0.0
    text = "".join(json.dumps({"time": stamp, **line}) + "\n" for line in lines if line)
    if not text:
        return
    folder = os.path.join(run_dir, layout.METRICS_DIR)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, POINTS_FILE), "w", encoding="utf-8") as file:
        file.write(text)


# ---------------------------------------------------------------- triage


Judgement = Literal["ack", "invalid", "wontfix", "open"]


@dataclass(frozen=True, slots=True)
class Triage:
    """A judgement on a change of a metric, which is identified by the execution where the new level begins.

    ack      the change is known and being worked on: it is listed, but raises no alarm
    wontfix  the change is intended: the new level is the normal one
    invalid  the executions of the new level are not usable: they are left out
    open     an earlier judgement is withdrawn
    """

    method: str
    metric: str
    execution_id: str  # where the change begins
    until: str = ""  # last execution of the new level when judged: `invalid` excludes all up to it
    judgement: Judgement = "ack"
    note: str = ""
    who: str = ""
    at: float = 0.0


def load_triage(study_dir: str) -> list[Triage]:
    """Load all judgements in the order in which they were recorded; lines that cannot be read are ignored."""
    found = []
    for facts in load_lines(_triage_path(study_dir)):
        with suppress(TypeError, ValueError, AttributeError):
            found.append(parse_plain(Triage, facts))
    return found


def add_triage(study_dir: str, triage: Triage) -> None:
    path = _triage_path(study_dir)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    append_line(path, asdict(triage))


def _triage_path(study_dir: str) -> str:
    return os.path.join(study_dir, layout.STUDY_META_DIR, TRIAGE_FILE)


# ---------------------------------------------------------------- baselines and selftests


@dataclass(frozen=True, slots=True)
class Baseline:
    """Named executions, which do not change when newer executions are added."""

    what: str  # the revision or label whose executions got the name
    runs: tuple[str, ...]  # names of run directories
    at: float
    commit: str | None = None


@dataclass(frozen=True, slots=True)
class Selftest:
    """The result of a comparison of equal code with itself, for one benchmark on one machine."""

    host: str
    trials: int  # trials on each side
    visible: Mapping[str, float]  # metric → the smallest effect that 9 of 10 comparisons show
    at: float


_Named = TypeVar("_Named", Baseline, Selftest)
_NAMED_FILES = {Baseline: "baselines.json", Selftest: "selftest.json"}  # in the study's folder .assay


def load_named(study_dir: str, kind: type[_Named]) -> dict[str, _Named]:
    """Load baselines by their names, or selftests by the names of their benchmarks."""
    path = os.path.join(study_dir, layout.STUDY_META_DIR, _NAMED_FILES[kind])
    try:
        content = parse_json(read_text(path, "strict"))
        return {key: parse_strict(kind, fields) for key, fields in content["named"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{path} cannot be read: {error}", "delete the file, and set what it held again") from error


def write_named(study_dir: str, kind: type[_Named], values: Mapping[str, _Named]) -> None:
    path = os.path.join(study_dir, layout.STUDY_META_DIR, _NAMED_FILES[kind])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    content = {"format": 1, "named": {key: asdict(value) for key, value in values.items()}}
    write_atomic(path, json.dumps(content, indent=1))


# ---------------------------------------------------------------- queues of executions


@contextmanager
def hold_queue(study_dir: str, folder: str, specs: Sequence[RunSpec]) -> Iterator[None]:
    """Store the runs of `folder` in a locked file while this process runs them. A kill leaves the file unlocked."""
    path = os.path.join(study_dir, layout.STUDY_META_DIR, f"{QUEUE_PREFIX}{run_directory.new_uid()}")
    content = {"format": 1, "folder": folder, "specs": [run_directory.render_spec(spec) for spec in specs]}
    with suppress(OSError):  # a full disk: the benchmarks run without a stored queue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_atomic(path, json.dumps(content))
    lock = _lock(path)
    try:
        yield
    finally:
        if lock is not None:
            with suppress(OSError):
                os.unlink(path)
            os.close(lock)


def take_queue(study_dir: str, folder: str) -> list[RunSpec]:
    """Return the runs of `folder` that remain from killed calls, oldest first, and remove their queues."""
    found: list[RunSpec] = []
    meta = os.path.join(study_dir, layout.STUDY_META_DIR)
    for path in sorted(glob.glob(os.path.join(glob.escape(meta), f"{QUEUE_PREFIX}*"))):
        lock = _lock(path)
        if lock is None:  # another process runs this queue
            continue
        specs = _load_queue(path, folder)
        if specs is not None:
            for spec in specs:
                run_dir = os.path.join(study_dir, spec.name)
                # a run directory may exist, although nothing was ever started in it
                if not os.path.isdir(run_dir) or run_directory.load_history(run_dir).last is None:
                    found.append(spec)
            with suppress(OSError):
                os.unlink(path)
        os.close(lock)
    return sorted(found, key=lambda spec: spec.name)


def _lock(path: str) -> int | None:
    """Lock the file and return its descriptor; None if another process has locked it, or it no longer exists."""
    with suppress(OSError):
        return try_lock_file(path, create=False)
    return None


def _load_queue(path: str, folder: str) -> list[RunSpec] | None:
    """Load a queue; None if it is for another folder, where a call may still take it. An invalid file is empty."""
    try:
        content = parse_json(read_text(path, "strict"))
        return [run_directory.parse_spec(spec) for spec in content["specs"]] if content["folder"] == folder else None
    except (OSError, LookupError, TypeError, ValueError):
        return []
