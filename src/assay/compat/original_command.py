"""What the originals' hooks share: their own flags, read by argparse as they were."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import click

from assay.show.console import Console, build_same_call

if TYPE_CHECKING:
    from assay.study.api import Report

Parsed = argparse.Namespace
_LINES_AT_ONCE = 2048


class _Unparsed(click.Command):
    """Hands on every word, a `--` included."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["arguments"] = tuple(args)
        return []


def original_command(
    name: str, build_parser: Callable[[], argparse.ArgumentParser], run: Callable[[Parsed], int]
) -> click.Command:
    """A command that hands its arguments to argparse, help and abbreviations included."""

    @click.command(name, cls=_Unparsed, add_help_option=False)
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: Sequence[str]) -> int:
        parser = build_parser()
        parser.prog = f"assay {name}"
        try:
            parsed = parser.parse_args(list(arguments))
        except SystemExit as leave:
            return leave.code if isinstance(leave.code, int) else 2
        return run(parsed)

    description = build_parser().description or ""
    command.help = description
    return command


def count(text: str) -> int:
    """For argparse, which calls it by this name when it complains."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return number


def warn(lines: Iterable[object]) -> None:
    for line in lines:
        Console().warning(str(line))


def write_lines(lines: Iterable[str]) -> None:
    """A little at first, so that something is there at once; then much in one write."""
    waiting = iter(lines)
    size = 1
    while some := list(islice(waiting, size)):
        Console().write("".join(f"{line}\n" for line in some))
        size = min(2 * size, _LINES_AT_ONCE)


def write_report(report: Report, elapsed_s: float) -> None:
    """How it went, and the end of the logs of what failed."""
    from assay.study.api import build_study_report, render_report
    from assay.system.terminal import terminal_width, use_color

    found = build_study_report(report, elapsed_s)
    text = render_report(found, color=use_color(sys.stderr), width=terminal_width(sys.stderr))
    Console().write_message(text)


def say_problems(report: Report) -> None:
    if report.problem:
        Console().error(f"assay: {report.problem}")
    if report.interrupted:
        Console().error(f"interrupted by {report.interrupted}; continue with: {build_same_call()}")
