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
from assay.bench.benchmark import ENV_BENCH_REPORT, Timing, build_wait, measure, synchronize


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


def test_it_works_without_the_constructor(report: Any) -> None:
    class Mine(Benchmark):
        def __init__(self) -> None: ...

    bench = Mine()
    bench.measure(lambda: None, repeats=3)
    bench.report_benchmark(wall_time=1)
    assert len(report()[0]["samples"]["wall_time"]) == 3


def test_samples_of_measure_and_ones_own_go_along(report: Any) -> None:
    bench = Benchmark()
    bench.measure(lambda: None, repeats=2, name="step")
    bench.report_benchmark(wall_time=1, samples={"other": [1, 2]})
    assert set(report()[0]["samples"]) == {"step", "other"}


def test_numbers_of_frameworks_are_numbers(report: Any) -> None:
    class Scalar:
        def item(self) -> float:
            return 0.25

    report_benchmark(wall_time=Scalar(), metrics=[{"name": "x", "value": Scalar(), "min_value": Scalar()}])
    assert report()[0]["wall_time"] == 0.25
    assert report()[0]["metrics"][0]["min_value"] == 0.25


def test_nan_is_written_as_it_is_and_a_metric_without_a_value_is_one(report: Any) -> None:
    report_benchmark(wall_time=math.nan, metrics=[{"name": "x", "value": None}])
    assert math.isnan(report()[0]["wall_time"])
    assert math.isnan(report()[0]["metrics"][0]["value"])


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


def test_quick_functions_are_called_several_times_in_a_sample() -> None:
    assert measure(lambda: None, repeats=10, sync=False).inner > 1


def test_slow_functions_get_at_least_ten_samples() -> None:
    timing = measure(lambda: sum(range(20_000)), seconds=0.0, warmup=1, sync=False)
    assert len(timing.samples_s) == 10
    assert timing.inner == 1


@pytest.mark.parametrize("wrong", [{"repeats": 0}, {"inner": 0}, {"repeats": -3}])
def test_counts_below_one_are_refused(wrong: dict[str, int]) -> None:
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


@pytest.mark.parametrize("has_gpu", [False, True])
@pytest.mark.parametrize("inner", [1, 3])
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
    timing = Timing((1.0, 4.0) * 10 + (4.1,), switches=(0, 1) * 10 + (1,))
    assert timing.median_s == 1.0
    assert timing.quiet_s == (1.0,) * 10
    assert timing.spread == 0.0
    assert timing.mean_s > 2  # everything that was measured is still there


def test_where_nearly_all_are_disturbed_those_that_were_least_are_taken() -> None:
    timing = Timing(tuple(float(n) for n in range(20)), switches=tuple(range(20)))
    assert timing.quiet_s == (0.0, 1.0, 2.0, 3.0, 4.0)
    assert Timing((3.0,), switches=(7,)).median_s == 3.0
    assert Timing((1.0, 2.0, 9.0)).quiet_s == (1.0, 2.0, 9.0), "without counts of switches all of them count"


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


def test_the_kernel_counts() -> None:
    before = benchmark._count_switches()
    assert before >= 0
    assert benchmark._count_switches() >= before


# ---------------------------------------------------------------- CPU time


def compute(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_cpu_time_leaves_the_waiting_out() -> None:
    timing = measure(lambda: (time.sleep(0.02), compute(0.004)), repeats=3, warmup=1)
    assert timing.cpu_median_s is not None
    assert 0.004 <= timing.cpu_median_s < 0.02 <= timing.best_s
    assert len(timing.cpu_samples_s) == len(timing.samples_s)


def test_cpu_time_has_the_children_that_ended() -> None:
    code = "import time\nwhile time.process_time() < 0.15: pass"
    timing = measure(lambda: subprocess.run([sys.executable, "-S", "-c", code], check=True), repeats=1, warmup=1)
    assert timing.cpu_samples_s[0] > 0.1


def test_cpu_time_is_of_the_undisturbed_samples() -> None:
    timing = Timing((1.0, 4.0) * 10, switches=(0, 1) * 10, cpu_samples_s=(0.5, 0.9) * 10)
    assert timing.cpu_median_s == 0.5
    assert Timing((1.0, 2.0)).cpu_median_s is None


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
    timing = bench.measure(lambda: compute(0.002), repeats=3, warmup=1)
    bench.report_benchmark(wall_time=timing.median_s)
    bench.report_benchmark(wall_time=timing.median_s, cpu_time=7.0)
    bench.report_benchmark(wall_time=timing.median_s / 64)  # of an item: not that of `measure`
    first, own, other = report()
    assert first["cpu_time"] == timing.cpu_median_s
    assert first["samples"]["cpu_time"] == list(timing.cpu_samples_s)
    assert own["cpu_time"] == 7.0
    assert "cpu_time" not in other


def test_a_gpu_s_samples_have_cpu_times_too() -> None:
    timing = measure(lambda: compute(0.001), repeats=3, warmup=1, inner=2, sync=Device().module)
    assert min(timing.cpu_samples_s) >= 0.001


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


def test_an_unused_gpu_is_left_alone() -> None:
    device = Device(initialized=False)
    assert measure(lambda: None, repeats=3, warmup=1, sync=device.module).device_samples_s == ()
    assert device.waited == 0


def test_what_is_loaded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setitem(sys.modules, "torch", device.module)
    synchronize()
    assert device.waited == 1


def test_a_device_that_the_function_starts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    measure(lambda: monkeypatch.setitem(sys.modules, "torch", device.module), repeats=2, warmup=1, inner=1)
    assert device.waited == 1 + 1 + 2


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
