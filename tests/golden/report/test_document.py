"""The report of a gathering or a check: rows, terminal, JSON, Markdown and JUnit."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.golden.report import golden_reports as made

from assay.golden.report.charts import build_band, build_chart, describe_step
from assay.golden.report.document import build_document
from assay.golden.report.rows import (
    ReportRow,
    build_test_rows,
    choose_finding,
    describe_headline,
    render_interval,
    render_rule,
)
from assay.golden.values import GoldenReport, Rule, Track
from assay.show import html, junit, markdown
from assay.show.formatting import render_facts
from assay.show.terminal_report import render_terminal
from assay.values.verdict import VerdictKind

CHANGED, ERROR, FAIL, PASS = VerdictKind.CHANGED, VerdictKind.ERROR, VerdictKind.FAIL, VerdictKind.PASS


def build_rows(report: GoldenReport) -> list[ReportRow]:
    return [row for test in report.tests for row in build_test_rows(test)]


def render_golden(report: GoldenReport, *, every_row: bool = True, **look: Any) -> str:
    return render_terminal(build_document(report, every_row=every_row), **look)


def judge(*findings: Any, **more: Any) -> GoldenReport:
    """A report on one metric of one segment."""
    return made.report(made.segment(made.metric(findings), **more))


def two_labels() -> GoldenReport:
    return judge(*(replace(made.FAILED, subject=f"segment at 100: loss {each}", label=each) for each in ("MLM", "NSP")))


def test_a_row_for_each_segment_and_metric_and_for_what_was_not_judged_the_cause_first():
    rows = build_rows(made.bad_report())
    assert [(row.segment, row.metric, str(row.kind)) for row in rows] == [
        (100, "loss", "FAIL"),
        (100, "acc", "INCONCLUSIVE"),
        (100, "eval_loss", "CHANGED"),
        (100, "grad_norm", "FAIL"),
        (200, "run", "ERROR"),
    ]
    (row,) = build_rows(made.error_report())
    assert (row.segment, row.metric, row.kind, row.comparisons) == (None, "golden", ERROR, 0)
    odd = made.finding(ERROR, "the golden has no value of loss at step 7")
    rows = build_rows(made.report(made.segment(made.metric((made.PASSED,))), rest=(odd,)))
    assert [row.kind for row in rows] == [PASS, ERROR], "it is not lost next to segments that pass"
    refused = made.finding(ERROR, "a delta of 0.005 is too small", label="segment at 100: acc")
    found = made.report(rest=(refused,))
    assert "ERROR golden segment at 100: acc: a delta of 0.005 is too small" in render_golden(found)
    assert build_rows(found)[0].describe(refused).startswith("segment at 100: acc: ")
    report = judge(made.finding(ERROR, "the check has no loss"), rest=(made.finding(ERROR, "the check failed"),))
    assert [row.metric for row in build_rows(report)] == ["run", "loss"]
    text = render_golden(report)
    assert text.index("the check failed") < text.index("has no loss")


def test_two_labels_of_a_metric_are_distinguished_and_the_worst_finding_is_reported():
    lines = [line for line in render_golden(two_labels()).splitlines() if line.startswith("FAIL")]
    assert [line.split(":")[0] for line in lines] == ["FAIL segment 100 loss MLM", "FAIL segment 100 loss NSP"]
    (row,) = build_rows(two_labels())
    assert row.describe(row.finding).startswith("MLM: +2%")
    half = replace(made.FAILED, label="MLM", part="second half")
    assert row.locate(half) == "segment 100 loss MLM, second half"
    assert row.locate(replace(half, label="")) == "segment 100 loss, second half"
    assert row.locate(replace(made.FAILED, subject="segment at 100: loss MLM")) == "segment 100 loss", (
        "text is not read"
    )
    small, large = (made.finding(FAIL, "", effect=effect) for effect in (0.01, -0.5))
    assert choose_finding((made.finding(CHANGED, "better", effect=-0.9), small, large)) is large
    assert choose_finding(()) is None


def test_intervals_rules_and_headlines():
    assert render_interval((-0.001, 0.002)) == "-0.1% to +0.2%"
    assert render_interval(None) == ""
    assert render_interval((0.03, 0.03)) == "+3%"
    assert render_rule(Rule("loss", "margin", operator="<=", margin=0.2)) == "<= 20%"
    assert render_rule(Rule("loss", delta=0.005)) == "paired 0.5%"
    assert render_rule(None) == ""
    assert describe_headline(judge(made.FAILED)) == "charlm: FAIL, loss +2% from step 105"
    assert describe_headline(two_labels()) == "charlm: FAIL, loss MLM +2% from step 105"
    assert describe_headline(made.error_report()) == "charlm: ERROR, golden: there is no golden recording"
    assert describe_headline(made.good_report()) == "charlm: PASS"


def test_terminal_and_markdown_show_where_the_golden_comes_from_and_what_was_compared():
    text = render_golden(made.good_report())
    assert "loss    paired  PASS     +0.01%" in text
    assert "interval" in text
    assert "golden: 2026-01-02T03:04:05Z, commit abcdef012345 with local changes, on node7, 3 recordings" in text
    assert text.endswith("charlm: PASS, 1 segment, 20 values compared in 3.0s\n")
    without = made.finding(FAIL, "9 of 9 values are not equal", effect=0.2)
    assert "interval" not in render_golden(judge(without)), "no row has one"
    gathered = replace(made.good_report(), mode="gather")
    assert "charlm: recorded, 1 segment, 20 values recorded" in render_golden(gathered)
    assert build_document(gathered).facts["verdict"] == "PASS"
    text = markdown.render_markdown(build_document(made.good_report()))
    assert text.startswith("## ✅ charlm: PASS\n\n1 segment, 20 values compared in 3.0s\n")
    assert "| 100 | loss | paired | PASS | +0.01% |" in text
    assert "- **" not in text
    text = markdown.render_markdown(build_document(made.bad_report()))
    assert "- **FAIL** segment 100 loss: +2% \\[+1.5%, +2.5%\\] in steps 105 to 110" in text
    assert "- warning: the golden was recorded on another machine" in text


def test_everything_bad_is_reported_the_worst_first_and_of_many_segments_few_are_shown():
    text = render_golden(made.bad_report())
    lines = text.splitlines()
    kinds = [line.split()[0] for line in lines if line.startswith(("ERROR ", "FAIL ", "INCONCLUSIVE ", "CHANGED "))]
    assert kinds == ["ERROR", "FAIL", "FAIL", "INCONCLUSIVE", "CHANGED"]
    assert "\x1b" not in text
    assert "1 run stopped early: 10 steps saved, about 0.7s" in text
    assert "warning: the golden was recorded on another machine" in text
    assert lines[-1] == "charlm: ERROR, 2 segments, 80 values compared in 3.0s"
    segments = [made.segment(made.metric((made.FAILED if n == 20 else made.PASSED,)), start=100 * n) for n in range(40)]
    report = made.report(*segments)
    text = render_golden(report, every_row=False)
    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["0", "2000", "3900"]
    assert "37 more passed; --all shows them" in text
    assert "more passed" not in render_golden(report)
    assert "more passed" not in render_golden(made.report(*segments[:5]), every_row=False)


def test_the_facts_are_json_with_all_numbers():
    facts = json.loads(render_facts(build_document(made.bad_report()).facts))
    assert (facts["verdict"], facts["exit_code"]) == ("ERROR", 1)
    (test,) = facts["tests"]
    assert test["saved_steps"] == 10
    loss = test["segments"][0]["metrics"][0]
    found = loss["findings"][0]
    assert (found["effect"], found["interval"], repr(found["step"])) == (0.02, [0.015, 0.025], "105")
    assert loss["rule"] == {"metric": "loss", "kind": "paired", "alpha": 0.01}
    assert len(loss["golden"][""]) == 3
    assert test["segments"][0]["metrics"][3]["check"][""][0]["values"][-1] == "NaN"
    assert test["segments"][0]["runs"][0]["state"] == "stopped"
    assert test["golden"]["provenance"]["commit"] == "abcdef0123456789"


def parse(report: GoldenReport, **options: bool) -> ET.Element:
    return ET.fromstring(junit.render_junit(build_document(report, **options)))


def properties(element: ET.Element) -> dict[str, str]:
    return {each.get("name", ""): each.get("value", "") for each in element.findall("properties/property")}


def test_junit_has_one_case_for_each_segment_and_metric_with_its_numbers():
    (suite,) = parse(made.good_report())
    (case,) = suite.findall("testcase")
    assert (case.get("classname"), case.get("name")) == ("charlm.segment 100", "loss")
    assert [child.tag for child in case] == ["properties"], "a pass has nothing but its properties"
    facts = properties(case)
    assert (facts["verdict"], facts["rule"], facts["comparisons"]) == ("PASS", "paired", "20")
    assert float(facts["effect"]) == 0.0001
    assert (float(facts["interval_low"]), float(facts["interval_high"])) == (-0.0001, 0.0003)
    assert float(facts["noise"]) == 0.001
    assert properties(suite)["golden.commit"] == "abcdef0123456789"
    (suite,) = parse(judge(replace(made.FAILED, label="MLM")))
    (case,) = suite.findall("testcase")
    facts = properties(case)
    assert (facts["step"], facts["label"]) == ("105", "MLM")
    assert float(facts["value"]) / float(facts["expected"]) - 1 == pytest.approx(float(facts["effect"]))
    (failure,) = case.findall("failure")
    assert str(failure.get("message")).startswith("MLM: ")


def test_junit_distinguishes_failures_errors_and_allowed_changes_and_counts_times_once():
    top = parse(made.bad_report())
    counts = {name: top.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "5", "failures": "3", "errors": "1", "skipped": "1"}
    (suite,) = top
    assert {name: suite.get(name) for name in counts} == counts
    children = [child for case in suite.findall("testcase") for child in case if child.tag != "properties"]
    kinds = [f"{child.tag} {child.get('type')}" for child in children]
    assert kinds == ["failure FAIL", "skipped None", "failure CHANGED", "failure FAIL", "error ERROR"]
    (suite,) = parse(made.report(made.segment(made.metric((made.PASSED,)), made.metric((made.PASSED,), "acc"))))
    assert [case.get("time") for case in suite.findall("testcase")] == ["2.500", "0.000"]
    assert suite.get("time") == "2.500"
    changed = judge(made.finding(CHANGED, "better"))
    codes = [build_document(changed, allow_changed=allowed).facts["exit_code"] for allowed in (False, True)]
    assert codes == [3, 0]
    top = parse(changed, allow_changed=True)
    assert (top.get("failures"), top.get("skipped")) == ("0", "1")
    (skipped,) = top.iter("skipped")
    assert "better" in str(skipped.get("message"))


STEPS = tuple(range(20))


def render_html(report: GoldenReport) -> str:
    return html.render_html(build_document(report))


def test_a_page_shows_verdicts_curves_and_failing_windows_or_the_recordings():
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


def test_odd_curves_can_be_drawn_and_the_band_is_of_all_recordings():
    drawing = draw(check=(((1, 2, 3), (1.0, float("nan"), 1e308)),))
    assert "nan" not in drawing
    assert "inf" not in drawing
    assert "<path" in draw(golden=(((5,), (0.0,)),), check=(((5,), (0.0,)),)), "a constant, and a single step"
    steps = tuple(range(10_000))
    many = steps, tuple(1.0 / (step + 1) for step in steps)
    assert len(draw(golden=(many,) * 3, check=(many,))) < 150_000
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


def test_the_lower_part_has_three_ticks_and_an_equal_check_does_not_hide_the_golden():
    assert {"0%", "10%"} <= set(read_strip_ticks(draw(effect=0.1, delta=0.005)))
    for effect in (None, 0.0, 1e-16, 0.0004, -0.03, 5.0, 3e7, float("inf"), float("nan")):
        ticks = read_strip_ticks(draw(effect=effect, check=((STEPS, [1.0] * 20),)))
        assert len(set(ticks)) == len(ticks) >= 3
    ticks = read_strip_ticks(draw(check=((STEPS, [1.0 + 2e-16] * 20),)))
    assert set(ticks) == {"-0.1%", "0%", "0.1%"}, "a difference in the last digit does not become a scale"
    found = re.findall(r"svg (path|\.reference) \{[^}]*stroke-width: ([\d.]+)", render_html(made.good_report()))
    width = {name: float(each) for name, each in found}
    assert width[".reference"] >= 2 * width["path"]
    equal = (STEPS, [1.0] * 20)
    svg = draw(golden=(equal,), check=(equal,))
    assert svg.index('class="reference"') < svg.index('class="measured"')
