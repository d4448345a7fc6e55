"""Files of other tools: each is recognised and read, and what cannot be read says so."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from assay.bench.importers.formats import Foreign, load_foreign, load_foreign_file, parse_foreign
from assay.bench.importers.result import FieldError, ForeignFields, build_imported, parse_moment, parse_number
from assay.bench.values.execution import BenchExecution, BenchResult
from assay.errors import UsageError
from assay.record.importers import registry
from assay.record.importers.registry import Importer
from assay.system.fast_dataclasses import asdict

PERFZERO: dict[str, Any] = {
    "execution_id": "2019-02-13-06-45-22-899128",
    "execution_timestamp": 1550040322.9,
    "benchmark_result": {
        "name": "official.resnet.C.m",
        "wall_time": 14.5,
        "succeeded": True,
        "metrics": [{"name": "acc", "value": 0.75, "min_value": 0.5}],
        "extras": [{"name": "note", "value": "text"}],
        "trial_id": 2,
    },
    "benchmark_info": {"execution_label": "nightly", "site_package_info": {"models": {"hash": "f788046c"}}},
    "system_info": {"cpu_model": "Xeon", "logical_cpu_count": 16, "accelerator_model": "V100", "hostname": "h"},
    "ml_framework_info": {"name": "tensorflow", "version": "1.13", "build_version": "v1.12"},
    "process_info": {"max_rss": 4269047808, "max_vms": 39894450176, "max_cpu_percent": 771.1},
}
PYTEST: dict[str, Any] = {
    "machine_info": {"node": "n", "python_version": "3.12.1", "cpu": {"brand_raw": "Ryzen", "count": 8}},
    "commit_info": {"id": "abc123"},
    "datetime": "2024-05-01T10:00:00.000000+00:00",
    "benchmarks": [
        {
            "name": "test_sort",
            "fullname": "tests/test_x.py::test_sort",
            "extra_info": {"n": 3},
            "stats": {"median": 0.5, "rounds": 3, "iterations": 2, "data": [0.4, 0.5, 0.6]},
        }
    ],
}


def google_run(value: float, name: str = "BM/1", **fields: Any) -> dict[str, Any]:
    return {"name": name, "run_name": name, "run_type": "iteration", "real_time": value, "time_unit": "us", **fields}


GOOGLE: dict[str, Any] = {
    "context": {"date": "2024-05-01T10:00:00+02:00", "host_name": "g", "num_cpus": 4, "mhz_per_cpu": 3000},
    "benchmarks": [
        google_run(2.0, "BM_x/8", iterations=10, cpu_time=1.0, items_per_second=100.0),
        google_run(4.0, "BM_x/8", iterations=10, cpu_time=3.0, items_per_second=300.0),
        {**google_run(3.0, "BM_x/8", cpu_time=2.0), "name": "BM_x/8_mean", "run_type": "aggregate"},
        google_run(0, "BM_bad", cpu_time=0, error_occurred=True, error_message="no device"),
    ],
}
ASV_2: dict[str, Any] = {
    "commit_hash": "c0ffee",
    "date": 1_700_000_000_000,
    "env_name": "virtualenv-py3.11",
    "python": "3.11",
    "params": {"machine": "box", "cpu": "EPYC", "num_cpu": "2"},
    "result_columns": ["result", "params", "version", "samples"],
    "results": {
        "suite.time_keys": [[0.1, 0.2, None], [["'a'", "'b'", "'c'"]], "v", [[0.1, 0.11], None, None]],
        "suite.track_size": [[42], [], "v"],
        "suite.peakmem_load": [[1024], []],
        "suite.failed": [None, []],
    },
    "version": 2,
}
ASV_1: dict[str, Any] = {
    "commit_hash": "c0ffee",
    "date": 1,
    "params": {},
    "results": {"time_x": 0.25, "time_y": {"result": [0.5], "params": []}},
}
MLLOG = """noise
:::MLLOG {"namespace": "", "time_ms": 1000, "key": "submission_benchmark", "value": "resnet", "metadata": {}}
:::MLLOG {"time_ms": 2000, "key": "run_start", "value": null}
:::MLLOG {"time_ms": 5000, "key": "eval_accuracy", "value": 0.5}
:::MLLOG {"time_ms": 9000, "key": "eval_accuracy", "value": 0.76}
:::MLLOG {"time_ms": 12000, "key": "run_stop", "value": null, "metadata": {"status": "success"}}
"""


def test_a_plug_in_s_importer_of_results_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = build_imported("times", BenchResult("sort", True, wall_time=2.0), None, {}, failure=None)
    other: Any = ModuleType("other_times")
    other.is_times, other.parse_times = lambda sample: sample.has_keys("times"), lambda _sample: [parsed, "no unit"]
    monkeypatch.setitem(sys.modules, "other_times", other)
    offered = (Importer("times", "times", "results", "other_times:is_times", "other_times:parse_times"),)
    monkeypatch.setattr(registry, "find_importers", lambda: offered)
    (tmp_path / "times.json").write_text('{"times": []}')
    (found,), notes = load_foreign_file(str(tmp_path / "times.json"))
    assert (found.method, found.result.wall_time, notes) == ("sort", 2.0, ("no unit",))


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def read(content: Any) -> list[BenchExecution]:
        path = tmp_path / "file.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return load_foreign(str(path))

    return read


def test_perfzero(load: Any) -> None:
    (found,) = load(PERFZERO)
    assert (found.method, found.trial, found.label, found.source) == ("official.resnet.C.m", 2, "nightly", "perfzero")
    assert found.execution_id == "2019-02-13-06-45-22-899128"
    assert found.result.numbers == {"acc": 0.75, "wall_time": 14.5}
    assert found.result.metrics[0].min_value == 0.5
    assert found.setup["framework"] == "tensorflow 1.13"
    assert found.setup["accelerator_model"] == "V100"
    assert found.succeeded
    (failed,) = load(put(PERFZERO, ("benchmark_result", "succeeded"), value=False))
    assert not failed.succeeded


def render_log(*summaries: dict[str, Any]) -> str:
    """As PerfZero's own logging writes it, among what else is printed."""
    lines = ["2019-02-13 06:45:22,899 INFO: Starting", "{not json", '{"some": "other object"}', "x = {1: 2}"]
    for summary in summaries:
        text = json.dumps(summary, indent=2)
        lines.append(f"2019-02-13 06:45:40,1 INFO: Benchmark execution for m completed with summary:\n {text}")
    return "\n".join([*lines, "Benchmark success results:", "{", '  "trial_1": {"m": true}', "}"])


