"""report_benchmark: TensorFlow's order of arguments, one line for each call, wrong arguments said at once."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from assay.bench import Benchmark, report_benchmark
from assay.bench.values.layout import ENV_BENCH_REPORT


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


def test_nan_is_written_as_it_is(report: Any) -> None:
    report_benchmark(wall_time=math.nan)
    assert math.isnan(report()[0]["wall_time"])


def test_a_metric_without_a_value_is_nan(report: Any) -> None:
    report_benchmark(metrics=[{"name": "x", "value": None}])
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
def test_what_is_wrong_is_said(arguments: dict[str, Any], complaint: str, report: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        report_benchmark(**arguments)


def test_by_hand_it_prints(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_BENCH_REPORT, raising=False)
    report_benchmark(wall_time=2)
    assert json.loads(capsys.readouterr().out)["wall_time"] == 2
