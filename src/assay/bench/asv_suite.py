"""Runs asv's benchmarks as asv does: `setup_cache`, `setup`, the method, `teardown`; attributes of the function have
precedence over those of its class and its module. A sample of `time_` lasts at least a millisecond, after a `setup`."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import itertools
import os
import pickle
import re
import subprocess
import sys
import tempfile
import textwrap
import time
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from assay.bench.benchmark import leave_fork, measure, report_benchmark, report_timing
from assay.bench.framework import load_peaks
from assay.bench.suite_benchmark import NoSuchBenchmarkError, SkippedError, SuiteBenchmark, check_runs, name_values
from assay.system.fast_dataclasses import dataclass

_NAME = re.compile(r"(timeraw|time|peakmem|mem|track)_.+|(Timeraw|Time|PeakMem|Mem|Track)[A-Z_].+")
_SAMPLE_S = 0.001  # shorter than asv's samples, so that some are undisturbed on a busy machine
_FEWEST, _MOST, _SECONDS = 10, 100, 1.0  # samples and seconds for benchmarks without `repeat`
_LONGEST_S = 20.0  # fewer samples are taken if _FEWEST would take longer


@dataclass(frozen=True, slots=True)
class AsvBenchmark:
    """A function or method that is a benchmark. `sources`: objects with its attributes: function, object, module."""

    path: str  # dotted path below the folder of the suite
    kind: str
    call: Callable[..., Any]
    sources: tuple[Any, ...]

    def get(self, key: str, default: Any = None) -> Any:
        return next((getattr(each, key) for each in self.sources if hasattr(each, key)), default)

    @property
    def parameters(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Return every combination of the values in `params`, with the name that asv gives to it."""
        params = list(self.get("params", ()))
        axes = [*map(list, params)] if params and isinstance(params[0], (list, tuple)) else [params] if params else []
        names = itertools.product(*map(name_values, axes))
        texts = (f"({', '.join(each)})" if axes else "" for each in names)
        return zip(texts, itertools.product(*axes), strict=True)


# ---------------------------------------------------------------- finding benchmarks


def list_asv(path: str, files: Sequence[str]) -> list[SuiteBenchmark]:
    root, found = _find_root(path), []
    for file in files:
        module = os.path.relpath(file, root).removesuffix(".py").replace(os.sep, ".").removesuffix(".__init__")
        try:
            benchmarks = list(_find_benchmarks(_load(root, module), module))
        except BaseException:  # noqa: BLE001 a module may do anything when it is imported
            found.append(SuiteBenchmark(f"{root}::{module}", module))
            continue
        for each in benchmarks:
            name, timeout_s = str(each.get("benchmark_name", each.path)), each.get("timeout")
            found += [
                SuiteBenchmark(f"{root}::{each.path}{text}", name + text, timeout_s and float(timeout_s))
                for text, _ in each.parameters
            ]
    return found


def _find_root(path: str) -> str:
    """Return asv's benchmark_dir: `path` if it is a folder; for a file the outermost package that contains the file."""
    root = path if os.path.isdir(path) else os.path.dirname(path) or os.curdir
    while not os.path.isdir(path) and os.path.exists(
        os.path.join(os.path.dirname(os.path.abspath(root)), "__init__.py")
    ):
        root = os.path.relpath(os.path.dirname(os.path.abspath(root)))
    return root


def _load(root: str, module: str) -> ModuleType:
    """Load a module of the suite. The suite's folder is a package with or without __init__.py, even if another package
    has its name. The suite's parent folder is not put on sys.path: the measured code is in the working directory."""
    package, root = os.path.basename(os.path.abspath(root)), os.path.abspath(root)
    if getattr(sys.modules.get(package), "__path__", None) != [root]:
        made = sys.modules[package] = ModuleType(package)
        made.__path__ = [root]
        start = os.path.join(root, "__init__.py")
        if os.path.exists(start):
            spec = importlib.util.spec_from_file_location(package, start, submodule_search_locations=[root])
            assert spec is not None
            assert spec.loader is not None
            sys.modules[package] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[package])
    return importlib.import_module(package if module in ("__init__", os.curdir) else f"{package}.{module}")


