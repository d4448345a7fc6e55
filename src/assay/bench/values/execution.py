"""Values of benchmarks: what to run, what an execution reported, and the state of the machine during the run."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Literal, TypeVar

from assay.bench.suite_benchmark import is_suite
from assay.errors import ExitCode, UsageError
from assay.system.fast_dataclasses import dataclass, field
from assay.values.environment import GitState
from assay.values.state import State
from assay.values.verdict import Finding, VerdictKind

STUDY = "bench"  # every execution, of any command, is a run of this study
ASSAY = "assay"  # the source of executions that were not imported
WALL_TIME = "wall_time"
CPU_TIME = "cpu_time"
THROUGHPUT = "throughput"
PEAK_MEMORY = "peak_memory"  # bytes used by the benchmark and all its descendants; also the metric of asv's peakmem
PEAK_GPU_MEMORY = "peak_gpu_memory"  # bytes used by the run's own processes
NOT_REPORTED = -1.0  # wall_time of a benchmark that never reported
SITE_PACKAGES = "site_package_info"  # key in `extra`: repositories that PerfZero checked out
PROFILE = "profile"  # key in `extra` of profiled executions: windows, profiler; notes if a window has no profile
_COUNTS = ("allocations", "calls", "count", "counts", "instructions", "iterations", "parameters", "params", "size")
RESULTS = frozenset(  # last parts of names of computed or counted metrics, which other processes do not change
    [*_COUNTS, "acc", "accuracy", "error", "errors", "loss"]
)
NOT_OBSERVED = "the machine was not observed while it ran: its supervisor was killed"  # an entry of `contaminated`
BENCH_REPORT_FILE = "report.jsonl"  # in the run directory, like the next three
BENCH_MACHINE_FILE = "machine.json"  # for a trial on a farm: the observed state of its machine
BENCH_OUTPUT_DIR = "output"
BENCH_PROFILE_DIR = "profile"
ENV_SOURCE = "ASSAY_SOURCE"  # on a farm: the folder on the node that contains Assay
RANGE = "commit_range"  # key in `extra` of executions of a range of commits: the call that made them
COMMITTED_AT = "committed_at"  # key in `extra` of executions of a range of commits: position in time
COMPARED = {"part_of": "comparison"}  # in `extra` of executions that are not in the order of their commits

MethodKind = Literal["method", "command", "import"]


# ---------------------------------------------------------------- what is to be run


@dataclass(frozen=True, slots=True)
class BenchMethod:
    """One benchmark. `name` identifies its history: `module.Class.method`, or a command's own name."""

    text: str  # as the user wrote it: `module.Class:method`, `module.function`, a command line
    name: str
    kind: MethodKind = "method"
    timeout_s: float | None = None  # the benchmark's own time limit, if it is one of a suite
    is_listed: bool = False  # whether it is a single benchmark of a suite, not the name of several

    @property
    def is_filter(self) -> bool:
        """Whether the name may match several methods: `module.Class.filter:REGEX` matches methods of the class by a
        regular expression; the path of a suite, or of a part of a suite, means all benchmarks in it."""
        is_several = ".filter:" in self.text or (is_suite(self.text) and not self.is_listed)
        return self.kind == "method" and is_several


def parse_method(text: str) -> BenchMethod:
    """Parse `module.Class.method`, `module.Class:method`, `module.function`, `module.Class.filter:REGEX`, or the path
    of a suite of asv's or pytest's: `benchmarks`, `tests/test_x.py::test_sort`."""
    if text.strip() and is_suite(text):
        return BenchMethod(text, text)
    head, colon, tail = text.partition(":")
    if not text.strip() or not head.strip(".") or (colon and not tail):
        raise UsageError(
            f"{text!r} does not name a benchmark",
            "write module.Class.method, module.function, module.Class.filter:REGEX, or the path of a suite",
        )
    if colon and head.endswith(".filter"):
        try:
            re.compile(tail)
        except re.error as error:
            raise UsageError(f"{text!r}: broken regular expression: {error}") from None
        return BenchMethod(text, text)
    return BenchMethod(text, f"{head}.{tail}" if colon else head)


