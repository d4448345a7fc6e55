"""PerfZero's summaries: one rule for those of PerfZero and for our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.bench.importers.formats import load_foreign
from assay.bench.importers.result import DIGEST
from assay.bench.values.execution import BenchExecution, Framework
from assay.values.verdict import VerdictKind

METRICS = [{"name": "acc", "value": 0.3, "min_value": 0.5}]


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def read(result: dict[str, Any] | None = None, info: dict[str, Any] | None = None, **parts: Any) -> BenchExecution:
        content = {
            "execution_id": "id",
            "execution_timestamp": 1550040322.9,
            "benchmark_result": {"name": "m.C.f", "wall_time": 14.5, "succeeded": True, **(result or {})},
            "benchmark_info": {"has_exception": False, **(info or {})},
            **parts,
        }
        path = tmp_path / "perfzero_summary.json"
        path.write_text(json.dumps(content))
        (found,) = load_foreign(str(path))
        return found

    return read


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"metrics": METRICS}, "acc is 0.3, below its minimum 0.5"),
        ({"metrics": [{"name": "acc", "value": 9, "max_value": 5}]}, "acc is 9, above its maximum 5"),
        ({"metrics": METRICS, "findings": ["our own words"]}, "our own words"),
        ({}, "it had not succeeded when PerfZero ran it"),
    ],
)
def test_a_bound_that_is_not_kept_is_a_failure_and_a_figure(load: Any, result: dict[str, Any], words: str) -> None:
    found = load({**result, "succeeded": False})
    assert not found.succeeded
    assert found.result.is_measured
    assert [(each.kind, each.message) for each in found.result.findings] == [(VerdictKind.FAIL, words)]
    assert found.result.numbers["wall_time"] == 14.5


def test_without_a_result_there_is_no_figure(load: Any) -> None:
    for result, info in (
        ({"wall_time": -1}, {"has_exception": True}),
        ({"metrics": METRICS}, {"has_exception": True}),
        ({"wall_time": -1}, {}),  # it never reported
        ({"wall_time": None}, {}),
    ):
        found = load({**result, "succeeded": False, "findings": ["first", "second"]}, info)
        assert not found.result.is_measured
        assert found.result.findings[0].message == "first; second"


def test_a_number_that_is_none_fails_also_where_perfzero_let_it_pass(load: Any) -> None:
    for value in ("NaN", float("nan"), None):
        found = load({"metrics": [{"name": "loss", "value": value}]})
        assert (found.succeeded, found.result.is_measured) == (False, True)
        assert found.result.findings[0].message == "loss is nan"
    found = load({"wall_time": "NaN", "succeeded": False, "findings": ["wall_time is nan"]})
    assert [each.message for each in found.result.findings] == ["wall_time is nan"], "said once"


def test_what_our_own_summaries_know_beyond_is_kept(load: Any) -> None:
    found = load(
        {"iters": 7, "cpu_time": 3.5, "throughput": 99.5},
        {"contaminated": ["load 8.9"]},
        ml_framework_info={"name": "torch", "version": "2.11", "build_version": "b", "cuda": "13.0", "cudnn": "9.19"},
        process_info={"max_rss": 5, "max_vms": 6, "max_cpu_percent": 7.5, "max_gpu_memory": 123},
    )
    assert (found.result.iters, found.result.cpu_time, found.result.throughput) == (7, 3.5, 99.5)
    assert found.contaminated == ("load 8.9",)
    assert (found.succeeded, found.refused) == (True, False)
    assert found.framework == Framework("torch", "2.11", "b", "13.0", "9.19")
    assert (found.setup["cuda"], found.setup["cudnn"]) == ("13.0", "9.19")
    assert (found.peaks.max_rss, found.peaks.gpu_memory_bytes) == (5, 123)


def test_a_refused_execution_has_not_failed(load: Any) -> None:
    found = load({"succeeded": False}, {"contaminated": ["load 8.9"]})
    assert (found.refused, found.succeeded, found.result.succeeded) == (True, False, True)
    broken = load({"succeeded": False, "findings": ["acc is low"]}, {"contaminated": ["load 8.9"]})
    assert (broken.refused, broken.result.succeeded) == (False, False)


def test_columns_of_tables_are_kept(load: Any) -> None:
    packages = {"models": {"hash": "f788", "url": "u"}, "tpu_version": "2"}
    found = load(
        info={"site_package_info": packages},
        system_info={"platform_name": "gcp", "system_name": "n1"},
        ml_framework_info={"build_label": "nightly"},
    )
    assert {key: found.extra[key] for key in found.extra if key != DIGEST} == {
        "platform_name": "gcp",
        "system_name": "n1",
        "ml_framework_build_label": "nightly",
        "site_package_info": packages,
    }
    assert found.commit == "f788"
    assert found.framework is None


def test_the_digest_is_of_the_content_and_not_of_its_layout(load: Any, tmp_path: Path) -> None:
    first = load({"trial_id": 1}).extra[DIGEST]
    path = tmp_path / "perfzero_summary.json"
    path.write_text(json.dumps(dict(reversed(json.loads(path.read_text()).items())), indent=4))
    assert load_foreign(str(path))[0].extra[DIGEST] == first
    assert load({"trial_id": 2}).extra[DIGEST] != first
    assert load({"trial_id": 1}, setup_info={"x": 1}).extra[DIGEST] != first


def test_an_id_may_be_anything(load: Any) -> None:
    for name in (7, 2.5, " ", ""):
        found = load(execution_id=name)
        assert found.execution_id == (str(name).strip() or found.execution_id)
        assert found.execution_id
