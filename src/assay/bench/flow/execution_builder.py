"""Builds an execution from a run directory: what its process reported, how it ended, and where it ran."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Literal

from assay.bench.child_report import load_child_report
from assay.bench.flow.memory import GpuPeak, TreePeaks
from assay.bench.judge.reported import judge_report
from assay.bench.records import make_relative
from assay.bench.values.execution import (
    BENCH_OUTPUT_DIR,
    BENCH_PROFILE_DIR,
    BENCH_REPORT_FILE,
    NOT_OBSERVED,
    PROFILE,
    BenchExecution,
    BenchMetric,
    BenchResult,
    ChildReport,
    Framework,
    Machine,
    Peaks,
    ProcessEnd,
)
from assay.observe.extract import Extractor
from assay.observe.readings import parse_reading
from assay.record import run_directory
from assay.show.formatting import render_count
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.system.files import parse_json, read_end, try_text
from assay.values import layout
from assay.values.environment import GitState
from assay.values.run import Outcome, RunSpec
from assay.values.series import Reading
from assay.values.study import Pattern
from assay.values.verdict import Finding, VerdictKind

COMMAND = "bench"
ENV_OUTPUT = "ASSAY_BENCH_OUTPUT"
ENV_EXTRA = "ASSAY_BENCH_EXTRA"  # data that the command stores with the execution
_TAIL_BYTES = 2000
_CRASH_BYTES = 60_000  # enough for a hundred frames of each of several threads
_MOST_FRAMES = 8
_FATAL = "Fatal Python error: "
_CRASH_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.+)')
_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SHELLS_BYTES = 12 << 20  # the most that job.sh, a shell in it and a time limit use, if there are no readings
_DEATH = re.compile(r"^(?:\S*job\.sh|bash): line \d+: +\d+ [A-Z]")  # a shell reports that a signal ended its command
_KILLED = 128 + signal.SIGKILL
FOREIGN_LIMIT = 0.1  # fraction of all cores that other processes may use before a result is contaminated
# throttling that disturbs a result; clocks that a power limit or an application keeps lower are settings of the machine
TROUBLE = frozenset(["hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"])


@dataclass(frozen=True, slots=True)
class JobSurroundings:
    """What only the supervisor observes; empty if the supervisor was killed before the end of the run."""

    machine: Machine = field(default_factory=Machine)
    git: GitState | None = None
    commit: str | None = None
    foreign_limit: float = 0.1
    refuses: bool = False
    own_peak_bytes: int = 0  # the supervisor's peak: the kernel counts it into the peak of its children
    tree: TreePeaks = field(default_factory=TreePeaks)  # peaks by readings during the run
    gpu: GpuPeak = field(default_factory=GpuPeak)
    oom_kills: int | None = None  # processes that the kernel killed for their memory during the run
    notes: tuple[str, ...] = ()
    is_observed: bool = True  # whether the machine was observed during the run


def build_execution(
    run_dir: str, spec: RunSpec, outcome: Outcome | None, state: str, around: JobSurroundings
) -> BenchExecution:
    output_dir = dict(spec.env).get(ENV_OUTPUT, "").replace(layout.RUN_DIR_REFERENCE, run_dir)
    output_dir = output_dir or os.path.join(run_dir, BENCH_OUTPUT_DIR)
    reported = load_child_report(os.path.join(run_dir, BENCH_REPORT_FILE), os.path.join(output_dir, "proto_"))
    times = run_directory.load_times(run_dir).get(COMMAND)
    ending = _build_ending(run_dir, outcome, state, times, around.oom_kills)
    method, is_command = str(spec.params.get("method", spec.name)), spec.params.get("kind") == "command"
    result = judge_report(method, reported, ending, is_command=is_command)
    result = _add_extracted(result, run_dir, spec)
    folders = (os.path.join(run_dir, BENCH_PROFILE_DIR), os.path.join(output_dir, "profiler_data"))
    files = [os.path.join(base, name) for folder in folders for base, _, names in os.walk(folder) for name in names]
    profiles = tuple(sorted(make_relative(path, run_dir) for path in files))
    machine = replace(around.machine, python=str((reported.begin or {}).get("python", around.machine.python)))
    contaminated = find_contamination(machine, around.foreign_limit)
    if not around.is_observed and around.foreign_limit < 1:  # an unobserved execution does not count as clean
        contaminated = (*contaminated, NOT_OBSERVED)
    loaded = (reported.end or {}).get("framework") or {}
    known = {key: str(value) for key, value in loaded.items() if key in Framework.__dataclass_fields__}
    framework = Framework(**known) if known else None
    setup = build_environment(machine, framework, dict((reported.end or {}).get("packages") or {}))
    return BenchExecution(
        execution_id=spec.title or spec.name,
        method=method,
        trial=int(spec.params.get("trial", 1)),
        result=result,
        run_dir=run_dir,
        output_dir=output_dir,
        started_at=times[0] if times else (outcome.started_at if outcome else None),
        ended_at=(times[1] if times else None) or (outcome.ended_at if outcome else None),
        label=spec.tag,
        commit=around.commit,
        git=around.git,
        setup=setup,
        fingerprint=build_fingerprint(setup),
        machine=machine,
        framework=framework,
        peaks=_build_peaks(reported, ending, load_readings(run_dir), outcome, around),
        contaminated=contaminated,
        refused=bool(contaminated and around.refuses),
        profiles=profiles,
        state=state,
        log=layout.log_name(spec.log_name, COMMAND, 1, ""),
        extra=_load_extra(spec, reported, profiles),
        notes=around.notes,
    )


def _load_extra(spec: RunSpec, reported: ChildReport, profiles: tuple[str, ...]) -> dict[str, Any]:
    """Load the data that the call stored with the execution, and why a window of a profile is missing."""
    try:
        extra = dict(parse_json(dict(spec.env).get(ENV_EXTRA, "{}")))
    except (TypeError, ValueError):
        return {}
    if parameters := (reported.end or {}).get("parameters"):
        extra["parameters"] = parameters
    if isinstance(asked := extra.get(PROFILE), dict):
        if reported.end is None:
            notes = [] if profiles else ["it ended before it wrote its profile"]
        else:
            notes = [str(note) for note in reported.end.get("profile_notes") or ()]
        extra[PROFILE] = {**asked, **({"notes": notes} if notes else {})}
    return extra


# ---------------------------------------------------------------- how it ended


def _build_ending(
    run_dir: str, outcome: Outcome | None, state: str, times: tuple[float, float | None] | None, oom_kills: int | None
) -> ProcessEnd:
    elapsed = times[1] - times[0] if times and times[1] is not None else None
    code = outcome.exit_code if outcome else None
    log = os.path.join(run_dir, f"{COMMAND}.log")
    was_killed = state == "failed" and code == _KILLED  # at a "timeout" Assay itself killed the process
    reason = describe_end(outcome.reason, was_killed, oom_kills) if outcome else ""
    last_line = _load_last_line(log, was_killed=code is not None and code > 128) if state != "done" else ""
    return ProcessEnd(state, reason, code, elapsed, last_line)


def describe_end(reason: str, was_killed: bool = False, oom_kills: int | None = None) -> str:
    """Describe the end, without the name of the run's only command, which users do not know; explain a SIGKILL."""
    if not was_killed:
        return re.sub(rf"^{COMMAND}\b", "it", reason)
    guess = "perhaps it was out of memory"
    if oom_kills is not None:
        guess = "not by the kernel's OOM killer, which was not active during the run"
        if oom_kills:
            guess = "out of memory: the kernel's OOM killer was active during the run"
    return f"it was killed by signal 9 (SIGKILL): {guess}"


