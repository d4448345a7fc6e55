"""`assay report`: the content of a page as one HTML file. Plug-ins add reports of their own with the hook `reports`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from assay.errors import AssayError, NotFoundError, UsageError
from assay.plugins import find_function, load_all
from assay.reading.commands.tables import TableRequest
from assay.show.console import Console
from assay.show.report_files import STDOUT, check_targets, write_text
from assay.values.document import Document
from assay.values.options import argument, option

if TYPE_CHECKING:
    from assay.follow.api import StudyLocation


class ReportRequest(TableRequest):
    studies: tuple[str, ...] = argument("[STUDY|VERDICT]...", multiple=True, required=False)
    output: str | None = option(
        "-o", "--output", metavar="FILE", help="The file; - for stdout.  [default: report-NAME.html]"
    )


def report(request: ReportRequest, console: Console) -> int:
    """Write a study or a verdict as one HTML page for mail and CI: nothing is loaded from elsewhere, no script.

    STUDY is as for `assay sum`. VERDICT is STUDY[/ID] of a golden check, bench[/BENCHMARK] or bench/BASE..HEAD, and
    model[/RUN]. With options that choose runs, the page shows their table. The exit code is 0 for every verdict.
    """
    from assay.follow.api import find_patterns, open_index_of
    from assay.show.html import render_html
    from assay.web.pages.report_page import build_report

    words = "-".join("/".join(name.split("/")[-2:]) for name in request.studies)
    plain = re.sub(r"[^\w=.-]+", "-", words).strip("-.")[:80]
    output = request.output or (f"report-{plain}.html" if plain else "report.html")
    check_targets(output)
    document = find_verdict(request, console)
    if document is None:
        locations, patterns = find_patterns(request.studies, request.root)
        with open_index_of(locations) as index:
            options = request.build_options(patterns)
            document = build_report(index, locations, options, console.on_stderr(output == STDOUT))
    write_text(output, render_html(document))
    if output != STDOUT:
        console.print(output)
    return 0


# ---------------------------------------------------------------- verdicts


def find_verdict(request: ReportRequest, console: Console) -> Document | None:
    """Return the report of the verdict that the request names, or None if the request chooses runs of studies."""
    choices = [name for name in request.OPTIONS if name not in ("studies", "output", "root")]
    if len(request.studies) > 1 or any(getattr(request, name) for name in choices):
        return None
    name = request.studies[0].rstrip("/") if request.studies else None
    find = find_function("report.find_kept") if (is_file := name is not None and os.path.isfile(name)) else None
    builders = load_all("reports")
    if is_file and find is None:
        raise UsageError(f"{name} is a file, and no plug-in that keeps verdicts in files is installed")
    for location, rest in [find(name)] if find else _list_readings(name, request.root):
        for plugin, build in builders:
            try:
                document = build(location, rest)
            except AssayError:
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001 a plug-in's function may raise anything
                document = f"{type(error).__name__}: {error}"
            if isinstance(document, Document):
                return document
            if document is not None:
                console.warning(f"the plug-in {plugin.name} cannot report {location.name}: {document}")
    return None


def _list_readings(name: str | None, root: str | None) -> Iterator[tuple[StudyLocation, str | None]]:
    """Yield each study that `name` may refer to, with the text after the study's name and a slash, or None."""
    from assay.follow.api import find_locations

    if name is None:
        yield find_locations([], root)[0], None
        return
    parts = name.split("/")
    for count in range(len(parts), 0, -1):
        study, rest = "/".join(parts[:count]), "/".join(parts[count:]) or None
        with suppress(NotFoundError):
            yield from ((location, rest) for location in find_locations([study], root) if study)
