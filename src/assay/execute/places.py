"""Executors by name, loaded when they are needed; and the place of an attempt: the machine and the engine's job."""

from __future__ import annotations

import os
from typing import Any

from assay.errors import InfrastructureError, NotFoundError
from assay.execute.base import Executor
from assay.plugins import Merged, load
from assay.system import processes
from assay.system.fast_dataclasses import NamedTuple
from assay.system.files import read_end, try_text
from assay.values import layout
from assay.values.run import JobHandle, Liveness
from assay.values.study import LOCAL

_EXECUTORS = Merged("executors", {"local": "assay.execute.local:LocalExecutor"})
_SSH = "ssh:"
_WAITS = "waits: "  # a line of submit.log.N
_LOG_TAIL_BYTES = 4096


def find_executor(name: str) -> type[Executor]:
    executor = try_executor(name)
    if executor is None:
        raise NotFoundError("executor", name, _EXECUTORS)
    return executor


def try_executor(name: str) -> type[Executor] | None:
    """Return the executor; None if no installed plug-in offers it: the records of its jobs can still be read."""
    text = _EXECUTORS.get(name)
    found = load(text) if text else None
    if found is not None and not (isinstance(found, type) and issubclass(found, Executor)):
        raise InfrastructureError(f"{text} is not a subclass of assay.execute.base.Executor")
    return found


def build_executor(name: str, **options: Any) -> Executor:
    return find_executor(name)(**options)


class Place(NamedTuple):
    """The place of an attempt. `host` is None until the engine has started the job, perhaps on another machine."""

    host: str | None
    job: str = ""  # the engine and its name for the job, as in "slurm 671_5"; empty for a local process


def load_place(run_dir: str, handle: JobHandle | None) -> Place:
    if handle is None:
        return Place(None)
    if handle.executor == LOCAL:
        return Place(handle.host)
    executor = try_executor(handle.executor)
    number = executor.find_job(handle, run_dir) if executor else ""
    token = try_text(layout.numbered_path(run_dir, "token", handle.attempt)).split()
    host = token[0].removeprefix(_SSH) if token else ""  # the machine that took the attempt's token
    return Place(host if host not in ("", layout.NO_HOST) else None, f"{handle.executor} {number}".rstrip())


def load_entry(run_dir: str, handle: JobHandle) -> str:
    """Return the command that enters the machine of a running job; empty if the machine is this one, or unknown."""
    executor, host = try_executor(handle.executor), load_place(run_dir, handle).host
    if executor is None or host is None or host == processes.host_name() or host.startswith("-"):
        return ""
    return executor.render_entry(handle, run_dir, host)


def load_liveness(handle: JobHandle, run_dir: str) -> Liveness:
    """Return whether a job is alive, as its executor decides by the lease and the run directory alone."""
    executor = try_executor(handle.executor)
    return executor.load_liveness(handle, run_dir) if executor else Liveness.UNKNOWN


def has_begun(handle: JobHandle, run_dir: str) -> bool:
    """Return whether the farm has started the job; before that it waits in the farm's queue."""
    return os.path.exists(layout.numbered_path(run_dir, "token", handle.attempt))


def load_wait_reason(handle: JobHandle, run_dir: str) -> str:
    """Return why the farm has not started a job, as far as a supervisor has recorded the reason."""
    log = read_end(os.path.join(run_dir, layout.submit_log_name(handle.attempt)), _LOG_TAIL_BYTES)
    return next((line[len(_WAITS) :] for line in reversed(log.splitlines()) if line.startswith(_WAITS)), "")


def render_place(place: Place, handle: JobHandle) -> str:
    """Render `n2 (slurm 671_5)`; without a node if the job has not begun."""
    if not place.job:
        return f"{place.host}, pid {handle.pid}" if handle.pid else str(place.host)
    return f"{place.host} ({place.job})" if place.host else f"{place.job}, submitted on {handle.host}"
