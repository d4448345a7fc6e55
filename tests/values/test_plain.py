"""Values travel as JSON and come back equal."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.models.values.model import CaseReport, Layer, ModelReport, Step, StepEnding, StepLimits, StepOutcome, Target
from assay.models.values.tensors import Element, TensorComparison, TensorSpec
from assay.values.plain import build_plain, parse_plain
from assay.values.verdict import Finding, Verdict, VerdictKind


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    number: float
    name: str = "x"


@dataclass(frozen=True)
class Outer:
    inner: Inner
    many: tuple[Inner, ...] = ()
    pair: tuple[int, str] = (0, "")
    table: Mapping[str, Inner] = field(default_factory=dict)
    colour: Colour = Colour.RED
    maybe: Inner | None = None
    dim: int | str | None = None
    choice: Literal["a", "b"] = "a"
    anything: Any = None
    numbers: list[float] = field(default_factory=list)


def travel(value: Any) -> Any:
    return parse_plain(type(value), json.loads(json.dumps(build_plain(value), allow_nan=False)))


@given(
    st.builds(
        Outer,
        inner=st.builds(Inner, st.floats(allow_nan=False), st.text()),
        many=st.lists(st.builds(Inner, st.floats(allow_nan=False)), max_size=3).map(tuple),
        pair=st.tuples(st.integers(), st.text()),
        table=st.dictionaries(st.text(), st.builds(Inner, st.floats(allow_nan=False)), max_size=3),
        colour=st.just(Colour.RED),
        maybe=st.none() | st.builds(Inner, st.floats(allow_nan=False)),
        dim=st.none() | st.integers() | st.text(),
        choice=st.sampled_from(["a", "b"]),
        anything=st.none() | st.integers() | st.lists(st.text()),
        numbers=st.lists(st.floats(allow_nan=False)),
    )
)
def test_a_value_comes_back_equal(value: Outer) -> None:
    assert travel(value) == value


def test_nan_whole_numbers_and_texts_that_look_like_infinity_stay_what_they_are() -> None:
    assert math.isnan(travel(Inner(math.nan)).number)
    assert travel(Element((0,), "inf", "-inf", math.inf, 1.0)) == Element((0,), "inf", "-inf", math.inf, 1.0)
    assert travel(Outer(Inner(1.0), dim="inf")).dim == "inf"
    assert travel(Element((0,), 2**63, 1, 0.0, 0.0)).expected == 2**63


def test_keys_of_a_newer_version_are_passed_over_and_missing_ones_take_their_default() -> None:
    assert parse_plain(Inner, {"number": 1, "colour_of_tomorrow": 3}) == Inner(1.0)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (Inner, {"number": "seven"}),
        (Inner, {"number": 1, "name": 3}),
        (Inner, {}),
        (Outer, {"inner": {"number": 1}, "pair": [1]}),
        (Outer, {"inner": {"number": 1}, "colour": "green"}),
        (Outer, {"inner": {"number": 1}, "maybe": "no mapping"}),
    ],
)
def test_what_does_not_fit_is_refused(kind: type[Any], content: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        parse_plain(kind, content)


def test_a_report_of_a_model_travels() -> None:
    verdict = Verdict(VerdictKind.FAIL, (Finding(VerdictKind.FAIL, "y", "off", value=math.inf),), 1)
    compared = TensorComparison(
        "y", verdict, ("float32", "float32"), ((2,), (2,)), worst=(Element((1,), "nan", 2, 1, 1),)
    )
    layer = Layer("m_layer_Conv_0", 0, ("Conv", "Clip"), (0, 1), ("x",), ("y",))
    step = StepOutcome(Step.RUN, StepEnding.OK, times_s=(0.1, 0.2))
    case = CaseReport("m_layer_Conv_0", "iree", verdict, layer, (step,), (compared,), (), (("a", "b"),))
    report = ModelReport("m.onnx", "m", "ort", "iree", (case,), "m_layer_Conv_0", True, tools={"iree": "3"})
    assert travel(report) == report
    assert travel(Target("sim", "command", {"run": ["a"]})) == Target("sim", "command", {"run": ["a"]})
    assert travel(StepLimits(memory_bytes=5)) == StepLimits(memory_bytes=5)
    assert travel(TensorSpec("x", "float32", (1, "batch", None))) == TensorSpec("x", "float32", (1, "batch", None))