def test_perfzero_s_log_and_what_it_printed(load: Any, tmp_path: Path) -> None:
    found = load(render_log(PERFZERO, {**PERFZERO, "execution_id": "second"}, PERFZERO))
    assert [each.execution_id for each in found] == [PERFZERO["execution_id"], "second"], "each once"
    assert found[0] == load(PERFZERO)[0]
    (same_line,) = load("INFO: completed with summary: " + json.dumps(PERFZERO))
    assert same_line == found[0]
    path = tmp_path / "perfzero.log"
    path.write_bytes(b"\xff\xfe progress\n" + render_log(PERFZERO).encode())
    assert [each.method for each in load_foreign(str(path))] == ["official.resnet.C.m"], "it may hold other bytes"
    for text in (render_log(), render_log(PERFZERO)[:-500]):
        with pytest.raises(UsageError, match="it is not JSON"):
            load(text)


def test_pytest_benchmark(load: Any) -> None:
    (found,) = load(PYTEST)
    assert found.method == "tests/test_x.py::test_sort"
    assert found.result.wall_time == 0.5
    assert found.result.samples["wall_time"] == (0.4, 0.5, 0.6)
    assert found.result.iters == 6
    assert found.commit == "abc123"
    assert found.setup == {"cpu_model": "Ryzen", "cpus": "8", "python": "3.12"}
    assert found.started_at == 1714557600.0


def test_google_benchmark(load: Any) -> None:
    good, bad = load(GOOGLE)
    assert good.method == "BM_x/8"
    assert good.result.wall_time == pytest.approx(3e-6)
    assert good.result.samples["wall_time"] == pytest.approx((2e-6, 4e-6))
    assert good.result.numbers["items_per_second"] == 200
    assert not bad.succeeded
    assert bad.result.findings[0].message == "no device"


