from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.golden.report import golden_reports as made

from assay.golden.report.charts import build_band, build_chart, describe_step
from assay.golden.report.document import build_document
from assay.golden.values import GoldenReport, Track
from assay.show import html


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


# ---------------------------------------------------------------- drawings


def draw(**changes):
    steps = tuple(range(20))
    given = {"golden": ((steps, [1.0] * 20),), "check": ((steps, [1.1] * 20),), **changes}
    golden, check = ([Track(*each) for each in given.pop(name)] for name in ("golden", "check"))
    return html.draw(build_chart("loss", ("loss",), golden, check, **given))


def test_values_that_are_not_finite_leave_the_rest_alone():
    drawing = draw(check=(((1, 2, 3), (1.0, float("nan"), 1e308)),))
    assert "nan" not in drawing.replace("finance", "")
    assert "inf" not in drawing


def test_a_constant_and_a_single_step_can_be_drawn():
    assert "<path" in draw(golden=(((5,), (0.0,)),), check=(((5,), (0.0,)),))


def test_many_steps_stay_small():
    steps = tuple(range(10_000))
    values = tuple(1.0 / (step + 1) for step in steps)
    drawing = draw(golden=((steps, values),) * 3, check=((steps, values),))
    assert len(drawing) < 150_000


def test_the_band_is_of_all_recordings():
    band = build_band([Track((1, 2), (1.0, 5.0)), Track((1, 3), (3.0, float("nan")))])
    assert band == {1: (1.0, 2.0, 3.0), 2: (5.0, 5.0, 5.0)}


def test_a_step_as_text():
    assert (
        describe_step("loss", 7, (1.0, 2.0, 3.0), (2.2, 2.2, 2.2)) == "step 7, loss\ngolden 2 (1 to 3)\ncheck 2.2\n+10%"
    )
    assert "nothing" in describe_step("loss", 7, (1.0, 1.0, 1.0), None)


def read_strip_ticks(drawing: str) -> list[str]:
    return re.findall(r'text-anchor="end">([^<]*%)<', drawing)


def test_the_lower_part_has_three_ticks_and_names_the_effect():
    ticks = read_strip_ticks(draw(effect=0.1, delta=0.005))
    assert len(ticks) >= 3
    assert {"0%", "10%"} <= set(ticks)


@pytest.mark.parametrize("effect", [None, 0.0, 1e-16, 0.0004, -0.03, 5.0, 3e7, float("inf"), float("nan")])
def test_ticks_of_the_lower_part_never_fail(effect):
    steps = tuple(range(20))
    ticks = read_strip_ticks(draw(effect=effect, check=((steps, [1.0] * 20),)))
    assert len(ticks) >= 3
    assert len(set(ticks)) == len(ticks)


def test_a_difference_in_the_last_digit_does_not_become_a_scale():
    steps = tuple(range(20))
    ticks = read_strip_ticks(draw(check=((steps, [1.0 + 2e-16] * 20),)))
    assert set(ticks) == {"-0.1%", "0%", "0.1%"}


def test_what_was_found_names_its_label():
    found = replace(made.FAILED, label="NSP")
    page = render_html(made.report(made.segment(made.metric((found,)))))
    assert "<div>NSP: +2%" in page


def test_the_golden_line_stays_visible_under_an_equal_check():
    """It is drawn first, and wider than the check that covers it."""
    page = render_html(made.good_report())
    found = re.findall(r"svg (path|\.reference) \{[^}]*stroke-width: ([\d.]+)", page)
    width = {name: float(each) for name, each in found}
    assert width[".reference"] >= 2 * width["path"]
    steps, values = (1, 2, 3), (3.0, 2.0, 1.0)
    svg = draw(golden=((steps, values),), check=((steps, values),))
    assert svg.index('class="reference"') < svg.index('class="measured"')
