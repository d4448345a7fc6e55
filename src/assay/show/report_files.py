"""`--md`, `--junit` and `--html`: the same report in files, or one of them on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

import click

from assay.errors import InfrastructureError, UsageError

if TYPE_CHECKING:
    from assay.values.document import Document

STDOUT = "-"
FORMS = ("md", "junit", "html")


def report_options(function: Callable[..., Any]) -> Callable[..., Any]:
    words = {"md": "as Markdown", "junit": "as JUnit XML", "html": "as one HTML page with curves"}
    for name in reversed(FORMS):
        text = f"Write the report {words[name]}; - for stdout."
        function = click.option(f"--{name}", name, metavar="FILE", help=text)(function)
    return function


def prepare_reports(given: Mapping[str, Any]) -> bool:
    """Refuse before anything runs what could not be written after it. Whether stdout is taken."""
    targets = [given[name] for name in FORMS if given.get(name)]
    if targets.count(STDOUT) + bool(given.get("as_json")) > 1:
        raise UsageError("two reports cannot both go to stdout", "give one of them a file")
    for path in targets:
        if path == STDOUT:
            continue
        folder = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            raise UsageError(f"{path} cannot be written", "name a file in a folder that is there and can be written")
    return STDOUT in targets


def write_text(path: str, text: str) -> None:
    if path == STDOUT:
        sys.stdout.write(text)
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InfrastructureError(f"the report {path} cannot be written: {error.strerror}") from error


def print_document(document: Document, *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """On stdout, as wide and as colourful as that is; JSON where it was asked for."""
    from assay.system.terminal import can_encode, terminal_width, use_color

    out = stream or sys.stdout
    if as_json:
        from assay.show.json_text import render_document

        sys.stdout.write(render_document(document))
        return
    from assay.show.terminal_report import render_terminal

    plain = not can_encode(out, "…─⣿±┤")
    out.write(render_terminal(document, width=terminal_width(out), color=use_color(out), plain=plain))


def write_document(document: Document, given: Mapping[str, Any]) -> None:
    """Into each file that was asked for with --md, --junit or --html."""
    for name in FORMS:
        if given.get(name):
            write_text(given[name], _render(document, name))


def _render(document: Document, name: str) -> str:
    if name == "md":
        from assay.show.markdown import render_markdown

        return render_markdown(document)
    if name == "junit":
        from assay.show.junit import render_junit

        return render_junit(document)
    from assay.show.html import render_html

    return render_html(document)
