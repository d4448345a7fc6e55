"""Calls a function once a module has been imported, now or later."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def call_after_import(name: str, function: Callable[[], None]) -> None:
    """Call a function after a module is imported. The module is not imported here, and keeps its own loader."""
    if name in sys.modules:
        function()
    else:
        sys.meta_path.insert(0, _Finder(name, function))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, function: Callable[[], None]) -> None:
        self._name, self._function = name, function

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> Any:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                loader.exec_module = execute
                execute(module)
                self._function()

            loader.exec_module = exec_module
        return spec
