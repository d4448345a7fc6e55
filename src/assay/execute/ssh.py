"""Jobs on hosts that share no file system with this one, by the system's ssh; bash and tar there are enough.

What goes over: run.json, job.sh and the rest of the run's directory as one tar, the code once for each content. What
comes back: logs, metrics and exit markers as they grow, everything else when the job has ended. The run's directory
here has the files that every farm's has:

lease.N                 the supervisor is about to send the job (its host and slot are in the handle), or died before
submit.log.N            it has begun to send it
submit.exit.N.<code>    0: the job was started there; else the host refused it, and submit.log.N says why
token.N                 the host's own token, once it was seen; "-": the job never began, and never will
end.N                   the job has left, and all that it wrote is here, compared by size and hash

The token on the host decides whether an attempt runs, so sending a job again after a connection broke starts nothing
twice. A host has a thread of its own: one that does not answer holds up no other. Times of hosts are never compared.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import io
import json
import os
import subprocess
import tarfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import IO

from assay.errors import AssayError, InfrastructureError
from assay.execute import process
from assay.execute.base import Executor, Publish
from assay.execute.submit import load_submit_code, load_submit_failure, parse_token
from assay.system import processes
from assay.system.files import blake2b, rename, write_new
from assay.system.ssh import CONNECTION_LOST, Address, Connection
from assay.values import layout
from assay.values.run import JobHandle, JobRequest, Liveness
from assay.values.study import Farm

DEFAULT_ROOT = "~/assay-runs"
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 2.0
_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 30.0
_CONFIRM_S = 30.0  # beyond the grace: to end the job, and to fetch what it wrote
_DEAD_GRACE_S = 5.0
_JOIN_S = 10.0
_NOBODY = "-"
_NEVER = "- 0 0 - 0\n"
_PART = ".assay-part-"
_NO_CODE = "-"
_GROWING = ("*.log", "log.*", "*.jsonl", "*.csv", "*.timeout", "*.exit.*")  # as in remote.sh
_NOT_SENT = (
    "lease.*",
    "outcome.*",
    "stop.*",
    "token.*",
    "end.*",
    "submit.*",
    f"{_PART}*",
    ".tmp-*",
)
_OURS = frozenset(
    (
        *(layout.RUN_FILE, layout.JOB_FILE, layout.SECRETS_FILE, layout.ENVIRONMENT_FILE, layout.TAGS_FILE),
        ".code",
    )
)

_Key = tuple[str, int]  # run directory and attempt


class _LostError(Exception):
    """The host could not be reached, or the connection broke: nothing is known about what was asked."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job is; kept as text in its handle, so that it is found without its study's file."""

    host: str
    root: str = DEFAULT_ROOT
    options: tuple[str, ...] = ()
    slot: int = 0
    keep: bool = False

    def render(self) -> str:
        fields = {"host": self.host, "root": self.root, "options": self.options, "slot": self.slot, "keep": self.keep}
        return json.dumps(fields)

    @property
    def door(self) -> tuple[str, str, tuple[str, ...]]:
        return self.host, self.root, self.options


def parse_place(text: str) -> Place | None:
    """None: not a job of ours."""
    try:
        fields = json.loads(text)
        return Place(
            fields["host"], fields["root"], tuple(fields["options"]), int(fields["slot"]), bool(fields["keep"])
        )
    except (ValueError, KeyError, TypeError):
        return None


@dataclass(slots=True)
class _Job:
    handle: JobHandle
    run_dir: str
    place: Place
    request: JobRequest | None = None  # until it was sent
    is_watched: bool = True  # its end is reported

    @property
    def key(self) -> _Key:
        return self.run_dir, self.handle.attempt

    @property
    def uid(self) -> str:
        return self.handle.tag.rpartition(".")[0]


@dataclass(slots=True)
class _Cancel:
    job: _Job
    grace_s: float
    was_gone: bool
    is_sent: bool = False
    is_done: bool = False


