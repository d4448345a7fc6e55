"""Results of other benchmark tools: PerfZero, asv, pytest-benchmark, google-benchmark, MLPerf logs.

Every figure becomes an execution like our own: method, metrics, raw samples, commit, time and set-up. What a tool
recorded as a failure is a failed execution.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from assay.bench.importers import asv, google_benchmark, mlperf, perfzero, pytest_benchmark
from assay.bench.importers.fields import FieldError
from assay.bench.importers.result import Figure, Note, build_execution
from assay.bench.values.execution import BenchExecution
from assay.errors import UsageError

_HINT = (
    "known: PerfZero's perfzero_summary.json and perfzero.log, asv's results/MACHINE/*.json, pytest-benchmark's and "
    "google-benchmark's JSON, :::MLLOG lines"
)

Found = Iterable[Figure | Note]


@dataclass(frozen=True, slots=True)
class Foreign:
    """What is in a file."""

    executions: tuple[BenchExecution, ...]
    notes: tuple[str, ...] = ()  # of what is in it and is no figure


def load_foreign(path: str) -> list[BenchExecution]:
    """As `load_foreign_file`, for whoever wants figures: a file without one is refused."""
    found = load_foreign_file(path)
    if not found.executions:
        raise _refuse(path, "; ".join(("there is no result in it", *found.notes)))
    return list(found.executions)


def load_foreign_file(path: str) -> Foreign:
    """Recognised by content. Raises UsageError with what is wrong and where; never a part of a file."""
    text = _load_text(path)
    try:
        found = list(parse_foreign(text, path))
    except FieldError as error:
        raise _refuse(path, str(error)) from None
    if not found:
        raise _refuse(path, "there is no result in it")
    return Foreign(
        tuple(build_execution(each) for each in found if isinstance(each, Figure)),
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
    """A log may hold anything that a method printed; our own kinds of files may not."""
    return data.decode("utf-8", "replace" if b'"benchmark_result"' in data else "strict")


def parse_foreign(text: str, path: str) -> Iterator[Figure | Note]:
    if mlperf.has_lines(text):
        return mlperf.parse_mlperf(text, os.path.basename(path))
    try:
        content = json.loads(text)
    except RecursionError:
        raise FieldError("its JSON is nested too deeply") from None
    except ValueError as error:
        if summaries := perfzero.find_summaries(text):
            return chain.from_iterable(map(perfzero.parse_perfzero, summaries))
        raise FieldError(f"it is no JSON and has no :::MLLOG line ({error})") from None
    if not isinstance(content, dict):
        raise FieldError("its JSON is no object")
    return iter(_parse_object(content, path))


def _parse_object(content: Mapping[str, Any], path: str) -> Found:
    if content.keys() >= asv.MARKS:
        return asv.parse_asv(content, path)
    for marks, parse in _KINDS:
        if marks <= content.keys():
            return parse(content)
    if asv.is_machine(content):
        return [Note("asv's machine.json: the results beside it use what it says of the machine")]
    if asv.is_benchmark_list(content):
        return [Note("asv's benchmarks.json: the results below it use what it says of benchmarks")]
    raise FieldError("no known tool writes such a file")


_KINDS: tuple[tuple[set[str], Callable[[Mapping[str, Any]], Found]], ...] = (
    (perfzero.MARKS, perfzero.parse_perfzero),
    (google_benchmark.MARKS, google_benchmark.parse_google),
    (pytest_benchmark.MARKS, pytest_benchmark.parse_pytest),
)
