"""Runs tests that take pytest's fixture `benchmark`, each in a process of its own.

Assay provides the fixture only while `assay bench run` runs a test. If pytest-benchmark is installed, its options,
marks and declared hooks exist, but it measures nothing itself. PYTEST_ADDOPTS is used; the project's `addopts` are not
used, since they may request several processes or coverage.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from assay.bench.benchmark import Timing, measure, measure_rounds, report_timing
from assay.bench.framework import add_path_hint
from assay.bench.suite_benchmark import NoSuchBenchmarkError, SkippedError, SuiteBenchmark

if TYPE_CHECKING:
    import pytest

_OPTIONS = ("-q", "-p", "no:cacheprovider", "-o", "addopts=", "--continue-on-collection-errors")
_REFUSED = (3, 4)  # exit codes of pytest for an internal error and for an invalid configuration


def list_tests(files: Sequence[str]) -> list[SuiteBenchmark]:
    import pytest

    session = _Session()
    if pytest.main([*_OPTIONS, "--collect-only", *files], plugins=[session]) in _REFUSED:
        # find the file with the error, such as one whose conftest.py raises
        return [each for file in files for each in list_tests([file])] if files[1:] else [_build_broken(files[0])]
    found = [
        SuiteBenchmark(f"{os.path.relpath(item.path)}::{_name(item)}", item.nodeid)
        for item in session.items
        if "benchmark" in getattr(item, "fixturenames", ())
    ]
    return found + [_build_broken(path) for path in session.broken]


def _build_broken(path: str) -> SuiteBenchmark:
    """Return a benchmark for a file that cannot be listed: its run reports why."""
    return SuiteBenchmark(f"{path}::", path)


def _name(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[2]


def run_test(path: str, name: str) -> Mapping[str, str]:
    """Run a test and return its parameters. Raises the test's own exception."""
    import pytest

    session = _Session(name)
    if (code := pytest.main([*_OPTIONS, path], plugins=[session])) in _REFUSED:
        raise RuntimeError(f"pytest cannot run {path} and ends with exit code {int(code)}: its output is in the log")
    if session.broken:
        why = str(session.error).strip().rpartition("\n")[2].removeprefix("E ").strip()
        raise NoSuchBenchmarkError(f"{path} cannot be collected by pytest: {add_path_hint(why)}")
    if session.error is not None:
        raise session.error
    if session.failed:
        raise RuntimeError(session.failed)
    if not session.items:
        raise NoSuchBenchmarkError(f"no test {name!r}")
    if session.skipped is not None:
        raise SkippedError(session.skipped)
    if session.fixture is None or session.fixture.timing is None:
        raise RuntimeError("the test did not call its fixture `benchmark`")
    return session.fixture.parameters