class SshExecutor(Executor):
    name = "ssh"

    def __init__(self, farm: Farm) -> None:
        self._places = _build_places(farm)
        self._gpus = int(farm.options.get("gpus") or 0)
        self._changed = threading.Condition()  # guards what follows, here and in the hosts
        self._hosts: dict[tuple[str, str, tuple[str, ...]], _Host] = {}
        self._ended: deque[JobHandle] = deque()
        self._messages: list[str] = []
        self._left: dict[JobHandle, tuple[str, ...]] = {}

    @classmethod
    def check(cls, farm: Farm) -> None:
        """One host that answers is enough: the others are tried again while the runs go on."""
        problems: dict[str, InfrastructureError] = {}
        doors = {place.door: place for place in _build_places(farm)}
        for place in doors.values():
            connection = _connect(place)
            try:
                code, _, said = connection.ask(_script(), place.root, "hello")
                if code == 0:
                    return
                message = f"the host {place.host} cannot run jobs: {said or f'exit code {code}'}"
                problems[place.host] = InfrastructureError(
                    message, f"root: {place.root} must be a folder of yours there"
                )
            except InfrastructureError as error:
                problems[place.host] = error
            finally:
                connection.close()
        hints = dict.fromkeys(error.hint for error in problems.values() if error.hint)
        raise InfrastructureError("; ".join(error.message for error in problems.values()), "; ".join(hints))

    @classmethod
    def render_line(cls, farm: Farm, _request: JobRequest, training: str) -> str:
        hosts = ",".join(dict.fromkeys(place.host for place in _build_places(farm)))
        return f"ssh {hosts}: {training}"

    # ------------------------------------------------------------ starting

    def has_room(self) -> bool:
        return self._choose_place() is not None

    def _choose_place(self) -> Place | None:
        """A free slot on the host that has most of them, of those that answer."""
        with self._changed:
            free = [place for place in self._places if not self._is_used(place) and self._host(place).problem is None]
            count = {place.door: sum(each.door == place.door for each in free) for place in free}
        return max(free, key=lambda place: count[place.door], default=None)

    def _is_used(self, place: Place) -> bool:
        jobs = self._host(place).jobs.values()
        return any(job.place.slot == place.slot for job in jobs)

    def _host(self, place: Place) -> _Host:
        if place.door not in self._hosts:
            self._hosts[place.door] = _Host(place, self._changed, self._ended, self._messages, self._left)
        return self._hosts[place.door]

    def submit(self, request: JobRequest, publish: Publish) -> JobHandle | None:
        if not os.path.exists(os.path.join(request.dir, layout.JOB_FILE)):
            raise InfrastructureError(f"cannot start {request.name}: {request.dir} has no {layout.JOB_FILE}")
        place = self._choose_place() or self._places[0]
        env = dict(request.env)
        if self._gpus and "CUDA_VISIBLE_DEVICES" not in env:
            first = place.slot * self._gpus
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(first, first + self._gpus)))
        env |= {layout.ENV_ATTEMPT_NUMBER: str(request.attempt), layout.ENV_ATTEMPT: request.tag}
        handle = process.build_handle(
            _replace_request(request, env, f"{place.host}:{place.slot}"), self.name, native_id=place.render()
        )
        if not publish(handle):
            return None
        with self._changed:
            self._host(place).add(_Job(handle, request.dir, place, _replace_request(request, env, handle.slot)))
        return handle

    def is_handed_over(self) -> bool:
        with self._changed:
            return all(job.request is None for host in self._hosts.values() for job in host.jobs.values())

    def refusal(self, handle: JobHandle, run_dir: str) -> str | None:
        return load_submit_failure(run_dir, handle.attempt)

    def take_messages(self) -> Sequence[str]:
        with self._changed:
            taken = list(self._messages)
            self._messages.clear()
        return taken

    # ------------------------------------------------------------ watching

    def watch(self, handle: JobHandle, run_dir: str) -> None:
        place = parse_place(handle.native_id)
        with self._changed:
            if place is None:
                self._ended.append(handle)
            else:
                self._host(place).add(_Job(handle, run_dir, place))

    def wait(self, timeout_s: float) -> Sequence[JobHandle]:
        with self._changed:
            self._changed.wait_for(lambda: self._ended, max(0.0, timeout_s))
            ended = list(self._ended)
            self._ended.clear()
        return ended

    def liveness(self, handle: JobHandle, run_dir: str) -> Liveness:
        place = parse_place(handle.native_id)
        if place is not None:
            with self._changed:
                job = self._host(place).jobs.get((run_dir, handle.attempt))
            if job is not None and job.request is not None:
                return Liveness.ALIVE
        return load_liveness(handle, run_dir)

    def leftovers(self, handle: JobHandle, _run_dir: str) -> Sequence[str]:
        return self._left.pop(handle, ())

    # ------------------------------------------------------------ ending

    def begin_cancel(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> Callable[[], bool]:
        cancels = self._send_cancels(jobs, grace_s)
        return lambda: all(cancel.is_done for cancel in cancels)

    def _send_cancels(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> list[_Cancel]:
        cancels = []
        for handle, run_dir in jobs:
            place = parse_place(handle.native_id)
            if place is None:
                continue  # somebody ran job.sh here, by hand
            was_gone = self.liveness(handle, run_dir) is Liveness.GONE
            if was_gone and _load_token_host(run_dir, handle.attempt) in (None, _NOBODY):
                continue  # nothing of it ever ran
            cancels.append(_Cancel(_Job(handle, run_dir, place, is_watched=False), grace_s, was_gone))
        with self._changed:
            for cancel in cancels:
                self._host(cancel.job.place).cancel(cancel)
        return cancels

    def cancel(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> None:
        cancels = self._send_cancels(jobs, grace_s)

        def is_open(each: _Cancel) -> bool:  # what an ended job left on a host that is out of reach is not waited for
            return not each.is_done and not (each.was_gone and self._host(each.job.place).problem)

        with self._changed:
            if self._changed.wait_for(lambda: not any(map(is_open, cancels)), grace_s + _CONFIRM_S):
                return
            left = [each.job for each in cancels if is_open(each)]
            problems = dict.fromkeys(self._host(job.place).problem or "" for job in left)
        why = "; ".join(filter(None, problems))
        raise InfrastructureError(
            f"these jobs have not confirmed that they stopped: {', '.join(job.run_dir for job in left)}"
            + (f" ({why})" if why else ""),
            "the same command goes on with them when the host answers",
        )

    def close(self) -> None:
        with self._changed:
            hosts = list(self._hosts.values())
        for host in hosts:
            host.close()
        for host in hosts:
            host.join()


def _replace_request(request: JobRequest, env: dict[str, str], slot: str | None) -> JobRequest:
    return JobRequest(
        request.dir, request.name, request.attempt, env, slot, (), request.tag, request.command_line,
        request.farm_resources, request.label,
    )  # fmt: skip


def _build_places(farm: Farm) -> list[Place]:
    """Every slot of every host, host by host in turn."""
    given = farm.options
    root, options = given.get("root") or DEFAULT_ROOT, tuple(given.get("ssh_options") or ())
    return [
        Place(host, root, options, slot, bool(given.get("keep")))
        for slot in range(given.get("slots") or 1)
        for host in dict.fromkeys(given.get("hosts") or ())
    ]


def _connect(place: Place) -> Connection:
    hint = f"a key without a password prompt is needed; try: ssh -o BatchMode=yes {place.host} true"
    made = Connection(Address(place.host, options=place.options, noun="host", key_hint=hint))
    made.shell = "bash"
    return made


@cache
def _script() -> str:
    with open(os.path.join(os.path.dirname(__file__), "remote.sh"), encoding="utf-8") as file:
        return processes.BASH_FIND_TAGGED + file.read()


def load_liveness(handle: JobHandle, run_dir: str) -> Liveness:
    """By the files that are here, for those who have only the lease. ALIVE: its host has it, or may have."""
    attempt = handle.attempt
    if os.path.exists(os.path.join(run_dir, layout.end_name(attempt))):
        return Liveness.GONE
    token = _load_token_host(run_dir, attempt)
    if token is not None:
        return Liveness.GONE if token == _NOBODY else Liveness.ALIVE
    try:
        code = load_submit_code(run_dir, attempt)
    except OSError:
        return Liveness.GONE
    if code is not None:
        return Liveness.ALIVE if code == 0 else Liveness.GONE
    was_sent = os.path.exists(os.path.join(run_dir, layout.submit_log_name(attempt)))
    return Liveness.ALIVE if was_sent or _may_be_owned(handle) else Liveness.GONE


def _load_token_host(run_dir: str, attempt: int) -> str | None:
    try:
        with open(os.path.join(run_dir, layout.token_name(attempt)), encoding="utf-8", errors="replace") as file:
            return parse_token(file.read()).host
    except OSError:
        return None


def _may_be_owned(handle: JobHandle) -> bool:
    """By another supervisor that lives; one on another machine cannot be asked."""
    if handle.host != processes.host_name():
        return True
    if handle.supervisor_pid == os.getpid():
        return False
    return processes.is_alive(handle.supervisor_pid, handle.supervisor_start, handle.boot)


# ---------------------------------------------------------------- one host


class _Host:
    """Everything that is done on one host, by one thread; `jobs` and `cancels` are guarded by the executor's lock."""

    def __init__(
        self,
        place: Place,
        changed: threading.Condition,
        ended: deque[JobHandle],
        messages: list[str],
        left: dict[JobHandle, tuple[str, ...]],
    ) -> None:
        self.place = place
        self.jobs: dict[_Key, _Job] = {}
        self.problem: str | None = None  # why it cannot be reached
        self._changed, self._ended, self._messages, self._left = changed, ended, messages, left
        self._cancels: list[_Cancel] = []
        self._connection = _connect(place)
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._is_closed = False
        self._has_codes: set[str] = set()
        self._hashes: dict[tuple[object, ...], str] = {}
        self._is_busy = False  # something came in the last round

    def add(self, job: _Job) -> None:
        known = self.jobs.get(job.key)
        if known is None:
            self.jobs[job.key] = job
        else:
            known.is_watched = True
        self._begin()

    def cancel(self, cancel: _Cancel) -> None:
        self._cancels.append(cancel)
        self._begin()

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"ssh {self.place.host}", daemon=True)
            self._thread.start()
        self._wake.set()

    def close(self) -> None:
        self._is_closed = True
        self._wake.set()
        running = self._process
        if running is not None:
            with contextlib.suppress(OSError):
                running.kill()
        self._connection.interrupt()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    # ------------------------------------------------------------ the thread

    def _work(self) -> None:
        pause_s, retry_s = _SHORTEST_PAUSE_S, _FIRST_RETRY_S
        while not self._is_closed:
            self._wake.clear()
            self._is_busy = False
            try:
                is_idle = self._round()
            except (_LostError, InfrastructureError, OSError) as error:
                self._note_problem(error)
                self._wake.wait(retry_s)
                retry_s = min(retry_s * 2, _LAST_RETRY_S)
                continue
            self._note_answer()
            pause_s = _SHORTEST_PAUSE_S if self._is_busy else min(pause_s * 1.5, _LONGEST_PAUSE_S)
            retry_s = _FIRST_RETRY_S
            if self._wake.wait(None if is_idle else pause_s):
                pause_s = _SHORTEST_PAUSE_S
        self._connection.close()

    def _note_problem(self, error: Exception) -> None:
        if self._is_closed:
            return
        hint = f" ({error.hint})" if isinstance(error, AssayError) and error.hint else ""
        said = str(error) or type(error).__name__
        with self._changed:
            if self.problem is None:
                self._messages.append(f"{said}{hint}; its runs are left as they are, and it is tried again")
            self.problem = said
            self._changed.notify_all()

    def _note_answer(self) -> None:
        with self._changed:
            if self.problem is not None:
                self._messages.append(f"the host {self.place.host} answers again")
                self.problem = None
                self._changed.notify_all()

    def _round(self) -> bool:
        """Everything once. True: nothing is left to do."""
        self._take_cancels()
        for job in self._snapshot():
            if job.request is not None:
                self._send(job)
                if self._cancels:
                    break
        sent = [job for job in self._snapshot() if job.request is None]
        for job in [job for job in sent if load_liveness(job.handle, job.run_dir) is Liveness.GONE]:
            self._report(job)  # another supervisor has fetched it, or nothing of it was ever sent
            sent.remove(job)
        if sent:
            for job, state in self._look(sent):
                self._conclude(job, state)
        with self._changed:
            return not self.jobs and not self._cancels

    def _snapshot(self) -> list[_Job]:
        with self._changed:
            return list(self.jobs.values())

    def _report(self, job: _Job) -> None:
        self._is_busy = True
        with self._changed:
            known = self.jobs.pop(job.key, job)
            if known.is_watched:
                self._ended.append(known.handle)
            for cancel in [each for each in self._cancels if each.job.key == job.key and each.is_sent]:
                cancel.is_done = True
                self._cancels.remove(cancel)
            self._changed.notify_all()

    # ------------------------------------------------------------ asking

    def _start(self, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        self._process = started = self._connection.start(_script(), self.place.root, *words, stdin=stdin)
        return started

    def _ask(self, *words: str, content: bytes = b"") -> bytes:
        with self._start(*words, stdin=subprocess.PIPE) as started:
            out, err = started.communicate(content)
        return self._check(started.returncode, out, err)

    def _check(self, code: int, out: bytes, err: bytes) -> bytes:
        if code:
            said = err.decode("utf-8", "replace").strip().rpartition("\n")[2] or f"exit code {code}"
            raise _LostError(f"the host {self.place.host} did not answer: {said}")
        return out

    # ------------------------------------------------------------ sending

    def _send(self, job: _Job) -> None:
        request = job.request
        assert request is not None
        log = os.path.join(job.run_dir, layout.submit_log_name(request.attempt))
        try:
            with open(log, "ab"):
                pass  # from here on the host has to be asked
            digest = self._hash_code(os.path.join(job.run_dir, layout.CODE_DIR))
        except OSError as error:  # the directory was removed, or the disk is full
            self._refuse(job, f"cannot send {request.name}: {error.strerror}", 1)
            return
        if digest != _NO_CODE and digest not in self._has_codes and self._ask("has", digest) != b"":
            self._has_codes.add(digest)
        variables = [f"{name}={value}" for name, value in request.env.items()]
        words = ["stage", job.uid, str(request.attempt), digest, *variables]
        with self._start(*words, stdin=subprocess.PIPE) as started:
            assert started.stdin is not None
            try:
                _write_tar(started.stdin, job.run_dir, with_code=digest != _NO_CODE and digest not in self._has_codes)
            except BrokenPipeError:
                pass  # it was there already, or the host says why not
            except OSError as error:
                started.kill()
                self._refuse(job, f"cannot send {request.name}: {error.strerror}", 1)
                return
            out, err = _communicate(started)
        if started.returncode == CONNECTION_LOST or started.returncode < 0:
            self._check(CONNECTION_LOST, out, err)
        self._is_busy = True
        if started.returncode or b"started" not in out:
            self._has_codes.discard(digest)
            said = err.decode("utf-8", "replace").strip() or f"exit code {started.returncode}"
            self._refuse(job, f"the host {self.place.host} cannot run {request.name}: {said}", started.returncode or 1)
            return
        self._has_codes.add(digest)
        _write_once(os.path.join(job.run_dir, layout.submit_exit_name(request.attempt, 0)), "")
        job.request = None

    def _refuse(self, job: _Job, message: str, code: int) -> None:
        attempt = job.handle.attempt
        with contextlib.suppress(OSError):
            with open(os.path.join(job.run_dir, layout.submit_log_name(attempt)), "a", encoding="utf-8") as file:
                file.write(message + "\n")
            _write_once(os.path.join(job.run_dir, layout.submit_exit_name(attempt, code)), "")
        self._report(job)

    def _hash_code(self, folder: str) -> str:
        """Of the content. Copies of one snapshot have the same names, sizes and times: one of them is read."""
        if not os.path.isdir(folder):
            return _NO_CODE
        entries = list(_walk(folder))
        key = tuple(
            (name, s.st_mode, s.st_size if not target else 0, s.st_mtime_ns, target) for name, s, target in entries
        )
        if key not in self._hashes:
            digest = blake2b(digest_size=16)
            for name, status, target in entries:
                head = f"{name}\0{status.st_mode:o}\0{target}\0{status.st_size}\0"
                digest.update(head.encode("utf-8", "surrogateescape"))
                if not target and not os.path.isdir(os.path.join(folder, name)):
                    with open(os.path.join(folder, name), "rb") as file:
                        digest.update(file.read())
            self._hashes[key] = digest.hexdigest()
        return self._hashes[key]

    # ------------------------------------------------------------ following

    def _look(self, jobs: Sequence[_Job]) -> list[tuple[_Job, str]]:
        """All jobs of the host in one round trip; what has ended, and how."""
        words: list[str] = []
        for job in jobs:
            known = _list_growing(job.run_dir)
            is_ownerless = not _has_begun(job) and not _may_be_owned(job.handle) and self._is_unsent(job)
            words += [job.uid, str(job.handle.attempt), str(int(is_ownerless)), str(len(known))]
            words += [text for name, size in known.items() for text in (name, str(size))]
        content = "".join(f"{word}\0" for word in words).encode("utf-8", "surrogateescape")
        by_uid = {(job.uid, str(job.handle.attempt)): job for job in jobs}
        found: list[tuple[_Job, str]] = []
        with self._open_stream("look", content=content) as stream:
            current: _Job | None = None
            while (kind := stream.take()) != "Z":
                if kind == "S":
                    current = by_uid[stream.take(), stream.take()]
                    state, token = stream.take(), stream.take()
                    self._note_token(current, state, token)
                    found.append((current, state))
                elif kind == "F" and current is not None:
                    self._is_busy |= self._store(stream, current.run_dir)
                else:
                    raise _LostError(f"the host {self.place.host} answered something else")
        self._demand_whole(stream)
        return found

    def _demand_whole(self, stream: _Stream) -> None:
        if not stream.is_whole:
            raise _LostError(f"the connection to the host {self.place.host} broke")

    def _is_unsent(self, job: _Job) -> bool:
        return load_submit_code(job.run_dir, job.handle.attempt) is None

    def _note_token(self, job: _Job, state: str, token: str) -> None:
        text = _NEVER if state == "never" else token and f"ssh:{self.place.host} {token.partition(' ')[2]}\n"
        if text and not _has_begun(job):
            _write_once(os.path.join(job.run_dir, layout.token_name(job.handle.attempt)), text)
            self._is_busy = True

    def _store(self, stream: _Stream, run_dir: str) -> bool:
        """Some bytes of a file into its place; whether there were any."""
        name, offset, length = stream.take(), int(stream.take()), int(stream.take())
        path = _locate(run_dir, name)
        if path is None or not os.path.isdir(run_dir):
            stream.skip(length)
            return False
        _make_parents(run_dir, name)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        with os.fdopen(fd, "wb") as file:
            file.truncate(max(offset, 0))
            file.seek(offset)
            stream.copy(length, file)
        return True

    @contextlib.contextmanager
    def _open_stream(self, *words: str, content: bytes) -> Iterator[_Stream]:
        with self._start(*words, stdin=subprocess.PIPE) as started:
            assert started.stdin is not None
            assert started.stdout is not None
            writer = threading.Thread(target=_feed, args=(started.stdin, content), daemon=True)
            writer.start()
            try:
                yield _Stream(started.stdout)
            except EOFError:
                pass
            except BaseException:
                started.kill()
                raise
            _, err = _communicate(started)
            writer.join()
        self._check(started.returncode, b"", err)

    # ------------------------------------------------------------ the end

    def _conclude(self, job: _Job, state: str) -> None:
        attempt = job.handle.attempt
        if state == "never":
            self._report(job)
        elif state == "missing":
            if _has_begun(job) or not self._is_unsent(job):
                self._write_end(job)
        elif state in ("ended", "dead"):
            if state == "dead":  # job.sh was killed, or the host was started again: nothing of it goes on
                self._ask("cancel", str(int(_DEAD_GRACE_S * 10)), job.uid, str(attempt), job.handle.tag)
            if self._fetch(job):
                self._write_end(job)

    def _write_end(self, job: _Job) -> None:
        with contextlib.suppress(FileNotFoundError):  # the directory was removed meanwhile
            _write_once(os.path.join(job.run_dir, layout.end_name(job.handle.attempt)), "")
        self._report(job)

    def _fetch(self, job: _Job) -> bool:
        """Bring what differs, until nothing does; then the host's copy may go. False: the next round goes on."""
        for _ in range(3):
            wanted, links = self._compare(job)
            if not wanted:
                for name, target in links.items():
                    _make_link(job.run_dir, name, target)
                _sync(job.run_dir)
                if not job.place.keep:
                    self._ask("remove", job.uid)
                return True
            self._bring(job, wanted)
        return False

    def _compare(self, job: _Job) -> tuple[dict[str, tuple[int, str]], dict[str, str]]:
        """Files whose content is not here yet, with size and hash, and links; exit markers come last."""
        wanted, links, left = {}, {}, []
        with self._open_stream("list", job.uid, job.handle.tag, content=b"") as stream:
            while (kind := stream.take()) != "Z":
                if kind == "H":
                    name, size, digest = stream.take(), int(stream.take() or 0), stream.take()
                    path = _locate(job.run_dir, name)
                    if path and not _is_ours(name) and not _is_same(path, size, digest):
                        wanted[name] = (size, digest)
                elif kind == "L":
                    name = stream.take()
                    links[name] = stream.take()
                else:
                    left.append(stream.take())
        self._demand_whole(stream)
        self._left[job.handle] = tuple(left)
        return dict(sorted(wanted.items(), key=lambda item: layout.parse_exit_marker(item[0]) is not None)), links

    def _bring(self, job: _Job, wanted: dict[str, tuple[int, str]]) -> None:
        """Each into a file beside its place, from where an earlier try was cut off."""
        offsets = {}
        for name, (size, _) in wanted.items():
            _make_parents(job.run_dir, name)
            part = _part(job.run_dir, name)
            offsets[name] = os.path.getsize(part) if os.path.exists(part) and os.path.getsize(part) <= size else 0
        content = "".join(f"{name}\0{offset}\0" for name, offset in offsets.items())
        with self._open_stream("send", job.uid, content=content.encode("utf-8", "surrogateescape")) as stream:
            while stream.take() != "Z":
                name, offset, length = stream.take(), int(stream.take()), int(stream.take())
                part = _part(job.run_dir, name)
                with open(part, "r+b" if os.path.exists(part) else "wb") as file:
                    file.truncate(offset)
                    file.seek(offset)
                    stream.copy(length, file)
                    file.flush()
                    os.fsync(file.fileno())
                size, digest = wanted[name]
                if _is_same(part, size, digest):
                    rename(part, os.path.join(job.run_dir, name))
                else:
                    os.unlink(part)
        self._demand_whole(stream)

    # ------------------------------------------------------------ cancelling

    def _take_cancels(self) -> None:
        with self._changed:
            cancels = [cancel for cancel in self._cancels if not cancel.is_sent]
            for cancel in cancels:
                known = self.jobs.get(cancel.job.key)
                if known is not None and known.request is not None and not _was_sent(known):
                    cancel.was_gone = cancel.is_sent = True
        for cancel in [each for each in cancels if each.is_sent]:  # nothing of it was sent
            with contextlib.suppress(OSError):
                _write_once(os.path.join(cancel.job.run_dir, layout.token_name(cancel.job.handle.attempt)), _NEVER)
            self._report(cancel.job)
        cancels = [each for each in cancels if not each.is_sent]
        for grace_s in {cancel.grace_s for cancel in cancels}:
            chosen = [cancel for cancel in cancels if cancel.grace_s == grace_s]
            words = [w for each in chosen for w in (each.job.uid, str(each.job.handle.attempt), each.job.handle.tag)]
            self._ask("cancel", str(round(grace_s * 10)), *words)
            self._note_cancelled(chosen)

    def _note_cancelled(self, cancels: Sequence[_Cancel]) -> None:
        with self._changed:
            for cancel in cancels:
                cancel.is_sent = True
                if cancel.was_gone:
                    cancel.is_done = True
                    self._cancels.remove(cancel)
                else:
                    known = self.jobs.setdefault(cancel.job.key, cancel.job)
                    known.request = None  # its token is taken: sending it again would start nothing
            self._changed.notify_all()


class _Stream:
    """Fields that end with a zero byte, and bytes whose number such a field has announced."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._buffer = b""
        self.is_whole = False  # the field that ends an answer was seen

    def take(self) -> str:
        """Every answer ends with the field Z. Raises EOFError for one that was cut."""
        self.is_whole = False
        while b"\0" not in self._buffer:
            if not self._fill():
                raise EOFError
        field, _, self._buffer = self._buffer.partition(b"\0")
        self.is_whole = field == b"Z"
        return field.decode("utf-8", "surrogateescape")

    def _fill(self) -> bool:
        chunk = os.read(self._source.fileno(), 1 << 16)
        self._buffer += chunk
        return bool(chunk)

    def copy(self, length: int, file: IO[bytes]) -> None:
        while length > 0:
            if not self._buffer and not self._fill():
                raise EOFError
            piece, self._buffer = self._buffer[:length], self._buffer[length:]
            file.write(piece)
            length -= len(piece)

    def skip(self, length: int) -> None:
        self.copy(length, io.BytesIO())


# ---------------------------------------------------------------- files here


def _has_begun(job: _Job) -> bool:
    return os.path.exists(os.path.join(job.run_dir, layout.token_name(job.handle.attempt)))


def _was_sent(job: _Job) -> bool:
    return os.path.exists(os.path.join(job.run_dir, layout.submit_log_name(job.handle.attempt)))


def _write_once(path: str, text: str) -> None:
    with contextlib.suppress(FileExistsError):
        write_new(path, text)


def _communicate(started: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """What it says after its stdin was written by somebody else."""
    if started.stdin is not None:
        with contextlib.suppress(OSError):
            started.stdin.close()
        started.stdin = None
    return started.communicate()


def _feed(stream: IO[bytes], content: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):
        stream.write(content)
        stream.close()


def _walk(folder: str, prefix: str = "") -> Iterator[tuple[str, os.stat_result, str]]:
    """Relative name, status and link target of everything below, in a fixed order."""
    for entry in sorted(os.scandir(os.path.join(folder, prefix)), key=lambda each: each.name):
        name = os.path.join(prefix, entry.name)
        target = os.readlink(entry.path) if entry.is_symlink() else ""
        yield name, entry.stat(follow_symlinks=False), target
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(folder, name)


def _write_tar(stream: IO[bytes], run_dir: str, *, with_code: bool) -> None:
    with tarfile.open(
        fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
    ) as archive:
        archive.addfile(_folder("run"))
        for name in sorted(os.listdir(run_dir)):
            path = os.path.join(run_dir, name)
            is_code = (name == layout.CODE_DIR or name.startswith(f"{layout.CODE_DIR}.")) and os.path.isdir(path)
            if not is_code and not any(fnmatch.fnmatchcase(name, pattern) for pattern in _NOT_SENT):
                archive.add(path, f"run/{name}")
        if with_code:
            archive.add(os.path.join(run_dir, layout.CODE_DIR), "code")
        archive.addfile(tarfile.TarInfo(".whole"))


def _folder(name: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mode = tarfile.DIRTYPE, 0o755
    return made


def _list_growing(run_dir: str) -> dict[str, int]:
    found = {}
    with contextlib.suppress(OSError):
        for prefix, patterns in (("", _GROWING), (f"{layout.METRICS_DIR}/", ("*.jsonl",))):
            folder = os.path.join(run_dir, prefix)
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                path = os.path.join(folder, name)
                if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns) and os.path.isfile(path):
                    found[prefix + name] = os.path.getsize(path)
    return found


def _locate(run_dir: str, name: str) -> str | None:
    """Where a file of the host's copy belongs; None: not inside the run's directory."""
    path = os.path.normpath(os.path.join(run_dir, name))
    return path if path.startswith(os.path.normpath(run_dir) + os.sep) else None


def _is_ours(name: str) -> bool:
    """What this side writes, and is right about."""
    if "/" in name:
        return name.rpartition("/")[2].startswith(_PART)
    if name in _OURS or name.startswith((_PART, ".start.")) or layout.parse_numbered(name):
        return True
    return name.startswith(("submit.log.", "submit.exit."))


def _make_parents(run_dir: str, name: str) -> None:
    """Never the run's directory itself: where that was removed, it stays so."""
    parts = name.split("/")[:-1]
    for count in range(1, len(parts) + 1):
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.join(run_dir, *parts[:count]))


def _part(run_dir: str, name: str) -> str:
    folder, base = os.path.split(name)
    mark = blake2b(base.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()  # a long name stays possible
    return os.path.join(run_dir, folder, f"{_PART}{mark}")


def _is_same(path: str, size: int, digest: str) -> bool:
    try:
        if os.path.islink(path) or os.path.getsize(path) != size:
            return False
        if not digest:  # the host has no sha256sum
            return True
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except OSError:
        return False


def _make_link(run_dir: str, name: str, target: str) -> None:
    """Links to the run's own files, as in `last.pt -> step-100.pt`; others mean nothing here."""
    path = _locate(run_dir, name)
    if path is None or os.path.isabs(target) or _locate(run_dir, os.path.join(os.path.dirname(name), target)) is None:
        return
    with contextlib.suppress(OSError):
        _make_parents(run_dir, name)
        if os.path.islink(path):
            os.unlink(path)
        os.symlink(target, path)


def _sync(run_dir: str) -> None:
    """The names, before the host's copy goes; the bytes were flushed one by one."""
    fd = os.open(run_dir, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
