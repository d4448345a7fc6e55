"""The contract of an executor: start `job.sh` somewhere, report whether the job is still alive, end it.

An executor knows nothing of sweeps or of what a run directory means. Every implementation must pass
`tests/contracts/executor.py`.

Concurrency: several supervisors, each with its own executor, may handle the same run directory. `publish` decides
the owner of an attempt: it writes `lease.N` by link(2) and is true for exactly one caller. An executor calls `publish`
before the job may begin, and undoes the start when `publish` returns False.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Literal

from assay.errors import InfrastructureError
from assay.values import layout
from assay.values.run import JobHandle, JobRequest, Liveness, StopKind, Usage
from assay.values.study import Farm


class UnconfirmedError(InfrastructureError):
    """Jobs that did not confirm in time that they stopped; `dirs` are their run directories."""

    def __init__(self, dirs: Sequence[str], hint: str, why: str = "") -> None:
        self.dirs = dirs
        more = f" ({why})" if why else ""
        super().__init__(f"these jobs have not confirmed that they stopped: {', '.join(dirs)}{more}", hint)


Publish = Callable[[JobHandle], bool]
EndKind = StopKind | Literal["lost", "taken back"]


class Executor(ABC):
    """Starts jobs, watches them, ends them."""

    name: str
    keys: ClassVar[Mapping[str, str]] = {}  # keys of a farm's section and their kinds, which `farms/engines.py` defines

    @classmethod
    def check(cls, _farm: Farm) -> None:
        """Check whether jobs could be submitted to this farm, before anything is written. Raises UsageError if
        something is not installed or not set, InfrastructureError if something does not answer."""
        return

    @classmethod
    def find_program(cls, _farm: Farm) -> str | None:
        """Return the program that submits, if the farm's text names it plainly; that program must exist."""
        return None

    @classmethod
    def uses_slots(cls, _farm: Farm) -> bool:
        """Return whether the farm's jobs run on this machine, and need its slots."""
        return False

    @classmethod
    def render_line(cls, _farm: Farm, request: JobRequest, command: str) -> str:
        """Return the line that people see of a submission: the training command, inside the submit command."""
        return layout.show_command(command, request.dir)

    @abstractmethod
    def submit(self, request: JobRequest, publish: Publish) -> JobHandle | None:
        """Start attempt `request.attempt`. Returns None if another supervisor owns the attempt: then nothing was
        started. Raises InfrastructureError when the job cannot be started at all."""

    def together(self) -> AbstractContextManager[None]:
        """Submit jobs in this block together if possible: all may be sent at the end of the block."""
        return nullcontext()

    @abstractmethod
    def liveness(self, handle: JobHandle, run_dir: str) -> Liveness:
        """Return whether the job can still produce exit markers. Callers read the markers after this call."""

    @classmethod
    def load_liveness(cls, handle: JobHandle, run_dir: str) -> Liveness:
        """Return what `liveness` returns for a job of which only the lease is known."""
        executor = cls()
        try:
            return executor.liveness(handle, run_dir)
        finally:
            executor.close()

    @abstractmethod
    def wait(self, timeout_s: float) -> Sequence[JobHandle]:
        """Sleep until a job ends, at most this long; return the jobs that are known to have ended."""

    def may_have_begun(self, _handle: JobHandle, _run_dir: str) -> bool:
        """Return whether the files of a job that waited in its engine's queue should be read."""
        return True

    @abstractmethod
    def watch(self, handle: JobHandle, run_dir: str) -> None:
        """Include a job that another process started in `wait`."""

    @abstractmethod
    def cancel(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> None:
        """End these jobs (handle, run directory) and everything they started: TERM, then KILL after the grace. Returns
        when no process of the jobs is left. The caller has written `stop.N` before."""

    def begin_cancel(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> Callable[[], bool]:
        """Cancel as `cancel` does, without waiting if possible. The caller calls the result until it is True."""
        self.cancel(jobs, grace_s)
        return lambda: True

    def leftovers(self, _handle: JobHandle, _run_dir: str) -> Sequence[str]:
        """Describe the processes that an ended job left running; `cancel` ends them."""
        return ()

    def find_end(self, _handle: JobHandle) -> float | None:
        """Return when a job ended, if that may have been before the end was noticed; None: it has just ended."""
        return None

    def usage(self, _handle: JobHandle) -> Usage | None:
        """Return the resources that an ended job used, if the executor was its parent."""
        return None

    @classmethod
    def find_job(cls, _handle: JobHandle, _run_dir: str) -> str:
        """Return the engine's name of an attempt, as the engine's commands take it; empty if there is none."""
        return ""

    @classmethod
    def render_entry(cls, _handle: JobHandle, _run_dir: str, host: str) -> str:
        """Return the command by which people enter a running job on this host; empty if there is none."""
        return shlex.join(["ssh", host])

    def is_handed_over(self) -> bool:
        """Return whether the jobs would finish without this process, since a farm has all of them."""
        return False

    def has_room(self) -> bool:
        """Return whether one more job could begin now; if False, the caller asks again later."""
        return True

    def take_messages(self) -> Sequence[str]:
        """Return messages for people since the last call, such as: a host does not answer."""
        return ()

    def refusal(self, _handle: JobHandle, _run_dir: str) -> str | None:
        """Return why a job never reached its farm, with the farm's own message; None if it did, or still may."""
        return None

    def explain_end(self, _handle: JobHandle, _run_dir: str) -> tuple[EndKind, str] | None:
        """Return why an engine itself refused or ended a job: the reason is recorded as the stop of the attempt.

        `interrupt`: a later call tries again. `lost`: the job was not stopped, and the engine knows nothing else;
        `taken back`: the engine is going to start the job again; `fence`: the job may still run on a machine that does
        not answer, and the next attempt replaces it. None: the job's own files explain its end.
        """
        return None

    def end_fenced(self, _handle: JobHandle, _run_dir: str) -> None:
        """End an attempt that was given up as soon as it can be reached, without waiting; called repeatedly."""
        return

    def close(self) -> None:
        """Release the resources of this executor. Jobs go on."""
        return
