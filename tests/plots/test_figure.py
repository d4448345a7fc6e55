"""Charts in files."""

from __future__ import annotations

import math
import os
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.errors import InfrastructureError, MissingExtraError, UsageError
from assay.plots import figure
from assay.plots.figure import write_figure
from assay.show.chart import Axis, Line, LineChart, build_bands
from assay.values.document import Bars

CHART = LineChart(
    (Line("lr=0.1", [0, 1, 2], [3.0, 2.0, 1.0]), Line("lr=$x_1$ 数据", [0, 1, 2], [3.0, math.nan, 2.5])),
    title="study · loss $\\bad{",
    x_name="$",
    y_name="$\\frac{$",
)


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_formats(tmp_path: Path, suffix: str, magic: bytes) -> None:
    """A chart gives an equal file each time; names like formulas are texts."""
    paths = [tmp_path / f"{name}{suffix}" for name in ("a", *("b" if suffix == ".svg" else ""))]
    for path in paths:
        write_figure(CHART, path)
        assert path.read_bytes().startswith(magic)
    assert len({path.read_bytes() for path in paths}) == 1
    assert sorted(os.listdir(tmp_path)) == [path.name for path in paths]


def test_bad_requests_are_refused_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="nothing to plot"):
        write_figure(LineChart(()), tmp_path / "plot.png")
    with pytest.raises(InfrastructureError, match="No such file"):
        write_figure(CHART, tmp_path / "missing" / "plot.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError) as caught:
        write_figure(CHART, tmp_path / "plot.png")
    assert "pip install 'assay[plot]'" in caught.value.render()
    assert os.listdir(tmp_path) == []


POINTS = Line("done", [0.1, 0.01], [1.0, math.nan], names=["a", "b"], look="dots")
CROSSES = Line("failed", [1.0], [2.0], names=["c"], look="crosses")
NAMED = Line("d", [0, 1], [1.0, 2.0], names=["r", "q"], look="dots")
BETTER, WORSE = Line("a", [0, 1], [0.0, 0.5], shade=0.5), Line("b", [0, 1], [0.0, -0.09], shade=1.0)
AXES = [Axis("lr (log)", [(0.0, "0.1"), (1.0, "1")]), Axis("$norm$", [(0.5, "$batch")])]
MEMBERS = [Line("", [0, 1], [1.0, 2.0]), Line("", [0, 1], [3.0, 4.0])]
MANY = [float(i % 7) for i in range(9000)]


@pytest.mark.parametrize(
    ("chart", "texts"),
    [
        (LineChart((POINTS, CROSSES), "t", "lr", "loss", x_scale="log"), {"lr", "loss", " done  1 run"}),
        (LineChart((POINTS, CROSSES), x_scale="log", x_marks=[0.01, 0.1, 1.0]), {"0.1", "1"}),
        (LineChart((NAMED,), x_ticks=[(0, "$a"), (1, "b" * 60)]), {"$a"}),
        (LineChart((BETTER, WORSE), axes=AXES), {"$norm$", "$batch", "lr (log)"}),
        (LineChart((replace(NAMED, shade=0.5),), shades=("q", "0", "1")), {" q: 0", " 1"}),
        (
            LineChart((Line("a", range(9000), MANY, raw=[1.0] * 9000),)),
            {" a  1, 9000 points", " faint: before smoothing"},
        ),
        ((LineChart((POINTS,), x_name="a"), LineChart((POINTS, CROSSES), x_name="b")), {"$t", "a", "b", " failed"}),
        (Bars([("lr", 0.75), ("$norm", 0.25)], "importance"), {"importance", "$norm", "0.75"}),
        (LineChart(build_bands([("g", MEMBERS)]), scale="log"), {" g  3 ± 1.4 (n=2 runs), 2 points"}),
        (LineChart((Line("a", [1, 2, 3], [0.125, 0.25, 0.5]),), x_name="epoch"), {"epoch", "1", "2", "3"}),
        (LineChart(tuple(Line(f"r{i}", [0, 1], [i, i + 1]) for i in range(8))), {" r7  8, 2 points"}),
        (LineChart(tuple(Line(f"r{i}", [0, 1], [i, i + 1]) for i in range(14))), {" r13  14, 2 points"}),
    ],
)
def test_what_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chart: Any, texts: set[str]) -> None:
    monkeypatch.setitem(figure._STYLE, "svg.fonttype", "none")
    write_figure(chart, tmp_path / "p.svg", title="$t")
    drawn = list(ET.parse(tmp_path / "p.svg").iter())
    assert sum(each.tag.endswith("}path") for each in drawn) > 5
    ids = [each.get("id") for each in drawn if each.get("id")]
    assert len(ids) == len(set(ids))
    found = {each.text for each in drawn if each.tag.endswith("}text")}
    assert texts <= found, found
    assert "1.25" not in found  # epochs are whole numbers
