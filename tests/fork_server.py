"""Python in a process of its own, forked from one that has imported what it needs, instead of a new interpreter.

It is a real process with its own environment, folder, streams, signals and exit code. It does not show the start
itself: to test that, or what is imported when, or processes that a test looks for by their environment or command line,
start `sys.executable`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import json
import os
import pkgutil
import re
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import IO, Any, ClassVar

# Variables that are read when an interpreter or a library starts: another value of one needs a new interpreter.
START = ("PYTHON", "LANG", "LC_", "TZ", "OMP_", "MKL_", "OPENBLAS_", "LD_", "MPL")
HEAD = struct.Struct("!I")
# A fork copies an entry for each page that was written: with the server's memory in large pages, a third of the time.
LARGE_PAGES = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def call_assay(
    arguments: Sequence[str],
    *,
    cwd: str | os.PathLike[str],
    env: Mapping[str, str],
    timeout: float,
    new_session: bool = False,
) -> subprocess.CompletedProcess[str]:
    return call_python(["-m", "assay", *arguments], cwd=cwd, env=env, timeout=timeout, new_session=new_session)


def call_python(
    words: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
    new_session: bool = False,
    is_merged: bool = False,
    kind: str = "",
) -> subprocess.CompletedProcess[str]:
    """Call Python as `subprocess.run([sys.executable, *words], capture_output=True, text=True)`, without input; `words`
    are `-m MODULE` or a script, and its arguments. `is_merged`: all is in `stdout`. `kind`: of LIBRARIES."""
    command = [sys.executable, *words]
    env = dict(os.environ if env is None else env)
    with tempfile.TemporaryFile("w+") as out, contextlib.ExitStack() as stack:
        err = out if is_merged else stack.enter_context(tempfile.TemporaryFile("w+"))
        if start_settings(env) == SETTINGS:
            request = {"words": list(words), "cwd": os.fspath(cwd or os.getcwd()), "env": env, "session": new_session}
            server = Server.get(kind or ("pytest" if words[:2] == ["-m", "pytest"] else "assay"))
            process = server.start(request, [out.fileno(), err.fileno()])
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
        else:
            code = subprocess.run(
                command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=timeout,
                check=False, start_new_session=new_session,
            ).returncode  # fmt: skip
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), "" if is_merged else err.read())


# Commands of ours in which bash would only remove the quotes and a comment.
PLAIN = re.compile(r"""assay(?: +(?:[\w./:=,@%+-]|\{\w+\}|'[^']*'|"[^"$`\\!]*")+)+(?: +# .*)?""")


def call_shell(
    command: str,
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
    is_merged: bool = False,
    may_fork: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Execute a line as it is typed: by bash, or forked if it is a plain command of the Assay that is tested."""
    program = shutil.which("assay", path=(env or os.environ)["PATH"])
    if may_fork and PLAIN.fullmatch(command) and program == os.path.join(os.path.dirname(sys.executable), "assay"):
        return call_python(
            ["-m", *shlex.split(command, comments=True)], cwd=cwd, env=env, timeout=timeout, is_merged=is_merged
        )
    return subprocess.run(
        ["bash", "-c", command], cwd=cwd, env=env, timeout=timeout, check=False, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT if is_merged else subprocess.PIPE,
    )  # fmt: skip


def start_assay(
    arguments: Sequence[str], *, cwd: str | os.PathLike[str], env: Mapping[str, str], log: IO[str]
) -> ForkedProcess:
    """Start `assay` in the background with all output in the log. Its environment cannot be read from outside."""
    request = {"words": ["-m", "assay", *arguments], "cwd": os.fspath(cwd), "env": dict(env), "session": False}
    return Server.get("assay").start(request, [log.fileno(), log.fileno()])


def start_worker(process: Any, spawn: Callable[..., Any], env: Mapping[str, str], reply: int) -> Any:
    """Fork a worker of a model's back end, instead of `spawn` of `assay.models.worker_process`. The descriptor of its
    answers is number 3 there."""
    folders = env.get("PYTHONPATH", "").split(os.pathsep)
    has_own_start = any(os.path.exists(os.path.join(folder, "sitecustomize.py")) for folder in folders)
    if has_own_start or start_settings(env) | {"PYTHONPATH": ""} != SETTINGS | {"PYTHONPATH": ""}:
        return spawn(process, env, reply)
    request = {"words": ["-m", "assay", "child", "worker", "3"], "cwd": os.getcwd(), "env": dict(env), "session": True}
    reader, writer = os.pipe()
    with (
        open(process._paths["stdout"], "ab") as out,
        open(process._paths["stderr"], "ab") as err,
        open(reader) as stdin,
    ):
        forked = Server.get("pytest").start(request, [out.fileno(), err.fileno(), stdin.fileno(), reply])
    forked.stdin = open(writer, "wb")  # noqa: SIM115
    return forked


class ForkedProcess:
    """A forked process with what tests need of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], answer: int) -> None:
        self.words, self._answer = words, open(answer, "rb")  # noqa: SIM115
        self.pid = int(self._answer.readline())
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            with selectors.DefaultSelector() as ready:
                ready.register(self._answer, selectors.EVENT_READ)
                if not ready.select(timeout):
                    raise subprocess.TimeoutExpired(self.words, timeout or 0)
            self.returncode = int(self._answer.readline())
            self._answer.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_settings(env: Mapping[str, str]) -> dict[str, str]:
    names = (name for name in env if name.startswith(START) and name != "PYTHONDONTWRITEBYTECODE")
    return {name: env[name] for name in names}


