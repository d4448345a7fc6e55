"""The onnx library: loaded where it is first used, what is said without it, and how its messages are read."""

from __future__ import annotations

from typing import Any

from assay.errors import MissingExtraError

Model = Any  # onnx.ModelProto: the library is loaded inside functions only
Node = Any  # onnx.NodeProto
Graph = Any  # onnx.GraphProto


def import_onnx() -> Any:
    try:
        import onnx
    except ImportError:
        raise MissingExtraError("reading ONNX models", "models") from None
    return onnx


def parse_message(message: Any, content: bytes) -> Any:
    """Fill an empty protobuf message. Raises ValueError for bytes that are something else."""
    import_onnx()
    from google.protobuf.message import DecodeError

    try:
        message.ParseFromString(content)
    except DecodeError as error:
        raise ValueError(error) from error
    return message
