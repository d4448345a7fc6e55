"""Check a model: every view, and what each says of a planted fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.example_models import ORT, faulty, hide_library, parse, picky, request_for, save, write_model, write_old

from assay.models.flow.artifact_builder import ArtifactBuilder
from assay.models.flow.cases import Cases, is_quantized
from assay.models.flow.check import check_model
from assay.models.graph.onnx_library import find_least_ir
from assay.models.graph.tensorfile import load_array
from assay.models.values.model import WRONG, InputChoice, ModelReport, Step, StepEnding, StepOutcome, Target, Tolerances
from assay.models.values.tensors import Tolerance
from assay.values.verdict import VerdictKind

UNOPTIMIZED = Target("ort:unoptimized", "ort", {"optimize": "none"})
OPENVINO = Target("openvino", "openvino")
EXPOSED = Target("exposed", "picky_backend:Exposed")
OFF = faulty("scaled", "sum")
LETTERS = {"P": VerdictKind.PASS, "F": VerdictKind.FAIL, "E": VerdictKind.ERROR, "I": VerdictKind.INCONCLUSIVE}

Check = Callable[..., ModelReport]


@pytest.fixture
def check(shared: ArtifactBuilder, tmp_path: Path) -> Check:
    """`check(model, target, …)`; tensors that differ are in `keep`. With `builder`, the test has a store of its own."""
    keep = str(tmp_path / "keep")
    return lambda model, target, **further: check_model(request_for(model, target, **further), shared, keep)


def kinds(report: ModelReport) -> dict[str, VerdictKind]:
    return {
        case.name.removeprefix(f"{report.stem}_").removeprefix("layer_"): case.verdict.kind for case in report.cases
    }


def scaled(at: str, by: float) -> Target:
    return Target("scaled", "picky_backend:Scaled", {"at": at, "by": by})


BRANCHES = """then_branch = t () => (float[2] p) { p = Relu(x) }, else_branch = e () => (float[2] q) { q = Neg(x) }"""
INSIDE = f"""then_branch = o () => (float[2] r) {{ r = If (c) < {BRANCHES} > }},
    else_branch = u () => (float[2] s) {{ s = Exp(x) }}"""
LOOP = """y = Loop (m, , x) <body = b (int64 i, bool go, float[2] v) => (bool again, float[2] w)
    { again = Identity(go)  w = Relu(v) }>"""
IDLE, HIDDEN = "computed in no sample, and so not judged: ", "not known which branches inside are computed: "


@pytest.mark.parametrize(
    ("body", "notes"),
    [
        (f"m = ReduceMax <keepdims = 0> (x)  n = Sub (m, m)  c = Equal (n, m)  y = If (c) < {BRANCHES} >",
         [f"{IDLE}then_branch of If_3"]),
        (f"c = Constant <value = bool {{0}}> ()  y = If (c) < {BRANCHES} >", [f"{IDLE}then_branch of If_0"]),
        (f"c = Constant <value = bool {{1}}> ()  y = If (c) < {INSIDE} >",
         [f"{IDLE}else_branch of If_0", f"{HIDDEN}If_0"]),
        (f"m = Constant <value = int64 {{0}}> ()  {LOOP}", [f"{IDLE}body of Loop_0"]),
        (f"m = Constant <value = int64 {{2}}> ()  {LOOP}", []),
    ],
    ids=["computed", "constant", "nested", "loop of none", "loop"],
)  # fmt: skip
def test_what_no_sample_enters_is_named(check: Check, tmp_path: Path, body: str, notes: list[str]) -> None:
    model = save(tmp_path, f"g (float[2] x) => (float[2] y) {{ {body} }}")
    report = check(model, UNOPTIMIZED)
    assert report.verdict.kind == "PASS"
    assert [note for note in report.notes if note.startswith((IDLE, HIDDEN))] == notes
    if len(report.cases) > 2:
        assert check(model, UNOPTIMIZED, only=("Sub_1",)).notes == ()


def test_a_branch_that_a_sample_takes_is_not_named(check: Check, tmp_path: Path) -> None:
    model = save(tmp_path, f"g (float[2] x, bool c) => (float[2] y) {{ y = If (c) < {BRANCHES} > }}")
    files = [str(tmp_path / f"{number}.npz") for number in range(2)]
    for number, file in enumerate(files):
        np.savez(file, x=np.ones(2, "float32"), c=np.array(bool(number)))
    both, one = (check(model, UNOPTIMIZED, inputs=InputChoice(files=each)) for each in (tuple(files), tuple(files[:1])))
    assert both.samples == 2
    assert not any(note.startswith(IDLE) for note in both.notes)
    assert f"{IDLE}then_branch of If_0" in one.notes


def test_both_names_of_the_domain_of_onnx_are_one(check: Check, tmp_path: Path) -> None:
    """The file as it is goes to the target; onnxruntime knows both names in the outermost graph only."""
    model = parse(f"g (float[2] x, bool c) => (float[2] y) {{ r = Relu(x)  i = If (c) < {BRANCHES} >  y = Add(r, i) }}")
    for node in model.graph.node:
        node.domain = "ai.onnx"
    for versions in ([("", 17)], [("ai.onnx", 17)], [("ai.onnx", 17), ("", 17)]):
        del model.opset_import[:]
        model.opset_import.extend(helper.make_opsetid(*each) for each in versions)
        assert set(kinds(check(save(tmp_path, model), UNOPTIMIZED)).values()) == {VerdictKind.PASS}


@pytest.mark.parametrize(
    ("target", "further", "letters", "first", "said"),
    [
        pytest.param(OFF, {}, "PFPF", "Add_1", "", id="the wrong layer, others are right by themselves"),
        pytest.param(OFF, {"tolerances": Tolerances(by_op={"Add": Tolerance(rel=0.5)})}, "PPPF", "", "", id="a bound"),
        pytest.param(
            OFF, {"tolerances": Tolerances(by_op={"MatMul": Tolerance(rel=0.5)})}, "PFPF", "Add_1", "",
            id="a bound for another operator",
        ),
        pytest.param(
            OFF, {"voter": OFF}, "PFPF", "Add_1", "faulty computes Add (opset 17) wrong: off by 0.01",
            id="a voter that computes the operator wrong",
        ),
        pytest.param(OFF, {"voter": UNOPTIMIZED}, "PFPF", "Add_1", "", id="a voter that agrees with the reference"),
        pytest.param(OFF, {"voter": picky(refuses="Add")}, "PFPF", "Add_1", "", id="a voter that cannot compute it"),
        pytest.param(picky(refuses="Add"), {}, "PEPE", "Add_1", "", id="a target without the operator"),
        pytest.param(
            picky(refuses="Relu", refuses_alone="MatMul"), {}, "EPEE", "Relu_2",
            "MatMul_0 (compile unsupported): fails in isolation in another way", id="fails as the model does",
        ),
        pytest.param(
            Target("fusing", "picky_backend:Fusing"), {}, "PPPF", "", "suspect a fusion", id="only the whole shows it"
        ),
        pytest.param(
            picky(refuses_among="Add"), {}, "PPPE", "",
            "(compile unsupported: no Add among others) although every layer is correct, in isolation "
            "(with intermediate outputs the model fails)", id="only the whole is refused",
        ),
        pytest.param(
            EXPOSED, {}, "PPPP", "Add_1", "without intermediate outputs the model is correct",
            id="only looking inside shows it",
        ),
    ],
)  # fmt: skip
def test_a_chain(
    chain: Path, check: Check, target: Target, further: dict[str, Any], letters: str, first: str, said: str
) -> None:
    report = check(chain, target, **further)
    names = ("MatMul_0", "Add_1", "Relu_2", "full_model")
    assert kinds(report) == dict(zip(names, [LETTERS[letter] for letter in letters], strict=True))
    assert (report.first_wrong or "").removeprefix("chain_layer_") == first
    assert any(said in text for text in (*report.notes, *(each.message for each in report.findings), ""))
    worst = "E" if "E" in letters else "F" if "F" in letters else "I"  # a fault of the inside alone is not decided
    assert report.verdict.kind is LETTERS[worst]


def test_a_right_target_passes_with_numbers(chain: Path, tmp_path: Path, shared: ArtifactBuilder) -> None:
    told: list[str] = []
    request = request_for(
        chain, UNOPTIMIZED, folder=str(tmp_path), notes=("by the way",), inputs=InputChoice(samples=2)
    )
    report = check_model(request, shared, str(tmp_path / "keep"), lambda case: told.append(case.name))
    assert report.verdict.kind is VerdictKind.PASS
    assert set(kinds(report).values()) == {VerdictKind.PASS}
    assert report.verdict.comparisons == 2 * 4 * 4, "each element of each case, in every sample"
    assert report.first_wrong is None
    assert all(case.local and case.accumulated for case in report.cases[:-1])
    assert report.tools
    assert (report.folder, report.notes) == (str(tmp_path), ("by the way",))
    assert told == ["chain_full_model", "chain_layer_MatMul_0", "chain_layer_Add_1", "chain_layer_Relu_2"]
    assert not (tmp_path / "keep").exists()


def test_tensors_that_differ_are_kept(chain: Path, check: Check) -> None:
    report = check(chain, OFF)
    relu = report.cases[2]
    assert relu.local[0].error < 1e-6 < relu.accumulated[0].error  # fed with wrong values it gives wrong ones
    ((expected, actual),) = report.cases[1].diffs
    assert np.allclose(load_array(expected) * 1.01, load_array(actual), rtol=1e-5)
    inside = check(chain, EXPOSED)
    ((expected, actual),) = inside.cases[1].diffs
    assert inside.confirmed is False
    assert np.load(actual) == pytest.approx(np.load(expected) * 1.05), "those of the inside, where it is right alone"
    assert not inside.cases[0].diffs


def test_of_the_inside_no_more_is_kept_than_is_sensible(
    chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Check
) -> None:
    """The first always is: behind it everything is wrong."""
    monkeypatch.setattr("assay.models.flow.check._MOST_BYTES", 1)
    check(chain, faulty("scaled", "product"))
    assert len(list((tmp_path / "keep" / "chain_marked").iterdir())) == 1


def test_a_model_without_layers_passes(check: Check, tmp_path: Path) -> None:
    model = write_model(tmp_path / "through.onnx", [], {"x": [4]}, {"x": [4]})
    assert check(model, UNOPTIMIZED).verdict.kind is VerdictKind.PASS


@pytest.mark.parametrize(("way", "ending"), [("abort", StepEnding.CRASH), ("hang_alone", StepEnding.TIMEOUT)])
def test_a_target_that_dies_or_hangs_costs_its_case_only(
    chain: Path, builder: ArtifactBuilder, way: str, ending: StepEnding, check: Check
) -> None:
    builder.limits = replace(builder.limits, compile_s=1.0)
    report = check(chain, picky(**{way: "Relu"}), only=("MatMul_0", "Relu_2", "Add_1"))
    endings = [case.failed_step.ending if case.failed_step else StepEnding.OK for case in report.cases]
    assert endings == [StepEnding.OK, StepEnding.OK, ending]


def test_a_reference_that_fails_gives_errors_and_never_a_pass(
    chain: Path, tmp_path: Path, shared: ArtifactBuilder
) -> None:
    request = replace(request_for(chain), reference=picky(refuses="Add"))
    report = check_model(request, shared, str(tmp_path / "keep"))
    assert kinds(report) == {"reference": VerdictKind.ERROR}, "and not a row for each that was not compared"
    assert (
        "the reference picky cannot compute this model: compile unsupported: no Add here" in report.findings[0].message
    )
    assert report.cases[0].outcome == "compile unsupported"
    assert "4 cases not compared: picky has no result" in report.notes


def test_a_voter_is_measured_by_the_reference_where_there_is_no_formula(tmp_path: Path, check: Check) -> None:
    model = save(tmp_path, "g (float[3,4] x) => (float[3,4] y) { y = Elu(x) }")
    report = check(model, scaled("y", 1.01), voter=scaled("y", 1.02))
    assert kinds(report)["Elu_0"] is VerdictKind.FAIL
    assert any("scaled computes Elu (opset 17) wrong: off by 0.02 of the scale from ort" in x for x in report.notes)


def test_a_reference_that_is_wrong_itself_is_named(tmp_path: Path, shared: ArtifactBuilder) -> None:
    """onnx's evaluator as the reference, onnxruntime votes: a right target is not blamed."""
    request = request_for(write_old(tmp_path), UNOPTIMIZED, voter=ORT)
    request = replace(request, reference=Target("reference", "reference"))
    report = check_model(request, shared, str(tmp_path / "keep"))
    assert kinds(report)["BatchNormalization_1"] is VerdictKind.INCONCLUSIVE
    assert any("the reference reference computes BatchNormalization (opset 9) wrong" in note for note in report.notes)


