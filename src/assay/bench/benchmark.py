"""The functions of a benchmark: `measure`, and `report_benchmark` with TensorFlow's arguments in TensorFlow's order.

Each report is a line of JSON, written at once: what a method reported before it crashed is not lost.

A timing has a warm-up and many repetitions, its result is a median, and the clock is read when the device is idle.
A GPU works asynchronously: a plain `time.time()` around a call measures how fast work is submitted.
`measure` waits for the device after every sample; on CUDA it also records events, which leave Python's own time out.

On a busy machine the kernel takes the processor away now and then, and a sample is milliseconds too long; where
this happens to nearly half of the samples their median jumps, and 8% more work looks like 15%. The kernel counts such
context switches, and the median is taken of the samples without any. CPU time is measured as well: what the kernel
counts for this process and for children that have ended, which leaves the waiting out.

The result of a call is not kept while the next one runs: an object that lives on changes which blocks of memory the
next call is given, and that alone made a loop of Python 8% slower, in every process alike.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from assay.script import build_number
from assay.system.fast_dataclasses import dataclass

ENV_BENCH_REPORT = "ASSAY_BENCH_REPORT"  # where a child writes its report
ENV_TF_REPORT = "TEST_REPORT_FILE_PREFIX"  # TensorFlow's variable: the prefix of its result files
_METRIC_KEYS = ("name", "value", "min_value", "max_value", "samples")
Wait = Callable[[object], None]
Sync = Any  # a module (torch, jax, tensorflow, cupy), a function, False for none, None to detect them

_SHORTEST_S = 20e-6  # a sample is never shorter: fast functions are called several times in each
_FEWEST, _MOST = 10, 1000
_WARM_S = 0.1
_FEWEST_QUIET = 0.25  # fraction of the samples: if fewer are undisturbed, the least disturbed ones are used
_FRAMEWORKS = ("torch", "jax", "tensorflow", "cupy")
_begun: list[int] = []  # pid of the process of the benchmark


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
        """Report what was measured. A second call adds to the report, or replaces values of the same name.

        `metrics` is a list of `{"name", "value", "min_value", "max_value"}`, the bounds being optional; a value outside
        its bounds fails the benchmark. `samples` are raw measurements by metric; those of `measure` are added, and its
        `cpu_time` where `wall_time` is one of its results.
        """
        kept: dict[str, Iterable[object]] = self.__dict__.setdefault("_samples", {})
        timing: Timing | None = self.__dict__.get("_timing")
        if cpu_time is None and timing is not None and wall_time in (timing.median_s, timing.mean_s, timing.best_s):
            cpu_time = timing.cpu_median_s
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
        """Measure as `assay.bench.measure` does; the samples are kept under `name` and go with the next report."""
        timing = measure(function, repeats=repeats, warmup=warmup, seconds=seconds, inner=inner, sync=sync)
        kept: dict[str, Iterable[object]] = self.__dict__.setdefault("_samples", {})
        kept[name] = timing.samples_s
        if timing.device_samples_s:
            kept[f"{name}.device"] = timing.device_samples_s
        if name == "wall_time" and timing.cpu_median_s is not None:
            kept["cpu_time"] = timing.cpu_samples_s
        self.__dict__["_timing"] = timing
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
    """Report as `Benchmark.report_benchmark` does, for functions and for programs that `--command` starts."""
    plain = {"iters": iters, "cpu_time": cpu_time, "wall_time": wall_time, "throughput": throughput}
    line: dict[str, object] = {"kind": "report", "time": time.time()}
    line |= {key: _to_number(value, key) for key, value in plain.items() if value is not None}
    if name is not None:
        line["name"] = str(name)
    if extras:
        line["extras"] = {
            str(key): str(value) if isinstance(value, str) or (number := build_number(value)) is None else number
            for key, value in _mapping(extras, "extras").items()
        }
    if metrics:
        if not isinstance(metrics, (list, tuple)):
            kind = type(metrics).__name__
            raise TypeError(f"report_benchmark: metrics must be a list of dictionaries, not {kind}")
        line["metrics"] = [_build_metric(metric) for metric in metrics]
    if samples:
        line["samples"] = {key: [_to_number(value, key) for value in values] for key, values in samples.items()}
    write_line(line)


def _to_number(value: object, name: str) -> int | float:
    number = build_number(value)
    if number is None:
        raise TypeError(f"report_benchmark: {name} must be a number, not {value!r}")
    return number


def _mapping(value: object, name: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError(f"report_benchmark: {name} must be a dictionary, not {type(value).__name__}")
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


def write_line(line: Mapping[str, object]) -> None:
    """Write a line to the run that started this process; outside a run, to the terminal, to try a benchmark by hand."""
    path = os.environ.get(ENV_BENCH_REPORT)
    _begun[:] = [os.getpid()] if line["kind"] == "begin" else _begun
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


def leave_fork() -> None:
    """End a child that a benchmark forked and that returned from it: the report is the parent's alone."""
    if _begun and os.getpid() not in _begun:
        os._exit(0)


