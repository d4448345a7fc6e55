"""What readings come to, and what is best."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from assay.observe.readings import render_reading
from assay.reading import run_description
from assay.reading.run_description import build_environment_sections, render_moment
from assay.record import run_directory
from assay.values.series import GpuReading, Reading, Summary, best_of


def reading(time: float, cpu_s: float, rss: int, gpu: GpuReading | None = None) -> Reading:
    return Reading(time, 2, cpu_s, rss, rss * 2, rss, gpu)


def test_readings_come_to_peaks_and_means() -> None:
    gpu = [GpuReading(10, 50.0, 1, 1, 1.0), GpuReading(30, 100.0, 1, 1, 1.0)]
    summary = run_description.build_readings_summary([reading(0, 1, 100, gpu[0]), reading(4, 3, 300, gpu[1])])
    assert summary is not None
    assert (summary.count, summary.seconds, summary.peak_rss_bytes, summary.most_processes) == (2, 4, 300, 2)
    assert summary.mean_cpu_percent == 50
    assert (summary.peak_gpu_memory_bytes, summary.mean_gpu_percent) == (30, 75)


def test_one_reading_has_no_rate() -> None:
    summary = run_description.build_readings_summary([reading(0, 1, 100)])
    assert summary is not None
    assert summary.mean_cpu_percent is None
    assert run_description.build_readings_summary([]) is None


def test_damaged_lines_are_passed_by(tmp_path: Path) -> None:
    path = tmp_path / "readings.jsonl"
    path.write_text(render_reading(reading(0, 1, 100)) + '{"time": 1, "proc\n\n' + render_reading(reading(2, 2, 200)))
    summary, _ = run_description.load_readings(str(path))
    assert summary is not None
    assert (summary.count, summary.peak_rss_bytes) == (2, 200)
    assert run_description.load_readings(str(tmp_path / "none")) == (None, None)


@pytest.mark.parametrize(("metric", "best"), [("loss", (1.0, 5)), ("acc", (9.0, 7))])
def test_the_best_value_goes_by_the_metrics_name(metric: str, best: tuple[float, float]) -> None:
    assert best_of(Summary(metric, 3, 2.0, 9, 1.0, 5, 9.0, 7, 4.0)) == best


def test_values_that_are_not_finite_get_a_column() -> None:
    good = Summary("a", 3, 2.0, 9, 1.0, 5, 9.0, 7, 4.0)
    bad = Summary("b", 3, math.nan, 9, 1.0, 5, 9.0, 7, 4.0, bad=1)
    assert [column.name for column in run_description.build_metric_table({"a": good}).columns][-1] == "points"
    table = run_description.build_metric_table({"b": bad, "a": good})
    assert [column.name for column in table.columns][-1] == "not finite"
    assert [row[-1] for row in table.rows] == [0, 1]


def test_folders_count_with_all_that_is_in_them(tmp_path: Path) -> None:
    (tmp_path / "code" / "inner").mkdir(parents=True)
    (tmp_path / "code" / "inner" / "a").write_text("12345")
    (tmp_path / "b").write_text("123")
    (tmp_path / "dangling").symlink_to("nowhere")
    found = dict(run_description.load_files(str(tmp_path)))
    assert found == {"b": 3, "code/": 5, "dangling": len("nowhere")}


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_damaged_environment_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "environment.json").write_text(text)
    assert run_directory.load_environment(str(tmp_path)) is None


@pytest.mark.parametrize(("node", "title"), [("login", ""), (None, ""), ("n2", " of the machine that submitted it")])
def test_the_environment_of_a_farms_run_is_that_of_the_machine_that_submitted_it(node: str | None, title: str) -> None:
    sections = build_environment_sections({"format": 1, "host": "login", "cpu": "a cpu"}, node)
    assert sections[0].title == f"Environment{title}"


def test_moments() -> None:
    assert render_moment(1e9, 1e9).endswith("(just now)")
    assert render_moment(1e9, 1e9 + 3600).endswith("(1 h ago)")
    assert render_moment(None, 1e9) == "-"
    for seconds in (1e308, -1e308, 1e15, math.inf, math.nan):
        assert render_moment(seconds, now=0.0) == "an impossible time"