def test_a_voter_that_is_not_installed_has_no_vote_and_a_note(
    chain: Path, tmp_path: Path, new_builder: ArtifactBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_library("openvino", tmp_path, monkeypatch)
    report = check_model(request_for(chain, OFF, voter=OPENVINO, only=("Add_1",)), new_builder, str(tmp_path / "keep"))
    assert kinds(report)["Add_1"] is VerdictKind.FAIL
    assert [note for note in report.notes if "has no vote" in note and "pip install 'assay[openvino]'" in note]


SLOW = pytest.mark.services("backends")  # OpenVINO compiles a dozen layers: `make test` asks for a short model


@pytest.mark.parametrize(
    "name", ["matmul", *(pytest.param(name, marks=SLOW) for name in ("cnn", "attention", "quantised"))]
)
def test_the_examples_pass_on_another_runtime(name: str, built: Path, check: Check) -> None:
    report = check(built / f"example-{name}.onnx", OPENVINO, voter=ORT)
    assert report.verdict.kind is VerdictKind.PASS, [f.message for f in report.verdict.findings]


def test_a_quantised_model_may_be_a_few_steps_off_as_a_whole_and_no_layer_may(built: Path, check: Check) -> None:
    model = built / "example-quantised.onnx"
    last = [node for node in onnx.load(model).graph.node if node.op_type != "Constant"][-1].output[0]
    report = check(model, faulty("scaled", last))  # one per cent: less than a step
    whole, layers = report.cases[-1], report.cases[:-1]
    assert all(each.tolerance.quantized for each in whole.local)
    assert all(each.tolerance.quantized for case in layers for each in case.accumulated)
    assert not any(each.tolerance.quantized for case in layers for each in case.local)
    assert whole.verdict.kind is VerdictKind.PASS
    assert report.verdict.kind is VerdictKind.FAIL
    assert report.first_wrong == layers[-1].name
    assert set(kinds(report).values()) - {VerdictKind.PASS} == {VerdictKind.FAIL}
    tight = Tolerances(Tolerance(rel=0.0, abs=0.0, int_abs=0))
    asked = check(model, faulty("scaled", last), tolerances=tight, only=("full_model",))
    assert asked.verdict.kind is VerdictKind.FAIL, "a user's own bound holds"


@pytest.mark.parametrize(
    ("op", "expected"),
    [("QuantizeLinear", True), ("DynamicQuantizeLinear", True), ("QLinearConv", True), ("DequantizeLinear", False)],
)
def test_models_are_known_to_be_quantised_by_their_nodes(op: str, expected: bool) -> None:
    plain, node = helper.make_node("Relu", ["x"], ["y"]), helper.make_node(op, ["x"], ["y"])
    branches = [helper.make_graph(nodes, "b", [], []) for nodes in ([node], [])]
    inside = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    for nodes in ([plain, node], [inside]):
        assert is_quantized(helper.make_model(helper.make_graph(nodes, "g", [], []))) is expected


def test_what_a_check_leaves_in_the_store_and_beside_it(
    chain: Path, tmp_path: Path, builder: ArtifactBuilder, check: Check
) -> None:
    """Dumps are the target's: the reference has computed it before, and is not asked again for their sake."""
    check(chain, UNOPTIMIZED)
    used = {
        (entry.parts["case"], entry.parts["options"].get("optimize"))
        for entry in builder.store.load_entries()
        if entry.in_use
    }
    assert used == {("chain_full_model", None), ("chain_activations", None)}, "the reference's values"
    names = {path.name for path in Path(builder.scratch).iterdir()}
    assert not any(name.startswith(("MatMul_0", "Add_1", "Relu_2")) for name in names), "copies for a layer"
    before = len(builder.slices)
    check(chain, UNOPTIMIZED, run_profile_dir=str(tmp_path / "profiles"))
    assert {each.track[0] for each in builder.slices[before:]} == {"ort:unoptimized"}
    layers = [f"chain_layer_{name}" for name in ("Add_1", "MatMul_0", "Relu_2")]
    assert sorted(path.name for path in (tmp_path / "profiles").iterdir()) == [
        "chain_full_model", "chain_full_model_closed", *layers, "chain_marked",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("sim", {}, True),
        ("torq-sim", {}, True),
        ("Simulator", {}, True),
        ("simple", {}, False),
        ("torq", {"hardware": "sim"}, True),
        ("sim", {"hardware": "astra"}, False),  # what it says of its hardware goes before its name
    ],
)
def test_a_simulator_is_known_by_its_hardware_or_its_name(name: str, options: dict[str, str], expected: bool) -> None:
    assert Target(name, "command", options).is_simulated is expected


