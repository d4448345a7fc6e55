"""PerfZero's summary, field for field, and its process_info.log."""

from __future__ import annotations

import copy
import json
import math
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.show.json_schema import problems

from assay.bench.values.execution import (
    BenchExecution,
    BenchMetric,
    BenchReport,
    BenchRequest,
    BenchResult,
    Framework,
    Machine,
    Peaks,
    parse_method,
)
from assay.compat.perfzero.summary import (
    SCHEMA,
    build_charts,
    build_summary,
    load_process_info,
    parse_process_info,
    plot_process_info,
    render_closing,
    render_end,
    render_json,
    render_log_end,
    render_log_head,
    render_process_info,
    render_profile_hint,
)
from assay.compat.perfzero.values import Package, PerfzeroJob, PerfzeroReport
from assay.errors import InfrastructureError, NotFoundError, UsageError
from assay.values.series import GpuReading, Reading
from assay.values.verdict import Finding, VerdictKind

SHA = "75d2991b88630dde10ef65aad8082a6d5cd8b5fc"

RESULT = BenchResult(
    name="official.resnet.Bench.unit_test",
    succeeded=True,
    iters=2000,
    wall_time=14.5,
    cpu_time=3.5,
    throughput=7.0,
    metrics=(BenchMetric("accuracy_top_5", 0.75, 0.5, 1.0), BenchMetric("accuracy_top_1", 0.25)),
    extras={"exp_per_second": 12.5, "words": "text", "top": '{"value": 3}'},
)
EXECUTION = BenchExecution(
    execution_id="2019-02-13-06-45-22-899128",
    method="official.resnet.Bench.unit_test",
    trial=2,
    result=RESULT,
    run_dir="/r",
    output_dir="/w/output/2019-02-13-06-45-22-899128",
    started_at=1550040322.8991697,
    ended_at=1550040340.5,
    machine=Machine(
        host="node7",
        cpu_model="Intel(R) Xeon(R) CPU @ 2.20GHz",
        logical_cpus=16,
        physical_cpus=8,
        sockets=1,
        accelerator_model="Tesla V100-SXM2-16GB",
        accelerator_count=2,
        accelerator_driver="410.48",
    ),
    framework=Framework("tensorflow", "2.21.0", "v2.21.0-rc1", "12.9", "9.10.2"),
    peaks=Peaks(4269047808, 39894450176, 771.1, gpu_memory_bytes=123),
    contaminated=("others used 51% of the CPUs during the run",),
)
JOB = PerfzeroJob(
    BenchRequest((parse_method("official.resnet.Bench.unit_test"),), label="execution_label"),
    workspace="/w",
    build_label="ml_framework_build_label",
    platform_name="platform_name",
    system_name="system_name",
    output_url="gs://tf-performance/test-results",
    tpu={"name": "tpu", "version": "2.4"},
    env_vars={"PERFZERO_MODE": "test"},
    flags={"workspace": "workspace", "debug": False, "benchmark_methods": ["a.b"], "benchmark_num_trials": 2},
    packages={
        "models": Package("https://example.org/models.git", "master", SHA),
        "edited": Package("https://example.org/edited.git", "HEAD", SHA, dirty=True, local_commits=3),
    },
    harness={"name": "assay", "version": "1.0"},
)
BARE = PerfzeroJob(BenchRequest(()), "/w", harness={"name": "assay", "version": "1.0"})


