"""`python -m assay child bench`: one benchmark in one process, which writes lines to report.jsonl.

    run METHOD …        begin, report …, end
    list FILTER …       the methods that filters match, as JSON on stdout

The parent reads the lines afterwards. There is no `end` line where the process was killed or exited by os._exit; what
was reported before that counts."""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from assay.bench.framework import find_framework, find_packages, is_library, load_peaks
from assay.bench.reporting import Benchmark, write_line
from assay.bench.resolve import Arguments, NoSuchBenchmarkError, Target, find_matches, find_target
from assay.bench.values.layout import ENV_BENCH_REPORT

if TYPE_CHECKING:
    from assay.bench.profiling import Profile

_LAST_LINES = 40
_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__))


def main(arguments: Sequence[str] | None = None) -> int:
    options = _build_parser().parse_args(arguments)
    sys.path[:0] = [os.path.abspath(path) for path in options.first_path]
    sys.path.extend(path for path in options.path if path not in sys.path)
    return _list(options) if options.action == "list" else _run(options)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m assay child bench", description=__doc__)
    parser.add_argument("action", choices=["run", "list"])
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--output-dir", default="")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--tpu")
    parser.add_argument("--args", type=json.loads, default={})
    parser.add_argument("--only-args", action="store_true")
    parser.add_argument("--path", action="append", default=[])
    parser.add_argument("--first-path", action="append", default=[])
    parser.add_argument("--profile")
    parser.add_argument("--profiler", default="auto")
    parser.add_argument("--profile-dir", default="")
    parser.add_argument("--py-spy", default="")
    return parser


def _build_arguments(options: argparse.Namespace) -> Arguments:
    return Arguments(options.output_dir, options.data_dir, options.tpu, options.args, options.only_args)


def _list(options: argparse.Namespace) -> int:
    """Whatever the modules print goes to stderr; stdout is ours."""
    ours, sys.stdout = sys.stdout, sys.stderr
    found: dict[str, object] = {}
    for text in options.methods:
        try:
            found[text] = find_matches(text, _build_arguments(options))
        except BaseException as error:  # noqa: BLE001 a module may do anything when it is imported
            found[text] = f"{type(error).__name__}: {error}"
    ours.write(json.dumps(found))
    return 0


# ---------------------------------------------------------------- run


def _run(options: argparse.Namespace) -> int:
    (method,) = options.methods
    write_line({"kind": "begin", "time": time.time(), "pid": os.getpid(), "python": sys.version.split()[0]})
    _show_crashes()
    end: dict[str, Any] = {"kind": "end", "ok": False}
    try:
        target = _find(method, options)
        call = target.build(_build_arguments(options))
        _execute(target, call, options, end)
        end["ok"] = True
    except SystemExit as leave:
        end["ok"] = leave.code in (None, 0)
        end["error"] = {"type": "SystemExit", "message": f"it called sys.exit({leave.code!r})"}
    except NoSuchBenchmarkError as error:
        end["error"] = {"type": "NoSuchBenchmark", "message": str(error)}
        print(f"assay: {error}", file=sys.stderr)
    except BaseException as error:  # noqa: BLE001 a benchmark may raise anything, and its failure is its result
        end["error"] = {
            "type": type(error).__name__,
            "message": _describe(error),
            "lines": _render_traceback(error).splitlines()[-_LAST_LINES:],
        }
        print(_render_traceback(error), end="", file=sys.stderr)
    end |= {"time": time.time(), "framework": find_framework(), "packages": find_packages(), "peaks": load_peaks()}
    write_line(end)
    return 0 if end["ok"] else 1


def _show_crashes() -> None:
    """A crash in native code prints the Python stack, if there is a stderr."""
    with suppress(OSError, ValueError, AttributeError):
        faulthandler.enable()


def _find(method: str, options: argparse.Namespace) -> Target:
    if ".filter:" in method:
        raise NoSuchBenchmarkError(_explain_filter(method, options))
    return find_target(method)


def _explain_filter(method: str, options: argparse.Namespace) -> str:
    """Filters are resolved before: one that arrives here could not be resolved."""
    try:
        find_matches(method, _build_arguments(options))
    except NoSuchBenchmarkError as error:
        return str(error)
    return f"{method!r} could not be resolved"


def _execute(target: Target, call: Callable[..., Any], options: argparse.Namespace, end: dict[str, Any]) -> None:
    profile = _start_profile(options)
    began, cpu = time.perf_counter(), time.process_time()
    try:
        if target.owner is None:
            _call_function(call)
        else:
            call()
    finally:
        end["wall_s"], end["cpu_s"] = time.perf_counter() - began, time.process_time() - cpu
        end["profiles"] = profile.finish() if profile else []
        if profile and profile.notes:
            end["profile_notes"] = profile.notes


def _call_function(call: Callable[..., Any]) -> None:
    """A plain function that reports nothing is timed."""
    before = _count_reports()
    call()
    if _count_reports() != before:
        return
    bench = Benchmark()
    timing = bench.measure(call, warmup=2)
    bench.report_benchmark(iters=timing.iters, wall_time=timing.median_s)


def _count_reports() -> int:
    path = os.environ.get(ENV_BENCH_REPORT)
    try:
        return os.stat(path).st_size if path else 0
    except OSError:
        return 0


def _start_profile(options: argparse.Namespace) -> Profile | None:
    if not options.profile:
        return None
    from assay.bench.profiling import Profile
    from assay.bench.values.execution import parse_windows

    profile = Profile(parse_windows(options.profile), options.profiler, options.profile_dir, options.py_spy)
    profile.start()
    return profile


# ---------------------------------------------------------------- what went wrong


def _describe(error: BaseException) -> str:
    """A framework that is missing here is often installed for another interpreter."""
    if isinstance(error, ModuleNotFoundError) and is_library((error.name or "").split(".")[0]):
        return f"{error}; {sys.executable} does not have it: name an interpreter that does with --python PATH"
    if isinstance(error, MemoryError) and not str(error):
        return "Python could not get the memory that it asked for (the error has no message of its own)"
    return str(error) or "without a message"


def _render_traceback(error: BaseException) -> str:
    """From the user's first frame on: our own frames do not show what is wrong."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _is_ours(file: str) -> bool:
    """Our own frame, or one of the import system."""
    return os.path.dirname(file) == _OWN_FOLDER or file == importlib.__file__ or file.startswith("<frozen importlib")


if __name__ == "__main__":
    sys.exit(main())