def test_a_simulator_s_times_are_estimates(chain: Path, check: Check) -> None:
    assert check(chain, Target("sim", "ort"), only=("Add_1",)).is_estimate
    assert not check(chain, UNOPTIMIZED, only=("Add_1",)).is_estimate


def test_layers_that_were_not_tried_are_not_called_right(tmp_path: Path, check: Check) -> None:
    body = "{ a, b = Split<axis = 0>(x)  q = SequenceConstruct(a, b)  y = ConcatFromSequence<axis = 0>(q) }"
    model = save(tmp_path, f"g (float[4,4] x) => (float[4,4] y) {body}", opset=13)
    report = check(model, picky(refuses="ConcatFromSequence"))
    assert report.verdict.kind is VerdictKind.ERROR
    (finding,) = report.findings
    assert finding.message == (
        "the full model is wrong (compile unsupported: no ConcatFromSequence here); SequenceConstruct_1 and "
        "ConcatFromSequence_2 could not be judged alone, and its output names ConcatFromSequence"
    )


@pytest.mark.parametrize(
    ("target", "only", "kind", "first", "unseen"),
    [
        (picky(refuses="Relu"), ("Relu_2",), VerdictKind.ERROR, "chain_layer_Relu_2", 2),
        (picky(refuses="Relu"), (), VerdictKind.ERROR, "chain_layer_Relu_2", 0),
        (faulty("scaled", "y"), ("Relu_2",), VerdictKind.FAIL, "chain_layer_Relu_2", 0),  # the others are seen inside
        (OFF, ("Relu_2",), VerdictKind.PASS, None, 0),  # the wrong one was not requested
    ],
)
def test_layers_that_were_not_requested_are_counted(
    chain: Path, check: Check, target: Target, only: tuple[str, ...], kind: VerdictKind, first: str, unseen: int
) -> None:
    report = check(chain, target, only=only)
    assert (report.verdict.kind, report.first_wrong, report.unseen) == (kind, first, unseen)
    if kind is VerdictKind.PASS:
        assert report.notes == ("Add_1, which was not requested, is the first to be wrong inside the model",)


