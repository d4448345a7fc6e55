"""`params`, `sweep`, `zip` and `when`: which axes a file asks for, and what is wrong with them."""

from __future__ import annotations

import pytest

from assay.config.native import parse_native
from assay.config.source import parse_documents
from assay.errors import ConfigError
from assay.values.study import Choices, Condition, Random, same_value

HEAD = "command: echo\n"


def sweeps(text: str):
    return parse_native(parse_documents(HEAD + text, "f.yml"), "f.yml", "/work").sweeps


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        sweeps(text)
    return str(caught.value)


def test_parentheses_and_infinity_that_are_meant() -> None:
    (sweep,) = sweeps("params: {a: f(x), b: 'f(x', c: .inf, d: x)}")
    assert [axis.values for axis in sweep.axes.values()] == [("f(x)",), ("f(x",), (float("inf"),), ("x)",)]


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("params: [a]", "2:9 params:", "must be a mapping of parameters"),
        ("params: {a: []}", "2:13 params.a:", "list of values is empty"),
        ("params: {a: choice(1,2)}", "2:13 params.a: the parenthesis is not closed", "write [1, …];"),
        ("params: {a: range(1,2)}", "2:13 params.a: the parenthesis is not closed", "write {range: [1, …]};"),
        ("params: {a: [(1,2), 3]}", "2:14 params.a: the parenthesis is not closed", "write [1, …];"),
        ("params: {a: 1e400}", "2:13 params.a:", "is beyond the largest number, about 1e308"),
        ("params: {a: [1, -1e400]}", "2:17 params.a:", "for infinity write -.inf"),
        ("params: {study: 1}", "2:10 params.study:", "this name is taken"),
        ("params: {a: {unifrom: [0, 1]}}", "2:14 params.a.unifrom:", "did you mean 'uniform'"),
        ("params: {a: {values: [1, 2]}}", "2:14 params.a.values:", "write [1, 2]; "),
        ("params: {a: {min: 0, max: 1}}", "2:13 params.a:", "write {uniform: [0, 1]}"),
        ("params: {a: {low: 1, high: 8, log: true}}", "2:13 params.a:", "whole numbers {int: [1, 8]}"),
        ("params: {a: {normal: [0, 1]}}", "2:14 params.a.normal:", "the kinds are uniform, log_uniform"),
        ("params: {a: {choice: [x, y], weights: [1, 2]}}", "2:13 params.a:", 'no weights: write {choice: ["x", "y"]}'),
        ("params: {a: {uniform: [0, 1], count: 3}}", "2:13 params.a:", "how many are drawn: `subset:"),
        ("params: {a: {x: 1}}", "2:14 params.a.x:", 'value itself is written [{"x": 1}]'),
        ("sweep: [{a: {}}]", "2:13 sweep[0].a:", "value itself is written [{}]"),
        ("params: {a: {api_key: hunter2}}", "2:14 params.a.api_key:", "***"),
        (f"params: {{a: {{range: {10**400}}}}}", "2:21 params.a.range:", "more than"),
        (f"params: {{a: {{range: [0, {-(10**400)}, -1]}}}}", "2:21 params.a.range:", "more than"),
        ("params: {a: {choice: []}}", "2:22 params.a.choice:", "empty list"),
        ("params: {a: {choice: 3}}", "2:22 params.a.choice:", "must be a list of values"),
        ("params: {a: {range: 0}}", "2:21 params.a.range:", "contains no number"),
        ("params: {a: {range: [0, 5, 0]}}", "params.a.range:", "whole numbers"),
        ("params: {a: {range: 1.5}}", "params.a.range:", "whole numbers"),
        ("params: {a: {range: [1, 0.5]}}", "2:25 params.a.range:", "whole numbers, not 0.5"),
        ("params: {a: {range: true}}", "params.a.range:", "whole numbers"),
        ("params: {a: {range: [1, 2, 3, 4]}}", "params.a.range:", "whole numbers"),
        ("params: {a: {range: 9999999999}}", "params.a.range:", "more than"),
        ("params: {a: {uniform: [1, 0]}}\nsubset: {count: 2}", "params.a.uniform:", "low comes first"),
        ("params: {a: {uniform: [1, 1]}}\nsubset: {count: 2}", "params.a.uniform:", "enclose nothing"),
        ("params: {a: {uniform: 1}}\nsubset: {count: 2}", "params.a.uniform:", "two numbers"),
        ("params: {a: {uniform: [x, 1]}}\nsubset: {count: 2}", "params.a.uniform:", "must be a number"),
        ("params: {a: {uniform: [.nan, 1]}}\nsubset: {count: 2}", "params.a.uniform:", "must be a number"),
        ("params: {a: {log_uniform: [0, 1]}}\nsubset: {count: 2}", "params.a.log_uniform:", "above zero"),
        ("params: {a: {int: [1, 2.5]}}\nsubset: {count: 2}", "params.a.int:", "two whole numbers"),
        ("params: {a: {int: [0, 9007199254740992]}}\nsubset: {count: 2}", "params.a.int:", "between -2**53 and 2**53"),
        ("params: {a: {int: [3, 1]}}\nsubset: {count: 2}", "params.a.int:", "low comes first"),
        ("params: {a: {int: [true, 3]}}\nsubset: {count: 2}", "params.a.int:", "a number"),
        ("params: {a: {int: 3}}\nsubset: {count: 2}", "params.a.int:", "two whole numbers"),
        ("params: {a: {log_int: [0, 3]}}\nsubset: {count: 2}", "params.a.log_int:", "or use int"),
        ("sweep: 3", "2:8 sweep:", "a mapping or a list of mappings"),
        ("sweep: []", "2:8 sweep:", "empty list"),
        ("sweep: [{a: 1}, 3]", "2:17 sweep[1]:", "must be a mapping of parameters"),
        ("params: {a: [1, 2], b: [1, 2, 3]}\nzip: [a, b]", "3:6 zip:", "a has 2, b has 3"),
        ("params: {a: [1, 2]}\nzip: [a, c]", "3:6 zip:", "unknown parameter 'c'"),
        ("params: {a: [1, 2]}\nzip: [a]", "3:6 zip:", "two parameters or more"),
        ("params: {a: [1, 2]}\nzip: a", "3:6 zip:", "must be a list of parameter names"),
        ("params: {a: [1, 2], b: [1, 2], c: [1, 2]}\nzip: [[a, b], [b, c]]", "zip:", "b is in two zip groups"),
        ("params: {a: [1], b: {uniform: [0, 1]}}\nzip: [a, b]\nsubset: {count: 1}", "zip:", "b is random"),
        ("sweep: {a: [1, 2], when: {c: 1}}", "sweep.when:", "unknown parameter 'c'"),
        ("sweep: {a: [1, 2], when: {a: 3}}", "sweep.when.a:", "its values: 1, 2"),
        ("sweep: {a: [1, 2], when: {a: true}}", "sweep.when.a:", "no run has this value"),
        ("sweep: {a: 1, when: 3}", "sweep.when:", "must be a mapping"),
        ("sweep: {a: {uniform: [0, 1]}, when: {a: 3}}\nsubset: {count: 1}", "sweep.when:", "a is random"),
    ],
)
def test_what_is_wrong_with_a_grid(text, place, words):
    found = refused(text)
    assert place in found
    assert words in found


