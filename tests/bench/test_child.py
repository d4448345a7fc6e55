"""The child, as a process: what it says when it goes well, when it does not, and when it cannot say anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.bench_samples import write_spy
from tests.fork_server import call_python

from assay.bench.benchmark import ENV_BENCH_REPORT
from assay.bench.child import (
    Arguments,
    BenchmarkTarget,
    NoSuchBenchmarkError,
    _execute,
    build_object,
    find_matches,
    find_target,
)
from assay.bench.child_report import load_child_report
from assay.bench.values.execution import ChildReport

MODULE = """
import os, sys, time
from assay.bench import Benchmark, report_benchmark

class B(Benchmark):
    def good(self): self.report_benchmark(wall_time=1.0)
    def dies(self):
        self.report_benchmark(wall_time=2.0)
        os._exit(9)
    def raises(self): raise ValueError("no luck")
    def leaves(self): sys.exit(3)
    def leaves_well(self):
        self.report_benchmark(wall_time=1.0)
        sys.exit(0)
    def waits(self):
        until = time.monotonic() + 60
        while not os.path.exists("begun") and time.monotonic() < until: time.sleep(0.005)
        self.report_benchmark(wall_time=0.4)

class Bad(Benchmark):
    def __init__(self): raise OSError("no data here")
    def good(self): ...

def quick(): sum(range(10))
def reports(): report_benchmark(throughput=5)
def fails(): raise KeyError("x")
print("a module may print")
"""


PLAIN = """
import os
class Plain:
    made = 0
    def __init__(self):
        Plain.made += 1
        self.calls = 0
    def sort(self):
        self.calls += 1
        sorted(range(100))
        assert (Plain.made, self.calls > 0) == (1, True)
    @staticmethod
    def still(): sorted(range(100))
    def reports(self):
        from assay.bench import report_benchmark
        report_benchmark(wall_time=5.0)
    def reports_elsewhere(self):
        open(os.environ["TEST_REPORT_FILE_PREFIX"] + "x", "a").write("once ")
    def fails(self): raise KeyError("x")

class Theirs:  # as TensorFlow's
    def report_benchmark(self): ...
    def silent(self): ...

