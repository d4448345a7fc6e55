"""Models as tests, in two lines of a project's `tests/test_onnx_model.py`:

    from assay.models import test_onnx_model

Every .onnx file in the project's folder of models becomes cases, one for each layer and one for the whole. With
`test_onnx_model_llvmcpu_torq` they are called as in Torq's own tests: the reference is IREE on the CPU, the target is
the hardware type, `sim` unless an option says otherwise.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from assay.errors import MissingPackageError

if find_spec("pytest") is None:
    raise MissingPackageError("assay.models, which is for test files of pytest,", "pytest")

__all__ = ["test_onnx_model", "test_onnx_model_llvmcpu_torq"]


def test_onnx_model(
    assay_case: Any,
    assay_reference: Any,
    assay_target: Any,
    assay_reference_results: Any,
    assay_target_results: Any,
) -> None:
    """The target computes what the reference computes."""
    assay_case.compare(assay_reference, assay_target, assay_reference_results, assay_target_results)


def test_onnx_model_llvmcpu_torq(
    assay_case: Any,
    assay_llvmcpu: Any,
    assay_torq: Any,
    llvmcpu_reference_results: Any,
    torq_results: Any,
) -> None:
    """The hardware computes what IREE computes on the CPU."""
    assay_case.compare(assay_llvmcpu, assay_torq, llvmcpu_reference_results, torq_results)
