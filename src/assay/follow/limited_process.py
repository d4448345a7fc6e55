"""Call functions in a child process with a limit of CPU time, so that a call can be aborted.

Matching a regular expression may never end; it cannot be interrupted and blocks every thread of the process. Such calls
run in the child `python -m assay.follow.limited_process`. The kernel ends the child at the limit, and the next call
starts another child. Between calls the child waits; when its parent has ended, it ends.
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
from typing import Any

from assay.errors import AssayError, InfrastructureError, UsageError


class TookTooLongError(UsageError):
    pass


class LimitedProcess:
    """A child process that executes one call at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def call(self, function: str, *arguments: Any, limit_s: float) -> Any:
        """Call `module:name` in the child. An exception in the child is raised here as UsageError."""
        with self._lock:
            if self._child is None or self._child.poll() is not None:
                self.close()
                self._child = subprocess.Popen(
                    [sys.executable, "-m", __name__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for the parent
                )
            assert self._child.stdin is not None
            assert self._child.stdout is not None
            try:
                pickle.dump((function, arguments, limit_s), self._child.stdin)
                self._child.stdin.flush()
                is_good, answer = pickle.load(self._child.stdout)  # noqa: S301 our own child wrote it
            except (EOFError, OSError, pickle.UnpicklingError) as error:
                if self.close() == -signal.SIGPROF:
                    raise TookTooLongError(f"it took longer than {limit_s:.3g} s of CPU time") from None
                raise InfrastructureError(f"a process of Assay ended in {function}") from error
        if not is_good:
            raise UsageError(*answer)
        return answer

    def close(self) -> int:
        """End the child and return its exit code; 0 if no child was running."""
        if (child := self._child) is None:
            return 0
        self._child = None
        with suppress(OSError), child:  # `child` as a context manager closes the pipes and waits
            child.kill()
        return child.returncode


# ---------------------------------------------------------------- in the child


def _answer(function: str, arguments: tuple[Any, ...], limit_s: float) -> tuple[bool, Any]:
    module, _, name = function.partition(":")
    signal.setitimer(signal.ITIMER_PROF, limit_s)  # SIGPROF ends this process even inside of an expression
    try:
        return True, getattr(import_module(module), name)(*arguments)
    except AssayError as error:
        return False, (error.message, error.hint)
    except Exception as error:  # noqa: BLE001 the caller gets its message
        return False, (f"{type(error).__name__}: {error}", None)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    with suppress(EOFError, BrokenPipeError):  # the parent has ended
        while True:
            pickle.dump(_answer(*pickle.load(sys.stdin.buffer)), sys.stdout.buffer)  # noqa: S301 our own parent wrote it
            sys.stdout.buffer.flush()
