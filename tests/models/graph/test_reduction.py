"""Delta debugging: what is left still fails, and nothing more can go."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.example_models import activate, assert_equal, load_examples, parse, run, sample

from assay.errors import UsageError
from assay.models.graph.onnx_library import build_spec
from assay.models.graph.reduction import Candidate, Cutter, Reduced, count_nodes, reduce_model

Samples = Sequence[Mapping[str, Any]]
EXAMPLES = load_examples().MODELS


def activations_for(model: onnx.ModelProto, samples: Samples) -> list[dict[str, Any]]:
    return [activate(model, dict(each)) for each in samples]


def reduce(model: onnx.ModelProto, oracle: Callable[[Candidate], bool], count: int = 1) -> Reduced:
    samples = [sample(model, seed=seed) for seed in range(count)]
    return reduce_model(model, samples, activations_for, oracle)


def contains(*wanted: str) -> Callable[[Candidate], bool]:
    return lambda candidate: all(op in ops(candidate) for op in wanted)


def ops(found: Candidate | Reduced) -> list[str]:
    return [node.op_type for node in found.model.graph.node]


def is_fused(candidate: Candidate) -> bool:
    """Whether a Clip reads a Conv."""
    made = {node.output[0]: node.op_type for node in candidate.model.graph.node}
    return any(n.op_type == "Clip" and made.get(n.input[0]) == "Conv" for n in candidate.model.graph.node)


@pytest.mark.parametrize(
    ("name", "oracle", "left"),
    [
        ("attention", contains("LayerNormalization"), ["LayerNormalization"]),
        ("attention", contains("Reshape"), ["Reshape"]),
        ("cnn", is_fused, ["Conv", "Clip"]),
        ("cnn", contains("Sub", "Softmax"), ["Sub", "Softmax"]),  # all between goes
        ("matmul", lambda _: True, ["MatMul"]),
    ],
)
def test_what_a_fault_needs_is_left(name: str, oracle: Callable[[Candidate], bool], left: list[str]) -> None:
    """It computes what it computed in the model; computed shapes are constants, and nothing is open."""
    model = EXAMPLES[f"example-{name}"]()
    reduced = reduce(model, oracle)
    assert ops(reduced) == left
    assert reduced.tried < 40
    onnx.checker.check_model(reduced.model, full_check=True)
    assert all(build_spec(value).is_static for value in reduced.model.graph.input)
    if len(left) == 1:
        assert len(reduced.model.graph.input) <= 2
        found = activate(model, sample(model, seed=0))
        for output, value in run(reduced.model, reduced.samples[0]).items():
            assert_equal(value, found[output])


def test_a_path_is_kept_and_its_nodes_are_bypassed() -> None:
    """The fault needs a Neg whose result reaches an Exp: what lies between only has to go through."""

    def oracle(candidate: Candidate) -> bool:
        tainted: set[str] = set()
        for node in candidate.model.graph.node:
            if node.op_type == "Neg" or tainted & set(node.input):
                tainted.update(node.output)
                if node.op_type == "Exp":
                    return True
        return False

    model = parse("""g (float[4] x, float[4] z) => (float[4] y) {
        a = Relu(x)
        b = Neg(a)
        c = Abs(b)
        d = Sigmoid(c)
        e = Add(d, z)
        f = Exp(e)
        y = Tanh(f)
    }""")
    reduced = reduce(model, oracle, count=2)
    assert ops(reduced) == ["Neg", "Exp"]
    (value,) = reduced.model.graph.input
    assert [set(each) for each in reduced.samples] == [{value.name}] * 2
    assert run(reduced.model, reduced.samples[0])


def test_after_a_bypass_the_values_are_the_new_ones() -> None:
    model = parse("g (float[2] x) => (float[2] y) { a = Relu(x)  b = Abs(a)  c = Neg(b)  y = Exp(c) }")
    runs: list[int] = []

    def counting(graph: onnx.ModelProto, samples: Samples) -> list[dict[str, Any]]:
        runs.append(count_nodes(graph))
        return activations_for(graph, samples)

    def oracle(candidate: Candidate) -> bool:
        made = {node.output[0]: node.op_type for node in candidate.model.graph.node}
        return any(
            n.op_type == "Exp" and made.get(n.input[0]) in ("Neg", "Abs", "Relu") for n in candidate.model.graph.node
        )

    assert len(reduce_model(model, [sample(model)], counting, oracle).model.graph.node) == 2
    assert runs[0] == 4


@pytest.mark.parametrize(
    ("oracle", "outputs"),
    [(contains("Split"), ["a"]), (lambda candidate: len(candidate.model.graph.output) == 2, ["a", "b"])],
)
def test_outputs_go_unless_they_matter(oracle: Callable[[Candidate], bool], outputs: list[str]) -> None:
    model = parse("g (float[4] x) => (float[2] y, float[2] z) { a, b = Split(x)  y = Relu(a)  z = Neg(b) }", opset=13)
    reduced = reduce(model, oracle)
    assert ops(reduced) == ["Split"]
    assert [value.name for value in reduced.model.graph.output] == outputs


def test_all_samples_go_along() -> None:
    counts: set[int] = set()

    def oracle(candidate: Candidate) -> bool:
        counts.add(len(candidate.samples))
        for each in candidate.samples:
            assert set(each) == {value.name for value in candidate.model.graph.input}
        return "Softmax" in ops(candidate)

    reduced = reduce(EXAMPLES["example-attention"](), oracle, count=3)
    assert counts == {3}
    (name,) = reduced.samples[0]
    assert len({each[name].tobytes() for each in reduced.samples}) == 3


def test_a_fault_that_only_a_later_sample_shows_is_kept() -> None:
    model = parse("g (float[2] x) => (float[2] y) { a = Abs(x)  b = Sqrt(a)  c = Neg(b)  y = Exp(c) }")
    samples = [{"x": np.array([1, 1], np.float32)}, {"x": np.array([9, 16], np.float32)}]

    def oracle(candidate: Candidate) -> bool:
        """Wrong where a square root is larger than 2."""
        found = [activate(candidate.model, dict(each)) for each in candidate.samples]
        roots = [node.output[0] for node in candidate.model.graph.node if node.op_type == "Sqrt"]
        return any(bool((values[root] > 2).any()) for values in found for root in roots)

    reduced = reduce_model(model, samples, activations_for, oracle)
    assert ops(reduced) == ["Sqrt"]
    assert reduced.samples[1]["a"].tolist() == [9, 16]


def test_a_fault_of_open_dimensions_keeps_them_open() -> None:
    def oracle(candidate: Candidate) -> bool:
        has_open = any(not build_spec(value).is_static for value in candidate.model.graph.input)
        return has_open and "Softmax" in ops(candidate)

    reduced = reduce(EXAMPLES["example-cnn"](), oracle)
    assert ops(reduced) == ["Softmax"]
    assert build_spec(reduced.model.graph.input[0]).shape == ("batch", 10)


def test_samples_of_different_shapes_leave_their_dimension_open() -> None:
    model = EXAMPLES["example-cnn"]()
    samples = [sample(model, dims={"batch": size}) for size in (1, 2)]
    reduced = reduce_model(model, samples, activations_for, contains("MaxPool"))
    assert ops(reduced) == ["MaxPool"]
    assert build_spec(reduced.model.graph.input[0]).shape == (None, 8, 16, 16)
    for each in reduced.samples:
        assert run(reduced.model, each)


def test_branches_and_sequences_do_not_stop_it() -> None:
    model = parse("""g (float[2] x, bool c) => (float[4] y) {
        a = Relu(x)
        s = SequenceConstruct(a, x)
        b = ConcatFromSequence<axis = 0>(s)
        d = If (c) < then_branch = t () => (float[4] p) { p = Neg(b) }, else_branch = e () => (float[4] q) { q = Exp(b) } >
        y = Abs(d)
    }""")
    assert ops(reduce(model, contains("If"))) == ["If"]
    assert ops(reduce(model, contains("ConcatFromSequence"))) == ["SequenceConstruct", "ConcatFromSequence"]


def test_a_model_that_does_not_fail_is_refused() -> None:
    with pytest.raises(UsageError, match="does not show this failure"):
        reduce(EXAMPLES["example-matmul"](), lambda _: False)
    with pytest.raises(UsageError, match="without a sample"):
        reduce_model(EXAMPLES["example-matmul"](), [], activations_for, lambda _: True)


def test_a_failure_that_only_the_whole_model_shows_leaves_it_whole() -> None:
    model = EXAMPLES["example-quantised"]()
    whole = count_nodes(model)
    assert count_nodes(reduce(model, lambda candidate: candidate.nodes == whole).model) == whole


def test_nothing_is_asked_twice() -> None:
    asked: list[tuple[tuple[str, ...], ...]] = []

    def oracle(candidate: Candidate) -> bool:
        nodes = tuple(tuple(node.output) for node in candidate.model.graph.node)
        asked.append((*nodes, tuple(value.name for value in candidate.model.graph.output)))
        return {"Sub", "Gemm", "Softmax"} <= set(ops(candidate))

    reduced = reduce(EXAMPLES["example-cnn"](), oracle)
    assert sorted(ops(reduced)) == ["Gemm", "Softmax", "Sub"]
    assert len(asked) - len(set(asked)) <= 1  # the whole model is tried once more with the samples' shapes
    first, asked[:] = [*asked], []
    assert reduce(EXAMPLES["example-cnn"](), oracle).model == reduced.model
    assert asked == first, "the search is the same every time"


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """Random nodes of one type that read what was made before; some results are outputs."""
    count = draw(st.integers(1, 10))
    tensors = ["x"]
    nodes = []
    for number in range(count):
        op = draw(st.sampled_from(["Abs", "Neg", "Add", "Mul", "TopK"]))
        first, second = (draw(st.sampled_from(tensors)) for _ in range(2))
        inputs = {"Add": [first, second], "Mul": [first, second], "TopK": [first, "k"]}.get(op, [first])
        more, given = ([f"i{number}"], {"axis": 0}) if op == "TopK" else ([], {})
        nodes.append(helper.make_node(op, inputs, [f"t{number}", *more], name=str(number), **given))
        tensors.append(f"t{number}")
    chosen = draw(st.sets(st.sampled_from(tensors[1:]))) | {tensors[-1]}
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ["x", *sorted(chosen)]]
    weights = [onnx.numpy_helper.from_array(np.array([3]), "k")]
    graph = helper.make_graph(nodes, "random", value[:1], value[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def names(model: onnx.ModelProto) -> set[str]:
    return {node.name for node in model.graph.node}


@given(model=graphs(), data=st.data())
def test_of_any_graph_exactly_the_nodes_that_matter_are_left(model: onnx.ModelProto, data: st.DataObject) -> None:
    needed = data.draw(st.sets(st.sampled_from(sorted(names(model))), min_size=1, max_size=3))
    reduced = reduce(model, lambda candidate: needed <= names(candidate.model))
    assert names(reduced.model) == needed
    onnx.checker.check_model(reduced.model, full_check=True)
    assert run(reduced.model, reduced.samples[0])


@given(model=graphs(), salt=st.integers(0, 1000))
def test_what_is_left_of_any_failure_is_one_minimal(model: onnx.ModelProto, salt: int) -> None:
    """The failure follows no rule at all: a coin is thrown for each set of nodes and outputs."""

    def fails(candidate: Candidate) -> bool:
        key = f"{salt} {sorted(names(candidate.model))} {[value.name for value in candidate.model.graph.output]}"

        return zlib.crc32(key.encode()) % 3 == 0 or candidate.nodes == len(model.graph.node)

    reduced = reduce(model, fails, count=2)
    cutter = Cutter(reduced.model, reduced.samples, activations_for(reduced.model, reduced.samples), keeps_open=False)
    steps = [step for step in cutter.list_candidates() if step.nodes < len(model.graph.node)]
    assert not [step for step in steps if fails(step)]
    for step in steps:
        onnx.checker.check_model(step.model)
        assert run(step.model, step.samples[1])
