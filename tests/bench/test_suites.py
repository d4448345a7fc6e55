"""Suites of asv and of pytest's fixture, as their own tools know them; each benchmark is a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from assay.bench.benchmark import ENV_BENCH_REPORT
from assay.bench.child_report import load_child_report
from assay.bench.suite_benchmark import is_suite, name_values
from assay.bench.values.execution import ChildReport

ASV = {
    "asv.conf.json": '{\n    // "benchmark_dir": "old",\n    "version": 1, "benchmark_dir": "benchmarks",\n}\n',
    "code_under_test.py": "def order(numbers): return sorted(numbers)\n",
    "benchmarks/__init__.py": "",
    "benchmarks/common.py": "def make(size, order): return list(range(size)) if order == 'up' else list(range(size, 0, -1))\n",
    "benchmarks/broken.py": "import a_module_that_is_not_there\n\ndef time_x(): ...\n",
    "benchmarks/sorting.py": """
import os
from code_under_test import order as sort
from .common import make

class Sorting:
    params = ([10, 100], ["up", "down"])
    param_names = ["size", "order"]
    number, repeat, timeout = 1, 3, 30
    def setup(self, size, order):
        if size == 100 and order == "down":
            raise NotImplementedError("too large")
        self.numbers = make(size, order)
    def time_sort(self, size, order):
        assert len(self.numbers) == size
        self.numbers.clear()  # the next sample has a new setup
    def track_length(self, size, order): return len(sort(self.numbers))
    track_length.unit = "items"

class Cached:
    number, repeat = 1, 2
    def setup_cache(self):
        with open("written", "w") as file: file.write("xyz")
        return {"pid": os.getpid()}
    def track_other_process(self, cache): return int(cache["pid"] != os.getpid())
    def track_file(self, cache): return len(open("written").read())

class Wrong:
    params = [1]
    def time_none(self): ...

class Functions:
    params = [lambda: 3, lambda: 4]
    def track_call(self, function): return function()

class Broken:
    def setup_cache(self): raise ValueError("no data")
    def time_x(self, cache): ...

class Ended:
    def setup_cache(self): os._exit(3)
    def time_x(self, cache): ...

def track_nothing(): ...
def track_fork(): return 99 if os.fork() == 0 else os.wait()[1] or 1
def time_clock(): time_clock.now += 2
def tick(): return time_clock.now
time_clock.now, time_clock.timer, time_clock.number, time_clock.repeat = 0, tick, 3, 4
async def time_never(): ...
def mem_list(): return [0]
def peakmem_list(): [0] * 5_000_000
def timeraw_json(): return "json.dumps(1)", "import json"
timeraw_json.repeat = 2
""",
}
TESTS = {
    "refused/conftest.py": "import a_module_that_is_not_there\n",
    "refused/test_conftest.py": "def test_x(benchmark): benchmark(int)\n",
    "conftest.py": """
import pytest

class Other:  # as pytest-benchmark, which refuses any other fixture of this name
    @pytest.fixture
    def benchmark(self): raise AssertionError("not mine")
    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        yield
        assert "benchmark" not in item.funcargs

def pytest_configure(config):
    config.pluginmanager.register(Other(), "benchmark")
""",
    "test_broken.py": "import a_module_that_is_not_there\n\ndef test_x(benchmark): ...\n",
    "pytest.ini": "[pytest]\naddopts = --an-option-of-another-plugin\n",
    "test_fib.py": """
import pytest

def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)

@pytest.mark.benchmark(max_time=0.02)
@pytest.mark.parametrize("n", [2, 5])
def test_fib(benchmark, n):
    assert benchmark(fib, n) == (1 if n == 2 else 5)
    benchmark.extra_info["calls"] = 7

@pytest.mark.benchmark(group="exact")
def test_pedantic(benchmark):
    made = []
    def setup():
        made.append(1)
        return ([3, 2, 1],), {"reverse": False}
    assert benchmark.pedantic(sorted, setup=setup, rounds=4, warmup_rounds=2) == [1, 2, 3]
    assert len(made) == 6
    assert benchmark.stats["rounds"] == 4 and benchmark.stats.stats.min <= benchmark.stats.mean
    with pytest.raises(RuntimeError, match="once"):
        benchmark(fib, 2)

