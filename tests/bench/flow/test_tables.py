"""Environments side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.bench_samples import history

from assay.bench.flow.tables import EnvironmentTable, build_table, describe_table, value_of
from assay.bench.values.execution import BenchExecution, Framework, Machine
from assay.errors import NotFoundError, UsageError
from assay.values.environment import GitState
from assay.values.verdict import Finding, VerdictKind


def table_of(
    given: Sequence[BenchExecution],
    method: str | None,
    by: Sequence[str],
    metrics: Sequence[str] | None = None,
    everything: bool = False,
) -> EnvironmentTable:
    return build_table([e for e in given if method in (None, e.method)], (), method, by, metrics, everything)


def test_set_ups_are_grouped_with_all_their_values() -> None:
    given = [
        *history([1.0, 1.1], setup={"cudnn": "8.9.2", "accelerator_model": "H200"}, label="nightly"),
        *history([0.9], setup={"cudnn": "9.1.0", "accelerator_model": "H200"}, label="nightly"),
    ]
    table = table_of(given, "m.C.f", ["cudnn", "label", "accelerator_model"])
    assert table.by == ("cudnn", "label", "accelerator_model")
    assert table.metrics == ("wall_time",)
    assert [(row.keys, row.count, row.values) for row in table.rows] == [
        (("8.9.2", "nightly", "H200"), 2, {"wall_time": (1.0, 1.1)}),
        (("9.1.0", "nightly", "H200"), 1, {"wall_time": (0.9,)}),
    ]
    assert table.left_out == {}


def test_benchmarks_are_never_mixed() -> None:
    given = [*history([1.0, 1.1]), *(replace(e, method="m.C.g") for e in history([1e6, 1.1e6]))]
    table = table_of(given, None, ["label"])
    assert table.by == ("benchmark", "label")
    assert [(row.keys[0], row.count) for row in table.rows] == [("m.C.f", 2), ("m.C.g", 2)]
    assert table_of(given, None, ["method", "label"]).by == ("method", "label")


def test_commits_stand_in_the_order_of_their_measurements() -> None:
    given = [replace(e, commit=name * 40) for e, name in zip(history([1.0, 2.0, 3.0]), "cab", strict=True)]
    table = table_of(given, "m.C.f", ["commit"])
    assert [row.keys[0][0] for row in table.rows] == ["c", "a", "b"]


SILENT = Finding(VerdictKind.ERROR, "m", "speed was not found in its output")
BOUND = Finding(VerdictKind.FAIL, "m", "acc is below its minimum")


def test_what_failed_or_was_disturbed_is_left_out_and_counted() -> None:
    good, dirty, failed, refused, silent, outside, profiled, ended = history([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 66.0, 0.1])
    broken = replace(ended.result, succeeded=False, has_exception=True)
    given = [
        good,
        replace(dirty, contaminated=("load",)),
        replace(failed, result=replace(failed.result, has_exception=True)),
        replace(refused, contaminated=("load",), refused=True),
        replace(silent, result=replace(silent.result, succeeded=False, findings=(SILENT,))),
        replace(outside, result=replace(outside.result, succeeded=False, findings=(BOUND,))),
        replace(profiled, profiles=("trace",)),
        replace(ended, state="stopped", result=broken),
    ]
    table = table_of(given, None, ["label"])
    always = {"failed": 2, "refused as contaminated": 1, "interrupted": 1}
    assert table.rows[0].values["wall_time"] == (1.0, 6.0)
    assert table.left_out == {"contaminated": 1, "profiled": 1, **always}
    table = table_of(given, None, ["label"], everything=True)
    assert (table.rows[0].values["wall_time"], table.left_out) == ((1.0, 2.0, 6.0, 66.0), always)


def test_nothing_undisturbed_is_reported() -> None:
    given = [replace(e, contaminated=("load",)) for e in history([1.0, 2.0])]
    table = table_of(given, None, ["label"])
    (row,) = table.rows
    assert (row.count, row.values["wall_time"], row.aside["wall_time"]) == (2, (), (1.0, 2.0))
    assert describe_table(table) == (
        "left out: 2 contaminated (for wall_time: in brackets where none counts); --all takes contaminated ones"
    )


def test_load_disturbs_times_and_nothing_else() -> None:
    found = history([1.0, 2.0], contaminated=("others used 90% of the CPUs during the run",))
    numbers = {"loss": 0.5, "calls": 7, "peak_memory": 1e6, "latency_ms": 3.0}
    given = [replace(e, result=replace(e.result, cpu_time=0.5, extras=numbers)) for e in found]
    table = table_of(given, None, ["label"])
    assert table.disturbed == ("wall_time", "latency_ms")
    assert {name for name, values in table.rows[0].values.items() if len(values) == 2} == {
        "cpu_time", "loss", "calls", "peak_memory",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"profiles": ("trace",)}, "include profiled ones: --all"),
        ({"contaminated": ("load",), "refused": True}, "run it again: assay bench run METHOD"),
    ],
)
def test_what_helps_is_advised(fields: dict[str, Any], hint: str) -> None:
    given = history([1.0, 2.0], **fields)
    with pytest.raises(UsageError) as caught:
        table_of(given, None, ["label"])
    assert caught.value.hint == hint
    del given[1:]
    with pytest.raises(UsageError, match="the only execution has not succeeded without disturbance: 1 "):
        table_of(given, None, ["label"])


def test_columns_and_metrics_that_are_not_there() -> None:
    given = history([1.0], setup={"cudnn": "9"})
    with pytest.raises(NotFoundError, match=r"(?s)cudn.*did you mean 'cudnn'.*known: benchmark, label, commit"):
        table_of(given, None, ["cudn"])
    with pytest.raises(NotFoundError, match="known: benchmark, label, commit"):
        table_of(given, None, ["zzz"])
    with pytest.raises(NotFoundError, match="wal_time"):
        table_of(given, None, ["label"], ["wal_time"])


def test_values_that_are_no_numbers_do_not_count() -> None:
    given = history([1.0, math.nan, math.inf, 3.0])
    (row,) = table_of(given, None, ["label"], ["wall_time"]).rows
    assert (row.count, row.values["wall_time"]) == (4, (1.0, 3.0))


def test_keys() -> None:
    (execution,) = history(
        [1.0],
        label="nightly",
        commit="c" * 40,
        git=GitState("c" * 40, "main", False),
        machine=Machine(host="box"),
        framework=Framework("torch", "2.9"),
        setup={"framework": "torch 2.9", "python": "3.12"},
    )
    expected = {"label": "nightly", "commit": "c" * 12, "branch": "main", "host": "box", "method": "m.C.f"}
    expected |= {"trial": "1", "source": "assay", "framework_name": "torch", "framework_version": "2.9"}
    expected |= {"framework": "torch 2.9", "cuda": "-", "python": "3.12"}
    assert {key: value_of(execution, key) for key in expected} == expected


def test_what_a_command_has_stored_is_a_column() -> None:
    extra = {"system_name": "dgx", "platform_name": "gcp", "ml_framework_build_label": "nightly", "rack": 7, "x": {}}
    given = [*history([1.0], extra=extra, label="l"), *history([2.0])]
    keys = ["system_name", "platform_name", "build_label", "ml_framework_build_label", "execution_label", " rack"]
    table = table_of(given, "m.C.f", keys)
    assert [row.keys for row in table.rows] == [("-",) * 6, ("dgx", "gcp", "nightly", "nightly", "l", "7")]
    with pytest.raises(NotFoundError, match=r"(?s)'systemname'.*did you mean 'system_name'.*known: .*rack"):
        table_of(given, "m.C.f", ["systemname"])
    with pytest.raises(NotFoundError, match="'x'"):
        table_of(given, "m.C.f", ["x"])
    del given[0]
    for key in ("system_name", "platform_name", "build_label", "cudnn", "accelerator_model"):
        assert [row.keys for row in table_of(given, "m.C.f", [key]).rows] == [("-",)], "known before it is used"
