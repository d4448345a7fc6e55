"""Imports results of other benchmark tools (PerfZero, asv, pytest-benchmark, google-benchmark, MLPerf logs), and finds
out which tool wrote a file.

Every result becomes an execution like our own: method, metrics, raw samples, commit, time and environment. What a tool
recorded as a failure is a failed execution.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import methodcaller
from statistics import median

from assay.bench.importers import asv, perfzero
from assay.bench.importers.result import (
    FieldError,
    ForeignFields,
    build_imported,
    build_result,
    parse_moment,
    parse_number,
)
from assay.bench.values.execution import NOT_REPORTED, WALL_TIME, BenchExecution, BenchResult, Machine
from assay.errors import UsageError
from assay.plugins import load
from assay.record.importers.registry import Importer, choose_importer, describe_known
from assay.record.importers.sample import Sample
from assay.system.fast_dataclasses import replace
from assay.values.run import build_command

Foreign = tuple[tuple[BenchExecution, ...], tuple[str, ...]]  # executions; notes on other content
_HALVES = re.compile("[\ud800-\udfff]")
_LINE = re.compile(r":::ML(?:LOG|Log|log|Pv\S*)\s+(\{.*\})")


def load_foreign(path: str) -> list[BenchExecution]:
    """Load the executions in a file of another tool. Raises UsageError if the file has no result."""
    executions, notes = load_foreign_file(path)
    if not executions:
        raise _refuse(path, "; ".join(("there is no result in it", *notes)))
    return list(executions)


def load_foreign_file(path: str) -> Foreign:
    """Load a complete file of any known tool. Raises UsageError with the first problem in the file and its position."""
    text = _load_text(path)
    try:
        found = list(parse_foreign(text, path))
    except FieldError as error:
        raise _refuse(path, str(error)) from None
    if not found:
        raise _refuse(path, "there is no result in it")
    executions = tuple(each for each in found if isinstance(each, BenchExecution))
    for each in executions:  # JSON can contain half a surrogate pair, a file cannot
        if _HALVES.search(names := f"{each.method} {each.execution_id} {each.label} {each.commit}"):
            raise _refuse(path, f"{names!r} is not text")
    return executions, tuple(each for each in found if isinstance(each, str))


def _load_text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read()
        # a log may contain anything that a method printed; other files must be valid UTF-8
        return data.decode("utf-8", "replace" if b'"benchmark_result"' in data else "strict")
    except UnicodeDecodeError:
        raise _refuse(path, "it is not text") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", _find_other_command(path)) from None


def _refuse(path: str, why: str) -> UsageError:
    return UsageError(f"{path} cannot be imported: {why}", _find_other_command(path) or describe_known(["results"]))


def _find_other_command(path: str) -> str | None:
    """Return a hint with the command that imports a file of runs; None for other files."""
    importer = choose_importer(Sample(path), ["runs", "folders"])
    if importer is None:
        return None
    return f"it is {importer.title}: {build_command(('assay', 'index', 'ingest'), [path])}"


def parse_foreign(text: str, path: str) -> Iterator[BenchExecution | str]:
    sample = Sample(path, text)
    importer = choose_importer(sample, ["results"])
    if importer is not None:
        return iter(load(importer.load)(sample))
    try:
        content = json.loads(text)
    except RecursionError:
        raise FieldError("its JSON is nested too deeply") from None
    except ValueError as error:
        if summaries := perfzero.find_summaries(text):
            return chain.from_iterable(perfzero.parse_perfzero(Sample(path, summary)) for summary in summaries)
        raise FieldError(f"it is not JSON and has no :::MLLOG line ({error})") from None
    if not isinstance(content, dict):
        raise FieldError("its JSON is not an object")
    if asv.is_machine(content):
        return iter(["asv's machine.json: it describes the machine of the results next to it"])
    if asv.is_benchmark_list(content):
        return iter(["asv's benchmarks.json: it describes the benchmarks of the results below it"])
    raise FieldError("no known tool writes such a file")


def is_mlperf(sample: Sample) -> bool:
    text = sample.text or sample.head
    return ":::ML" in text and _LINE.search(text) is not None


is_asv = methodcaller("has_keys", "results", "commit_hash")
is_perfzero = methodcaller("has_keys", "benchmark_result", "execution_timestamp")
is_google_benchmark = methodcaller("has_keys", "context", "benchmarks")
is_pytest_benchmark = methodcaller("has_keys", "machine_info", "benchmarks")


# ---------------------------------------------------------------- MLPerf: `:::MLLOG {…}` lines


def parse_mlperf(sample: Sample) -> Iterator[BenchExecution]:
    """Parse :::MLLOG lines: the time from run_start to run_stop, and every logged number."""
    entries = []
    for number, match in enumerate(_LINE.finditer(sample.text), 1):
        try:
            entries.append(ForeignFields(json.loads(match[1]), f":::MLLOG line {number}"))
        except (ValueError, RecursionError):
            raise FieldError(f":::MLLOG line {number} is not JSON") from None
    last = {entry.need_text("key"): entry for entry in entries}
    nothing = ForeignFields({})
    start, stop = (last.get(key, nothing).finite("time_ms") for key in ("run_start", "run_stop"))
    status = last.get("run_stop", nothing).part("metadata").text("status")
    series: dict[str, list[float]] = {}
    for entry in entries:
        value = parse_number(entry.values.get("value"))
        if value is not None:
            series.setdefault(entry.text("key"), []).append(value)
    parts = ("benchmark", "org", "platform")
    benchmark, org, platform = (last.get(f"submission_{part}", nothing).text("value") for part in parts)
    failure = None if status in ("", "success") else f"the run ended with status {status}"
    result = build_result(
        f"mlperf.{benchmark or os.path.splitext(os.path.basename(sample.path))[0]}",
        {key: values[-1] for key, values in series.items()},
        wall_time=(stop - start) / 1000 if start is not None and stop is not None else NOT_REPORTED,
        samples={key: values for key, values in series.items() if len(values) > 1},
    )
    yield build_imported(
        "mlperf",
        result,
        start / 1000 if start is not None else None,
        {"accelerator_model": platform},
        failure=failure or (None if stop is not None else "the run never stopped: there is no run_stop"),
        label=org or None,
    )


# ---------------------------------------------------------------- pytest-benchmark


def parse_pytest(sample: Sample) -> Iterator[BenchExecution]:
    file = ForeignFields(sample.content)
    machine = file.part("machine_info")
    is_object = isinstance(machine.values.get("cpu"), dict)  # an object since version 3.2, a string before
    cpu = machine.part("cpu") if is_object else ForeignFields({"brand": machine.text("cpu")})
    model, python = cpu.text("brand_raw") or cpu.text("brand"), machine.text("python_version").split(".")[:2]
    setup = {"cpu_model": model, "cpus": cpu.text("count"), "python": ".".join(python)}
    for bench in file.parts("benchmarks", "benchmark"):
        has_failed = bool(bench.values.get("has_error"))
        stats = bench.part("stats")
        samples = stats.numbers("data")
        result = build_result(
            bench.text("fullname") or bench.need_text("name"),
            {},
            wall_time=NOT_REPORTED if has_failed else stats.need_number("median"),
            iters=stats.whole("rounds") * (stats.whole("iterations") or 1) or None,
            samples={WALL_TIME: samples} if samples else {},
            extras={
                key: str(value) if (number := parse_number(value)) is None else number
                for key, value in bench.part("extra_info").values.items()
            },
        )
        yield build_imported(
            "pytest-benchmark",
            result,
            parse_moment(file, "datetime"),
            setup,
            failure="it raised an error" if has_failed else None,
            commit=file.part("commit_info").text("id") or None,
            machine=Machine(host=machine.text("node"), cpu_model=model),
        )


# ---------------------------------------------------------------- google-benchmark: repetitions, aggregates, counters


_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_CENTRES = ("median", "mean")  # the aggregates that may represent all repetitions, the preferred one first
_SPREADS = ("stddev", "cv")
_OLD_AGGREGATE = re.compile(r"(.+)_(mean|median|stddev|cv)")  # names of aggregates in files without `run_type`
_OWN_KEYS = frozenset(  # keys of google-benchmark itself; every other number is a counter
    (
        *("name", "run_name", "run_type", "family_index", "per_family_instance_index", "label", "threads"),
        *("repetitions", "repetition_index", "iterations", "aggregate_name", "aggregate_unit"),
        *("real_time", "cpu_time", "time_unit", "cpu_coefficient", "real_coefficient", "big_o", "rms"),
        *("error_occurred", "error_message", "skipped", "skip_message"),
    )
)


def parse_google(sample: Sample) -> Iterator[BenchExecution | str]:
    """Parse google-benchmark's JSON: repetitions are samples of one execution; without them an aggregate is used."""
    file = ForeignFields(sample.content)
    context = file.part("context")
    setup = {
        "cpus": context.text("num_cpus"),
        "mhz": context.text("mhz_per_cpu"),
        "build": context.text("library_build_type"),
    }
    machine = Machine(host=context.text("host_name"), logical_cpus=context.whole("num_cpus"))
    at = parse_moment(context, "date")
    rows = list(file.parts("benchmarks", "benchmark"))
    names = {row.text("name") for row in rows if "run_type" not in row}
    groups: dict[str, tuple[list[ForeignFields], dict[str, ForeignFields]]] = {}  # benchmark → rows
    for row in rows:
        name, aggregate = _parse_name(row, names)
        runs, aggregates = groups.setdefault(name, ([], {}))
        if aggregate is None:
            runs.append(row)
        else:
            aggregates[aggregate] = row
    for name, (runs, aggregates) in groups.items():
        failed = [row for row in runs if row.values.get("error_occurred")]
        good = [row for row in runs if row not in failed and not row.values.get("skipped")]
        failure = (failed[0].text("error_message") or "it failed") if failed else None
        centre = next((kind for kind in _CENTRES if kind in aggregates), None)
        if good or failed:
            result = _build_of_runs(name, good)
        elif centre:
            result = _build_of_aggregates(name, aggregates, centre)
        else:
            yield f"{name}: {_describe_left_out(runs, aggregates)}"
            continue
        yield build_imported("google-benchmark", result, at, setup, failure=failure, machine=machine)


