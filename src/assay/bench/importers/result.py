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
# JSON has none of these; our own summaries have them as texts
_NO_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MOST_SHOWN = 60


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


# ---------------------------------------------------------------- fields of a file that another tool wrote


class FieldError(Exception):
    """Where it is and what is wrong with it, in words."""


def parse_number(value: Any) -> float | None:
    """None for what is no number; True and False are none."""
    if isinstance(value, str):
        return _NO_NUMBERS.get(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a file. What is `null` is missing."""

    values: Mapping[str, Any]
    where: str = ""  # `benchmark 'BM_x/8'`; empty: the file itself

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def number(self, key: str) -> float | None:
        if key not in self:
            return None
        found = parse_number(self.values[key])
        return found if found is not None else self._refuse(key, "no number")

    def need_number(self, key: str) -> float:
        found = self.number(key)
        return found if found is not None else self._miss(key)

    def finite(self, key: str) -> float | None:
        """For what can be nothing but a number: a time of day, a count."""
        found = self.number(key)
        return found if found is None or math.isfinite(found) else self._refuse(key, "no number")

    def whole(self, key: str) -> int:
        return int(self.finite(key) or 0)

    def text(self, key: str) -> str:
        """Numbers too: tools do not agree on what a count of processors is. Empty where it is missing."""
        value = self.values.get(key)
        if isinstance(value, (dict, list)):
            self._refuse(key, "no text")
        return "" if value is None else str(value)

    def need_text(self, key: str) -> str:
        return self.text(key) or self._miss(key)

    def part(self, key: str) -> Fields:
        """The object under a key; an empty one where it is missing."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            self._refuse(key, "no object")
        return Fields(value or {}, f"{self.where} {key}".strip())

    def items(self, key: str) -> Sequence[Any]:
        value = self.values.get(key)
        if value is not None and not isinstance(value, list):
            self._refuse(key, "no list")
        return value or ()

    def numbers(self, key: str) -> list[float]:
        found = [parse_number(value) for value in self.items(key)]
        good = [value for value in found if value is not None]
        if len(good) < len(found):
            self._refuse(key, "no list of numbers")
        return good

    def parts(self, key: str, what: str) -> Iterator[Fields]:
        """The objects of a list, each called by its own name where it has one."""
        for number, value in enumerate(self.items(key), 1):
            place = f"{self.where} {what} {number}".strip()
            if not isinstance(value, dict):
                raise FieldError(f"{place} is {_show(value)}, which is no object")
            name = value.get("fullname") or value.get("name")
            yield Fields(value, f"{self.where} {what} {name!r}".strip() if isinstance(name, str) else place)

    def choose(self, key: str, known: Mapping[str, float], default: str) -> float:
        text = self.text(key) or default
        return known[text] if text in known else self._refuse(key, f"none of {', '.join(known)}")

    def _miss(self, key: str) -> Any:
        raise FieldError(f"{self.where}: {key} is missing" if self.where else f"{key} is missing")

    def _refuse(self, key: str, what: str) -> Any:
        words = f"{key} is {_show(self.values.get(key))}, which is {what}"
        raise FieldError(f"{self.where}: {words}" if self.where else words)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def parse_moment(fields: Fields, key: str) -> float | None:
    """ISO 8601; one without a zone is taken as UTC. None where there is none."""
    text = fields.text(key)
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise FieldError(f"{fields.where}: {key} is {text!r}, which is no date".removeprefix(": ")) from None