def test_fails(benchmark):
    assert benchmark(fib, 3) == 9

def test_skips(benchmark): pytest.skip("not here")
@pytest.mark.xfail(reason="known")
def test_expected(benchmark): raise ValueError
@pytest.mark.xfail(strict=True)
def test_passes(benchmark): benchmark(fib, 2)
def test_unused(benchmark): ...
def test_exits(benchmark): pytest.exit("enough", returncode=0)
async def wait(): ...
def test_awaited(benchmark): benchmark(wait)
def test_plain(): ...
""",
}


SKIPPED = {
    "benchmarks::sorting.mem_list": "asv's mem_ needs pympler, which its interpreter does not have",
    "benchmarks::sorting.Sorting.time_sort(100, 'down')": "too large",
    "test_fib.py::test_skips": "not here",
    "test_fib.py::test_expected": "it is expected to fail: known",
}
WRONG = {
    "benchmarks::sorting.Wrong.time_none(1)": "Wrong.time_none() is called with 1 arguments, (1): `params` does not fit it",
    "benchmarks::sorting.Broken.time_x": "setup_cache failed: ValueError: no data",
    "benchmarks::sorting.Ended.time_x": "setup_cache failed: its process was ended",
    "benchmarks::sorting.track_nothing": "it returned None, which is not a number",
    "benchmarks::sorting.time_never": "time_never is a coroutine or a generator: a call of it runs nothing",
    "benchmarks::broken": "No module named 'a_module_that_is_not_there'",
    "test_fib.py::test_fails": "assert 2 == 9\n +  where 2 = benchmark(fib, 3)",
    "test_fib.py::test_passes": "[XPASS(strict)]",
    "test_broken.py::": "test_broken.py cannot be collected by pytest: ModuleNotFoundError: No module named 'a_module",
    "refused/test_conftest.py::": "pytest cannot run refused/test_conftest.py and ends with exit code 4",
    "test_fib.py::test_awaited": "the function returned a coroutine, which nothing awaits",
    "test_fib.py::test_unused": "the test did not call its fixture `benchmark`",
    "test_fib.py::test_exits": "enough",
    "nowhere": "there is no file or folder 'nowhere'",
}
TRACKED = {  # the cache is made by another process, in the folder that the benchmark runs in
    "benchmarks::sorting.Sorting.track_length(100, 'up')": ("track_length", 100),
    "benchmarks::sorting.track_fork": ("track_fork", 1),
    "benchmarks::sorting.Cached.track_other_process": ("track_other_process", 1),
    "benchmarks::sorting.Cached.track_file": ("track_file", 3),
    "benchmarks::sorting.Functions.track_call(<function Functions.<lambda>> (1))": ("track_call", 4),
}
GOOD = ("benchmarks::sorting.Sorting.time_sort(10, 'down')", "benchmarks::sorting.timeraw_json")
GOOD += ("test_fib.py::test_fib[5]", "test_fib.py::test_pedantic", "benchmarks::sorting.peakmem_list")
GOOD += ("benchmarks::sorting.time_clock",)
# one after another in one process: pytest takes longer to load than they take
MANY = f"""
import os, sys
from assay.bench.child import main
for number, name in enumerate(sys.argv[1:]):
    os.environ[{ENV_BENCH_REPORT!r}] = f"{{os.getcwd()}}/report-{{number}}.jsonl"
    main(["run", name])