# ---------------------------------------------------------------- timing


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call: one number for each sample, in the order measured."""

    samples_s: tuple[float, ...]
    inner: int = 1  # calls in each sample
    device_samples_s: tuple[float, ...] = ()  # times by CUDA events; empty without CUDA events
    switches: tuple[int, ...] = ()  # involuntary context switches in each sample; empty: not counted
    cpu_samples_s: tuple[float, ...] = ()  # CPU time of this process and its ended children

    @property
    def iters(self) -> int:
        return len(self.samples_s) * self.inner

    @property
    def quiet_s(self) -> tuple[float, ...]:
        """The undisturbed samples: at least a quarter of all samples, the least disturbed ones."""
        return tuple(self.samples_s[index] for index in self._quiet)

    @property
    def _quiet(self) -> Sequence[int]:
        """Return the indexes of the undisturbed samples."""
        if not any(self.switches):
            return range(len(self.samples_s))
        order = sorted(zip(self.switches, range(len(self.samples_s)), strict=True))
        alone = sum(not count for count in self.switches)
        return sorted(index for _, index in order[: max(alone, 1, round(_FEWEST_QUIET * len(order)))])

    @property
    def median_s(self) -> float:
        """The median of the undisturbed samples."""
        return statistics.median(self.quiet_s)

    @property
    def cpu_median_s(self) -> float | None:
        """The median CPU time of the undisturbed samples; None if it is unknown, or too short for the clock."""
        found = statistics.median(self.cpu_samples_s[index] for index in self._quiet) if self.cpu_samples_s else 0.0
        return found or None

    @property
    def mean_s(self) -> float:
        return statistics.fmean(self.samples_s)

    @property
    def best_s(self) -> float:
        return min(self.samples_s)

    @property
    def device_median_s(self) -> float | None:
        return statistics.median(self.device_samples_s) if self.device_samples_s else None

    @property
    def spread(self) -> float:
        """The distance between the quartiles of the undisturbed samples, as a fraction of their median."""
        quiet = self.quiet_s
        if len(quiet) < 4 or not self.median_s:
            return 0.0
        low, _, high = statistics.quantiles(quiet, n=4)
        return (high - low) / self.median_s


def measure(
    function: Callable[[], object],
    *,
    repeats: int | None = None,
    warmup: int | None = None,
    seconds: float = 1.0,
    inner: int | None = None,
    sync: Sync = None,
    before: Callable[[], object] | None = None,
    shortest_s: float = _SHORTEST_S,
) -> Timing:
    """Call `function` repeatedly and return the seconds per call.

    There are `repeats` samples, or as many as fit into `seconds` (10 to 1000), after `warmup` calls (or a tenth of a
    second of them). `sync` is the framework whose device is waited for: `torch`, `jax`, `tensorflow`, `cupy`, your
    own function, or False; None waits for each of them that the program has loaded. `before` is called before each
    sample, and is not measured; samples last `shortest_s` or longer.
    """
    for name, value in (("repeats", repeats), ("inner", inner)):
        if value is not None and value < 1:
            raise ValueError(f"measure: {name} must be at least 1, not {value}")
    prepare = before or (lambda: None)
    prepare()
    result = function()  # the first call may start the device to wait for
    if hasattr(result, "cr_await"):
        raise TypeError("the function returned a coroutine, which nothing awaits: measure a function that runs it")
    wait = build_wait(sync)
    wait(result)
    del result
    once_s = _warm_up(function, warmup, wait, prepare)
    calls = inner or max(1, min(1_000_000, round(shortest_s / once_s) if once_s < shortest_s else 1))
    count = repeats or max(_FEWEST, min(_MOST, int(seconds / (once_s * calls))))
    with _no_collection():
        return _sample_often(function, count, calls, wait, prepare, _find_events(sync))


def measure_rounds(function: Callable[[], object], rounds: int, calls: int, before: Callable[[], object]) -> Timing:
    """Measure `rounds` samples of `calls` calls, each sample after `before`, without a warm-up."""
    with _no_collection():
        return _sample_often(function, rounds, calls, build_wait(), before)


def report_timing(timing: Timing, extras: Mapping[str, object] | None = None) -> None:
    """Report a timing with `report_benchmark`."""
    leave_fork()
    samples = {"wall_time": timing.samples_s, **({"cpu_time": timing.cpu_samples_s} if timing.cpu_median_s else {})}
    report_benchmark(timing.iters, timing.cpu_median_s, timing.median_s, extras=extras, samples=samples)


def sort_words() -> None:
    """The benchmark of `assay bench selftest`: about a millisecond of memory accesses, comparisons and allocations."""
    words = [str(number * 7919 % 4001) for number in range(4000)]
    "".join(sorted(words))


def _warm_up(function: Callable[[], object], warmup: int | None, wait: Wait, prepare: Callable[[], object]) -> float:
    """Return the time of one call, after caches are warm and compilation at first use is done."""
    times: list[float] = []
    began = time.perf_counter()
    while not times or (len(times) < warmup if warmup is not None else time.perf_counter() - began < _WARM_S):
        prepare()
        began_one = time.perf_counter()
        wait(function())
        times.append(time.perf_counter() - began_one)
        if warmup is None and len(times) >= _MOST:
            break
    return max(min(times), 1e-9)


def _sample_often(
    function: Callable[[], object],
    count: int,
    calls: int,
    wait: Wait,
    prepare: Callable[[], object],
    make_event: Callable[[], Any] | None = None,
) -> Timing:
    samples: list[tuple[float, int, float]] = []
    pairs: list[tuple[Any, Any]] = []
    for _ in range(count):
        prepare()
        marks = (make_event(), make_event()) if make_event else None
        switches, cpu = _count_switches(), CpuClock()
        began = time.perf_counter()
        if marks:
            marks[0].record()
        for _ in range(calls - 1):
            function()
        result = function()
        if marks:
            marks[1].record()
        wait(result)
        del result
        wall_s = time.perf_counter() - began
        cpu_s = cpu.read()
        samples.append((wall_s / calls, _count_switches() - switches, cpu_s / calls))
        pairs += [marks] if marks else []
    walls, lost, cpus = zip(*samples, strict=True)
    device = tuple(before.elapsed_time(after) / 1000 / calls for before, after in pairs)
    return Timing(walls, calls, device, lost, cpus)


def _count_switches() -> int:
    """Count the involuntary context switches of this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


