"""Jobs as processes of this host.

A job starts in a session of its own, blocked on a pipe (the gate). Only after its lease is published does one byte open
the gate; when the supervisor dies before that, the pipe ends and the job leaves without having done anything.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from assay.errors import InfrastructureError, explain_refusal
from assay.execute import process
from assay.execute.base import Executor, Publish
from assay.values import layout
from assay.values.run import JobHandle, JobRequest, Liveness, Usage

_GATE_FD = 3


@dataclass(slots=True)
class _Watched:
    handle: JobHandle
    is_child: bool


class LocalExecutor(Executor):
    name = "local"

    def __init__(self) -> None:
        self._bash = shutil.which("bash") or "/bin/bash"
        self._poll = select.epoll()
        self._watched: dict[int, _Watched] = {}  # by pidfd
        self._usage: dict[JobHandle, Usage] = {}
        self._gone: list[JobHandle] = []  # ended before it could be watched
        self._environment: process.EncodedEnvironment | None = None  # made for the first job

    def submit(self, request: JobRequest, publish: Publish) -> JobHandle | None:
        gate, opener = os.pipe()
        try:
            pid = self._spawn(request, gate)
        except OSError as error:
            os.close(opener)
            raise InfrastructureError(f"cannot start {request.name}: {explain_refusal(error)}") from error
        finally:
            os.close(gate)
        try:
            return self._open_gate(request, publish, pid, opener)
        finally:
            os.close(opener)

    def _spawn(self, request: JobRequest, gate: int) -> int:
        if self._environment is None:
            self._environment = process.EncodedEnvironment()
        env = self._environment.build(request, {layout.ENV_GATE: str(_GATE_FD)})
        argv = [self._bash, os.path.join(request.dir, layout.JOB_FILE)]
        inherit = [(gate, _GATE_FD), *process.place_slots(request.slot_fds)]
        return process.spawn_session(argv, env, os.path.join(request.dir, layout.JOB_LOG), inherit)

    def _open_gate(self, request: JobRequest, publish: Publish, pid: int, opener: int) -> JobHandle | None:
        handle = JobHandle(
            executor=self.name,
            native_id=str(pid),
            host=process.host_name(),
            pid=pid,
            start=process.process_start(pid) or 0,
            boot=process.boot_id(),
            slot=request.slot,
            attempt=request.attempt,
            started_at=time.time(),
            supervisor_pid=os.getpid(),
            supervisor_start=process.own_start(),
            tag=request.tag,
            skips=request.env.get(layout.ENV_DONE, ""),
        )
        try:
            won = publish(handle)
        except BaseException:  # a full disk, Ctrl-C: without a lease the job must not begin
            _end_loser(pid)
            raise
        if not won:
            _end_loser(pid)
            return None
        self._watch_pid(handle, is_child=True)
        with contextlib.suppress(BrokenPipeError):  # killed meanwhile: its end is noticed like any other
            os.write(opener, b"1")
        return handle

    def watch(self, handle: JobHandle, run_dir: str) -> None:  # noqa: ARG002 - the pid says it all
        if handle.host != process.host_name() or any(w.handle == handle for w in self._watched.values()):
            return  # a pid of another host means nothing here
        self._watch_pid(handle, is_child=False)

    def _watch_pid(self, handle: JobHandle, is_child: bool) -> None:
        if handle.pid <= 0:
            self._gone.append(handle)
            return
        try:
            pidfd = os.pidfd_open(handle.pid)
        except ProcessLookupError:
            self._gone.append(handle)
            return
        if not is_child and not process.is_alive(handle.pid, handle.start, handle.boot):
            os.close(pidfd)
            self._gone.append(handle)
            return
        self._watched[pidfd] = _Watched(handle, is_child)
        self._poll.register(pidfd, select.EPOLLIN)

    def wait(self, timeout_s: float) -> Sequence[JobHandle]:
        ended, self._gone = self._gone, []
        for pidfd, _ in self._poll.poll(0 if ended else max(0.0, timeout_s)):
            watched = self._watched.pop(pidfd)
            self._poll.unregister(pidfd)  # a child that is just being spawned may still hold a copy
            os.close(pidfd)
            if watched.is_child and (used := _reap(watched.handle.pid)) is not None:
                self._usage[watched.handle] = used
            ended.append(watched.handle)
        return ended

    def usage(self, handle: JobHandle) -> Usage | None:
        return self._usage.pop(handle, None)

    def liveness(self, handle: JobHandle, run_dir: str) -> Liveness:  # noqa: ARG002
        if handle.host != process.host_name():
            return Liveness.UNKNOWN
        alive = process.is_alive(handle.pid, handle.start, handle.boot)
        return Liveness.ALIVE if alive else Liveness.GONE

    def cancel(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> None:
        here = [handle for handle, _ in jobs if handle.host == process.host_name()]
        process.end_attempts(
            [process.Attempt(h.pid, h.start, h.tag) for h in here if h.boot == process.boot_id()], grace_s
        )
        elsewhere = [handle for handle, _ in jobs if handle.host != process.host_name()]
        if elsewhere:
            places = ", ".join(f"pid {handle.pid} on {handle.host}" for handle in elsewhere)
            raise InfrastructureError(f"these jobs run on another host: {places}", "stop them there with `assay stop`")

    def close(self) -> None:
        for pidfd in self._watched:
            os.close(pidfd)
        self._watched.clear()
        self._poll.close()


def _end_loser(pid: int) -> None:
    """Another supervisor owns the attempt. Ours still waits at its gate and has done nothing."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _reap(pid)


def _reap(pid: int) -> Usage | None:
    """None where whoever started us ignores SIGCHLD: the kernel has reaped the child by itself."""
    try:
        _, _, used = os.wait4(pid, 0)
    except ChildProcessError:
        return None
    return Usage(cpu_s=used.ru_utime + used.ru_stime, peak_rss_bytes=used.ru_maxrss * 1024)
