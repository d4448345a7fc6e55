"""One connection to a host: remote.sh runs at the other end and answers requests until the connection ends.

A request is a count and as many fields; every field ends with a zero byte. An answer is a sequence of records whose
format the caller knows, some with bytes whose number a field announces, then `Z`, an exit code and a message.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import shlex
import subprocess
import tempfile
import threading
import time
from functools import cache
from typing import IO

from assay.errors import InfrastructureError
from assay.farms.ssh_jobs import HostAddress
from assay.system.ssh import Address, explain_connection, find_client

_READY = b"assay ready\0"
_CONNECT_S = 10.0
_LONGEST_START_S = 3 * _CONNECT_S  # with login scripts
_NOT_FOUND = 127  # exit code of a shell that has no such command
_GRACE_S = 5.0
# these options switch off users' settings for terminals and end the connection together with its process
_PLAIN = ("-T", "-oControlMaster=no", "-oControlPath=none", "-oRemoteCommand=none", "-oClearAllForwardings=yes")
# the starter is one line, since a login shell may be csh or fish: remote.sh is sent as soon as bash runs
_STARTER = 'printf "assay ready\\0"; IFS= read -r -N {} script; eval "$script"'


class LostError(Exception):
    """The host could not be reached, or the connection broke: the result of the request is unknown."""


class RefusedError(Exception):
    """The host answered that it cannot execute the request."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@cache
def _load_script() -> str:
    with open(os.path.join(os.path.dirname(__file__), "remote.sh"), encoding="utf-8") as file:
        return file.read()


