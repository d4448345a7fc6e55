"""Executors by name, loaded when they are asked for: Ray is not imported to run locally."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from assay.errors import NotFoundError
from assay.execute.base import Executor

_EXECUTORS = {
    "local": "assay.execute.local:LocalExecutor",
    "ssh": "assay.execute.ssh:SshExecutor",
    "ray": "assay.execute.ray_tasks:RayExecutor",
    "submit": "assay.execute.submit:SubmitExecutor",
    "slurm": "assay.execute.slurm:SlurmExecutor",
}


def find_executor(name: str) -> type[Executor]:
    if name not in _EXECUTORS:
        raise NotFoundError("executor", name, _EXECUTORS)
    module, _, attribute = _EXECUTORS[name].partition(":")
    executor: type[Executor] = getattr(import_module(module), attribute)
    return executor


def build_executor(name: str, **options: Any) -> Executor:
    return find_executor(name)(**options)
