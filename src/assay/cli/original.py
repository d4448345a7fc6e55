"""What the originals' doors share: their own flags, read by argparse as they were."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import click

Parsed = argparse.Namespace


def original_command(name: str, build_parser: Callable[[], argparse.ArgumentParser], run: Callable[[Parsed], int]) -> click.Command:
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


def warn(lines: Sequence[object]) -> None:
    for line in lines:
        print(f"warning: {line}", file=sys.stderr)
