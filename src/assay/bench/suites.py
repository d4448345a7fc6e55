"""Lists and runs unchanged suites of other tools: `PATH`, or `PATH::NAME` for a part of a suite.

    benchmarks, benchmarks/sorting.py, asv.conf.json     asv's `time_`, `timeraw_`, `peakmem_`, `mem_`, `track_`
    tests, tests/test_sorting.py                         tests that use pytest's fixture `benchmark`

A file is pytest's if a function in it takes `benchmark`; other files, unless they are tests, are asv's. The imports of
this module need only the standard library, and Python 3.10.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from assay.bench.asv_suite import list_asv, run_asv
from assay.bench.suite_benchmark import NoSuchBenchmarkError, SuiteBenchmark
from assay.errors import did_you_mean

_TEST = re.compile(r"def \w+\([^)]*\bbenchmark\b")
_ASV = re.compile(r"(?m)^\s*(?:def (?:time|timeraw|peakmem|mem|track)_|class (?:Time|Timeraw|PeakMem|Mem|Track)[A-Z_])")
_BENCHMARK_DIR = re.compile(r"""["']?\bbenchmark_dir["']?\s*:\s*["']([^"']+)["']""")
_COMMENT = re.compile(r"(?m)^\s*//.*$")  # a comment in asv.conf.json, which is JSON with comments
_BOUNDARIES = ("", ".", ":", "(", "[")  # characters that may follow the name of a part


def list_suite(text: str) -> list[SuiteBenchmark]:
    """List the benchmarks of a suite or a part of it; the run of a module that cannot be imported reports why."""
    path, name = _split(text)
    tests, others = _find_files(path)
    found: list[SuiteBenchmark] = []
    if tests:
        from assay.bench.pytest_suite import list_tests

        found += list_tests(tests)
    if others:
        found += list_asv(path, others)
    module = f"{os.path.basename(path)[:-3]}." if path.endswith(".py") else ""
    chosen = [each for each in found if _is_part(name, each, module)]
    if not chosen:
        known = [each.text.partition("::")[2] for each in found]
        hint = did_you_mean(name, known) or (f"it has: {', '.join(known[:6])}" if known else _FORMS)
        raise NoSuchBenchmarkError(f"{path} has no benchmark{f' {name!r}' if name else ''}; {hint}")
    return chosen


_FORMS = "one is a method time_x of asv's kind, or a test that takes pytest's fixture `benchmark`"


def run_suite(text: str) -> Mapping[str, Any]:
    """Run one listed benchmark; return data to store with its report. Raises SkippedError if it does not apply."""
    path, name = _split(text)
    is_test = os.path.isfile(path) and bool(_find_files(path)[0])
    if not name and not is_test:  # a placeholder for a suite that could not be listed
        list_suite(text)  # raises the reason, unless the listing takes too long
        raise NoSuchBenchmarkError(
            f"to list the benchmarks of {path} takes longer than 5 minutes: name one, {path}::NAME"
        )
    try:
        if is_test:
            from assay.bench.pytest_suite import run_test

            return {"parameters": run_test(path, name)}
        return {"parameters": run_asv(path, name)}
    except NoSuchBenchmarkError:
        list_suite(text)  # raises an error that lists the benchmarks
        raise


def _split(text: str) -> tuple[str, str]:
    path, _, name = text.partition("::")
    if not os.path.exists(path):
        hint = "; a benchmark of a module is module.Class.method" if os.sep not in path else ""
        raise NoSuchBenchmarkError(f"there is no file or folder {path!r} in {os.getcwd()}{hint}")
    if path.endswith(".json"):
        with open(path, encoding="utf-8") as file:
            match = _BENCHMARK_DIR.search(_COMMENT.sub("", file.read()))
        path = os.path.join(os.path.dirname(path), match[1] if match else "benchmarks")
        if not os.path.isdir(path):
            raise NoSuchBenchmarkError(f"there is no folder {path!r}, which {text!r} names")
    return os.path.normpath(path), name


def _find_files(path: str) -> tuple[list[str], list[str]]:
    """Find the files with pytest's benchmarks, and the files that are not tests if any file has benchmarks of asv's."""
    tests: list[str] = []
    others: list[str] = []
    is_asv = False
    files = [path] if os.path.isfile(path) else []
    for base, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        files += (os.path.join(base, name) for name in sorted(names) if name.endswith(".py"))
    for file in files:
        with open(file, encoding="utf-8", errors="replace") as opened:
            content = opened.read()
        is_asv = is_asv or bool(_ASV.search(content))
        is_test = _TEST.search(content) or os.path.basename(file).startswith(("test_", "conftest."))
        (tests if _TEST.search(content) else [] if is_test else others).append(file)
    return tests, others if is_asv else []


def _is_part(name: str, benchmark: SuiteBenchmark, module: str) -> bool:
    """Return whether a name matches a benchmark; in a suite that is one file, `module` may be left out of the name."""
    own = benchmark.text.partition("::")[2]
    names = (own, own.removeprefix(module), benchmark.name)
    return not name or any(n.startswith(name) and n[len(name) : len(name) + 1] in _BOUNDARIES for n in names)
