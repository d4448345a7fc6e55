"""A board reached by the system's ssh: one connection for many commands, a lock, and a guard that cleans up.

All files of a job are in a folder of its own on the board. The lock names its owner and when it was taken; it expires
unless it is refreshed. A small shell script on the board (`board.sh`) refreshes the lock, ends the job's processes and
removes the job's folder as soon as our side has ended, for whatever reason.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO

from assay.errors import InfrastructureError
from assay.models.backends.captured_output import CapturedOutput, run_program
from assay.system.fast_dataclasses import dataclass
from assay.system.files import try_text
from assay.system.ssh import Address, explain_connection, find_client

_SOCKET_LENGTH = 80  # the longest path of the socket's folder: unix allows 107, and ssh appends a suffix
_BEAT_S = 5.0
_GRACE_S = 5.0
# The command of the master connection: it ends, and the connection with it, when our process ends or is killed.
_HOLD = "echo ready; exec cat >/dev/null"
# Runs a program in the job's folder. The program starts only after its process group was recorded: the guard either
# finds the group, or has removed the folder first. Files that the program leaves are removed with the folder.
_RUN = """
cd "$1" || exit 97
shift
inner='echo $$ >pid.new && mv pid.new pid && exec "$@"'
rm -f exit
if command -v setsid >/dev/null 2>&1; then setsid sh -c "$inner" run "$@" </dev/null &
else sh -c "$inner" run "$@" </dev/null & fi
job=$!
wait $job
code=$?
kill -9 -$job 2>/dev/null
rm -f pid
echo $code >exit
exit $code
"""
# A deployed file is in a folder named by its hash: nothing is copied twice, and no outdated file is used.
_DEPLOYED = 'cd "$1" 2>/dev/null && [ -O . ] && [ -x "$2" ] && echo there'
_DEPLOY = """
umask 077
mkdir -p "$1" && cd "$1" && [ -O . ] || exit 1
cat >"$2.$3" && chmod +x "$2.$3" && mv "$2.$3" "$2"
"""


@dataclass(frozen=True, slots=True)
class LockRule:
    path: str = "/tmp/assay-board.lock"  # noqa: S108 - on the board, and meant to be shared
    wait_s: int = 60
    expiry_s: int = 60


class BusyError(InfrastructureError):
    """Another job has the lock of the board."""


class Board:
    """A host that runs one job at a time, and the ssh connection to it, which many commands use."""

    def __init__(self, address: Address, rule: LockRule) -> None:
        self.address = address
        self.rule = rule
        self._master: subprocess.Popen[bytes] | None = None
        self._folder = ""

    def connect(self) -> None:
        """Open the connection. Raises InfrastructureError if the host does not answer, or refuses it."""
        if self._master is not None and self._master.poll() is None:
            return
        self.close()
        self._folder = tempfile.mkdtemp(prefix="assay-ssh-")
        if len(self._folder) > _SOCKET_LENGTH:  # the usual folder for temporary files may have a long path
            os.rmdir(self._folder)
            self._folder = tempfile.mkdtemp(prefix="assay-ssh-", dir="/tmp")
        complaint = os.path.join(self._folder, "stderr")
        argv = [*self._ssh(), "-M", "-o", "ControlPersist=no", "--", self.address.name, _HOLD]
        with open(complaint, "wb") as stream:
            self._master = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream)
        assert self._master.stdout is not None
        deadline = time.monotonic() + 2 * self.address.connect_s + _GRACE_S
        # output of a login script before the line `ready` is ignored
        is_ready = any(line.endswith("ready") for line in _read_lines(self._master.stdout, deadline))
        if not is_ready or not os.path.exists(self._socket):
            output = try_text(complaint, "replace")
            self.close()
            raise InfrastructureError(*explain_connection(self.address, output))

    def close(self) -> None:
        if self._master is not None:
            self._master.terminate()
            _end(self._master)
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
        """Start a shell script on the host."""
        argv = self.build_command(script, *arguments)
        return subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def build_command(self, script: str, *arguments: str) -> list[str]:
        """Return the command line that executes a shell script on the host through the open connection."""
        self.connect()
        command = "exec sh -c " + shlex.join([script, "assay", *arguments])
        return [*self._ssh(), "-o", "ControlMaster=no", "--", self.address.name, command]

    def ask(self, script: str, *arguments: str) -> tuple[int, bytes]:
        """Return the exit code and the stdout of a short script."""
        with self.start(script, *arguments) as process:
            out, _ = process.communicate()
        return process.returncode, out

    def demand(self, what: str, script: str, *arguments: str, content: bytes = b"") -> bytes:
        """Return the stdout of a short script that has to succeed."""
        with self.start(script, *arguments, stdin=subprocess.PIPE) as process:
            return self.finish(process, what, content)

    def finish(self, process: subprocess.Popen[bytes], what: str, content: bytes | None = None) -> bytes:
        """Return the rest of a process's stdout. Raises InfrastructureError if it fails."""
        out, err = process.communicate(content)
        if process.returncode:
            error_text = err.decode("utf-8", "replace").strip() or f"exit code {process.returncode}"
            raise InfrastructureError(f"{what} failed on the {self.address.noun} {self.address.name}: {error_text}")
        return out

    def deploy(self, path: str, sha: str) -> str:
        """Copy a program to the board unless it is already there. Returns its path on the board."""
        name = os.path.basename(path)
        user = self.address.name.rpartition("@")[0] or getpass.getuser()
        folder = f"{self.address.root}/assay-runners-{user}/{sha}"
        if self.ask(_DEPLOYED, folder, name)[1].strip() != b"there":
            with open(path, "rb") as stream:
                content = stream.read()
            self.demand(f"copying {name}", _DEPLOY, folder, name, uuid.uuid4().hex[:8], content=content)
        return f"{folder}/{name}"

    @contextlib.contextmanager
    def occupy(self) -> Iterator[Stay]:
        """Lock the board for one job. Raises BusyError if another job keeps it locked for too long."""
        stay = Stay(self)
        try:
            stay.enter()
            yield stay
        finally:
            stay.leave()


