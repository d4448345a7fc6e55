"""The fixtures of tests of models. Every fixture may be overridden in a conftest.py; later ones use its result.

Fixtures without `assay_` have the names of Torq's fixtures, so that tests written for Torq can request them unchanged.
Paths are pathlib paths, tensors are lists of arrays in the graph's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from assay.models.pytest_support.case import (
    CACHE_SECTION,
    Arrays,
    FixtureCase,
    build_failure,
    clear_keep,
    find_label,
    judge_report,
    reporting,
)
from assay.models.pytest_support.options import Given, get_plan

if TYPE_CHECKING:
    from pathlib import Path

    from assay.models.flow.artifact_builder import Product
    from assay.models.flow.stepwise import Stepwise
    from assay.models.values.model import ModelReport, Target

TRACERS = ("ort", "iree", "reference")  # IREE knows types that onnxruntime lacks
NAMES = (
    "assay_stand", "assay_case", "assay_chip", "assay_hardware", "chip_config", "runtime_hw_type",
    "tweaked_random_input_data", "onnx_mlir_model_file", "assay_llvmcpu", "llvmcpu_compiled_model",
    "llvmcpu_reference_results", "assay_torq", "torq_compiled_model_dir", "torq_results", "assay_reference",
    "assay_target", "assay_reference_results", "assay_compiled_model", "assay_target_results",
    "assay_module",
)  # fmt: skip


@pytest.fixture(scope="session")
def assay_stand(request: pytest.FixtureRequest) -> Iterator[Stepwise]:
    """Workers and the artifact store, for the whole of this process."""
    plan = get_plan(request.config)
    with reporting("assay_stand"):
        stand = plan.open_stepwise()
    yield stand
    stand.builder.close()


@pytest.fixture
def assay_case(request: pytest.FixtureRequest, assay_stand: Stepwise) -> Iterator[FixtureCase]:
    """The case of this test, with its models and inputs."""
    from assay.models.values.model import ModelRequest

    given: Given = request.param
    if given.problem or given.model is None or given.case is None:
        raise build_failure(given.problem, given.problem)
    plan = get_plan(request.config)
    if plan.options.debug_cache:
        assay_stand.builder.explain_to = partial(request.node.add_report_section, "setup", CACHE_SECTION)
    keep = clear_keep(plan, given.label, request.node)
    with assay_stand.visiting(keep):
        with reporting("assay_case", given.model.path):
            _, inputs = plan.choose(given.model)
            groups = plan.project.settings.groups
            # the first capable tracer computes the inputs of a layer; in Torq's tests the tracer is not the reference:
            # if IREE is unable to compile one layer, the other layers are tested nevertheless
            is_ours = "assay_target" in request.fixturenames
            tracers = [plan.build_reference(name) for name in ([plan.options.reference] if is_ours else TRACERS)]
            requests = [
                ModelRequest(given.model.path, tracer, tracer, inputs=inputs, groups=groups) for tracer in tracers
            ]
            steps = assay_stand.open_first(requests, given.case.name, given.label)
        if steps.case.problem:
            pytest.skip(f"{given.label} cannot be computed alone: {steps.case.problem}")
        yield FixtureCase(plan, given, steps, request.node, keep)


def _choose(request: pytest.FixtureRequest, field: str) -> str:
    """Return the value of a field for this test: from its case, or without a case from its parameter."""
    given = request.node.callspec.params.get("assay_case")
    return str(request.param if given is None else getattr(given, field))


@pytest.fixture
def assay_chip(request: pytest.FixtureRequest) -> str:
    """The chip's name."""
    return _choose(request, "chip")


@pytest.fixture
def assay_hardware(request: pytest.FixtureRequest) -> str:
    """The hardware type's name."""
    return _choose(request, "middle")


@pytest.fixture
def chip_config(request: pytest.FixtureRequest, assay_chip: str) -> dict[str, Any]:
    """The content of the chip's file; empty for `default`, where the compiler gets no chip."""
    from assay.models.config.targets import load_chip

    with reporting("chip_config"):
        return load_chip(assay_chip, get_plan(request.config).project.chip_folder)


