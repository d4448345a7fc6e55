"""Jobs on hosts that share no file system with this one, by the system's ssh; the hosts need bash, tar and coreutils.

The executor sends run.json, job.sh and the rest of the run's directory as one tar, and the code once for each content.
Logs, metrics and exit markers are fetched as they grow, other files when the job has ended. `ssh_jobs`: the files that
show the state of a job; `ssh_host`: the work on one host; `ssh_session` and remote.sh: the two ends of the connection.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from assay.errors import InfrastructureError
from assay.execute import process
from assay.execute.base import EndKind, Executor, Publish, UnconfirmedError
from assay.farms import ssh_jobs
from assay.farms.engines import LOST_AFTER_S
from assay.farms.ssh_host import Host, Shared
from assay.farms.ssh_jobs import Cancel, HostAddress, HostSlot, SshJob, parse_slot
from assay.farms.ssh_session import LostError, SshSession
from assay.farms.submit import has_numbered, load_submit_failure
from assay.farms.waiting import Key
from assay.record import run_directory
from assay.show.formatting import render_duration
from assay.system.fast_dataclasses import replace
from assay.values import layout
from assay.values.run import JobHandle, JobRequest, Liveness
from assay.values.study import Farm

_CONFIRM_S = 30.0  # besides the grace period: time to end the job and to fetch its files
_FENCE_GRACE_S = 5.0
_LEAVE_S = 10.0  # time to end attempts that were given up, on hosts that answer


class SshExecutor(Executor):
    name = "ssh"

    def __init__(self, farm: Farm) -> None:
        self._slots = _build_slots(farm)
        self._gpus = farm.options.get("gpus") or 0
        self._shared = Shared(farm.options.get("lost_after") or LOST_AFTER_S)
        self._hosts: dict[HostAddress, Host] = {}
        self._fenced: set[Key] = set()  # attempts that were given up; each is ended when its host answers

    @classmethod
    def check(cls, farm: Farm) -> None:
        """Check that at least one host answers: the others are tried again during the runs."""
        problems: list[InfrastructureError] = []
        for address in dict.fromkeys(slot.address for slot in _build_slots(farm)):
            session = SshSession(address)
            try:
                session.connect()
            except InfrastructureError as error:
                problems.append(error)
            except LostError as error:
                problems.append(InfrastructureError(str(error)))
            else:
                if not session.refusal:
                    return
                problems.append(InfrastructureError(session.refusal, "root: names a folder there that you can write"))
            finally:
                session.close()
        hints = dict.fromkeys(error.hint for error in problems if error.hint)
        raise InfrastructureError("; ".join(error.message for error in problems), "; ".join(hints))

    @classmethod
    def render_line(cls, farm: Farm, request: JobRequest, command: str) -> str:
        hosts = ",".join(dict.fromkeys(slot.address.name for slot in _build_slots(farm)))
        return f"ssh {hosts}: {layout.show_command(command, request.dir)}"

    # ------------------------------------------------------------ starting

    def has_room(self) -> bool:
        """Return whether a slot is free. Raise InfrastructureError if no host is expected to answer any more."""
        for slot in self._slots:
            self._host(slot).begin()
        with self._shared.changed:
            hosts = [self._host(slot) for slot in self._slots]
            is_waiting = any(job.is_watched for host in hosts for job in host.jobs.values())
            if not is_waiting and all(host.is_silent() or host.refusal for host in hosts):
                problems = dict.fromkeys(host.refusal or host.problem or "" for host in hosts)
                raise InfrastructureError("; ".join(problems), "the same command goes on when a host answers")
        return any(self._host(slot).is_ready for slot in self._find_free())

    def _find_free(self) -> list[HostSlot]:
        with self._shared.changed:
            usable = [(slot, self._host(slot)) for slot in self._slots if self._host(slot).is_usable()]
            return [slot for slot, host in usable if all(job.slot.number != slot.number for job in host.jobs.values())]

    def _choose_place(self, avoided: Collection[HostAddress]) -> HostSlot:
        """Choose a slot for a run: a free slot on the host with the most free slots, if possible a host that has
        answered. The run waits if no slot is free. The `avoided` hosts are used only if no other host can be used."""
        allowed = [slot for slot in self._slots if slot.address not in avoided and self._host(slot).is_usable()]
        addresses = {slot.address for slot in allowed or self._slots}
        free = [slot for slot in self._find_free() if slot.address in addresses]
        if free:
            count = Counter(slot.address for slot in free)
            return max(free, key=lambda slot: (self._host(slot).is_ready, count[slot.address]))
        with self._shared.changed:
            taken = Counter(job.slot for slot in allowed for job in self._host(slot).jobs.values())
        return min(allowed or self._slots, key=taken.__getitem__)

    def _host(self, slot: HostSlot) -> Host:
        if slot.address not in self._hosts:
            self._hosts[slot.address] = Host(slot.address, self._shared)
        return self._hosts[slot.address]

    def submit(self, request: JobRequest, publish: Publish) -> JobHandle | None:
        if not os.path.exists(os.path.join(request.dir, layout.JOB_FILE)):
            raise InfrastructureError(f"cannot start {request.name}: {request.dir} has no {layout.JOB_FILE}")
        slot = self._choose_place(self._end_earlier(request) if request.attempt > 1 else ())
        env = dict(request.env)
        gpus = _of_host(self._gpus, slot.address.name, 0)
        if gpus and "CUDA_VISIBLE_DEVICES" not in env:
            first = slot.number * gpus
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(first, first + gpus)))
        env |= {layout.ENV_ATTEMPT_NUMBER: str(request.attempt), layout.ENV_ATTEMPT: request.tag}
        request = replace(request, env=env, slot=f"{slot.address.name}:{slot.number}", slot_fds=())
        handle = process.build_handle(request, self.name, native_id=slot.render())
        key = (request.dir, request.attempt)
        ssh_jobs.unsent.add(key)  # set before other processes can see the lease
        try:
            is_ours = publish(handle)
        except BaseException:
            ssh_jobs.unsent.discard(key)
            raise
        if not is_ours:
            ssh_jobs.unsent.discard(key)
            return None
        with self._shared.changed:
            self._host(slot).add(SshJob(handle, request.dir, slot, request))
        return handle

    @classmethod
    def render_entry(cls, handle: JobHandle, _run_dir: str, host: str) -> str:
        slot = parse_slot(handle.native_id)
        return shlex.join(["ssh", *(slot.address.options if slot else ()), slot.address.name if slot else host])

    def is_handed_over(self) -> bool:
        with self._shared.changed:
            return all(job.request is None for host in self._hosts.values() for job in host.jobs.values())

    def refusal(self, handle: JobHandle, run_dir: str) -> str | None:
        """Return why the host refused the job; None if another host may take it, as the next attempt."""
        with self._shared.changed:
            if any(self._host(slot).refusal is None for slot in self._slots):
                return None
        return load_submit_failure(run_dir, handle.attempt)

    def explain_end(self, handle: JobHandle, run_dir: str) -> tuple[EndKind, str] | None:
        """Explain the end of an attempt whose host was given up: if another host answers, the run starts there."""
        key, slot = (run_dir, handle.attempt), parse_slot(handle.native_id)
        if key not in self._shared.lost or slot is None or not self._host(slot).is_silent():
            return None
        is_stopped = has_numbered(run_dir, "stop", handle.attempt)
        others = [self._host(each) for each in self._slots if each.address != slot.address]
        if is_stopped or not any(host.is_ready and host.is_usable() for host in others):
            return None  # if no host answers, this machine may be the one that is cut off
        after = render_duration(self._shared.lost_after_s)
        return "fence", f"the host {slot.address.name} has not answered for {after}"

    def take_messages(self) -> Sequence[str]:
        with self._shared.changed:
            taken, self._shared.messages = self._shared.messages, []
        return taken

    # ------------------------------------------------------------ watching

    def watch(self, handle: JobHandle, run_dir: str) -> None:
        slot = parse_slot(handle.native_id)
        with self._shared.changed:
            if slot is None:
                self._shared.ended.append(handle)
            elif (run_dir, handle.attempt) not in self._shared.lost:
                self._host(slot).add(SshJob(handle, run_dir, slot))

    def wait(self, timeout_s: float) -> Sequence[JobHandle]:
        shared = self._shared
        with shared.changed:
            shared.changed.wait_for(lambda: shared.ended or shared.has_news, max(0.0, timeout_s))
            ended = list(shared.ended)
            shared.ended.clear()
            shared.has_news = False
        return ended

    @classmethod
    def load_liveness(cls, handle: JobHandle, run_dir: str) -> Liveness:
        return ssh_jobs.load_liveness(handle, run_dir)

    def liveness(self, handle: JobHandle, run_dir: str) -> Liveness:
        if (run_dir, handle.attempt) in self._shared.lost:
            return Liveness.UNKNOWN
        found = ssh_jobs.load_liveness(handle, run_dir)
        return Liveness.ALIVE if found is Liveness.UNKNOWN else found  # a host that was given up is tried again

    def leftovers(self, handle: JobHandle, _run_dir: str) -> Sequence[str]:
        return self._shared.left.pop(handle, ())

    def find_end(self, handle: JobHandle) -> float | None:
        return self._shared.ended_at.pop(handle, None)

    # ------------------------------------------------------------ ending

    def end_fenced(self, handle: JobHandle, run_dir: str) -> None:
        """End the attempt when its host answers again, in this call or a later one: until then there is no `end.N`."""
        slot, key = parse_slot(handle.native_id), (run_dir, handle.attempt)
        if slot is None or key in self._fenced or ssh_jobs.load_liveness(handle, run_dir) is Liveness.GONE:
            return
        self._fenced.add(key)
        job = SshJob(handle, run_dir, slot, is_watched=False)
        with self._shared.changed:
            self._host(slot).cancel(Cancel(job, _FENCE_GRACE_S, was_gone=False, is_fence=True))

    def _end_earlier(self, request: JobRequest) -> set[HostAddress]:
        """End earlier attempts of the run on their hosts, and return the hosts that the new attempt avoids."""
        attempts = run_directory.load_history(request.dir).attempts
        lost = [
            (each.is_fenced, each.handle)
            for each in attempts
            if each.number < request.attempt and each.handle is not None and each.handle.executor == self.name
        ]
        for _, handle in lost:
            self.end_fenced(handle, request.dir)
        slots = [parse_slot(handle.native_id) for is_fenced, handle in lost if is_fenced]
        return {slot.address for slot in slots if slot is not None}

    def begin_cancel(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> Callable[[], bool]:
        cancels = self._send_cancels(jobs, grace_s)
        return lambda: all(cancel.is_done for cancel in cancels)

    def _send_cancels(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> list[Cancel]:
        cancels = []
        for handle, run_dir in jobs:
            slot = parse_slot(handle.native_id)
            if slot is None:
                continue  # a person started job.sh on this machine
            was_gone = self.liveness(handle, run_dir) is Liveness.GONE
            if was_gone and ssh_jobs.load_token_host(run_dir, handle.attempt) in (None, layout.NO_HOST):
                continue  # the attempt has never run anything
            cancels.append(Cancel(SshJob(handle, run_dir, slot, is_watched=False), grace_s, was_gone))
        with self._shared.changed:
            for cancel in cancels:
                self._host(cancel.job.slot).cancel(cancel)
        return cancels

    def cancel(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> None:
        cancels = self._send_cancels(jobs, grace_s)

        def is_open(each: Cancel) -> bool:  # files that an ended job left on an unreachable host are not waited for
            return not each.is_done and not (each.was_gone and self._host(each.job.slot).problem)

        with self._shared.changed:
            if self._shared.changed.wait_for(lambda: not any(map(is_open, cancels)), grace_s + _CONFIRM_S):
                return
            left = [each.job for each in cancels if is_open(each)]
            problems = dict.fromkeys(self._host(job.slot).problem or "" for job in left)
        hint = "the same command goes on with them when the host answers"
        raise UnconfirmedError([job.run_dir for job in left], hint, "; ".join(filter(None, problems)))

    def close(self) -> None:
        with self._shared.changed:
            hosts = list(self._hosts.values())
            self._shared.changed.wait_for(lambda: not any(host.has_fences() for host in hosts), _LEAVE_S)
        for host in hosts:
            host.close()
        for host in hosts:
            host.join()


def _build_slots(farm: Farm) -> list[HostSlot]:
    """Return every slot of every host, alternating between the hosts."""
    given = farm.options
    root, options = given.get("root") or ssh_jobs.DEFAULT_ROOT, tuple(given.get("ssh_options") or ())
    addresses = [HostAddress(host, root, options) for host in dict.fromkeys(given.get("hosts") or ())]
    counts = {address: _of_host(given.get("slots") or 1, address.name, 1) for address in addresses}
    return [
        HostSlot(address, number, bool(given.get("keep")))
        for number in range(max(counts.values(), default=0))
        for address in addresses
        if number < counts[address]
    ]


def _of_host(given: int | Mapping[str, int], host: str, default: int) -> int:
    """Return the number of a host, from one number for all hosts or from a mapping."""
    return given.get(host, default) if isinstance(given, Mapping) else given
