"""The work on one host reached by ssh, done by one thread: a host that does not answer delays no other host.

The token on the host decides whether an attempt runs, so sending a job again after a connection broke starts nothing
twice. Times of different hosts are never compared: durations are measured by this machine's monotonic clock.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, cast

from assay.errors import AssayError, InfrastructureError
from assay.farms import ssh_files
from assay.farms.ssh_jobs import NEVER, Cancel, HostAddress, SshJob, load_liveness, may_be_sent, unsent
from assay.farms.ssh_session import ChunkWriter, LostError, RefusedError, SshSession
from assay.farms.submit import has_numbered, write_submission
from assay.farms.waiting import Key
from assay.show.formatting import render_duration
from assay.system.locks import try_lock
from assay.values import layout
from assay.values.run import JobHandle, Liveness

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 2.0
_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 30.0
_GIVE_BACK_S = 10.0
_END_GRACE_S = 5.0  # job.sh itself waits as long
_JOIN_S = 10.0
_MOST_FETCHES = 3  # fetches of a job whose remaining processes may go on writing


@dataclass(slots=True)
class Shared:
    """The reports of an executor's hosts; `changed` guards them, and also the jobs and cancels of every host."""

    lost_after_s: float
    changed: threading.Condition = field(default_factory=threading.Condition)
    ended: deque[JobHandle] = field(default_factory=deque)
    messages: list[str] = field(default_factory=list)
    left: dict[JobHandle, tuple[str, ...]] = field(default_factory=dict)  # processes that an ended job left running
    ended_at: dict[JobHandle, float] = field(default_factory=dict)  # when jobs that were fetched have ended
    lost: set[Key] = field(default_factory=set)  # attempts whose host has not answered for too long
    has_news: bool = False  # a host that could not be used can be used now