def load_schema() -> dict[str, Any]:
    with open(SCHEMA, encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def test_every_field_of_the_document() -> None:
    summary = build_summary(EXECUTION, JOB)
    assert summary == {
        "execution_id": "2019-02-13-06-45-22-899128",
        "execution_timestamp": 1550040322.8991697,
        "benchmark_result": {
            "name": "official.resnet.Bench.unit_test",
            "wall_time": 14.5,
            "succeeded": True,
            "extras": [
                {"name": "exp_per_second", "value": 12.5},
                {"name": "words", "value": "text"},
                {"name": "top", "value": '{"value": 3}'},
            ],
            "metrics": [
                {"name": "accuracy_top_5", "value": 0.75, "min_value": 0.5, "max_value": 1.0},
                {"name": "accuracy_top_1", "value": 0.25},
                {"name": "exp_per_second", "value": 12.5},
            ],
            "trial_id": 2,
            "iters": 2000,
            "cpu_time": 3.5,
            "throughput": 7.0,
        },
        "benchmark_info": {
            "harness_name": "perfzero",
            "harness_info": {"name": "assay", "version": "1.0"},
            "has_exception": False,
            "execution_label": "execution_label",
            "output_url": "gs://tf-performance/test-results/2019-02-13-06-45-22-899128/",
            "env_vars": {"PERFZERO_MODE": "test"},
            "flags": {
                "workspace": "workspace",
                "debug": False,
                "benchmark_methods": ["a.b"],
                "benchmark_num_trials": 2,
            },
            "contaminated": ["others used 51% of the CPUs during the run"],
            "site_package_info": {
                "models": {"url": "https://example.org/models.git", "branch": "master", "hash": SHA},
                "edited": {
                    "url": "https://example.org/edited.git",
                    "branch": "HEAD",
                    "hash": SHA,
                    "dirty": True,
                    "local_commits": 3,
                },
                "tpu_version": "2.4",
            },
        },
        "setup_info": {},
        "ml_framework_info": {
            "name": "tensorflow",
            "version": "2.21.0",
            "build_version": "v2.21.0-rc1",
            "build_label": "ml_framework_build_label",
            "cuda": "12.9",
            "cudnn": "9.10.2",
        },
        "system_info": {
            "platform_name": "platform_name",
            "system_name": "system_name",
            "accelerator_driver_version": "410.48",
            "accelerator_model": "Tesla V100-SXM2-16GB",
            "accelerator_count": 2,
            "cpu_model": "Intel(R) Xeon(R) CPU @ 2.20GHz",
            "physical_cpu_count": 8,
            "logical_cpu_count": 16,
            "cpu_socket_count": 1,
            "hostname": "node7",
        },
        "process_info": {
            "max_rss": 4269047808,
            "max_vms": 39894450176,
            "max_cpu_percent": 771.1,
            "max_gpu_memory": 123,
        },
    }
    assert list(problems(summary, load_schema())) == []


def test_what_is_not_known_is_left_out_where_perfzero_left_it_out() -> None:
    summary = build_summary(BenchExecution("e", "m.f", 1, BenchResult("m.f", False), "", ""), BARE)
    assert summary["benchmark_result"]["wall_time"] == -1.0
    assert set(summary["benchmark_info"]) == {"harness_name", "harness_info", "has_exception", "site_package_info"}
    assert summary["ml_framework_info"] == {"name": "", "version": "", "build_version": ""}
    assert "accelerator_model" not in summary["system_info"]
    assert summary["system_info"]["accelerator_count"] == 0, "a machine without one is no unknown machine"
    assert list(problems(summary, load_schema())) == []


def test_a_failure_says_why_and_nan_is_a_text() -> None:
    findings = (Finding(VerdictKind.FAIL, "m.f", "wall_time is nan"),)
    result = BenchResult("m.f", False, wall_time=math.nan, metrics=(BenchMetric("a", math.inf),), findings=findings)
    summary = build_summary(replace(EXECUTION, result=result), JOB)
    assert summary["benchmark_result"]["wall_time"] == "NaN"
    assert summary["benchmark_result"]["metrics"] == [{"name": "a", "value": "Infinity"}]
    assert summary["benchmark_result"]["findings"] == ["wall_time is nan"]
    assert list(problems(summary, load_schema())) == []
    json.loads(render_json(summary), parse_constant=pytest.fail)
    assert build_summary(replace(EXECUTION, refused=True), JOB)["benchmark_result"]["succeeded"] is False


# ---------------------------------------------------------------- the end of each


@pytest.mark.parametrize(
    ("messages", "fields", "line"),
    [
        ((), {}, "done m.f trial 2"),
        (("loss is nan",), {"label": "nightly"}, "failed m.f trial 2 nightly: loss is nan"),
        (("a", "b", "c", "d", "e"), {}, "failed m.f trial 2: a; b; c (and 2 more)"),
        (("two\nlines",), {}, r"failed m.f trial 2: two\nlines"),
        (("it was stopped",), {"state": "stopped"}, "stopped m.f trial 2: it was stopped"),
        ((), {"refused": True, "contaminated": ("others",)}, "failed m.f trial 2: refused: others"),
        ((), {"contaminated": ("others",)}, "done m.f trial 2"),
    ],
)
def test_how_each_ended_in_a_line(messages: tuple[str, ...], fields: dict[str, Any], line: str) -> None:
    findings = tuple(Finding(VerdictKind.FAIL, "m.f", message) for message in messages)
    execution = BenchExecution("e", "m.f", 2, BenchResult("m.f", not messages, findings=findings), "", "", **fields)
    assert render_end(execution) == line


def test_where_the_profiles_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())  # as with the extra `perfzero`
    bare = BenchExecution("e", "m.f", 1, BenchResult("m.f", True), "", "/o")
    hint = render_profile_hint(replace(bare, profiles=("/o/p/h.trace.json.gz", "/o/p/h.xplane.pb")))
    assert hint.splitlines() == [
        "profile of m.f for ui.perfetto.dev: /o/p/h.trace.json.gz",
        "tensorboard --logdir=/o shows the profile of m.f",
    ]
    odd = render_profile_hint(replace(bare, output_dir="/my runs", profiles=("/o/h.xplane.pb",)))
    assert odd.startswith("tensorboard '--logdir=/my runs' shows")
    assert "tensorboard" not in render_profile_hint(replace(bare, profiles=("/o/p/h.trace.json.gz",)))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "xprof" else object())
    hint = render_profile_hint(replace(bare, profiles=("/o/h.xplane.pb",)))
    assert hint.endswith(", after: pip install 'assay[perfzero]'"), "a board without its tab for profiles"


