from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from tests.golden.report import golden_reports as made

from assay.golden.report.document import build_document
from assay.golden.values import GoldenReport
from assay.show import junit
from assay.values.verdict import VerdictKind


def render_junit(report: GoldenReport, **options: bool) -> str:
    return junit.render_junit(build_document(report, **options))


def parse(report: GoldenReport, **options: bool) -> ET.Element:
    return ET.fromstring(render_junit(report, **options))


def properties(element: ET.Element) -> dict[str, str]:
    return {each.get("name", ""): each.get("value", "") for each in element.findall("properties/property")}


def test_one_case_for_each_segment_and_metric_with_its_numbers():
    (suite,) = parse(made.good_report())
    (case,) = suite.findall("testcase")
    assert (case.get("classname"), case.get("name")) == ("charlm.segment 100", "loss")
    assert [child.tag for child in case] == ["properties"], "a pass has nothing but its properties"
    told = properties(case)
    assert (told["verdict"], told["rule"], told["comparisons"]) == ("PASS", "paired", "20")
    assert float(told["effect"]) == 0.0001
    assert (float(told["interval_low"]), float(told["interval_high"])) == (-0.0001, 0.0003)
    assert float(told["noise"]) == 0.001
    assert properties(suite)["golden.commit"] == "abcdef0123456789"


def test_failures_and_errors_are_told_apart_and_counted():
    top = parse(made.bad_report())
    counts = {name: top.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "5", "failures": "3", "errors": "1", "skipped": "1"}
    (suite,) = top
    assert {name: suite.get(name) for name in counts} == counts
    kinds = [
        (child.tag, child.get("type"))
        for case in suite.findall("testcase")
        for child in case
        if child.tag != "properties"
    ]
    assert kinds == [
        ("failure", "FAIL"),
        ("skipped", None),
        ("failure", "CHANGED"),
        ("failure", "FAIL"),
        ("error", "ERROR"),
    ]


def test_what_cannot_stand_in_xml_is_written_out():
    text = render_junit(made.bad_report())
    assert "\x1b" not in text
    (error,) = ET.fromstring(text).iter("error")
    assert error.get("message") == "train ended with exit code 3 <&> \\x1b[31m|boom|"


def test_a_change_that_is_allowed_is_skipped_not_failed():
    report = made.report(made.segment(made.metric((made.finding(VerdictKind.CHANGED, "better"),))))
    top = parse(report, allow_changed=True)
    assert (top.get("failures"), top.get("skipped")) == ("0", "1")
    (skipped,) = top.iter("skipped")
    assert "better" in str(skipped.get("message"))


def test_a_test_that_could_not_begin_is_an_error():
    (suite,) = parse(made.error_report())
    (case,) = suite.findall("testcase")
    assert case.find("error") is not None


def test_the_time_of_a_segments_runs_is_counted_once():
    report = made.report(made.segment(made.metric((made.PASSED,)), made.metric((made.PASSED,), "acc")))
    (suite,) = parse(report)
    assert [case.get("time") for case in suite.findall("testcase")] == ["2.500", "0.000"]
    assert suite.get("time") == "2.500"


def test_a_step_is_a_whole_number_and_the_label_is_named():
    found = replace(made.FAILED, subject="segment at 100: loss MLM")
    (suite,) = parse(made.report(made.segment(made.metric((found,)))))
    (case,) = suite.findall("testcase")
    told = properties(case)
    assert (told["step"], told["label"]) == ("105", "MLM")
    assert float(told["value"]) / float(told["expected"]) - 1 == pytest.approx(float(told["effect"]))
    (failure,) = case.findall("failure")
    assert str(failure.get("message")).startswith("MLM: ")


def test_what_is_inconclusive_is_neither_red_nor_passed():
    open_end = made.finding(VerdictKind.INCONCLUSIVE, "too noisy to tell <&>")
    top = parse(made.report(made.segment(made.metric((open_end,)), made.metric((made.PASSED,), "acc"))))
    assert [top.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["2", "0", "0", "1"]
    (skipped,) = top.iter("skipped")
    assert skipped.attrib == {"message": "INCONCLUSIVE: too noisy to tell <&>"}, "the schema knows no type here"
    assert "too noisy" in str(skipped.text)
    beside = parse(made.report(made.segment(made.metric((open_end, made.FAILED)))))
    assert (beside.get("failures"), beside.get("skipped")) == ("1", "0"), "what also failed is red"
