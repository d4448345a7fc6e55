"""What a benchmark calls: reports in TensorFlow's order of arguments, and timing that waits for devices."""

from __future__ import annotations

import gc
import itertools
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from assay.bench import Benchmark, benchmark, report_benchmark
from assay.bench.benchmark import ENV_BENCH_REPORT, Timing, build_wait, measure, measure_rounds, synchronize


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    path = tmp_path / "report.jsonl"
    monkeypatch.setenv(ENV_BENCH_REPORT, str(path))
    return lambda: [json.loads(line) for line in path.read_text().splitlines()]


def test_the_order_is_tensorflows(report: Any) -> None:
    Benchmark().report_benchmark(10, 1.5, 2.5, 100.0, {"a": 1}, "name", [{"name": "acc", "value": 0.9}])
    (line,) = report()
    assert (line["iters"], line["cpu_time"], line["wall_time"], line["throughput"]) == (10, 1.5, 2.5, 100.0)
    assert line["extras"] == {"a": 1}
    assert line["name"] == "name"
    assert line["metrics"] == [{"name": "acc", "value": 0.9}]


class Scalar:
    """A number of a framework."""

    def item(self) -> float:
        return 0.25


def test_samples_of_measure_and_ones_own_go_along(report: Any) -> None:
    class Mine(Benchmark):
        def __init__(self) -> None: ...  # without that of the base

    bench = Mine()
    bench.measure(lambda: None, repeats=3)
    bench.measure(lambda: None, repeats=2, name="step")
    bench.report_benchmark(wall_time=1, samples={"other": [1, 2]})
    report_benchmark(wall_time=Scalar(), metrics=[{"name": "x", "value": Scalar(), "min_value": Scalar()}])
    report_benchmark(wall_time=math.nan, metrics=[{"name": "x", "value": None}])
    first, scalars, none = report()
    assert {name: len(values) for name, values in first["samples"].items() if name != "cpu_time"} == {
        "wall_time": 3,
        "step": 2,
        "other": 2,
    }
    assert (scalars["wall_time"], scalars["metrics"][0]["min_value"]) == (0.25, 0.25)
    assert math.isnan(none["wall_time"])
    assert math.isnan(none["metrics"][0]["value"]), "a metric without a value is one"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"wall_time": "fast"}, "wall_time must be a number"),
        ({"metrics": {"name": "x"}}, "metrics must be a list"),
        ({"metrics": ["x"]}, "must be a dictionary"),
        ({"metrics": [{"name": "x"}]}, "has name, value"),
        ({"metrics": [{"name": "x", "value": 1, "minimum": 2}]}, "has name, value"),
        ({"extras": [1]}, "extras must be a dictionary"),
    ],
)
def test_what_is_wrong_is_reported(arguments: dict[str, Any], complaint: str, report: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        report_benchmark(**arguments)


def test_by_hand_it_prints(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_BENCH_REPORT, raising=False)
    report_benchmark(wall_time=2)
    assert json.loads(capsys.readouterr().out)["wall_time"] == 2


# ---------------------------------------------------------------- timing


def test_every_sample_is_kept_and_in_seconds_per_call() -> None:
    calls: list[int] = []
    timing = measure(lambda: calls.append(1), repeats=7, warmup=2, inner=5, sync=False)
    assert len(timing.samples_s) == 7
    assert timing.iters == 35
    assert len(calls) == 1 + 2 + 35
    assert all(sample >= 0 for sample in timing.samples_s)


def test_how_often_functions_are_called() -> None:
    assert measure(lambda: None, repeats=3, warmup=1, sync=False).inner > 1, "quick ones several times in a sample"
    timing = measure(lambda: sum(range(20_000)), seconds=0.0, warmup=1, sync=False)
    assert (len(timing.samples_s), timing.inner) == (10, 1), "slow ones get at least ten samples"
    for wrong in ({"repeats": 0}, {"inner": 0}, {"repeats": -3}):
        with pytest.raises(ValueError, match="at least 1"):
            measure(lambda: None, **wrong)


def test_an_error_of_the_function_is_passed_on_and_the_collector_is_on_again() -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        if len(calls) > 5:
            raise RuntimeError("tired")

    with pytest.raises(RuntimeError, match="tired"):
        measure(fail, repeats=20, warmup=2, sync=False)
    assert gc.isenabled()


class Result:
    alive = 0

    def __init__(self) -> None:
        Result.alive += 1

    def __del__(self) -> None:
        Result.alive -= 1


@pytest.mark.parametrize(("has_gpu", "inner"), [(False, 1), (True, 3)])
def test_no_result_is_held_while_the_next_call_works(has_gpu: bool, inner: int) -> None:
    """One that is changes which memory the next call is given: a loop was 8% slower for it, in every process."""
    seen: list[int] = []

    def function() -> Result:
        seen.append(Result.alive)
        return Result()

    measure(function, repeats=5, warmup=2, inner=inner, sync=Device().module if has_gpu else False)
    assert len(seen) == 1 + 2 + 5 * inner
    assert set(seen) == {0}


def test_the_last_result_is_there_to_be_waited_for() -> None:
    seen: list[object] = []
    jax = ModuleType("jax")
    jax.block_until_ready = seen.append  # type: ignore[attr-defined]
    numbers = iter(range(100))
    measure(lambda: next(numbers), repeats=2, warmup=1, inner=3, sync=jax)
    assert seen == [0, 1, 4, 7]


def test_summaries() -> None:
    timing = Timing((1.0, 2.0, 3.0, 4.0, 100.0), device_samples_s=(0.5, 0.7, 0.9))
    assert timing.median_s == 3.0
    assert timing.best_s == 1.0
    assert timing.mean_s == 22.0
    assert timing.device_median_s == 0.7
    assert timing.spread > 0
    assert Timing((1.0,)).spread == 0.0
    assert Timing((1.0,)).device_median_s is None


# ---------------------------------------------------------------- a processor that is taken away


def test_the_median_is_of_the_undisturbed_samples() -> None:
    """Nearly half of them are: the median of all would jump with one more."""
    timing = Timing((1.0, 4.0) * 10 + (4.1,), switches=(0, 1) * 10 + (1,), cpu_samples_s=(0.5, 0.9) * 10 + (0.9,))
    assert (timing.median_s, timing.cpu_median_s) == (1.0, 0.5)
    assert timing.quiet_s == (1.0,) * 10
    assert timing.spread == 0.0
    assert timing.mean_s > 2  # everything that was measured is still there
    least = Timing(tuple(float(n) for n in range(20)), switches=tuple(range(20)))
    assert least.quiet_s == (0.0, 1.0, 2.0, 3.0, 4.0), "where nearly all are disturbed"
    assert Timing((3.0,), switches=(7,)).median_s == 3.0
    assert Timing((1.0, 2.0, 9.0)).quiet_s == (1.0, 2.0, 9.0), "without counts of switches all of them count"
    assert Timing((1.0, 2.0)).cpu_median_s is None


def test_switches_are_counted_sample_by_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second call loses the processor."""
    calls: list[int] = []
    monkeypatch.setattr(benchmark, "_count_switches", lambda: len(calls) // 2)
    found = measure(lambda: calls.append(1), repeats=6, warmup=1, inner=1, sync=False)
    assert found.switches == (0, 1, 0, 1, 0, 1)
    device = Device()
    calls.clear()
    found = measure(lambda: calls.append(1), repeats=4, warmup=1, inner=1, sync=device.module)
    assert found.switches == (0, 1, 0, 1)
    monkeypatch.undo()
    before = benchmark._count_switches()
    assert 0 <= before <= benchmark._count_switches(), "by the kernel"


# ---------------------------------------------------------------- CPU time


def compute(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_cpu_time_leaves_the_waiting_out_and_has_the_children_that_ended() -> None:
    timing = measure(lambda: (time.sleep(0.02), compute(0.004)), repeats=3, warmup=1, sync=Device().module)
    assert timing.cpu_median_s is not None
    assert 0.004 <= timing.cpu_median_s < 0.02 <= timing.best_s
    assert len(timing.cpu_samples_s) == len(timing.samples_s)
    code = "i=0; while ((i++ < 30000)); do :; done"
    child = measure_rounds(lambda: subprocess.run(["bash", "-c", code], check=True), 1, 1, lambda: None)
    assert child.cpu_samples_s[0] > 0.02


def test_reading_the_clock_is_no_cpu_time_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that costs 0.25 s with each reading."""
    ticks = itertools.count()
    monkeypatch.setattr(benchmark.time, "process_time", lambda: next(ticks) / 4)
    benchmark._measure_reading.cache_clear()
    try:
        assert measure(lambda: None, repeats=3, warmup=1, inner=1).cpu_samples_s == (0.0,) * 3
        assert measure(lambda: next(ticks), repeats=3, warmup=1, inner=1).cpu_samples_s == pytest.approx([0.25] * 3)
    finally:
        benchmark._measure_reading.cache_clear()


def test_cpu_time_goes_with_the_wall_time_of_measure(report: Any) -> None:
    bench = Benchmark()
    timing = bench.measure(lambda: compute(0.001), repeats=3, warmup=1)
    bench.report_benchmark(wall_time=timing.median_s)
    bench.report_benchmark(wall_time=timing.median_s, cpu_time=7.0)
    bench.report_benchmark(wall_time=timing.median_s / 64)  # of an item: not that of `measure`
    first, own, other = report()
    assert first["cpu_time"] == timing.cpu_median_s
    assert first["samples"]["cpu_time"] == list(timing.cpu_samples_s)
    assert own["cpu_time"] == 7.0
    assert "cpu_time" not in other


# ---------------------------------------------------------------- devices


class Device:
    """Stands for torch with a GPU: work is done only when a caller waits."""

    def __init__(self, initialized: bool = True) -> None:
        self.waited = 0
        self.events = 0
        outer = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                outer.events += 1

            def record(self) -> None: ...

            def elapsed_time(self, _other: Any) -> float:
                return 2.0  # milliseconds

        self.module = ModuleType("torch")
        self.module.cuda = SimpleNamespace(  # type: ignore[attr-defined]
            is_available=lambda: True, is_initialized=lambda: initialized, synchronize=self.wait, Event=Event
        )

    def wait(self) -> None:
        self.waited += 1


def test_a_gpu_is_waited_for_after_every_sample_and_events_are_recorded() -> None:
    device = Device()
    timing = measure(lambda: None, repeats=4, warmup=1, inner=10, sync=device.module)
    assert device.waited == 1 + 1 + 4
    assert device.events == 8
    assert timing.device_samples_s == (0.0002,) * 4  # per call


def test_which_devices_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    unused = Device(initialized=False)
    assert measure(lambda: None, repeats=3, warmup=1, sync=unused.module).device_samples_s == ()
    assert unused.waited == 0
    loaded, started = Device(), Device()
    monkeypatch.setitem(sys.modules, "torch", loaded.module)
    synchronize()
    assert loaded.waited == 1, "what is loaded is found"
    monkeypatch.delitem(sys.modules, "torch")
    measure(lambda: monkeypatch.setitem(sys.modules, "torch", started.module), repeats=2, warmup=1, inner=1)
    assert started.waited == 1 + 1 + 2, "and what the function starts"


def test_tensorflow_waits_for_its_devices_or_fetches_the_result() -> None:
    seen: list[str] = []
    new, old = ModuleType("tensorflow"), ModuleType("tensorflow")
    new.test = SimpleNamespace(experimental=SimpleNamespace(sync_devices=lambda: seen.append("sync")))  # type: ignore[attr-defined]
    synchronize(None, new)
    synchronize(SimpleNamespace(numpy=lambda: seen.append("numpy")), old)
    assert seen == ["sync", "numpy"]


def test_a_function_of_ones_own_is_called_and_something_else_is_refused() -> None:
    seen: list[int] = []
    synchronize(None, lambda: seen.append(1))
    assert seen == [1]
    with pytest.raises(TypeError, match="a module such as torch"):
        build_wait("cuda")
