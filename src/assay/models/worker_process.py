"""The parent's side of a worker: send jobs, check time and memory, and turn every end into an outcome.

Nothing that a target does is an exception here: if it crashes, hangs, uses too much memory or fills the disk, the job's
outcome reports that, and the next job gets a new worker. Only a target that is not available at all (an unknown back
end, a missing extra) raises, and only when its identity is requested.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Self

from assay import errors
from assay.errors import AssayError, InfrastructureError
from assay.models.backends.captured_output import load_excerpt, name_signal
from assay.models.backends.registry import BACKENDS, build_backend
from assay.models.values.model import Job, Step, StepEnding, StepLimits, StepOutcome, Target
from assay.system.fast_dataclasses import replace
from assay.system.files import Tail
from assay.system.processes import end_descendants, find_descendants, measure_memory
from assay.values.plain import build_plain, parse_plain

START_S = 180.0  # time to load libraries, and to reach a board
OUTPUT_BYTES = 256 * 1024 * 1024  # most output of one job: a tool that writes more is ended
_POLL_S = 0.05
_CLOSE_S = 5.0
_NO_MEMORY = ("std::bad_alloc", "MemoryError", "Cannot allocate memory", "out of memory", "Out of memory")


class _DeathError(Exception):
    """The worker has ended, or had to be killed."""

    def __init__(self, ending: StepEnding, message: str) -> None:
        super().__init__(message)
        self.ending, self.message = ending, message


class WorkerProcess:
    """A worker process for one target, which is replaced after its death; not safe for use by several threads."""

    def __init__(
        self, target: Target, *, folder: str, live: bool = False, env: Mapping[str, str] | None = None
    ) -> None:
        self.target = target
        self.steps: tuple[Step, ...] = (Step.COMPILE, Step.RUN)
        self._may_change = False
        if target.backend in BACKENDS:  # report invalid options now, and only once
            backend = build_backend(target)
            self.steps, self._may_change = backend.steps, backend.may_change
        self._folder = os.path.abspath(folder)
        self._env = {**os.environ, **(env or {})}
        self._live = live
        self._process: _Process | None = None
        self._identity: dict[Step | None, Mapping[str, str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def identity(self, step: Step | None = None) -> Mapping[str, str]:
        """Return the tools and versions of all steps or of one step. Answers are cached, except for a step whose tools
        may be edited during the run. Raises the back end's error."""
        if step not in self._identity or (step is not None and self._may_change):
            try:
                answer = self._ask({"identity": True if step is None else str(step)}, START_S, None)
            except _DeathError as death:
                self._drop()
                lines = load_excerpt(os.path.join(self._folder, "stderr")).strip().splitlines()
                fatal = next((n for n, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
                # faulthandler prints the innermost frame of a crash first
                text = "\n".join(lines[-5:] if fatal is None else lines[fatal : fatal + 5]) or None
                raise InfrastructureError(
                    f"the target {self.target.name!r} cannot be queried: {death.message}", text
                ) from None
            if "error" in answer:
                raise parse_error(answer["error"])
            self._identity[step] = dict(answer["identity"])
        return self._identity[step]

    def work(self, job: Job, limits: StepLimits | None = None) -> StepOutcome:
        """Execute one step of one case."""
        held = limits or StepLimits()
        start = time.perf_counter()
        try:
            request = {"job": build_plain(job), "memory_bytes": held.memory_bytes}
            answer = self._ask(request, held.seconds(job.step), held.memory_bytes)
            outcome = parse_plain(StepOutcome, answer["outcome"])
            command = self._process.command if self._process is not None else ""
        except _DeathError as death:
            elapsed_s = time.perf_counter() - start
            outcome = StepOutcome(job.step, death.ending, death.message, elapsed_s=elapsed_s)
            command = self._process.command if self._process is not None else ""
            self._drop()  # kill the worker before its output is read: it may write faster than this process reads
        return self._complete(outcome, held, command)

    def close(self) -> None:
        """End the worker and all its descendants."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _ask(self, request: Mapping[str, Any], limit_s: float | None, memory_bytes: int | None) -> dict[str, Any]:
        for is_last in (False, True):
            process = self._start()
            process.clear_output()
            try:
                process.send(request)
                return process.receive(limit_s, memory_bytes)
            except _DeathError as death:
                if is_last or process.has_begun or "job" not in request or death.ending is not StepEnding.CRASH:
                    raise
                self._drop()  # the worker died before it read the job: another worker executes the job
        raise AssertionError("unreachable")

    def _start(self) -> _Process:
        """Return a worker that has loaded its libraries, so that the time of a step does not include loading."""
        if self._process is None or not self._process.is_alive():
            self._drop()
            self._process = _Process(self._folder, self._env, live=self._live)
            self._process.send({"target": build_plain(self.target)})
            self._process.receive(START_S, None)
        return self._process

    def _drop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None
        if self.target.backend not in BACKENDS:
            # the next worker loads the user's own code again, which may have been edited: drop the identities of steps
            self._identity = {step: found for step, found in self._identity.items() if step is None}

    def _complete(self, outcome: StepOutcome, limits: StepLimits, command: str) -> StepOutcome:
        """Add the output of the job to the outcome, and the command that was announced last, if the back end could not
        report its own. If a limited program reports or dies of a failed allocation, the step ended with MEMORY."""
        changes: dict[str, Any] = {}
        for name, brought in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
            output = load_excerpt(os.path.join(self._folder, name))
            changes[name] = output if brought.strip() in output else f"{output}\n{brought}".lstrip("\n")
        if not outcome.is_ok and not outcome.command:
            changes["command"] = command
        is_limited = limits.memory_bytes is not None and outcome.ending in (StepEnding.CRASH, StepEnding.ERROR)
        if is_limited and any(words in changes["stderr"] + outcome.message for words in _NO_MEMORY):
            changes["message"] = f"{outcome.message}; it could not allocate more memory"
            changes["ending"] = StepEnding.MEMORY
        return replace(outcome, **changes)


def parse_error(content: Mapping[str, Any]) -> AssayError:
    """Return the worker's error without calling the constructor, which would build the message again."""
    kind: type[AssayError] = getattr(errors, content["kind"], AssayError)
    error = kind.__new__(kind)
    vars(error).update(content["facts"])
    return error


class _Process:
    def __init__(self, folder: str, env: Mapping[str, str], *, live: bool) -> None:
        os.makedirs(folder, exist_ok=True)
        self._paths = {name: os.path.join(folder, name) for name in ("stdout", "stderr")}
        self._tails = {name: Tail(path) for name, path in self._paths.items()}
        self._live = live
        self._buffer = b""
        self.has_begun = False  # whether the last request has begun
        self.command = ""  # the running command, if the back end has announced one
        self._replies, there = os.pipe()
        try:
            self._process = self._spawn(env, there)
        except BaseException:
            os.close(self._replies)
            raise
        finally:
            os.close(there)
        self._pidfd = os.pidfd_open(self._process.pid)

    def _spawn(self, env: Mapping[str, str], reply: int) -> subprocess.Popen[bytes]:
        # -P: the working directory is the user's, and may contain an onnx.py
        argv = [sys.executable, "-P", "-m", "assay", "child", "worker", str(reply)]
        with open(self._paths["stdout"], "ab") as out, open(self._paths["stderr"], "ab") as err:
            return subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=out, stderr=err, pass_fds=[reply], env=env, start_new_session=True
            )

    def is_alive(self) -> bool:
        """Return whether the worker accepts another job: a worker that died between jobs is replaced silently."""
        self._read(0.0)
        return self._process.poll() is None and b'"died"' not in self._buffer

    def send(self, message: Mapping[str, Any]) -> None:
        stream = self._process.stdin
        assert stream is not None
        self.has_begun, self.command = False, ""
        try:
            stream.write(json.dumps(message).encode() + b"\n")
            stream.flush()
        except BrokenPipeError:
            raise _DeathError(StepEnding.CRASH, "the worker process ended") from None

    def receive(self, limit_s: float | None, memory_bytes: int | None) -> dict[str, Any]:
        """Return the next answer. Raises _DeathError."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        try:
            while True:
                for answer in self._take_lines():
                    if "died" in answer:
                        raise _DeathError(StepEnding.CRASH, describe_end(answer["died"]))
                    self.has_begun |= "begun" in answer
                    self.command = answer.get("command", self.command)
                    if "begun" not in answer and "command" not in answer:  # these two only report progress
                        return answer
                left_s = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
                self._read(max(0.0, left_s))
                self._check_limits(memory_bytes)
                if deadline is not None and time.monotonic() >= deadline and b"\n" not in self._buffer:
                    raise _DeathError(StepEnding.TIMEOUT, f"still running after {limit_s:g} s")
        finally:
            self._echo()

    def _take_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the worker's complete lines, parsed as JSON; a line that was cut off by its death is ignored."""
        while b"\n" in self._buffer:
            line, self._buffer = self._buffer.split(b"\n", 1)
            with contextlib.suppress(ValueError):
                yield json.loads(line)

    def _read(self, timeout_s: float) -> None:
        poller = select.poll()
        poller.register(self._replies, select.POLLIN)
        poller.register(self._pidfd, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(timeout_s * 1000)}
        chunk = os.read(self._replies, 1 << 20) if self._replies in ready else b""
        self._buffer += chunk
        if ready and not chunk:  # the guard itself has ended, and all its answers have been read
            self._buffer += b'\n{"died": -9}\n'

    def _check_limits(self, memory_bytes: int | None) -> None:
        self._echo()
        if memory_bytes is not None:
            used_bytes = measure_memory(find_descendants(self._process.pid))
            if used_bytes > memory_bytes:
                text = f"{used_bytes / 2**20:.0f} MiB in use, the limit is {memory_bytes / 2**20:.0f} MiB"
                raise _DeathError(StepEnding.MEMORY, text)
        if sum(os.stat(path).st_size for path in self._paths.values()) > OUTPUT_BYTES:
            raise _DeathError(StepEnding.ERROR, f"more than {OUTPUT_BYTES >> 20} MiB of output")

    def clear_output(self) -> None:
        for path in self._paths.values():
            os.truncate(path, 0)
        for tail in self._tails.values():
            tail.offset = 0

    def _echo(self) -> None:
        for name, tail in self._tails.items() if self._live else ():
            while chunk := tail.read():
                stream = getattr(sys, name)  # looked up each time: pytest replaces the stream between tests
                stream.write(chunk.decode("utf-8", "replace"))
                stream.flush()

    def close(self) -> None:
        """End the worker, which closes its connections and resets boards; kill it if that takes too long."""
        with contextlib.suppress(_DeathError, OSError):
            self.send({"close": True})
            self._process.wait(_CLOSE_S)
        self.kill()

    def kill(self) -> None:
        """Kill the worker: the guard ends all descendants once stdin is closed; if the guard hangs, end them here."""
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            end_descendants(self._process.pid)
            self._process.kill()
            self._process.wait()
        for fd in (self._replies, self._pidfd):
            os.close(fd)


def describe_end(code: int) -> str:
    """Describe an exit code of subprocess as text."""
    if code >= 0:
        return f"its process ended with exit code {code}"
    reason = f" ({signal.strsignal(-code)})" if -code in set(signal.Signals) else ""
    by_kernel = ": perhaps by the kernel, for lack of memory" if -code == signal.SIGKILL else ""
    return f"its process was killed by {name_signal(-code)}{reason}{by_kernel}"