"""


def call(folder: Path, *words: str) -> str:
    """A new interpreter: one that is forked takes longer to load pytest."""
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suites")
    for name, text in {**ASV, **TESTS, "many.py": MANY}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def reported(folder: Path) -> dict[str, ChildReport]:
    names = (*SKIPPED, *WRONG, *TRACKED, *GOOD)
    call(folder, "many.py", *names)
    return {name: load_child_report(str(folder / f"report-{number}.jsonl")) for number, name in enumerate(names)}


def test_a_suite_lists_its_benchmarks_with_parameters_and_names_of_its_own_tool(folder: Path) -> None:
    words = ("asv.conf.json", "benchmarks/sorting.py::Sorting", "test_fib.py", "benchmarks::sorting.Nothing", "refused")
    found = json.loads(call(folder, "-m", "assay", "child", "bench", "list", *words))
    names = [each["name"] for each in found["asv.conf.json"]]
    assert names[:3] == ["broken", "sorting.Sorting.time_sort(10, 'up')", "sorting.Sorting.time_sort(10, 'down')"]
    assert names[-2:] == ["sorting.peakmem_list", "sorting.timeraw_json"]
    sorting = found["benchmarks/sorting.py::Sorting"]
    assert len(sorting) == 8
    assert sorting[0]["text"] == "benchmarks::sorting.Sorting.time_sort(10, 'up')"
    assert {each["timeout_s"] for each in sorting} == {30.0}
    tests = ("fib[2]", "fib[5]", "pedantic", "fails", "skips", "expected", "passes", "unused", "exits", "awaited")
    assert [each["name"] for each in found["test_fib.py"]] == [f"test_fib.py::test_{name}" for name in tests]
    assert [each["name"] for each in found["refused"]] == ["refused/test_conftest.py"]
    none = "NoSuchBenchmarkError: benchmarks has no benchmark 'sorting.Nothing'"
    assert found["benchmarks::sorting.Nothing"].startswith(none)


def test_a_method_of_asv_is_prepared_before_each_sample(reported: dict[str, ChildReport]) -> None:
    found = reported[GOOD[0]]
    (report,) = found.reports
    assert len(report["samples"]["wall_time"]) == 3
    assert found.end["parameters"] == {"size": "10", "order": "down"}
    assert found.end["ok"] is True
    (report,) = reported[GOOD[-1]].reports
    assert report["samples"]["wall_time"] == [2.0] * 4, "by its own clock"


def test_what_asv_tracks_is_a_metric_of_its_name(reported: dict[str, ChildReport]) -> None:
    for name, metric in TRACKED.items():
        assert [(each["name"], each["value"]) for each in reported[name].reports[0]["metrics"]] == [metric]
        assert len(reported[name].reports) == 1, "a child that it forked reports nothing"
    (peak,) = reported["benchmarks::sorting.peakmem_list"].reports[0]["metrics"]
    before = reported["test_fib.py::test_pedantic"].end["peaks"]["max_rss"]
    assert peak["name"] == "peak_memory"
    assert before + 30_000_000 < peak["value"] < before + 90_000_000
    assert len(reported[GOOD[1]].reports[0]["samples"]["wall_time"]) == 2, "each in a new interpreter"


@pytest.mark.parametrize("name", [*SKIPPED, *WRONG])
def test_what_does_not_apply_is_skipped_and_what_is_wrong_is_reported(
    reported: dict[str, ChildReport], name: str
) -> None:
    end, reports = reported[name].end, reported[name].reports
    if name in SKIPPED:
        assert (end["skipped"], end["ok"], reports) == (SKIPPED[name], True, ())
    else:
        assert end["ok"] is False
        assert end["error"]["message"].startswith(WRONG[name])


def test_the_fixture_of_pytest_measures_although_another_plug_in_has_one(reported: dict[str, ChildReport]) -> None:
    found = reported["test_fib.py::test_fib[5]"]
    (report,) = found.reports
    assert report["wall_time"] > 0
    assert report["extras"] == {"calls": 7}
    assert found.end["parameters"] == {"n": "5"}
    (exact,) = reported["test_fib.py::test_pedantic"].reports
    assert len(exact["samples"]["wall_time"]) == exact["iters"] == 4
    assert exact["extras"] == {"group": "exact"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("benchmarks", True), (".", True), ("a/b.py", True), ("asv.conf.json", True), ("x.py::test_a[b.c]", True), ("module.Class.method", False),
     ("module.Class:method", False), ("m.C.filter:a/b", False), ("m.C.filter:x::y", False)],
)  # fmt: skip
def test_a_path_is_known_by_its_form(text: str, expected: bool) -> None:
    assert is_suite(text) is expected


def test_parameters_have_no_addresses_and_names_of_their_own() -> None:
    assert name_values([1, "a", object()]) == ["1", "'a'", "<object object>"]
    assert name_values([object(), None, object()]) == ["<object object> (0)", "None", "<object object> (1)"]
