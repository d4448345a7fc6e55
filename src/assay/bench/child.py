"""`python -m assay child bench`: runs one benchmark in one process, which writes lines to report.jsonl.

    run METHOD …        begin, report …, end
    list FILTER …       the methods that filters match, and the benchmarks of suites, as JSON on stdout

The parent process reads the lines afterwards. A process that was killed or exited by os._exit writes no `end` line, but
its `report` lines count."""

from __future__ import annotations

import argparse
import faulthandler
import glob
import importlib
import inspect
import json
import os
import re
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from assay.bench.benchmark import ENV_BENCH_REPORT, ENV_TF_REPORT, Benchmark, leave_fork, write_line
from assay.bench.framework import add_path_hint, find_framework, find_packages, is_library, load_peaks
from assay.bench.suite_benchmark import NoSuchBenchmarkError, SkippedError, check_runs, is_suite
from assay.errors import did_you_mean
from assay.system.fast_dataclasses import asdict, dataclass, field

_LAST_LINES = 40
LEAST_PROFILED = (3, 11)  # the lowest version of Python that runs our profilers; benchmarks run on an older one too
_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__))


def main(arguments: Sequence[str] | None = None) -> int:
    options = _build_parser().parse_args(arguments)
    sys.path[:0] = [os.path.abspath(path) for path in options.first_path]
    sys.path.extend(path for path in options.path if path not in sys.path)
    given = Arguments(options.output_dir, options.data_dir, options.tpu, options.args, options.only_args)
    return _list(options, given) if options.action == "list" else _run(options, given)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m assay child bench", description=__doc__)
    parser.add_argument("action", choices=["run", "list"])
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--args", type=json.loads, default={})
    parser.add_argument("--only-args", action="store_true")
    for flag in ("--path", "--first-path"):
        parser.add_argument(flag, action="append", default=[])
    parser.add_argument("--tpu")
    parser.add_argument("--profile")
    parser.add_argument("--profiler", default="auto")
    for flag in ("--output-dir", "--data-dir", "--profile-dir", "--py-spy"):
        parser.add_argument(flag, default="")
    return parser


def _list(options: argparse.Namespace, arguments: Arguments) -> int:
    """Print the benchmarks that were found as JSON. Output of the modules goes to stderr."""
    ours, sys.stdout = sys.stdout, sys.stderr
    found: dict[str, object] = {}
    for text in options.methods:
        try:
            if is_suite(text):
                from assay.bench.suites import list_suite

                found[text] = [asdict(each) for each in list_suite(text)]
            else:
                found[text] = [{"text": name, "name": name} for name in find_matches(text, arguments)]
        except BaseException as error:  # noqa: BLE001 a module may do anything when it is imported
            found[text] = f"{type(error).__name__}: {error}"
    ours.write(json.dumps(found))
    return 0


# ---------------------------------------------------------------- run


def _run(options: argparse.Namespace, arguments: Arguments) -> int:
    (method,) = options.methods
    write_line({"kind": "begin", "time": time.time(), "pid": os.getpid(), "python": sys.version.split()[0]})
    with suppress(OSError, ValueError, AttributeError):  # without a stderr a crash in native code prints no stack
        faulthandler.enable()
    end: dict[str, Any] = {"kind": "end", "ok": False}
    try:
        if is_suite(method):
            from assay.bench.suites import run_suite

            _execute(lambda: end.update(run_suite(method)), options, end)
        else:
            if ".filter:" in method:  # filters are resolved before; an unresolved one raises its reason here
                find_matches(method, arguments)
            target = find_target(method)
            _execute(target.build(arguments), options, end, is_plain=target.is_plain)
        end["ok"] = True
    except SkippedError as skip:
        end |= {"ok": True, "skipped": str(skip)}
    except SystemExit as leave:
        end["ok"] = leave.code in (None, 0)
        end["error"] = {"type": "SystemExit", "message": f"it called sys.exit({leave.code!r})"}
    except NoSuchBenchmarkError as error:
        end["error"] = {"type": "NoSuchBenchmark", "message": str(error)}
        print(f"assay: {error}", file=sys.stderr)
    except BaseException as error:  # noqa: BLE001 a benchmark may raise anything, and its failure is its result
        lines = _render_traceback(error)
        print(lines, end="", file=sys.stderr)
        last = lines.splitlines()[-_LAST_LINES:]
        end["error"] = {"type": type(error).__name__, "message": _describe(error), "lines": last}
    end |= {"time": time.time(), "framework": find_framework(), "packages": find_packages(), "peaks": load_peaks()}
    write_line(end)
    return 0 if end["ok"] else 1