GONE = object()
WRONG = [
    ("execution_id", GONE),
    ("benchmark_result.wall_time", GONE),
    ("benchmark_info.site_package_info", GONE),
    ("system_info.accelerator_count", GONE),
    ("benchmark_info.harness_info.version", GONE),
    ("benchmark_info.harness_info.dirty", "True"),
    ("system_info.accelerator_count", -1),
    ("execution_id", ""),
    ("execution_timestamp", "now"),
    ("benchmark_result.wall_time", None),
    ("benchmark_result.wall_time", "none"),
    ("benchmark_result.succeeded", 1),
    ("benchmark_result.trial_id", 0),
    ("benchmark_result.metrics", [{"name": "a"}]),
    ("benchmark_result.extras", [{"name": "a", "value": None}]),
    ("setup_info", {"x": 1}),
    ("benchmark_info.harness_name", "assay"),
    ("benchmark_info.site_package_info", {"m": {"url": "u", "branch": "b"}}),
    ("benchmark_info.site_package_info", {"m": {"url": "u", "branch": "b", "hash": "main"}}),
    ("benchmark_info.env_vars", {"A": 1}),
    ("benchmark_info.flags", {"a": None}),
    ("process_info.max_rss", 1.5),
    ("process_info.max_rss", True),
    ("anything", {}),
]


def test_a_wrong_summary_does_not_fit() -> None:
    schema = load_schema()
    for path, value in WRONG:
        part = summary = copy.deepcopy(build_summary(EXECUTION, JOB))
        *above, last = path.split(".")
        for key in above:
            part = part[key]
        part[last] = value
        if value is GONE:
            del part[last]
        assert list(problems(summary, schema)) != [], (path, value)
    with pytest.raises(KeyError, match="maxLength"):
        list(problems("x", {"maxLength": 3}))  # a word that no one checks


# ---------------------------------------------------------------- the log and the end


