"""The smallest model that still fails in the same way, with all samples, seen twice."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.example_models import (
    LARGE,
    ORT,
    faulty,
    off_where_large,
    parse,
    picky,
    request_for,
    save,
    write_coarse,
    write_long_chain,
    write_old,
)

from assay.errors import UsageError
from assay.models.flow.artifact_builder import ArtifactBuilder
from assay.models.flow.bisect import LayerSearch, bisect_model
from assay.models.flow.cases import Cases
from assay.models.flow.check import Examination, check_model
from assay.models.flow.discovery import KnownNames
from assay.models.flow.reduce import _Trials, reduce_failure, render_again
from assay.models.graph.tensorfile import load_tensors
from assay.models.values.model import CaseReport, InputChoice, ModelReport, Signature, Target, Tolerances
from assay.models.values.tensors import Tolerance
from assay.values.verdict import VerdictKind

FUSING = Target("fusing", "picky_backend:Fusing")


Reduce = Callable[..., ModelReport]


@pytest.fixture
def reduce(shared: ArtifactBuilder, tmp_path: Path) -> Reduce:
    """`reduce(model, target, …)`; the result is `small.onnx`. With `builder`, the test has a store of its own."""
    output = str(tmp_path / "small.onnx")
    return lambda model, target, **further: reduce_failure(
        request_for(model, target, goal="reduce", output=output, **further), shared, str(tmp_path / "keep")
    )


def ops_of(path: Path) -> list[str]:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize(
    ("opset", "kind", "at", "label"),
    [(9, "attribute", "normal", "BatchNormalization_1"), (13, "weights", "normal", "BatchNormalization_1")],
)
def test_a_voter_that_is_wrong_excuses_no_fault_in_any_search(
    opset: int, kind: str, at: str, label: str, tmp_path: Path, shared: ArtifactBuilder
) -> None:
    """onnx's evaluator computes BatchNormalization of opset 13 and before off by some tenths."""
    model, target, voter = write_old(tmp_path, opset), faulty(kind, at), Target("reference", "reference")
    for search in (check_model, bisect_model, reduce_failure):
        request = request_for(model, target, voter=voter, output=str(tmp_path / "small.onnx"))
        report = search(request, shared, str(tmp_path / "keep"))
        found = report.verdict.kind, report.first_wrong, report.confirmed
        assert found == (VerdictKind.FAIL, f"old_layer_{label}", True), search


def test_a_vote_that_counts_in_a_check_counts_in_every_search(
    chain: Path, tmp_path: Path, shared: ArtifactBuilder
) -> None:
    target, voter = off_where_large(), off_where_large("other")
    for search in (check_model, bisect_model, reduce_failure):
        report = search(request_for(chain, target, voter=voter, inputs=LARGE), shared, str(tmp_path / "keep"))
        assert (report.verdict.kind, report.first_wrong) == (VerdictKind.INCONCLUSIVE, None), search


NEARLY = Tolerances(by_tensor={"p1": Tolerance(rel=3e-4)})


def nearly_right(**fault: str) -> Target:
    """The first product is 0.028% off, which NEARLY allows; a few elements come out a step further for it."""
    options: dict[str, Any] = {"at": "p1", "by": 1.00028}
    if fault:
        return Target("nearly", "picky_backend:ScaledAndFaulty", {**options, "fault": fault})
    return Target("nearly", "picky_backend:Scaled", options)


@pytest.mark.parametrize("search", [check_model, bisect_model, reduce_failure])
def test_rounding_that_moves_a_step_is_not_a_fault(search: Any, tmp_path: Path, shared: ArtifactBuilder) -> None:
    request = request_for(write_coarse(tmp_path / "coarse.onnx"), nearly_right(), tolerances=NEARLY)
    report = search(request, shared, str(tmp_path / "keep"))
    assert report.verdict.kind is VerdictKind.PASS, [each.message for each in report.verdict.findings]
    assert report.first_wrong is None


@pytest.mark.parametrize(
    ("search", "at", "label"),
    [
        (check_model, "p2", "MatMul_3"),
        (bisect_model, "d2", "DequantizeLinear_5"),
        (reduce_failure, "d2", "DequantizeLinear_5"),
        (reduce_failure, "p3", "MatMul_6"),
    ],
)
def test_a_fault_behind_steps_that_moved_is_named(
    search: Any, at: str, label: str, tmp_path: Path, shared: ArtifactBuilder
) -> None:
    target = nearly_right(kind="scaled", at=at)
    output = str(tmp_path / "small.onnx")
    request = request_for(write_coarse(tmp_path / "coarse.onnx"), target, output=output, tolerances=NEARLY)
    report = search(request, shared, str(tmp_path / "keep"))
    found = report.verdict.kind, report.first_wrong, report.confirmed
    assert found == (VerdictKind.FAIL, f"coarse_layer_{label}", True)