class Stay:
    """The use of a board by a job: the job's folder on it, and the guard that keeps the lock."""

    def __init__(self, board: Board) -> None:
        token = uuid.uuid4().hex[:12]
        self._board = board
        self.address = board.address
        self._token = token
        self.folder = f"{board.address.root}/assay-{token}"
        self._guard: subprocess.Popen[bytes] | None = None
        self._left = threading.Event()

    def enter(self) -> None:
        rule = self._board.rule
        with open(os.path.join(os.path.dirname(__file__), "board.sh"), encoding="utf-8") as stream:
            script = stream.read()
        since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        owner = f"{getpass.getuser()} {socket.gethostname()} {os.getpid()} {since}"  # parsed by `describe_owner`
        arguments = (rule.path, self.folder, self._token, owner, str(rule.wait_s), str(rule.expiry_s))
        self._guard = self._board.start(script, *arguments, stdin=subprocess.PIPE)
        threading.Thread(target=self._keep_alive, args=(self._guard.stdin,), daemon=True).start()
        self._wait_for_lock(self._guard)

    def _keep_alive(self, stream: IO[bytes]) -> None:
        """Send a line at intervals: otherwise the board cannot distinguish a cut connection from a silent one."""
        pause_s = min(_BEAT_S, self._board.rule.expiry_s / 4)
        with contextlib.suppress(OSError, ValueError):
            while not self._left.wait(pause_s):
                stream.write(b"\n")
                stream.flush()

    def _wait_for_lock(self, guard: subprocess.Popen[bytes]) -> None:
        assert guard.stdout is not None
        rule = self._board.rule
        deadline = time.monotonic() + rule.wait_s + rule.expiry_s + _GRACE_S
        for line in _read_lines(guard.stdout, deadline):
            word, _, rest = line.partition(" ")
            if word == "locked":
                return
            if word == "held":
                print(f"waiting for the board {self._board.address.name}, {describe_owner(rest)}", file=sys.stderr)
            if word == "busy":
                text = f"the board {self._board.address.name} is in use, {describe_owner(rest)}"
                hint = f"wait for them, or remove {rule.path} on the board when you know that they are gone"
                raise BusyError(f"{text}; waited {rule.wait_s} s", hint)
        _, err = guard.communicate()
        error_text = err.decode("utf-8", "replace").strip() or "no reason was given"
        raise InfrastructureError(f"the board {self._board.address.name} cannot be locked: {error_text}")

    def leave(self) -> None:
        """Close the stdin of the guard, which then removes the job's folder and the lock."""
        self._left.set()
        if self._guard is not None:
            _end(self._guard)

    @property
    def is_ours(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    def upload(self, files: Mapping[str, str]) -> None:
        """Copy files and folders to these names in the job's folder."""
        with self._board.start('cd "$1" && tar -xf -', self.folder, stdin=subprocess.PIPE) as process:
            with contextlib.suppress(BrokenPipeError), tarfile.open(fileobj=process.stdin, mode="w|") as archive:
                for name, path in files.items():
                    archive.add(os.path.realpath(path), name)
            self._board.finish(process, "copying files")

    def download(self, name: str, folder: str) -> None:
        """Copy a folder from the job's folder: plain files only, and only into `folder`."""
        with self._board.start('cd "$1" && tar -cf - "$2"', self.folder, name) as process:
            with contextlib.suppress(tarfile.ReadError), tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                for member in archive:
                    _extract(archive, member, name, folder)
            self._board.finish(process, "copying files back")

    def run(self, argv: Sequence[str], env: Mapping[str, str]) -> CapturedOutput:
        """Run a program in the job's folder; its output is passed on to our stdout and stderr as it arrives."""
        words = ["env", *(f"{name}={value}" for name, value in env.items()), *argv] if env else list(argv)
        output = run_program(self._board.build_command(_RUN, self.folder, *words))
        if output.code not in (255, -signal.SIGKILL):
            return output
        # ssh's own failures have exit code 255, as a program may have: the recorded exit code distinguishes them
        code, out = self._board.ask('cat "$1/exit"', self.folder) if self.is_ours else (1, b"")
        if code or not out.strip().isdigit():
            raise InfrastructureError(f"the connection to the board {self._board.address.name} broke during the run")
        return CapturedOutput(int(out), output.stdout, output.stderr)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close a process's stdin, and kill the process if it does not end soon."""
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    process.kill()
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, folder: str) -> None:
    path = os.path.normpath(os.path.join(folder, os.path.relpath(member.name, name)))
    if not member.isfile() or not path.startswith(os.path.normpath(folder) + os.sep):
        return
    source = archive.extractfile(member)
    if source is not None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with source, open(path, "wb") as target:
            shutil.copyfileobj(source, target)


def _read_lines(stream: IO[bytes], deadline: float) -> Iterator[str]:
    """Yield lines as they arrive, until the end or the deadline."""
    buffer = b""
    while (left_s := deadline - time.monotonic()) > 0:
        if not select.select([stream], [], [], left_s)[0]:
            return
        chunk = os.read(stream.fileno(), 4096)
        if not chunk:
            return
        buffer += chunk
        while b"\n" in buffer:
            line, buffer = buffer.split(b"\n", 1)
            yield line.decode("utf-8", "replace").strip()


def describe_owner(text: str) -> str:
    """Describe the owner of a lock for a message: `text` is `user host pid since`, the content of the lock."""
    words = text.split()
    if len(words) != 4:
        return "held by an unknown process"
    user, host, pid, since = words
    return f"held by {user} on {host} (process {pid}) since {since.replace('T', ' ').replace('Z', ' UTC')}"