def test_the_log_begins_and_ends_as_logging_does() -> None:
    failed = replace(EXECUTION, result=replace(RESULT, findings=(Finding(VerdictKind.ERROR, "m", "it raised"),)))
    assert render_log_head(failed).endswith(
        ",899 INFO: Starting benchmark execution: official.resnet.Bench.unit_test (trial 2)\n"
    )
    end = render_log_end(failed, build_summary(failed, JOB))
    first, second = end.splitlines()[:2]
    assert first.endswith(",500 ERROR: it raised")
    assert second.endswith("INFO: Benchmark execution for official.resnet.Bench.unit_test completed with summary:")
    assert json.loads(end.split("summary:\n", 1)[1]) == build_summary(failed, JOB)


def test_three_blocks_of_json_close_it() -> None:
    failed = replace(EXECUTION, trial=1, result=replace(RESULT, succeeded=False), output_dir="/w/output/one")
    times = {(1, "m.f"): {"method_execution": 2.0}, (2, "m.f"): {"log_upload": 0.5}}
    report = PerfzeroReport(BenchReport((failed, EXECUTION)), (failed, EXECUTION), {"download_data": 1.5}, times)
    lines = render_closing(report).splitlines()
    titles = [number for number, line in enumerate(lines) if line.startswith("Benchmark ")]
    blocks = [json.loads("\n".join(lines[a + 1 : b])) for a, b in zip(titles, [*titles[1:], len(lines)], strict=True)]
    name = EXECUTION.method
    assert blocks == [
        {"download_data": 1.5, "trial_1": {"m.f": {"method_execution": 2.0}}, "trial_2": {"m.f": {"log_upload": 0.5}}},
        {"trial_1": {name: False}, "trial_2": {name: True}},
        {"trial_1": {name: "/w/output/one"}, "trial_2": {name: EXECUTION.output_dir}},
    ]


# ---------------------------------------------------------------- process_info.log


# As PerfZero itself wrote them.
OLD = [
    '{"time": 1550040323.9, "rss": 4269047808, "vms": 39894450176, "cpu_percent": 771.1}\n',
    '{"time": 1550040325.0, "rss": 4269050000, "vms": 39894450176, "cpu_percent": 12.0}\n',
    '{"time": 1550040326.1, "rss": 4200000000, "vms": 39894450176, "cpu_percent": 99.5}\n',
]


def execution(**fields: Any) -> BenchExecution:
    given = {"started_at": 10.0, "ended_at": 10.02, "peaks": Peaks(1000, 2000, 80.5), **fields}
    return BenchExecution("e", "m.f", 1, BenchResult("m.f", True), "", "", **given)


