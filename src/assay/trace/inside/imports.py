"""Call a function once a module has been imported, now or later."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def call_after_import(name: str, function: Callable[[], None]) -> None:
    """Nothing is imported for it, and the module's own loader stays in its place."""
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
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._function)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, function: Callable[[], None]) -> None:
        self._loader, self._function = loader, function

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._function()
