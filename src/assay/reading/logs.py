"""`assay logs`: print the output of a run's commands, complete or while it is written."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from assay.errors import AssayError, UsageError, check_known
from assay.follow.locations import StudyLocation, show_command
from assay.follow.run_status import find_supervisors, load_record, load_status
from assay.record import run_directory
from assay.record.presence import SupervisorRecord
from assay.system.files import Tail
from assay.values import layout
from assay.values.run import RunSpec

POLL_S = 0.1
_BLOCK = 1 << 16

Write = Callable[[bytes], None]


# ---------------------------------------------------------------- finding a log


def find_log(run_dir: str, command: str | None = None, attempt: int | None = None) -> str:
    """Return the requested log; by default the newest log of the failed command, else of the last command begun."""
    record = load_record(run_dir)
    if record.origin:
        raise UsageError(f"{record.spec.name} was imported from {record.tool}: there is no output of it")
    spec, names = record.spec, os.listdir(run_dir)
    _check_command(run_dir, spec, command)
    history = run_directory.load_history(run_dir, names)
    if attempt is not None and attempt not in [each.number for each in history.attempts]:
        numbers = ", ".join(str(each.number) for each in history.attempts)
        hint = f"its attempts: {numbers}" if numbers else "it was never started"
        raise UsageError(f"{os.path.basename(run_dir)} has no attempt {attempt}", hint)
    files = [name for name in names if os.path.isfile(os.path.join(run_dir, name))]
    for each in _order(spec, history, command, attempt):
        found = _log_of_attempt(files, spec, history, each, attempt)
        if found is not None:
            return os.path.join(run_dir, found)
    folder, name = os.path.split(os.path.abspath(run_dir))
    again = show_command(["logs"], StudyLocation(*os.path.split(folder)), name, options=["--follow"])
    which = f"of {command} " if command else ""
    tried = f"in attempt {attempt} " if attempt else ""
    raise UsageError(f"{name} has no output {which}{tried}yet", f"wait for it: {again}")


def _check_command(run_dir: str, spec: RunSpec, command: str | None) -> None:
    """Refuse a run without commands, and a command that the run does not have."""
    if not spec.commands:
        raise UsageError(f"{os.path.basename(run_dir)} was opened by a script itself: it has no output here")
    check_known("command", [command] if command is not None else (), [each.name for each in spec.commands])


def _order(spec: RunSpec, history: run_directory.History, command: str | None, attempt: int | None) -> list[str]:
    """Return the commands in the order in which their logs are searched: failed commands, then all, the last first."""
    if command is not None:
        return [command]
    chosen = history.last if attempt is None else next(a for a in history.attempts if a.number == attempt)
    failed = [name for name, code in chosen.codes.items() if code != 0] if chosen else []
    return [*failed, *(each.name for each in reversed(spec.commands))]


def _log_of_attempt(
    names: Sequence[str], spec: RunSpec, history: run_directory.History, command: str, attempt: int | None
) -> str | None:
    if attempt is None:
        return layout.find_log(names, spec.log_name, command)
    if "{suffix}" in spec.log_name:
        name = layout.log_name(spec.log_name, command, attempt, "")
        return name if name in names else None
    # names have a time instead of a number: the logs are in the order of the attempts that ran the command
    logs = layout.find_logs(names, spec.log_name, command)
    ran = [
        each.number for each in history.attempts if command in each.codes or each.number == history.attempts[-1].number
    ]
    index = ran.index(attempt) if attempt in ran else -1
    return logs[index] if 0 <= index < len(logs) else None


# ---------------------------------------------------------------- a complete log


def copy_log(path: str, lines: int | None, write: Write) -> None:
    """Write the whole file, or its last lines."""
    with open(path, "rb") as file:
        if lines is not None:
            file.seek(find_last_lines(path, lines))
        while block := file.read(_BLOCK):
            write(block)


def find_last_lines(path: str, lines: int) -> int:
    """Return the offset where the last `lines` lines begin, without reading the bytes before it."""
    if lines <= 0:
        return os.stat(path).st_size
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        offset, wanted = end, lines + 1  # one newline more: the newline before the first line
        while offset > 0:
            size = min(_BLOCK, offset)
            offset -= size
            file.seek(offset)
            block = file.read(size)
            if offset + size == end and block.endswith(b"\n"):
                wanted += 1
            breaks = block.count(b"\n")
            if breaks >= wanted - 1:
                return offset + size - len(block.split(b"\n", breaks - wanted + 2)[-1])
            wanted -= breaks
    return 0


# ---------------------------------------------------------------- a log that grows


@dataclass(slots=True)
class RunFollower:
    """Reads the logs of a run one after another, including later commands and attempts."""

    run_dir: str
    command: str | None = None
    lines: int | None = None  # how many lines of the existing log are read; None: all
    _spec: RunSpec | None = None
    _tail: Tail | None = None
    _finished: set[str] = field(default_factory=set)  # logs that were read to their end
    _last: tuple[int, bool] = (-1, False)  # the attempt, and whether it had ended, at the last check
    _partial: bytes = b""  # the beginning of a line that is not complete

    def read(self) -> Iterator[bytes]:
        """Yield new output. A log is complete when a newer log exists."""
        logs = self._list_logs()
        if self._tail is None and (logs := [name for name in logs if name not in self._finished]):
            # begin with the log that is being written, not with earlier ones
            self._finished.update(logs[:-1])
            path = os.path.join(self.run_dir, logs[-1])
            offset = find_last_lines(path, self.lines) if self.lines is not None else 0
            self._tail = Tail(path, offset)
        while self._tail is not None:
            while data := self._tail.read():
                yield data
            current = os.path.basename(self._tail.path)
            later = [name for name in logs if name != current and name not in self._finished]
            if not later:
                return
            self._finished.add(current)
            self._tail = Tail(os.path.join(self.run_dir, later[0]))

    def write_named(self, write: Write, final: bool) -> None:
        """Write new whole lines with the run's name before each; with `final` also an unfinished line."""
        name = os.fsencode(os.path.basename(self.run_dir))
        for data in self.read():
            *whole, self._partial = (self._partial + data).split(b"\n")
            if whole:
                write(b"".join(b"%s | %s\n" % (name, line) for line in whole))
        if final and self._partial:
            write(b"%s | %s\n" % (name, self._partial))
            self._partial = b""

    def skip(self) -> None:
        """Skip every log that exists now."""
        self._last = _load_attempt(self.run_dir), True
        with suppress(OSError, AssayError):
            self._finished.update(self._list_logs())

    @property
    def attempt(self) -> int:
        """The number of the newest attempt when the run's files were last read."""
        return self._last[0]

    def check_end(self) -> bool:
        """Whether the run had ended at two checks in a row. One is not enough: a failed attempt may be retried."""
        status = load_status(self.run_dir)
        before, self._last = self._last, (status.attempt, status.state.is_over)
        return self._last[1] and before == self._last

    def _list_logs(self) -> list[str]:
        """Return the logs in the order in which they are written: by attempt, then by command."""
        if self._spec is None:
            self._spec = load_record(self.run_dir).spec
        names, template = os.listdir(self.run_dir), self._spec.log_name
        commands = [each.name for each in self._spec.commands if self.command in (None, each.name)]
        keyed = [
            (_mark(name, template, command), index, name)
            for index, command in enumerate(commands)
            for name in layout.find_logs(names, template, command)
        ]
        return [name for _, _, name in sorted(keyed)]