def _find_benchmarks(module: ModuleType, path: str) -> Iterator[AsvBenchmark]:
    prefix = "" if path == "__init__" else f"{path}."
    for name, value in list(vars(module).items()):
        if name.startswith("_"):
            continue
        if inspect.isclass(value) and not inspect.isabstract(value):
            methods = inspect.getmembers(value, inspect.isfunction)
            kinds = {own: kind for own, each in methods if (kind := _find_kind(each, own)) and not own.startswith("_")}
            made = value() if kinds else None
            for own, kind in kinds.items():
                call = getattr(made, own)
                yield AsvBenchmark(f"{prefix}{name}.{own}", kind, call, (call, made, module))
        elif inspect.isfunction(value) and (kind := _find_kind(value, name)):
            yield AsvBenchmark(prefix + name, kind, value, (value, module))


def _find_kind(function: Callable[..., Any], name: str) -> str:
    match = _NAME.fullmatch(str(getattr(function, "benchmark_name", name)).rpartition(".")[2])
    return (match[1] or match[2]).lower() if match else ""


# ---------------------------------------------------------------- running a benchmark


def run_asv(path: str, text: str) -> Mapping[str, str]:
    """Run a benchmark in a temporary folder, as asv does. Returns the parameters by name."""
    benchmark, values = _find_one(_find_root(path), text)
    sys.path[:] = [each or os.getcwd() for each in sys.path]
    here = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="assay-asv-") as folder:
        os.chdir(folder)
        try:
            _run(benchmark, (*_load_cache(benchmark), *values))
        finally:
            os.chdir(here)
    names = list(benchmark.get("param_names", ()))
    names += [f"param{number}" for number in range(len(names) + 1, len(values) + 1)]
    return {str(name): str(value) for name, value in zip(names, values, strict=False)}


def _find_one(root: str, text: str) -> tuple[AsvBenchmark, tuple[Any, ...]]:
    own = text.partition("(")[0]
    parts = own.split(".")
    paths = [os.path.join(root, *parts[:count]) for count in range(1, len(parts) + 1)]
    known = [n for n, path in enumerate(paths, 1) if any(map(os.path.exists, (f"{path}/__init__.py", f"{path}.py")))]
    module = ".".join(parts[: known[-1]]) if known else "__init__"
    for each in _find_benchmarks(_load(root, module), module):
        for name, values in each.parameters if each.path == own else ():
            if text == own + name:
                return each, values
    raise NoSuchBenchmarkError(f"{root} has no benchmark {text!r}")


def _load_cache(benchmark: AsvBenchmark) -> tuple[Any, ...]:
    """Return the result of `setup_cache`, called in another process, so that its memory is not the benchmark's."""
    make = benchmark.get("setup_cache")
    if make is None:
        return ()
    path = os.path.join(tempfile.mkdtemp(dir=os.getcwd()), "cache")
    pid = os.fork()
    if pid == 0:
        try:
            content = pickle.dumps((make(), ""))
        except BaseException as error:  # noqa: BLE001 it may raise anything, and the parent reports it
            content = pickle.dumps((None, f"{type(error).__name__}: {error}"))
        with open(path, "wb") as file:
            file.write(content)
        os._exit(0)
    os.waitpid(pid, 0)
    if not os.path.exists(path):
        raise RuntimeError("setup_cache failed: its process was ended")
    with open(path, "rb") as file:
        made, problem = pickle.load(file)  # noqa: S301 written by our own child
    if problem:
        raise RuntimeError(f"setup_cache failed: {problem}")
    return () if made is None else (made,)


def _run(benchmark: AsvBenchmark, values: tuple[Any, ...]) -> None:
    setups = [each.setup for each in reversed(benchmark.sources) if hasattr(each, "setup")]
    teardowns = [each.teardown for each in benchmark.sources if hasattr(each, "teardown")]
    for function in (*setups, benchmark.call, *teardowns):
        _check_arguments(benchmark, function, values)

    def call(functions: Sequence[Callable[..., Any]]) -> None:
        for each in functions:
            each(*values)

    try:
        call(setups)
    except NotImplementedError as error:
        raise SkippedError(str(error) or "its setup raised NotImplementedError") from None
    try:
        _MEASURES[benchmark.kind](benchmark, lambda: benchmark.call(*values), lambda: call([*teardowns, *setups]))
    except NotImplementedError as error:
        if type(error).__name__ != "SkipNotImplemented":  # asv's decorators raise SkipNotImplemented
            raise
        raise SkippedError(str(error)) from None
    finally:
        call(teardowns)