@pytest.mark.parametrize(
    ("message", "opset", "expected"),
    [
        ("no implementation of Split for these types", 11, "convert {model} --opset 17"),  # 13 made it another one
        ("no implementation of ConcatFromSequence for these types", 11, ""),  # unchanged since 11
        ("something else is wrong", 11, "convert {model} --opset 17"),
        ("something else is wrong", 17, ""),
        ("something else is wrong", 18, ""),
        ("no implementation of Split for these types", 18, ""),
        ("Opset 18 is under development", 18, "convert {model} --opset 17"),
    ],
)
def test_another_opset_is_offered_where_it_may_help(
    message: str, opset: int, expected: str, tmp_path: Path, shared: ArtifactBuilder
) -> None:
    (tmp_path / "my net").mkdir()
    model = save(tmp_path / "my net", "g (float[4] x) => (float[4] y) { y = Abs(x) }", opset=opset)
    hint = "convert the model: assay model convert MODEL --opset 17"
    outcome = StepOutcome(Step.COMPILE, StepEnding.UNSUPPORTED, message, hint=hint)
    found = Cases(request_for(model), shared).fix_hint(outcome).hint
    assert found == (f"convert the model: assay model {expected}".format(model=f"'{model}'") if expected else "")


def write_classifier(folder: Path) -> Path:
    """x → MatMul → `logits` → Softmax → `p`; both come out."""
    w = np.random.default_rng(4).standard_normal((4, 6)).astype(np.float32)
    body = "g (float[2,4] x) => (float[2,6] p, float[2,6] logits) { logits = MatMul(x, w)  p = Softmax(logits) }"
    return save(folder, body, weights={"w": w})


