"""numpy, onnx and torch, each loaded when the first of its names is used: most commands need none of them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from assay.errors import MissingExtraError, MissingPackageError


class Library:
    """A library; if it is not installed, `build_error` makes the error that names the package to install."""

    def __init__(self, name: str, build_error: Callable[[], MissingExtraError]) -> None:
        self._name, self._build_error = name, build_error

    def __getattr__(self, name: str) -> Any:
        try:
            found = getattr(import_module(self._name), name)
        except ModuleNotFoundError as error:
            if error.name != self._name:  # the library is installed, but a module that it imports is not
                raise
            raise self._build_error() from None
        setattr(self, name, found)  # later uses do not call this method
        return found


np: Any = Library("numpy", lambda: MissingExtraError("computing with tensors", "models"))
onnx: Any = Library("onnx", lambda: MissingExtraError("reading ONNX models", "models"))
torch: Any = Library("torch", lambda: MissingPackageError("a torch module as a model", "torch"))
