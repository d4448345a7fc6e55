"""Who holds a slot: the lock lives as long as a process has its file open, so that /proc knows them all."""

from __future__ import annotations

import os
from collections.abc import Sequence

from assay.system import processes
from assay.system.fast_dataclasses import dataclass
from assay.values.layout import ENV_RUN_DIR


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """A run, by its oldest process that has the lock file open."""

    pid: int
    name: str  # its run directory, or its command line where it is none of our runs
    since: float  # seconds since the epoch
    is_run: bool = False


def find_holders(paths: Sequence[str]) -> list[SlotHolder]:
    """Of this user's processes, oldest first, one for each run; this process itself is none of them."""
    wanted = {os.path.realpath(path) for path in paths}
    found: dict[str, SlotHolder] = {}
    for pid in processes.list_pids():
        if pid != os.getpid() and any(path in wanted for _, path in processes.find_open_files(pid)):
            holder = _describe(pid)
            if holder is not None and (holder.name not in found or holder.since < found[holder.name].since):
                found[holder.name] = holder
    return sorted(found.values(), key=lambda holder: (holder.since, holder.pid))


def _describe(pid: int) -> SlotHolder | None:
    since = processes.find_since(pid)
    run_dir = os.fsdecode(processes.load_variable(pid, ENV_RUN_DIR))
    name = run_dir or processes.load_command_line(pid)
    return SlotHolder(pid, name, since, is_run=bool(run_dir)) if since is not None and name else None
