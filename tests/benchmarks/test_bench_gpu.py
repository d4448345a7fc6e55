"""The script that is run on a machine with a GPU: what it makes of its measurements."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from types import ModuleType

import pytest

SCRIPT = "bench_gpu"


def build_ends(turns: list[tuple[float, float, float]]) -> list[float]:
    """Ends of steps in each (begin, end, step)."""
    return [begin + step * n for begin, end, step in turns for n in range(1, int((end - begin) / step))]


class TestTurns:
    def test_the_cost_is_of_the_watched_turns(self, script: ModuleType) -> None:
        spans = [(10.0 * n, 10.0 * n + 10, 0.0102 if n % 2 == 0 else 0.01) for n in range(8)]
        turns = [script.Turn(n % 2 == 0, begin, end, 0.05) for n, (begin, end, _) in enumerate(spans)]
        found = script.compare_turns(turns, build_ends(spans))
        assert found["overhead"] == pytest.approx(0.02, rel=1e-6)
        assert found["supervisor_cpu"] == pytest.approx(0.005)
        assert found["overhead_interval"] == pytest.approx([0.02, 0.02], rel=1e-6)

    def test_a_single_long_step_counts(self, script: ModuleType) -> None:
        """A reading that holds up one step of a hundred is seen: a median would not."""
        turn = script.Turn(True, 0.0, 1.2, 0.0)
        ends = [0.01 * n for n in range(1, 51)] + [0.6 + 0.01 * n for n in range(1, 51)]
        assert script.measure_step(turn, ends) == pytest.approx(1.09 / 99)

    def test_too_few_steps_are_said(self, script: ModuleType) -> None:
        with pytest.raises(SystemExit, match="only 1 steps"):
            script.measure_step(script.Turn(True, 0.0, 1.0, 0.0), [0.5, 3.0])

    def test_a_stopped_process_stands_still(self, script: ModuleType) -> None:
        code = "import time\nwhile True: sum(range(10000)); time.sleep(0)"
        with subprocess.Popen([sys.executable, "-c", code]) as process:
            try:
                deadline = time.monotonic() + 30
                while script.load_cpu_s(process.pid) < 0.1 and time.monotonic() < deadline:
                    time.sleep(0.01)
                turns = list(script.take_turns(process.pid, 4, 0.4))
            finally:
                process.kill()
        assert [turn.is_watched for turn in turns] == [True, False, True, False]
        assert sum(turn.cpu_s for turn in turns if turn.is_watched) > 5 * sum(
            turn.cpu_s for turn in turns if not turn.is_watched
        )
        assert all(turn.end > turn.begin for turn in turns)


class TestPlan:
    def options(self, **given: float) -> argparse.Namespace:
        return argparse.Namespace(**{"trials": 20, "windows": 20, "window_s": 3.0, "budget": 450.0, **given})

    def test_quick_starts_measure_long(self, script: ModuleType) -> None:
        assert script.plan_trials(self.options(), 2.0) == (0.5, 20)

    def test_slow_starts_measure_less(self, script: ModuleType) -> None:
        seconds, trials = script.plan_trials(self.options(), 5.3)
        assert 0.1 <= seconds < 0.5
        assert trials == 20

    def test_what_does_not_fit_is_left_out_and_said(
        self, script: ModuleType, capsys: pytest.CaptureFixture[str]
    ) -> None:
        _, trials = script.plan_trials(self.options(), 20.0)
        assert trials == 5
        assert "5 trials of 20" in capsys.readouterr().out


class TestDescription:
    def execution(self, method: str, wall_time: float, succeeded: bool = True) -> dict[str, object]:
        return {
            "method": method,
            "succeeded": succeeded,
            "contaminated": [],
            "numbers": {"wall_time": wall_time, "tflops_per_second": 1 / wall_time, "throughput": 10.0},
            "result": {"findings": [{"message": "it raised"}]},
            "machine": {"throttled": ["sw_power_cap"], "gpus_after": [{"sm_clock_mhz": 1700, "temperature_c": 50}]},
            "peaks": {"gpu_memory_bytes": None},
        }

    def test_share_and_spread(self, script: ModuleType) -> None:
        method = next(iter(script.METHODS))
        executions = [self.execution(method, time_s) for time_s in (0.009, 0.01, 0.011)]
        found = script._describe(method, executions, {"tflops_per_second": 200.0})
        assert found["share_of_peak"] == pytest.approx(0.5)
        assert found["extremes_apart"] == pytest.approx(0.2)
        assert found["sm_clock_mhz"] == [1700, 1700, 1700]
        assert "50.0%" in script._render_method(found)
        assert "sw_power_cap" in script._render_method(found)

    def test_a_method_that_failed_says_why_and_is_not_as_claimed(self, script: ModuleType) -> None:
        method = next(iter(script.METHODS))
        found = script._describe(method, [self.execution(method, 1.0, False)], {"tflops_per_second": 1.0})
        assert "it raised" in script._render_method(found)
        sampling = {"overhead": 0.0, "supervisor_cpu": 0.0}
        assert not script.is_as_claimed({"methods": [found], "sampling": sampling})
        assert script.is_as_claimed({"methods": [], "sampling": sampling})
        assert not script.is_as_claimed({"methods": [], "sampling": {**sampling, "overhead": 0.02}})

    def test_no_gpu_is_said_and_is_no_failure(
        self, script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["bench_gpu.py"])
        monkeypatch.setattr(script, "has_gpu", lambda: False)
        assert script.main() == 0
        assert "no NVIDIA GPU" in capsys.readouterr().out
