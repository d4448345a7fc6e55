"""`stop:`: rules become values, and everything that is wrong with them is reported at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.config.test_native import problems, study

from assay.values.study import StopRule


def read(text: str) -> list[StopRule]:
    return [replace(rule, position=None) for rule in study(f"command: echo\nstop: {text}").stop]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("{rule: asha, metric: loss}", StopRule("asha", "loss", "min")),
        ("{rule: asha, metric: val_acc}", StopRule("asha", "val_acc", "max")),
        ("{rule: asha, metric: x, direction: min}", StopRule("asha", "x", "min")),
        (
            "{rule: asha, metric: loss, at: {min: 1, factor: 3, max: 81, runs: 2}}",
            StopRule("asha", "loss", "min", first=1, factor=3, until=81, runs=2),
        ),
        ("{rule: asha, metric: loss, at: [1, 3, 9, 27]}", StopRule("asha", "loss", "min", at=(1, 3, 9, 27))),
        ("{rule: median, metric: loss}", StopRule("median", "loss", "min", first=5)),
        (
            "{rule: median, metric: loss, at: {min: 10, every: 5, runs: 4}}",
            StopRule("median", "loss", "min", first=10, every=5, runs=4),
        ),
        (
            "{rule: patience, metric: loss, patience: 7, min_delta: 0.01}",
            StopRule("patience", "loss", "min", patience=7, min_delta=0.01),
        ),
        ("{rule: bounds, metric: loss, max: 10}", StopRule("bounds", "loss", "min", max=10)),
        (
            "{rule: bounds, metric: acc, min: 0.1, finite: false, target: 0.95}",
            StopRule("bounds", "acc", "max", min=0.1, finite=False, target=0.95),
        ),
    ],
)
def test_a_rule(text: str, rule: StopRule) -> None:
    assert read(text) == [rule]
    assert read(f"[{text}]") == [rule]
    assert study("command: echo").stop == ()


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("{rule: ahsa, metric: loss}", "stop.rule", "did you mean 'asha'"),
        ("{metric: loss}", "stop:", "has no rule"),
        ("{rule: bounds}", "stop:", "has no metric"),
        ("{rule: patience, metric: loss, patience: 3, min_dleta: 1}", "stop.min_dleta", "did you mean 'min_delta'"),
        ("asha", "stop:", "must be a mapping"),
        ("[]", "stop:", "is an empty list"),
        ("{rule: asha, metric: loss, direction: up}", "stop.direction", "one of min, max"),
        ("{rule: asha, metric: loss, patience: 3}", "stop.patience", "does not go with asha"),
        ("{rule: asha, metric: loss, at: 3}", "stop.at", "a mapping or a list"),
        ("{rule: asha, metric: loss, at: {every: 3}}", "stop.at.every", "unknown key"),
        ("{rule: asha, metric: loss, at: {factor: 1}}", "stop.at.factor", "above 1"),
        ("{rule: asha, metric: loss, at: {min: 0}}", "stop.at.min", "above 0"),
        ("{rule: asha, metric: loss, at: {min: 9, max: 3}}", "stop.at.max", "above 9"),
        ("{rule: asha, metric: loss, at: {runs: 0}}", "stop.at.runs", "1 or more"),
        ("{rule: asha, metric: loss, at: [3, 1]}", "stop.at", "must rise"),
        ("{rule: asha, metric: loss, at: []}", "stop.at", "empty list"),
        ("{rule: asha, metric: loss, at: [one]}", "stop.at[0]", "must be a number"),
        ("{rule: median, metric: loss, at: {every: 0}}", "stop.at.every", "above 0"),
        ("{rule: patience, metric: loss}", "stop:", "has no patience"),
        ("{rule: patience, metric: loss, patience: -1}", "stop.patience", "above 0"),
        ("{rule: patience, metric: loss, patience: 3, min_delta: -1}", "stop.min_delta", "0 or more"),
        ("{rule: bounds, metric: loss, finite: false}", "stop:", "has no bound"),
        ("{rule: bounds, metric: loss, finite: 1}", "stop.finite", "true or false"),
        ("{rule: bounds, metric: loss, min: 3, max: 1}", "stop:", "min 3 is above max 1"),
        ("{rule: bounds, metric: loss, max: .nan}", "stop.max", "must be a number"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, place: str, words: str) -> None:
    (found,) = problems(f"command: echo\nstop: {text}")
    assert place in found
    assert words in found
    assert found.startswith("dir/f.yml:2:")


def test_all_problems_at_once() -> None:
    found = problems("command: echo\nstop:\n  - {rule: asha}\n  - {rule: patience, metric: loss, at: {min: 3}}\n")
    assert [problem.split()[1] for problem in found] == ["stop[0]:", "stop[1]:", "stop[1].at:"]


@pytest.mark.parametrize(
    "rule", ["rule: asha", "rule: median", "rule: patience, patience: 3", "rule: bounds, target: 3"]
)
def test_a_metric_of_unknown_direction_needs_one(rule: str) -> None:
    """A guess would end the best runs."""
    (problem,) = problems(f"command: echo\nstop: {{{rule}, metric: wibble}}")
    assert "'wibble' should be small or large is not known" in problem
    assert read(f"{{{rule}, metric: wibble, direction: max}}")[0].direction == "max"
    assert read("{rule: bounds, metric: wibble, max: 3}")
