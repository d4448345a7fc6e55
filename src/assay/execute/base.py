"""The contract of an executor: start `job.sh` somewhere, report whether it still lives, end it.

An executor knows nothing of sweeps or of what a run directory means. Every implementation must pass
`tests/contracts/executor.py`.

Concurrency: several supervisors, each with its own executor, may handle the same run directory. `publish` decides
the owner of an attempt: it writes `lease.N` by link(2) and is true for exactly one caller. An executor calls it before
the job may begin, and undoes its start when publish returns False.
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
    keys: ClassVar[Mapping[str, str]] = {}  # of a farm's section, with their kinds: `farms/engines.py` has those

    @classmethod
    def check(cls, _farm: Farm) -> None:
        """Whether jobs could be given to this farm: asked before anything is written.

        Raises UsageError for what is not installed or not set, InfrastructureError for what does not answer.
        """
        return

    @classmethod
    def find_program(cls, _farm: Farm) -> str | None:
        """The program that submits, where the farm's text names it plainly; it must be there."""
        return None

    @classmethod
    def uses_slots(cls, _farm: Farm) -> bool:
        """Whether the farm's jobs run on this machine, and take slots of it."""
        return False

    @classmethod
    def render_line(cls, _farm: Farm, request: JobRequest, command: str) -> str:
        """What people see of a submission: the training command, inside what submits it."""
        return layout.show_command(command, request.dir)

    @abstractmethod
    def submit(self, request: JobRequest, publish: Publish) -> JobHandle | None:
        """Start attempt `request.attempt`. None: another supervisor owns it, and nothing was run.

        Raises InfrastructureError when the job cannot be started at all.
        """

    def together(self) -> AbstractContextManager[None]:
        """What is submitted inside may be handed over at the end, all at once."""
        return nullcontext()

    @abstractmethod
    def liveness(self, handle: JobHandle, run_dir: str) -> Liveness:
        """Whether the job can still produce exit markers. Look here first, at the markers afterwards."""

    @classmethod
    def load_liveness(cls, handle: JobHandle, run_dir: str) -> Liveness:
        """Like the method above, where only the job's lease is known."""
        executor = cls()
        try:
            return executor.liveness(handle, run_dir)
        finally:
            executor.close()

    @abstractmethod
    def wait(self, timeout_s: float) -> Sequence[JobHandle]:
        """Sleep until a job ends, at most this long; the jobs that are known to have ended."""

    def may_have_begun(self, _handle: JobHandle, _run_dir: str) -> bool:
        """Whether it is worth while to look at the files of a job that waited in its engine's queue."""
        return True

    @abstractmethod
    def watch(self, handle: JobHandle, run_dir: str) -> None:
        """Take part in `wait` for a job that another process started."""

    @abstractmethod
    def cancel(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> None:
        """End these jobs (handle, run directory) and everything they started: TERM, then KILL after the grace.

        Returns when nothing of them is left. The caller has written `stop.N` before.
        """

    def begin_cancel(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> Callable[[], bool]:
        """Cancel as `cancel` does, without waiting if possible: the result is called until it is True."""
        self.cancel(jobs, grace_s)
        return lambda: True

    def leftovers(self, _handle: JobHandle, _run_dir: str) -> Sequence[str]:
        """The processes that an ended job left running, described; `cancel` ends them."""
        return ()

    def find_end(self, _handle: JobHandle) -> float | None:
        """When an ended job ended, where no supervisor may have looked at that time; None: now."""
        return None

    def usage(self, _handle: JobHandle) -> Usage | None:
        """What an ended job used, where the executor was its parent."""
        return None

    @classmethod
    def find_job(cls, _handle: JobHandle, _run_dir: str) -> str:
        """What the engine calls an attempt, as its own commands take it; empty: nothing."""
        return ""

    @classmethod
    def render_entry(cls, _handle: JobHandle, _run_dir: str, host: str) -> str:
        """The command that leads people to a running job on this host; empty: there is none."""
        return shlex.join(["ssh", host])

    def is_handed_over(self) -> bool:
        """Whether the jobs would come to their end without this process: a farm has them all."""
        return False

    def has_room(self) -> bool:
        """Whether one more job could begin now; where this is False, it is asked again later."""
        return True

    def take_messages(self) -> Sequence[str]:
        """What people should know since the last call, as in: a host does not answer."""
        return ()

    def refusal(self, _handle: JobHandle, _run_dir: str) -> str | None:
        """Why a job never came to its farm, with the farm's own message; None: it did, or may still."""
        return None

    def explain_end(self, _handle: JobHandle, _run_dir: str) -> tuple[EndKind, str] | None:
        """Why an engine itself refused or ended a job: recorded as the stop of that attempt; others go on.

        `interrupt`: a later call tries again. `lost`: it was not stopped, and this is what the engine knows; `taken
        back`: the engine wants to start it again itself; `fence`: it may still run somewhere that does not answer, and
        the next attempt takes its place. None: the job's own files hold all there is.
        """
        return None

    def end_fenced(self, _handle: JobHandle, _run_dir: str) -> None:
        """End an attempt that was given up, when it can be reached, and do not wait for that. Called repeatedly."""
        return

    def close(self) -> None:
        """Release what this executor holds. Jobs go on."""
        return
