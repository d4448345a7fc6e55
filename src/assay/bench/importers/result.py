"""One result of another tool's file, its fields, and the execution that is built from it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
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
from assay.system.fast_dataclasses import dataclass, field
from assay.values.machine import Machine
from assay.values.plain import NO_DATE, render_date
from assay.values.verdict import Finding, VerdictKind

DIGEST = "digest"  # in `extra`: of the file's content, where several executions may share an id
# not in JSON; our own summaries have them as strings
_NO_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MOST_SHOWN = 60


@dataclass(frozen=True, slots=True)
class ImportedResult:
    """One result. Parsers yield these, and strings: notes on content that is not an execution."""

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
    failure: str | None = None  # there is no result: it raised, crashed, or never reported
    faults: Sequence[str] = ()  # there is a result, and it is not valid
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


def build_execution(result: ImportedResult) -> BenchExecution:
    setup = {key: value for key, value in result.setup.items() if value}
    return BenchExecution(
        execution_id=result.execution_id or _build_id(result),
        method=result.method,
        trial=result.trial,
        result=_build_result(result),
        run_dir="",
        output_dir="",
        started_at=result.at,
        ended_at=result.at,
        label=result.label,
        commit=result.commit,
        setup=setup,
        fingerprint=build_digest(sorted(setup.items()), 6) if setup else "",
        machine=result.machine,
        framework=result.framework,
        peaks=result.peaks,
        contaminated=result.contaminated,
        refused=result.refused,
        source=result.source,
        extra=result.extra,
    )


def _build_result(result: ImportedResult) -> BenchResult:
    findings = tuple(_find_faults(result))
    return BenchResult(
        name=result.method,
        succeeded=not findings,
        has_exception=bool(result.failure),
        iters=result.iters,
        wall_time=result.wall_time,
        cpu_time=result.cpu_time,
        throughput=result.throughput,
        metrics=tuple(
            BenchMetric(name, float(value), *result.bounds.get(name, ())) for name, value in result.numbers.items()
        ),
        extras=result.extras,
        samples={name: tuple(map(float, values)) for name, values in result.samples.items()},
        findings=findings,
    )


def _find_faults(result: ImportedResult) -> Iterator[Finding]:
    """Values that are not finite fail, whatever the other tool made of them."""
    if result.failure:
        yield Finding(VerdictKind.ERROR, result.method, result.failure)
    standard = {WALL_TIME: result.wall_time, CPU_TIME: result.cpu_time, THROUGHPUT: result.throughput}
    numbers = {**result.numbers, **{name: value for name, value in standard.items() if value is not None}}
    bad = [f"{name} is {value}" for name, value in numbers.items() if not math.isfinite(value)]
    for message in dict.fromkeys((*bad, *result.faults)):
        yield Finding(VerdictKind.FAIL, result.method, message)


def _build_id(result: ImportedResult) -> str:
    """The same result gets the same id: importing a file twice adds nothing. Another machine gets another id."""
    what = [result.source, result.method, result.at, result.commit, result.trial, dict(result.numbers)]
    where = [result.machine.host, sorted(result.setup.items()), result.failure]
    stamp = render_date(result.at or 0, "%Y-%m-%d-%H-%M-%S", UTC)
    return f"{'undated' if stamp == NO_DATE else stamp}-{build_digest([*what, result.wall_time, *where], 5)}"


def identify_result(execution: BenchExecution) -> str:
    """A hash of what was measured: equal for an execution of our own and for its summary."""
    measured = sorted(execution.result.numbers.items())
    what = [execution.method, execution.trial, execution.started_at, execution.succeeded, execution.machine.host]
    return build_digest([*what, measured])


def build_digest(content: Any, size: int = 8) -> str:
    """Independent of the layout of a file."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


# ---------------------------------------------------------------- fields of a file that another tool wrote


class FieldError(Exception):
    """The message names the position and the problem."""


def parse_number(value: Any) -> float | None:
    """None for anything but a number; True and False are not numbers."""
    if isinstance(value, str):
        return _NO_NUMBERS.get(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


@dataclass(frozen=True, slots=True)
class ForeignFields:
    """An object of a file. What is `null` is missing."""

    values: Mapping[str, Any]
    where: str = ""  # `benchmark 'BM_x/8'`; empty: the file itself

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def number(self, key: str) -> float | None:
        if key not in self:
            return None
        found = parse_number(self.values[key])
        return found if found is not None else self._refuse(key, "not a number")

    def need_number(self, key: str) -> float:
        found = self.number(key)
        return found if found is not None else self._miss(key)

    def finite(self, key: str) -> float | None:
        """A number that must be finite: a time of day, a count."""
        found = self.number(key)
        return found if found is None or math.isfinite(found) else self._refuse(key, "not a number")

    def whole(self, key: str) -> int:
        return int(self.finite(key) or 0)

    def text(self, key: str) -> str:
        """Numbers too: tools differ in the type of a processor count. Empty where it is missing."""
        value = self.values.get(key)
        if isinstance(value, (dict, list)):
            self._refuse(key, "not a string")
        return "" if value is None else str(value)

    def need_text(self, key: str) -> str:
        return self.text(key) or self._miss(key)

    def part(self, key: str) -> ForeignFields:
        """The object under a key; an empty one where it is missing."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            self._refuse(key, "not an object")
        return ForeignFields(value or {}, f"{self.where} {key}".strip())

    def items(self, key: str) -> Sequence[Any]:
        value = self.values.get(key)
        if value is not None and not isinstance(value, list):
            self._refuse(key, "not a list")
        return value or ()

    def numbers(self, key: str) -> list[float]:
        found = [parse_number(value) for value in self.items(key)]
        good = [value for value in found if value is not None]
        if len(good) < len(found):
            self._refuse(key, "not a list of numbers")
        return good

    def parts(self, key: str, what: str) -> Iterator[ForeignFields]:
        """The objects of a list, named by its own name if it has one."""
        for number, value in enumerate(self.items(key), 1):
            position = f"{self.where} {what} {number}".strip()
            if not isinstance(value, dict):
                raise FieldError(f"{position} is {_show(value)}, which is not an object")
            name = value.get("fullname") or value.get("name")
            yield ForeignFields(value, f"{self.where} {what} {name!r}".strip() if isinstance(name, str) else position)

    def choose(self, key: str, known: Mapping[str, float], default: str) -> float:
        text = self.text(key) or default
        return known[text] if text in known else self._refuse(key, f"none of {', '.join(known)}")

    def _miss(self, key: str) -> Any:
        raise FieldError(f"{self.where}: {key} is missing" if self.where else f"{key} is missing")

    def _refuse(self, key: str, what: str) -> Any:
        problem = f"{key} is {_show(self.values.get(key))}, which is {what}"
        raise FieldError(f"{self.where}: {problem}" if self.where else problem)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def parse_moment(fields: ForeignFields, key: str) -> float | None:
    """ISO 8601; one without a zone is taken as UTC. None where there is none."""
    text = fields.text(key)
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise FieldError(f"{fields.where}: {key} is {text!r}, which is not a date".removeprefix(": ")) from None
