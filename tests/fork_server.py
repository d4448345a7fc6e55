"""`assay` in a process of its own without the start of an interpreter: forked from one that has imported it.

It is a real process with its own environment, folder, streams, signals and exit code. What it does not show is the
start itself: for that, and for processes that a test looks for by their environment or command line, start
`python -m assay`.
"""

from __future__ import annotations

import atexit
import json
import os
import pkgutil
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

# Read when an interpreter or a library starts: with another value of theirs it has to be a new interpreter.
START = ("PYTHON", "LANG", "LC_", "TZ", "OMP_", "MKL_", "OPENBLAS_", "LD_", "MPL")
HEAD = struct.Struct("!I")


def call_assay(
    arguments: Sequence[str],
    *,
    cwd: str | os.PathLike[str],
    env: Mapping[str, str],
    timeout: float,
    new_session: bool = False,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([sys.executable, "-m", "assay", …], capture_output=True, text=True)`, without input."""
    command = [sys.executable, "-m", "assay", *arguments]
    if start_settings(env) != start_settings(os.environ):
        return subprocess.run(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            start_new_session=new_session,
        )
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        request = {"arguments": list(arguments), "cwd": os.fspath(cwd), "env": dict(env), "session": new_session}
        code = Server.get().call(request, out.fileno(), err.fileno(), timeout)
        if code is None:
            raise subprocess.TimeoutExpired(command, timeout)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


def start_settings(env: Mapping[str, str]) -> dict[str, str]:
    names = (name for name in env if name.startswith(START) and name != "PYTHONDONTWRITEBYTECODE")
    return {name: env[name] for name in names}


# ---------------------------------------------------------------- in the tests


class Server:
    """One for each process that runs tests; it ends when the connection does."""

    _started: Server | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.settings = start_settings(os.environ)
        ours, theirs = socket.socketpair()
        self.connection = ours
        command = [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())]
        top = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self.process = subprocess.Popen(command, cwd=top, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()
        atexit.register(self.close)

    @classmethod
    def get(cls) -> Server:
        with cls._lock:
            if cls._started is not None and cls._started.settings != start_settings(os.environ):
                cls._started.close()
                cls._started = None
            if cls._started is None:
                cls._started = cls()
            return cls._started

    def call(self, request: dict[str, Any], out: int, err: int, timeout: float) -> int | None:
        """The exit code as `subprocess` has it; None: it did not end in time, and was killed."""
        reader, writer = os.pipe()
        data = json.dumps(request).encode("utf-8", "surrogateescape")
        with open(reader, "rb") as answer:
            with self._lock:
                socket.send_fds(self.connection, [HEAD.pack(len(data))], [out, err, writer])
                self.connection.sendall(data)
            os.close(writer)
            pid = int(answer.readline())
            with selectors.DefaultSelector() as ready:
                ready.register(answer, selectors.EVENT_READ)
                if not ready.select(timeout):
                    os.kill(pid, signal.SIGKILL)
                    return None
            return int(answer.readline())

    def close(self) -> None:
        self.connection.close()
        self.process.wait()


# ---------------------------------------------------------------- the server


def serve(connection: socket.socket) -> None:
    """Fork for each request; in the child, return."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ready = selectors.DefaultSelector()
    ready.register(connection, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fileobj is connection:
                head, fds, _, _ = socket.recv_fds(connection, HEAD.size, 3)
                if not head:
                    sys.exit()
                request = json.loads(receive(connection, HEAD.unpack(head)[0]).decode("utf-8", "surrogateescape"))
                pid = os.fork()
                if pid == 0:
                    ready.close()
                    connection.close()
                    return become(request, fds)
                out, err, answer = fds
                os.close(out)
                os.close(err)
                os.write(answer, f"{pid}\n".encode())
                ready.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, answer))
            else:
                pid, answer = key.data
                ready.unregister(key.fileobj)
                os.close(key.fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(BrokenPipeError):
                    os.write(answer, f"{code}\n".encode())
                os.close(answer)


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += connection.recv(size - len(data))
    return data


def become(request: dict[str, Any], fds: Sequence[int]) -> None:
    """Everything that a new process would have: nothing of the server's is left open."""
    if request["session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(fds[0], 1)
    os.dup2(fds[1], 2)
    os.closerange(3, 256)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.stdout = open(1, "w", encoding="utf-8", errors=sys.stdout.errors, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    import assay.__main__

    sys.argv = [assay.__main__.__file__, *request["arguments"]]
    sys.path[0] = request["cwd"]


def load() -> None:
    """What commands import; of heavy libraries those that more than one needs."""
    import assay

    for name in ("numpy", "scipy.stats", "yaml", "click"):
        with suppress(ImportError):
            import_module(name)
    for module in pkgutil.walk_packages(assay.__path__, "assay."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):
                import_module(module.name)


if __name__ == "__main__":
    load()
    serve(socket.socket(fileno=int(sys.argv[1])))
    from assay.cli.main import main

    main()