def test_an_output_of_the_whole_has_the_bound_of_its_operator(tmp_path: Path, check: Check) -> None:
    """A Softmax may be 0.0015 off in the whole; alone it is as near as correct runtimes are."""
    model = write_classifier(tmp_path)
    report = check(model, scaled("p", 1.001))
    assert kinds(report) == {
        "MatMul_0": VerdictKind.PASS, "Softmax_1": VerdictKind.FAIL, "full_model": VerdictKind.PASS,
    }  # fmt: skip
    assert [each.tolerance.rel for each in report.cases[-1].local] == pytest.approx([1.5e-3, 3e-4])
    assert kinds(check(model, scaled("p", 1.01), only=("full_model",)))["full_model"] is VerdictKind.FAIL
    near = check(model, scaled("p", 1.00003), only=("Softmax_1",))
    assert near.verdict.kind is VerdictKind.CHANGED, "between noise and the bound"
    (finding,) = near.cases[0].verdict.findings
    assert finding.message.startswith("12 of 12 (100%) are off by up to 3")
    assert "of the scale; correct runtimes differ by at most" in finding.message


def test_errors_that_add_up_are_not_called_a_fusion(tmp_path: Path, check: Check) -> None:
    wide = Tolerances(by_op={"MatMul": Tolerance(rel=0.05)})
    (finding,) = check(write_classifier(tmp_path), scaled("logits", 1.02), tolerances=wide).findings
    assert finding.message == (
        "the full model is wrong although every layer is correct in isolation: errors accumulate"
    )


