"""One ssh connection to a host for many commands."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from typing import IO

from assay.errors import InfrastructureError
from assay.system.ssh import Address, explain_connection, find_client

_SOCKET_LENGTH = 80  # of its path: unix has room for 107, and ssh appends a suffix
_GRACE_S = 5.0
# the master's own session: it ends with our side, also where that was killed, and the connection with it
_HOLD = "echo ready; exec cat >/dev/null"


class Connection:
    def __init__(self, address: Address) -> None:
        self.address = address
        self._master: subprocess.Popen[bytes] | None = None
        self._folder = ""

    def connect(self) -> None:
        """Raises InfrastructureError for a host that does not answer, or refuses the connection."""
        if self._master is not None and self._master.poll() is None:
            return
        self.close()
        self._folder = _make_short_folder()
        complaint = os.path.join(self._folder, "stderr")
        argv = [*self._ssh(), "-M", "-o", "ControlPersist=no", "--", self.address.name, _HOLD]
        with open(complaint, "wb") as stream:
            self._master = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream)
        if not self._is_ready(self._master):
            with open(complaint, encoding="utf-8", errors="replace") as text:
                output = text.read()
            self.close()
            raise InfrastructureError(*explain_connection(self.address, output))

    def _is_ready(self, master: subprocess.Popen[bytes]) -> bool:
        """Until its first line; what a login script prints before it does not matter."""
        assert master.stdout is not None
        deadline, seen = time.monotonic() + 2 * self.address.connect_s + _GRACE_S, b""
        while b"ready\n" not in seen:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([master.stdout], [], [], left_s)[0]:
                return False
            chunk = os.read(master.stdout.fileno(), 4096)
            if not chunk:
                return False
            seen += chunk
        return os.path.exists(self._socket)

    def close(self) -> None:
        if self._master is not None:
            for stream in (self._master.stdin, self._master.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            self._master.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._master.wait(_GRACE_S)
            self._master.kill()
            self._master.wait()
            self._master = None
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    @property
    def _socket(self) -> str:
        return os.path.join(self._folder, "s")

    def _ssh(self) -> list[str]:
        return [find_client(self.address.noun), "-o", f"ControlPath={self._socket}", *self.address.words]

    def start(
        self, script: str, *arguments: str, stdin: int | IO[bytes] = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """A shell script on the host."""
        self.connect()
        command = "exec sh -c " + shlex.join([script, "assay", *arguments])
        argv = [*self._ssh(), "-o", "ControlMaster=no", "--", self.address.name, command]
        return subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def ask(self, script: str, *arguments: str, content: bytes | None = None) -> tuple[int, bytes, str]:
        """Exit code, stdout and stderr of a short script."""
        with self.start(script, *arguments, stdin=subprocess.PIPE) as process:
            out, err = process.communicate(content or b"")
        return process.returncode, out, err.decode("utf-8", "replace").strip()

    def demand(self, what: str, script: str, *arguments: str, content: bytes | None = None) -> bytes:
        code, out, err = self.ask(script, *arguments, content=content)
        if code:
            where = f"the {self.address.noun} {self.address.name}"
            raise InfrastructureError(f"{what} failed on {where}: {err or f'exit code {code}'}")
        return out


def _make_short_folder() -> str:
    """For a socket, whose path must be short: the usual place for temporary files may be deep."""
    folder = tempfile.mkdtemp(prefix="assay-ssh-")
    if len(folder) <= _SOCKET_LENGTH:
        return folder
    os.rmdir(folder)
    return tempfile.mkdtemp(prefix="assay-ssh-", dir="/tmp")