def _execute(
    call: Callable[..., Any], options: argparse.Namespace, end: dict[str, Any], *, is_plain: bool = False
) -> None:
    profile = None
    if options.profile and sys.version_info < LEAST_PROFILED:
        own, least = (".".join(map(str, version[:2])) for version in (sys.version_info, LEAST_PROFILED))
        end["profile_notes"] = [f"it has no profile: that needs Python {least} or newer, and it runs on {own}"]
    elif options.profile:
        from assay.bench.profiling import Profile
        from assay.bench.values.execution import parse_windows

        profile = Profile(parse_windows(options.profile), options.profiler, options.profile_dir, options.py_spy)
        profile.start()
    began, cpu = time.perf_counter(), time.process_time()
    try:
        before = _count_reports()
        call()
        leave_fork()
        if is_plain and _count_reports() == before:
            bench = Benchmark()
            timing = bench.measure(call, warmup=2)
            bench.report_benchmark(iters=timing.iters, wall_time=timing.median_s)
    finally:
        end["wall_s"], end["cpu_s"] = time.perf_counter() - began, time.process_time() - cpu
        end["profiles"] = profile.finish() if profile else []
        if profile and profile.notes:
            end["profile_notes"] = profile.notes


def _count_reports() -> tuple[int, int]:
    """Return the size of our report, and the number of files that TensorFlow's own report_benchmark wrote."""
    path, prefix = os.environ.get(ENV_BENCH_REPORT), os.environ.get(ENV_TF_REPORT)
    size = os.stat(path).st_size if path and os.path.exists(path) else 0
    return size, len(glob.glob(f"{glob.escape(prefix)}*")) if prefix else 0


# ---------------------------------------------------------------- what went wrong


def _describe(error: BaseException) -> str:
    """Return the message of an error, with a hint: a missing framework is often installed for another interpreter."""
    if isinstance(error, ModuleNotFoundError) and is_library((error.name or "").split(".")[0]):
        return f"{error}; {sys.executable} does not have it: name an interpreter that does with --python PATH"
    if isinstance(error, MemoryError) and not str(error):
        return "Python could not get the memory that it asked for (the error has no message of its own)"
    return add_path_hint(str(error)) or "without a message"


def _render_traceback(error: BaseException) -> str:
    """Render the traceback from the user's first frame on, without our own frames before it."""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        is_import = file == importlib.__file__ or file.startswith("<frozen importlib")
        is_pytest = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in ("_pytest", "pluggy")
        if os.path.dirname(file) != _OWN_FOLDER and not is_import and not is_pytest:
            break
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


# ---------------------------------------------------------------- from `module.Class.method` to a callable


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments that a constructor may take."""

    output_dir: str = ""
    data_dir: str = ""
    tpu: str | None = None
    further: Mapping[str, Any] = field(default_factory=dict)
    only_further: bool = False  # class_type tf_benchmark: the constructor gets only these arguments


@dataclass(frozen=True, slots=True)
class BenchmarkTarget:
    """A benchmark that was found: a method of a class that is not yet instantiated, or a function."""

    owner: type | None
    name: str
    function: Callable[..., Any] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether Assay times the benchmark if it reports nothing; a class with `report_benchmark` has to report."""
        return not hasattr(self.owner, "report_benchmark")

    def build(self, arguments: Arguments) -> Callable[..., Any]:
        """Return the callable. For a method the object is created, which may raise."""
        if self.owner is None:
            assert self.function is not None
            _check_arguments(self.function, self.name, self.function)
            return self.function
        method = getattr(build_object(self.owner, arguments), self.name, None)
        if not callable(method):
            raise NoSuchBenchmarkError(f"{self.owner.__name__}.{self.name} cannot be called")
        found: Callable[..., Any] = method
        _check_arguments(found, f"{self.owner.__name__}.{self.name}", self.owner)
        return found


def _check_arguments(call: Callable[..., Any], name: str, owner: Any) -> None:
    """Check that a benchmark requires no argument, with a hint for benchmarks of asv's, which have `params`."""
    check_runs(call)
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # a function written in C
        return
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if wanted := [each.name for each in parameters if each.kind in kinds and each.default is each.empty]:
        text = f"{name} needs {', '.join(map(repr, wanted))}, but a benchmark is called without arguments"
        if hasattr(owner, "params"):
            file = shlex.quote(f"{os.path.relpath(inspect.getfile(owner))}::{owner.__qualname__}")
            text += f"; it is one of asv's, which are named by their file: `assay bench run {file}`"
        raise TypeError(text)


