"""The page of a plot: what is drawn, what the mouse shows, and nothing from elsewhere."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest

from assay.errors import UsageError
from assay.plots.plot_document import build_page
from assay.plots.plotting import Plot
from assay.show.chart import Axis, Line, LineChart
from assay.show.html import render_html
from assay.values.document import Bars

HOSTILE = "<script>alert(1)</script>\x1b[31m\"'&\u202e"


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.titles: list[str] = []
        self.texts: list[str] = []
        self._inside: list[str] = []
        self.source = text
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside.append(tag)
        if tag == "title":
            self.titles.append("")

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._inside and self._inside[-1] == "title":
            self.titles[-1] += data
        elif "style" not in self._inside:
            self.texts.append(data)

    def classes(self, tag: str, name: str) -> list[dict[str, str | None]]:
        found = (attrs for kind, attrs in self.tags if kind == tag)
        return [attrs for attrs in found if name in (attrs.get("class") or "").split()]


def show(*charts: LineChart | Bars | tuple[LineChart, ...], notes: tuple[str, ...] = ()) -> Page:
    """Every page needs nothing from elsewhere."""
    plots = [Plot(f"m{i}", each, notes) for i, each in enumerate(charts)]
    page = Page(render_html(build_page("study", "3 runs", plots)))
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert not re.search(r"https?:|url\(|@import|//[a-z]", page.source)
    return page


LINES = LineChart(
    (Line("a", [0, 1, 2], [3.0, 2.0, 1.0]), Line("b", [0, 1, 2], [3.0, math.nan, 2.5])), "s: loss", y_name="loss"
)


def test_several_charts_are_on_one_page_with_their_axes_and_legends() -> None:
    acc = LineChart(tuple(Line(f"r{i}", [0, 1], [1.0, i]) for i in range(20)), "s: acc", "epoch", "acc")
    page = show(LINES, acc, notes=("the 2 best of 9",))
    assert len({attrs["class"] for attrs in page.classes("path", "curve")}) == 20  # different lines look different
    assert len([tag for tag, _ in page.tags if tag == "svg"]) == 2
    assert {"loss", "acc", "step", "epoch", "the 2 best of 9"} <= {text.strip() for text in page.texts}
    assert any("a  1, 3 points" in text for text in page.texts)


def test_a_gap_breaks_the_line_and_the_mouse_shows_every_run() -> None:
    page = show(LINES)
    first, second = (attrs["d"] or "" for attrs in page.classes("path", "curve"))
    assert (first.count("M"), first.count("L")) == (1, 2)
    assert (second.count("M"), second.count("L")) == (2, 0)
    assert {"step 0\na: 3\nb: 3", "step 2\na: 1\nb: 2.5"} <= set(page.titles)


def test_a_line_without_points_is_in_the_legend_alone_and_one_point_is_a_dot() -> None:
    page = show(LineChart((Line("a", [0, 1], [1.0, 2.0]), Line("b", [], []))))
    assert len(page.classes("path", "curve")) == 1
    assert "step 0\na: 1" in page.titles
    page = show(LineChart((Line("a", [1], [2.0]), Line("b", [1, 2], [math.nan, 3.0]))))
    assert (len(page.classes("circle", "point")), len(page.classes("path", "curve"))) == (2, 0)


def test_many_points_are_thinned_with_their_extremes_and_counted() -> None:
    ys = [math.sin(i / 5000) for i in range(200_000)]
    ys[23_456], ys[170_000] = 9.0, -9.0
    page = show(LineChart((Line("a", range(200_000), ys),)))
    (curve,) = page.classes("path", "curve")
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", curve["d"] or "")]
    assert 500 < len(heights) <= 1100
    usual = sorted(heights)
    assert usual[1] - usual[0] > 50, "the highest point is there"
    assert usual[-1] - usual[-2] > 50, "the lowest as well"
    assert len(page.source) < 200_000
    assert any("200000 points" in text for text in page.texts)


def test_hostile_names_are_texts() -> None:
    line = Line(HOSTILE, [0, 1], [1.0, 2.0])
    points = Line(HOSTILE, [0, 1], [1.0, 2.0], names=[HOSTILE] * 2, look="dots")
    upright = Line(HOSTILE, [0, 1], [0.0, 1.0], names=[HOSTILE], shade=0.5)
    names = LineChart((points,), HOSTILE, HOSTILE, HOSTILE, x_ticks=[(0, HOSTILE), (1, HOSTILE)])
    axes = LineChart((upright,), HOSTILE, "", axes=[Axis(HOSTILE, [(0, HOSTILE)])] * 2, shades=(HOSTILE, "0", "1"))
    page = show(
        LineChart((line,), HOSTILE, HOSTILE, HOSTILE), names, axes, Bars([(HOSTILE, 0.5)], HOSTILE), notes=(HOSTILE,)
    )
    assert "\x1b" not in page.source
    assert "\u202e" not in page.source


def test_points_have_their_run_and_their_value_under_the_mouse() -> None:
    done = Line("done", [0.1, 0.01], [1.0, 2.0], names=["r0", "r1"], look="dots")
    failed = Line("failed", [1.0], [4.0], names=["r2"], look="crosses")
    chart = LineChart((done, failed), "t", "lr", "loss", x_scale="log")
    page = show(chart)
    assert page.titles[1:] == ["r0\nlr: 0.1\nloss: 1", "r1\nlr: 0.01\nloss: 2", "r2\nlr: 1\nloss: 4\nfailed"]
    xs = [float(attrs["cx"] or "nan") for attrs in page.classes("circle", "point")]
    (cross,) = page.classes("path", "crossed")
    middle, left, right = *xs, float((cross["d"] or "")[1:].split()[0])
    assert middle - left == pytest.approx(right - middle, abs=0.2), "decades have the same width"


def test_parallel_coordinates_have_an_axis_for_each_parameter_and_the_run_under_the_mouse() -> None:
    lines = tuple(
        Line(f"r{i}", [0, 1, 2], [i / 2, 1 - i / 2, 0.5], names=[f"r{i}\nlr=1"], shade=i / 2) for i in range(3)
    )
    axes = [Axis(name, [(0.0, "low"), (1.0, "high")]) for name in ("lr", "norm", "loss")]
    page = show(LineChart(lines, "t", "", axes=axes, shades=("loss", "2", "1")))
    assert len(page.classes("path", "upright")) == 3
    assert page.titles[1:] == ["r0\nlr=1", "r1\nlr=1", "r2\nlr=1"]
    assert [attrs["class"] for attrs in page.classes("path", "one")] == ["one s0", "one s5", "one s9"]
    assert {"lr", "norm", "loss", "low", "high", "loss: 2"} <= {text.strip() for text in page.texts}


def test_a_band_and_the_curve_before_smoothing() -> None:
    line = Line("g", [0, 1], [1.0, 2.0], spread=[0.1, 0.2], members=3, raw=[1.5, 1.0], end=(2.0, 0.2))
    page = show(LineChart((line,)))
    assert len(page.classes("path", "spread")) == len(page.classes("path", "raw")) == 1
    assert "step 1\ng: 2 ± 0.2" in page.titles
    assert any("before smoothing" in text for text in page.texts)


def test_small_charts_share_a_legend_and_bars_are_drawn() -> None:
    small = LineChart((Line("done", [1], [1.0], names=["r"], look="dots"),), x_name="lr")
    page = show((small, small), Bars([("lr", 0.75), ("norm", 0.25)], "importance"))
    assert len(page.classes("p", "legend")) == 1
    assert {"0.75", "0.25"} <= {each.strip() for each in page.texts}


@pytest.mark.parametrize("ys", [[], [math.nan, math.inf]])
def test_without_a_finite_value_there_is_no_page(ys: list[float]) -> None:
    with pytest.raises(UsageError, match="nothing to plot"):
        show(LineChart((Line("a", range(len(ys)), ys),)))
