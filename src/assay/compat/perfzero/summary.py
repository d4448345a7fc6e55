"""PerfZero's summary, field for field, and PerfZero's output at the end of a call.

Further fields have facts that PerfZero does not record: why a benchmark failed (`findings`), reported values besides
the wall time, CUDA and cuDNN, GPU memory, whether other processes disturbed the benchmark (`contaminated`).
`schemas/perfzero_summary.schema.json` describes every field.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.bench.api import BenchExecution
from assay.compat.perfzero.values import HARNESS, Package, PerfzeroJob, PerfzeroReport
from assay.errors import NotFoundError, UsageError
from assay.show.chart import Line, LineChart
from assay.show.formatting import clean, escape_json, render_count, to_json
from assay.system.files import list_names, parse_json
from assay.values.plain import NO_DATE, render_date
from assay.values.series import Reading

SCHEMA = os.path.join(os.path.dirname(__file__), "schemas", "perfzero_summary.schema.json")

Facts = dict[str, Any]

_MOST_REASONS = 3  # the most reasons in one line


def build_summary(execution: BenchExecution, job: PerfzeroJob) -> Facts:
    """Build the summary from types of JSON; numbers that JSON does not have are texts such as "NaN"."""
    framework = execution.framework  # the loaded framework; an unknown one has an empty name
    named = {key: getattr(framework, key, "") for key in ("name", "version", "build_version")}
    libraries = {key: getattr(framework, key, "") or None for key in ("cuda", "cudnn")}
    peaks = {key: getattr(execution.peaks, key) for key in ("max_rss", "max_vms", "max_cpu_percent")}
    summary = {
        "execution_id": execution.execution_id,
        "execution_timestamp": execution.started_at or execution.ended_at or 0.0,
        "benchmark_result": _build_result(execution),
        "benchmark_info": _build_info(execution, job),
        "setup_info": {},
        "ml_framework_info": {**named, **_known({"build_label": job.build_label, **libraries})},
        "system_info": _build_system(execution, job),
        "process_info": peaks | _known({"max_gpu_memory": execution.peaks.gpu_memory_bytes}),
    }
    found: Facts = to_json(summary)
    return found


def render_json(value: Any) -> str:
    return escape_json(json.dumps(to_json(value), indent=2, ensure_ascii=False, allow_nan=False, default=str))


def render_summary(execution: BenchExecution, summary: Facts) -> str:
    return f"Benchmark execution for {execution.method} completed with summary:\n{render_json(summary)}\n"


# ---------------------------------------------------------------- the parts


def _build_result(execution: BenchExecution) -> Facts:
    result = execution.result
    further = {"iters": result.iters, "cpu_time": result.cpu_time, "throughput": result.throughput}
    reasons = [finding.message for finding in result.findings]
    metrics: dict[str, Facts] = {}  # reported metrics with bounds, and extras that are numbers
    for metric in result.metrics:
        bounds = _known({"min_value": metric.min_value, "max_value": metric.max_value})
        metrics[metric.name] = {"name": metric.name, "value": metric.value, **bounds}
    for name, value in result.extras.items():
        if isinstance(value, (int, float)):
            metrics.setdefault(name, {"name": name, "value": value})
    return {
        "name": result.name,
        "wall_time": result.wall_time,
        "succeeded": execution.succeeded,
        "extras": [{"name": name, "value": value} for name, value in result.extras.items()],
        "metrics": list(metrics.values()),
        "trial_id": execution.trial,
        **_known(further),
        **({"findings": reasons} if reasons else {}),
    }


def _build_info(execution: BenchExecution, job: PerfzeroJob) -> Facts:
    optional = {
        "execution_label": job.bench.label,
        "output_url": f"{job.output_url}/{execution.execution_id}/" if job.output_url else None,
        "env_vars": dict(job.env_vars) or None,
        "flags": dict(job.flags) or None,
        "contaminated": list(execution.contaminated) or None,
    }
    return {
        "harness_name": HARNESS,
        "harness_info": dict(job.harness),
        "has_exception": execution.result.has_exception,
        **_known(optional),
        "site_package_info": build_package_info(job),
    }


def build_package_info(job: PerfzeroJob) -> Facts:
    found: Facts = {name: build_package(package) for name, package in job.packages.items()}
    if job.tpu and job.tpu.get("version"):
        found["tpu_version"] = str(job.tpu["version"])
    return found


def build_package(package: Package) -> Facts:
    own = {"dirty": package.dirty or None, "local_commits": package.local_commits or None}
    return {"url": package.url, "branch": package.branch, "hash": package.commit, **_known(own)}


def _build_system(execution: BenchExecution, job: PerfzeroJob) -> Facts:
    machine = execution.machine
    optional = {
        "platform_name": job.platform_name,
        "system_name": job.system_name,
        "accelerator_driver_version": machine.accelerator_driver or None,
        "accelerator_model": machine.accelerator_model or None,
    }
    return {
        **_known(optional),
        "accelerator_count": machine.accelerator_count,
        "cpu_model": machine.cpu_model,
        "physical_cpu_count": machine.physical_cpus,
        "logical_cpu_count": machine.logical_cpus,
        "cpu_socket_count": machine.sockets,
        "hostname": machine.host,
    }


def _known(fields: Mapping[str, Any]) -> Facts:
    return {key: value for key, value in fields.items() if value is not None}


# ---------------------------------------------------------------- the log and the end


def render_log_line(text: str, at: float, level: str = "INFO") -> str:
    """Render a line in the format of Python's logging, which PerfZero's users search for."""
    moment = render_date(at, "%Y-%m-%d %H:%M:%S,%f")
    shown = moment if moment == NO_DATE else moment[:-3]  # with milliseconds
    return f"{shown} {level}: {text}\n"


def render_log_head(execution: BenchExecution) -> str:
    text = f"Starting benchmark execution: {execution.method} (trial {execution.trial})"
    return render_log_line(text, execution.started_at or 0.0)


def render_log_end(execution: BenchExecution, summary: Facts) -> str:
    at = execution.ended_at or execution.started_at or 0.0
    reasons = [render_log_line(found.message, at, "ERROR") for found in execution.result.findings]
    return "".join([*reasons, render_log_line(render_summary(execution, summary).rstrip("\n"), at)])


def render_closing(report: PerfzeroReport) -> str:
    """Render the end of the log: three blocks of JSON with titles, about times, successes and the output."""
    operations: Facts = dict(report.setup_s)
    for (trial, method), parts in report.execution_s.items():
        operations.setdefault(f"trial_{trial}", {})[method] = dict(parts)
    blocks = {
        "Benchmark execution time in seconds by operation:": operations,
        "Benchmark success results:": _by_trial(report.executions, lambda each: each.succeeded),
        "Benchmark local output directories:": _by_trial(report.executions, lambda each: each.output_dir),
    }
    return "".join(f"{title}\n{render_json(content)}\n" for title, content in blocks.items())


def _by_trial(executions: Sequence[BenchExecution], ask: Any) -> Facts:
    found: Facts = {}
    for execution in executions:
        found.setdefault(f"trial_{execution.trial}", {})[execution.method] = ask(execution)
    return found


# ---------------------------------------------------------------- while it goes


def render_end(execution: BenchExecution) -> str:
    """Render a line about the end of an execution, such as `failed m.C.f trial 1: loss is nan`."""
    label = f" {execution.label}" if execution.label else ""
    reasons = [found.message for found in execution.result.findings]
    if execution.refused:
        reasons += [f"refused: {reason}" for reason in execution.contaminated]
    more = f" (and {len(reasons) - _MOST_REASONS} more)" if len(reasons) > _MOST_REASONS else ""
    why = f": {'; '.join(reasons[:_MOST_REASONS])}{more}" if reasons else ""
    word = "done" if execution.succeeded else "stopped" if execution.state == "stopped" else "failed"
    return clean(f"{word} {execution.method} trial {execution.trial}{label}{why}")


def render_profile_hint(execution: BenchExecution) -> str:
    """Render where the profiles are, which differs from where the profilers wrote them."""
    traces = [path for path in execution.profiles if path.endswith((".trace.json.gz", ".json"))]
    lines = [f"profile of {execution.method} for ui.perfetto.dev: {path}" for path in traces]
    if any(path.endswith(".xplane.pb") for path in execution.profiles):
        command = shlex.join(["tensorboard", f"--logdir={execution.output_dir}"])
        # TensorBoard shows profiles only with xprof
        is_there = all(importlib.util.find_spec(name) for name in ("tensorboard", "xprof"))
        after = "" if is_there else ", after: pip install 'assay[perfzero]'"
        lines.append(f"{command} shows the profile of {execution.method}{after}")
    return "\n".join(lines)


# ---------------------------------------------------------------- process_info.log

TIME = "time"
_MIB = 1 << 20
_UNITS = {
    "rss": ("resident memory of all processes", "MiB", _MIB),
    "vms": ("virtual memory of all processes", "MiB", _MIB),
    "cpu_percent": ("CPU", "percent of one core", 1),
    "processes": ("processes", "", 1),
    "gpu_memory": ("GPU memory", "MiB", _MIB),
    "gpu_percent": ("GPU", "percent", 1),
    "gpu_clock_mhz": ("GPU clock", "MHz", 1),
    "gpu_temperature_c": ("GPU temperature", "°C", 1),
    "gpu_power_w": ("GPU power", "W", 1),
}


def render_process_info(readings: Sequence[Reading], execution: BenchExecution) -> str:
    """Render a line for each reading in PerfZero's format, with `time` in seconds since the start. A benchmark that
    ended before the first reading gets one line from the kernel's counters."""
    began = execution.started_at
    origin = began if began is not None else readings[0].time if readings else 0.0
    lines, cpu_s, at = [], 0.0, origin
    for reading in readings:  # CPU use in percent of one core since the previous reading or the start
        took_s = reading.time - at
        percent = round(100 * (reading.cpu_s - cpu_s) / took_s, 1) if took_s > 0 else 0.0
        lines.append(_build_line(reading, percent, origin))
        cpu_s, at = reading.cpu_s, reading.time
    if not lines:
        peaks, took_s = execution.peaks, (execution.ended_at or 0.0) - began if began else 0.0
        line = {"rss": peaks.max_rss, "vms": peaks.max_vms, "cpu_percent": peaks.max_cpu_percent}
        gpu = {"gpu_memory": peaks.gpu_memory_bytes} if peaks.gpu_memory_bytes else {}
        lines = [{TIME: max(0.0, round(took_s, 3)), **line, **gpu}]
    return "".join(json.dumps(line) + "\n" for line in lines)


