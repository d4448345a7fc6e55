"""Functions that the commands of the original tools share: their flags are parsed by argparse, as in the originals."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from assay.errors import ExitCode
from assay.show.console import Console, build_same_call

if TYPE_CHECKING:
    from assay.launch.api import Report

Parsed = argparse.Namespace
_LINES_AT_ONCE = 2048


def call_original(
    name: str, parser: argparse.ArgumentParser, words: Sequence[str], run: Callable[[Parsed], int]
) -> int:
    """Parse the words with argparse, including help and abbreviations, and run the command."""
    parser.prog = f"assay {name}"
    try:
        parsed = parser.parse_args(list(words))
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else int(ExitCode.USAGE)
    return run(parsed)


class Parser(argparse.ArgumentParser):
    """A parser for an original's flags and Assay's, which do not make abbreviations of the original's ambiguous."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, epilog="NAME=VALUE gives a parameter other values than the file.")
        self._added: list[argparse.Action] = []

    def add_ours(self, *names: str, **attributes: Any) -> None:
        attributes["help"] += " (Assay's addition)"
        self._added.append(self.add_argument(*names, **attributes))

    def add_supervision(self) -> None:
        """Add the flags that every original gets."""
        self.add_ours("-j", "--jobs", type=positive, metavar="N", help="N at once on the CPU")
        self.add_ours("--detach", action="store_true", help="leave the supervisor in the background")
        self.add_ours("--root", metavar="DIR", help="where the runs go, whatever the file and other flags say")

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        found = super()._get_option_tuples(option_string)
        return [each for each in found if each[0] not in self._added] or found

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse the words; words of the form NAME=VALUE are overrides, also after a flag that takes many words."""
        parsed, rest = self.parse_known_args(args, namespace)
        overrides = [word for word in rest if is_override(word)]
        if unknown := [word for word in rest if not is_override(word)]:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        for name, value in [pair for pair in vars(parsed).items() if isinstance(pair[1], list)]:
            others = [word for word in value if not is_override(word)]
            overrides += [word for word in value if is_override(word)]
            setattr(parsed, name, others)
            if not others:
                self.error(f"argument --{name}: expected at least one argument")
        parsed.overrides = tuple(overrides)
        return parsed


def is_override(word: str) -> bool:
    return re.match(r"[^-=\s][^=]*=", word) is not None


def positive(text: str) -> int:
    """Parse a whole number for argparse, whose messages contain the name of this function."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def count(text: str) -> int:
    """Parse a whole number for argparse, whose messages contain the name of this function."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return number


def warn(lines: Iterable[object]) -> None:
    for line in lines:
        Console().warning(str(line))


def write_lines(lines: Iterable[str]) -> None:
    """Write lines: the first ones at once, later ones in growing blocks."""
    waiting = iter(lines)
    size = 1
    while some := list(islice(waiting, size)):
        Console().write("".join(f"{line}\n" for line in some))
        size = min(2 * size, _LINES_AT_ONCE)


def conclude(report: Report, began: float, *, is_shown: bool) -> int:
    """Print the problems of a report and return its exit code. With `is_shown`, print a summary of the runs first, and
    the last lines of the logs of failed runs."""
    from assay.launch.api import render_report
    from assay.system.terminal import terminal_width, use_color

    if is_shown:
        color, width = use_color(sys.stderr), terminal_width(sys.stderr)
        Console().write_message(render_report(report, time.time() - began, color=color, width=width))
    if report.problem:
        Console().error(f"assay: {report.problem}")
    if report.interrupted:
        Console().error(f"interrupted by {report.interrupted}; continue with: {build_same_call()}")
    return int(report.exit_code)
