"""Jobs on hosts that are reached by ssh: where each one runs, and its state as the files of its run directory show it.

lease.N                 the supervisor is about to send the job (its host and slot are in the handle), or died first
submit.log.N            the supervisor has begun to send the job
submit.exit.N.<code>    0: the job was started there; else the host refused it, and submit.log.N has the reason
token.N                 the host's own token, copied here; "-": the job never began, and never will
unreachable.N           its host has not answered for a long time; removed when it answers
end.N                   the job has ended, and its files are here, compared by size and hash
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass

from assay.farms.submit import has_numbered, load_submit_code, load_token
from assay.farms.waiting import Key
from assay.system import processes
from assay.system.files import write_new
from assay.system.ssh import is_host
from assay.values import layout
from assay.values.run import JobHandle, JobRequest, Liveness

DEFAULT_ROOT = "~/assay-runs"
NEVER = "- 0 0 - 0\n"

# jobs that an executor of this process is going to send
unsent: set[Key] = set()


@dataclass(frozen=True, slots=True)
class HostAddress:
    """One host and the folder on it that holds the runs."""

    name: str  # the name that ssh takes
    root: str = DEFAULT_ROOT
    options: tuple[str, ...] = ()  # more arguments of ssh


@dataclass(frozen=True, slots=True)
class HostSlot:
    """The host and slot of a job, as text in its handle, so that the job is found without its study's file."""

    address: HostAddress
    number: int = 0
    keep: bool = False  # the host keeps its copy of the run

    def render(self) -> str:
        address = {"host": self.address.name, "root": self.address.root, "options": self.address.options}
        return json.dumps({**address, "slot": self.number, "keep": self.keep})


def parse_slot(text: str) -> HostSlot | None:
    """Return the slot of a job; None if the text is not that of a slot: its lease may be damaged, or a pulled one."""
    try:
        fields = json.loads(text)
        name, root, options = fields["host"], fields["root"], tuple(fields["options"])
        if not all(isinstance(word, str) for word in (name, root, *options)) or not is_host(name):
            return None
        return HostSlot(HostAddress(name, root, options), int(fields["slot"]), bool(fields["keep"]))
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None


@dataclass(slots=True)
class SshJob:
    handle: JobHandle
    run_dir: str
    slot: HostSlot
    request: JobRequest | None = None  # None as soon as the job was sent
    is_watched: bool = True  # whether its end is reported
    fetches: int = 0
    failing_since: float | None = None  # since when its files cannot be stored here, by the monotonic clock
    next_try: float = 0.0

    @property
    def key(self) -> Key:
        return self.run_dir, self.handle.attempt

    @property
    def uid(self) -> str:
        return self.handle.tag.rpartition(".")[0]

    def path(self, name: str) -> str:
        return os.path.join(self.run_dir, name)

    def numbered(self, kind: layout.Numbered) -> str:
        """Return the path of the attempt's file of a kind, such as `token.2`."""
        return layout.numbered_path(self.run_dir, kind, self.handle.attempt)

    def has(self, kind: layout.Numbered) -> bool:
        return has_numbered(self.run_dir, kind, self.handle.attempt)

    def was_offered(self) -> bool:
        """Return whether a supervisor has begun to send the job: the host may have it."""
        return os.path.exists(self.path(layout.submit_log_name(self.handle.attempt)))

    def is_unsent(self) -> bool:
        return load_submit_code(self.run_dir, self.handle.attempt) is None

    def write_once(self, path: str, text: str = "") -> None:
        """Write a file unless it exists: the first writer decides. A removed run directory is not made again."""
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            write_new(path, text)

    def remove_markers(self) -> None:
        """Remove the exit markers of commands whose results are not here: they are fetched again with the results."""
        for name in os.listdir(self.run_dir):
            marker = layout.parse_exit_marker(name) or layout.parse_timeout_marker(name)
            if marker is not None and marker[1] == self.handle.attempt:
                os.unlink(self.path(name))

    def write_never(self) -> None:
        self.write_once(self.numbered("token"), NEVER)


@dataclass(slots=True)
class Cancel:
    job: SshJob
    grace_s: float
    was_gone: bool
    is_sent: bool = False
    is_done: bool = False
    is_fence: bool = False  # whether the attempt was given up: none of its files are fetched


def load_liveness(handle: JobHandle, run_dir: str) -> Liveness:
    """Whether a job is alive, by local files: ALIVE if a host may have it, UNKNOWN if the host does not answer."""
    attempt = handle.attempt
    if has_numbered(run_dir, "end", attempt):
        return Liveness.GONE
    token = load_token_host(run_dir, attempt)
    if token == layout.NO_HOST:
        return Liveness.GONE
    if has_numbered(run_dir, "unreachable", attempt):
        return Liveness.UNKNOWN
    if token is not None:
        return Liveness.ALIVE
    code = load_submit_code(run_dir, attempt)
    was_offered = os.path.exists(os.path.join(run_dir, layout.submit_log_name(attempt)))
    is_on_its_way = code == 0 if code is not None else was_offered or may_be_sent(handle, run_dir)
    return Liveness.ALIVE if is_on_its_way else Liveness.GONE


def load_token_host(run_dir: str, attempt: int) -> str | None:
    token = load_token(layout.numbered_path(run_dir, "token", attempt))
    return token.host if token is not None else None


def may_be_sent(handle: JobHandle, run_dir: str) -> bool:
    """Return whether the supervisor with the lease may still send the job; one on another machine cannot be asked."""
    if handle.host != processes.host_name():
        return True
    if handle.supervisor_pid == os.getpid():
        return (run_dir, handle.attempt) in unsent
    return processes.is_alive(handle.supervisor_pid, handle.supervisor_start, handle.boot)