@pytest.fixture
def runtime_hw_type(assay_hardware: str) -> str:
    """The hardware that the case is run on: `sim`, unless --torq-runtime-hw-type names another."""
    return assay_hardware


@pytest.fixture
def tweaked_random_input_data(assay_case: FixtureCase) -> list[Any]:
    """Inputs that suit the model; a layer's inputs are the values that it gets inside the model."""
    return Arrays(assay_case.steps.inputs)


@pytest.fixture
def onnx_mlir_model_file(assay_case: FixtureCase, assay_llvmcpu: Target) -> Path:
    """The case as MLIR, made by IREE's importer."""
    from assay.models.values.model import Step

    with assay_case.reporting("onnx_mlir_model_file"):
        return assay_case.hand_out(assay_case.steps.build(assay_llvmcpu, Step.IMPORT, assay_case.steps.models))


@pytest.fixture
def assay_llvmcpu(request: pytest.FixtureRequest) -> Target:
    """IREE on the CPU, with the flags of --llvmcpu-compiler-options and --llvmcpu-runtime-options."""
    from assay.models.flow.targets import LLVM_CPU

    with reporting("assay_llvmcpu"):
        return get_plan(request.config).build_reference(LLVM_CPU)


@pytest.fixture
def llvmcpu_compiled_model(assay_case: FixtureCase, assay_llvmcpu: Target, onnx_mlir_model_file: Path) -> Path:
    """The case compiled by IREE for the CPU."""
    from assay.models.values.model import Step

    with assay_case.reporting("llvmcpu_compiled_model"):
        sources = assay_case.take_in(onnx_mlir_model_file)
        return assay_case.hand_out(assay_case.steps.build(assay_llvmcpu, Step.COMPILE, sources))


@pytest.fixture
def llvmcpu_reference_results(
    assay_case: FixtureCase, assay_llvmcpu: Target, llvmcpu_compiled_model: Path, tweaked_random_input_data: list[Any]
) -> list[Any]:
    """The outputs that IREE computes on the CPU."""
    with assay_case.reporting("llvmcpu_reference_results"):
        inputs = assay_case.take_inputs(tweaked_random_input_data)
        return Arrays(assay_case.steps.run(assay_llvmcpu, assay_case.take_in(llvmcpu_compiled_model), inputs))


@pytest.fixture
def assay_torq(request: pytest.FixtureRequest, chip_config: dict[str, Any], runtime_hw_type: str) -> Target:
    """The project's target with the hardware's name, else the target of Torq's own tools."""
    from assay.models.flow.targets import build_hardware_target

    plan = get_plan(request.config)
    with reporting("assay_torq"):
        return build_hardware_target(plan.project, runtime_hw_type, plan.build_extras(chip_config))


@pytest.fixture
def torq_compiled_model_dir(request: pytest.FixtureRequest, assay_case: FixtureCase, assay_torq: Target) -> Path:
    """The folder with the artifacts that the hardware's compiler made of the case."""
    from assay.models.values.model import Step

    sources = assay_case.steps.models
    is_handed_mlir = assay_torq.backend == "iree" or assay_torq.options.get("input") == "mlir"  # from IREE's importer
    if is_handed_mlir and "import" not in assay_torq.options:
        sources = assay_case.take_in(request.getfixturevalue("onnx_mlir_model_file"))
    with assay_case.reporting("torq_compiled_model_dir", _explain(request, assay_torq)):
        if "import" in assay_torq.options:
            sources = assay_case.steps.build(assay_torq, Step.IMPORT, sources, tested=True)
        return assay_case.hand_out_folders(assay_case.steps.build(assay_torq, Step.COMPILE, sources, tested=True))


def _explain(request: pytest.FixtureRequest, target: Target) -> str:
    from assay.models.flow.targets import explain_hardware

    return explain_hardware(get_plan(request.config).project, target.name)


