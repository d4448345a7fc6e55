"""Results of other benchmark tools: PerfZero, asv, pytest-benchmark, google-benchmark, MLPerf logs.

Every figure becomes an execution like our own: method, metrics, raw samples, commit, time and set-up.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, product
from typing import Any

from assay.errors import UsageError
from assay.values.benchmark import NOT_REPORTED, BenchExecution, BenchMetric, BenchResult, Framework, Machine, Peaks
from assay.values.verdict import Finding, VerdictKind

_MLLOG = re.compile(r":::ML(?:LOG|Log|log|Pv\S*)\s+(\{.*\})")
_OBJECT = re.compile(r"(?:^|summary:)\s*(\{)", re.MULTILINE)
_PERFZERO = {"benchmark_result", "execution_timestamp"}
_TIME_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def load_foreign(path: str) -> list[BenchExecution]:
    """Recognised by content. Raises UsageError with what is wrong; never a part of a file."""
    try:
        with open(path, "rb") as file:
            text = _decode(file.read())
    except UnicodeDecodeError:
        raise UsageError(f"{path} cannot be imported: it is not text", _HINT) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    try:
        found = list(parse_foreign(text, os.path.basename(path)))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{path} cannot be imported: it is damaged, or of an unknown version ({what})", _HINT
        ) from None
    if not found:
        raise UsageError(f"{path} cannot be imported: there is no result in it", _HINT)
    return found


def _decode(data: bytes) -> str:
    """A log may hold anything that a method printed; our own kinds of files may not."""
    return data.decode("utf-8", "replace" if b'"benchmark_result"' in data else "strict")


_HINT = (
    "known: PerfZero's perfzero_summary.json and perfzero.log, asv's results/MACHINE/*.json, pytest-benchmark's and "
    "google-benchmark's JSON, :::MLLOG lines"
)


def parse_foreign(text: str, file: str) -> Iterator[BenchExecution]:
    if ":::ML" in text and _MLLOG.search(text):
        return iter([_parse_mllog(text, file)])
    try:
        content = json.loads(text)
    except ValueError as error:
        if summaries := _find_summaries(text):
            return chain.from_iterable(map(_parse_perfzero, summaries))
        raise UsageError(
            f"{file} cannot be imported: it is no JSON and has no :::MLLOG line ({error})", _HINT
        ) from None
    if not isinstance(content, dict):
        raise UsageError(f"{file} cannot be imported: its JSON is no object", _HINT)
    for marks, parse in _KINDS:
        if marks <= content.keys():
            return parse(content)
    raise UsageError(f"{file} cannot be imported: no known tool writes such a file", _HINT)


def _find_summaries(text: str) -> list[Mapping[str, Any]]:
    """PerfZero's summaries in a perfzero.log or in what it printed, between lines of all kinds; each once."""
    decoder, found, place = json.JSONDecoder(), {}, 0
    while match := _OBJECT.search(text, place):
        place = match.end()
        try:
            content, place = decoder.raw_decode(text, match.start(1))
        except ValueError:
            continue
        if content.keys() >= _PERFZERO:
            found[json.dumps(content)] = content
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _Found:
    """What a tool's file says of one figure."""

    source: str
    method: str
    at: float | None
    numbers: Mapping[str, float] = field(default_factory=dict)
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    wall_time: float = NOT_REPORTED
    iters: int | None = None
    bounds: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    extras: Mapping[str, float | str] = field(default_factory=dict)
    failure: str | None = None
    commit: str | None = None
    label: str | None = None
    setup: Mapping[str, str] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)
    framework: Framework | None = None
    peaks: Peaks = field(default_factory=Peaks)
    trial: int = 1
    execution_id: str | None = None


