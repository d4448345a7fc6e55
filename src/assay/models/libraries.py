"""numpy and onnx, each loaded when the first of its names is used: most commands need neither."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from assay.errors import MissingExtraError


class Library:
    def __init__(self, name: str, purpose: str) -> None:
        self._name, self._purpose = name, purpose

    def __getattr__(self, name: str) -> Any:
        try:
            found = getattr(import_module(self._name), name)
        except ImportError:
            raise MissingExtraError(self._purpose, "models") from None
        setattr(self, name, found)  # later uses find it there
        return found


np: Any = Library("numpy", "computing with tensors")
onnx: Any = Library("onnx", "reading ONNX models")
