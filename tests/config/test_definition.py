"""Python values → the text of a native file, and back."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.config.definition import render_assignments, render_definition
from assay.config.load import LoadOptions, load_study
from assay.config.overrides import parse_assignments
from assay.config.source import Problems, parse_documents
from assay.errors import ConfigError


class Norm(Enum):
    BATCH = "batch"


def read(**keys: Any) -> Any:
    (node,) = parse_documents(render_definition(keys), "")
    return node.value


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.array([0.1, 1e-5]), [0.1, 1e-5]),
        (np.float64(0.5), 0.5),
        (np.int32(3), 3),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (np.array(7), 7),
        (range(3), [0, 1, 2]),
        ((1, (2, None)), [1, [2, None]]),
        (Path("a b/c"), "a b/c"),
        (Norm.BATCH, "batch"),
        ({1: {"b": [True]}}, {"1": {"b": [True]}}),
        (float("inf"), float("inf")),
    ],
)
def test_values_become_plain(value: Any, plain: Any) -> None:
    (found,) = read(params={"x": value})["params"].values()
    assert found == plain
    assert type(found) is type(plain)


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")) | st.just("\n")) | st.sampled_from(
    ["1e-4", "007", "no", "true", "null", "~", "", "a: b", "- a", "{lr}", "[x]", "#", "'", '"', "<<", "0x1f", ".inf"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_every_plain_value_is_read_as_it_was_given(value: Any) -> None:
    assert read(params={"x": value}) == {"params": {"x": value}}


@given(VALUES)
def test_every_override_is_read_as_it_was_given(value: Any) -> None:
    problems = Problems()
    (word,) = render_assignments({"x": value})
    entries = parse_assignments([word], "native", problems)
    assert problems.found == []
    assert entries["x"].node.value == value


def test_an_override_that_no_word_can_hold() -> None:
    with pytest.raises(ConfigError) as caught:
        render_assignments({"a": range(100_000), "b=c": 1, "d": object()})
    assert [problem.key for problem in caught.value.problems] == ["a", "", "d"]


def test_the_text_is_readable() -> None:
    shared = [0.1, 0.2]
    text = render_definition({"study": "x", "command": "a {lr} \\\n  b", "params": {"lr": shared, "mu": shared}})
    assert text == "study: x\ncommand: |-\n  a {lr} \\\n    b\nparams:\n  lr: [0.1, 0.2]\n  mu: [0.1, 0.2]\n"


def test_none_leaves_a_keyword_out() -> None:
    assert read(study="x", timeout=None) == {"study": "x"}


@pytest.mark.parametrize(
    ("keys", "lines"),
    [
        ({"comand": "x", "parms": {}}, ["comand: unknown keyword", "    did you mean 'command'", "parms: unknown"]),
        ({"params": {"a": {1, 2}, "b": [object()]}}, ["params.a: ", "    give ", "params.b[0]: "]),
        ({"params": {"a": b"x"}}, ["params.a: a study file cannot hold a value of the type bytes"]),
    ],
)
def test_all_mistakes_are_named_by_keyword(keys: Any, lines: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        render_definition(keys)
    for line, wanted in zip(str(caught.value).splitlines(), lines, strict=False):
        assert line.startswith(wanted)


def test_a_value_that_contains_itself() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ConfigError, match="nested too deeply"):
        render_definition({"params": {"a": endless}})


def test_mistakes_that_the_reader_finds_have_a_key_and_no_position() -> None:
    text = render_definition({"command": "a {b}", "sweep": [{"b": 1}, {"c": 1}], "timeout": "soon"})
    with pytest.raises(ConfigError) as caught:
        load_study("", LoadOptions(text=text))
    assert "command: b has no value in one sweep" in str(caught.value)
    assert "\ntimeout: must be a duration" in str(caught.value)
    assert str(caught.value).startswith(("command:", "timeout:"))
