"""The report of a gathering or a check: rows, terminal, JSON, Markdown and JUnit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.golden.report import golden_reports as made

from assay.golden.report.document import build_document
from assay.golden.report.rows import (
    ReportRow,
    build_test_rows,
    choose_finding,
    describe_headline,
    render_interval,
    render_rule,
)
from assay.golden.values import GoldenReport, Rule
from assay.show import junit, markdown
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


def test_one_row_for_each_segment_and_metric_and_for_what_kept_a_test_from_being_judged():
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


def test_the_cause_is_before_its_consequences_and_names_what_it_is_about():
    refused = made.finding(ERROR, "a delta of 0.005 is too small", label="segment at 100: acc")
    found = made.report(rest=(refused,))
    assert "ERROR golden segment at 100: acc: a delta of 0.005 is too small" in render_golden(found)
    assert build_rows(found)[0].describe(refused).startswith("segment at 100: acc: ")
    report = judge(made.finding(ERROR, "the check has no loss"), rest=(made.finding(ERROR, "the check failed"),))
    assert [row.metric for row in build_rows(report)] == ["run", "loss"]
    text = render_golden(report)
    assert text.index("the check failed") < text.index("has no loss")


def test_the_worst_and_largest_finding_is_reported():
    small, large = (made.finding(FAIL, "", effect=effect) for effect in (0.01, -0.5))
    assert choose_finding((made.finding(CHANGED, "better", effect=-0.9), small, large)) is large
    assert choose_finding(()) is None


def test_two_labels_of_a_metric_are_distinguished():
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


def test_a_terminal_shows_where_the_golden_comes_from_and_what_was_compared():
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


def test_everything_bad_is_reported_the_worst_first_and_nothing_breaks_the_terminal():
    text = render_golden(made.bad_report())
    lines = text.splitlines()
    kinds = [line.split()[0] for line in lines if line.startswith(("ERROR ", "FAIL ", "INCONCLUSIVE ", "CHANGED "))]
    assert kinds == ["ERROR", "FAIL", "FAIL", "INCONCLUSIVE", "CHANGED"]
    assert "\x1b" not in text
    assert "1 run stopped early: 10 steps saved, about 0.7s" in text
    assert "warning: the golden was recorded on another machine" in text
    assert lines[-1] == "charlm: ERROR, 2 segments, 80 values compared in 3.0s"


def test_of_forty_segments_the_failing_ones_and_the_ends_are_shown():
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


def test_markdown():
    text = markdown.render_markdown(build_document(made.good_report()))
    assert text.startswith("## ✅ charlm: PASS\n\n1 segment, 20 values compared in 3.0s\n")
    assert "| 100 | loss | paired | PASS | +0.01% |" in text
    assert "- **" not in text
    text = markdown.render_markdown(build_document(made.bad_report()))
    assert "- **FAIL** segment 100 loss: +2% \\[+1.5%, +2.5%\\] in steps 105 to 110" in text
    assert "- warning: the golden was recorded on another machine" in text


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


def test_junit_distinguishes_failures_and_errors_and_counts_times_once():
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


def test_a_change_that_is_allowed():
    changed = judge(made.finding(CHANGED, "better"))
    codes = [build_document(changed, allow_changed=allowed).facts["exit_code"] for allowed in (False, True)]
    assert codes == [3, 0]
    top = parse(changed, allow_changed=True)
    assert (top.get("failures"), top.get("skipped")) == ("0", "1")
    (skipped,) = top.iter("skipped")
    assert "better" in str(skipped.get("message"))