@pytest.fixture
def torq_results(
    request: pytest.FixtureRequest,
    assay_case: FixtureCase,
    assay_torq: Target,
    torq_compiled_model_dir: Path,
    tweaked_random_input_data: list[Any],
) -> list[Any]:
    """The outputs that the hardware computes."""
    with assay_case.reporting("torq_results", _explain(request, assay_torq)):
        artifacts = assay_case.take_in(torq_compiled_model_dir, str(assay_torq.options.get("artifact") or ""))
        inputs = assay_case.take_inputs(tweaked_random_input_data)
        return Arrays(assay_case.steps.run(assay_torq, artifacts, inputs, tested=True))


@pytest.fixture
def assay_reference(request: pytest.FixtureRequest) -> Target:
    """The target whose outputs are correct: --assay-reference, else the settings' reference, else onnxruntime."""
    plan = get_plan(request.config)
    with reporting("assay_reference"):
        return plan.build_reference(plan.options.reference)


@pytest.fixture
def assay_target(request: pytest.FixtureRequest, chip_config: dict[str, Any]) -> Target:
    """The target that is tested."""
    from assay.models.flow.targets import build_target

    plan = get_plan(request.config)
    with reporting("assay_target"):
        return build_target(plan.project, _choose(request, "middle"), plan.build_extras(chip_config))


@pytest.fixture
def assay_reference_results(
    assay_case: FixtureCase, assay_reference: Target, tweaked_random_input_data: list[Any]
) -> list[Any]:
    """The outputs of the reference: known from its run of the model, computed again for inputs that were replaced."""
    with assay_case.reporting("assay_reference_results"):
        inputs = assay_case.take_inputs(tweaked_random_input_data)
        return Arrays(assay_case.steps.expect(assay_reference, inputs))


@pytest.fixture
def assay_compiled_model(assay_case: FixtureCase, assay_target: Target) -> Path:
    """The artifact that the target's compiler made of the case."""
    with assay_case.reporting("assay_compiled_model"):
        return assay_case.hand_out(assay_case.steps.prepare(assay_target))


@pytest.fixture
def assay_target_results(
    assay_case: FixtureCase, assay_target: Target, assay_compiled_model: Path, tweaked_random_input_data: list[Any]
) -> list[Any]:
    """The outputs that the target computes."""
    with assay_case.reporting("assay_target_results"):
        artifacts: list[Product] = assay_case.take_in(assay_compiled_model)
        inputs = assay_case.take_inputs(tweaked_random_input_data)
        return Arrays(assay_case.steps.run(assay_target, artifacts, inputs, tested=True))


@pytest.fixture
def assay_module(request: pytest.FixtureRequest) -> ModelReport:
    """The check of a torch module: each call of its modules, and the whole module. Nothing of a check is cached."""
    from assay.models.flow.artifact_builder import ArtifactBuilder, Scratch
    from assay.models.flow.check import check_model
    from assay.models.store.artifacts import ArtifactStore

    plan = get_plan(request.config)
    asked = plan.modules[request.param]
    keep = clear_keep(plan, request.param, request.node)
    with (
        reporting("assay_module", asked.model),
        Scratch() as own,
        ArtifactBuilder(ArtifactStore(own), asked.limits, failure_dir=keep) as builder,
    ):
        return check_model(asked, builder, keep)


def test_onnx_model(
    assay_case: Any, assay_reference: Any, assay_target: Any, assay_reference_results: Any, assay_target_results: Any
) -> None:
    """The target computes what the reference computes."""
    assay_case.compare(assay_reference, assay_target, assay_reference_results, assay_target_results)


def test_onnx_model_llvmcpu_torq(
    assay_case: Any, assay_llvmcpu: Any, assay_torq: Any, llvmcpu_reference_results: Any, torq_results: Any
) -> None:
    """The hardware computes what IREE computes on the CPU."""
    assay_case.compare(assay_llvmcpu, assay_torq, llvmcpu_reference_results, torq_results)


def test_torch_module(request: Any, assay_module: Any) -> None:
    """The target computes what the reference computes, call by call."""
    judge_report(find_label(request.node.name), assay_module)


for _function in (test_onnx_model, test_onnx_model_llvmcpu_torq, test_torch_module):
    _function.__module__ = "assay.models"  # test files import tests from here, and collection recognises them by it