def _build(found: _Found) -> BenchExecution:
    bad = [name for name, value in found.numbers.items() if not math.isfinite(value)]
    findings = [Finding(VerdictKind.FAIL, found.method, f"{name} is {found.numbers[name]}") for name in bad]
    if found.failure:
        findings.append(Finding(VerdictKind.FAIL, found.method, found.failure))
    metrics = tuple(
        BenchMetric(name, float(value), *found.bounds.get(name, ())) for name, value in found.numbers.items()
    )
    result = BenchResult(
        name=found.method,
        succeeded=not findings,
        has_exception=bool(found.failure),
        iters=found.iters,
        wall_time=found.wall_time,
        metrics=metrics,
        extras=found.extras,
        samples={name: tuple(map(float, values)) for name, values in found.samples.items()},
        findings=tuple(findings),
    )
    setup = {key: value for key, value in found.setup.items() if value}
    return BenchExecution(
        execution_id=found.execution_id or _build_id(found),
        method=found.method,
        trial=found.trial,
        result=result,
        run_dir="",
        output_dir="",
        started_at=found.at,
        ended_at=found.at,
        label=found.label,
        commit=found.commit,
        setup=setup,
        fingerprint=hashlib.blake2b(json.dumps(sorted(setup.items())).encode(), digest_size=6).hexdigest()
        if setup
        else "",
        machine=found.machine,
        framework=found.framework,
        peaks=found.peaks,
        source=found.source,
    )


def _build_id(found: _Found) -> str:
    """The same figure gets the same id: importing a file twice adds nothing."""
    text = json.dumps(
        [found.source, found.method, found.at, found.commit, found.trial, dict(found.numbers), found.wall_time],
        default=str,
    )
    stamp = datetime.fromtimestamp(found.at or 0, UTC).strftime("%Y-%m-%d-%H-%M-%S")
    return f"{stamp}-{hashlib.blake2b(text.encode(), digest_size=5).hexdigest()}"


def _time_of(text: str | None) -> float | None:
    if not text:
        return None
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


# ---------------------------------------------------------------- PerfZero


def _parse_perfzero(content: Mapping[str, Any]) -> Iterator[BenchExecution]:
    result, info = content["benchmark_result"], content.get("benchmark_info") or {}
    system, process, framework = (
        content.get(key) or {} for key in ("system_info", "process_info", "ml_framework_info")
    )
    metrics = [metric for metric in result.get("metrics") or () if isinstance(metric.get("value"), (int, float))]
    extras = {extra["name"]: extra["value"] for extra in result.get("extras") or ()}
    hashes = [
        package.get("hash") for package in (info.get("site_package_info") or {}).values() if isinstance(package, dict)
    ]
    yield _build(
        _Found(
            source="perfzero",
            method=result["name"],
            at=float(content["execution_timestamp"]),
            numbers={metric["name"]: metric["value"] for metric in metrics},
            bounds={metric["name"]: (metric.get("min_value"), metric.get("max_value")) for metric in metrics},
            wall_time=float(result.get("wall_time", NOT_REPORTED)),
            iters=int(result["iters"]) if result.get("iters") else None,
            extras=extras,
            failure=None if result.get("succeeded", True) else "it had not succeeded when PerfZero ran it",
            commit=next((each for each in hashes if each), None),
            label=info.get("execution_label"),
            setup={
                "cpu_model": system.get("cpu_model") or "",
                "cpus": str(system.get("logical_cpu_count") or ""),
                "accelerator_model": system.get("accelerator_model") or "",
                "accelerator_count": str(system.get("accelerator_count") or ""),
                "accelerator_driver": system.get("accelerator_driver_version") or "",
                "framework": f"{framework.get('name') or ''} {framework.get('version') or ''}".strip(),
            },
            machine=Machine(
                host=system.get("hostname") or "",
                cpu_model=system.get("cpu_model") or "",
                logical_cpus=int(system.get("logical_cpu_count") or 0),
                physical_cpus=int(system.get("physical_cpu_count") or 0),
                sockets=int(system.get("cpu_socket_count") or 0),
                accelerator_model=system.get("accelerator_model") or "",
                accelerator_count=int(system.get("accelerator_count") or 0),
                accelerator_driver=system.get("accelerator_driver_version") or "",
            ),
            framework=Framework(
                framework.get("name") or "", framework.get("version") or "", framework.get("build_version") or ""
            ),
            peaks=Peaks(
                int(process.get("max_rss") or 0),
                int(process.get("max_vms") or 0),
                float(process.get("max_cpu_percent") or 0),
            ),
            trial=int(result.get("trial_id") or 1),
            execution_id=content.get("execution_id"),
        )
    )


