"""`report_benchmark`, with TensorFlow's arguments in TensorFlow's order.

Each report is a line of JSON, written at once: what a method reported before it crashed is not lost.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from assay.bench.timing import Sync, Timing, measure
from assay.bench.values.layout import ENV_BENCH_REPORT
from assay.script import build_number

_METRIC_KEYS = ("name", "value", "min_value", "max_value", "samples")


class Benchmark:
    """Base for benchmark classes; neither the base nor a call of its constructor is needed to report."""

    output_dir: str | None = None
    data_dir: str | None = None

    def __init__(self, output_dir: str | None = None, data_dir: str | None = None, **_further: Any) -> None:
        self.output_dir = output_dir
        self.data_dir = data_dir

    def report_benchmark(
        self,
        iters: object = None,
        cpu_time: object = None,
        wall_time: object = None,
        throughput: object = None,
        extras: Mapping[str, object] | None = None,
        name: str | None = None,
        metrics: Sequence[Mapping[str, object]] | None = None,
        *,
        samples: Mapping[str, Iterable[object]] | None = None,
    ) -> None:
        """Report what was measured. Called again, it adds to the report, or replaces values of the same name.

        `metrics` is a list of `{"name", "value", "min_value", "max_value"}`, the bounds being optional; a value outside
        its bounds fails the benchmark. `samples` are raw measurements by metric; those of `measure` are added.
        """
        kept: dict[str, Iterable[object]] = self.__dict__.setdefault("_samples", {})
        report_benchmark(
            iters, cpu_time, wall_time, throughput, extras, name, metrics, samples={**kept, **(samples or {})}
        )

    def measure(
        self,
        function: Callable[[], object],
        *,
        repeats: int | None = None,
        warmup: int | None = None,
        seconds: float = 1.0,
        inner: int | None = None,
        sync: Sync = None,
        name: str = "wall_time",
    ) -> Timing:
        """As `assay.bench.measure`; its samples are kept under `name` and go with the next report."""
        timing = measure(function, repeats=repeats, warmup=warmup, seconds=seconds, inner=inner, sync=sync)
        kept: dict[str, Iterable[object]] = self.__dict__.setdefault("_samples", {})
        kept[name] = timing.samples_s
        if timing.device_samples_s:
            kept[f"{name}.device"] = timing.device_samples_s
        return timing


def report_benchmark(
    iters: object = None,
    cpu_time: object = None,
    wall_time: object = None,
    throughput: object = None,
    extras: Mapping[str, object] | None = None,
    name: str | None = None,
    metrics: Sequence[Mapping[str, object]] | None = None,
    *,
    samples: Mapping[str, Iterable[object]] | None = None,
) -> None:
    """As `Benchmark.report_benchmark`, for functions and for programs that `--command` starts."""
    plain = {"iters": iters, "cpu_time": cpu_time, "wall_time": wall_time, "throughput": throughput}
    line: dict[str, object] = {"kind": "report", "time": time.time()}
    line |= {key: _to_number(value, key) for key, value in plain.items() if value is not None}
    if name is not None:
        line["name"] = str(name)
    if extras:
        line["extras"] = {str(key): _to_extra(value) for key, value in _mapping(extras, "extras").items()}
    if metrics:
        line["metrics"] = [_build_metric(metric) for metric in _sequence(metrics, "metrics")]
    if samples:
        line["samples"] = {key: [_to_number(value, key) for value in values] for key, values in samples.items()}
    write_line(line)


def _to_number(value: object, name: str) -> int | float:
    number = build_number(value)
    if number is None:
        raise TypeError(f"report_benchmark: {name} must be a number, not {value!r}")
    return number


def _to_extra(value: object) -> int | float | str:
    number = None if isinstance(value, str) else build_number(value)
    return number if number is not None else str(value)


def _mapping(value: object, name: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError(f"report_benchmark: {name} must be a dictionary, not {type(value).__name__}")
    return value


def _sequence(value: object, name: str) -> Sequence[object]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"report_benchmark: {name} must be a list of dictionaries, not {type(value).__name__}")
    return value


def _build_metric(metric: object) -> dict[str, object]:
    fields = _mapping(metric, "each of metrics")
    unknown = [key for key in fields if key not in _METRIC_KEYS]
    if unknown or "name" not in fields or "value" not in fields:
        raise ValueError(
            f"report_benchmark: a metric has name, value and perhaps min_value, max_value; not {dict(fields)!r}"
        )
    built: dict[str, object] = {"name": str(fields["name"])}
    for key in ("value", "min_value", "max_value"):
        if fields.get(key) is not None:
            built[key] = _to_number(fields[key], f"{fields['name']}.{key}")
    if "value" not in built:
        built["value"] = float("nan")
    samples = fields.get("samples")
    if isinstance(samples, Iterable):
        built["samples"] = [_to_number(value, f"{fields['name']}.samples") for value in samples]
    return built


# ---------------------------------------------------------------- where it goes


def write_line(line: Mapping[str, object]) -> None:
    """To the run that started this process; outside a run, to the terminal, for trying a benchmark by hand."""
    path = os.environ.get(ENV_BENCH_REPORT)
    text = json.dumps(line, default=str) + "\n"
    if path is None:
        if line["kind"] == "report":
            sys.stdout.write(text)
        return
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        data = text.encode()
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
