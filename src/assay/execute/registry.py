"""Executors by name, loaded when they are asked for: Ray is not imported to run locally."""

from __future__ import annotations

from typing import Any

from assay.errors import InfrastructureError, NotFoundError
from assay.execute.base import Executor
from assay.plugins import Merged, load

_EXECUTORS = Merged("executors", {"local": "assay.execute.local:LocalExecutor"})


def find_executor(name: str) -> type[Executor]:
    executor = try_executor(name)
    if executor is None:
        raise NotFoundError("executor", name, _EXECUTORS)
    return executor


def try_executor(name: str) -> type[Executor] | None:
    """None: no installed plug-in offers it. What is recorded of its jobs can be read all the same."""
    text = _EXECUTORS.get(name)
    found = load(text) if text else None
    if found is not None and not (isinstance(found, type) and issubclass(found, Executor)):
        raise InfrastructureError(f"{text} is not a subclass of assay.execute.base.Executor")
    return found


def build_executor(name: str, **options: Any) -> Executor:
    return find_executor(name)(**options)