# ---------------------------------------------------------------- asv


def _parse_asv(content: Mapping[str, Any]) -> Iterator[BenchExecution]:
    """results/<machine>/<commit>-<env>.json; version 2 keeps columns, version 1 a value or an object per benchmark."""
    columns = content.get("result_columns") or []
    params = content.get("params") or {}
    setup = {
        "cpu_model": str(params.get("cpu") or ""),
        "cpus": str(params.get("num_cpu") or ""),
        "python": str(content.get("python") or params.get("python") or ""),
        "environment": str(content.get("env_name") or ""),
    }
    when = (content.get("date") or 0) / 1000 or None
    for name, raw in content["results"].items():
        entry = dict(zip(columns, raw, strict=False)) if isinstance(raw, list) else raw
        fields = entry if isinstance(entry, dict) else {"result": [entry]}
        values = fields.get("result")
        if values is None:
            continue
        for place, (value, suffix) in enumerate(
            zip(_as_list(values), _asv_names(fields.get("params") or []), strict=False)
        ):
            if not isinstance(value, (int, float)):
                continue
            samples = fields.get("samples") or []
            chosen = samples[place] if place < len(samples) and samples[place] else ()
            yield _build(
                _Found(
                    source="asv",
                    method=name + suffix,
                    at=when,
                    wall_time=float(value) if _is_asv_time(name) else NOT_REPORTED,
                    numbers={} if _is_asv_time(name) else {_asv_metric(name): float(value)},
                    samples={"wall_time" if _is_asv_time(name) else _asv_metric(name): chosen} if chosen else {},
                    commit=content.get("commit_hash"),
                    setup=setup,
                    machine=Machine(host=str(params.get("machine") or ""), cpu_model=str(params.get("cpu") or "")),
                )
            )


def _as_list(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]


def _asv_names(params: Sequence[Sequence[Any]]) -> list[str]:
    return [f"({', '.join(map(str, each))})" for each in product(*params)] if params else [""]


def _is_asv_time(name: str) -> bool:
    return re.match(r"time", name.rpartition(".")[2], re.IGNORECASE) is not None


def _asv_metric(name: str) -> str:
    kind = re.match(r"(peakmem|mem|track)", name.rpartition(".")[2])
    return {"peakmem": "peak_memory", "mem": "memory"}.get(kind[1] if kind else "", "value")


# ---------------------------------------------------------------- pytest-benchmark


def _parse_pytest(content: Mapping[str, Any]) -> Iterator[BenchExecution]:
    machine, commit = content.get("machine_info") or {}, content.get("commit_info") or {}
    cpu = machine.get("cpu")
    model = cpu.get("brand_raw") or cpu.get("brand") or "" if isinstance(cpu, dict) else str(cpu or "")
    setup = {
        "cpu_model": model,
        "cpus": str(cpu.get("count") or "") if isinstance(cpu, dict) else "",
        "python": ".".join(str(machine.get("python_version") or "").split(".")[:2]),
    }
    for bench in content["benchmarks"]:
        stats = bench["stats"]
        extras = {
            key: value if isinstance(value, (int, float)) else str(value)
            for key, value in (bench.get("extra_info") or {}).items()
        }
        yield _build(
            _Found(
                source="pytest-benchmark",
                method=bench.get("fullname") or bench["name"],
                at=_time_of(content.get("datetime")),
                wall_time=float(stats["median"]),
                iters=int(stats.get("rounds") or 0) * int(stats.get("iterations") or 1) or None,
                samples={"wall_time": stats["data"]} if stats.get("data") else {},
                extras=extras,
                commit=commit.get("id"),
                setup=setup,
                machine=Machine(host=str(machine.get("node") or ""), cpu_model=model),
            )
        )


# ---------------------------------------------------------------- google-benchmark