class _Session:
    """A plug-in of pytest that collects the tests, or runs the requested one and stores its outcome."""

    def __init__(self, wanted: str | None = None) -> None:
        self._wanted = wanted
        self.items: list[pytest.Item] = []
        self.broken: list[str] = []  # paths of files that could not be collected
        self.error: BaseException | None = None
        self.failed = ""  # set also without an exception: by a strict `xfail` that passed
        self.skipped: str | None = None
        self.fixture: BenchmarkFixture | None = None

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "benchmark: options of the fixture `benchmark`")
        if config.pluginmanager.has_plugin("benchmark"):  # pytest-benchmark refuses another fixture `benchmark`
            config.pluginmanager.unregister(name="benchmark")
        config.pluginmanager.register(_build_fixture_plugin(self))  # the last fixture with a name counts

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._wanted is not None:
            items[:] = [item for item in items if _name(item) == self._wanted]
        self.items = list(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(report.nodeid)

    def pytest_exception_interact(self, call: pytest.CallInfo[Any]) -> None:
        self.error = self.error or (call.excinfo.value if call.excinfo else None)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self.error = self.error or excinfo.value  # pytest.exit calls this hook too

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or (str(report.longrepr) if report.failed else "")
        if report.skipped:
            why = getattr(report, "wasxfail", "").removeprefix("reason: ")  # the reason of a mark `xfail`
            expected = f"it is expected to fail{f': {why}' if why else ''}"
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else expected
            self.skipped = reason.removeprefix("Skipped: ")


def _build_fixture_plugin(session: _Session) -> object:
    import pytest

    class FixturePlugin:
        @pytest.fixture
        def benchmark(self, request: pytest.FixtureRequest) -> Iterator[BenchmarkFixture]:
            session.fixture = fixture = BenchmarkFixture(request.node)
            yield fixture
            fixture.report()

    return FixturePlugin()


class Statistics(SimpleNamespace):
    """`benchmark.stats`: the numbers that tests read, as `stats["mean"]`, `stats.mean` and `stats.stats.mean`."""

    def __getitem__(self, name: str) -> float:
        return float(vars(self)[name])

    @property
    def stats(self) -> Statistics:
        return self


class BenchmarkFixture:
    """A replacement of pytest-benchmark's fixture."""

    enabled, disabled = True, False

    def __init__(self, node: Any) -> None:
        mark = node.get_closest_marker("benchmark")
        self._options: Mapping[str, Any] = mark.kwargs if mark else {}
        self.name, self.fullname = node.name, node.nodeid
        self.params: Mapping[str, Any] | None = node.callspec.params if hasattr(node, "callspec") else None
        self.param: str | None = node.callspec.id if hasattr(node, "callspec") else None
        self.group: str | None = self._options.get("group")
        self.extra_info: dict[str, Any] = {}
        self.timing: Timing | None = None

    def __repr__(self) -> str:
        return "benchmark"

    @property
    def parameters(self) -> Mapping[str, str]:
        return {name: str(value) for name, value in (self.params or {}).items()}

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._check_unused()
        seconds = float(self._options.get("max_time", 1.0))
        self.timing = measure(lambda: function(*args, **kwargs), seconds=seconds)
        return function(*args, **kwargs)

    def pedantic(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        teardown: Callable[..., Any] | None = None,
        rounds: int = 1,
        warmup_rounds: int = 0,
        iterations: int = 1,
    ) -> Any:
        """Measure `rounds` * `iterations` calls; `setup` before and `teardown` after each round are not measured."""
        self._check_unused()
        counts = (("rounds", rounds, 1), ("iterations", iterations, 1), ("warmup_rounds", warmup_rounds, 0))
        for name, value, least in counts:
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number, at least {least}: {value!r}")
        if setup is not None and iterations > 1:
            raise ValueError("`setup` prepares one call: iterations must be 1")
        given: list[Any] = [args, kwargs or {}]
        kept: list[Any] = []

        def end_round() -> None:
            if kept and teardown is not None:
                teardown(*given[0], **given[1])
            kept.clear()

        def begin_round() -> None:
            end_round()
            given[:] = (setup() if setup is not None else None) or given

        def call() -> None:
            kept[:] = [target(*given[0], **given[1])]

        for _ in range(warmup_rounds):
            begin_round()
            call()
        self.timing = measure_rounds(call, rounds, iterations, begin_round)
        result = kept[0]
        end_round()
        return result

    def _check_unused(self) -> None:
        if self.timing is not None:
            raise RuntimeError("the fixture `benchmark` can be used once in a test")

    @property
    def stats(self) -> Statistics | None:
        if self.timing is None:
            return None
        values = self.timing.samples_s
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        found = {"min": min(values), "max": max(values), "mean": self.timing.mean_s, "median": self.timing.median_s}
        rest = {"stddev": spread, "rounds": len(values), "iterations": self.timing.inner, "total": sum(values)}
        return Statistics(**found, **rest)

    def report(self) -> None:
        if self.timing is not None:
            report_timing(self.timing, {**self.extra_info, **({"group": self.group} if self.group else {})})