def test_lists_are_axes_and_inner_lists_are_values():
    (sweep,) = sweeps("params: {a: 1, b: [1, 2], c: [[1, 2], [3, 4]], d: [{x: 1}], e: [{range: 3}], f: [[]]}")
    assert {name: axis.values for name, axis in sweep.axes.items()} == {
        "a": (1,), "b": (1, 2), "c": ([1, 2], [3, 4]), "d": ({"x": 1},), "e": ({"range": 3},), "f": ([],),
    }  # fmt: skip


def test_special_axes():
    (sweep,) = sweeps(
        "params: {a: {range: 3}, b: {range: [1, 3]}, c: {range: [10, 0, -5]}, d: {choice: [x, y]},"
        " e: {uniform: [0, 1]}, f: {log_uniform: [1e-5, 1e-1]}, g: {int: [1, 64]}, h: [{init: 3}]}\nsubset: {count: 3}"
    )
    values = [axis.values for axis in sweep.axes.values() if isinstance(axis, Choices)]
    assert values == [(0, 1, 2), (1, 2), (10, 5), ("x", "y"), ({"init": 3},)]
    drawn = [(axis.kind, axis.low, axis.high) for axis in sweep.axes.values() if isinstance(axis, Random)]
    assert drawn == [("uniform", 0.0, 1.0), ("log_uniform", 1e-5, 1e-1), ("int", 1, 64)]


def test_a_sweep_item_keeps_the_order_of_params_and_adds_its_own():
    first, second = sweeps("params: {a: 1, b: [1, 2]}\nsweep: [{c: 5, b: 7}, {a: [3, 4]}]")
    assert [(name, axis.values) for name, axis in first.axes.items()] == [("a", (1,)), ("b", (7,)), ("c", (5,))]
    assert [(name, axis.values) for name, axis in second.axes.items()] == [("a", (3, 4)), ("b", (1, 2))]


def test_a_single_mapping_is_a_sweep_of_one_item():
    assert [list(sweep.axes) for sweep in sweeps("sweep: {a: [1, 2]}")] == [["a"]]


def test_zip_and_when_at_the_top_hold_for_every_item():
    first, second = sweeps(
        "params: {a: [1, 2], b: [3, 4], c: [x, y]}\nzip: [a, b]\nwhen: {c: x}\nsweep: [{d: 1}, {d: 2, when: {a: [1, 2]}}]"
    )
    assert first.zips == second.zips == (("a", "b"),)
    assert first.when == (Condition("c", ("x",)),)
    assert second.when == (Condition("c", ("x",)), Condition("a", (1, 2)))


def test_a_single_value_may_be_zipped_with_many():
    (sweep,) = sweeps("params: {a: [1, 2], b: 3}\nzip: [[a, b]]")
    assert sweep.zips == (("a", "b"),)


def test_zip_and_when_may_name_parameters_in_params():
    (sweep,) = sweeps("params: {zip: 1, when: 2}")
    assert list(sweep.axes) == ["zip", "when"]


@pytest.mark.parametrize(
    ("left", "right", "same"), [(1, 1.0, True), (1, True, False), (True, True, True), ("1", 1, False)]
)
def test_true_is_not_one(left, right, same):
    assert same_value(left, right) is same