def find_target(text: str) -> BenchmarkTarget:
    """Find `module.Class.method`, `module.Class:method` or `module.function`."""
    module, names = load_module(text.replace(":", "."))
    if not names:
        raise NoSuchBenchmarkError(f"{text!r} is a module: name a function or Class.method in it")
    found: Any = module
    for index, name in enumerate(names):
        if index == len(names) - 1 and isinstance(found, type):
            if not callable(getattr(found, name, None)) and not hasattr(found, "__getattr__"):
                hint = did_you_mean(name, list_methods(found))
                raise NoSuchBenchmarkError(_join(f"{found.__name__} has no method {name!r}", hint))
            return BenchmarkTarget(found, name)
        found = _get_attribute(found, name, module)
    if isinstance(found, type):
        hint = did_you_mean("benchmark", list_methods(found)) or f"or {text}.filter:REGEX for several"
        raise NoSuchBenchmarkError(f"{text!r} is a class: name one of its methods; {hint}")
    if not callable(found):
        raise NoSuchBenchmarkError(f"{text!r} is not a function but {found!r}"[:300])
    return BenchmarkTarget(None, names[-1], found)


def _get_attribute(owner: Any, name: str, module: ModuleType) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        where = f"module {module.__name__}" if owner is module else owner.__name__
        known = [key for key, value in vars(owner).items() if callable(value) and not key.startswith("_")]
        raise NoSuchBenchmarkError(_join(f"{where} has no {name!r}", did_you_mean(name, known))) from None


def _join(text: str, hint: str | None) -> str:
    return f"{text}; {hint}" if hint else text


def load_module(path: str) -> tuple[ModuleType, list[str]]:
    """Load the longest part of a path that is a module; return also the names after it. Raises a module's own error."""
    parts = path.split(".")
    module: ModuleType | None = None
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the module itself imports something that is missing
            break
    if module is None:
        where = "modules are found in the working directory and on PYTHONPATH"
        raise NoSuchBenchmarkError(f"there is no module {parts[0]!r}; {where}")
    return module, parts[len(module.__name__.split(".")) :]


def list_methods(owner: type) -> list[str]:
    """List the names that a benchmark may have: everything callable that the class and its bases define."""
    plain = set(dir(object)) | {"report_benchmark", "measure"}
    named = (name for name in dir(owner) if name not in plain and not name.startswith("_"))
    return [name for name in named if callable(getattr(owner, name, None))]


def find_matches(text: str, arguments: Arguments) -> list[str]:
    """Return the full names of methods that match `module.Class.filter:REGEX`.

    The class is instantiated once, since its constructor may add methods; if that fails, the class itself is used.
    """
    path, _, pattern = text.partition(".filter:")
    module, names = load_module(path)
    owner: Any = module
    for name in names:
        owner = _get_attribute(owner, name, module)
    if not isinstance(owner, type):
        raise NoSuchBenchmarkError(f"{path!r} is not a class")
    try:
        listed = list_methods(build_object(owner, arguments))
    except Exception:  # noqa: BLE001 a constructor may need what only a real execution has
        listed = list_methods(owner)
    found = [name for name in listed if re.match(pattern, name)]
    if not found:
        raise NoSuchBenchmarkError(f"no method of {path} matches {pattern!r}; it has: {', '.join(listed) or 'none'}")
    return [f"{path}.{name}" for name in found]


def build_object(owner: type, arguments: Arguments) -> Any:
    """Create the object with the arguments that its constructor takes."""
    if arguments.only_further:
        return owner(**arguments.further)
    offered = {
        "output_dir": arguments.output_dir,
        "data_dir": arguments.data_dir,
        "root_data_dir": arguments.data_dir,
        "tpu": arguments.tpu,
        **arguments.further,
    }
    try:
        parameters = inspect.signature(owner).parameters.values()
    except (TypeError, ValueError):  # a constructor written in C
        return owner(**arguments.further)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return owner(**offered)
    taken = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if unknown := [name for name in arguments.further if name not in taken]:
        raise TypeError(f"the constructor of {owner.__name__} takes no {', '.join(map(repr, unknown))}")
    return owner(**{name: value for name, value in offered.items() if name in taken})


if __name__ == "__main__":
    sys.exit(main())
