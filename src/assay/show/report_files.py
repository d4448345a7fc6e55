"""`--md`, `--junit` and `--html`: the same report in files, or one of them on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from assay.errors import InfrastructureError, UsageError

if TYPE_CHECKING:
    pass

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
