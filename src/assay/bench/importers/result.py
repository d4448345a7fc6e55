"""One result in a file of another tool: its fields, and the execution that is built from a result."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from assay.bench.values.execution import CPU_TIME, THROUGHPUT, WALL_TIME, BenchExecution, BenchMetric, BenchResult
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.plain import NO_DATE, render_date
from assay.values.verdict import Finding, VerdictKind

DIGEST = "digest"  # key in `extra` of a digest of the file's content, if several executions may share an id
# values that JSON does not have; our own summaries contain them as strings
_NO_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MOST_SHOWN = 60

Bounds = Mapping[str, tuple[float | None, float | None]]


def build_imported(
    source: str,
    result: BenchResult,
    at: float | None,
    setup: Mapping[str, str],
    *,
    failure: str | None,
    faults: Sequence[str] = (),
    execution_id: str | None = None,
    **recorded: Any,
) -> BenchExecution:
    """Build an execution of another tool. `result` is as that tool reports it, without findings, which are added here.

    `failure`: why there is no result: the benchmark raised, crashed, or never reported. `faults`: why the result is not
    valid. `recorded`: further fields of the execution.
    """
    standard = {WALL_TIME: result.wall_time, CPU_TIME: result.cpu_time, THROUGHPUT: result.throughput}
    numbers = {metric.name: metric.value for metric in result.metrics}
    numbers |= {name: value for name, value in standard.items() if value is not None}
    # values that are not finite fail, however the other tool treats them
    bad = [f"{name} is {value}" for name, value in numbers.items() if not math.isfinite(value)]
    broken = [(VerdictKind.ERROR, failure)] if failure else []
    broken += [(VerdictKind.FAIL, message) for message in dict.fromkeys((*bad, *faults))]
    findings = tuple(Finding(kind, result.name, message) for kind, message in broken)
    known = {key: value for key, value in setup.items() if value}
    execution = BenchExecution(
        execution_id=execution_id or "",
        method=result.name,
        result=replace(result, succeeded=not findings, has_exception=bool(failure), findings=findings),
        run_dir="",
        output_dir="",
        started_at=at,
        ended_at=at,
        setup=known,
        fingerprint=build_digest(sorted(known.items()), 6) if known else "",
        source=source,
        **{"trial": 1, **recorded},
    )
    return execution if execution_id else replace(execution, execution_id=_build_id(execution, setup, failure))


def build_result(method: str, numbers: Mapping[str, float], bounds: Bounds | None = None, **fields: Any) -> BenchResult:
    """Build a result. `bounds`: least and largest value of each metric. `fields`: further fields of the result."""
    metrics = tuple(BenchMetric(name, value, *(bounds or {}).get(name, ())) for name, value in numbers.items())
    samples = {name: tuple(map(float, values)) for name, values in fields.pop("samples", {}).items()}
    return BenchResult(method, succeeded=True, metrics=metrics, samples=samples, **fields)


def _build_id(execution: BenchExecution, setup: Mapping[str, str], failure: str | None) -> str:
    """Build the id from the result and the machine, so that importing a file twice adds nothing."""
    at, numbers = execution.started_at, {metric.name: metric.value for metric in execution.result.metrics}
    what = [execution.source, execution.method, at, execution.commit, execution.trial, numbers]
    where = [execution.result.wall_time, execution.machine.host, sorted(setup.items()), failure]
    stamp = render_date(at or 0, "%Y-%m-%d-%H-%M-%S", UTC)
    return f"{'undated' if stamp == NO_DATE else stamp}-{build_digest([*what, *where], 5)}"


def identify_result(execution: BenchExecution) -> str:
    """Return a hash of the measured values: equal for an execution of our own and for its summary."""
    measured = sorted(execution.result.numbers.items())
    what = [execution.method, execution.trial, execution.started_at, execution.succeeded, execution.machine.host]
    return build_digest([*what, measured])


def build_digest(content: Any, size: int = 8) -> str:
    """Return a digest of the content, independent of the file's layout."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


# ---------------------------------------------------------------- fields of a file that another tool wrote


class FieldError(Exception):
    """An invalid field; the message contains its position and the problem."""


def parse_number(value: Any) -> float | None:
    """Return a number, or None for anything else; True and False are not numbers."""
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
    """An object in a file of another tool. A field that is `null` counts as missing."""

    values: Mapping[str, Any]
    where: str = ""  # `benchmark 'BM_x/8'`; "" for the file itself

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
        """Return a number that must be finite, such as a date or a count; None if it is missing."""
        found = self.number(key)
        return found if found is None or math.isfinite(found) else self._refuse(key, "not a number")

    def whole(self, key: str) -> int:
        return int(self.finite(key) or 0)

    def text(self, key: str) -> str:
        """Return a string or number as text, since tools differ in the type of a processor count; "" if missing."""
        value = self.values.get(key)
        if isinstance(value, (dict, list)):
            self._refuse(key, "not a string")
        return "" if value is None else str(value)

    def need_text(self, key: str) -> str:
        return self.text(key) or self._miss(key)

    def part(self, key: str) -> ForeignFields:
        """Return the object under a key; an empty one if it is missing."""
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
        """Yield the objects of a list; error messages contain an object's name, if it has one."""
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
    """Parse a date and time in ISO 8601, which is UTC without a zone. Return None if the field is missing."""
    text = fields.text(key)
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise FieldError(f"{fields.where}: {key} is {text!r}, which is not a date".removeprefix(": ")) from None
