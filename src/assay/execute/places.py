"""Where an attempt runs: the machine, and what its engine calls the job."""

from __future__ import annotations

import os
from typing import NamedTuple

from assay.execute.registry import find_executor
from assay.system.files import read_text
from assay.values import layout
from assay.values.run import JobHandle

_SSH = "ssh:"


class Place(NamedTuple):
    """`host` is None until the engine has started the job: the machine that submitted it is not where it runs."""

    host: str | None
    job: str = ""  # the engine and its name for the job, as in "slurm 671_5"; empty for a local process


def load_place(run_dir: str, handle: JobHandle | None) -> Place:
    if handle is None:
        return Place(None)
    if handle.executor == "local":
        return Place(handle.host)
    number = find_executor(handle.executor).find_job(handle, run_dir)
    return Place(_load_node(run_dir, handle.attempt), f"{handle.executor} {number}".rstrip())


def _load_node(run_dir: str, attempt: int) -> str | None:
    """The machine that took the attempt's token."""
    try:
        words = read_text(os.path.join(run_dir, layout.token_name(attempt))).split()
    except (OSError, ValueError):
        return None
    host = words[0].removeprefix(_SSH) if words else ""
    return host if host not in ("", layout.NO_HOST) else None


def render_place(place: Place, handle: JobHandle) -> str:
    """`n2 (slurm 671_5)`; without a node where the job has not begun."""
    if not place.job:
        return f"{place.host}, pid {handle.pid}"
    return f"{place.host} ({place.job})" if place.host else f"{place.job}, submitted on {handle.host}"
