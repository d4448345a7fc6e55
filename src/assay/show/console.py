"""The output of a command: results on stdout, everything else on stderr.

A closed pipe (`assay run … | head`) does not end a command: further output is dropped, and the exit code is that of
the command's work. It is an error if a result cannot be written for another reason, such as a full disk.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from assay.show.formatting import clean, clean_lines, render_facts, wrap
from assay.show.table import render_table
from assay.system.terminal import can_encode, terminal_width, use_color

if TYPE_CHECKING:
    from assay.values.document import Document
    from assay.values.notify import Notify
    from assay.values.table import Table


class Console:
    """`quiet` suppresses messages, but not results, warnings, errors. `above` prints lines above the live view."""

    def __init__(self, *, quiet: bool = False, results_on_stderr: bool = False, above: Notify | None = None) -> None:
        self.quiet = quiet
        self._results_on_stderr = results_on_stderr
        self._above = above

    def quieted(self, quiet: bool = True) -> Console:
        return Console(quiet=self.quiet or quiet, results_on_stderr=self._results_on_stderr, above=self._above)

    def on_stderr(self, is_wanted: bool = True) -> Console:
        """Return a console that writes results to stderr, for a command whose report uses stdout (`--html -`)."""
        return Console(quiet=self.quiet, results_on_stderr=is_wanted, above=self._above)

    def around(self, above: Notify) -> Console:
        return Console(quiet=self.quiet, results_on_stderr=self._results_on_stderr, above=above)

    @property
    def out(self) -> TextIO:
        return sys.stderr if self._results_on_stderr else sys.stdout

    def write(self, text: str) -> None:
        """Write a result unchanged."""
        try:
            self.out.write(text)
            self.out.flush()
        except BrokenPipeError:
            silence(self.out)

    def print(self, line: str = "") -> None:
        """Write a result of one line."""
        self.write(f"{clean(line)}\n")

    def print_lines(self, text: str) -> None:
        """Write a result of several lines."""
        self.write(f"{clean_lines(text)}\n")

    def write_bytes(self, data: bytes) -> None:
        """Write a run's own output, byte for byte."""
        try:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            silence(sys.stdout)

    def write_json(self, content: object, fields: Sequence[str] = ()) -> None:
        self.write(render_facts(content, fields))

    def write_table(self, table: Table) -> None:
        self.write(render_table(table, width=self.width, color=self.color, plain=self.is_plain))

    def write_document(self, document: Document, *, as_json: bool = False, fields: Sequence[str] = ()) -> None:
        if as_json or fields:
            self.write_json(document.facts, fields)
            return
        from assay.show.terminal_report import render_terminal  # tables and messages do not need this module

        self.write(render_terminal(document, width=self.width, color=self.color, plain=self.is_plain))

    def message(self, text: str) -> None:
        if not self.quiet:
            self.error(text)

    def warning(self, text: str) -> None:
        self.error(f"warning: {text}")

    def error(self, text: str) -> None:
        """Print a message even with `quiet`, wrapped between words; in a pipe it stays one line."""
        write = self._above or (lambda lines: self.write_message(f"{lines}\n"))
        write(wrap(clean_lines(text), terminal_width(sys.stderr), "  "))

    def write_message(self, text: str) -> None:
        """Write to stderr unchanged."""
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            silence(sys.stderr)

    @property
    def width(self) -> int | None:
        """The columns of the terminal; None if the output is not a terminal, so that nothing is shortened."""
        return terminal_width(self.out)

    @property
    def color(self) -> bool:
        return use_color(self.out)

    @property
    def is_plain(self) -> bool:
        """Whether the output can show only ASCII."""
        return not can_encode(self.out, "…─±┤⣿░▒▓█·▏")


class SilentConsole(Console):
    """A console that prints nothing: the default of library functions."""

    def write(self, text: str) -> None:
        pass

    def write_bytes(self, data: bytes) -> None:
        pass

    def write_message(self, text: str) -> None:
        pass


SILENT = SilentConsole(quiet=True)


class CollectingConsole(SilentConsole):
    """A console that keeps messages, warnings and errors for the caller, unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def warning(self, text: str) -> None:
        self.lines.append(text)

    def error(self, text: str) -> None:
        self.lines.append(text)


def silence(stream: TextIO) -> None:
    """Drop all further output of a stream, also what Python flushes at exit."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()


def build_same_call(words: Sequence[str] | None = None) -> str:
    """Return the command line of this process, or `words`, as it can be pasted; secrets must be filled in again."""
    from assay.values.run import build_command  # loaded only for messages at the end of a command
    from assay.values.secrets import hide_arguments

    return build_command(("assay", *hide_arguments(sys.argv[1:] if words is None else words)))