@dataclass(frozen=True, slots=True)
class ProfileWindow:
    """A window in seconds after the method began; `end_s` None: until the method ends."""

    begin_s: float
    end_s: float | None = None


def parse_windows(text: str) -> tuple[ProfileWindow, ...]:
    """Parse `2:5,8:` into two windows, the second open. Each window must begin after the previous one has ended."""
    windows: list[ProfileWindow] = []
    for part in text.split(","):
        window = _parse_window(part.strip(), text)
        if windows and (windows[-1].end_s is None or window.begin_s <= windows[-1].end_s):
            raise UsageError(f"profile {text!r}: {part.strip()} begins before the previous window has ended")
        windows.append(window)
    return tuple(windows)


def render_windows(windows: Sequence[ProfileWindow]) -> str:
    """Render windows in the form that `parse_windows` reads."""
    return ",".join(f"{window.begin_s:g}:{'' if window.end_s is None else f'{window.end_s:g}'}" for window in windows)


def _parse_window(part: str, text: str) -> ProfileWindow:
    begin, colon, end = part.partition(":")
    try:
        window = ProfileWindow(float(begin), float(end) if end.strip() else None)
    except ValueError:
        window = None
    bounds = () if window is None else (window.begin_s, *(() if window.end_s is None else (window.end_s,)))
    if window is None or not colon or not all(map(math.isfinite, bounds)) or window.begin_s < 0:
        raise UsageError(
            f"profile {text!r}: {part!r} is not a window",
            "write START:END in seconds, START: for an open end, 2:5,8:9 for two",
        )
    if window.end_s is not None and window.end_s <= window.begin_s:
        wrong = "is empty: it ends when it begins" if window.end_s == window.begin_s else "ends before it begins"
        raise UsageError(f"profile {text!r}: {part} {wrong}", "write START:END in seconds, or START: for an open end")
    return window


@dataclass(frozen=True, slots=True)
class BenchVariant:
    """One of several versions of the code that a call measures: a work tree, an environment or an interpreter."""

    label: str
    folder: str | None = None  # its working directory; None: the request's folder
    commit: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    environment: str | None = None  # words before a command, to choose its interpreter; "": the other side has words


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """The request of `run_benchmarks`. Trials are interleaved: the first of every method, then the second."""

    methods: tuple[BenchMethod, ...]
    trials: int = 1
    timeout_s: float | None = None  # time limit of each execution
    label: str | None = None
    folder: str | None = None  # where benchmarks run, and modules are found first; None: the working directory
    root: str | None = None
    slots: tuple[str, ...] | None = None  # None: a single slot with all GPUs, or one CPU slot: nothing runs in parallel
    python: str | None = None  # another interpreter; None: our own
    python_path: tuple[str, ...] = ()  # appended to sys.path of the child, absolute
    first_path: tuple[str, ...] = ()  # put before everything else on sys.path; relative to `folder`
    env: tuple[tuple[str, str], ...] = ()
    data_dir: str = ""  # given to the constructor as data_dir and root_data_dir
    tpu: str | None = None
    constructor_args: Mapping[str, Any] = field(default_factory=dict)
    class_type: Literal["tf_benchmark"] | None = None  # the constructor gets only constructor_args
    output_root: str | None = None  # output_dir is <output_root>/<execution_id>; None: <run dir>/output
    scratch_url: str | None = None  # with output_root: constructors get <scratch_url>/<execution_id> instead
    execution_id: str | None = None  # id of the first execution, the others get a suffix; None: by time
    profile: tuple[ProfileWindow, ...] = ()
    profiler: Literal["auto", "framework", "py-spy"] = "auto"
    profile_in_output: bool = False  # write profiles to <output_dir>/profiler_data instead of <run dir>/profile
    patterns: tuple[tuple[str, str], ...] = ()  # metric → regular expression over the log
    refuse_contaminated: bool = False
    foreign_limit: float = 0.1  # fraction of all cores that other processes may use before a result is contaminated
    variants: tuple[BenchVariant, ...] = ()  # each method runs once per variant and trial, interleaved
    extra: Mapping[str, Any] = field(default_factory=dict)  # JSON-like, stored with each execution
    max_wait_s: float | None = None  # longest wait for checks that run, and for another benchmark
    farm: str | None = None  # name of a farm; None: this machine
    grace_s: float = 5.0
    command_line: tuple[str, ...] = ()