def _load_last_line(path: str, was_killed: bool) -> str:
    """Return the last line of the benchmark's own output, or its crash, without the shell's message about a signal."""
    lines = read_end(path, _CRASH_BYTES if was_killed else _TAIL_BYTES).splitlines()
    crash = _find_crash(lines) if was_killed else ""
    if crash:
        return crash
    if was_killed:
        lines = lines[: next((number for number, line in enumerate(lines) if _DEATH.match(line)), len(lines))]
    return next((line.strip()[-300:] for line in reversed(lines) if line.strip()), "")


def _find_crash(lines: Sequence[str]) -> str:
    """Find what Python's faulthandler printed: the error, and the crashed thread's stack, innermost frame first."""
    starts = [number for number, line in enumerate(lines) if line.startswith(_FATAL)]
    if not starts:
        return ""
    frames: list[str] = []
    for line in lines[starts[-1] + 1 :]:
        match = _CRASH_FRAME.match(line)
        if match and not match["file"].startswith(("<frozen ", os.path.join(_OWN_FOLDER, "bench") + os.sep)):
            frames.append(f"{match['name']} ({os.path.basename(match['file'])}:{match['line']})")
        elif frames and not match:  # the stack of another thread follows
            break
    stack = " called by ".join(frames[:_MOST_FRAMES]) or "no Python code"
    return f"{lines[starts[-1]].removeprefix(_FATAL).strip()} in {stack}"


