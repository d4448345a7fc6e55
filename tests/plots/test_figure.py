from __future__ import annotations

import math
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import InfrastructureError, UsageError
from assay.plots import figure
from assay.plots.figure import spread_apart, write_figure
from assay.show.chart import Axis, Line, LineChart, build_bands
from assay.values.document import Bars

CHART = LineChart(
    (Line("lr=0.1", [0, 1, 2], [3.0, 2.0, 1.0]), Line("lr=$x_1$ 数据", [0, 1, 2], [3.0, math.nan, 2.5])),
    title="study · loss",
    y_name="loss",
)


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_formats(tmp_path, suffix, magic):
    path = tmp_path / f"plot{suffix}"
    write_figure(CHART, path)
    assert path.read_bytes().startswith(magic)
    assert os.listdir(tmp_path) == [path.name]


def test_the_same_chart_gives_the_same_svg(tmp_path):
    for name in ("a.svg", "b.svg"):
        write_figure(CHART, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_bands_log_scale_single_and_many_lines(tmp_path):
    members = [Line("", [0, 1], [1.0, 2.0]), Line("", [0, 1], [3.0, 4.0])]
    charts = (
        LineChart(build_bands([("g", members)]), scale="log"),
        LineChart((Line("one point", [1], [2.0]),)),
        LineChart(tuple(Line(f"r{i}", [0, 1], [i, i + 1]) for i in range(40))),
    )
    for number, chart in enumerate(charts):
        write_figure(chart, tmp_path / f"{number}.svg")
    assert len(os.listdir(tmp_path)) == 3


def test_bad_requests_are_said_and_leave_nothing(tmp_path):
    with pytest.raises(UsageError, match=r"plot\.xyz"):
        write_figure(CHART, tmp_path / "plot.xyz")
    with pytest.raises(UsageError, match="nothing to plot"):
        write_figure(LineChart(()), tmp_path / "plot.png")
    with pytest.raises(InfrastructureError, match="No such file"):
        write_figure(CHART, tmp_path / "missing" / "plot.png")
    assert os.listdir(tmp_path) == []


def test_without_matplotlib_the_install_command_is_said(tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not here')")
    script = (
        "import sys\nfrom pathlib import Path\nfrom assay.errors import MissingExtraError\n"
        "from assay.plots.figure import write_figure\nfrom assay.show.chart import Line, LineChart\n"
        "try:\n    write_figure(LineChart((Line('x', [0, 1], [0.0, 1.0]),)), Path(sys.argv[1]))\n"
        "except MissingExtraError as error:\n    print(error.render())\n"
    )
    import assay

    source = Path(assay.__file__).parent.parent
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{source}"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "p.png")], env=env, capture_output=True, text=True, check=True
    )
    assert "pip install 'assay[plot]'" in done.stdout


@given(st.lists(st.floats(0, 1), max_size=20))
def test_labels_are_moved_apart_and_stay_inside(heights):
    placed = spread_apart(heights, 0.05)
    room = min(0.05, 1 / max(1, len(heights) - 1))
    ordered = sorted(placed)
    assert all(-1e-9 <= height <= 1 + 1e-9 for height in placed)
    assert all(after - before >= room - 1e-9 for before, after in pairwise(ordered))


def test_labels_with_room_stay_where_they_are():
    assert spread_apart([0.9, 0.1, 0.5], 0.05) == [0.9, 0.1, 0.5]


def test_a_metric_named_like_a_formula_is_shown_as_it_is(tmp_path):
    chart = LineChart((Line("$x$", [0, 1], [1.0, 2.0]),), title="$\\bad{", x_name="$", y_name="$\\frac{$")
    write_figure(chart, tmp_path / "p.svg")
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")


POINTS = Line("done", [0.1, 0.01], [1.0, math.nan], names=["a", "b"], look="dots")
CROSSES = Line("failed", [1.0], [2.0], names=["c"], look="crosses")
AXES = [Axis("lr (log)", [(0.0, "0.1"), (1.0, "1")]), Axis("$norm$", [(0.5, "$batch")])]


@pytest.mark.parametrize(
    "chart",
    [
        LineChart((POINTS, CROSSES), "t", "lr", "loss", x_scale="log"),
        LineChart((POINTS, CROSSES), "t", "lr", "loss", x_scale="log", x_marks=[0.01, 0.1, 1.0]),
        LineChart((Line("done", [0, 1], [1.0, 2.0], look="dots"),), x_ticks=[(0, "$a"), (1, "b" * 60)]),
        LineChart((Line("a", [0, 1], [0.0, 0.5], shade=0.5), Line("b", [0, 1], [0.0, -0.09], shade=1.0)), axes=AXES),
        LineChart((Line("a", [0, 1], [0.0, 0.5], look="dots", shade=0.5),), shades=("q", "0", "1")),
        LineChart((Line("a", range(9000), [float(i % 7) for i in range(9000)], raw=[1.0] * 9000),)),
        (LineChart((POINTS,), x_name="a"), LineChart((POINTS, CROSSES), x_name="b"), *[LineChart((POINTS,))] * 3),
        Bars([("lr", 0.75), ("$norm", 0.25)], "importance"),
    ],
)
def test_points_parallel_coordinates_small_charts_and_bars(tmp_path, chart):
    write_figure(chart, tmp_path / "p.svg", title="$t")
    drawn = ET.parse(tmp_path / "p.svg").getroot()
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}path"))) > 5
    ids = [each.get("id") for each in drawn.iter() if each.get("id")]
    assert len(ids) == len(set(ids))


def _read_texts(path: Path, monkeypatch: pytest.MonkeyPatch, chart: LineChart) -> list[str]:
    monkeypatch.setitem(figure._STYLE, "svg.fonttype", "none")
    write_figure(chart, path)
    return [element.text or "" for element in ET.parse(path).iter() if element.tag.endswith("}text")]


def test_epochs_are_whole_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chart = LineChart((Line("a", [1, 2, 3], [0.125, 0.25, 0.5]),), x_name="epoch")
    texts = _read_texts(tmp_path / "a.svg", monkeypatch, chart)
    assert {"1", "2", "3"} <= set(texts)
    assert "1.25" not in texts


@pytest.mark.parametrize(("count", "has_legend"), [(8, False), (9, True)])
def test_beyond_the_colours_the_dashes_are_in_the_legend(tmp_path: Path, count: int, has_legend: bool) -> None:
    write_figure(LineChart(tuple(Line(f"r{i}", [0, 1], [i, i + 1]) for i in range(count))), tmp_path / "a.svg")
    ids = [element.get("id", "") for element in ET.parse(tmp_path / "a.svg").iter()]
    assert any(each.startswith("legend") for each in ids) is has_legend