def lines_of(text: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_line_for_each_reading_with_the_share_between() -> None:
    # a run of milliseconds has the kernel's counters
    text = render_process_info([], execution(peaks=Peaks(1000, 2000, 80.5, gpu_memory_bytes=7)))
    assert lines_of(text) == [{"time": 0.02, "rss": 1000, "vms": 2000, "cpu_percent": 80.5, "gpu_memory": 7}]
    readings = [
        Reading(11.0, 2, 0.5, 100, 200, 100),
        Reading(12.0, 3, 2.5, 110, 210, 110),
        Reading(12.0, 3, 2.5, 1, 2, 3),
    ]
    assert lines_of(render_process_info(readings, execution())) == [
        {"time": 1.0, "rss": 100, "vms": 200, "cpu_percent": 50.0, "processes": 2},
        {"time": 2.0, "rss": 110, "vms": 210, "cpu_percent": 200.0, "processes": 3},
        {"time": 2.0, "rss": 1, "vms": 2, "cpu_percent": 0.0, "processes": 3},
    ]
    gpu = GpuReading(5, 90.0, 1400, 60, 250.5)
    (line,) = lines_of(render_process_info([Reading(11.0, 1, 1.0, 1, 2, 1, gpu)], execution(started_at=None)))
    assert line["cpu_percent"] == 0.0
    known = {"gpu_memory": 5, "gpu_percent": 90.0, "gpu_clock_mhz": 1400, "gpu_temperature_c": 60, "gpu_power_w": 250.5}
    assert {key: value for key, value in line.items() if key.startswith("gpu")} == known


def test_perfzero_s_own_lines_are_read_and_damaged_ones_counted() -> None:
    info = parse_process_info([*OLD, "\n"])
    assert (info.lines, info.unreadable, list(info.series)) == (3, 0, ["rss", "vms", "cpu_percent"])
    assert info.series["cpu_percent"] == ([1550040323.9, 1550040325.0, 1550040326.1], [771.1, 12.0, 99.5])
    damaged = ['{"time": 1, "rss"', "[]", '{"rss": 1}', '{"time": true, "rss": 1}', '{"time": NaN, "rss": 1}']
    damaged += ['{"time": 1}', f'{{"time": 1, "rss": 1{"0" * 400}}}']
    info = parse_process_info([*damaged, OLD[0], '{"time": 2, "rss": "much", "other": 5}'])
    assert (info.lines, info.unreadable) == (2, 7)
    assert info.series["other"] == ([2.0], [5.0])
    assert len(info.series["rss"][0]) == 1


def test_a_file_that_cannot_be_plotted(tmp_path: Path) -> None:
    path = tmp_path / "process_info.log"
    for content, words in {"": "it is empty", "hello\n": "no line of it is a reading"}.items():
        path.write_text(content)
        with pytest.raises(UsageError, match=words):
            load_process_info(str(path))
    with pytest.raises(NotFoundError, match="did you mean"):
        load_process_info(str(tmp_path / "proces_info.log"))
    with pytest.raises(UsageError, match="cannot be read"):
        load_process_info(str(tmp_path))


# ---------------------------------------------------------------- plotting


def test_a_chart_for_each_metric() -> None:
    rss, _, cpu = build_charts(parse_process_info(OLD))
    assert (rss.y_name, rss.x_name) == ("rss [MiB]", "seconds")
    assert list(rss.lines[0].xs) == pytest.approx([0.0, 1.1, 2.2], abs=1e-6)
    assert rss.lines[0].ys[0] == pytest.approx(4269047808 / 2**20)
    assert list(cpu.lines[0].ys) == [771.1, 12.0, 99.5]


def list_labels(path: Path) -> set[bytes]:
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", path.read_bytes(), re.DOTALL)
    texts = b"".join(zlib.decompressobj().decompress(stream) for stream in streams if stream[:1] == b"x")
    kerned = [b"".join(re.findall(rb"\((.)\)", line)) for line in re.findall(rb"\[ (.*) \] TJ", texts)]
    return {*kerned, *re.findall(rb"\((.*)\) Tj", texts)}


def test_the_pdf_has_a_page_for_each_metric(tmp_path: Path) -> None:
    """As drawn: axes begin at zero, and those of counts have no halves."""
    log, target = tmp_path / "log", tmp_path / "x.pdf"
    log.write_text('{"time": 0, "x": 1000, "processes": 1}\n{"time": 10, "x": 1001, "processes": 2}\n')
    assert plot_process_info(str(log), str(target)) == f"{target}: 2 pages from 2 readings"
    data = target.read_bytes()
    assert data.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", data)) == 2
    labels = list_labels(target)
    assert {b"0", b"1", b"1000"} <= labels, "between 1000 and 1001 alone there would be no 0"
    assert not any(re.fullmatch(rb"\d\.[1-9]\d*", label) for label in labels)
    plot_process_info(str(log), str(target))
    assert target.read_bytes() == data, "the same readings give the same file"
    log.write_text('{"time": 1, "x": 1.5}\n')
    plot_process_info(str(log), str(target))
    assert any(re.fullmatch(rb"\d\.[1-9]\d*", label) for label in list_labels(target)), "of a single reading, too"
    with pytest.raises(InfrastructureError, match="cannot write"):
        plot_process_info(str(log), str(tmp_path / "no" / "where.pdf"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "x.pdf"], "nothing is left aside"
