"""Results of other benchmark tools: PerfZero, asv, pytest-benchmark, google-benchmark, MLPerf logs.

Every result becomes an execution like our own: method, metrics, raw samples, commit, time and environment. What a tool
recorded as a failure is a failed execution.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from assay.bench.importers import asv, google_benchmark, perfzero
from assay.bench.importers.result import (
    FieldError,
    Fields,
    ImportedResult,
    Note,
    build_execution,
    parse_moment,
    parse_number,
)
from assay.bench.values.execution import NOT_REPORTED, WALL_TIME, BenchExecution
from assay.errors import UsageError
from assay.values.machine import Machine

_HINT = (
    "known: PerfZero's perfzero_summary.json and perfzero.log, asv's results/MACHINE/*.json, pytest-benchmark's and "
    "google-benchmark's JSON, :::MLLOG lines"
)

Found = Iterable[ImportedResult | Note]
_LINE = re.compile(r":::ML(?:LOG|Log|log|Pv\S*)\s+(\{.*\})")
PYTEST_MARKS = {"machine_info", "benchmarks"}


@dataclass(frozen=True, slots=True)
class Foreign:
    """What is in a file."""

    executions: tuple[BenchExecution, ...]
    notes: tuple[str, ...] = ()  # on content that is not a result


def load_foreign(path: str) -> list[BenchExecution]:
    """As `load_foreign_file`; raises UsageError for a file without a result."""
    found = load_foreign_file(path)
    if not found.executions:
        raise _refuse(path, "; ".join(("there is no result in it", *found.notes)))
    return list(found.executions)


def load_foreign_file(path: str) -> Foreign:
    """Recognised by content. Raises UsageError with the problem and its position; a file is never imported in part."""
    text = _load_text(path)
    try:
        found = list(parse_foreign(text, path))
    except FieldError as error:
        raise _refuse(path, str(error)) from None
    if not found:
        raise _refuse(path, "there is no result in it")
    return Foreign(
        tuple(build_execution(each) for each in found if isinstance(each, ImportedResult)),
        tuple(each.text for each in found if isinstance(each, Note)),
    )


def _load_text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return _decode(file.read())
    except UnicodeDecodeError:
        raise _refuse(path, "it is not text") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _refuse(path: str, why: str) -> UsageError:
    return UsageError(f"{path} cannot be imported: {why}", _HINT)


def _decode(data: bytes) -> str:
    """A log may contain anything that a method printed; other files must be valid UTF-8."""
    return data.decode("utf-8", "replace" if b'"benchmark_result"' in data else "strict")


def parse_foreign(text: str, path: str) -> Iterator[ImportedResult | Note]:
    if has_lines(text):
        return parse_mlperf(text, os.path.basename(path))
    try:
        content = json.loads(text)
    except RecursionError:
        raise FieldError("its JSON is nested too deeply") from None
    except ValueError as error:
        if summaries := perfzero.find_summaries(text):
            return chain.from_iterable(map(perfzero.parse_perfzero, summaries))
        raise FieldError(f"it is not JSON and has no :::MLLOG line ({error})") from None
    if not isinstance(content, dict):
        raise FieldError("its JSON is not an object")
    return iter(_parse_object(content, path))


def _parse_object(content: Mapping[str, Any], path: str) -> Found:
    if content.keys() >= asv.MARKS:
        return asv.parse_asv(content, path)
    for marks, parse in _KINDS:
        if marks <= content.keys():
            return parse(content)
    if asv.is_machine(content):
        return [Note("asv's machine.json: it describes the machine of the results next to it")]
    if asv.is_benchmark_list(content):
        return [Note("asv's benchmarks.json: it describes the benchmarks of the results below it")]
    raise FieldError("no known tool writes such a file")


# ---------------------------------------------------------------- MLPerf: `:::MLLOG {…}` lines


def has_lines(text: str) -> bool:
    return ":::ML" in text and _LINE.search(text) is not None


def parse_mlperf(text: str, file: str) -> Iterator[ImportedResult]:
    """The time from run_start to run_stop, and every number that was logged."""
    entries = [_parse_entry(number, match[1]) for number, match in enumerate(_LINE.finditer(text), 1)]
    last = {entry.need_text("key"): entry for entry in entries}
    start, stop = (last[key].finite("time_ms") if key in last else None for key in ("run_start", "run_stop"))
    status = last["run_stop"].part("metadata").text("status") if "run_stop" in last else ""
    series: dict[str, list[float]] = {}
    for entry in entries:
        value = parse_number(entry.values.get("value"))
        if value is not None:
            series.setdefault(entry.text("key"), []).append(value)
    benchmark, org, platform = (
        last[key].text("value") if key in last else ""
        for key in ("submission_benchmark", "submission_org", "submission_platform")
    )
    failure = None if status in ("", "success") else f"the run ended with status {status}"
    yield ImportedResult(
        source="mlperf",
        method=f"mlperf.{benchmark or os.path.splitext(file)[0]}",
        at=start / 1000 if start is not None else None,
        wall_time=(stop - start) / 1000 if start is not None and stop is not None else NOT_REPORTED,
        numbers={key: values[-1] for key, values in series.items()},
        samples={key: values for key, values in series.items() if len(values) > 1},
        failure=failure or (None if stop is not None else "the run never stopped: there is no run_stop"),
        label=org or None,
        setup={"accelerator_model": platform},
    )


def _parse_entry(number: int, text: str) -> Fields:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise FieldError(f":::MLLOG line {number} is not JSON") from None
    return Fields(content, f":::MLLOG line {number}")


# ---------------------------------------------------------------- pytest-benchmark


def parse_pytest(content: Mapping[str, Any]) -> Iterator[ImportedResult]:
    file = Fields(content)
    machine = file.part("machine_info")
    model, cpus = _parse_cpu(machine)
    setup = {"cpu_model": model, "cpus": cpus, "python": ".".join(machine.text("python_version").split(".")[:2])}
    for bench in file.parts("benchmarks", "benchmark"):
        has_failed = bool(bench.values.get("has_error"))
        stats = bench.part("stats")
        samples = stats.numbers("data")
        yield ImportedResult(
            source="pytest-benchmark",
            method=bench.text("fullname") or bench.need_text("name"),
            at=parse_moment(file, "datetime"),
            wall_time=NOT_REPORTED if has_failed else stats.need_number("median"),
            iters=stats.whole("rounds") * (stats.whole("iterations") or 1) or None,
            samples={WALL_TIME: samples} if samples else {},
            extras=_parse_extras(bench.part("extra_info").values),
            failure="it raised an error" if has_failed else None,
            commit=file.part("commit_info").text("id") or None,
            setup=setup,
            machine=Machine(host=machine.text("node"), cpu_model=model),
        )


def _parse_cpu(machine: Fields) -> tuple[str, str]:
    """An object since version 3.2, a string before."""
    if not isinstance(machine.values.get("cpu"), dict):
        return machine.text("cpu"), ""
    cpu = machine.part("cpu")
    return cpu.text("brand_raw") or cpu.text("brand"), cpu.text("count")


def _parse_extras(extras: Mapping[str, Any]) -> dict[str, float | str]:
    found = {key: (parse_number(value), value) for key, value in extras.items()}
    return {key: str(value) if number is None else number for key, (number, value) in found.items()}


_KINDS: tuple[tuple[set[str], Callable[[Mapping[str, Any]], Found]], ...] = (
    (perfzero.MARKS, perfzero.parse_perfzero),
    (google_benchmark.MARKS, google_benchmark.parse_google),
    (PYTEST_MARKS, parse_pytest),
)