def _build_line(reading: Reading, cpu_percent: float, origin: float) -> dict[str, float]:
    line: dict[str, float] = {
        TIME: round(reading.time - origin, 3),
        "rss": reading.rss_bytes,
        "vms": reading.vms_bytes,
        "cpu_percent": cpu_percent,
        "processes": reading.processes,
    }
    if (gpu := reading.gpu) is not None:
        line |= {
            "gpu_memory": gpu.memory_bytes,
            "gpu_percent": gpu.utilisation,
            "gpu_clock_mhz": gpu.sm_clock_mhz,
            "gpu_temperature_c": gpu.temperature_c,
            "gpu_power_w": gpu.power_w,
        }
    return line


# ---------------------------------------------------------------- reading


@dataclass(slots=True)
class ProcessInfo:
    """The times and values of each metric, in the order of their first appearance."""

    series: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    lines: int = 0
    unreadable: int = 0

    @property
    def began(self) -> float:
        return min((time for times, _ in self.series.values() for time in times), default=0.0)


def load_process_info(path: str) -> ProcessInfo:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = parse_process_info(file)
    except FileNotFoundError:
        folder = os.path.dirname(path)
        known = [os.path.join(folder, name) for name in list_names(folder or ".")]
        raise NotFoundError("file", path, known) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    if not found.lines:
        why = "no line of it is a reading" if found.unreadable else "it is empty"
        raise UsageError(f"there is nothing to plot in {path}: {why}", "name a process_info.log")
    return found