def _parse_name(row: ForeignFields, names: set[str]) -> tuple[str, str | None]:
    """Return the benchmark's name, and which aggregate a row is. In old files only the name shows the aggregate: mean
    and stddev must both exist, since a benchmark's own name may end with such a word."""
    name = row.need_text("name")
    kind = row.text("run_type")
    if kind == "aggregate":
        aggregate = row.text("aggregate_name") or name.rpartition("_")[2]
        return row.text("run_name") or name.removesuffix(f"_{aggregate}"), aggregate
    old = _OLD_AGGREGATE.fullmatch(name) if not kind else None
    if old and {f"{old[1]}_mean", f"{old[1]}_stddev"} <= names:
        return old[1], old[2]
    return row.text("run_name") or name, None


def _build_of_runs(name: str, good: Sequence[ForeignFields]) -> BenchResult:
    times = [_parse_time(row, "real_time") for row in good]
    cpu = [_parse_time(row, "cpu_time") for row in good if "cpu_time" in row]
    counters: dict[str, list[float]] = {}
    for row in good:
        numbers = ((key, parse_number(value)) for key, value in row.values.items() if key not in _OWN_KEYS)
        for key, number in numbers:
            if number is not None:
                counters.setdefault(key, []).append(number)
    label = next((row.text("label") for row in good if row.text("label")), "")  # the text that SetLabel sets
    return build_result(
        name,
        {key: median(values) for key, values in sorted(counters.items())},
        wall_time=median(times) if times else NOT_REPORTED,
        cpu_time=median(cpu) if cpu else None,
        samples={key: values for key, values in {WALL_TIME: times, **counters}.items() if len(values) > 1},
        iters=sum(row.whole("iterations") for row in good) or None,
        extras={"label": label} if label else {},
    )


