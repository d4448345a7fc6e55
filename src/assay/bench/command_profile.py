"""`python -m assay child command-profile`: profiles of a command line, taken by py-spy from outside.

command.py starts it with the command, and closes its input when the command has ended. The answer is a line of JSON:
the files, and why a window has none. A command may start Python later or never: a window waits for it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from assay.bench.profiling import Profile, PySpy
from assay.bench.values.execution import ProfileWindow, parse_windows
from assay.system import processes

_LOOK_S = 0.02


def main(arguments: Sequence[str] | None = None) -> int:
    options = _build_parser().parse_args(arguments)
    profile = CommandProfile(parse_windows(options.profile), options.profile_dir, options.py_spy, options.pid)
    profile.start(options.began)
    sys.stdin.buffer.read()  # the command runs
    files = profile.finish()
    print(json.dumps({"profiles": files, "profile_notes": profile.notes}))
    return 0


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m assay child command-profile", description=__doc__)
    parser.add_argument("--profile", required=True)
    parser.add_argument("--profile-dir", required=True)
    parser.add_argument("--py-spy", required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--began", type=float, help="by the monotonic clock, which all processes share")
    return parser


class CommandProfile(Profile):
    """Windows of another process and of those that it starts."""

    def __init__(self, windows: Sequence[ProfileWindow], folder: str, py_spy: str, pid: int) -> None:
        super().__init__(windows, "py-spy", folder, py_spy)
        self._pid = pid

    def start(self, began: float | None = None) -> None:
        """The command does not wait for us."""
        self.follow(began)

    def _take(self, window: ProfileWindow, number: int) -> None:
        while not has_python(self._pid):
            if self.is_past(window.end_s, _LOOK_S):
                raise RuntimeError("no Python ran in it, and py-spy supports nothing else")
        spy = PySpy(self._py_spy, os.path.join(self._folder, f"py-spy-{number}.json"), self._pid)
        spy.start()
        self._wait_until(window.end_s)
        spy.stop()


def has_python(pid: int) -> bool:
    """Whether the process, or one that it has started, is an interpreter."""
    return any(map(_is_python, [pid, *processes.find_descendants(pid)]))


def _is_python(pid: int) -> bool:
    """By its program, or by the library where it is built into another one."""
    program = os.path.basename(processes.find_program(pid))
    return program.startswith(("python", "pypy")) or b"/libpython" in processes.load_maps(pid)


if __name__ == "__main__":
    sys.exit(main())