class SshSession:
    def __init__(self, address: HostAddress) -> None:
        self._host = address
        hint = f"a key without a password prompt is needed; try: ssh -o BatchMode=yes {address.name} true"
        self._address = Address(address.name, options=address.options, connect_s=_CONNECT_S, noun="host", key_hint=hint)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] = io.BytesIO()  # the output of ssh itself
        self._buffer = b""
        self.refusal = ""  # why the host takes no new jobs; the jobs that it has can be followed
        self._writing = threading.Lock()  # guards a request, or the field that ends a wait
        self._is_waiting = self._is_woken = False

    # ------------------------------------------------------------ connecting

    def connect(self) -> None:
        """Connect to the host; raise InfrastructureError if it does not answer."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self.refusal = ""
        command = "exec bash -c " + shlex.join([_STARTER.format(len(_load_script())), "assay", self._host.root])
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        argv = [find_client("host"), *_PLAIN, *self._address.words, "--", self._address.name, command]
        self._process = subprocess.Popen(  # own session: Ctrl-C must not reach ssh; jobs are ended on the host
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0, start_new_session=True
        )
        if not self._wait_until_ready():
            code = self._process.poll()
            said = self._load_errors()
            self.close()
            if code == _NOT_FOUND:
                raise InfrastructureError(f"the host {self._host.name} cannot run jobs: it has no bash", "install bash")
            raise InfrastructureError(*explain_connection(self._address, said))
        self.send(_load_script().encode())
        try:
            self.ask("hello")
        except RefusedError as error:
            self.refusal = f"the host {self._host.name} cannot run jobs in {self._host.root}: {error}"

    def _wait_until_ready(self) -> bool:
        """Wait until bash is ready on the host; ignore the output of login scripts before that."""
        deadline, seen = time.monotonic() + _LONGEST_START_S, b""
        fd = self._stdout.fileno()
        while _READY not in seen:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
                return False
            chunk = os.read(fd, 4096)
            if not chunk:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._running.wait(_GRACE_S)
                return False
            seen += chunk
        self._buffer = seen.partition(_READY)[2]
        return True

    def _load_errors(self) -> str:
        if self._errors.closed:
            return ""
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace")

    def interrupt(self) -> None:
        """Break the connection from another thread, which ends every wait for data from the host."""
        process = self._process
        if process is not None:
            with contextlib.suppress(OSError):
                process.kill()

    def close(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(OSError), self._process:  # `with` closes the pipes and waits for the process
            self._process.kill()
        self._errors.close()
        self._process, self._buffer, self._is_waiting = None, b"", False

    # ------------------------------------------------------------ asking

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise LostError(f"there is no connection to the host {self._host.name}")
        return self._process

    @property
    def _stdout(self) -> IO[bytes]:
        stream = self._running.stdout
        assert stream is not None
        return stream

    def begin(self, *words: str, may_wait: bool = False) -> None:
        """Send a request; its answer has to be read to the end."""
        data = "".join(f"{word}\0" for word in (str(len(words)), *words)).encode("utf-8", "surrogateescape")
        with self._writing:
            self.send(data)
            if may_wait and self._is_woken:
                self.send(b"\0")
            self._is_waiting = may_wait and not self._is_woken
            self._is_woken = self._is_woken and not may_wait

    def wake(self) -> None:
        """End the wait of a request on the host; other threads call this method."""
        with self._writing:
            self._is_woken = not self._is_waiting  # the next request that may wait returns at once
            if self._is_waiting:
                self._is_waiting = False
                with contextlib.suppress(LostError):
                    self.send(b"\0")

    def forget_wake(self) -> None:
        """Discard a call of `wake`: the caller is about to handle the event that `wake` reported."""
        self._is_woken = False

    def send(self, data: bytes) -> None:
        """Send bytes unchanged: content that belongs to a request."""
        stream = self._running.stdin
        assert stream is not None
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(stream.fileno(), view) :]
        except (OSError, ValueError):
            raise self._broken() from None

    def _broken(self) -> LostError:
        said = [line for line in self._load_errors().splitlines() if line.strip()]
        why = f": {said[-1].strip()}" if said else ""
        return LostError(f"the connection to the host {self._host.name} broke{why}")

    def ask(self, *words: str) -> list[str]:
        """Send a request and return its answer, which is a few fields."""
        self.begin(*words)
        return self.read_fields()

    def read_fields(self) -> list[str]:
        found = []
        while (field := self.take()) != "Z":
            found.append(field)
        self.end()
        return found

    def end(self) -> None:
        """Read the end of an answer, after its Z; raise RefusedError if the request failed."""
        with self._writing:
            self._is_waiting = False
        code, message = int(self.take() or 0), self.take()
        if code:
            raise RefusedError(message.strip().partition("\n")[0] or f"exit code {code}", code)

    def take(self) -> str:
        while b"\0" not in self._buffer:
            self._fill()
        field, _, self._buffer = self._buffer.partition(b"\0")
        return field.decode("utf-8", "surrogateescape")

    def _fill(self) -> None:
        try:
            chunk = os.read(self._stdout.fileno(), 1 << 16)
        except (OSError, ValueError):
            chunk = b""
        if not chunk:
            raise self._broken()
        self._buffer += chunk

    def copy(self, length: int, file: IO[bytes]) -> None:
        """Copy bytes of an answer to a file. All are read even if writing fails, so that the answer stays readable."""
        failure: OSError | None = None
        while length > 0:
            if not self._buffer:
                self._fill()
            piece, self._buffer = self._buffer[:length], self._buffer[length:]
            length -= len(piece)
            if failure is None:
                try:
                    file.write(piece)
                except OSError as error:
                    failure = error
        if failure is not None:
            raise failure

    def skip(self, length: int) -> None:
        with open(os.devnull, "wb") as nothing:
            self.copy(length, nothing)


class ChunkWriter:
    """Writes content of unknown length as pieces, each after its length; a length of 0 ends the content."""

    def __init__(self, session: SshSession) -> None:
        self._session = session

    def write(self, data: bytes) -> int:
        self._session.send(f"{len(data)}\0".encode() + data)
        return len(data)

    def finish(self) -> None:
        self._session.send(b"0\0")
