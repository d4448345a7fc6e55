"""Models as tests, in two lines of a project's `tests/test_onnx_model.py`:

    from assay.models import test_onnx_model

Every .onnx file in the project's folder of models becomes cases, one for each layer and one for the full model.
`test_onnx_model_llvmcpu_torq` names the cases as Torq's own tests do: the reference is IREE on the CPU, the target is
the hardware type, by default `sim`. `test_torch_module` is for the torch modules of the settings.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from assay.errors import MissingPackageError

if TYPE_CHECKING:
    from assay.models.pytest_support.fixtures import test_onnx_model, test_onnx_model_llvmcpu_torq, test_torch_module

__all__ = ["test_onnx_model", "test_onnx_model_llvmcpu_torq", "test_torch_module"]


def __getattr__(name: str) -> Any:
    """Load a test function on first use, since it needs pytest, which commands that load this package do not need."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("pytest") is None:
        raise MissingPackageError("assay.models, which is for test files of pytest,", "pytest")
    from assay.models.pytest_support import fixtures

    return getattr(fixtures, name)