def _parse_google(content: Mapping[str, Any]) -> Iterator[BenchExecution]:
    """Repetitions of one benchmark are the samples of one execution; aggregates are left out where there are any."""
    context = content["context"]
    setup = {
        "cpus": str(context.get("num_cpus") or ""),
        "mhz": str(context.get("mhz_per_cpu") or ""),
        "build": str(context.get("library_build_type") or ""),
    }
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for bench in content["benchmarks"]:
        if bench.get("run_type", "iteration") == "iteration":
            groups.setdefault(bench.get("run_name") or bench["name"], []).append(bench)
    for name, found in groups.items():
        yield _build(_google_result(name, found, context, setup))


def _google_result(
    name: str, found: Sequence[Mapping[str, Any]], context: Mapping[str, Any], setup: Mapping[str, str]
) -> _Found:
    failed = next((bench.get("error_message") or "it failed" for bench in found if bench.get("error_occurred")), None)
    good = [bench for bench in found if not bench.get("error_occurred")]
    times = [bench["real_time"] * _TIME_UNITS[bench.get("time_unit", "ns")] for bench in good]
    cpu = [bench["cpu_time"] * _TIME_UNITS[bench.get("time_unit", "ns")] for bench in good]
    rates = {key for bench in good for key in ("items_per_second", "bytes_per_second") if key in bench}
    numbers = {key: _median([float(bench[key]) for bench in good if key in bench]) for key in sorted(rates)}
    if cpu:
        numbers["cpu_time"] = _median(cpu)
    return _Found(
        source="google-benchmark",
        method=name,
        at=_time_of(context.get("date")),
        wall_time=_median(times) if times else NOT_REPORTED,
        numbers=numbers,
        samples={"wall_time": times} if len(times) > 1 else {},
        iters=sum(int(bench.get("iterations") or 0) for bench in good) or None,
        failure=failed,
        setup=setup,
        machine=Machine(host=str(context.get("host_name") or ""), logical_cpus=int(context.get("num_cpus") or 0)),
    )


def _median(values: Sequence[float]) -> float:
    import statistics

    return float(statistics.median(values))


# ---------------------------------------------------------------- MLPerf


def _parse_mllog(text: str, file: str) -> BenchExecution:
    """`:::MLLOG {"key": …, "value": …, "time_ms": …}`: the time from run_start to run_stop, and every number logged."""
    entries = [json.loads(match[1]) for match in _MLLOG.finditer(text)]
    last = {entry["key"]: entry for entry in entries}
    start, stop = (last.get(key, {}).get("time_ms") for key in ("run_start", "run_stop"))
    status = ((last.get("run_stop") or {}).get("metadata") or {}).get("status")
    series: dict[str, list[float]] = {}
    for entry in entries:
        value = entry.get("value")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            series.setdefault(entry["key"], []).append(float(value))
    names = {
        key: str((last.get(key) or {}).get("value") or "")
        for key in ("submission_benchmark", "submission_org", "submission_platform")
    }
    failure = None if status in (None, "success") else f"the run ended with status {status}"
    return _build(
        _Found(
            source="mlperf",
            method=f"mlperf.{names['submission_benchmark'] or os.path.splitext(file)[0]}",
            at=start / 1000 if start is not None else None,
            wall_time=(stop - start) / 1000 if start is not None and stop is not None else NOT_REPORTED,
            numbers={key: values[-1] for key, values in series.items()},
            samples={key: values for key, values in series.items() if len(values) > 1},
            failure=failure or (None if stop is not None else "the run never stopped: there is no run_stop"),
            label=names["submission_org"] or None,
            setup={"accelerator_model": names["submission_platform"]},
        )
    )


_Parse = Callable[[Mapping[str, Any]], Iterator[BenchExecution]]
_KINDS: tuple[tuple[set[str], _Parse], ...] = (
    (_PERFZERO, _parse_perfzero),
    ({"context", "benchmarks"}, _parse_google),
    ({"machine_info", "benchmarks"}, _parse_pytest),
    ({"results", "commit_hash"}, _parse_asv),
)
