"""Loaded by every Python of a run whose PYTHONPATH names its folder: brings the recorder in when torch is imported.

It hands on to the `sitecustomize` that it hides, and does nothing in a program that does not import torch.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_SETTINGS = "ASSAY_TRACE"  # JSON
_RUN_DIR = "ASSAY_RUN_DIR"


def _note(event: str, **facts: Any) -> None:
    """One line of `processes.jsonl`: what became of the recorder in this process."""
    line = json.dumps({"pid": os.getpid(), "event": event, **facts}) + "\n"
    try:
        path = os.path.join(os.path.dirname(_FOLDER), "processes.jsonl")
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
    except OSError:  # a full disk is the run's own problem
        pass


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for torch, and starts the recorder once its import is complete."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        _start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _start() -> None:
    """Nothing that fails here may stop the program."""
    try:
        from assay.trace.inside.recorder import start_recorder

        start_recorder(os.path.dirname(_FOLDER), json.loads(os.environ[_SETTINGS]), _note)
        _note("torch")
    except Exception as error:  # noqa: BLE001 whatever it is, the program goes on
        _note("problem", text=f"{type(error).__name__}: {error}")


def _load_hidden() -> None:
    """The `sitecustomize` that Python would have loaded without this one."""
    others = [each for each in sys.path if os.path.abspath(each or os.curdir) != _FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if os.environ.get(_SETTINGS):
        sys.meta_path.insert(0, _Finder())
        _note("python")
    _load_hidden()