def missing_framework(): raise ModuleNotFoundError("not here", name="tensorflow.keras")
def missing_module(): raise ModuleNotFoundError("not here", name="my_own_module")
"""
FILES = {
    "mod.py": MODULE,
    "plain.py": PLAIN,
    "broken.py": "import absent_library\n",
    "other_layout.py": "import kit.words\n",
    "src/kit.py": "",
    "suite.py": "class Sort:\n    params = [1, 2]\n    def setup(self, n): ...\n    def time_x(self, n): ...\n",
    **{
        f"{folder}/other.py": f"from assay.bench import report_benchmark\ndef f(): report_benchmark(wall_time={value})\n"
        for folder, value in (("first", 1), ("behind", 2))
    },
}


@pytest.fixture
def child(tmp_path: Path) -> Any:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def run(*arguments: str, is_new: bool = False) -> tuple[int, ChildReport, str]:
        report = tmp_path / "report.jsonl"
        report.unlink(missing_ok=True)
        words, env = ["-m", "assay.bench.child", *arguments], {**os.environ, ENV_BENCH_REPORT: str(report)}
        if is_new:
            command = [sys.executable, *words]
            done = subprocess.run(
                command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
            )
        else:
            done = call_python(words, cwd=tmp_path, env=env)
        run.errors = done.stderr  # type: ignore[attr-defined]
        return done.returncode, load_child_report(str(report)), done.stdout

    return run


def test_a_good_one_and_one_that_dies(child: Any) -> None:
    code, reported, _ = child("run", "mod.B.good", is_new=True)
    assert code == 0
    assert reported.begin["pid"] > 0
    assert reported.reports[0]["wall_time"] == 1.0
    assert reported.end["ok"] is True
    assert reported.end["peaks"]["max_rss"] > 1_000_000
    assert reported.end["wall_s"] >= 0
    code, reported, _ = child("run", "mod.B.dies")
    assert code == 9
    assert reported.reports[0]["wall_time"] == 2.0, "what it reported is left"
    assert reported.end is None
    assert child("run", "mod.B.leaves_well")[1].end["ok"] is True


HINT = f"; {sys.executable} does not have it: name an interpreter that does with --python PATH"


@pytest.mark.parametrize(
    ("method", "kind", "words", "first"),
    [
        ("mod.B.raises", "ValueError", "no luck", 'mod.py", line 10, in raises'),
        ("mod.Bad.good", "OSError", "no data here", 'mod.py", line 21, in __init__'),
        ("mod.fails", "KeyError", "'x'", 'mod.py", line 26, in fails'),
        ("plain.Plain.fails", "KeyError", "'x'", 'plain.py", line 19, in fails'),
        ("broken.f", "ModuleNotFoundError", "No module named 'absent_library'", 'broken.py", line 1, in <module>'),
        ("other_layout.f", "ModuleNotFoundError", "No module named 'kit'; it is in src: give --path src", None),
        ("mod.B.godo", "NoSuchBenchmark", "B has no method 'godo'; did you mean 'good'?", None),
        ("mod.B.filter:x.*", "NoSuchBenchmark", "no method of mod.B matches 'x.*'; it has:", None),
        ("mod.B.leaves", "SystemExit", "it called sys.exit(3)", None),
        ("plain.missing_framework", "ModuleNotFoundError", f"not here{HINT}", "in missing_framework"),
        ("plain.missing_module", "ModuleNotFoundError", "not here", "in missing_module"),
    ],
)
def test_what_goes_wrong_is_reported_from_the_user_s_own_frame_on(
    child: Any, method: str, kind: str, words: str, first: str | None
) -> None:
    code, reported, _ = child("run", method)
    assert (code, reported.end["ok"], reported.reports) == (1, False, ())
    error = reported.end["error"]
    assert error["type"] == kind
    assert error["message"].startswith(words)
    assert error["message"].endswith(HINT) == words.endswith(HINT)
    if first is not None:
        assert error["lines"][0] == "Traceback (most recent call last):"
        assert error["lines"][1].endswith(first)
        assert child.errors.splitlines()[-len(error["lines"]) :] == error["lines"]
        assert not any(ours in child.errors for ours in ("child.py", "timing.py", "importlib"))


def test_what_no_frame_of_the_user_raised_is_a_line(child: Any) -> None:
    _, reported, _ = child("run", "mod.Bad.good", '--args={"size": 3}')
    assert reported.end["error"]["lines"] == ["TypeError: the constructor of Bad takes no 'size'"]
    code, reported, _ = child("run", "suite.Sort.time_x")
    assert code == 1
    message = reported.end["error"]["message"]
    assert message.startswith("Sort.time_x needs 'n', but a benchmark is called without arguments; it is one of asv")
    assert message.endswith("`assay bench run suite.py::Sort`")


@pytest.mark.parametrize("name", ["mod.quick", "plain.Plain.sort", "plain.Plain.still"])
def test_plain_functions_and_methods_are_timed(child: Any, name: str) -> None:
    """On one object: what its constructor prepares is there in every call."""
    code, reported, _ = child("run", name)
    assert code == 0, child.errors
    (report,) = reported.reports
    assert report["wall_time"] > 0
    assert 0 < report["cpu_time"] < 1
    assert len(report["samples"]["cpu_time"]) == len(report["samples"]["wall_time"]) >= 10


def test_what_reports_or_has_to_is_called_once(child: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [report.get("throughput") for report in child("run", "mod.reports")[1].reports] == [5]
    (report,) = child("run", "plain.Plain.reports")[1].reports
    assert report["wall_time"] == 5.0
    assert child("run", "plain.Theirs.silent")[1].reports == (), "silence is a fault of a class that can report"
    monkeypatch.setenv("TEST_REPORT_FILE_PREFIX", str(tmp_path / "proto_"))
    child("run", "plain.Plain.reports_elsewhere")
    assert (tmp_path / "proto_x").read_text() == "once "


def test_listing_prints_nothing_but_the_list(child: Any) -> None:
    _, _, out = child("list", "mod.B.filter:good", "mod.B.filter:nothing", "absent.B.filter:x")
    found = json.loads(out)
    assert found["mod.B.filter:good"] == [{"text": "mod.B.good", "name": "mod.B.good"}]
    assert "matches" in found["mod.B.filter:nothing"]
    assert "no module" in found["absent.B.filter:x"]


def test_paths_are_put_in_front_or_behind(child: Any, tmp_path: Path) -> None:
    _, reported, _ = child("run", "other.f", f"--path={tmp_path}/behind", "--first-path=first")
    assert reported.reports[0]["wall_time"] == 1


# ---------------------------------------------------------------- profiles

REFUSED = "#!/usr/bin/env bash\necho Permission Denied: try sudo >&2; touch begun; exit 1\n"


@pytest.mark.parametrize(("is_refused", "is_given"), [(False, False), (False, True), (True, True)])
def test_py_spy_is_started_with_our_pid_and_its_output_is_reported_only_when_it_fails(
    child: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_refused: bool, is_given: bool
) -> None:
    """It is on PATH, or where the supervisor found it: beside its own interpreter. The real one names a file that does
    not stay."""
    (tmp_path / "bin").mkdir()
    spy = write_spy(tmp_path / "bin", "print('Wrote chrome trace', file=sys.stderr); open('begun', 'w').close()")
    if is_refused:
        spy.write_text(REFUSED)
    flags = [f"--py-spy={spy}"] if is_given else ["--profiler=py-spy"]
    if not is_given:
        monkeypatch.setenv("PATH", f"{spy.parent}:{os.environ['PATH']}")
    _, reported, _ = child("run", "mod.B.waits", "--profile=0:", f"--profile-dir={tmp_path}/p", *flags)
    assert reported.end["ok"] is True
    assert "Wrote" not in child.errors
    if is_refused:
        note = "window 1 has no profile: py-spy wrote none: Permission Denied: try sudo"
        assert (reported.end["profiles"], reported.end["profile_notes"]) == ([], [note])
        return
    assert (reported.end["profiles"], reported.end.get("profile_notes")) == (["py-spy-1.json"], None)
    words = json.loads((tmp_path / "p" / "py-spy-1.json").read_text())
    assert [words[words.index(flag) + 1] for flag in ("--pid", "--format")] == [
        str(reported.begin["pid"]),
        "chrometrace",
    ]


def test_a_python_that_is_too_old_for_a_profile_runs_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.bench.child.LEAST_PROFILED", (4, 0))
    called: list[int] = []
    end: dict[str, Any] = {}
    _execute(lambda: called.append(1), Namespace(profile="0:"), end)
    assert (called, end["profiles"]) == ([1], [])
    assert end["profile_notes"][0].startswith("it has no profile: that needs Python 4.0 or newer, and it runs on 3.")


# ---------------------------------------------------------------- from a name to a benchmark, and what a constructor is given

NAMED = """
class Bench:
    def __init__(self, output_dir, data_dir, **kwargs):
        self.given = (output_dir, data_dir, kwargs)
    def first(self): return "first"
    def second(self): return "second"
    def _hidden(self): ...
    value = 3

