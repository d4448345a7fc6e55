"""The test functions that `assay.models` hands to test files."""

from __future__ import annotations

from typing import Any


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


for _function in (test_onnx_model, test_onnx_model_llvmcpu_torq):
    _function.__module__ = "assay.models"  # where test files import them from, and where collection looks for them
