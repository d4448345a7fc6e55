"""Jobs on farms, by the farm's own submit command.

There is no pipe to a farm, so there is no gate: the lease is published first, the submit command runs afterwards, and
`job.sh` takes `token.N` before it does anything. The state of a job is read from files:

lease.N alone           the supervisor is about to submit the job, or died before that
submit.log.N            the submit command was started; the file has its output
submit.exit.N.<code>    the submit command ended; not 0 without a token: nothing was submitted
token.N                 the job has begun (host, pid, start, boot, time), or was cancelled before it could begin
end.N                   job.sh has exited

On NGC a job's files appear under NGC_LOGROOT and are linked into the run directory as they appear, so that no other
module depends on NGC_LOGROOT.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import shutil
import subprocess
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from assay.errors import InfrastructureError
from assay.execute import places, process
from assay.execute.base import Executor, Publish, UnconfirmedError
from assay.execute.script import quote_text
from assay.farms import submit_lines
from assay.farms.waiting import Key, WaitingJobs
from assay.record import run_directory
from assay.system import processes
from assay.system.files import list_names, read_end, read_text, write_new
from assay.values import layout
from assay.values.run import JobHandle, JobRequest, Liveness, Usage
from assay.values.study import Farm

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_POLL_BUDGET_S = 0.5  # a thousand queued jobs on a slow network disk must not hold up the supervisor
_EMPTY_TOKEN_S = 5.0  # creating the token and writing it are microseconds apart
_ELSEWHERE_S = 15.0  # beyond the grace period: another host's watcher checks every 2 s, and has a grace period too
_CANCEL_COMMAND_S = 60.0
_CANNOT_START = 126
_HIGHEST_OWN_CODE = 128  # a higher code: ended by a signal
_LOG_TAIL_BYTES = 4096
_SHELL = "shell"  # instead of a job number: the submit command is the job
_MOST_PIDFDS = 128  # submit commands that stay until their job ends would use up a process's descriptors


@dataclass(frozen=True, slots=True)
class AttemptToken:
    """The process that began the attempt; host "-": the attempt will never begin, host "": the token is still empty."""

    host: str
    pid: int = 0
    start: int = 0
    boot: str = ""

    @property
    def node(self) -> str:
        return self.host.partition(".")[0]


@dataclass(frozen=True, slots=True)
class _Client:
    """A submit command that is still running."""

    pid: int
    handle: JobHandle
    pidfd: int | None  # None: its pid is checked instead


class SubmitExecutor(Executor):
    """`parallel`: how many submit commands may run at once. A bare shell is the job itself and never waits."""

    name = "submit"

    def __init__(self, farm: Farm, parallel: int = 8) -> None:
        self.farm = _anchor(farm)
        self._is_shell = submit_lines.is_shell(farm)
        self._parallel = parallel
        self._bash = shutil.which("bash") or "/bin/bash"
        self._poll = select.epoll()
        self._clients: dict[Key, _Client] = {}
        self._pidfds: dict[int, Key] = {}
        self._submitting: set[Key] = set()  # clients whose job has not begun
        # jobs whose submit command waits for its turn; if this supervisor ends earlier, others submit them
        self._pending: OrderedDict[Key, tuple[JobRequest, JobHandle]] = OrderedDict()
        self._watched: dict[Key, JobHandle] = {}
        self._waiting = WaitingJobs(self._has_token)  # watched jobs that the farm has not started
        self._refused: str | None = None
        self._usage: dict[JobHandle, Usage] = {}
        self._empty_since: dict[Key, float] = {}
        self._fenced: set[Key] = set()  # attempts that were given up, by a supervisor or by their own job
        self._messages: list[str] = []
        self._pause_s = _SHORTEST_PAUSE_S
        self._turn = 0

    # ------------------------------------------------------------ submitting

    def submit(self, request: JobRequest, publish: Publish) -> JobHandle | None:
        submit_lines.build_submit_command(self.farm, request)  # an incomplete farm is refused before there is a lease
        self._reap_ready()
        refused, self._refused = self._refused, None
        if refused is not None:  # the next jobs would be refused as well
            raise InfrastructureError(refused)
        self._start_pending()
        farm_root = (self.farm.remote_root or "") if self.farm.kind == "ngc" else ""
        native_id = _SHELL if self._is_shell else ""
        handle = process.build_handle(request, self.name, farm_root=farm_root, native_id=native_id)
        if not publish(handle):
            return None
        key = request.dir, request.attempt
        self._watched[key] = handle
        self._waiting.add(key)
        self._pause_s = _SHORTEST_PAUSE_S
        if self._is_shell or len(self._submitting) < self._parallel:
            self._start(request, handle)
        else:
            self._pending[key] = request, handle
        return handle

    def _start(self, request: JobRequest, handle: JobHandle) -> None:
        try:
            if submit_lines.uses_script(self.farm):
                script = submit_lines.build_job_script(self.farm, request).encode("utf-8", "surrogateescape")
                with contextlib.suppress(FileExistsError):
                    write_new(os.path.join(request.dir, layout.submit_script_name(request.attempt)), script, 0o777)
            log = os.path.join(request.dir, layout.submit_log_name(request.attempt))
            argv = [self._bash, "-c", _wrap(submit_lines.build_submit_command(self.farm, request), request)]
            # slots are of this host: only the job of a bare shell needs one
            slots = process.place_slots(request.slot_fds) if self._is_shell else []
            pid = processes.spawn_session(argv, process.build_environment(request), log, slots)
        except OSError as error:
            message = f"cannot start the submit command of {request.name}: {error.strerror}"
            write_submission(request.dir, request.attempt, _CANNOT_START, message)
            self._waiting.discard((request.dir, request.attempt))
            raise InfrastructureError(message) from error
        key = request.dir, request.attempt
        pidfd = os.pidfd_open(pid) if len(self._pidfds) < _MOST_PIDFDS else None
        if pidfd is not None:
            self._pidfds[pidfd] = key
            self._poll.register(pidfd, select.EPOLLIN)
        self._clients[key] = _Client(pid, handle, pidfd)
        self._submitting.add(key)

    @classmethod
    def find_program(cls, farm: Farm) -> str | None:
        return submit_lines.find_program(farm)

    @classmethod
    def uses_slots(cls, farm: Farm) -> bool:
        """Return whether the farm is a bare shell, which is the job itself."""
        return submit_lines.is_shell(farm)

    @classmethod
    def render_line(cls, farm: Farm, request: JobRequest, command: str) -> str:
        shown = layout.show_command(command, submit_lines.build_state_dir(farm, request.dir))
        return submit_lines.render_submit_line(farm, request, shown)

    @classmethod
    def find_job(cls, handle: JobHandle, run_dir: str) -> str:
        """Return the job's id as the submit command printed it."""
        if handle.native_id == _SHELL:
            return ""
        return submit_lines.parse_native_id(read_submit_log(run_dir, handle.attempt))

    def is_handed_over(self) -> bool:
        """Return whether the farm has all jobs; the jobs of a bare shell are children of this process."""
        return not self._is_shell and not self._pending and not self._submitting

    def refusal(self, handle: JobHandle, run_dir: str) -> str | None:
        code = load_submit_code(run_dir, handle.attempt)
        if self._is_shell and (code is None or code > _HIGHEST_OWN_CODE):
            return None  # a killed shell has refused nothing: its job is tried again
        return load_submit_failure(run_dir, handle.attempt)

    def _start_pending(self) -> None:
        """Start submit commands that wait, up to the limit, which ignores commands whose job has begun."""
        while self._pending and len(self._submitting) < self._parallel:
            _, (request, handle) = self._pending.popitem(last=False)
            with contextlib.suppress(InfrastructureError):  # submit.exit.N records failures
                self._start(request, handle)

    def _reap(self) -> None:
        self._reap_ready()
        for key in [key for key, client in self._clients.items() if client.pidfd is None]:
            self._reap_client(key)

    def _reap_ready(self) -> None:
        for pidfd, _ in self._poll.poll(0):
            self._reap_client(self._pidfds[pidfd])

    def _reap_client(self, key: Key) -> None:
        client = self._clients[key]
        pid, status, used = os.wait4(client.pid, os.WNOHANG)
        if not pid:
            return
        del self._clients[key]
        self._submitting.discard(key)
        if client.pidfd is not None:
            del self._pidfds[client.pidfd]
            self._poll.unregister(client.pidfd)
            os.close(client.pidfd)
        self._pause_s = _SHORTEST_PAUSE_S
        if self._is_shell:
            peak = process.find_peak_bytes(used.ru_maxrss)
            self._usage[client.handle] = Usage(cpu_s=used.ru_utime + used.ru_stime, peak_rss_bytes=peak)
        if os.WIFSIGNALED(status) and load_submit_code(*key) is None:
            message = f"the submit command was killed ({os.WTERMSIG(status)})"
            write_submission(*key, 128 + os.WTERMSIG(status), message)
        is_taken = os.path.exists(os.path.join(key[0], layout.submit_exit_name(key[1], 0)))
        if self._is_shell or not is_taken:  # a shell has no queue
            self._waiting.discard(key)
        if not is_taken:
            self._refused = self._refused or self.refusal(client.handle, key[0])

    # ------------------------------------------------------------ watching

    def watch(self, handle: JobHandle, run_dir: str) -> None:
        self._watched.setdefault((run_dir, handle.attempt), handle)
        self._pause_s = _SHORTEST_PAUSE_S

    def may_have_begun(self, handle: JobHandle, run_dir: str) -> bool:
        return (run_dir, handle.attempt) not in self._waiting

    def wait(self, timeout_s: float) -> Sequence[JobHandle]:
        deadline = time.monotonic() + max(0.0, timeout_s)
        while True:
            self._reap()
            self._start_pending()
            ended = self._take_ended()
            left = deadline - time.monotonic()
            if ended or left <= 0:
                self._refused = None  # the caller finds the refused job among the ended ones
                return ended
            self._poll.poll(min(left, self._pause_s))
            self._pause_s = min(self._pause_s * 1.5, _LONGEST_PAUSE_S)

    def _note_begun(self) -> None:
        self._submitting.difference_update(self._waiting.take_begun())

    def _take_ended(self) -> list[JobHandle]:
        self._note_begun()
        keys = [key for key in self._watched if key not in self._waiting]
        deadline = time.monotonic() + _POLL_BUDGET_S
        ended = []
        for count in range(len(keys)):
            key = keys[(self._turn + count) % len(keys)]
            if self.liveness(self._watched[key], key[0]) is Liveness.GONE:
                ended.append(self._watched.pop(key))
            if time.monotonic() > deadline:
                self._turn = (self._turn + count + 1) % len(keys)
                break
        if ended:
            self._pause_s = _SHORTEST_PAUSE_S
        return ended

    def take_messages(self) -> Sequence[str]:
        messages = list(self._messages)
        self._messages.clear()
        return messages

    def usage(self, handle: JobHandle) -> Usage | None:
        return self._usage.pop(handle, None)

    def liveness(self, handle: JobHandle, run_dir: str) -> Liveness:
        if (run_dir, handle.attempt) in self._fenced:
            return Liveness.GONE
        found = self._judge(handle, run_dir)
        # files are linked after the judgement, so that no file that a job wrote before its end is missing
        collect_files(self._state_dir(run_dir), run_dir)
        return found

    @classmethod
    def load_liveness(cls, handle: JobHandle, run_dir: str) -> Liveness:
        """Return whether a job lives, by its files, for every engine; also link the files that it wrote elsewhere."""
        with contextlib.closing(SubmitExecutor(Farm("", "ngc", remote_root=handle.farm_root or None))) as executor:
            return executor.liveness(handle, run_dir)

    def _judge(self, handle: JobHandle, run_dir: str) -> Liveness:
        if self._is_shell and (run_dir, handle.attempt) in self._clients:
            return Liveness.ALIVE  # a shell counts as alive until it is reaped, since it holds the slot
        if has_numbered(self._state_dir(run_dir), "end", handle.attempt):
            return Liveness.GONE
        token = self._load_token(run_dir, handle.attempt)
        if token is None:
            return self._before_token(handle, run_dir)
        if not token.host:
            return self._unwritten_token(run_dir, handle.attempt)
        if token.host not in (layout.NO_HOST, processes.host_name()):
            return Liveness.UNKNOWN
        return Liveness.ALIVE if processes.is_alive(token.pid, token.start, token.boot) else Liveness.GONE

    def _before_token(self, handle: JobHandle, run_dir: str) -> Liveness:
        if (run_dir, handle.attempt) in self._pending or (run_dir, handle.attempt) in self._clients:
            return Liveness.ALIVE
        if not os.path.isdir(run_dir):
            return Liveness.GONE  # a job without its directory cannot begin
        code = load_submit_code(run_dir, handle.attempt)
        if code is not None:  # 0: the farm's queue has the job; but a shell has no queue
            return Liveness.GONE if code != 0 or self._is_shell else self._wait_in_queue(handle, run_dir)
        here = handle.host == processes.host_name()
        if here and processes.is_alive(handle.supervisor_pid, handle.supervisor_start, handle.boot):
            return Liveness.ALIVE
        submitted = os.path.exists(os.path.join(run_dir, layout.submit_log_name(handle.attempt)))
        if here and submitted and process.find_members([process.AttemptProcesses(0, 0, handle.tag)]):
            return Liveness.ALIVE  # the submit command outlived its supervisor
        return Liveness.GONE if here and (self._is_shell or not submitted) else Liveness.UNKNOWN

    def _wait_in_queue(self, handle: JobHandle, run_dir: str) -> Liveness:
        """Add a job that the farm has to the waiting jobs, which are checked in turn."""
        if (run_dir, handle.attempt) in self._watched:
            self._waiting.add((run_dir, handle.attempt))
        return Liveness.UNKNOWN

    def _unwritten_token(self, run_dir: str, attempt: int) -> Liveness:
        """Judge a token without content: its writer is about to write it, found a full disk, or died; nothing ran yet.
        The age of the file does not help, since it may be by the clock of another host."""
        since = self._empty_since.setdefault((run_dir, attempt), time.monotonic())
        return Liveness.GONE if time.monotonic() - since >= _EMPTY_TOKEN_S else Liveness.UNKNOWN

    # ------------------------------------------------------------ the job's own directory

    def _state_dir(self, run_dir: str) -> str:
        return submit_lines.build_state_dir(self.farm, run_dir)

    def _token_path(self, run_dir: str, attempt: int) -> str:
        return layout.numbered_path(self._state_dir(run_dir), "token", attempt)

    def _has_token(self, key: Key, is_fresh: bool) -> bool:
        """Return whether the job has its token. `is_fresh`: open its folder first, since NFS may cache for a minute
        that a file does not exist. A run whose directory was removed does not wait any more."""
        if is_fresh:
            try:
                os.close(os.open(self._state_dir(key[0]), os.O_RDONLY | os.O_DIRECTORY))
            except OSError:
                return not os.path.isdir(key[0])
        return os.access(self._token_path(*key), os.F_OK)

    def _load_token(self, run_dir: str, attempt: int) -> AttemptToken | None:
        return load_token(self._token_path(run_dir, attempt))

    def _is_unbegun(self, run_dir: str, attempt: int) -> bool:
        """Return whether an attempt never began, and never will: its token was taken by a supervisor."""
        token = self._load_token(run_dir, attempt)
        return token is not None and token.host == layout.NO_HOST

    # ------------------------------------------------------------ ending

    def cancel(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> None:
        # attempts that were given up end when they see their stop files
        jobs = [job for job in jobs if (job[1], job[0].attempt) not in self._fenced]
        for handle, run_dir in jobs:
            self._pending.pop((run_dir, handle.attempt), None)
            self._waiting.discard((run_dir, handle.attempt))
            self._take_token(run_dir, handle.attempt)
            stop, theirs = (
                layout.numbered_path(each, "stop", handle.attempt) for each in (run_dir, self._state_dir(run_dir))
            )
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                write_new(theirs, read_text(stop))
            self._run_cancel_command(run_dir, handle.attempt)
        process.end_attempts([self._members(handle, run_dir) for handle, run_dir in jobs], grace_s)
        self._confirm(jobs, grace_s)

    def _take_token(self, run_dir: str, attempt: int) -> None:
        """Take the token of a job that the farm has not started: the job will find the token taken, and exit."""
        there = self._state_dir(run_dir)
        if there != run_dir and os.path.isdir(str(self.farm.remote_root)):
            os.makedirs(there, exist_ok=True)
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            write_new(self._token_path(run_dir, attempt), f"{layout.NO_HOST} 0 0 - {int(time.time())}\n".encode())

    def _run_cancel_command(self, run_dir: str, attempt: int) -> None:
        log = os.path.join(run_dir, layout.submit_log_name(attempt))
        native_id = submit_lines.parse_native_id(read_submit_log(run_dir, attempt))
        text = submit_lines.build_cancel_command(self.farm, run_dir, attempt, native_id)
        if text is None or not os.path.exists(log) or load_submit_code(run_dir, attempt):
            return  # a refused job has no number; the first number in an error message is another job's
        with open(log, "ab") as file, contextlib.suppress(subprocess.TimeoutExpired):
            # the output is kept; whether the job is gone follows from the job's own files
            subprocess.run(
                [self._bash, "-c", text],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=run_dir,
                timeout=_CANCEL_COMMAND_S,
            )

    def _members(self, handle: JobHandle, run_dir: str) -> process.AttemptProcesses:
        """Return the processes of an attempt on this host: the job, or its submit command, or nothing."""
        token = self._load_token(run_dir, handle.attempt)
        if token and token.host == processes.host_name() and token.boot == processes.boot_id():
            return process.AttemptProcesses(token.pid, token.start, handle.tag)
        return process.AttemptProcesses(0, 0, handle.tag)

    def _confirm(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> None:
        deadline = time.monotonic() + grace_s + _ELSEWHERE_S
        while left := [job for job in jobs if self._may_still_run(*job)]:
            if time.monotonic() > deadline:
                hint = "each ends when it sees its stop file; the farm's own command can end it now"
                raise UnconfirmedError([run_dir for _, run_dir in left], hint)
            time.sleep(_SHORTEST_PAUSE_S)

    def _may_still_run(self, handle: JobHandle, run_dir: str) -> bool:
        """Return whether a job may still run: its folder cannot be read, or another host has its token and no end.N."""
        token = self._load_token(run_dir, handle.attempt)
        if token is None:
            return load_submit_code(run_dir, handle.attempt) == 0
        if token.host in (layout.NO_HOST, processes.host_name()):
            return False
        if not token.host:
            return self._unwritten_token(run_dir, handle.attempt) is not Liveness.GONE
        return not has_numbered(self._state_dir(run_dir), "end", handle.attempt)

    def close(self) -> None:
        for pidfd in self._pidfds:
            os.close(pidfd)
        self._pidfds.clear()
        self._clients.clear()
        self._poll.close()


# ---------------------------------------------------------------- files


def has_numbered(run_dir: str, kind: layout.Numbered, attempt: int) -> bool:
    return os.path.exists(layout.numbered_path(run_dir, kind, attempt))


def collect_files(there: str, run_dir: str) -> None:
    """Link files that the job wrote elsewhere into the run directory."""
    if there == run_dir:
        return
    try:
        names = set(os.listdir(there)).difference(os.listdir(run_dir))
    except OSError:  # the folder is not uploaded yet, or not mounted
        return
    for name in names:
        if not name.startswith(".") and not name.endswith(".tmp"):
            with contextlib.suppress(OSError):  # another process was faster, or the directory is another user's
                os.symlink(os.path.join(there, name), os.path.join(run_dir, name))


def load_token(path: str) -> AttemptToken | None:
    """Return the token of an attempt; None if it does not exist, or cannot be reached."""
    try:
        return parse_token(read_text(path))
    except OSError:
        return None


def parse_token(text: str) -> AttemptToken:
    words = text.split()
    try:
        return AttemptToken(words[0], int(words[1]), int(words[2]), words[3])
    except (IndexError, ValueError):
        return AttemptToken("")


def load_submit_code(run_dir: str, attempt: int) -> int | None:
    """Return how the submit command of an attempt ended; None if no end is known. A node may refuse a job that its farm
    has taken: then there are two codes, and the refusal counts."""
    found = (layout.parse_submit_exit(name) for name in list_names(run_dir))
    return max((code for number, code in filter(None, found) if number == attempt), default=None)


def read_submit_log(run_dir: str, attempt: int) -> str:
    """Return the end of the submit command's output."""
    return read_end(os.path.join(run_dir, layout.submit_log_name(attempt)), _LOG_TAIL_BYTES)


def load_submit_failure(run_dir: str, attempt: int) -> str | None:
    """Return why the submission of an attempt failed, with the last lines of output; None if it has not failed."""
    code = load_submit_code(run_dir, attempt)
    if not code or has_numbered(run_dir, "token", attempt):
        return None
    lines = read_submit_log(run_dir, attempt).strip().splitlines()[-5:]
    said = ": " + "\n".join(lines) if lines else ", and it printed nothing"
    return f"submission failed: the submit command ended with code {code}{said}"


def find_lost_hosts(request: JobRequest) -> tuple[str, ...]:
    """Return the hosts on which earlier attempts of a run were given up: the run is not sent there again."""
    attempts = run_directory.load_history(request.dir).attempts if request.attempt > 1 else ()
    found = (places.load_place(request.dir, each.handle).host for each in attempts if each.is_fenced)
    return tuple(sorted({host.partition(".")[0] for host in found if host}))


def find_unfinished(run_dir: str, attempt: int) -> str | None:
    """Return the unfinished command of an attempt; "": the last command has ended; None: no command has begun."""
    lines = read_end(os.path.join(run_dir, layout.JOB_LOG), _LOG_TAIL_BYTES).splitlines()
    last = next((line.split() for line in reversed(lines) if re.match(r"\d+[.,]\d+ \S+ (?:start|exit)", line)), None)
    if last is None:
        return None
    if last[2] == "exit":
        return ""
    begin = layout.exit_marker_name(last[1], attempt, 0)[:-1]
    return "" if any(name.startswith(begin) for name in list_names(run_dir)) else last[1]


def _wrap(command: str, request: JobRequest) -> str:
    """Wrap the submit command so that it writes its exit code as a marker, even if the supervisor has died. `eval`
    confines a syntax error in SUBMIT_CMD, the parentheses confine an `exit`. The command runs in the run directory,
    since farms leave their own files in the working directory."""
    marker = layout.submit_exit_name(request.attempt, 0).removesuffix("0")
    return f"cd -- {shlex.quote(request.dir)} || exit\n(eval {quote_text(command)})\n: > {marker}$?\n"


def write_submission(run_dir: str, attempt: int, code: int, message: str) -> None:
    """Record how a submission ended if no submit command recorded it."""
    log = os.path.join(run_dir, layout.submit_log_name(attempt))
    with contextlib.suppress(OSError), open(log, "a", encoding="utf-8") as file:  # the marker suffices on a full disk
        file.write(message + "\n")
    with contextlib.suppress(OSError):  # the next check of the lease gives the same result
        write_new(os.path.join(run_dir, layout.submit_exit_name(attempt, code)), b"")


def _anchor(farm: Farm) -> Farm:
    """Make a program given as `./tools/submit` absolute: the submit command runs in the run directory."""
    program = submit_lines.find_program(farm)
    if not program or "/" not in program or program.startswith("/") or not os.path.exists(program):
        return farm
    absolute = shlex.quote(os.path.abspath(program))
    return replace(farm, submit=re.sub(re.escape(program), lambda _: absolute, farm.submit, count=1))
