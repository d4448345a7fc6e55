"""A folder with a study that was really run, for tests that read runs."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.fork_server import ForkedProcess, Server, call_assay

from assay.cli.main import run

# a study of which two runs end well, and two fail in `train` and never come to `test`
STUDY = r"""
study: fit
commands:
  train: for i in 1 2 3; do echo "step $i loss $((4 - i)).{n} lr {lr}"; done; [ {lr} != 0.5 ]
  test: echo "acc=0.{n}"
params: {lr: [0.1, 0.5], n: [7, 8]}
metrics: {step: 'step (\d+)', loss: 'loss ({number})', test.acc: {regex: 'acc=({number})', command: test}}
resources: {gpus: 0}
"""

# a study that waits, with children in sessions of their own, until it is ended
LONG = """
study: long
command: 'echo "step 1 loss {x}"; (setsid sleep 300 &) ; sleep 300'
params: {x: [1, 2, 3]}
metrics: {step: 'step (\\d+)', loss: 'loss ({number})'}
resources: {gpus: 0}
"""

GOOD, BAD = "lr=0.1,n=7", "lr=0.5,n=7"


class Result(NamedTuple):
    """The result of a call of the program."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    def ended(self, code: int, *said: str) -> Result:
        """Itself, after a look at the exit code and at texts on stderr."""
        assert self.code == code, self
        assert [text for text in said if text not in self.err] == [], self.err
        return self

    def printed(self, *texts: str) -> Result:
        """Itself, after a look at texts on stdout."""
        assert [text for text in texts if text not in self.out] == [], self.out
        return self


def fork_assay(arguments: Sequence[str], folder: Path, env: Mapping[str, str], out: int, err: int) -> ForkedProcess:
    """`assay` in a session of its own, with these descriptors as its stdout and stderr."""
    request = {"words": ["-m", "assay", *arguments], "cwd": str(folder), "env": dict(env), "session": True}
    return Server.get("assay").start(request, [out, err])


class Program:
    """`assay` in the background, forked and with pipes, with what tests need of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        out, err = os.pipe(), os.pipe()
        self._process = fork_assay(arguments, folder, env, out[1], err[1])
        for fd in (out[1], err[1]):
            os.close(fd)
        self.stdout, self.stderr = open(out[0]), open(err[0])  # noqa: SIM115
        self.pid, self.poll, self.wait = self._process.pid, self._process.poll, self._process.wait
        self.send_signal, self.kill = self._process.send_signal, self._process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        texts = {}
        streams = (self.stdout, self.stderr)
        readers = [threading.Thread(target=lambda s=each: texts.update({s: s.read()}), daemon=True) for each in streams]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
        self.wait(timeout)
        for stream in streams:
            stream.close()
        return texts[self.stdout], texts[self.stderr]


class Bench:
    """A folder for calls of `assay` in a process of its own, with its own slots and index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self.supervisor: Program | None = None
        self.extra = {"ASSAY_SLOTS_DIR": str(folder / ".slots"), "ASSAY_CACHE_DIR": str(folder / ".cache")}

    def enter(self, monkeypatch: pytest.MonkeyPatch) -> Bench:
        """Use the folder, slots and index of this bench in this process, until the test ends."""
        monkeypatch.chdir(self.folder)
        for name, value in self.extra.items():
            monkeypatch.setenv(name, value)
        return self

    @property
    def root(self) -> Path:
        return self.folder / "runs"

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name

    def start(self, *arguments: str) -> Program:
        return Program(arguments, self.folder, os.environ | self.extra)

    def assay(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return call_assay(arguments, cwd=self.folder, env=os.environ | self.extra, timeout=120, new_session=True)

    def read(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Execute a command that starts nothing in this process; call `enter` first."""
        streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2)]
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            code = run(arguments)
        texts = []
        for stream in streams:
            stream.flush()
            texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
        return subprocess.CompletedProcess(arguments, code, *texts)

    def run(self, text: str, *flags: str, file: str = "study.yml") -> subprocess.CompletedProcess[str]:
        return self.assay("run", self.write(file, text), "-j", "2", "--quiet", *flags)

    def add_finished(self) -> Bench:
        """The study `fit`, as `run(STUDY)` leaves it: run once in each process of the tests, and copied."""
        made = make_finished()
        shutil.copytree(made, self.folder, symlinks=True, dirs_exist_ok=True)
        old, new = os.fsencode(made), os.fsencode(self.folder)
        for path in self.folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and old in (content := path.read_bytes()):
                times = path.stat()
                path.write_bytes(content.replace(old, new))
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        return self


@functools.cache
def make_finished() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="assay-finished-")).resolve()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    bench = Bench(folder)
    result = bench.run(STUDY)
    assert result.returncode == 1, result.stderr  # two runs fail
    return bench.folder


def build_bench(folder: Path) -> Bench:
    """Build a bench with the study `fit`."""
    return Bench(folder).add_finished()


def until(condition: Callable[[], Any], what: str, limit_s: float = 120.0) -> Any:
    """Wait for something that has to happen, a cluster's start on two cores included; return the condition's result."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)
    return found