def parse_process_info(lines: Iterable[str]) -> ProcessInfo:
    """Parse process_info.log. Incomplete lines, whose writer was killed, are counted and left out."""
    found = ProcessInfo()
    for line in lines:
        if not line.strip():
            continue
        fields: Any = None
        with suppress(ValueError):
            fields = parse_json(line)
        given = fields.items() if isinstance(fields, Mapping) else ()
        numbers = {str(name): float(value) for name, value in given if _is_number(value)}
        time = numbers.pop(TIME, None)
        if time is None or not numbers:
            found.unreadable += 1
            continue
        found.lines += 1
        for name, value in numbers.items():
            times, values = found.series.setdefault(name, ([], []))
            times.append(time)
            values.append(value)
    return found


def _is_number(value: object) -> bool:
    """Return whether a value of JSON is a finite number that a float can hold."""
    largest = sys.float_info.max
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -largest <= value <= largest


# ---------------------------------------------------------------- plotting


def build_charts(info: ProcessInfo) -> tuple[LineChart, ...]:
    charts = []
    for name, (times, values) in info.series.items():
        title, unit, scale = _UNITS.get(name, ("", "", 1))
        line = Line(name, [time - info.began for time in times], [value / scale for value in values])
        charts.append(LineChart((line,), title or name, "seconds", f"{name} [{unit}]" if unit else name))
    return tuple(charts)


def plot_process_info(source: str, target: str) -> str:
    """Write a PDF with a page for each metric over time; return a line that describes the result."""
    from assay.plots.api import write_pages

    if not target.lower().endswith(".pdf"):
        raise UsageError(f"{target!r} is not a PDF", "end the name in .pdf")
    info = load_process_info(source)
    write_pages(build_charts(info), Path(target))
    skipped = f" ({render_count(info.unreadable, 'line')} could not be read)" if info.unreadable else ""
    return f"{target}: {render_count(len(info.series), 'page')} from {render_count(info.lines, 'reading')}{skipped}"
