"""PerfZero's summary, field for field, and what it prints at the end.

What we know beyond it stands in further fields: why a benchmark failed (`findings`), what was reported beside the wall
time, CUDA and cuDNN, GPU memory, whether others disturbed it (`contaminated`). `schemas/perfzero_summary.schema.json`
describes every field.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from assay.bench.api import BenchExecution, BenchResult
from assay.compat.perfzero.values import HARNESS, JobContext, Package, PerfzeroReport
from assay.show.formatting import clean, escape_json
from assay.show.json_text import to_json
from assay.values.plain import NO_DATE, render_date

SCHEMA = os.path.join(os.path.dirname(__file__), "schemas", "perfzero_summary.schema.json")

Facts = dict[str, Any]

_MOST_REASONS = 3  # in one line


def build_summary(execution: BenchExecution, around: JobContext) -> Facts:
    """JSON-like: numbers that JSON does not have are texts, NaN being "NaN"."""
    summary = {
        "execution_id": execution.execution_id,
        "execution_timestamp": execution.started_at or execution.ended_at or 0.0,
        "benchmark_result": _build_result(execution),
        "benchmark_info": _build_info(execution, around),
        "setup_info": {},
        "ml_framework_info": _build_framework(execution, around),
        "system_info": _build_system(execution, around),
        "process_info": _build_process(execution),
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
    return {
        "name": result.name,
        "wall_time": result.wall_time,
        "succeeded": execution.succeeded,
        "extras": [{"name": name, "value": value} for name, value in result.extras.items()],
        "metrics": _build_metrics(result),
        "trial_id": execution.trial,
        **_known(further),
        **({"findings": reasons} if reasons else {}),
    }


def _build_metrics(result: BenchResult) -> list[Facts]:
    """Reported ones with their bounds, and extras that are numbers, as the document has it."""
    bounds = ("min_value", "max_value")
    found = {
        metric.name: {
            "name": metric.name,
            "value": metric.value,
            **_known({key: getattr(metric, key) for key in bounds}),
        }
        for metric in result.metrics
    }
    for name, value in result.extras.items():
        if isinstance(value, (int, float)):
            found.setdefault(name, {"name": name, "value": value})
    return list(found.values())


def _build_info(execution: BenchExecution, around: JobContext) -> Facts:
    job = around.job
    optional = {
        "execution_label": job.execution_label,
        "output_url": f"{job.output_url}/{execution.execution_id}/" if job.output_url else None,
        "env_vars": dict(job.env_vars) or None,
        "flags": dict(job.flags) or None,
        "contaminated": list(execution.contaminated) or None,
    }
    return {
        "harness_name": HARNESS,
        "harness_info": dict(around.harness),
        "has_exception": execution.result.has_exception,
        **_known(optional),
        "site_package_info": build_package_info(around),
    }


def build_package_info(around: JobContext) -> Facts:
    found: Facts = {name: build_package(package) for name, package in around.packages.items()}
    if around.job.tpu and around.job.tpu.get("version"):
        found["tpu_version"] = str(around.job.tpu["version"])
    return found


def build_package(package: Package) -> Facts:
    own = {"dirty": package.dirty or None, "local_commits": package.local_commits or None}
    return {"url": package.url, "branch": package.branch, "hash": package.commit, **_known(own)}


def _build_framework(execution: BenchExecution, around: JobContext) -> Facts:
    """The name is the true one; it is empty where the benchmark loaded no framework that we know."""
    used = execution.framework
    optional = {
        "build_label": around.job.build_label,
        "cuda": used.cuda or None if used else None,
        "cudnn": used.cudnn or None if used else None,
    }
    return {
        "name": used.name if used else "",
        "version": used.version if used else "",
        "build_version": used.build_version if used else "",
        **_known(optional),
    }


def _build_system(execution: BenchExecution, around: JobContext) -> Facts:
    machine = execution.machine
    optional = {
        "platform_name": around.job.platform_name,
        "system_name": around.job.system_name,
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


def _build_process(execution: BenchExecution) -> Facts:
    peaks = execution.peaks
    plain = {"max_rss": peaks.max_rss, "max_vms": peaks.max_vms, "max_cpu_percent": peaks.max_cpu_percent}
    return {**plain, **_known({"max_gpu_memory": peaks.gpu_memory_bytes})}


def _known(fields: Mapping[str, Any]) -> Facts:
    return {key: value for key, value in fields.items() if value is not None}


# ---------------------------------------------------------------- the log and the end


def render_log_line(text: str, at: float, level: str = "INFO") -> str:
    """As Python's own logging writes it, which PerfZero's users look for."""
    return f"{_render_moment(at)} {level}: {text}\n"


def _render_moment(at: float) -> str:
    moment = render_date(at, "%Y-%m-%d %H:%M:%S,%f")
    return moment if moment == NO_DATE else moment[:-3]  # milliseconds


def render_log_head(execution: BenchExecution) -> str:
    text = f"Starting benchmark execution: {execution.method} (trial {execution.trial})"
    return render_log_line(text, execution.started_at or 0.0)


def render_log_end(execution: BenchExecution, summary: Facts) -> str:
    at = execution.ended_at or execution.started_at or 0.0
    reasons = [render_log_line(found.message, at, "ERROR") for found in execution.result.findings]
    return "".join([*reasons, render_log_line(render_summary(execution, summary).rstrip("\n"), at)])


def render_closing(report: PerfzeroReport) -> str:
    """Where the time went, what succeeded, where the output is: three blocks of JSON, each behind its title."""
    operations: Facts = dict(report.times.setup)
    for (trial, method), parts in report.times.executions.items():
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
    """One line when it has ended: `failed m.C.f trial 1: loss is nan`."""
    label = f" {execution.label}" if execution.label else ""
    reasons = [found.message for found in execution.result.findings]
    if execution.refused:
        reasons += [f"refused: {reason}" for reason in execution.contaminated]
    more = f" (and {len(reasons) - _MOST_REASONS} more)" if len(reasons) > _MOST_REASONS else ""
    why = f": {'; '.join(reasons[:_MOST_REASONS])}{more}" if reasons else ""
    word = "done" if execution.succeeded else "stopped" if execution.state == "stopped" else "failed"
    return clean(f"{word} {execution.method} trial {execution.trial}{label}{why}")


def render_profile_hint(execution: BenchExecution) -> str:
    """Where the traces are now: the profilers wrote them elsewhere."""
    traces = [path for path in execution.profiles if path.endswith((".trace.json.gz", ".json"))]
    lines = [f"profile of {execution.method} for ui.perfetto.dev: {path}" for path in traces]
    if any(path.endswith(".xplane.pb") for path in execution.profiles):
        lines.append(f"tensorboard --logdir={execution.output_dir} shows the profile of {execution.method}")
    return "\n".join(lines)
