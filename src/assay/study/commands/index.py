"""`assay index`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from assay.show.console import say
from assay.show.console_warnings import warn
from assay.show.formatting import clean

if TYPE_CHECKING:
    from assay.study.index_maintenance import Reparsed


@click.group(short_help="Look after the index: rebuild, reparse, ingest.")
def command() -> None:
    """Look after the index: a copy of what the run directories say, from which tables and plots are made.

    It may be lost at any time; what is true lies in the run directories.
    """


@command.command()
@click.option("--root", metavar="DIR", help="Output root.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(root: str | None, as_json: bool) -> int:
    """Where the index is, how large, and what is in it."""
    from dataclasses import asdict

    from assay.show.json_text import render_facts
    from assay.show.sections import Section
    from assay.study.commands.show import render
    from assay.study.index_maintenance import build_status_facts, load_status
    from assay.study.lookup import load_roots

    found = [load_status(each) for each in load_roots(root)]
    if as_json:
        sys.stdout.write(render_facts([asdict(each) for each in found]))
    else:
        sys.stdout.write(render([Section(facts=build_status_facts(each)) for each in found]))
    return 0


@command.command()
@click.option("--root", metavar="DIR", help="Output root.")
def rebuild(root: str | None) -> int:
    """Make the index anew from the run directories."""
    from assay.study import index_maintenance
    from assay.study.lookup import load_roots

    for path, count in index_maintenance.rebuild(load_roots(root), warn):
        say(f"{path}: {count} {'run' if count == 1 else 'runs'} read")
    return 0


@command.command()
@click.argument("study")
@click.option(
    "--file", metavar="STUDY.yml", help="Use the metrics of this file instead of those the runs were made with."
)
@click.option("--root", metavar="DIR", help="Output root.")
def reparse(study: str, file: str | None, root: str | None) -> int:
    """Read the metrics of STUDY again from its logs; nothing is run.

    With --file, its patterns take the place of those that the runs were made with, until the index is rebuilt.
    """
    from assay.study import index_maintenance
    from assay.study.lookup import find_places, open_index_of

    (place,) = find_places([study], root)
    with open_index_of([place]) as index:
        result = index_maintenance.reparse(index, place, file, warn)
    say(clean(_describe(place.name, result)))
    return 0


def _describe(name: str, result: Reparsed) -> str:
    new = sorted(set(result.metrics_after) - set(result.metrics_before))
    gone = sorted(set(result.metrics_before) - set(result.metrics_after))
    changes = [f"new: {', '.join(new)}"] if new else []
    changes += [f"gone: {', '.join(gone)}"] if gone else []
    said = ", ".join(result.metrics_after) or "no metrics"
    return f"{name}: {result.runs} {'run' if result.runs == 1 else 'runs'} read again: {said}" + (
        f" ({'; '.join(changes)})" if changes else ""
    )


@command.command()
@click.argument("folder", metavar="DIR")
def ingest(folder: str) -> int:
    """Add what runx, logx or mlrunner left in DIR (a study, or a folder of studies)."""
    from assay.study.index_maintenance import ingest_folder
    from assay.study.locations import StudyPlace
    from assay.study.lookup import show_command

    found = ingest_folder(folder, warn)
    made = ", ".join(f"{count} by {origin}" for origin, count in found.origins)
    studies = "1 study" if len(found.studies) == 1 else f"{len(found.studies)} studies"
    say(clean(f"{studies}, {found.runs} runs ({made}) under {_near(found.root)}"))
    say(clean(f"metrics: {', '.join(found.metrics[:12]) or 'none'}{' …' if len(found.metrics) > 12 else ''}"))
    say(clean(f"next: {show_command(['sum'], StudyPlace(found.root, found.studies[0]))}"))
    return 0


def _near(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
