"""`python -m assay child worker FD`: the process that runs a back end.

A worker is two processes. The outer process is the guard: it loads nothing, waits, and ends all its descendants when
the work is done, when its own parent has ended (stdin ends), or when the inner process dies. The inner process has the
back end, reads requests as JSON lines from stdin, and writes answers to the descriptor FD. stdout and stderr belong to
the tools and are never read as anything but text.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import select
import sys
import time
import traceback
from typing import Any, Literal

from assay.errors import AssayError
from assay.models.backends.base import Backend, BackendError, Made, first_line
from assay.models.backends.registry import BACKENDS, OwnCode, build_backend, locate
from assay.models.values.model import Job, Step, StepEnding, StepOutcome, Target
from assay.plugins import read_child_words
from assay.system.fast_dataclasses import fields, replace
from assay.system.processes import adopt_orphans, die_with_parent, end_descendants, load_size
from assay.values.plain import build_plain, parse_plain

_SLACK_BYTES = 1 << 30  # memory that is reserved and never used: stacks of threads, arenas
_REAP_MS = 1000


def main() -> None:
    (reply,) = read_child_words("worker", sys.argv[1:], reply=_keep_descriptor)
    adopt_orphans()
    guard = os.getpid()
    worker = os.fork()
    if worker == 0:
        die_with_parent(guard)
        Worker(reply).serve()
        os._exit(0)
    watch(worker, reply)


def _keep_descriptor(word: str) -> int:
    os.write(int(word), b"")  # raises OSError if the descriptor cannot be written to
    os.set_inheritable(int(word), False)
    return int(word)


def watch(worker: int, reply: int) -> None:
    """Wait until the worker or the guard's own parent ends; then end all descendants of the guard."""
    status = _wait(worker)
    end_descendants(os.getpid())
    if status is not None:
        with contextlib.suppress(BrokenPipeError):
            # the worker may have died in the middle of a line
            os.write(reply, b"\n" + json.dumps({"died": os.waitstatus_to_exitcode(status)}).encode() + b"\n")


def _wait(worker: int) -> int | None:
    """Reap all processes that end; return the worker's status, or None if the other end of stdin is closed."""
    poller = select.poll()
    poller.register(0, 0)  # poll() reports only the end of stdin: the worker reads the lines
    poller.register(os.pidfd_open(worker), select.POLLIN)
    while True:
        ready = {fd for fd, _ in poller.poll(_REAP_MS)}
        status = None
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                status = ended[1] if ended[0] == worker else status
        if status is not None:
            return status
        if 0 in ready:
            return None


class Worker:
    def __init__(self, reply: int) -> None:
        self._reply = reply
        self._backend: Backend | AssayError = AssayError("no target was named")  # or the error that building it raised
        self._code: OwnCode | None = None

    def serve(self) -> None:
        faulthandler.enable(2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        requests = os.fdopen(os.dup(0), "rb")
        quiet = os.open(os.devnull, os.O_RDONLY)
        os.dup2(quiet, 0)  # a tool that reads stdin gets nothing, and none of the requests
        for line in requests:
            request = json.loads(line)
            if "close" in request:
                break
            self._send(self._answer(request))
        if isinstance(self._backend, Backend):
            self._backend.close()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "target" in request:
            return self._begin(parse_plain(Target, request["target"]))
        if "identity" in request:
            return self._identify(request["identity"])
        self._send({"begun": True})  # from here on, an error belongs to the job
        job = parse_plain(Job, request["job"])
        limit_memory(request.get("memory_bytes"))
        return {"outcome": build_plain(self._work(job))}

    def _begin(self, target: Target) -> dict[str, Any]:
        """Build the back end; an error is kept, and is the answer to each request that needs the back end."""
        try:
            if target.backend not in BACKENDS:
                self._code = OwnCode(locate(target)[0])  # hashed before the import: later edits change the key
            backend = build_backend(target)
            backend.announce = lambda command: self._send({"command": command})
            backend.warm_up()
            self._backend = backend
        except Exception as error:  # noqa: BLE001 - a user's back end may raise any exception
            self._backend = to_assay_error(error)
        return {"ready": True}

    def _identify(self, step: str | Literal[True]) -> dict[str, Any]:
        """Return what results of the whole target or of one step depend on; for a step also the back end's own code."""
        try:
            backend = self._need()
            if step is True:
                return {"identity": dict(backend.identity())}
            code = self._code.identify(type(backend)) if self._code is not None else {}
            return {"identity": {**backend.identify_step(Step(step)), **code}}
        except Exception as error:  # noqa: BLE001 - a user's tools may raise any exception
            return {"error": build_error(to_assay_error(error))}

    def _need(self) -> Backend:
        if isinstance(self._backend, AssayError):
            raise self._backend
        return self._backend

    def _work(self, job: Job) -> StepOutcome:
        start = time.perf_counter()
        try:
            backend = self._need()
            made = check_made(backend, job, backend.perform(job))
            outcome = StepOutcome(
                job.step, StepEnding.OK, **{each.name: getattr(made, each.name) for each in fields(Made)}
            )
        except BackendError as error:
            outcome = StepOutcome(
                job.step, error.ending, error.message, command=error.command, stdout=error.stdout, stderr=error.stderr,
                hint=error.hint,
            )  # fmt: skip
        except AssayError as error:
            outcome = StepOutcome(job.step, StepEnding.ERROR, error.message, hint=error.hint or "")
        except MemoryError:
            outcome = StepOutcome(job.step, StepEnding.MEMORY, "out of memory")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's tools may raise any exception
            traceback.print_exc()
            outcome = StepOutcome(job.step, StepEnding.ERROR, describe(error))
        return replace(outcome, elapsed_s=time.perf_counter() - start)

    def _send(self, answer: dict[str, Any]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        content = json.dumps(answer, default=str).encode() + b"\n"
        while content:
            content = content[os.write(self._reply, content) :]


def check_made(backend: Backend, job: Job, made: object) -> Made:
    """Check a result: a user's back end may return nothing by mistake, and files must be in the job's folder."""
    if not isinstance(made, Made):
        kind = type(backend)
        found = "None" if made is None else f"a {type(made).__name__}"
        raise BackendError(
            f"{kind.__module__}.{kind.__qualname__}.perform returned {found}, not Made",
            hint="return assay.models.backends.base.Made(path), with the path of what the step made",
        )
    folder = os.path.abspath(job.folder)
    is_there = os.path.exists(made.path)
    if not is_there or os.path.commonpath([folder, os.path.abspath(made.path)]) != folder:
        problem = "is outside of its folder" if is_there else "is not there"
        message = f"the {job.step} step succeeded, but its result {problem}: {made.path}"
        raise BackendError(message, command=made.command, stdout=made.stdout, stderr=made.stderr)
    return made


def to_assay_error(error: Exception) -> AssayError:
    if isinstance(error, AssayError):
        return error
    traceback.print_exc()
    return AssayError(describe(error))


def build_error(error: AssayError) -> dict[str, Any]:
    return {"kind": type(error).__name__, "facts": vars(error)}


def describe(error: BaseException) -> str:
    first = first_line(str(error))
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def limit_memory(limit_bytes: int | None) -> None:
    """Limit memory, in addition to the parent's check, for processes that grow too fast for it. Private writable
    memory counts (RLIMIT_DATA), not address space: compilers and runtimes reserve hundreds of gigabytes that they never
    touch."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if limit_bytes is None:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        return
    wanted = max(limit_bytes, load_size("self", "VmData")) + _SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


if __name__ == "__main__":
    main()
