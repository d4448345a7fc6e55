"""`metrics` and `checks` of a native file."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.config.native import expand_number, parse_native
from assay.config.source import parse_documents
from assay.errors import ConfigError
from assay.values.series import NUMBER

HEAD = "commands: {train: a, test: b}\n"


def study(text: str):
    return parse_native(parse_documents(HEAD + text, "f.yml"), "f.yml", "/work")


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        study(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("metrics: 3", "2:10 metrics:", "must be a mapping"),
        ("metrics: {}", "2:10 metrics:", "is empty"),
        ("metrics: {a: '('}", "2:14 metrics.a:", "the regular expression is broken"),
        ("metrics: {a: 'loss'}", "2:14 metrics.a:", "the pattern has no group"),
        ("metrics: {a: []}", "2:14 metrics.a:", "empty list"),
        ("metrics: {a: ['(x)', 'y']}", "2:22 metrics.a[1]:", "no group"),
        ("metrics: {a: }", "metrics.a:", "must be a regular expression, not nothing"),
        ("metrics: {a: {}}", "metrics.a:", "say one of regex"),
        ("metrics: {a: {regex: (a), jsonl: b}}", "metrics.a:", "say one of regex"),
        ("metrics: {a: {regx: (a)}}", "metrics.a.regx:", "did you mean 'regex'"),
        ("metrics: {a: {regex: (a)(b), labels: [x]}}", "metrics.a.regex:", "1 labels for 2 groups"),
        ("metrics: {a: {regex: (a), command: tset}}", "metrics.a.command:", "did you mean 'test'"),
        ("metrics: {a: {regex: (a), step: s}}", "metrics.a.step:", "goes with jsonl"),
        ("metrics: {a: {csv: x, labels: [b]}}", "metrics.a.labels:", "does not go with csv"),
        ("metrics: {a: {jsonl: /x}}", "metrics.a.jsonl:", "inside the run's directory"),
        ("metrics: {a: {jsonl: ../x}}", "metrics.a.jsonl:", "inside the run's directory"),
        ("metrics: {a: {jsonl: [x]}}", "metrics.a.jsonl:", "must be a path"),
        ("checks: 3", "2:9 checks:", "must be a list of checks"),
        ("checks: []", "2:9 checks:", "empty list"),
        ("checks: [a]", "checks[0]:", "must be a mapping"),
        ("checks: [{max: 1}]", "checks[0]:", "says no metric"),
        ("checks: [{metric: a}]", "checks[0]:", "says no bound"),
        ("checks: [{metric: a, min: 2, max: 1}]", "checks[0]:", "nothing can pass"),
        ("checks: [{metric: a, min: x}]", "checks[0].min:", "must be a number"),
        ("checks: [{metric: a, max: .nan}]", "checks[0].max:", "must be a number"),
        ("checks: [{metric: a, max: 1, at: lst}]", "checks[0].at:", "did you mean 'last'"),
        ("checks: [{metric: a, max: 1, att: last}]", "checks[0].att:", "did you mean 'at'"),
    ],
)
def test_what_is_wrong(text, place, words):
    found = refused(text)
    assert place in found
    assert words in found


def test_every_form_of_a_metric():
    found = study(
        "metrics:\n"
        "  a: 'a=(.*)'\n"
        "  b: ['x (.)', 'y (.)']\n"
        "  c: {regex: '(.)/(.)', labels: [p, q], command: test}\n"
        "  d: {jsonl: 'm/*.jsonl', step: it}\n"
        "  e: {csv: m.csv}\n"
        "  f: {tensorboard: .}\n"
    ).metrics
    shown = [
        (m.metric, m.regex, m.labels, m.command) if hasattr(m, "regex") else (m.kind, m.path, m.step) for m in found
    ]
    assert shown == [
        ("a", "a=(.*)", (), None),
        ("b", "x (.)", (), None),
        ("b", "y (.)", (), None),
        ("c", "(.)/(.)", ("p", "q"), "test"),
        ("jsonl", "m/*.jsonl", "it"),
        ("csv", "m.csv", None),
        ("tensorboard", ".", None),
    ]


def test_checks():
    found = study("checks: [{metric: a, max: 1}, {metric: b, at: best, min: 0, max: 0}]").checks
    assert [(check.metric, check.at, check.min, check.max) for check in found] == [
        ("a", "last", None, 1),
        ("b", "best", 0, 0),
    ]


@pytest.mark.parametrize(
    "text", ["1", "-1", "+1.5", ".5", "5.", "1e-4", "2E+10", "nan", "NaN", "inf", "-Inf", "Infinity"]
)
def test_a_number_pattern_takes_every_spelling(text):
    match = re.fullmatch(NUMBER, text)
    assert match
    float(match.group())


@pytest.mark.parametrize("text", ["", "-", "e5", "abc", "."])
def test_a_number_pattern_takes_nothing_else(text):
    assert re.fullmatch(NUMBER, text) is None


@given(st.floats())
def test_every_float_is_found_whole(number):
    match = re.search(expand_number("loss={number}"), f"loss={number!r}, next")
    assert match
    found = float(match[1])
    assert found == number or (math.isnan(found) and math.isnan(number))


def test_a_number_without_a_group_gets_one_but_a_grouped_one_keeps_its_own():
    assert re.compile(expand_number("loss={number}")).groups == 1
    assert re.compile(expand_number("loss=({number})")).groups == 1
    assert re.compile(expand_number("(?P<a>{number})/{number}")).groups == 1