def test_asv_of_both_versions(load: Any) -> None:
    found = {each.method: each for each in load(ASV_2)}
    good = {"suite.time_keys('a')", "suite.time_keys('b')", "suite.track_size", "suite.peakmem_load"}
    assert set(found) == {*good, "suite.time_keys('c')", "suite.failed"}
    assert {name for name, each in found.items() if each.succeeded} == good
    assert found["suite.time_keys('a')"].result.wall_time == 0.1
    assert found["suite.time_keys('a')"].result.samples["wall_time"] == (0.1, 0.11)
    assert found["suite.track_size"].result.numbers == {"track_size": 42}
    assert found["suite.peakmem_load"].result.numbers == {"peak_memory": 1024}
    assert found["suite.track_size"].commit == "c0ffee"
    assert {each.result.wall_time for each in load(ASV_1)} == {0.25, 0.5}


def test_mlperf(load: Any) -> None:
    (found,) = load(MLLOG)
    assert found.method == "mlperf.resnet"
    assert found.result.wall_time == 10.0
    assert found.result.numbers["eval_accuracy"] == 0.76
    assert found.result.samples["eval_accuracy"] == (0.5, 0.76)
    assert found.succeeded
    begun = MLLOG[: MLLOG.index(':::MLLOG {"time_ms": 12000')]
    for text, words in ((MLLOG.replace("success", "aborted"), "aborted"), (begun, "never stopped")):
        (found,) = load(text)
        assert not found.succeeded
        assert words in found.result.findings[0].message