def test_a_model_that_is_right_has_nothing_to_reduce_and_passes(chain: Path, tmp_path: Path, reduce: Reduce) -> None:
    report = reduce(chain, ORT)
    assert report.verdict.kind is VerdictKind.PASS
    assert report.exit_code == 0
    assert any("there is nothing to reduce" in note for note in report.notes)
    assert not (tmp_path / "small.onnx").exists()


def test_one_wrong_layer_with_the_inputs_that_it_sees_is_all_that_is_left(tmp_path: Path, reduce: Reduce) -> None:
    np.save(tmp_path / "x.npy", np.array([[0.5, -0.25, 1.0, 2.0]], np.float32))
    model = write_long_chain(tmp_path / "long.onnx", 8)
    report = reduce(model, faulty("scaled", "t3"), inputs=InputChoice(files=(str(tmp_path / "x.npy"),)))
    assert ops_of(tmp_path / "small.onnx") == ["Tanh"]
    assert (report.verdict.kind, report.first_wrong) == (VerdictKind.FAIL, "long_layer_Tanh_2")
    assert report.notes[0] == "8 nodes → 1: Tanh"
    assert "the failure: the outputs differ" in report.notes
    fed = load_tensors(tmp_path / "small_inputs")
    assert fed["t2"].tolist() == [[-0.5, -0.25, -1.0, -2.0]]  # through Abs and Neg


def test_a_failing_step_is_reduced_to_the_node_that_it_is_about(tmp_path: Path, reduce: Reduce) -> None:
    model = write_long_chain(tmp_path / "long.onnx", 9)
    report = reduce(model, picky(refuses="Tanh", refuses_alone="Abs"))
    assert ops_of(tmp_path / "small.onnx") == ["Tanh"]
    assert report.verdict.kind is VerdictKind.ERROR
    assert "the failure: compile unsupported: no Tanh here" in report.notes


def test_a_failure_that_needs_company_keeps_it(chain: Path, tmp_path: Path, reduce: Reduce) -> None:
    report = reduce(chain, FUSING)
    assert ops_of(tmp_path / "small.onnx") == ["MatMul", "Add", "Relu"]
    assert report.cases[0].layer is None
    report = reduce(chain, picky(refuses_among="Add"))
    assert len(ops_of(tmp_path / "small.onnx")) == 2
    assert "Add" in ops_of(tmp_path / "small.onnx")


def test_all_samples_go_along_and_what_is_left_fails_a_check_of_its_own(
    tmp_path: Path, reduce: Reduce, shared: ArtifactBuilder
) -> None:
    model, target = write_long_chain(tmp_path / "long.onnx", 6), faulty("scaled", "t3")
    report = reduce(model, target, inputs=InputChoice(samples=3))
    folders = [tmp_path / name for name in ("small_inputs", "small_inputs_2", "small_inputs_3")]
    assert len({load_tensors(folder)["t2"].tobytes() for folder in folders}) == 3
    assert "with 3 samples each" in " ".join(report.notes)
    files = InputChoice(files=tuple(map(str, folders)))
    again = check_model(request_for(tmp_path / "small.onnx", target, inputs=files), shared, str(tmp_path / "keep"))
    assert (again.verdict.kind, again.samples) == (VerdictKind.FAIL, 3)


def test_of_samples_of_several_shapes_those_that_fail_go_along(tmp_path: Path, reduce: Reduce) -> None:
    model = save(tmp_path, "g (float[batch,4] x) => (float[batch,4] y) { double = Add(x, x)  y = Neg(double) }")
    for number, (batch, value) in enumerate([(1, 0.01), (3, 0.5)]):
        np.savez(tmp_path / f"{number}.npz", x=np.full((batch, 4), value, np.float32))
    inputs = InputChoice(files=(str(tmp_path / "0.npz"), str(tmp_path / "1.npz")))
    assert reduce(model, faulty("saturated", "double"), inputs=inputs).verdict.kind is VerdictKind.FAIL
    assert ops_of(tmp_path / "small.onnx") == ["Add"]
    assert load_tensors(tmp_path / "small_inputs")["x"].shape == (3, 4)


