"""PerfZero's summaries, and those that `assay perfzero` writes: both are judged by the same rule."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from assay.bench.importers.result import (
    DIGEST,
    Bounds,
    ForeignFields,
    build_digest,
    build_imported,
    build_result,
    parse_number,
)
from assay.bench.judge.reported import judge_bounds
from assay.bench.values.execution import (
    NOT_REPORTED,
    SITE_PACKAGES,
    BenchExecution,
    BenchMetric,
    Framework,
    Machine,
    Peaks,
)
from assay.record.importers.sample import Sample

_MARKS = {"benchmark_result", "execution_timestamp"}
_OBJECT = re.compile(r"(?:^|summary:)\s*(\{)", re.MULTILINE)
_UNEXPLAINED = "it had not succeeded when PerfZero ran it"


def find_summaries(text: str) -> list[str]:
    """Find the summaries in a perfzero.log or in captured output, between other lines; each summary once."""
    decoder, position = json.JSONDecoder(), 0
    found: dict[str, None] = {}
    while match := _OBJECT.search(text, position):
        position = match.end()
        try:
            content, position = decoder.raw_decode(text, match.start(1))
        except (ValueError, RecursionError):
            continue
        if content.keys() >= _MARKS:
            found[json.dumps(content)] = None
    return list(found)


def parse_perfzero(sample: Sample) -> Iterator[BenchExecution]:
    file = ForeignFields(sample.content)
    result, info, system = (file.part(key) for key in ("benchmark_result", "benchmark_info", "system_info"))
    framework, process = file.part("ml_framework_info"), file.part("process_info")
    versions = [framework.text(key) for key in ("name", "version", "build_version", "cuda", "cudnn")]
    hashes = [each.get("hash") for each in info.part(SITE_PACKAGES).values.values() if isinstance(each, dict)]
    method = result.need_text("name")
    result = ForeignFields(result.values, f"benchmark {method!r}")
    numbers, bounds = _parse_metrics(result)
    wall_time = result.number("wall_time")
    failure, faults = _find_failure(result, info, numbers, bounds)
    yield build_imported(
        "perfzero",
        build_result(
            method,
            numbers,
            bounds,
            wall_time=NOT_REPORTED if wall_time is None else wall_time,
            cpu_time=result.number("cpu_time"),
            throughput=result.number("throughput"),
            iters=result.whole("iters") or None,
            extras={
                extra.need_text("name"): extra.text("value")
                if (found := parse_number(extra.values.get("value"))) is None
                else found
                for extra in result.parts("extras", "extra")
            },
        ),
        file.finite("execution_timestamp") or 0.0,
        _build_environment(system, framework),
        failure=failure,
        faults=faults,
        execution_id=file.text("execution_id").strip() or None,
        commit=next((str(each) for each in hashes if each), None),  # the commit of the first repository that has one
        label=info.text("execution_label") or None,
        machine=_build_machine(system),
        framework=Framework(*versions) if any(versions) else None,
        peaks=Peaks(
            process.whole("max_rss"),
            process.whole("max_vms"),
            process.finite("max_cpu_percent") or 0.0,
            gpu_memory_bytes=process.whole("max_gpu_memory") or None,
        ),
        contaminated=tuple(map(str, info.items("contaminated"))),
        refused=_is_refused(result, info),
        trial=result.whole("trial_id") or 1,
        extra={**_build_extra(info, system, framework), DIGEST: build_digest(sample.content)},
    )


def _parse_metrics(result: ForeignFields) -> tuple[dict[str, float], Bounds]:
    """Parse the metrics of a result. A metric without a value gets NaN, which is judged as invalid."""
    parts = {metric.need_text("name"): metric for metric in result.parts("metrics", "metric")}
    numbers = {name: metric.number("value") if "value" in metric else float("nan") for name, metric in parts.items()}
    bounds = {name: (metric.number("min_value"), metric.number("max_value")) for name, metric in parts.items()}
    return {name: value for name, value in numbers.items() if value is not None}, bounds


# ---------------------------------------------------------------- outcome


def _find_failure(
    result: ForeignFields, info: ForeignFields, numbers: Mapping[str, float], bounds: Bounds
) -> tuple[str | None, tuple[str, ...]]:
    """Return why a benchmark has no result, or what is wrong with its result, such as a violated bound."""
    if result.values.get("succeeded", True) or _is_refused(result, info):
        return None, ()
    reasons = tuple(str(reason) for reason in result.items("findings"))
    silent = not numbers and result.number("wall_time") in (None, NOT_REPORTED)
    if info.values.get("has_exception") or silent:
        return "; ".join(reasons) or _UNEXPLAINED, ()
    metrics = [BenchMetric(name, value, *bounds[name]) for name, value in numbers.items()]
    broken = tuple(found.message for metric in metrics for found in judge_bounds("", metric))
    return None, reasons or broken or (_UNEXPLAINED,)


def _is_refused(result: ForeignFields, info: ForeignFields) -> bool:
    """Return whether the only problem of a result is that it was refused as contaminated."""
    disturbed = bool(info.items("contaminated")) and not info.values.get("has_exception")
    return disturbed and result.values.get("succeeded") is False and not result.items("findings")


# ---------------------------------------------------------------- environment and machine


def _build_environment(system: ForeignFields, framework: ForeignFields) -> dict[str, str]:
    return {
        "cpu_model": system.text("cpu_model"),
        "cpus": str(system.whole("logical_cpu_count") or ""),  # a count of 0 is not part of an environment
        "accelerator_model": system.text("accelerator_model"),
        "accelerator_count": str(system.whole("accelerator_count") or ""),
        "accelerator_driver": system.text("accelerator_driver_version"),
        "framework": f"{framework.text('name')} {framework.text('version')}".strip(),
        "cuda": framework.text("cuda"),
        "cudnn": framework.text("cudnn"),
    }


def _build_machine(system: ForeignFields) -> Machine:
    return Machine(
        host=system.text("hostname"), cpu_model=system.text("cpu_model"), sockets=system.whole("cpu_socket_count"),
        logical_cpus=system.whole("logical_cpu_count"), physical_cpus=system.whole("physical_cpu_count"),
        accelerator_model=system.text("accelerator_model"), accelerator_count=system.whole("accelerator_count"),
        accelerator_driver=system.text("accelerator_driver_version"),
    )  # fmt: skip


def _build_extra(info: ForeignFields, system: ForeignFields, framework: ForeignFields) -> dict[str, Any]:
    """Build the fields of `extra`, named as by `assay perfzero`: tables group by them."""
    found = {
        "platform_name": system.text("platform_name"),
        "system_name": system.text("system_name"),
        "ml_framework_build_label": framework.text("build_label"),
        SITE_PACKAGES: dict(info.part(SITE_PACKAGES).values),
    }
    return {key: value for key, value in found.items() if value}
