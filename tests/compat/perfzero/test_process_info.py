"""process_info.log: written for every execution however short, and plotted from ours and from PerfZero's own."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from assay.bench.values.execution import BenchExecution, BenchResult, Peaks
from assay.compat.perfzero.process_info import (
    build_charts,
    load_process_info,
    parse_process_info,
    render_process_info,
    write_plot,
)
from assay.errors import InfrastructureError, NotFoundError, UsageError
from assay.values.series import GpuReading, Reading

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


# ---------------------------------------------------------------- writing


def test_a_run_of_milliseconds_has_the_kernel_s_figures() -> None:
    text = render_process_info([], execution(peaks=Peaks(1000, 2000, 80.5, gpu_memory_bytes=7)))
    assert lines_of(text) == [{"time": 10.02, "rss": 1000, "vms": 2000, "cpu_percent": 80.5, "gpu_memory": 7}]


def test_a_line_for_each_reading_with_the_share_between() -> None:
    readings = [
        Reading(11.0, 2, 0.5, 100, 200, 100),
        Reading(12.0, 3, 2.5, 110, 210, 110),
        Reading(12.0, 3, 2.5, 1, 2, 3),
    ]
    assert lines_of(render_process_info(readings, execution())) == [
        {"time": 11.0, "rss": 100, "vms": 200, "cpu_percent": 50.0, "processes": 2},
        {"time": 12.0, "rss": 110, "vms": 210, "cpu_percent": 200.0, "processes": 3},
        {"time": 12.0, "rss": 1, "vms": 2, "cpu_percent": 0.0, "processes": 3},
    ]


def test_the_gpu_is_beside() -> None:
    gpu = GpuReading(5, 90.0, 1400, 60, 250.5)
    (line,) = lines_of(render_process_info([Reading(11.0, 1, 1.0, 1, 2, 1, gpu)], execution(started_at=None)))
    assert line["cpu_percent"] == 0.0
    assert {key: value for key, value in line.items() if key.startswith("gpu")} == {
        "gpu_memory": 5,
        "gpu_percent": 90.0,
        "gpu_clock_mhz": 1400,
        "gpu_temperature_c": 60,
        "gpu_power_w": 250.5,
    }


# ---------------------------------------------------------------- reading


def test_perfzero_s_own_lines() -> None:
    info = parse_process_info([*OLD, "\n"])
    assert (info.lines, info.unreadable, list(info.series)) == (3, 0, ["rss", "vms", "cpu_percent"])
    assert info.series["cpu_percent"] == ([1550040323.9, 1550040325.0, 1550040326.1], [771.1, 12.0, 99.5])


def test_damaged_lines_are_counted_and_the_others_read() -> None:
    damaged = [
        '{"time": 1, "rss"',
        "[]",
        '{"rss": 1}',
        '{"time": true, "rss": 1}',
        '{"time": NaN, "rss": 1}',
        '{"time": 1}',
    ]
    info = parse_process_info([*damaged, OLD[0], '{"time": 2, "rss": "much", "other": 5}'])
    assert (info.lines, info.unreadable) == (2, 6)
    assert info.series["other"] == ([2.0], [5.0])
    assert len(info.series["rss"][0]) == 1


@pytest.mark.parametrize(("content", "words"), [("", "it is empty"), ("hello\n", "no line of it is a reading")])
def test_a_file_with_nothing_in_it(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "process_info.log").write_text(content)
    with pytest.raises(UsageError, match=words):
        load_process_info(str(tmp_path / "process_info.log"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "process_info.log").write_text("")
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


def count_pages(path: Path) -> int:
    data = path.read_bytes()
    assert data.startswith(b"%PDF-")
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", data))


def test_the_pdf_has_a_page_for_each_metric(tmp_path: Path) -> None:
    (tmp_path / "old.log").write_text("".join(OLD))
    info = write_plot(str(tmp_path / "old.log"), str(tmp_path / "process_info.pdf"))
    assert info.lines == 3
    assert count_pages(tmp_path / "process_info.pdf") == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.log", "process_info.pdf"], "nothing is left aside"


def test_a_single_reading_is_a_page_too(tmp_path: Path) -> None:
    (tmp_path / "short.log").write_text(render_process_info([], execution()))
    write_plot(str(tmp_path / "short.log"), str(tmp_path / "short.pdf"))
    assert count_pages(tmp_path / "short.pdf") == 3


def test_the_axis_begins_at_zero(tmp_path: Path) -> None:
    """Drawn, not asked for: the lowest label on the page is 0."""
    (tmp_path / "log").write_text('{"time": 1, "x": 1000}\n{"time": 2, "x": 1001}\n')
    write_plot(str(tmp_path / "log"), str(tmp_path / "x.pdf"))
    assert {b"0", b"1000"} <= list_labels(tmp_path / "x.pdf"), "between 1000 and 1001 alone there would be no 0"


def list_labels(path: Path) -> set[bytes]:
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", path.read_bytes(), re.DOTALL)
    texts = b"".join(zlib.decompress(stream) for stream in streams if stream[:1] == b"x")
    kerned = [b"".join(re.findall(rb"\((.)\)", line)) for line in re.findall(rb"\[ (.*) \] TJ", texts)]
    return {*kerned, *re.findall(rb"\((.*)\) Tj", texts)}


@pytest.mark.parametrize(("values", "has_halves"), [((1, 2), False), ((1, 1), False), ((1.5, 2.0), True)])
def test_an_axis_of_counts_has_no_halves(tmp_path: Path, values: tuple[float, float], has_halves: bool) -> None:
    lines = [f'{{"time": {10 * n}, "processes": {value}}}\n' for n, value in enumerate(values)]
    (tmp_path / "log").write_text("".join(lines))
    write_plot(str(tmp_path / "log"), str(tmp_path / "x.pdf"))
    labels = list_labels(tmp_path / "x.pdf")
    assert {b"0", b"1"} <= labels or has_halves
    assert any(re.fullmatch(rb"\d\.[1-9]\d*", label) for label in labels) is has_halves


def test_the_same_readings_give_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(OLD))
    for name in ("one.pdf", "two.pdf"):
        write_plot(str(tmp_path / "log"), str(tmp_path / name))
    assert (tmp_path / "one.pdf").read_bytes() == (tmp_path / "two.pdf").read_bytes()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(OLD))
    with pytest.raises(InfrastructureError, match="cannot write"):
        write_plot(str(tmp_path / "log"), str(tmp_path / "no" / "where.pdf"))
