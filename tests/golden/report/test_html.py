from __future__ import annotations

import re
from dataclasses import replace

from tests.golden.report import golden_reports as made

from assay.golden.report.charts import build_band, build_chart, describe_step
from assay.golden.report.document import build_document
from assay.golden.values import GoldenReport, Track
from assay.show import html

STEPS = tuple(range(20))


def render_html(report: GoldenReport) -> str:
    return html.render_html(build_document(report))


def test_verdicts_curves_bands_and_failing_windows_are_there():
    page = render_html(made.bad_report())
    assert page.count("<svg") == 4
    assert '<rect class="fail"' in page
    assert 'class="band"' in page
    assert 'class="first"' in page, "a finding without windows marks its step"
    assert "<title>step 105, loss" in page
    for word in ("FAIL", "ERROR", "INCONCLUSIVE", "CHANGED"):
        assert f'<span class="badge {word}">' in page
    assert "abcdef0123456789" in page
    assert "10 steps saved" in page


def test_a_gathering_shows_its_recordings():
    test = made.good_report().tests[0]
    page = render_html(GoldenReport("gather", "golden.yml", (replace(test, segments=()),)))
    assert "Golden recording" in page
    assert '">PASS<' not in page, "nothing was judged"
    assert '<span class="badge PASS">recorded</span>' in page
    assert page.count("<svg") == 1
    assert "noise 0.1%" in page


def test_two_labels_are_two_drawings_and_marks_go_to_their_own():
    two = {"MLM": (made.track(5),), "NSP": (made.track(1),)}
    found = replace(made.FAILED, label="NSP")
    page = render_html(made.report(made.segment(made.metric((found,), golden=two, check=two))))
    assert page.count("<svg") == 2
    assert page.count('<rect class="fail"') == 1
    assert page.index('<rect class="fail"') > page.index("loss NSP: golden")
    assert "<div>NSP: +2%" in page


def draw(**changes):
    given = {"golden": ((STEPS, [1.0] * 20),), "check": ((STEPS, [1.1] * 20),), **changes}
    golden, check = ([Track(*each) for each in given.pop(name)] for name in ("golden", "check"))
    return html.draw(build_chart("loss", ("loss",), golden, check, **given))


def test_odd_curves_can_be_drawn():
    drawing = draw(check=(((1, 2, 3), (1.0, float("nan"), 1e308)),))
    assert "nan" not in drawing
    assert "inf" not in drawing
    assert "<path" in draw(golden=(((5,), (0.0,)),), check=(((5,), (0.0,)),)), "a constant, and a single step"
    steps = tuple(range(10_000))
    many = steps, tuple(1.0 / (step + 1) for step in steps)
    assert len(draw(golden=(many,) * 3, check=(many,))) < 150_000


def test_the_band_is_of_all_recordings_and_a_step_as_text():
    band = build_band([Track((1, 2), (1.0, 5.0)), Track((1, 3), (3.0, float("nan")))])
    assert band == {1: (1.0, 2.0, 3.0), 2: (5.0, 5.0, 5.0)}
    text = describe_step("loss", 7, (1.0, 2.0, 3.0), (2.2, 2.2, 2.2))
    assert text == "step 7, loss\ngolden 2 (1 to 3)\ncheck 2.2\n+10%"
    assert "nothing" in describe_step("loss", 7, (1.0, 1.0, 1.0), None)


def test_recordings_are_drawn_each_if_they_are_few_and_windows_name_their_verdict():
    for count, drawn in ((1, 0), (3, 3), (40, 0)):
        tracks = [Track((1, 2, 3), (1.0, 2.0, 3.0 + number)) for number in range(count)]
        panel = build_chart("loss", (), tracks, tracks[:1]).panels[0]
        assert sum(curve.style == "replica" for curve in panel.curves) == drawn
        assert len(panel.areas) == (count > 1)
    track = Track((1, 2, 3, 4), (1.0, 2.0, 3.0, 1.0))
    marks = [("fail", 1.0, 2.0), ("fail", 3.0, 3.0), ("open", 4.0, 4.0)]
    chart = build_chart("loss", (), [track], [track], marks=marks)
    assert list(chart.panels[0].labels) == [(3.5, 3.0, "FAIL"), (4.5, 3.0, "open")], "not by their colour alone"


def read_strip_ticks(drawing: str) -> list[str]:
    return re.findall(r'text-anchor="end">([^<]*%)<', drawing)


def test_the_lower_part_has_three_ticks_and_names_the_effect():
    assert {"0%", "10%"} <= set(read_strip_ticks(draw(effect=0.1, delta=0.005)))
    for effect in (None, 0.0, 1e-16, 0.0004, -0.03, 5.0, 3e7, float("inf"), float("nan")):
        ticks = read_strip_ticks(draw(effect=effect, check=((STEPS, [1.0] * 20),)))
        assert len(set(ticks)) == len(ticks) >= 3
    ticks = read_strip_ticks(draw(check=((STEPS, [1.0 + 2e-16] * 20),)))
    assert set(ticks) == {"-0.1%", "0%", "0.1%"}, "a difference in the last digit does not become a scale"


def test_the_golden_line_stays_visible_under_an_equal_check():
    """The line is drawn first, and wider than the check that covers it."""
    found = re.findall(r"svg (path|\.reference) \{[^}]*stroke-width: ([\d.]+)", render_html(made.good_report()))
    width = {name: float(each) for name, each in found}
    assert width[".reference"] >= 2 * width["path"]
    equal = (STEPS, [1.0] * 20)
    svg = draw(golden=(equal,), check=(equal,))
    assert svg.index('class="reference"') < svg.index('class="measured"')