def _check_arguments(benchmark: AsvBenchmark, function: Callable[..., Any], values: tuple[Any, ...]) -> None:
    check_runs(function)
    with suppress(ValueError):  # a function written in C has no signature
        signature = inspect.signature(function)
        try:
            signature.bind(*values)
        except TypeError:
            what = f"{function.__qualname__}{signature} is called with {len(values)} arguments"
            cache = " (the first is what setup_cache returned)" if benchmark.get("setup_cache") else ""
            given = f"({', '.join(name_values(values))})"
            raise TypeError(f"{what}, {given}{cache}: `params` does not fit it") from None


def _count_samples(benchmark: AsvBenchmark, call: Callable[[], Any], again: Callable[[], None]) -> int:
    """Return the number of samples, from asv's `repeat`: a number, or (least, most, seconds)."""
    repeat = benchmark.get("repeat", 0)
    if isinstance(repeat, int) and repeat:
        return repeat
    began = time.perf_counter()
    call()
    again()
    once_s = max(time.perf_counter() - began, _SAMPLE_S)
    least, most, seconds = repeat or (min(_FEWEST, int(_LONGEST_S / once_s)), _MOST, _SECONDS)
    return max(1, min(int(most), max(int(least), int(seconds / once_s))))


def _time(benchmark: AsvBenchmark, call: Callable[[], Any], again: Callable[[], None]) -> None:
    number, count = int(benchmark.get("number", 0)) or None, _count_samples(benchmark, call, again)
    if (timer := benchmark.get("timer", timeit.default_timer)) is not timeit.default_timer:  # such as time.process_time
        clock = timeit.Timer(call, again, timer)
        number = number or clock.autorange()[0]
        _report_samples([each / number for each in clock.repeat(count, number)], number)
        return
    least_s = float(benchmark.get("sample_time", _SAMPLE_S))
    report_timing(measure(call, repeats=count, warmup=number and 1, inner=number, before=again, shortest_s=least_s))


def _report_samples(samples: Sequence[float], number: int) -> None:
    leave_fork()
    middle = sorted(samples)[len(samples) // 2]
    report_benchmark(iters=len(samples) * number, wall_time=middle, samples={"wall_time": samples})


def _time_raw(benchmark: AsvBenchmark, call: Callable[[], Any], again: Callable[[], None]) -> None:
    """Time a statement, or a statement with its preparation, in a new interpreter for each sample."""
    code = call()
    statement, start = map(textwrap.dedent, (code, "") if isinstance(code, str) else code)
    number = int(benchmark.get("number", 0)) or 1
    script = f"import timeit; print(timeit.timeit({statement!r}, {start!r}, number={number}))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def sample() -> float:
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"its code failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
        return float(done.stdout.split()[-1]) / number

    _report_samples([sample() for _ in range(_count_samples(benchmark, sample, again))], number)


def _track(benchmark: AsvBenchmark, call: Callable[[], Any], _again: Callable[[], None]) -> None:
    if (value := call()) is None:
        raise TypeError("it returned None, which is not a number")
    _report(benchmark, benchmark.path.rpartition(".")[2], value)


def _peak(benchmark: AsvBenchmark, call: Callable[[], Any], _again: Callable[[], None]) -> None:
    call()
    _report(benchmark, "peak_memory", load_peaks()["max_rss"])


def _size(benchmark: AsvBenchmark, call: Callable[[], Any], _again: Callable[[], None]) -> None:
    """Report the size of the function's result: how much more memory it and a copy take than the object alone."""
    try:
        measure_size = importlib.import_module("pympler.asizeof").asizeof
    except ImportError:
        raise SkippedError("asv's mem_ needs pympler, which its interpreter does not have") from None
    made = call()
    _report(benchmark, "memory", measure_size([made, copy.copy(made)]) - measure_size([made, made]))


def _report(benchmark: AsvBenchmark, name: str, value: object) -> None:
    leave_fork()
    unit = benchmark.get("unit")
    report_benchmark(metrics=[{"name": name, "value": value}], extras={"unit": str(unit)} if unit else None)


_MEASURES = {"time": _time, "timeraw": _time_raw, "track": _track, "peakmem": _peak, "mem": _size}
