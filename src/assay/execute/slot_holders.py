"""Who holds a slot: the lock lives as long as a process has its file open, so that /proc knows them all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from assay.values.layout import ENV_RUN_DIR

_RUN_DIR = f"{ENV_RUN_DIR}=".encode()


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
    for pid in _list_processes():
        if pid != os.getpid() and wanted & set(_open_files(pid)):
            holder = _describe(pid)
            if holder is not None and (holder.name not in found or holder.since < found[holder.name].since):
                found[holder.name] = holder
    return sorted(found.values(), key=lambda holder: (holder.since, holder.pid))


def _list_processes() -> Iterable[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())


def _open_files(pid: int) -> Iterator[str]:
    """Nothing for the processes of others, and for those that have just left."""
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):
                yield os.readlink(os.path.join(folder, name))


def _describe(pid: int) -> SlotHolder | None:
    try:
        since = os.stat(f"/proc/{pid}").st_mtime
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().replace(b"\0", b" ").strip()
    except OSError:
        return None
    run_dir = next((each.removeprefix(_RUN_DIR) for each in variables if each.startswith(_RUN_DIR)), b"")
    return SlotHolder(pid, os.fsdecode(run_dir or command), since, is_run=bool(run_dir))
