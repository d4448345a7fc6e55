"""`python command.py TEXT [PROFILER ...]`: runs a command in a shell; reports duration, CPU time and peak memory.

The kernel counts the size of a parent into the peak of its child, up to the moment of exec: a program of two megabytes
that a Python process of thirty megabytes starts has a peak of thirty. For an exact peak a small shell forks the command
and exits, and this process adopts the command, which Linux allows for a "subreaper", and waits for it to get its
resource usage. The command and the clock start when the small shell has exited. This file is run by its path and
imports little, because its own size and start-up time disturb the measurement.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False  # defined here because importing `typing` takes milliseconds
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

if __name__ == "__main__":  # the interpreter was started without site-packages
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from assay.system import processes  # noqa: E402

_SAY, _GATE = 8, 9  # descriptors of the small shell, which writes the pid to _SAY; the command waits for _GATE
# Without job control (`set -m`) a shell lets its background commands ignore interrupts.
_SMALL_SHELL = f'set -m; {{ read -r -u {_GATE}; exec bash -c "$1" {_SAY}>&- {_GATE}<&-; }} & echo $! >&{_SAY}'
_OURS = (signal.SIGPIPE, signal.SIGXFSZ)  # signals that Python ignores, but a command must not ignore
_ENV_REPORT = "ASSAY_BENCH_REPORT"


def main(text: str, profiler: Sequence[str] = ()) -> int:
    stat = processes.load_stat(os.getpid())  # this process is included in readings of the whole tree
    _write({"kind": "begin", "time": time.time(), "pid": os.getpid(), "wrapper_rss": stat.rss_bytes if stat else 0})
    pid, began, shell_vms = _adopt(text) if processes.adopt_orphans() else _start(text)
    profiling = _start_profiler(profiler, pid, began) if profiler else None
    _, status, used = os.wait4(pid, 0)
    wall_s = time.perf_counter() - began
    cpu_s = used.ru_utime + used.ru_stime
    code = os.waitstatus_to_exitcode(status)
    # wait4 reports no peak of the address space: that of the command's shell is a minimum, readings may show more
    peaks = {"max_rss": used.ru_maxrss * 1024, "max_vms": shell_vms, "cpu_s": cpu_s}
    end = {"kind": "end", "ok": code == 0, "time": time.time(), "wall_s": wall_s, "cpu_s": cpu_s, "peaks": peaks}
    _write(end | (_end_profiler(profiling) if profiling else {}))
    if code >= 0:
        return code
    with suppress(OSError, ValueError):  # the handler of SIGKILL cannot be set
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code


def _adopt(text: str) -> tuple[int, float, int]:
    hear, say = os.pipe()
    gate, opener = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, say, _SAY), (os.POSIX_SPAWN_DUP2, gate, _GATE)]
    words = ["bash", "-c", _SMALL_SHELL, "bash", text]
    shell = os.posix_spawnp("bash", words, os.environ, file_actions=actions, setsigdef=_OURS)
    os.close(say)
    os.close(gate)
    with os.fdopen(hear, "rb") as file:
        pid = int(file.readline())
    os.waitpid(shell, 0)  # from now on the command is our child
    shell_vms = _announce(pid)
    began = time.perf_counter()
    os.write(opener, b"\n")
    os.close(opener)
    return pid, began, shell_vms


def _start(text: str) -> tuple[int, float, int]:
    """Start a command that cannot be adopted, whose peak therefore includes the size of this process."""
    began = time.perf_counter()
    pid = os.posix_spawnp("bash", ["bash", "-c", text], os.environ, setsigdef=_OURS)
    return pid, began, _announce(pid)


def _announce(pid: int) -> int:
    """Write the command's pid to the report; return the address space of the command's shell."""
    _write({"kind": "command", "pid": pid})
    return processes.load_size(pid, "VmPeak")


def _start_profiler(words: Sequence[str], pid: int, began: float) -> subprocess.Popen[bytes]:
    """Start a profiler that samples the command until its input is closed."""
    import subprocess

    pipe = subprocess.PIPE
    return subprocess.Popen([*words, f"--pid={pid}", f"--began={began}"], stdin=pipe, stdout=pipe)


def _end_profiler(profiling: subprocess.Popen[bytes]) -> dict[str, object]:
    """End the profiler and return its result: the files, or why there are no files."""
    answer, _ = profiling.communicate()
    with suppress(ValueError):
        return dict(json.loads(answer))
    return {"profile_notes": [f"there is no profile: the profiler ended with exit code {profiling.returncode}"]}


def _write(line: dict[str, object]) -> None:
    if path := os.environ.get(_ENV_REPORT):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
