"""google-benchmark: what its reporters leave out, and what users add."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.bench.importers.formats import Foreign, load_foreign_file
from assay.errors import UsageError


def aggregate(kind: str, value: float, name: str = "BM/2", **fields: Any) -> dict[str, Any]:
    return {
        "name": f"{name}_{kind}",
        "run_name": name,
        "run_type": "aggregate",
        "repetitions": 9,
        "threads": 1,
        "aggregate_name": kind,
        "aggregate_unit": "percentage" if kind == "cv" else "time",
        "iterations": 9,
        "real_time": value,
        "cpu_time": value / 2,
        "time_unit": "us",
        **fields,
    }


def run(value: float, name: str = "BM/1", **fields: Any) -> dict[str, Any]:
    return {"name": name, "run_name": name, "run_type": "iteration", "real_time": value, "time_unit": "us", **fields}


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def read(*rows: dict[str, Any]) -> Foreign:
        path = tmp_path / "google.json"
        path.write_text(json.dumps({"context": {"num_cpus": 4}, "benchmarks": list(rows)}))
        return load_foreign_file(str(path))

    return read


def test_aggregates_alone_are_a_figure(load: Any) -> None:
    rows = [aggregate(kind, value) for kind, value in (("mean", 3), ("median", 2), ("stddev", 0.5), ("cv", 0.1))]
    (found,) = load(*rows).executions
    assert found.method == "BM/2"
    assert found.result.wall_time == pytest.approx(2e-6)
    assert found.result.cpu_time == pytest.approx(1e-6)
    assert found.result.extras == {"aggregate": "median", "repetitions": "9", "stddev_s": "5e-07"}
    assert found.succeeded
    assert set(found.result.numbers) == {"wall_time", "cpu_time"}, "how far they lay apart has no history of its own"
    (mean,) = load(rows[0], rows[2]).executions
    assert (mean.result.wall_time, mean.result.extras["aggregate"]) == (pytest.approx(3e-6), "mean")


def test_both_kinds_in_one_file(load: Any) -> None:
    found = load(run(1), run(3), aggregate("median", 2, "BM/1"), aggregate("median", 7)).executions
    assert {each.method: each.result.wall_time for each in found} == pytest.approx({"BM/1": 2e-6, "BM/2": 7e-6})
    assert len(found[0].result.samples["wall_time"]) == 2, "repetitions win over their aggregates"


def test_old_files_tell_aggregates_by_their_names(load: Any) -> None:
    old = [{"name": f"BM_{kind}", "real_time": 2, "time_unit": "ms"} for kind in ("mean", "stddev")]
    (found,) = load(*old).executions
    assert (found.method, found.result.wall_time) == ("BM", 0.002)
    (plain,) = load({"name": "compute_mean", "real_time": 2, "time_unit": "ms"}).executions
    assert plain.method == "compute_mean"


def test_counters_are_metrics(load: Any) -> None:
    fields = {"Foo": 4.0, "bytes_per_second": 1e9, "label": "fast path", "threads": 2, "repetition_index": 0}
    (found,) = load(run(1, **fields), run(3, **{**fields, "Foo": 6.0})).executions
    assert found.result.numbers == {"Foo": 5.0, "bytes_per_second": 1e9, "wall_time": pytest.approx(2e-6)}
    assert found.result.samples["Foo"] == (4.0, 6.0)
    assert found.result.extras == {"label": "fast path"}
    (single,) = load(aggregate("mean", 1, Foo=2.5)).executions
    assert single.result.numbers["Foo"] == 2.5


def test_a_counter_that_is_no_number_fails(load: Any) -> None:
    (found,) = load(run(1, Foo=float("nan"))).executions
    assert found.result.findings[0].message == "Foo is nan"


def test_nothing_is_left_out_in_silence(load: Any) -> None:
    found = load(
        run(1),
        run(0, "BM/skip", skipped=True, skip_message="no GPU"),
        {"name": "BM_BigO", "run_name": "BM", "run_type": "aggregate", "aggregate_name": "BigO", "big_o": "N"},
        {"name": "BM_RMS", "run_name": "BM", "run_type": "aggregate", "aggregate_name": "RMS", "rms": 0.1},
    )
    assert [each.method for each in found.executions] == ["BM/1"]
    assert found.notes == (
        "BM/skip: it was skipped: no GPU",
        "BM: BigO, RMS give its complexity or spread, not its time: there is no result",
    )


def test_a_spread_without_its_middle_is_refused(load: Any) -> None:
    with pytest.raises(UsageError, match=r"benchmark 'BM/2_stddev': it has neither a median nor a mean"):
        load(run(1), aggregate("stddev", 1))


def test_a_failure_among_repetitions_stays_one(load: Any) -> None:
    (found,) = load(run(1), run(0, error_occurred=True, error_message="no device")).executions
    assert not found.result.is_measured
    assert found.result.findings[0].message == "no device"