def _add_extracted(result: BenchResult, run_dir: str, spec: RunSpec) -> BenchResult:
    """Add the metrics that patterns find in the log: the last value counts, and all values are samples."""
    patterns = [pattern for pattern in spec.patterns if isinstance(pattern, Pattern)]
    if not patterns:
        return result
    values: dict[str, list[float]] = {}
    extractor = Extractor(patterns, COMMAND)
    with suppress(OSError), open(os.path.join(run_dir, f"{COMMAND}.log"), "rb") as file:
        columns = extractor.feed(file.read() + b"\n")  # the line break ends the log's last line
        values = {metric: found.tolist() for metric, (_, found, _) in columns.items()}
    metrics = tuple(BenchMetric(name, found[-1]) for name, found in values.items())
    findings = [
        Finding(VerdictKind.ERROR, result.name, f"{pattern.metric} was not found in its output")
        for pattern in patterns
        if pattern.metric not in values
    ]
    if extractor.skipped and not findings:  # the last value may be a skipped one
        text = f"{render_count(extractor.skipped, 'value')} in its output cannot be read, such as {extractor.example}"
        findings.append(Finding(VerdictKind.ERROR, result.name, text))
    findings += [
        Finding(VerdictKind.FAIL, result.name, f"{metric.name} is {metric.value}")
        for metric in metrics
        if not math.isfinite(metric.value)
    ]
    samples = {name: tuple(found) for name, found in values.items() if len(found) > 1}
    return replace(
        result,
        metrics=(*result.metrics, *metrics),
        samples={**result.samples, **samples},
        findings=(*result.findings, *findings),
        succeeded=result.succeeded and not findings,
    )


# ---------------------------------------------------------------- peaks


def load_readings(run_dir: str) -> list[Reading]:
    lines = try_text(os.path.join(run_dir, layout.READINGS_FILE), "replace").split("\n")
    found = (parse_reading(line) for line in lines if line.strip())
    return [reading for reading in found if reading is not None]


def _build_peaks(
    reported: ChildReport,
    ending: ProcessEnd,
    readings: Sequence[Reading],
    outcome: Outcome | None,
    around: JobSurroundings,
) -> Peaks:
    own, tree, gpu = (reported.end or {}).get("peaks") or {}, around.tree, around.gpu
    cpu_s = own.get("cpu_s") or (outcome.cpu_s if outcome else None) or None
    by_kernel = (outcome.peak_rss_bytes if outcome else None) or 0
    if own or by_kernel <= around.own_peak_bytes:  # the kernel's number may be our own peak
        by_kernel = 0
    rss, rss_basis = _find_peak_rss(reported, readings, by_kernel, tree)
    # without readings nothing is subtracted from the address space: our shells use a few megabytes
    sizes = [int(own.get("max_vms", 0)), tree.vms_bytes, *(r.vms_bytes for r in readings if not tree.vms_bytes)]
    # the framework's own counter is exact for its process, but covers only one of the processes that used the GPU
    gpu_own = int(own.get("gpu_memory_bytes", 0))
    is_exact = bool(gpu_own) and (gpu.owners < 2 or gpu.size_bytes < gpu_own)
    shares = [(b.cpu_s - a.cpu_s) / (b.time - a.time) for a, b in pairwise(readings) if b.time > a.time]
    if cpu_s is not None and ending.elapsed_s:
        shares.append(cpu_s / ending.elapsed_s)
    return Peaks(
        max_rss=rss,
        max_vms=max(sizes),
        max_cpu_percent=round(100 * max(shares, default=0.0), 1),
        cpu_s=cpu_s,
        gpu_memory_bytes=(gpu_own if is_exact else gpu.size_bytes) or None,
        gpu_power_w=max((reading.gpu.power_w for reading in readings if reading.gpu is not None), default=None),
        max_rss_bound=max(rss, tree.bound_bytes),
        rss_basis=rss_basis,
        gpu_memory_basis="framework" if is_exact else gpu.basis,
    )


