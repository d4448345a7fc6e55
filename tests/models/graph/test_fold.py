"""What a compiler would know before it runs: constants, shapes, and what is computed of them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.models.model_shelf import activate, assert_equal, load_examples, parse, sample

from assay.models.graph.fold import (
    SMALL,
    build_folding,
    evaluate,
    find_constant_made,
    find_shape_made,
    find_shape_operands,
)
from assay.models.graph.onnx_library import build_wiring

SHAPES = """g (float[2,n,4] x) => (float[m,l] y) <int64 one = {1}, int64[1] zero = {0}, int64[1] rest = {-1}> {
    s = Shape(x)
    d = Gather(s, one)
    u = Unsqueeze(d, zero)
    t = Concat<axis = 0>(u, rest)
    y = Reshape(x, t)
}"""


def test_tensors_made_of_shapes_are_found() -> None:
    assert find_shape_made(build_wiring(parse(SHAPES).graph)) == {"s", "d", "u", "t"}


def test_data_stops_it() -> None:
    model = parse("""g (float[2,3] x) => (int64[2] y) {
        s = Shape(x)
        m = ReduceMax<keepdims = 0>(x)
        i = Cast<to = 7>(m)
        y = Mul(s, i)
    }""")
    assert find_shape_made(build_wiring(model.graph)) == {"s"}


def test_what_comes_of_constants_alone_is_found() -> None:
    model = parse(
        """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
        k = Constant<value = float[2] {3, 4}>()
        a = Add(w, k)
        b = Exp(a)
        r = RandomNormalLike(b)
        c = Add(b, x)
        d = Add(b, r)
        y = Add(c, d)
    }"""
    )
    assert find_constant_made(build_wiring(model.graph)) == {"a", "b"}


def test_nodes_that_may_hide_random_numbers_are_not_trusted() -> None:
    model = parse(
        """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, bool c = {1}> {
        a = If (c) < then_branch = t () => (float[2] p) { p = Neg(w) }, else_branch = e () => (float[2] q) { q = Exp(w) } >
        b = my.Secret(w)
        z = RandomNormal<shape = [2]>()
        y = Sum(a, b, x, z)
    }""",
        extra=', "my": 1',
    )
    assert find_constant_made(build_wiring(model.graph)) == frozenset()


def test_operands_that_decide_shapes_are_known() -> None:
    wiring = build_wiring(parse(SHAPES).graph)
    assert [sorted(find_shape_operands(node)) for node in wiring.nodes] == [[], [], ["zero"], [], ["t"]]
    other = parse("g (float[2] x, int64[1] s) => (float[2] y) { y = my.Reshape(x, s) }", extra=', "my": 1')
    assert find_shape_operands(other.graph.node[0]) == frozenset()


@pytest.mark.parametrize(
    ("index", "name", "size", "expected"),
    [
        (4, "t", 2, True),  # the shape of the Reshape
        (4, "x", 2, False),
        (1, "s", 3, False),  # the Gather would have nothing left to compute
        (2, "d", 1, False),
        (4, "t", SMALL + 1, False),
    ],
)
def test_what_becomes_an_initialiser(index: int, name: str, size: int, expected: bool) -> None:
    folding = build_folding(build_wiring(parse(SHAPES).graph))
    outputs = tuple(folding.wiring.nodes[index].output)
    assert folding.is_frozen((index,), outputs, name, np.zeros(size, np.int64)) is expected


def test_constants_become_initialisers_of_any_size_and_shapes_only_small_ones() -> None:
    model = parse("""g (float[n] x) => (float[n] y) <float[2] w = {1, 2}> {
        a = Exp(w)
        s = Shape(x)
        f = Cast<to = 1>(s)
        b = Add(x, a)
        y = Mul(b, f)
    }""")
    folding = build_folding(build_wiring(model.graph))
    large = np.zeros(SMALL + 1, np.float32)
    assert folding.is_frozen((3,), ("b",), "a", large)
    assert folding.is_frozen((4,), ("y",), "f", large[:1])
    assert not folding.is_frozen((4,), ("y",), "f", large)


def test_values_that_no_run_brought_are_computed() -> None:
    model = load_examples().build_attention()
    feeds = sample(model, dims={"batch": 3})
    found = activate(model, feeds)
    wiring = build_wiring(model.graph)
    for name in find_shape_made(wiring):
        assert_equal(evaluate(model, wiring, name, feeds), found[name])


def test_what_cannot_be_computed_is_nothing() -> None:
    model = parse("g (float[2] x) => (int64[1] y) { a = my.Fancy(x)  y = Shape(a) }", extra=', "my": 1')
    assert evaluate(model, build_wiring(model.graph), "y", {"x": np.zeros(2, np.float32)}) is None