# ---------------------------------------------------------------- results


@dataclass(frozen=True, slots=True)
class ChildReport:
    """The lines that a child wrote, which may end at any point."""

    begin: Mapping[str, Any] | None = None
    reports: tuple[Mapping[str, Any], ...] = ()  # the arguments of calls of `report_benchmark`
    end: Mapping[str, Any] | None = None  # None: the child was killed, or exited by os._exit
    problems: tuple[str, ...] = ()  # lines that could not be read


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How the process of an execution ended."""

    state: str = "done"
    reason: str = ""
    exit_code: int | None = 0
    elapsed_s: float | None = None
    last_line: str = ""  # the last line of its log


@dataclass(frozen=True, slots=True)
class BenchMetric:
    """A reported number with its bounds."""

    name: str
    value: float
    min_value: float | None = None
    max_value: float | None = None


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The fields of `report_benchmark`, and findings about them."""

    name: str  # full name of the method
    succeeded: bool
    has_exception: bool = False  # the benchmark raised, crashed, was killed, or timed out
    iters: int | None = None
    wall_time: float = NOT_REPORTED
    cpu_time: float | None = None
    throughput: float | None = None
    metrics: tuple[BenchMetric, ...] = ()
    extras: Mapping[str, float | str] = field(default_factory=dict)
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # metric → raw measurements
    findings: tuple[Finding, ...] = ()
    skipped: str = ""  # why the benchmark declares that it does not apply here: it has not failed

    @property
    def is_measured(self) -> bool:
        """Whether the benchmark reported its values and finished. With a violated bound it fails, but is measured."""
        return not self.has_exception and all(found.kind is not VerdictKind.ERROR for found in self.findings)

    @property
    def is_reported(self) -> bool:
        return self.wall_time != NOT_REPORTED or bool(self.metrics) or bool(self.samples)

    @property
    def numbers(self) -> dict[str, float]:
        """Every number that has a history: the standard ones, the metrics, and extras that are numbers."""
        found = {name: value for name, value in self.extras.items() if isinstance(value, (int, float))}
        found |= {metric.name: metric.value for metric in self.metrics}
        standard = {WALL_TIME: self.wall_time, CPU_TIME: self.cpu_time, THROUGHPUT: self.throughput}
        if self.wall_time == 0:  # in an older record 0 is not a result
            del standard[WALL_TIME]
        return found | {name: v for name, v in standard.items() if v is not None and v != NOT_REPORTED}