class CpuClock:
    """CPU time since the clock was made: of this process with all threads, and of children that have ended since."""

    __slots__ = ("_began", "_children")

    def __init__(self) -> None:
        self._children = _load_children_s()
        self._began = time.process_time()

    def read(self) -> float:
        """Return the CPU time since the clock was made, without that of reading it, some percent of a short sample."""
        own_s = time.process_time() - self._began - _measure_reading()
        return max(0.0, own_s) + _load_children_s() - self._children


@lru_cache(maxsize=1)
def _measure_reading() -> float:
    return min(-(time.process_time() - time.process_time()) for _ in range(100))


def _load_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def _no_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# ---------------------------------------------------------------- devices


def synchronize(result: object = None, sync: Sync = None) -> None:
    """Wait until the device has finished; `result` is what jax has to wait for."""
    build_wait(sync)(result)


def build_wait(sync: Sync = None) -> Wait:
    """Return the function that is called with a function's result to wait until the work is done."""
    if sync is None:
        modules = [sys.modules[name] for name in _FRAMEWORKS if name in sys.modules]
    elif sync is False or (getattr(sync, "__name__", "").split(".")[0] in _FRAMEWORKS and not callable(sync)):
        modules = [sync] if sync else []
    elif callable(sync):
        return lambda _result: sync()
    else:
        raise TypeError(f"sync is a module such as torch, a function, or False; not {sync!r}")
    waits = [wait for module in modules if (wait := _wait_of(module))]

    def wait_for_all(result: object) -> None:
        for wait in waits:
            wait(result)

    return wait_for_all


def _wait_of(module: Any) -> Callable[[object], object] | None:
    """Return the function that waits for a module's device, recognised by its attributes; None if there is none."""
    name = getattr(module, "__name__", "").split(".")[0]
    if name == "torch":  # only devices that are in use: a query of CUDA would initialise it, and use its memory
        if _uses_cuda(module):
            return lambda _result: module.cuda.synchronize()
        devices = (getattr(module, kind, None) for kind in ("xpu", "mps"))
        used = next((device for device in devices if device and getattr(device, "is_available", bool)()), None)
        return (lambda _result: used.synchronize()) if used else None
    if name == "jax":
        wait: Callable[[object], object] = module.block_until_ready
        return wait
    if name == "tensorflow":
        sync = getattr(getattr(getattr(module, "test", None), "experimental", None), "sync_devices", None)
        return lambda result: sync() if sync else getattr(result, "numpy", bool)()
    if name == "cupy":
        return lambda _result: module.cuda.Stream.null.synchronize()
    return None


def _uses_cuda(torch: Any) -> bool:
    cuda = getattr(torch, "cuda", None)
    return bool(cuda is not None and cuda.is_available() and cuda.is_initialized())


def _find_events(sync: Sync) -> Callable[[], Any] | None:
    torch = sys.modules.get("torch") if sync is None else sync
    if getattr(torch, "__name__", "") != "torch" or not _uses_cuda(torch):
        return None
    module: Any = torch
    return lambda: module.cuda.Event(enable_timing=True)