class Added:
    def __init__(self):
        self.made_later = lambda: None

class Strict:
    def __init__(self): ...
    def only(self): ...

def function(): return "function"
number = 3
"""


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner_bench.py").write_text(NAMED)
    (package / "broken_bench.py").write_text("import no_such_library_anywhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name == "pack" or name.startswith("pack.")]:
        del sys.modules[name]


ARGUMENTS = Arguments("/out", "/data")


def test_a_method_or_function_is_found_or_what_there_is_is_named(named: None) -> None:
    for text in ("Bench.first", "Bench:first", "function"):
        assert find_target(f"pack.inner_bench.{text}").build(ARGUMENTS)() in ("first", "function")
    for text, complaint in (
        ("pack.inner_bench.Bench.frist", "did you mean 'first'"),
        ("pack.inner_bench.Bensh.first", "did you mean 'Bench'"),
        ("pack.inner_bench.functoin", "did you mean 'function'"),
        ("pack.no_such.Bench.first", "has no 'no_such'"),
        ("nowhere_at_all.Bench.first", "no module 'nowhere_at_all'"),
        ("pack.inner_bench", "is a module"),
        ("pack.inner_bench.Bench", "is a class"),
        ("pack.inner_bench.number", "is not a function"),
    ):
        with pytest.raises(NoSuchBenchmarkError, match=complaint):
            find_target(text)


def test_a_filter_is_matched_from_the_start(named: None) -> None:
    matched = find_matches("pack.inner_bench.Bench.filter:(fi|se).*", ARGUMENTS)
    assert matched == ["pack.inner_bench.Bench.first", "pack.inner_bench.Bench.second"]
    with pytest.raises(NoSuchBenchmarkError, match="it has: first, second"):
        find_matches("pack.inner_bench.Bench.filter:econd", ARGUMENTS)
    made = find_matches("pack.inner_bench.Added.filter:made.*", ARGUMENTS)
    assert made == ["pack.inner_bench.Added.made_later"], "also those that a constructor makes"
    with pytest.raises(ModuleNotFoundError, match="no_such_library_anywhere"):
        find_target("pack.broken_bench.Bench.first")


# ---------------------------------------------------------------- constructors


class Documented:
    def __init__(self, output_dir: str, data_dir: str, **kwargs: Any) -> None:
        self.given = (output_dir, data_dir, kwargs)


class Old:
    def __init__(self, output_dir: str, root_data_dir: str = "") -> None:
        self.given = (output_dir, root_data_dir)


class Bare: ...


class Own:
    def __init__(self, **kwargs: Any) -> None:
        self.given = kwargs


def test_a_constructor_gets_what_it_takes() -> None:
    given = build_object(Documented, Arguments("/o", "/d", "grpc://tpu", {"batch": 8})).given
    assert given == ("/o", "/d", {"root_data_dir": "/d", "tpu": "grpc://tpu", "batch": 8})
    assert build_object(Old, ARGUMENTS).given == ("/out", "/data")
    assert isinstance(build_object(Bare, ARGUMENTS), Bare)
    with pytest.raises(TypeError, match="takes no 'batch'"):
        build_object(Old, Arguments(further={"batch": 3}))
    alone = Arguments("/o", "/d", None, {"a": 1}, only_further=True)
    assert build_object(Own, alone).given == {"a": 1}, "class_type tf_benchmark"


class Greedy:
    def wants(self, a: int, b: int, c: int = 0) -> None: ...
    def named(self, *_rest: int, c: int, **_more: int) -> None: ...
    def modest(self, a: int = 1, *_rest: int, **_more: int) -> None: ...


def test_what_wants_arguments_is_refused() -> None:
    def time_x(n: int) -> None: ...

    for target, words in (
        (BenchmarkTarget(Greedy, "wants"), "Greedy.wants needs 'a', 'b', but a benchmark is called without arguments$"),
        (BenchmarkTarget(Greedy, "named"), "Greedy.named needs 'c', but a benchmark"),
        (BenchmarkTarget(None, "time_x", time_x), r"time_x needs 'n', .* arguments$"),
    ):
        with pytest.raises(TypeError, match=words):
            target.build(Arguments())
    BenchmarkTarget(Greedy, "modest").build(Arguments())()
    time_x.params = [1, 2]  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="asv"):
        BenchmarkTarget(None, "time_x", time_x).build(Arguments())