def test_a_product_of_small_numbers_with_the_wrong_sign_is_not_right(tmp_path: Path, check: Check) -> None:
    """All elements are some 4e-8; rounding of what goes in could make 1e-14."""
    weights = {"w": (np.random.default_rng(1).standard_normal((4, 4)) * 4e-8).astype(np.float32)}
    body = "g (float[3,4] x) => (float[3,4] y) { product = MatMul(x, w)  y = Identity(product) }"
    model = save(tmp_path, body, weights=weights)
    report = check(model, scaled("product", -1.0))
    assert report.first_wrong == "m_layer_MatMul_0"
    assert kinds(report)["full_model"] is VerdictKind.FAIL
    assert report.cases[0].local[0].cosine == pytest.approx(-1)
    assert check(model, UNOPTIMIZED).verdict.kind is VerdictKind.PASS


def test_a_whole_model_that_ends_below_what_rounding_can_do_is_not_called_right(tmp_path: Path, check: Check) -> None:
    """As a detector that finds nothing: the sigmoid of about -17, computed from numbers around one."""
    weights = {"w": np.float32([[0.3, 0.2], [0.1, -0.2]]), "b": np.float32([-17.0, -18.0])}
    body = "g (float[16,2] x) => (float[16,2] y) { z = Gemm(x, w, b)  y = Sigmoid(z) }"
    report = check(save(tmp_path, body, weights=weights), scaled("y", 3.0))
    assert kinds(report) == {
        "Gemm_0": VerdictKind.PASS, "Sigmoid_1": VerdictKind.INCONCLUSIVE, "full_model": VerdictKind.INCONCLUSIVE,
    }  # fmt: skip
    assert report.cases[-1].local[0].error == pytest.approx(2, rel=0.01)


def test_terms_that_cancel_do_not_fail_a_right_target(tmp_path: Path, check: Check) -> None:
    """97.3 times three in another order of additions, minus itself: rounding is all that is left."""
    body = "{ two = Add(x, x)  three = Add(two, x)  times = Mul(x, k)  rest = Sub(three, times)  y = Add(rest, x) }"
    model = save(tmp_path, f"g (float[4,4] x) => (float[4,4] y) <float k = {{3.0}}> {body}")
    inputs = InputChoice(ranges={"x": (90.0, 110.0)})
    for by, first in ((1 + 2.0**-23, None), (1.001, "m_layer_Mul_2")):
        report = check(model, scaled("times", by), inputs=inputs)
        assert report.first_wrong == first
        assert (VerdictKind.FAIL in kinds(report).values()) is bool(first)


def write_shapely(folder: Path) -> Path:
    """x → Abs, and twice Shape → Gather → Concat → Reshape."""
    body, last = "a = Abs(x)", "a"
    for turn in range(2):
        body += f"""
            shape{turn} = Shape({last})
            rows{turn} = Gather<axis = 0>(shape{turn}, first)
            wanted{turn} = Concat<axis = 0>(rows{turn}, four)
            r{turn} = Reshape({last}, wanted{turn})"""
        last = f"r{turn}"
    constants = "<int64[1] first = {0}, int64[1] four = {4}>"
    return save(folder, f"g (float[rows,4] x) => (float[rows,4] r1) {constants} {{ {body} }}")


