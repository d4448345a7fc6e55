"""Jobs as processes of this host.

A job starts in a session of its own, blocked on a pipe (the gate). Only after its lease is published does one byte open
the gate; when the supervisor dies before that, the pipe ends and the job exits without having done anything.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
from collections.abc import Callable, Sequence

from assay.errors import InfrastructureError, explain_refusal
from assay.execute import process
from assay.execute.base import Executor, Publish
from assay.system import processes
from assay.system.fast_dataclasses import dataclass, replace
from assay.values import layout
from assay.values.run import JobHandle, JobRequest, Liveness, Usage

_GATE_FD = 3
_LOOKS = 10


@dataclass(slots=True)
class _Watched:
    handle: JobHandle
    is_child: bool
    dir: str


class LocalExecutor(Executor):
    name = "local"

    def __init__(self, *, owns_process: bool = False) -> None:
        """`owns_process`: this process has no other children, so it may adopt processes that jobs leave."""
        self._owns_process = owns_process
        self._bash = shutil.which("bash") or "/bin/bash"
        self._poll = select.epoll()
        self._watched: dict[int, _Watched] = {}  # by pidfd
        self._usage: dict[JobHandle, Usage] = {}
        self._gone: list[JobHandle] = []  # jobs that ended before they could be watched
        self._orphans: process.Orphans | None = None  # built for the first job
        self._left: dict[JobHandle, tuple[str, ...]] = {}  # processes that ended children left running
        self._seen: dict[JobHandle, frozenset[tuple[int, int]]] = {}  # pid and start of the members
        self._unrelated: dict[int, int | None] = {}  # pid -> start of orphans that belong to no job of this executor
        self._base: dict[bytes, bytes] | None = None  # the common environment of all jobs, encoded for the first

    def submit(self, request: JobRequest, publish: Publish) -> JobHandle | None:
        if self._owns_process and self._orphans is None:
            self._orphans = process.Orphans()
        gate, opener = os.pipe()
        try:
            if self._base is None:
                self._base = process.encode_environment(process.base_environment())
            own = {**process.request_environment(request), layout.ENV_GATE: str(_GATE_FD)}
            env = {**self._base, **process.encode_environment(own)}
            argv = [self._bash, os.path.join(request.dir, layout.JOB_FILE)]
            inherit = [(gate, _GATE_FD), *process.place_slots(request.slot_fds)]
            pid = processes.spawn_session(argv, env, os.path.join(request.dir, layout.JOB_LOG), inherit)
        except OSError as error:
            os.close(opener)
            raise InfrastructureError(f"cannot start {request.name}: {explain_refusal(error)}") from error
        finally:
            os.close(gate)
        try:
            return self._open_gate(request, publish, pid, opener)
        finally:
            os.close(opener)

    def _open_gate(self, request: JobRequest, publish: Publish, pid: int, opener: int) -> JobHandle | None:
        handle = process.build_handle(request, self.name, pid)
        try:
            won = publish(handle)
        except BaseException:  # on a full disk or Ctrl-C: without a lease the job must not begin
            _end_loser(pid)
            raise
        if not won:
            _end_loser(pid)
            return None
        self._watch_pid(handle, request.dir, is_child=True)
        with contextlib.suppress(BrokenPipeError):  # the job was killed in between: its end is noticed like any other
            os.write(opener, b"1")
        return handle

    def watch(self, handle: JobHandle, run_dir: str) -> None:
        if handle.host != processes.host_name() or any(w.handle == handle for w in self._watched.values()):
            return  # the pid belongs to another host, or is watched already
        self._watch_pid(handle, run_dir, is_child=False)

    def _watch_pid(self, handle: JobHandle, run_dir: str, is_child: bool) -> None:
        if handle.pid <= 0:
            self._gone.append(handle)
            return
        try:
            pidfd = os.pidfd_open(handle.pid)
        except ProcessLookupError:
            self._gone.append(handle)
            return
        if not is_child and not processes.is_alive(handle.pid, handle.start, handle.boot):
            os.close(pidfd)
            self._gone.append(handle)
            return
        self._watched[pidfd] = _Watched(handle, is_child, run_dir)
        self._poll.register(pidfd, select.EPOLLIN)

    def wait(self, timeout_s: float) -> Sequence[JobHandle]:
        ended, self._gone = self._gone, []
        children = []
        for pidfd, _ in self._poll.poll(0 if ended else max(0.0, timeout_s)):
            watched = self._watched.pop(pidfd)
            self._poll.unregister(pidfd)  # a child that is just being spawned may still hold a copy of the descriptor
            os.close(pidfd)
            if watched.is_child:
                children.append(watched)
                if (used := _reap(watched.handle.pid)) is not None:
                    self._usage[watched.handle] = used
            ended.append(watched.handle)
        if children and self._orphans is not None and self._orphans.is_active:
            self._note_leftovers(children, self._orphans)
        return ended

    def _note_leftovers(self, ended: Sequence[_Watched], orphans: process.Orphans) -> None:
        """Search all processes for left-over ones, if an orphan does not belong to a running job."""
        for _ in range(_LOOKS):
            running = [_attempt(each.handle, each.dir) for each in self._watched.values()]
            found = orphans.find(each.handle.pid for each in self._watched.values() if each.is_child)
            self._unrelated = {pid: start for pid, start in self._unrelated.items() if pid in found}
            known = {pid for pid, start in self._unrelated.items() if processes.process_start(pid) == start}
            suspects = {pid for pid in found - known if not process.is_of(pid, running)}
            for each in ended:
                left = process.find_members([_attempt(each.handle, each.dir)]) if suspects else set()
                suspects -= left
                self._left[each.handle] = self._remember(each.handle, left)
            if all(processes.process_start(pid) for pid in suspects):
                break  # otherwise an orphan ended during the search, and its children may have been missed
        self._unrelated |= {pid: processes.process_start(pid) for pid in suspects}

    def _remember(self, handle: JobHandle, left: set[int]) -> tuple[str, ...]:
        """Describe left-over processes, and keep them to be ended, even if one opens a session of its own later."""
        if left:
            self._seen[handle] = frozenset((pid, processes.process_start(pid) or 0) for pid in left)
        return tuple(map(processes.describe_process, sorted(left)))

    def leftovers(self, handle: JobHandle, run_dir: str) -> Sequence[str]:
        known = self._left.pop(handle, None)
        if known is not None:
            return known
        if handle.host != processes.host_name() or handle.boot != processes.boot_id():
            return ()
        attempts = [_attempt(handle, run_dir)]
        # a second search, since a process that forks and exits (`setsid PROGRAM`) can slip through one
        return self._remember(handle, process.find_members(attempts) or process.find_members(attempts))

    def usage(self, handle: JobHandle) -> Usage | None:
        return self._usage.pop(handle, None)

    def liveness(self, handle: JobHandle, run_dir: str) -> Liveness:  # noqa: ARG002
        if handle.host != processes.host_name():
            return Liveness.UNKNOWN
        alive = processes.is_alive(handle.pid, handle.start, handle.boot)
        return Liveness.ALIVE if alive else Liveness.GONE

    def cancel(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> None:
        process.end_attempts(self._find_attempts(jobs), grace_s)
        elsewhere = [handle for handle, _ in jobs if handle.host != processes.host_name()]
        if elsewhere:
            places = ", ".join(f"pid {handle.pid} on {handle.host}" for handle in elsewhere)
            raise InfrastructureError(f"these jobs run on another host: {places}", "stop them there with `assay stop`")

    def begin_cancel(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> Callable[[], bool]:
        return process.Cancellation(self._find_attempts(jobs), grace_s).look

    def _find_attempts(self, jobs: Sequence[tuple[JobHandle, str]]) -> list[process.AttemptProcesses]:
        here = [(handle, run_dir) for handle, run_dir in jobs if handle.host == processes.host_name()]
        ours = [(handle, run_dir) for handle, run_dir in here if handle.boot == processes.boot_id()]
        return [replace(_attempt(handle, where), seen=self._seen.pop(handle, frozenset())) for handle, where in ours]

    def close(self) -> None:
        for pidfd in self._watched:
            os.close(pidfd)
        self._watched.clear()
        self._poll.close()


def _attempt(handle: JobHandle, run_dir: str) -> process.AttemptProcesses:
    return process.AttemptProcesses(handle.pid, handle.start, handle.tag, run_dir)


def _end_loser(pid: int) -> None:
    """End a job that waits at its gate and has done nothing, since another supervisor owns the attempt."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _reap(pid)


def _reap(pid: int) -> Usage | None:
    """Return the child's usage; None if SIGCHLD is ignored, so that the kernel has reaped the child."""
    try:
        _, _, used = os.wait4(pid, 0)
    except ChildProcessError:
        return None
    return Usage(cpu_s=used.ru_utime + used.ru_stime, peak_rss_bytes=process.find_peak_bytes(used.ru_maxrss))