@dataclass(frozen=True, slots=True)
class Framework:
    """The framework that the child had loaded when its method had ended."""

    name: str
    version: str = ""
    build_version: str = ""
    cuda: str = ""
    cudnn: str = ""


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peaks of the whole process tree: exact for one process, by the kernel's counter; for several from readings."""

    max_rss: int = 0  # bytes of the largest process by the kernel's counter, or the largest sum of one reading
    max_vms: int = 0
    max_cpu_percent: float = 0.0
    cpu_s: float | None = None
    gpu_memory_bytes: int | None = None  # memory of the run's own processes
    gpu_power_w: float | None = None
    max_rss_bound: int = 0  # sum of the peaks of processes that were seen together: an upper estimate
    rss_basis: Literal["", "process", "tree"] = ""  # max_rss is of one process, or of several at one moment
    # device: the GPU's memory in use, less what was in use before the run
    gpu_memory_basis: Literal["", "framework", "processes", "device"] = ""


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU before or after an execution."""

    index: int
    name: str
    sm_clock_mhz: int = 0
    temperature_c: int = 0
    power_w: float = 0.0
    memory_bytes: int = 0
    utilisation: float = 0.0
    throttle: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()  # pids of processes on it that are not ours


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware and state of the machine, which are needed to interpret a result."""

    host: str = ""
    os: str = ""
    python: str = ""
    cpu_model: str = ""
    logical_cpus: int = 0
    physical_cpus: int = 0
    sockets: int = 0
    memory_bytes: int = 0
    governor: str = ""
    load_1m: float | None = None  # at the start of the run
    foreign_cpu: float | None = None  # fraction of all cores that other processes used; None: the run was too short
    accelerator_model: str = ""
    accelerator_count: int = 0
    accelerator_driver: str = ""
    gpus: tuple[GpuState, ...] = ()  # GPUs before the run
    gpus_after: tuple[GpuState, ...] = ()
    throttled: tuple[str, ...] = ()  # every reason seen before, during or after the run
    packages: Mapping[str, str] = field(default_factory=dict)
    foreign_cpu_before: float | None = None  # fraction of all cores that other processes used just before the run


@dataclass(frozen=True, slots=True)
class BenchExecution:
    """One process of one method: its run directory and its record."""

    execution_id: str
    method: str
    trial: int  # counted from 1
    result: BenchResult
    run_dir: str
    output_dir: str
    started_at: float | None = None
    ended_at: float | None = None
    label: str | None = None
    commit: str | None = None
    git: GitState | None = None
    setup: Mapping[str, str] = field(default_factory=dict)  # what must be equal for results to be comparable
    fingerprint: str = ""  # hash of `setup`
    machine: Machine = field(default_factory=Machine)
    framework: Framework | None = None
    peaks: Peaks = field(default_factory=Peaks)
    contaminated: tuple[str, ...] = ()  # what may have disturbed the execution
    refused: bool = False  # whether the caller does not accept it because it is contaminated
    profiles: tuple[str, ...] = ()  # trace files
    state: str = "done"  # state of the run
    log: str = ""  # the child's output
    source: str = ASSAY  # "assay", or the tool whose file was imported
    extra: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # remarks that are not failures

    @property
    def succeeded(self) -> bool:
        return self.result.succeeded and not self.refused

    @property
    def numbers(self) -> dict[str, float]:
        """Every number that has a history: reported numbers, and the peaks of memory."""
        if self.result.skipped:
            return {}
        peaks = {PEAK_MEMORY: self.peaks.max_rss, PEAK_GPU_MEMORY: self.peaks.gpu_memory_bytes}
        return {name: float(value) for name, value in peaks.items() if value} | self.result.numbers

    def find_disturbance(self, metric: str, *, in_turns: bool = False) -> tuple[str, ...]:
        """Return the entries of `contaminated` that may have disturbed a metric. `in_turns`: the execution ran in turns
        with the other side of a comparison, so the load of other processes affects both sides alike."""
        is_of_device = metric == PEAK_GPU_MEMORY and self.peaks.gpu_memory_basis == "device"
        if not is_sensitive(metric) and not is_of_device:
            return ()
        is_cpu_time = metric.rpartition(".")[2] == CPU_TIME and not self.peaks.gpu_memory_bytes  # a GPU wait takes CPU
        bears_load = is_of_device or is_cpu_time or in_turns
        return tuple(each for each in self.contaminated if not bears_load or each == NOT_OBSERVED or "GPU" in each)

    @property
    def load(self) -> float | None:
        """The fraction of all cores that other processes used during the run or just before it; None if unknown."""
        during = self.machine.foreign_cpu
        return self.machine.foreign_cpu_before if during is None else during

    @property
    def at(self) -> float | None:
        """The position in a history: the start of the run, or at an old commit the time of that commit."""
        placed = self.extra.get(COMMITTED_AT)
        return float(placed) if isinstance(placed, (int, float)) else self.started_at

    @property
    def is_compared(self) -> bool:
        """Whether a comparison or a search, which run commits in turns, ran the execution: histories exclude it."""
        return COMPARED.items() <= self.extra.items()

    @property
    def void(self) -> str:
        """Why the execution has no result although it has not failed: `interrupted` or `skipped`; otherwise empty."""
        return "interrupted" if self.state == State.STOPPED else "skipped" if self.result.skipped else ""

    @property
    def is_profiled(self) -> bool:
        """Whether the execution was profiled: its times are not those of an ordinary execution."""
        return bool(self.profiles) or PROFILE in self.extra

    @property
    def profile_notes(self) -> tuple[str, ...]:
        """Why a requested window has no profile."""
        asked = self.extra.get(PROFILE)
        return tuple(asked.get("notes") or ()) if isinstance(asked, Mapping) else ()

    @property
    def code(self) -> str | None:
        """Identifies the state of the code: the commit, and after a `+` a hash of local edits and other checked-out
        repositories. None: the state was not recorded."""
        found = self.extra.get(SITE_PACKAGES)
        packages = found.items() if isinstance(found, Mapping) else ()
        known = sorted(((str(name), each) for name, each in packages if isinstance(each, Mapping)), key=itemgetter(0))
        others = [f"{name} {package.get('hash')}" for name, package in known]
        is_edited = any(package.get("dirty") for _, package in known)  # only the existence of edits is recorded
        if is_edited or self._has_unknown_edits or not (self.commit or others):
            return None
        edits = [self.git.diff if self.git else "", *others]
        mark = hashlib.blake2b(json.dumps(edits).encode(), digest_size=6).hexdigest() if any(edits) else ""
        return f"{self.commit or ''}+{mark}" if mark else self.commit

    @property
    def _has_unknown_edits(self) -> bool:
        """Return whether the code has unrecorded edits: only the name of an untracked benchmark is recorded."""
        if self.git is None:
            return False
        parts = self.method.split(".")[:-1]
        names = {name.rstrip("/").rpartition("/")[2] for name in self.git.untracked}
        return (self.git.dirty and not self.git.diff) or bool(names & {*parts, *(f"{part}.py" for part in parts)})


