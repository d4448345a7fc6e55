"""From a name to a benchmark, and what a constructor is given."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from assay.bench.child import Arguments, BenchmarkTarget, NoSuchBenchmarkError, build_object, find_matches, find_target

MODULE = """
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


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner_bench.py").write_text(MODULE)
    (package / "broken_bench.py").write_text("import no_such_library_anywhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name == "pack" or name.startswith("pack.")]:
        del sys.modules[name]


ARGUMENTS = Arguments("/out", "/data")


def test_a_method_or_function_is_found_or_what_there_is_is_named() -> None:
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


def test_a_filter_is_matched_from_the_start() -> None:
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