def _build_of_aggregates(name: str, rows: Mapping[str, ForeignFields], centre: str) -> BenchResult:
    """Build a result of aggregates. The spread of the repetitions is stored as a string, so that it has no history."""
    row, found = rows[centre], _build_of_runs(name, [rows[centre]])
    extras = {"aggregate": centre, "repetitions": row.text("repetitions") or row.text("iterations")}
    if "stddev" in rows:
        extras["stddev_s"] = f"{_parse_time(rows['stddev'], 'real_time'):.6g}"
    return replace(found, iters=None, extras={**{key: value for key, value in extras.items() if value}, **found.extras})


def _parse_time(row: ForeignFields, key: str) -> float:
    return row.need_number(key) * row.choose("time_unit", _UNITS, "ns")


def _describe_left_out(runs: Sequence[ForeignFields], aggregates: Mapping[str, ForeignFields]) -> str:
    if runs:
        reason = next((row.text("skip_message") for row in runs if "skip_message" in row), "")
        return f"it was skipped{': ' * bool(reason)}{reason}"
    if not aggregates.keys() - set(_SPREADS):
        raise FieldError(f"{next(iter(aggregates.values())).where}: it has neither a median nor a mean")
    return f"{', '.join(aggregates)} give its complexity or spread, not its time: there is no result"


IMPORTERS = tuple(
    Importer(name, title, "results", f"{__name__}:is_{name.replace('-', '_')}", f"assay.bench.importers.{parser}")
    for name, title, parser in (
        ("perfzero", "PerfZero's perfzero_summary.json and perfzero.log", "perfzero:parse_perfzero"),
        ("asv", "asv's results/MACHINE/*.json", "asv:parse_asv"),
        ("pytest-benchmark", "pytest-benchmark's JSON", "formats:parse_pytest"),
        ("google-benchmark", "google-benchmark's JSON", "formats:parse_google"),
        ("mlperf", ":::MLLOG lines", "formats:parse_mlperf"),
    )
)