def test_what_cannot_be_read_is_one_clear_message(load: Any, tmp_path: Path) -> None:
    for content in (
        "",
        "not json",
        "[1, 2]",
        "{}",
        '{"results": 3, "commit_hash": "x"}',
        '{"context": {}, "benchmarks": []}',
        '{"machine_info": {}, "benchmarks": [{"name": "x"}]}',
        '{"benchmark_result": {}, "execution_timestamp": 1}',
        ':::MLLOG {"broken',
        ':::MLLOG {"no": "key"}',
    ):
        with pytest.raises(UsageError, match="cannot be imported") as found:
            load(content)
        assert "known: PerfZero" in (found.value.hint or "")
        assert "file.json" in found.value.message
        assert not re.search(r"\w(Error|Exception)\b", found.value.message), "Python's own names tell users nothing"
    with pytest.raises(UsageError, match="cannot be read"):
        load_foreign(str(tmp_path / "nowhere.json"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(UsageError, match="not text"):
        load_foreign(str(tmp_path / "binary"))


def list_places(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in it."""
    if place:
        yield place
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in pairs:
        yield from list_places(value, (*place, key))


def put(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The content with another value there: only what leads to it is copied."""
    if not place:
        return value
    copied = content.copy()
    copied[place[0]] = put(content[place[0]], place[1:], value)
    return copied


ODD = [None, True, "", "text", -1, 10**400, [], [None], {"a": 1}, float("nan")]


@pytest.mark.parametrize("content", [PERFZERO, PYTEST, GOOGLE, ASV_2, ASV_1])
def test_whatever_stands_in_a_field_it_is_read_or_refused_with_its_place(content: Any) -> None:
    """Each place of each file, with each odd value: figures, or one message that a user can read."""
    refused = 0
    for place in list(list_places(content)):
        for value in ODD:
            try:
                for each in parse_foreign(json.dumps(put(content, place, value)), "file.json"):
                    assert isinstance(each, (BenchExecution, str))
                    assert isinstance(each, str) or json.dumps(asdict(each))
            except FieldError:
                refused += 1
    assert refused > 15, "nothing was refused at all"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (put(GOOGLE, ("benchmarks", 0, "time_unit"), "fortnight"), "benchmark 'BM_x/8': time_unit is 'fortnight', "),
        (
            put(GOOGLE, ("benchmarks", 1, "real_time"), "fast"),
            "benchmark 'BM_x/8': real_time is 'fast', which is not a n",
        ),
        (put(GOOGLE, ("benchmarks", 0, "real_time"), None), "benchmark 'BM_x/8': real_time is missing"),
        (put(GOOGLE, ("benchmarks", 0), 7), "benchmark 1 is 7, which is not an object"),
        (put(GOOGLE, ("context", "date"), "yesterday"), "context: date is 'yesterday', which is not a date"),
        (put(PYTEST, ("benchmarks", 0, "stats", "median"), None), "test_x.py::test_sort' stats: median is missing"),
        (
            put(PYTEST, ("benchmarks", 0, "stats", "data"), ["x"]),
            "stats: data is ['x'], which is not a list of numbers",
        ),
        (put(PERFZERO, ("benchmark_result", "wall_time"), "fast"), "benchmark 'official.resnet.C.m': wall_time is"),
        (put(PERFZERO, ("benchmark_result", "metrics", 0, "value"), "x"), "'official.resnet.C.m' metric 'acc': value"),
        (put(PERFZERO, ("execution_timestamp",), "now"), "execution_timestamp is 'now', which is not a number"),
        (put(ASV_2, ("results", "suite.track_size", 0), [1, 2]), "'suite.track_size': there are 2 results for 1"),
        (put(ASV_2, ("results", "suite.time_keys", 1), [7]), "'suite.time_keys': params is not a list of lists"),
        (put(GOOGLE, ("benchmarks", 0, "run_name"), "BM_\ud800"), "'BM_\\ud800 "),
        (MLLOG.replace('"time_ms": 2000', '"time_ms": "x"'), ":::MLLOG line 2: time_ms is 'x', which is not a number"),
        (MLLOG.replace('"key": "run_start"', '"kea": 1'), ":::MLLOG line 2: key is missing"),
        (MLLOG.replace('"value": 0.5}', '"value": 0,5}'), ":::MLLOG line 3 is not JSON"),
    ],
)
def test_the_message_names_benchmark_and_field(load: Any, content: Any, words: str) -> None:
    with pytest.raises(UsageError) as found:
        load(content)
    assert words in found.value.message


# ---------------------------------------------------------------- google-benchmark: what its reporters leave out


def aggregate(kind: str, value: float, name: str = "BM/2", **fields: Any) -> dict[str, Any]:
    given = {"repetitions": 9, "threads": 1, "iterations": 9, "cpu_time": value / 2, **fields}
    given |= {"run_type": "aggregate", "aggregate_name": kind}
    given |= {"aggregate_unit": "percentage" if kind == "cv" else "time"}
    return {**google_run(value, name, **given), "name": f"{name}_{kind}"}


@pytest.fixture
def load_google(tmp_path: Path) -> Any:
    def read(*rows: dict[str, Any]) -> Foreign:
        path = tmp_path / "google.json"
        path.write_text(json.dumps({"context": {"num_cpus": 4}, "benchmarks": list(rows)}))
        return load_foreign_file(str(path))

    return read


def test_aggregates_alone_are_a_figure(load_google: Any) -> None:
    rows = [aggregate(kind, value) for kind, value in (("mean", 3), ("median", 2), ("stddev", 0.5), ("cv", 0.1))]
    (found,) = load_google(*rows)[0]
    assert found.method == "BM/2"
    assert found.result.wall_time == pytest.approx(2e-6)
    assert found.result.cpu_time == pytest.approx(1e-6)
    assert found.result.extras == {"aggregate": "median", "repetitions": "9", "stddev_s": "5e-07"}
    assert found.succeeded
    assert set(found.result.numbers) == {"wall_time", "cpu_time"}, "how far they lay apart has no history of its own"
    (mean,) = load_google(rows[0], rows[2])[0]
    assert (mean.result.wall_time, mean.result.extras["aggregate"]) == (pytest.approx(3e-6), "mean")


def test_both_kinds_in_one_file(load_google: Any) -> None:
    found = load_google(google_run(1), google_run(3), aggregate("median", 2, "BM/1"), aggregate("median", 7))[0]
    assert {each.method: each.result.wall_time for each in found} == pytest.approx({"BM/1": 2e-6, "BM/2": 7e-6})
    assert len(found[0].result.samples["wall_time"]) == 2, "repetitions win over their aggregates"


def test_old_files_tell_aggregates_by_their_names(load_google: Any) -> None:
    old = [{"name": f"BM_{kind}", "real_time": 2, "time_unit": "ms"} for kind in ("mean", "stddev")]
    (found,) = load_google(*old)[0]
    assert (found.method, found.result.wall_time) == ("BM", 0.002)
    (plain,) = load_google({"name": "compute_mean", "real_time": 2, "time_unit": "ms"})[0]
    assert plain.method == "compute_mean"


def test_counters_are_metrics(load_google: Any) -> None:
    fields = {"Foo": 4.0, "bytes_per_second": 1e9, "label": "fast path", "threads": 2, "repetition_index": 0}
    (found,) = load_google(google_run(1, **fields), google_run(3, **{**fields, "Foo": 6.0}))[0]
    assert found.result.numbers == {"Foo": 5.0, "bytes_per_second": 1e9, "wall_time": pytest.approx(2e-6)}
    assert found.result.samples["Foo"] == (4.0, 6.0)
    assert found.result.extras == {"label": "fast path"}
    (single,) = load_google(aggregate("mean", 1, Foo=2.5))[0]
    assert single.result.numbers["Foo"] == 2.5
    (bad,) = load_google(google_run(1, Foo=float("nan")))[0]
    assert bad.result.findings[0].message == "Foo is nan"
    (broken,) = load_google(google_run(1), google_run(0, error_occurred=True, error_message="no device"))[0]
    assert not broken.result.is_measured, "a failure among repetitions stays one"
    assert broken.result.findings[0].message == "no device"


def test_nothing_is_left_out_in_silence(load_google: Any) -> None:
    found = load_google(
        google_run(1),
        google_run(0, "BM/skip", skipped=True, skip_message="no GPU"),
        {"name": "BM_BigO", "run_name": "BM", "run_type": "aggregate", "aggregate_name": "BigO", "big_o": "N"},
        {"name": "BM_RMS", "run_name": "BM", "run_type": "aggregate", "aggregate_name": "RMS", "rms": 0.1},
    )
    assert [each.method for each in found[0]] == ["BM/1"]
    assert found[1] == (
        "BM/skip: it was skipped: no GPU",
        "BM: BigO, RMS give its complexity or spread, not its time: there is no result",
    )
    with pytest.raises(UsageError, match=r"benchmark 'BM/2_stddev': it has neither a median nor a mean"):
        load_google(google_run(1), aggregate("stddev", 1))


# ---------------------------------------------------------------- fields, one by one


@pytest.mark.parametrize(
    ("value", "expected"), [(1, 1.0), ("Infinity", math.inf), ("-Infinity", -math.inf), (True, None), ("1", None)]
)
def test_numbers(value: Any, expected: float | None) -> None:
    assert parse_number(value) == expected
    assert math.isnan(parse_number("NaN") or 0)
    assert parse_number(10**400) is None


def test_what_is_missing_is_missed_where_it_is_needed() -> None:
    fields = ForeignFields({"null": None})
    assert "null" not in fields
    assert (fields.number("null"), fields.whole("x"), fields.text("x"), fields.items("x")) == (None, 0, "", ())
    for ask in (fields.need_number, fields.need_text):
        with pytest.raises(FieldError, match=r"^null is missing$"):
            ask("null")


def test_parts_are_called_by_their_names() -> None:
    fields = ForeignFields({"list": [{"name": "a", "v": "x"}, {"v": "x"}]}, "here")
    named, numbered = fields.parts("list", "metric")
    for part, place in ((named, "here metric 'a'"), (numbered, "here metric 2")):
        with pytest.raises(FieldError, match=f"^{place}: v is 'x', which is not a number$"):
            part.number("v")


def test_a_long_value_is_cut_and_what_is_no_date_refused() -> None:
    with pytest.raises(FieldError) as caught:
        ForeignFields({"x": "y" * 1000}).number("x")
    assert len(str(caught.value)) < 120
    for text in ("yesterday", "2024-13-01"):
        with pytest.raises(FieldError, match="which is not a date"):
            parse_moment(ForeignFields({"date": text}), "date")
    for text, expected in (
        ("2024-05-01T10:00:00+00:00", 1714557600.0),
        ("2024-05-01T10:00:00", 1714557600.0),
        ("", None),
    ):
        assert parse_moment(ForeignFields({"date": text}), "date") == expected
