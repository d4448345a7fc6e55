"""Work that can be ended: in a process of its own, with a limit for its CPU time.

Patterns for metrics come with runs, also from elsewhere, and a regular expression may take for ever. It cannot be
interrupted, and holds up every thread of the process that evaluates it. Here that is a child, `python -m
assay.follow.limited_process`, which the kernel ends; the next call starts another. Between calls it waits, and it ends
when its parent has ended.
"""

from __future__ import annotations

import atexit
import math
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import IO, Any

from assay.errors import AssayError, InfrastructureError, UsageError
from assay.follow import collect
from assay.follow.collect import ParsedLog
from assay.record.run_directory import load_record
from assay.values.study import Pattern


class TookTooLongError(UsageError):
    pass


class LimitedProcess:
    """One child, and one call at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def call(self, function: str, *arguments: Any, limit_s: float) -> Any:
        """`module:name`; what it raises is a UsageError here."""
        with self._lock:
            if self._child is None or self._child.poll() is not None:
                self.close()
                self._child = _start()
            try:
                is_good, answer = _ask(self._child, (function, arguments, limit_s))
            except (EOFError, OSError, pickle.UnpicklingError) as error:
                if self.close() == -signal.SIGPROF:
                    raise TookTooLongError(f"it took longer than {limit_s:.3g} s of CPU time") from None
                raise InfrastructureError(f"a process of Assay ended in {function}") from error
        if not is_good:
            raise UsageError(*answer)
        return answer

    def close(self) -> int:
        """The exit code of the child, 0 where there is none."""
        if (child := self._child) is None:
            return 0
        self._child = None
        with suppress(OSError), child:  # closes its pipes, and waits
            child.kill()
        return child.returncode


def _start() -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C is for the parent."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _ask(child: subprocess.Popen[bytes], question: object) -> tuple[bool, Any]:
    assert child.stdin is not None
    assert child.stdout is not None
    pickle.dump(question, child.stdin)
    child.stdin.flush()
    answer: tuple[bool, Any] = pickle.load(child.stdout)  # noqa: S301 our own child wrote it
    return answer


# ---------------------------------------------------------------- metrics


class LimitedLogParser:
    """For `collect.log_parser`. What a set of patterns may take grows with what it reads; one that has taken more is
    not tried again."""

    FIRST_S, PER_BYTE_S, FREE_S = 10.0, 2.5e-7, 0.05
    REFUSAL = "its metrics are not read, because of its patterns"

    def __init__(self) -> None:
        self.process = LimitedProcess()
        self._left_s: dict[tuple[object, ...], float] = {}

    def __call__(
        self, patterns: Sequence[Pattern], command: str, data: bytes, state: dict[str, Any], final: bool
    ) -> ParsedLog:
        key = (*patterns, command)
        left_s = min(self.FIRST_S, self._left_s.get(key, self.FIRST_S) + self.PER_BYTE_S * len(data))
        if left_s <= 0:
            raise UsageError(f"{self.REFUSAL}: they have taken too long before")
        try:
            answer = self.process.call(f"{__name__}:parse_timed", patterns, command, data, state, final, limit_s=left_s)
        except TookTooLongError as error:
            self._left_s[key] = -math.inf
            raise UsageError(f"{self.REFUSAL}: {error.message}") from None
        parsed: ParsedLog
        parsed, used_s = answer
        self._left_s[key] = left_s - max(0.0, used_s - self.FREE_S)
        return parsed


@contextmanager
def limit_patterns() -> Iterator[None]:
    """Whatever reads metrics in this process evaluates patterns in a child."""
    before, limited = collect.log_parser, LimitedLogParser()
    collect.log_parser = limited
    try:
        yield
    finally:
        collect.log_parser = before
        limited.process.close()


# ---------------------------------------------------------------- in the child


def parse_timed(*arguments: Any) -> tuple[ParsedLog, float]:
    started_s = time.process_time()
    return collect.parse_log(*arguments), time.process_time() - started_s


def check_runs(run_dirs: Sequence[str]) -> None:
    """Read the metrics of runs from elsewhere, as a command that shows them will."""
    for run_dir in run_dirs:
        collect.read_sources(collect.Summaries(), "uploaded/run", run_dir, load_record(run_dir).spec)


def _answer(function: str, arguments: tuple[Any, ...], limit_s: float) -> tuple[bool, Any]:
    module, _, name = function.partition(":")
    signal.setitimer(signal.ITIMER_PROF, limit_s)  # SIGPROF, which ends this process also inside of an expression
    try:
        return True, getattr(import_module(module), name)(*arguments)
    except AssayError as error:
        return False, (error.message, error.hint)
    except Exception as error:  # noqa: BLE001 the caller gets its message
        return False, (f"{type(error).__name__}: {error}", None)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    with suppress(EOFError, BrokenPipeError):  # the parent has ended
        while True:
            pickle.dump(_answer(*pickle.load(questions)), answers)  # noqa: S301 our own parent wrote it
            answers.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