def _find_peak_rss(
    reported: ChildReport, readings: Sequence[Reading], by_kernel: int, tree: TreePeaks
) -> tuple[int, Literal["", "process", "tree"]]:
    """Return the peak of the resident memory. The kernel knows the peak of each process exactly; that of several
    together comes from readings, from which our shells and a command's wrapper are subtracted."""
    wrapper = (reported.begin or {}).get("wrapper_rss", 0)
    own = int(((reported.end or {}).get("peaks") or {}).get("max_rss", 0))
    is_seen = bool(tree.largest_bytes)
    single = max(own or max(by_kernel, tree.largest_bytes) - (0 if is_seen else wrapper), tree.largest_bytes, 0)
    ours = wrapper + _SHELLS_BYTES if tree.ours_bytes is None else tree.ours_bytes
    sums = [tree.rss_bytes, *(reading.rss_bytes - ours for reading in readings)]
    if not own and not is_seen:  # only the readings are known
        sums += [reading.peak_rss_bytes - wrapper for reading in readings]
    if max(sums) > single:
        return max(sums), "tree"
    return single, "process" if single else ""


# ---------------------------------------------------------------- where it ran


def build_environment(machine: Machine, framework: Framework | None, packages: Mapping[str, str]) -> dict[str, str]:
    """Return the environment, which must be equal for two results to be comparable: without the host name."""
    setup = {
        "cpu_model": machine.cpu_model,
        "cpus": str(machine.logical_cpus or ""),
        "governor": machine.governor,
        "accelerator_model": machine.accelerator_model,
        "accelerator_count": str(machine.accelerator_count or ""),
        "accelerator_driver": machine.accelerator_driver,
        "python": ".".join(machine.python.split(".")[:2]),
        "framework": f"{framework.name} {framework.version}".strip() if framework else "",
        "cuda": framework.cuda if framework else "",
        "cudnn": framework.cudnn if framework else "",
    }
    setup |= {
        re.sub(r"[^\w.-]", "_", name): version
        for name, version in packages.items()
        if not framework or name != framework.name
    }
    return {key: value for key, value in setup.items() if value}


def build_fingerprint(setup: Mapping[str, str]) -> str:
    """Return a hash of the environment; empty if nothing is known about it."""
    return hashlib.blake2b(json.dumps(sorted(setup.items())).encode(), digest_size=6).hexdigest() if setup else ""


def find_contamination(machine: Machine, foreign_limit: float = FOREIGN_LIMIT) -> tuple[str, ...]:
    """Describe why other processes or throttling may have disturbed a result."""
    found = []
    if machine.foreign_cpu is not None and machine.foreign_cpu > foreign_limit:
        found.append(f"others used {machine.foreign_cpu:.0%} of the CPUs during the run")
    before = machine.foreign_cpu_before
    if machine.foreign_cpu is None and before is not None and before > foreign_limit:
        found.append(f"others used {before:.0%} of the CPUs just before it began, and it was too short to measure more")
    if others := sorted({pid for state in (*machine.gpus, *machine.gpus_after) for pid in state.processes}):
        found.append(f"other processes were on the GPU: {', '.join(map(str, others[:5]))}")
    if trouble := [reason for reason in machine.throttled if reason in TROUBLE]:
        found.append(f"the GPU was throttled: {', '.join(trouble)}")
    return tuple(found)