SETTINGS = start_settings(os.environ)


# ---------------------------------------------------------------- in the tests


class Server:
    """The server of a kind for each process that executes tests; it ends when the connection does."""

    _started: ClassVar[dict[str, Server]] = {}
    _lock = threading.Lock()

    def __init__(self, kind: str) -> None:
        ours, theirs = socket.socketpair()
        self.connection = ours
        command = [sys.executable, "-m", "tests.fork_server", kind, str(theirs.fileno())]
        top = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        env = {name: value for name, value in os.environ.items() if not name.startswith(START)} | SETTINGS
        env |= LARGE_PAGES
        self.process = subprocess.Popen(command, cwd=top, env=env, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()
        atexit.register(self.close)

    @classmethod
    def get(cls, kind: str) -> Server:
        with cls._lock:
            if kind not in cls._started:
                cls._started[kind] = cls(kind)
            return cls._started[kind]

    def start(self, request: dict[str, Any], fds: Sequence[int]) -> ForkedProcess:
        """Start a process. `fds`: its stdout and stderr; then, if it has them, its stdin and its descriptor 3."""
        reader, writer = os.pipe()
        data = json.dumps(request).encode("utf-8", "surrogateescape")
        with self._lock:
            socket.send_fds(self.connection, [HEAD.pack(len(data))], [writer, *fds])
            self.connection.sendall(data)
        os.close(writer)
        return ForkedProcess(request["words"], reader)

    def close(self) -> None:
        self.connection.close()
        self.process.wait()


# ---------------------------------------------------------------- the server


def serve(connection: socket.socket) -> None:
    """Fork for each request; the child executes it and ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ready = selectors.DefaultSelector()
    ready.register(connection, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fileobj is connection:
                head, fds, _, _ = socket.recv_fds(connection, HEAD.size, 5)
                if not head:
                    sys.exit()
                request = json.loads(receive(connection, HEAD.unpack(head)[0]).decode("utf-8", "surrogateescape"))
                pid = os.fork()
                if pid == 0:
                    ready.close()
                    connection.close()
                    become(request, fds[1:])
                answer, *others = fds
                for fd in others:
                    os.close(fd)
                os.write(answer, f"{pid}\n".encode())
                ready.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, answer))
            else:
                pid, answer = key.data
                ready.unregister(key.fileobj)
                os.close(key.fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(BrokenPipeError):
                    os.write(answer, f"{code}\n".encode())
                os.close(answer)


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += connection.recv(size - len(data))
    return data


def become(request: dict[str, Any], fds: Sequence[int]) -> None:
    """Give this process everything that a new one would have: no file of the server's stays open."""
    if request["session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for fd, number in zip(fds, (1, 2, 0, 3), strict=False):
        os.dup2(fd, number)
    os.closerange(4 if len(fds) == 4 else 3, 256)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.stdout = open(1, "w", encoding="utf-8", errors=sys.stdout.errors, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.path[1:1] = filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))
    leave(run(request["words"], request["cwd"]))


def run(words: list[str], folder: str) -> object:
    """Execute the arguments as the interpreter does; return what it would exit with."""
    sys.modules.pop("tests", None)
    if words[:2] == ["-m", "pytest"]:
        serve_workers()
    try:
        if words[0] == "-m":
            sys.argv, sys.path[0] = words[1:], folder
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = words, os.path.dirname(words[0])
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as exit_:
        return exit_.code
    return 0


def serve_workers() -> None:
    """Fork the workers of back ends that this process needs from a child of it, made while there is one thread. The
    child loads what the variable TESTS_PRELOAD names."""
    global SETTINGS  # noqa: PLW0603
    SETTINGS = start_settings(os.environ)
    worker_process = import_module("assay.models.worker_process")
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        try:
            ours.close()
            for name in os.environ.get("TESTS_PRELOAD", "").split():
                import_module(name)
            serve(theirs)
        finally:
            os._exit(0)
    theirs.close()
    server = Server.__new__(Server)
    server.connection = ours
    Server._started["pytest"] = server
    worker_process._Process._spawn = functools.partialmethod(start_worker, worker_process._Process._spawn)


def leave(code: object) -> None:
    """Exit as the interpreter does, but without clearing the modules, which writes to each page that is shared."""
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(code or 0)


# Libraries that several tests need; none that starts threads (onnxruntime). pytest imports its plugins itself. Workers
# of back ends are forked from the server of pytests: both need onnx, and a server takes a second to start.
LIBRARIES = {
    "assay": ("numpy", "scipy.special", "yaml", "click", "optuna"),
    "pytest": ("pytest", "_pytest.main", "numpy", "scipy.special", "yaml", "ml_dtypes", "onnx"),
}


def load(kind: str) -> None:
    for name in LIBRARIES[kind]:
        with contextlib.suppress(ImportError):
            import_module(name)
    import assay

    for module in pkgutil.walk_packages(assay.__path__, "assay."):
        # the page's libraries bring a plugin of pytest
        is_late = kind != "assay" and ("pytest" in module.name or "web" in module.name)
        if not module.name.endswith("__main__") and not is_late:
            with contextlib.suppress(ImportError):
                import_module(module.name)


STUDY = """
study: fit
command: echo loss {x}
params: {x: [1, 2]}
metrics: {loss: 'loss ({number})'}
resources: {gpus: 0}
"""


def warm_up() -> None:
    """Run a study and read it, so that forked processes have what is compiled at its first use: half of their time."""
    from assay.cli.main import run
    from assay.system import processes

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), open("said", "w") as said:
        os.environ |= {"ASSAY_CACHE_DIR": f"{folder}/cache", "ASSAY_SLOTS_DIR": f"{folder}/slots"}
        with open("study.yml", "w") as file:
            file.write(STUDY)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            for words in (["run", "study.yml"], ["sum", "fit"], ["ls", "fit"], ["show", "fit/x=1"]):
                if run(words):
                    raise SystemExit(f"{words} failed where the fork server warms up")
    processes.own_start.cache_clear()  # each child has its own start


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old names of modules
        load(sys.argv[1])
        warm_up()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[2])))
