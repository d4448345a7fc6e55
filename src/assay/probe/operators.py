"""What ONNX itself knows of operators."""

from __future__ import annotations

from assay.probe.onnx_library import import_onnx


def is_operator(name: str) -> bool:
    """Whether there is an operator of this name, in any domain and of any age."""
    return any(schema.name == name for schema in import_onnx().defs.get_all_schemas_with_history())
