"""What another tool's file says of one benchmark, as an execution like our own."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from assay.bench.values.execution import (
    CPU_TIME,
    NOT_REPORTED,
    THROUGHPUT,
    WALL_TIME,
    BenchExecution,
    BenchMetric,
    BenchResult,
    Framework,
    Peaks,
)
from assay.values.machine import Machine
from assay.values.verdict import Finding, VerdictKind

DIGEST = "digest"  # in `extra`: of what the file says, where several executions may share an id


@dataclass(frozen=True, slots=True)
class Note:
    """Something in a file that is no execution, and is not passed over in silence."""

    text: str


@dataclass(frozen=True, slots=True)
class Figure:
    source: str
    method: str
    at: float | None
    numbers: Mapping[str, float] = field(default_factory=dict)
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    wall_time: float = NOT_REPORTED
    cpu_time: float | None = None
    throughput: float | None = None
    iters: int | None = None
    bounds: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    extras: Mapping[str, float | str] = field(default_factory=dict)
    failure: str | None = None  # there is no figure: it raised, crashed, or never reported
    faults: Sequence[str] = ()  # there is one, and it is not as it must be
    commit: str | None = None
    label: str | None = None
    setup: Mapping[str, str] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)
    framework: Framework | None = None
    peaks: Peaks = field(default_factory=Peaks)
    contaminated: tuple[str, ...] = ()
    refused: bool = False
    trial: int = 1
    execution_id: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def build_execution(figure: Figure) -> BenchExecution:
    setup = {key: value for key, value in figure.setup.items() if value}
    return BenchExecution(
        execution_id=figure.execution_id or _build_id(figure),
        method=figure.method,
        trial=figure.trial,
        result=_build_result(figure),
        run_dir="",
        output_dir="",
        started_at=figure.at,
        ended_at=figure.at,
        label=figure.label,
        commit=figure.commit,
        setup=setup,
        fingerprint=_hash(sorted(setup.items()), 6) if setup else "",
        machine=figure.machine,
        framework=figure.framework,
        peaks=figure.peaks,
        contaminated=figure.contaminated,
        refused=figure.refused,
        source=figure.source,
        extra=figure.extra,
    )


def _build_result(figure: Figure) -> BenchResult:
    findings = tuple(_find_faults(figure))
    return BenchResult(
        name=figure.method,
        succeeded=not findings,
        has_exception=bool(figure.failure),
        iters=figure.iters,
        wall_time=figure.wall_time,
        cpu_time=figure.cpu_time,
        throughput=figure.throughput,
        metrics=tuple(
            BenchMetric(name, float(value), *figure.bounds.get(name, ())) for name, value in figure.numbers.items()
        ),
        extras=figure.extras,
        samples={name: tuple(map(float, values)) for name, values in figure.samples.items()},
        findings=findings,
    )


def _find_faults(figure: Figure) -> Iterator[Finding]:
    """A number that is none fails, whatever the other tool made of it."""
    if figure.failure:
        yield Finding(VerdictKind.ERROR, figure.method, figure.failure)
    standard = {WALL_TIME: figure.wall_time, CPU_TIME: figure.cpu_time, THROUGHPUT: figure.throughput}
    numbers = {**figure.numbers, **{name: value for name, value in standard.items() if value is not None}}
    bad = [f"{name} is {value}" for name, value in numbers.items() if not math.isfinite(value)]
    for message in dict.fromkeys((*bad, *figure.faults)):
        yield Finding(VerdictKind.FAIL, figure.method, message)


def _build_id(figure: Figure) -> str:
    """The same figure gets the same id: importing a file twice adds nothing. Another machine's is another figure."""
    what = [figure.source, figure.method, figure.at, figure.commit, figure.trial, dict(figure.numbers)]
    where = [figure.machine.host, sorted(figure.setup.items()), figure.failure]
    return f"{_render_stamp(figure.at)}-{_hash([*what, figure.wall_time, *where], 5)}"


def _render_stamp(at: float | None) -> str:
    try:
        return datetime.fromtimestamp(at or 0, UTC).strftime("%Y-%m-%d-%H-%M-%S")
    except (OverflowError, ValueError, OSError):  # no year that a calendar has
        return "undated"


def build_digest(content: Any) -> str:
    """Of what a file says, however it is laid out."""
    return _hash(content, 8)


def identify_figures(execution: BenchExecution) -> str:
    """Of what was measured: equal for an execution of our own and for its summary."""
    measured = sorted(execution.result.numbers.items())
    what = [execution.method, execution.trial, execution.started_at, execution.succeeded, execution.machine.host]
    return _hash([*what, measured], 8)


def _hash(content: Any, size: int) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()
