"""Every model in testdata/onnx_models, layer by layer, on the target `sim` beside IREE on the CPU."""

from assay.models import test_onnx_model_llvmcpu_torq  # noqa: F401
