"""`assay logs`: a run's output as its commands wrote it, now or as it comes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from assay.errors import NotFoundError, UsageError
from assay.flows.standing import load_record
from assay.observe.tail import Tail
from assay.record import rundir
from assay.values import layout
from assay.values.run import RunSpec

POLL_S = 0.1
LOOK_S = 0.5  # how often the directory and the process table are asked whether it is over
_BLOCK = 1 << 16

Write = Callable[[bytes], None]


# ---------------------------------------------------------------- which file


def find_log(run_dir: str, command: str | None = None, attempt: int | None = None) -> str:
    """The log asked for; by default the newest: of the command that failed, else of the last one that began."""
    spec = load_record(run_dir).spec
    names = os.listdir(run_dir)
    if command is not None and command not in [each.name for each in spec.commands]:
        raise NotFoundError("command", command, [each.name for each in spec.commands])
    history = rundir.load_history(run_dir, names)
    if attempt is not None and attempt not in [each.number for each in history.attempts]:
        raise UsageError(f"{os.path.basename(run_dir)} has no attempt {attempt}", _say_attempts(history))
    for each in _order(spec, history, command, attempt):
        found = _log_of_attempt(names, spec, history, each, attempt)
        if found is not None:
            return os.path.join(run_dir, found)
    raise UsageError(_say_no_log(spec, run_dir, command, attempt), "wait for it: assay logs --follow")


def _say_attempts(history: rundir.History) -> str:
    numbers = ", ".join(str(each.number) for each in history.attempts)
    return f"there is {numbers}" if numbers else "it was never started"


def _say_no_log(spec: RunSpec, run_dir: str, command: str | None, attempt: int | None) -> str:
    if not spec.commands:
        return f"{os.path.basename(run_dir)} was opened by a script of its own: it has no output here"
    which = f"of {command} " if command else ""
    tried = f"in attempt {attempt} " if attempt else ""
    return f"{os.path.basename(run_dir)} has no output {which}{tried}yet"


def _order(spec: RunSpec, history: rundir.History, command: str | None, attempt: int | None) -> list[str]:
    """Commands in the order in which their logs are of interest."""
    if command is not None:
        return [command]
    chosen = history.last if attempt is None else next(a for a in history.attempts if a.number == attempt)
    failed = [name for name, code in chosen.codes.items() if code != 0] if chosen else []
    return [*failed, *(each.name for each in reversed(spec.commands))]


def _log_of_attempt(
    names: Sequence[str], spec: RunSpec, history: rundir.History, command: str, attempt: int | None
) -> str | None:
    if attempt is None:
        return layout.find_log(names, spec.log_name, command)
    if "{suffix}" in spec.log_name:
        name = layout.log_name(spec.log_name, command, attempt, "")
        return name if name in names else None
    # mlrunner's logs carry a time instead of a number: the attempts that ran the command wrote them in turn
    logs = layout.find_logs(names, spec.log_name, command)
    ran = [each.number for each in history.attempts if command in each.codes or each.number == history.attempts[-1].number]
    place = ran.index(attempt) if attempt in ran else -1
    return logs[place] if 0 <= place < len(logs) else None


# ---------------------------------------------------------------- as it is


def copy_log(path: str, lines: int | None, write: Write) -> None:
    """The whole file, or its last lines."""
    with open(path, "rb") as file:
        if lines is not None:
            file.seek(find_last_lines(path, lines))
        while block := file.read(_BLOCK):
            write(block)


def find_last_lines(path: str, lines: int) -> int:
    """The offset where the last `lines` lines begin, without reading what comes before."""
    if lines <= 0:
        return os.stat(path).st_size
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        offset, wanted = end, lines + 1  # the newline before the first of them
        while offset > 0:
            size = min(_BLOCK, offset)
            offset -= size
            file.seek(offset)
            block = file.read(size)
            if offset + size == end and block.endswith(b"\n"):
                wanted += 1
            breaks = block.count(b"\n")
            if breaks >= wanted - 1:
                return offset + _after_break(block, breaks - (wanted - 1))
            wanted -= breaks
    return 0


def _after_break(block: bytes, skip: int) -> int:
    place = -1
    for _ in range(skip + 1):
        place = block.index(b"\n", place + 1)
    return place + 1


# ---------------------------------------------------------------- as it comes


@dataclass(slots=True)
class RunFollower:
    """Reads the logs of a run one after another, later commands and attempts included."""

    run_dir: str
    command: str | None = None
    lines: int | None = None
    _tail: Tail | None = None
    _done: list[str] = field(default_factory=list)  # logs read to their end

    def read(self) -> Iterator[bytes]:
        """What is new. A log counts as read to its end when a newer one has appeared."""
        spec = load_record(self.run_dir).spec
        logs = self._list_logs(spec)
        if self._tail is None and logs:
            self._begin(logs)
        while self._tail is not None:
            while data := self._tail.read():
                yield data
            following = [name for name in logs if name not in self._done]
            if not following or following == [os.path.basename(self._tail.path)]:
                return
            self._done.append(os.path.basename(self._tail.path))
            left = [name for name in logs if name not in self._done]
            self._tail = Tail(os.path.join(self.run_dir, left[0])) if left else self._tail

    def _begin(self, logs: list[str]) -> None:
        """At the log that is being written; earlier ones are history."""
        self._done = logs[:-1]
        path = os.path.join(self.run_dir, logs[-1])
        offset = find_last_lines(path, self.lines) if self.lines is not None else 0
        self._tail = Tail(path, offset)

    def _list_logs(self, spec: RunSpec) -> list[str]:
        names = os.listdir(self.run_dir)
        commands = [each.name for each in spec.commands if self.command in (None, each.name)]
        found = [log for name in commands for log in layout.find_logs(names, spec.log_name, name)]
        return sorted(found, key=lambda name: _began(os.path.join(self.run_dir, name)))


_births: dict[str, float] = {}


def _began(path: str) -> float:
    """When a log was first seen to exist; its change time is that of the last line, so the first look counts."""
    if path not in _births:
        _births[path] = os.stat(path).st_mtime if not _births else max(os.stat(path).st_mtime, *_births.values())
    return _births[path]