def test_layers_of_shapes_and_constants_are_not_computed_alone(tmp_path: Path, check: Check) -> None:
    model = write_shapely(tmp_path)
    report = check(model, UNOPTIMIZED)
    assert report.verdict.kind is VerdictKind.PASS
    outcomes = {case.name.rpartition("layer_")[2]: (case.outcome, bool(case.steps)) for case in report.cases}
    assert outcomes["Abs_0"] == outcomes["Reshape_4"] == ("ok", True)
    assert [name for name, found in outcomes.items() if found == ("trivial", False)] == [
        *("Shape_1", "Gather_2", "Concat_3", "Shape_5", "Gather_6", "Concat_7")
    ]
    assert any("6 layers compute shapes and constants only" in note for note in report.notes)
    asked = check(model, UNOPTIMIZED, only=("Gather_*",))
    assert [(case.outcome, bool(case.steps)) for case in asked.cases] == [("ok", True)] * 2


def test_where_the_inside_is_not_known_one_of_a_kind_is_computed(tmp_path: Path, check: Check) -> None:
    report = check(write_shapely(tmp_path), picky(refuses_among="Reshape", refuses_alone="Abs"))
    outcomes = {case.name.rpartition("layer_")[2]: case.outcome for case in report.cases}
    assert [outcomes[name] for name in ("Shape_1", "Gather_2", "Concat_3")] == ["ok"] * 3
    assert [outcomes[name] for name in ("Shape_5", "Gather_6", "Concat_7")] == ["trivial"] * 3
    assert "the same operation as Gather_2, which is correct" in report.cases[6].skipped


def test_a_fault_in_a_layer_of_shapes_is_found(tmp_path: Path, check: Check) -> None:
    report = check(write_shapely(tmp_path), Target("off", "picky_backend:WrongShape", {}))
    assert report.verdict.kind in WRONG
    wrong = [case.name for case in report.cases if case.layer and case.verdict.kind in WRONG]
    assert wrong == ["m_layer_Shape_5"]  # the model fails at Reshape_8, and is not seen inside


def test_what_was_invented_is_reported_when_the_reference_cannot_compute_with_it(tmp_path: Path, check: Check) -> None:
    body = "<int64[2] wanted = {2, 35}> { t = Transpose<perm = [1, 0]>(x)  y = Reshape(t, wanted) }"
    loaded = parse(f"g (float[rows,length] x) => (float[2,35] y) {body}")
    loaded.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows; all"
    model = save(tmp_path, loaded)
    hint = check(model, UNOPTIMIZED).cases[0].steps[0].hint
    assert "invented dimensions rows; all=1, length=16 and values of x from -1 to 1" in hint
    assert hint.endswith("--dim 'rows; all=N' --dim length=N --range x=LOW:HIGH --input x=FILE.npy")
    choice = InputChoice(dims={"rows; all": 2, "length": 35})
    assert check(model, UNOPTIMIZED, inputs=choice).verdict.kind is VerdictKind.PASS
    invalid = onnx.load(model)
    invalid.graph.node[1].input[0] = "nowhere"
    failed = check(save(tmp_path, invalid), UNOPTIMIZED).cases[0].steps[0]
    assert (failed.step, failed.hint) == (Step.COMPILE, "")  # no input helps


def test_an_ir_version_of_the_future_is_lowered_where_nothing_of_it_is_used(
    chain: Path, tmp_path: Path, check: Check
) -> None:
    proto = parse("g (float[4] x) => (float[4] y) { y = Abs(x) }")
    proto.ir_version = 99
    report = check(save(tmp_path, proto), UNOPTIMIZED)
    assert report.verdict.kind is VerdictKind.PASS
    assert any("IR version 99 was lowered to " in note for note in report.notes)
    assert check(chain, UNOPTIMIZED, only=("Add_1",)).notes == (), "each check has its own notes"


def test_the_ir_version_that_a_model_needs_is_that_of_its_newest_operators_and_fields() -> None:
    model = helper.make_model(helper.make_graph([], "g", [], []), opset_imports=[helper.make_opsetid("", 7)])
    assert find_least_ir(model) == 3
    model.functions.append(helper.make_function("own", "F", [], [], [], [helper.make_opsetid("", 7)]))
    assert find_least_ir(model) == 8, "models have functions since then"
    model.functions[0].opset_import[0].version = 23  # which takes FLOAT4E2M1
    assert find_least_ir(model) == 11


