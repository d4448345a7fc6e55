"""What the originals' doors share: their own flags, read by argparse as they were."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from assay.flows.prepared import Report

Parsed = argparse.Namespace


def original_command(
    name: str, build_parser: Callable[[], argparse.ArgumentParser], run: Callable[[Parsed], int]
) -> click.Command:
    """A command that hands its arguments to argparse, help and abbreviations included."""

    @click.command(name, add_help_option=False, context_settings={"ignore_unknown_options": True})
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


def warn(lines: Iterable[object]) -> None:
    for line in lines:
        print(f"warning: {line}", file=sys.stderr)


def write_lines(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def echo(data: bytes) -> None:
    """A run's own output, byte for byte."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def write_report(report: Report, elapsed_s: float) -> None:
    """How it went, and the end of the logs of what failed."""
    from assay.flows.watch import build_study_report
    from assay.show.report import render_report
    from assay.show.terminal import use_color

    text = render_report(build_study_report(report, elapsed_s), color=use_color(sys.stderr))
    sys.stdout.flush()
    sys.stderr.write(text)


def say_problems(report: Report) -> None:
    if report.problem:
        print(f"assay: {report.problem}", file=sys.stderr)
    if report.interrupted:
        print(f"interrupted by {report.interrupted}; the same command goes on", file=sys.stderr)
