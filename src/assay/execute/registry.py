"""Executors by name, loaded when they are asked for: Ray is not imported to run locally."""

from __future__ import annotations

from typing import Any

from assay.errors import NotFoundError
from assay.execute.base import Executor
from assay.plugins import Merged, load

_EXECUTORS = Merged("executors", {"local": "assay.execute.local:LocalExecutor"})


def find_executor(name: str) -> type[Executor]:
    if name not in _EXECUTORS:
        raise NotFoundError("executor", name, _EXECUTORS)
    executor: type[Executor] = load(_EXECUTORS[name])
    return executor


def build_executor(name: str, **options: Any) -> Executor:
    return find_executor(name)(**options)