class Host:
    def __init__(self, address: HostAddress, shared: Shared) -> None:
        self.address = address
        self.jobs: dict[Key, SshJob] = {}
        self.is_ready = False  # whether the host has answered
        self.problem: str | None = None  # why the host cannot be reached
        self.refusal: str | None = None  # why the host takes no jobs
        self._silent_since: float | None = None
        self._shared, self._changed = shared, shared.changed
        self._cancels: list[Cancel] = []
        self._session = SshSession(address)
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._is_closed = False
        self._hashes = ssh_files.CodeHashes()
        self._is_busy = False  # whether the last round had an effect

    def begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_thread, name=f"ssh {self.address.name}", daemon=True)
            self._thread.start()
        self._wake.set()
        self._session.wake()

    def add(self, job: SshJob) -> None:
        known = self.jobs.get(job.key)
        if known is None:
            self.jobs[job.key] = job
        else:
            known.is_watched = True
        self.begin()

    def cancel(self, cancel: Cancel) -> None:
        self._cancels.append(cancel)
        self.begin()

    def has_fences(self) -> bool:
        """Return whether the host is not known to be silent, and has attempts to end that were given up."""
        return self.problem is None and any(cancel.is_fence for cancel in self._cancels)

    def is_usable(self) -> bool:
        return self.problem is None and self.refusal is None

    def is_silent(self) -> bool:
        """Return whether the host has not answered for so long that no answer is expected any more."""
        return self._count_silent_s() >= self._shared.lost_after_s

    def _count_silent_s(self) -> float:
        since = self._silent_since
        return 0.0 if since is None else time.monotonic() - since

    def close(self) -> None:
        self._is_closed = True
        self._wake.set()
        self._session.interrupt()
        unsent.difference_update([job.key for job in list(self.jobs.values()) if job.request is not None])

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    # ------------------------------------------------------------ the thread

    def _run_thread(self) -> None:
        pause_s, retry_s = 0.0, _FIRST_RETRY_S
        while not self._is_closed:
            self._wake.clear()
            self._session.forget_wake()
            self._is_busy = False
            try:
                self._session.connect()
                self._note_answer()
                if self._session.refusal and self.refusal is None:
                    self._note_refusal(self._session.refusal)
                is_idle = self._handle_jobs(pause_s)
            except (LostError, RefusedError, InfrastructureError, OSError, ValueError, LookupError) as error:
                self._session.close()
                self._note_problem(error)
                self._wait(retry_s)
                retry_s = min(retry_s * 2, _LAST_RETRY_S)
                continue
            retry_s = _FIRST_RETRY_S
            pause_s = _SHORTEST_PAUSE_S if self._is_busy else min(max(pause_s, 0.1) * 1.5, _LONGEST_PAUSE_S)
            if is_idle:
                self._wake.wait()
        self._session.close()

    def _wait(self, retry_s: float) -> None:
        """Wait before the next connection; give back the host's jobs after a silence longer than a daemon's restart."""
        deadline = time.monotonic() + retry_s
        while not self._is_closed and (left_s := deadline - time.monotonic()) > 0:
            if not self.is_ready or self._count_silent_s() > _GIVE_BACK_S:
                self._give_back()
            if self.is_silent():
                for job in [each for each in self._snapshot() if each.is_watched]:
                    self._give_up(job)
                    if job.has("stop"):  # a stopped job is ended when the host answers, and not waited for
                        with self._changed:
                            self.jobs[job.key] = replace(job, is_watched=False)
            self._wake.wait(min(left_s, 0.5))
            self._wake.clear()

    def _note_problem(self, error: Exception) -> None:
        if self._is_closed:
            return
        hint = f" ({error.hint})" if isinstance(error, AssayError) and error.hint else ""
        said = error.message if isinstance(error, AssayError) else str(error) or type(error).__name__
        if isinstance(error, (ValueError, LookupError)):
            said = f"the host {self.address.name} answered something unexpected ({said})"
        with self._changed:
            if self.problem is None:
                after = render_duration(self._shared.lost_after_s)
                left = f"what runs there is given up after {after}, and " if self.jobs else ""
                self._shared.messages.append(f"{said}{hint}; {left}it is tried again")
            self.problem = said
            if self._silent_since is None:
                self._silent_since = time.monotonic()
            self._changed.notify_all()

    def _note_answer(self) -> None:
        if self.is_ready and self.problem is None:
            return
        with self._changed:
            if self.problem is not None:
                self._shared.messages.append(f"the host {self.address.name} answers again")
            self.problem, self.is_ready, self._silent_since = None, True, None
            self._shared.has_news = True
            self._changed.notify_all()

    def _note_refusal(self, message: str) -> None:
        with self._changed:
            self.refusal = message
            self._shared.messages.append(f"{message}; no more runs are sent there")

    def _give_back(self) -> None:
        """Give back jobs that were never sent to an unreachable host: the next attempt may run on another host."""
        for job in self._snapshot():
            if job.request is not None and not job.was_offered():
                job.write_never()
                self._report(job)

    def _give_up(self, job: SshJob) -> None:
        with contextlib.suppress(OSError), self._hold(job) as is_held:
            job.write_once(job.numbered("unreachable"))
            if is_held:
                job.remove_markers()
        with self._changed:
            self._shared.lost.add(job.key)
        self._report(job)

    def _handle_jobs(self, pause_s: float) -> bool:
        """Send, follow and end each job once; return True if nothing is left to do."""
        self._take_cancels()
        for job in self._snapshot():
            if job.request is not None and self.refusal is None:
                if not self._is_behind(job):
                    self._send(job)
                if self._cancels:
                    break
            elif job.request is not None:
                self._refuse(job, self.refusal or "", 1)
        sent = [job for job in self._snapshot() if job.request is None]
        for job in [job for job in sent if load_liveness(job.handle, job.run_dir) is Liveness.GONE]:
            self._report(job)  # another supervisor has fetched the job, or it was never sent
            sent.remove(job)
        if sent:
            self._poll_jobs(sent, pause_s)
        with self._changed:
            return not self.jobs and not self._cancels

    def _is_behind(self, job: SshJob) -> bool:
        """Return whether an earlier job uses the slot: a run that avoids other hosts may have to wait for a slot."""
        earlier = itertools.takewhile(lambda each: each is not job, self._snapshot())
        return any(each.slot == job.slot for each in earlier)

    def _poll_jobs(self, jobs: Sequence[SshJob], pause_s: float) -> None:
        now = time.monotonic()
        due = [job for job in jobs if job.next_try <= now]
        if not due:
            self._wake.wait(_FIRST_RETRY_S)
            return
        for job, state, listing in self._ask_states(due, _SHORTEST_PAUSE_S if self._is_busy else pause_s):
            with self._sparing_others(job):
                self._handle_state(job, state, listing)
            is_failing = state == "ended" and job.failing_since is not None and job.next_try > now
            if is_failing and now - cast("float", job.failing_since) >= self._shared.lost_after_s:
                self._give_up(job)
        for job in due:
            if job.next_try <= now:
                job.failing_since = None

    def _snapshot(self) -> list[SshJob]:
        with self._changed:
            return list(self.jobs.values())

    def _report(self, job: SshJob) -> None:
        self._is_busy = True
        unsent.discard(job.key)
        with self._changed:
            known = self.jobs.pop(job.key, job)
            if known.is_watched:
                self._shared.ended.append(known.handle)
            for cancel in [each for each in self._cancels if each.job.key == job.key and each.is_sent]:
                cancel.is_done = True
                self._cancels.remove(cancel)
            self._changed.notify_all()

    # ------------------------------------------------------------ sending

    def _send(self, job: SshJob) -> None:
        request = job.request
        assert request is not None
        try:
            with open(job.path(layout.submit_log_name(request.attempt)), "ab"):
                pass  # from now on only the host knows whether it has the job
            digest = self._hashes.find(job.path(layout.CODE_DIR))
            self._stage(job, digest, [f"{name}={value}" for name, value in request.env.items()])
        except OSError as error:  # the directory was removed, or the disk is full
            self._session.close()
            self._refuse(job, f"cannot send {request.name}: {error.strerror}", 1)
            self._session.connect()
        except RefusedError as error:
            said = f"the host {self.address.name} cannot run {request.name}: {error}"
            self._note_refusal(said)
            self._refuse(job, said, error.code)
        else:
            job.write_once(job.path(layout.submit_exit_name(request.attempt, 0)))
            job.request = None
            unsent.discard(job.key)
            self._is_busy = True

    def _stage(self, job: SshJob, digest: str, variables: Sequence[str]) -> None:
        self._session.begin("stage", job.uid, str(job.handle.attempt), digest, *variables)
        needed = self._session.take()
        if needed == "Z":
            self._session.end()
        elif needed != "started":
            writer = ChunkWriter(self._session)
            ssh_files.write_tar(cast("IO[bytes]", writer), job.run_dir, with_code=needed == "code")
            writer.finish()
        if needed != "Z":
            self._session.read_fields()

    def _refuse(self, job: SshJob, message: str, code: int) -> None:
        write_submission(job.run_dir, job.handle.attempt, code, message)
        self._report(job)

    # ------------------------------------------------------------ following

    def _ask_states(self, jobs: Sequence[SshJob], pause_s: float) -> list[tuple[SshJob, str, ssh_files.RemoteListing]]:
        """Return jobs with their states and files, by one request, which waits on the host for the end of a job."""
        words = [str(round(pause_s * 100))]
        for job in jobs:
            known = ssh_files.list_growing(job.run_dir)
            is_ownerless = not job.has("token") and not may_be_sent(job.handle, job.run_dir) and job.is_unsent()
            words += [job.uid, str(job.handle.attempt), job.handle.tag, str(int(is_ownerless)), str(len(known))]
            words += [text for name, size in known.items() for text in (name, str(size))]
        # `sent` is set before the request: a job that is sent during it is missing in the answer, but not gone
        sent = {job.key for job in jobs if job.has("token") or not job.is_unsent()}
        by_uid = {(job.uid, str(job.handle.attempt)): job for job in jobs}
        found: list[tuple[SshJob, str, ssh_files.RemoteListing]] = []
        take = self._session.take
        self._session.begin("look", *words, may_wait=True)
        while (kind := take()) != "Z":
            if kind == "S":
                job = by_uid[take(), take()]
                state, token = take(), take()
                with self._sparing_others(job):
                    self._note_state(job, state, token)
                if state != "missing" or job.key in sent:
                    found.append((job, state, ssh_files.RemoteListing()))
            elif kind == "F":
                self._store(job)
            elif kind == "P":
                found[-1][2].processes.append(take())
            else:
                self._take_listing(found[-1][2])
        self._session.end()
        return found

    def _take_listing(self, listing: ssh_files.RemoteListing) -> None:
        """Read type, name, size, time and target of files, then sha256sum's output; an empty field ends each list."""
        take = self._session.take
        while kind := take():
            name, size, changed_at, target = take(), int(take()), float(take()), take()
            if kind == "l":
                listing.links[name] = target
            elif kind == "f":
                listing.files[name], listing.times[name] = size, changed_at
            elif kind == "d":
                listing.folders.append(name)
            elif kind == "u":
                listing.closed.append(name)
        while line := take():
            digest, _, name = line.partition("  ")
            listing.hashes[name.removeprefix("./")] = digest

    def _note_state(self, job: SshJob, state: str, token: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(job.numbered("unreachable"))
        if (token or state == "never") and not job.has("token"):
            host, _, rest = token.partition(" ")
            text = NEVER if state == "never" or host == layout.NO_HOST else f"ssh:{self.address.name} {rest}\n"
            job.write_once(job.numbered("token"), text)
            self._is_busy = True

    def _store(self, job: SshJob) -> None:
        """Write some bytes of a file at its path, unless another supervisor writes them or has fetched all files."""
        name, offset, length = self._session.take(), int(self._session.take()), int(self._session.take())
        with self._sparing_others(job), self._hold(job) as is_held:
            file = None
            try:
                file = ssh_files.open_growing(job.run_dir, name, offset) if is_held else None
            finally:
                if file is None:
                    self._session.skip(length)
            if file is not None:
                with file:
                    self._session.copy(length, file)
                self._is_busy = True

    @contextlib.contextmanager
    def _sparing_others(self, job: SshJob) -> Iterator[None]:
        """Catch errors of one job, here or on the host: each is reported, and the job is tried again later."""
        try:
            yield
        except (OSError, RefusedError) as error:
            now = time.monotonic()
            if job.failing_since is None:
                job.failing_since = now
                what = f"{job.run_dir}: what its job wrote on the host {self.address.name} cannot be fetched ({error})"
                with self._changed:
                    self._shared.messages.append(f"{what}; it stays there, and is tried again")
            job.next_try = now + min(max(now - job.failing_since, _FIRST_RETRY_S), _LAST_RETRY_S)

    @contextlib.contextmanager
    def _hold(self, job: SshJob) -> Iterator[bool]:
        """Yield whether this supervisor, of several that watch the job, may write its files."""
        try:
            fd = os.open(job.path(layout.submit_log_name(job.handle.attempt)), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            yield False
            return
        try:
            try:
                is_held = try_lock(fd)
            except OSError:  # the file system has no locks
                is_held = True
            has_left = os.path.exists(job.numbered("end"))
            # no files of an attempt are stored any more if it was given up and the next attempt exists
            has_successor = has_numbered(job.run_dir, "lease", job.handle.attempt + 1)
            yield is_held and not has_left and not has_successor
        finally:
            os.close(fd)

    # ------------------------------------------------------------ the end

    def _handle_state(self, job: SshJob, state: str, listing: ssh_files.RemoteListing) -> None:
        if state == "never":
            self._report(job)
        elif state == "missing":
            self._write_end(job)
        elif state == "dead":  # job.sh was killed, or the host was restarted: end the processes of the job
            self._session.ask("cancel", str(round(_END_GRACE_S * 10)), *_name_job(job), "0")
        elif state == "ended":
            with self._hold(job) as is_held:
                is_fetched = is_held and self._fetch_results(job, listing)
            if not is_fetched:
                self._wake.wait(_SHORTEST_PAUSE_S)

    def _write_end(self, job: SshJob) -> None:
        job.write_once(job.numbered("end"))
        self._report(job)

    def _fetch_results(self, job: SshJob, listing: ssh_files.RemoteListing) -> bool:
        """Fetch files that differ and end the job. Return False if a file has changed: the next answer is used then."""
        with self._changed:
            self._shared.left[job.handle] = tuple(listing.processes)
        wanted = [
            ssh_files.PartialFile(job.run_dir, name, size, listing.hashes[name])
            for name, size in listing.files.items()
            if name in listing.hashes and ssh_files.is_wanted(job.run_dir, name, size, listing.hashes[name])
        ]
        unread = [name for name in listing.files if name not in listing.hashes and ssh_files.locate(job.run_dir, name)]
        job.fetches += 1
        is_whole = self._fetch_files(job, wanted)
        if not is_whole and not (listing.processes and job.fetches >= _MOST_FETCHES):
            return False
        if unread and job.fetches < _MOST_FETCHES:  # the file may just have been removed
            return False
        for name, target in listing.links.items():
            ssh_files.make_link(job.run_dir, name, target)
        for name in listing.folders:
            ssh_files.make_folder(job.run_dir, name)
        fetched = [part.name for part in wanted]  # with times set, the later of two checkpoints is the newer one
        for name in {*fetched, *filter(layout.parse_exit_marker, listing.files)}:
            with contextlib.suppress(FileNotFoundError):
                os.utime(job.path(name), (listing.made_at, listing.find_time(name)))
        with self._changed:
            ended_at = listing.find_time(layout.numbered_name("end", job.handle.attempt))
            self._shared.ended_at[job.handle] = max(ended_at, job.handle.started_at)
        ssh_files.sync_names(job.run_dir, fetched)
        if unread := [*listing.closed, *unread]:
            said = f"{job.run_dir}: {', '.join(map(repr, unread))} cannot be read on the host {self.address.name}; "
            with self._changed:
                self._shared.messages.append(f"{said}its copy {self.address.root}/.assay-jobs/runs/{job.uid} is kept")
        elif not job.slot.keep:
            self._session.ask("remove", job.uid)
        self._write_end(job)
        return True

    def _fetch_files(self, job: SshJob, wanted: Sequence[ssh_files.PartialFile]) -> bool:
        """Fetch files that were cut off first, exit markers last; return whether all match the host's list."""
        if not wanted:
            return True
        ordered = sorted(wanted, key=lambda part: (part.offset == 0, layout.parse_exit_marker(part.name) is not None))
        words = [word for part in ordered for word in (part.name, str(part.offset), str(part.size))]
        self._session.begin("send", job.uid, *words)
        if self._session.take() == "Z":
            self._session.end()
        failures = []
        for part in ordered:
            try:
                file = part.open()
            except OSError as error:
                self._session.skip(part.size - part.offset)
                failures.append(error)
                continue
            try:
                with file:
                    self._session.copy(part.size - part.offset, file)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                failures.append(error)
        self._session.read_fields()
        if failures:
            raise failures[0]
        finished = [part.finish() for part in ordered]
        return all(finished)

    # ------------------------------------------------------------ cancelling

    def _take_cancels(self) -> None:
        """End cancelled jobs, and jobs with a `stop.N` whose command could not reach this host, or was killed."""
        with self._changed:
            asked = {cancel.job.key for cancel in self._cancels}
            stopped = [job for job in self.jobs.values() if job.key not in asked and job.has("stop")]
            self._cancels += [Cancel(job, _END_GRACE_S, was_gone=False) for job in stopped]
            cancels = [cancel for cancel in self._cancels if not cancel.is_sent]
            for cancel in cancels:
                known = self.jobs.get(cancel.job.key)
                if known is not None and known.request is not None and not known.was_offered():
                    cancel.was_gone = cancel.is_sent = True
        for cancel in [each for each in cancels if each.is_sent]:  # these jobs were never sent
            cancel.job.write_never()
            self._report(cancel.job)
        cancels = [each for each in cancels if not each.is_sent]
        for grace_s in {cancel.grace_s for cancel in cancels}:
            chosen = [cancel for cancel in cancels if cancel.grace_s == grace_s]
            words = [word for each in chosen for word in (*_name_job(each.job), str(int(not each.was_gone)))]
            self._session.ask("cancel", str(round(grace_s * 10)), *words)
            for cancel in (each for each in chosen if each.is_fence):
                self._leave_copy(cancel.job)
            self._note_cancelled(chosen)

    def _leave_copy(self, job: SshJob) -> None:
        """Forget the host's copy of an attempt that was given up and has just been ended there."""
        if not job.slot.keep:
            self._session.ask("forget", job.uid, str(job.handle.attempt))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(job.numbered("unreachable"))
        job.write_once(job.numbered("end"))
        said = f"its attempt {job.handle.attempt} on the host {self.address.name}, which was given up, has been ended"
        with self._changed:
            self._shared.messages.append(f"{os.path.basename(job.run_dir)}: {said}")

    def _note_cancelled(self, cancels: Sequence[Cancel]) -> None:
        with self._changed:
            for cancel in cancels:
                cancel.is_sent = True
                if cancel.was_gone or cancel.is_fence:
                    cancel.is_done = True
                    self._cancels.remove(cancel)
                else:
                    known = self.jobs.setdefault(cancel.job.key, cancel.job)
                    known.request = None  # the job's token is taken: sending the job again would start nothing
                    unsent.discard(known.key)
            self._changed.notify_all()


def _name_job(job: SshJob) -> tuple[str, str, str]:
    return job.uid, str(job.handle.attempt), job.handle.tag