def test_a_model_without_inputs(tmp_path: Path, reduce: Reduce) -> None:
    model = save(tmp_path, "g () => (float[4] y) <float[4] w = {0, 1, 2, 3}> { e = Exp(w)  y = Neg(e) }")
    reduce(model, faulty("scaled", "e"))
    assert ops_of(tmp_path / "small.onnx") == ["Exp"]


def test_what_is_reported_was_computed_once_more_past_the_cache(
    chain: Path, builder: ArtifactBuilder, reduce: Reduce
) -> None:
    reduce(chain, faulty("scaled", "sum"))
    runs = [each for each in builder.slices if each.track == ("faulty", "run") and each.name == "chain_reduced"]
    assert len(runs) >= 2
    builder.slices.clear()
    reduce(chain, faulty("scaled", "sum"))
    assert [each.name for each in builder.slices if each.track == ("faulty", "run")] == ["chain_reduced"]


def test_a_failure_that_goes_away_is_inconclusive(chain: Path, tmp_path: Path, reduce: Reduce) -> None:
    """As many refusals as the search sees; the last look finds nothing wrong."""
    turns = 1
    while True:
        (tmp_path / "count").unlink(missing_ok=True)
        with suppress(UsageError):  # it went away before the search began
            report = reduce(chain, picky(refuses="Relu", turns=turns, count=str(tmp_path / "count")))
            if report.command:
                break
        turns += 1
    assert report.verdict.kind is VerdictKind.INCONCLUSIVE
    assert int(report.exit_code) == 3
    assert "the failure comes and goes" in report.notes[-1]


def test_the_result_goes_into_the_run_by_default(chain: Path, tmp_path: Path, shared: ArtifactBuilder) -> None:
    report = reduce_failure(request_for(chain, faulty("scaled", "sum")), shared, str(tmp_path / "keep"))
    assert ops_of(tmp_path / "keep" / "chain_reduced.onnx") == ["Add"]
    assert shlex.split(report.command) == [
        *("assay", "model", "check", str(tmp_path / "keep" / "chain_reduced.onnx")),
        *("--reference", "ort", "--target", "faulty", "--input", str(tmp_path / "keep" / "chain_reduced_inputs")),
    ]


def test_the_command_reports_how_it_was_found(chain: Path) -> None:
    tolerances = (("--tolerance", "rel=0.1"), ("--tolerance", "Conv:rel=1"))
    manner = (("--reference", "ort"), ("--target", "sim"), *tolerances)
    request = request_for(chain, manner=manner, origin=(("--samples", "2"),))
    text = render_again(request, "/a b/s.onnx", ["/a b/i", "/a b/i_2"], KnownNames(frozenset({"Add"})))
    assert text == (
        "assay model check '/a b/s.onnx' --reference ort --target sim --tolerance rel=0.1 "
        "--input '/a b/i' --input '/a b/i_2'"
    )


def test_progress_is_reported(tmp_path: Path, shared: ArtifactBuilder) -> None:
    told: list[CaseReport] = []
    model = write_long_chain(tmp_path / "long.onnx", 6)
    reduce_failure(request_for(model, picky(refuses_among="Tanh")), shared, str(tmp_path), told.append)
    names = [case.name for case in told]
    assert names[0] == "long_full_model"
    assert "long_reduced (2 nodes)" in names
    assert names[-1] == "long_reduced"


def test_failures_on_the_way_leave_no_copies(
    chain: Path, tmp_path: Path, builder: ArtifactBuilder, reduce: Reduce
) -> None:
    builder.failure_dir = str(tmp_path / "failure_dir")
    reduce(chain, picky(refuses="Add"))
    assert [path.name for path in (tmp_path / "failure_dir").iterdir()] == ["chain_reduced"]


def test_what_is_left_has_the_name_that_it_has_in_the_model(tmp_path: Path, shared: ArtifactBuilder) -> None:
    """Whichever layer the search for it ended with."""
    model = save(tmp_path, "g (float[4] x) => (float[4] y) { a = Abs(x)  t = Tanh(a)  y = Neg(t) }")
    search = LayerSearch(Examination(request_for(model), shared, Cases(request_for(model), shared), "keep"))
    search.first = search.cases.outline.layers[0]
    trials = _Trials(search, search.cases.full, Signature(""))
    found = trials._find_layer(parse("g (float[4] t) => (float[4] y) { y = Neg(t) }"))
    assert found is not None
    assert found.label == "Neg_2"
