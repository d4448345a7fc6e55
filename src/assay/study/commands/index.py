"""`assay index`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from assay.show.console import Console
from assay.show.formatting import render_count
from assay.values.options import Group, Request, argument, json_option, option, root_option

if TYPE_CHECKING:
    from assay.study.index_maintenance import Reparsed

GROUP = Group(
    """Maintain the index: a copy of what the run directories say, from which tables and plots are made.

    It may be lost at any time; the run directories are what counts.
    """,
    {
        "status": ("assay.study.commands.index:status", "Show where the index is, how large, and what is in it."),
        "rebuild": ("assay.study.commands.index:rebuild", "Build the index again from the run directories."),
        "reparse": ("assay.study.commands.index:reparse", "Read the metrics of STUDY again from its logs."),
        "ingest": ("assay.study.commands.index:ingest", "Add what runx, logx or mlrunner left in DIR."),
    },
)


class StatusRequest(Request):
    root: str | None = root_option()
    as_json: bool = json_option()


def status(request: StatusRequest, console: Console) -> int:
    """Show where the index is, how large, and what is in it."""
    from dataclasses import asdict

    from assay.study.index_maintenance import build_status_facts, load_status
    from assay.study.lookup import load_roots
    from assay.values.document import Document, Facts, Section

    found = [load_status(each) for each in load_roots(request.root)]
    sections = [Section((Facts(build_status_facts(each)),)) for each in found]
    document = Document("assay index status", sections, facts=[asdict(each) for each in found])
    console.write_document(document, as_json=request.as_json)
    return 0


class RebuildRequest(Request):
    root: str | None = root_option()


def rebuild(request: RebuildRequest, console: Console) -> int:
    """Build the index again from the run directories."""
    from assay.study import index_maintenance
    from assay.study.lookup import load_roots

    for path, count in index_maintenance.rebuild(load_roots(request.root), console):
        console.print(f"{path}: {render_count(count, 'run')} read")
    return 0


class ReparseRequest(Request):
    study: str = argument()
    file: str | None = option(
        "--file", metavar="STUDY.yml", help="Use the metrics of this file instead of those the runs were made with."
    )
    root: str | None = root_option()


def reparse(request: ReparseRequest, console: Console) -> int:
    """Read the metrics of STUDY again from its logs; nothing is run.

    With --file, its patterns take the place of those that the runs were made with, until the index is rebuilt.
    """
    from assay.study import index_maintenance
    from assay.study.lookup import find_locations, open_index_of

    (location,) = find_locations([request.study], request.root)
    with open_index_of([location]) as index:
        result = index_maintenance.reparse(index, location, request.file, console)
    console.print(_describe(location.name, result))
    return 0


def _describe(name: str, result: Reparsed) -> str:
    new = sorted(set(result.metrics_after) - set(result.metrics_before))
    gone = sorted(set(result.metrics_before) - set(result.metrics_after))
    changes = [f"new: {', '.join(new)}"] if new else []
    changes += [f"gone: {', '.join(gone)}"] if gone else []
    metrics = ", ".join(result.metrics_after) or "no metrics"
    changed = f" ({'; '.join(changes)})" if changes else ""
    return f"{name}: {render_count(result.runs, 'run')} read again: {metrics}{changed}"


class IngestRequest(Request):
    folder: str = argument("DIR")


def ingest(request: IngestRequest, console: Console) -> int:
    """Add what runx, logx or mlrunner left in DIR (a study, or a folder of studies)."""
    from assay.study.index_maintenance import ingest_folder
    from assay.study.locations import StudyLocation
    from assay.study.lookup import show_command

    found = ingest_folder(request.folder, console)
    origins = ", ".join(f"{count} by {origin}" for origin, count in found.origins)
    relative = os.path.relpath(found.root)
    root = found.root if relative.startswith("..") else relative
    more = " …" if len(found.metrics) > 12 else ""
    console.print(f"{render_count(len(found.studies), 'study', 'studies')}, {found.runs} runs ({origins}) under {root}")
    console.print(f"metrics: {', '.join(found.metrics[:12]) or 'none'}{more}")
    console.print(f"next: {show_command(['sum'], StudyLocation(found.root, found.studies[0]))}")
    return 0