def _mark(name: str, template: str, command: str) -> tuple[int, ...]:
    """Return the number or the time of the attempt in a log's name, which orders the logs."""
    before, _, after = layout.fill_log_name(template, command, "\0", "\0").partition("\0")
    return tuple(int(part) for part in name[len(before) : len(name) - len(after)].split(".") if part)


def follow_run(run_dir: str, command: str | None, lines: int | None, write: Write) -> None:
    """Follow the run until it has ended; wait for a log that does not exist yet."""
    _check_command(run_dir, load_record(run_dir).spec, command)
    follower = RunFollower(run_dir, command, lines)
    while True:
        over = follower.check_end()  # checked before the read, so that the last output is read
        for data in follower.read():
            write(data)
        if over:
            return
        time.sleep(POLL_S)


def follow_study(
    study_dir: str, command: str | None, lines: int | None, write: Write, only: Sequence[str] | None = None
) -> int:
    """Follow the runs `only`, or all runs of a study including new ones, until they have ended; return their number."""
    followed: dict[str, RunFollower] = {}
    ended: dict[str, RunFollower] = {}  # runs that are followed again if another attempt begins
    supervisors: set[SupervisorRecord] = set()
    seen = 0
    while True:
        had_seen = seen > 0  # a run that appears later is followed from its beginning, however short it was
        for path in run_directory.find_run_dirs(study_dir) if only is None else only:
            if path not in followed and _begins(path, ended.get(path), had_seen):
                followed[path] = ended.pop(path, RunFollower(path, command, lines))
                seen += 1
        if only is None:
            supervisors |= set(find_supervisors(followed, study_dir))  # a supervisor may have queued only repetitions
        for path, follower in list(followed.items()):
            over = follower.check_end()
            follower.write_named(write, over)
            if over:
                ended[path] = followed.pop(path)
        if not followed and not any(supervisor.is_alive for supervisor in supervisors):
            return seen
        for path in run_directory.find_run_dirs(study_dir) if only is None else only:
            if path not in followed and path not in ended:  # ended before: followed when another attempt begins
                ended[path] = RunFollower(path, command, lines)
                ended[path].skip()
        time.sleep(POLL_S)


def _begins(run_dir: str, before: RunFollower | None, has_seen: bool) -> bool:
    """Whether to follow a run from now on: it is running or new, or another attempt has begun."""
    if before is not None:
        return _load_attempt(run_dir) > before.attempt
    try:
        return has_seen or not load_status(run_dir).state.is_over
    except AssayError:  # the run is damaged, which `assay ls` reports
        return False


def _load_attempt(run_dir: str) -> int:
    try:
        last = run_directory.load_history(run_dir).last
    except OSError:
        return 0
    return last.number if last else 0