def test_a_target_that_rounds_otherwise_everywhere_is_not_passed(built: Path, check: Check) -> None:
    """floor(x + 0.4) in every quantiser: inside, and as a whole, this is within a few steps."""
    target = Target("late", "faulty:FaultyBackend", {"fault": {"kind": "rounds-late", "at": "*"}, "optimize": "none"})
    report = check(built / "example-quantised.onnx", target)
    layers = [case for case in report.cases if "QuantizeLinear" in case.name and "Dequantize" not in case.name]
    wrong = [case for case in layers if case.local and case.local[0].error > 0]
    assert wrong
    assert all(case.verdict.kind in (VerdictKind.FAIL, VerdictKind.CHANGED) for case in wrong)
    assert report.verdict.kind is VerdictKind.FAIL


def test_a_layer_normalisation_with_another_epsilon_is_not_passed(tmp_path: Path, check: Check) -> None:
    weights = {"g": np.ones(64, np.float32), "b": np.zeros(64, np.float32)}
    model = save(tmp_path, "n (float[8,64] x) => (float[8,64] y) { y = LayerNormalization(x, g, b) }", weights=weights)
    report = check(model, faulty("epsilon", "y"))
    assert report.cases[0].verdict.kind in (VerdictKind.CHANGED, VerdictKind.FAIL)
    assert check(model, OPENVINO, only=("LayerNormalization_0",)).verdict.kind is VerdictKind.PASS


def test_what_a_random_operator_draws_is_inconclusive(tmp_path: Path, check: Check) -> None:
    body = "{ noise = RandomNormalLike(x)  sum = Add(x, noise)  y = Relu(sum) }"
    report = check(save(tmp_path, f"g (float[4,16] x) => (float[4,16] y) {body}"), UNOPTIMIZED)
    assert kinds(report) == {
        "RandomNormalLike_0": VerdictKind.INCONCLUSIVE, "Add_1": VerdictKind.PASS, "Relu_2": VerdictKind.PASS,
        "full_model": VerdictKind.INCONCLUSIVE,
    }  # fmt: skip
    assert "it depends on RandomNormalLike" in report.cases[-1].verdict.findings[0].message


@pytest.mark.parametrize("kind", [onnx.TensorProto.FLOAT8E4M3FN, onnx.TensorProto.BFLOAT16])
def test_behind_a_cast_the_steps_of_the_coarser_type_count(tmp_path: Path, kind: int, check: Check) -> None:
    """What is 0.02% off before the cast is a whole step off behind it, in a few elements."""
    body = f"<float k = {{0.7}}> {{ m = Mul(x, k)  c = Cast<to = {kind}>(m)  y = Cast<to = 1>(c) }}"
    model = save(tmp_path, f"g (float[40,50] x) => (float[40,50] y) {body}", opset=19)
    report = check(model, scaled("m", 1.0002), tolerances=Tolerances(by_op={"Mul": Tolerance(rel=1e-3)}))
    assert kinds(report)["full_model"] is VerdictKind.PASS
    assert report.cases[-1].local[0].error > 3e-3


def test_a_type_that_the_reference_lacks_names_one_that_has_it(tmp_path: Path, check: Check) -> None:
    report = check(save(tmp_path, "g (bfloat16[4,4] x) => (bfloat16[4,4] y) { y = MatMul(x, x) }"), OPENVINO)
    assert report.verdict.kind is VerdictKind.ERROR
    failed = report.cases[0].failed_step
    assert failed is not None
    assert failed.hint == "reference computes this model: add --reference reference"


def test_a_correct_runtime_passes_in_steps_of_sixteen_bits(tmp_path: Path, check: Check) -> None:
    """OpenVINO puts some of 8,192 elements on the other side of a tie: inside the model, and at its end, as in 8 bits."""
    rng = np.random.default_rng(1)
    weights = {"w": rng.standard_normal((32, 32)).astype(np.float32), "s": np.float32(0.0015), "z": np.uint16(30000)}
    body = "{ m = MatMul(x, w)  q = QuantizeLinear(m, s, z)  y = DequantizeLinear(q, s, z) }"
    model = save(tmp_path, f"g (float[1,8,32,32] x) => (float[1,8,32,32] y) {body}", weights=weights, opset=21)
    report = check(model, OPENVINO)
    assert {each.name: each.error for case in report.cases for each in case.accumulated}["q"] > 0
    assert report.first_wrong is None
    assert report.cases[-1].verdict.kind is VerdictKind.PASS, "the full model"
