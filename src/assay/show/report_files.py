"""The options `--md`, `--junit` and `--html`: they write the report into files, or one report to stdout."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from assay.errors import InfrastructureError, UsageError
from assay.values.options import Request, option

if TYPE_CHECKING:
    from assay.values.document import Document

STDOUT = "-"


class ReportFiles(Request):
    md: str | None = option("--md", metavar="FILE", help="Write the report as Markdown; - for stdout.")
    junit: str | None = option("--junit", metavar="FILE", help="Write the report as JUnit XML; - for stdout.")


class ReportPages(ReportFiles):
    html: str | None = option(
        "--html", metavar="FILE", help="Write the report as one HTML page with curves; - for stdout."
    )


def check_targets(*targets: str | None, as_json: bool = False) -> bool:
    """Raise UsageError for targets that cannot be written, before anything runs; return whether one is stdout."""
    if targets.count(STDOUT) + as_json > 1:
        raise UsageError("two reports cannot both go to stdout", "give one of them a file")
    for path in targets:
        if path is None or path == STDOUT:
            continue
        folder = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            why = "it is a folder" if os.path.isdir(path) else f"{folder} is not a folder that can be written"
            raise UsageError(f"{path} cannot be written: {why}", "name a file in a folder that exists")
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


def write_document(document: Document, files: ReportFiles) -> None:
    """Write the document into each file that --md, --junit or --html names."""
    if files.md:
        from assay.show.markdown import render_markdown  # each format's module is loaded only if needed

        write_text(files.md, render_markdown(document))
    if files.junit:
        from assay.show.junit import render_junit

        write_text(files.junit, render_junit(document))
    if isinstance(files, ReportPages) and files.html:
        from assay.show.html import render_html

        write_text(files.html, render_html(document))