def order_metrics(names: Iterable[str], first: Sequence[str] = (WALL_TIME, THROUGHPUT)) -> list[str]:
    """List each metric once, `first` before the others."""
    known = dict.fromkeys(names)
    return [*(name for name in first if name in known), *(name for name in known if name not in first)]


def is_size(name: str) -> bool:
    """Return whether a metric is in bytes: `peak_memory`, asv's `memory`, `gpu_memory_bytes`, `max_rss`."""
    own = name.rpartition(".")[2]
    return own in ("memory", "peak_memory", "peak_gpu_memory", "max_rss", "max_vms") or own.endswith("_bytes")


def is_sensitive(metric: str) -> bool:
    """Return whether other processes may change a metric: any metric except sizes, counts and computed results."""
    return not is_size(metric) and re.split(r"[^a-z]+", metric.lower())[-1] not in RESULTS


_Item = TypeVar("_Item")
_Key = TypeVar("_Key")


def group_by(items: Iterable[_Item], find_key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Group items by a key, in the order in which each key comes first."""
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(find_key(item), []).append(item)
    return groups


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The result of one call."""

    executions: tuple[BenchExecution, ...]
    interrupted: str | None = None  # the signal that interrupted the call
    problem: str | None = None  # a problem of the infrastructure
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        open_code = VerdictKind.INCONCLUSIVE.exit_code
        counted = [each for each in self.executions if not each.result.skipped]
        codes = {open_code if each.refused else ExitCode.OK for each in counted if each.result.succeeded}
        codes |= {ExitCode.FAILED for each in counted if not each.result.succeeded}
        codes = codes or {open_code if self.executions else ExitCode.FAILED}
        codes |= {ExitCode.INTERRUPTED} if self.interrupted else set()
        codes |= {ExitCode.INTERNAL} if self.problem else set()
        return ExitCode.worst(codes)
