"""The page of a model check, and its chart."""

from __future__ import annotations

import html
import math
import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st
from tests.models.report import model_reports as made

from assay.models.report.summary import build_chart
from assay.models.values.model import ModelReport
from assay.show.html import draw


def read(page: str) -> str:
    """Its text."""
    return html.unescape(re.sub(r"<[^>]*>", "", page))


def test_the_commands_and_every_case_are_there() -> None:
    page = made.show_page(made.bad_report())
    text = read(page)
    assert "assay model reduce 'models/my model.onnx' --reference ort --target iree" in text
    for name in ("Conv_0", "MatMul_1", "Relu_2", "Conv_3", "Gemm_4", "full_model"):
        assert f">{name}</td>" in page
    for kind, outcome in (("FAIL", "mismatch"), ("ERROR", "compile error"), ("PASS", "ok")):
        assert f'<span class="badge {kind}">{outcome}</span>' in page
    assert "1.2e-7" not in text
    assert "0.998765" in text
    assert "times of 2 steps are from the cache" in text
    assert "a <note>" in text


def test_failed_steps_fold_away_with_command_and_output() -> None:
    """A failure alone is open."""
    block, _provenance = re.findall(r"<details.*?</details>", made.show_page(made.bad_report()), re.DOTALL)
    text = read(block)
    assert "compile error in Conv_3, Gemm_4: failed to legalize 'onnx.Foo'" in text
    for part in (f"$ {made.COMMAND}", "line 0 <&>", "line 29 <&>", "assay model convert --opset 17"):
        assert part in text
    assert "<details open>" in made.show_page(made.report(made.failed(0)))
    other = replace(made.COMPILE_ERROR, message="another")
    several = made.report(made.failed(0), made.failed(1, outcome=other))
    assert "<details open>" not in made.show_page(several)


def shapes(drawing: str, kind: str) -> list[dict[str, str]]:
    root = ET.fromstring(drawing)
    return [dict(each.attrib) for each in root.iter() if each.get("class") == kind]


def report_of(*errors: float | None) -> ModelReport:
    """Layers with these local errors; None: a step failed."""
    return made.report(
        *(
            made.failed(number) if error is None else replace(made.good(number), local=(made.comparison("t", error),))
            for number, error in enumerate(errors)
        )
    )


def test_the_axis_is_logarithmic_with_a_bottom_and_a_top() -> None:
    drawing = draw(build_chart(report_of(0.0, 1e-8, 1e-6, 1e-4, 1e-2, 1.0, math.inf, math.nan)))
    heights = [float(dot["cy"]) for dot in shapes(drawing, "local")]
    steps = [a - b for a, b in pairwise(heights[1:6])]
    assert max(steps) - min(steps) < 0.2
    assert heights[0] == max(heights)
    assert heights[6] == heights[7] == min(heights)
    assert heights[0] > heights[1]
    assert heights[5] > heights[6]
    texts = [each.text for each in ET.fromstring(drawing).iter("text")]
    assert {"0", "∞", "1", "1e-8", "Conv_0"} <= set(texts)


def test_what_failed_is_a_cross_and_the_first_wrong_layer_a_line() -> None:
    """The line of accumulated errors ends where nothing is known; the mouse shows the numbers."""
    drawing = draw(build_chart(made.bad_report()))
    counts = {"cross": 2, "first": 1, "fail": 4, "local": 3}
    assert {kind: len(shapes(drawing, kind)) for kind in counts} == counts
    (line,) = [each for each in shapes(drawing, "accumulated") if "d" in each]
    assert (line["d"].count("M"), line["d"].count("L")) == (1, 2)
    assert shapes(drawing, "allowed")
    titles = [each.text for each in ET.fromstring(drawing).iter("title")]
    assert titles[1] == "m_layer_MatMul_1: mismatch\nlocal error 0.41\naccumulated error 0.41\nallowed 1e-5"
    assert titles[3] == "m_layer_Conv_3: compile error"
    gap = made.report(made.good(0), made.failed(1), made.good(2), made.good(3))
    lines = [each["d"] for each in shapes(draw(build_chart(gap)), "accumulated") if "d" in each]
    assert [line.count("L") for line in lines] == [0, 1]


def test_many_layers_get_numbers_and_the_wrong_one_its_name() -> None:
    texts = {each.text for each in ET.fromstring(draw(build_chart(made.large_report()))).iter("text")}
    assert {"Conv_150", "20"} <= texts
    assert "Conv_151" not in texts


errors = st.none() | st.floats(min_value=0) | st.sampled_from([0.0, math.inf, math.nan, 5e-324, 1e308])


@given(st.lists(errors, max_size=8))
def test_any_numbers_give_a_drawing_inside_its_frame(values: list[float | None]) -> None:
    root = ET.fromstring(draw(build_chart(report_of(*values))))
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    for each in root.iter("circle"):
        assert 0 <= float(each.attrib["cx"]) <= width
        assert 0 <= float(each.attrib["cy"]) <= height
