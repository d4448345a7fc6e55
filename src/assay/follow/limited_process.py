"""Work that can be ended: in a process of its own, with a limit for its CPU time.

A regular expression may take for ever. It cannot be interrupted, and holds up every thread of the process that
evaluates it. Here that is a child, `python -m assay.follow.limited_process`, which the kernel ends; the next call
starts another. Between calls it waits, and it ends when its parent has ended.
"""

from __future__ import annotations

import atexit
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import IO, Any

from assay.errors import AssayError, InfrastructureError, UsageError


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
    """Start the child in a session of its own: Ctrl-C is for the parent."""
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


# ---------------------------------------------------------------- in the child


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
