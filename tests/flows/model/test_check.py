"""Check a model: every view, and what each says of a planted fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.flows.model.check import check_model
from assay.flows.model.workshop import Workshop
from assay.probe.tensorfile import load_array
from assay.values.model import Ending, InputChoice, ModelReport, Target, Tolerances
from assay.values.tensors import Tolerance
from assay.values.verdict import VerdictKind
from tests.flows.model.models import ORT, faulty, request_for

UNOPTIMIZED = Target("ort:unoptimized", "ort", {"optimize": "none"})


def check(model: Path, target: Target, workshop: Workshop, keep: Path, **further: Any) -> ModelReport:
    return check_model(request_for(model, target, **further), workshop, str(keep))


def kinds(report: ModelReport) -> dict[str, VerdictKind]:
    return {case.name.removeprefix(f"{report.stem}_").removeprefix("layer_"): case.verdict.kind for case in report.cases}


def test_a_right_target_passes_with_numbers(chain: Path, workshop: Workshop, tmp_path: Path) -> None:
    report = check(chain, UNOPTIMIZED, workshop, tmp_path / "keep")
    assert report.verdict.kind is VerdictKind.PASS
    assert set(kinds(report).values()) == {VerdictKind.PASS}
    assert list(kinds(report)) == ["MatMul_0", "Add_1", "Relu_2", "full_model"]
    assert report.verdict.comparisons > 0
    assert report.first_wrong is None
    assert all(case.local and case.accumulated for case in report.cases[:-1])
    assert report.tools
    assert not (tmp_path / "keep").exists()


def test_the_wrong_layer_is_named_and_the_others_are_right_by_themselves(
    chain: Path, workshop: Workshop, tmp_path: Path
) -> None:
    report = check(chain, faulty("scaled", "sum"), workshop, tmp_path / "keep")
    assert report.first_wrong == "chain_layer_Add_1"
    assert report.confirmed
    assert kinds(report) == {
        "MatMul_0": VerdictKind.PASS,
        "Add_1": VerdictKind.FAIL,
        "Relu_2": VerdictKind.PASS,
        "full_model": VerdictKind.FAIL,
    }
    relu = report.cases[2]
    assert relu.local[0].error < 1e-6 < relu.accumulated[0].error  # fed with wrong values it gives wrong ones


def test_what_differs_is_kept_for_a_person_to_look_at(chain: Path, workshop: Workshop, tmp_path: Path) -> None:
    report = check(chain, faulty("scaled", "sum"), workshop, tmp_path / "keep")
    case = next(case for case in report.cases if case.name == "chain_layer_Add_1")
    ((expected, actual),) = case.diffs
    assert np.allclose(load_array(expected) * 1.01, load_array(actual), rtol=1e-5)


def test_nan_is_found_where_it_is_born(chain: Path, workshop: Workshop, tmp_path: Path) -> None:
    report = check(chain, faulty("nan", "product"), workshop, tmp_path / "keep")
    assert report.first_wrong == "chain_layer_MatMul_0"


def test_every_sample_counts(chain: Path, workshop: Workshop, tmp_path: Path) -> None:
    one = check(chain, UNOPTIMIZED, workshop, tmp_path / "keep")
    three = check(chain, UNOPTIMIZED, workshop, tmp_path / "keep", inputs=InputChoice(samples=3))
    assert three.verdict.comparisons == 3 * one.verdict.comparisons


def test_a_tolerance_for_an_operator_holds_for_that_operator_only(
    chain: Path, workshop: Workshop, tmp_path: Path
) -> None:
    wide = Tolerances(by_op={"Add": Tolerance(rel=0.5)})
    report = check(chain, faulty("scaled", "sum"), workshop, tmp_path / "keep", tolerances=wide)
    assert kinds(report)["Add_1"] is VerdictKind.PASS
    assert kinds(report)["full_model"] is VerdictKind.FAIL
    other = Tolerances(by_op={"MatMul": Tolerance(rel=0.5)})
    report = check(chain, faulty("scaled", "sum"), workshop, tmp_path / "keep", tolerances=other)
    assert kinds(report)["Add_1"] is VerdictKind.FAIL


def test_only_the_chosen_cases_are_computed(chain: Path, workshop: Workshop, tmp_path: Path) -> None:
    report = check(chain, UNOPTIMIZED, workshop, tmp_path / "keep", only=("Relu_2",))
    assert [case.name for case in report.cases] == ["chain_layer_Relu_2"]


def test_cases_are_told_as_they_come(chain: Path, workshop: Workshop, tmp_path: Path) -> None:
    told: list[str] = []
    check_model(request_for(chain, UNOPTIMIZED), workshop, str(tmp_path), lambda case: told.append(case.name))
    assert told[0] == "chain_full_model"
    assert len(told) == 4


# ---------------------------------------------------------------- what a target does wrong is an outcome


def test_a_target_without_the_operator_fails_in_that_step_and_the_others_go_on(
    chain: Path, tmp_path: Path, workshop: Workshop
) -> None:
    report = check(chain, Target("picky", "picky_backend:Picky", {"refuses": "Add"}), workshop, tmp_path / "keep")
    by_name = {case.name: case for case in report.cases}
    failed = by_name["chain_layer_Add_1"].failed_step
    assert failed is not None
    assert failed.ending is Ending.UNSUPPORTED
    assert by_name["chain_layer_MatMul_0"].verdict.kind is VerdictKind.PASS
    assert by_name["chain_full_model"].outcome == "compile unsupported"
    assert report.verdict.kind is VerdictKind.ERROR
    assert report.first_wrong == "chain_layer_Add_1"


@pytest.mark.parametrize(("way", "ending"), [("abort", Ending.CRASH), ("hang", Ending.TIMEOUT)])
def test_a_target_that_dies_or_hangs_costs_its_case_only(
    chain: Path, tmp_path: Path, workshop: Workshop, way: str, ending: Ending
) -> None:
    from dataclasses import replace

    workshop.limits = replace(workshop.limits, compile_s=3.0)
    target = Target("picky", "picky_backend:Picky", {way: "Relu"})
    report = check(chain, target, workshop, tmp_path / "keep", only=("MatMul_0", "Relu_2", "Add_1"))
    endings = {case.name: case.failed_step.ending if case.failed_step else Ending.OK for case in report.cases}
    assert endings == {
        "chain_layer_MatMul_0": Ending.OK,
        "chain_layer_Add_1": Ending.OK,
        "chain_layer_Relu_2": ending,
    }


def test_a_reference_that_fails_gives_errors_and_never_a_pass(
    chain: Path, tmp_path: Path, workshop: Workshop
) -> None:
    from dataclasses import replace

    request = replace(request_for(chain), reference=Target("picky", "picky_backend:Picky", {"refuses": "Add"}))
    report = check_model(request, workshop, str(tmp_path / "keep"))
    assert set(kinds(report).values()) == {VerdictKind.ERROR}
    assert "the reference picky cannot compute this model" in report.notes[0]


def test_a_fault_that_only_the_whole_shows_is_still_a_failure(
    chain: Path, tmp_path: Path, workshop: Workshop
) -> None:
    """A fusion bug: three nodes together come out wrong, laid open and alone each is right."""
    target = Target("fusing", "picky_backend:Fusing")
    report = check(chain, target, workshop, tmp_path / "keep")
    assert kinds(report)["full_model"] is VerdictKind.FAIL
    assert all(kinds(report)[name] is VerdictKind.PASS for name in ("MatMul_0", "Add_1", "Relu_2"))
    assert any("fusion" in finding.message for finding in report.findings)


# ---------------------------------------------------------------- references that disagree


def test_references_that_disagree_as_much_excuse_the_target_but_do_not_pass_it(
    chain: Path, tmp_path: Path, workshop: Workshop
) -> None:
    voter = faulty("scaled", "sum")
    report = check(chain, faulty("scaled", "sum"), workshop, tmp_path / "keep", voter=voter)
    assert kinds(report)["Add_1"] is VerdictKind.INCONCLUSIVE
    assert kinds(report)["full_model"] is VerdictKind.INCONCLUSIVE


def test_a_voter_that_agrees_with_the_reference_excuses_nothing(
    chain: Path, tmp_path: Path, workshop: Workshop
) -> None:
    report = check(chain, faulty("scaled", "sum"), workshop, tmp_path / "keep", voter=UNOPTIMIZED)
    assert kinds(report)["Add_1"] is VerdictKind.FAIL


def test_a_voter_that_cannot_compute_it_has_no_voice(chain: Path, tmp_path: Path, workshop: Workshop) -> None:
    voter = Target("picky", "picky_backend:Picky", {"refuses": "Add"})
    report = check(chain, faulty("scaled", "sum"), workshop, tmp_path / "keep", voter=voter)
    assert kinds(report)["Add_1"] is VerdictKind.FAIL


@pytest.mark.parametrize("name", ["matmul", "cnn", "attention", "quantised"])
def test_the_examples_pass_on_another_runtime(name: str, built: Path, tmp_path: Path, workshop: Workshop) -> None:
    report = check(built / f"example-{name}.onnx", Target("openvino", "openvino"), workshop, tmp_path / "keep", voter=ORT)
    assert report.verdict.kind is VerdictKind.PASS, [f.message for f in report.verdict.findings]
