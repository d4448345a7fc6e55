"""Hosts that are this machine: an sshd on loopback each, with a home of its own, where nothing of the client's is seen.

If a mount namespace can be made (root), the folder of the client is an empty one to the hosts, so that a path which
exists on the client alone cannot be used there by mistake.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.models.backends.loopback import Loopback, open_board

from assay.system import processes
from assay.values.study import Farm

ROOT = "a root"  # inside the home of each host
_HIDE = 'mount -t tmpfs none "$1" || exit; shift; exec "$@"'
_MOUNT = 'mount -t tmpfs -o "$1" none "$2" || exit; shift 2; exec "$@"'


@cache
def has_namespaces() -> bool:
    """Whether a host can have mounts of its own."""
    return (
        shutil.which("unshare") is not None
        and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0
    )


class Hosts:
    """By name, with a private ssh configuration."""

    def __init__(self, folder: Path, boards: dict[str, Loopback]) -> None:
        self.folder, self.boards = folder, boards
        self.client = folder / "client"  # hidden from the hosts
        self.config = folder / "config"
        self.write_config()

    def write_config(self, more: str = "StrictHostKeyChecking accept-new") -> None:
        text = ""
        for name, board in self.boards.items():
            text += f"Host {name}\n  HostName 127.0.0.1\n  Port {board.port}\n  IdentityFile {board.folder}/user_key\n"
            text += f"  UserKnownHostsFile {board.folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n  {more}\n"
        self.config.write_text(text)

    def home(self, name: str) -> Path:
        return self.boards[name].folder / "home"

    def root(self, name: str) -> Path:
        return self.home(name) / ROOT

    def jobs(self, name: str, root: str = ROOT) -> Path:
        """Return what Assay has made on a host."""
        return self.home(name) / root / ".assay-jobs"

    def farm(self, *names: str, slots: int | dict[str, int] = 16, **more: object) -> Farm:
        options = {"hosts": names or ("near",), "slots": slots, "root": ROOT, **more}
        return Farm("pool", "ssh", options={"ssh_options": ("-F", str(self.config)), **options})

    def cut(self, name: str) -> None:
        """End every connection, in the middle of whatever it does."""
        board = self.boards[name]
        if board.process is None:
            return
        for each in processes.find_descendants(board.process.pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if b"sshd" in Path(f"/proc/{each}/comm").read_bytes():
                    os.kill(each, signal.SIGKILL)

    def stop(self, name: str) -> None:
        """The daemon and its connections; the jobs go on."""
        self.cut(name)
        self.boards[name].stop()


def find_programs(hosts: Hosts) -> set[int]:
    """Find every process of a job on one of the hosts."""
    found = set()
    for pid in processes.list_pids():
        with contextlib.suppress(OSError):
            if f"ASSAY_RUN_DIR={hosts.folder}/".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.add(pid)
    return found


@contextmanager
def open_hosts(
    folder: Path, *names: str, mounts: Mapping[str, str] = {}, settings: Mapping[str, str] = {}, **variables: str
) -> Iterator[Hosts]:
    """Open hosts. `mounts`: options of file systems that are homes, seen by the host alone. `settings`: of sshd.
    `variables`: of what runs there."""
    (folder / "client").mkdir(parents=True)
    boards: dict[str, Loopback] = {}
    with contextlib.ExitStack() as stack:
        for name in names:
            home = folder / name / "home"
            home.mkdir(parents=True)
            wrapper: tuple[str, ...] = ()
            if has_namespaces():
                wrapper = ("unshare", "--mount", "bash", "-c", _HIDE, "-", str(folder / "client"))
                if name in mounts:
                    wrapper += ("bash", "-c", _MOUNT, "-", mounts[name], str(home))
            setting = " ".join(f'{key}="{value}"' for key, value in {"HOME": str(home), **variables}.items())
            boards[name] = stack.enter_context(
                open_board(folder / name, wrapper=wrapper, settings={"SetEnv": setting, **settings})
            )
        yield Hosts(folder, boards)
