"""`assay logs`."""

from __future__ import annotations

import os
import sys

import click

from assay.errors import UsageError


@click.command()
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over; with a study: all its runs.")
@click.option("-c", "--command", "name", metavar="C", help="The output of this command.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Of this attempt instead of the last.")
@click.option("--root", metavar="DIR", help="Output root.")
def command(run: str, follow: bool, name: str | None, lines: int | None, attempt: int | None, root: str | None) -> int:
    """Print the output of RUN: of the command that failed, else of the last one that began."""
    from assay.study import logs
    from assay.study.lookup import find_one_run

    if follow and attempt is not None:
        raise UsageError("--follow goes with the attempt that runs", "leave out --attempt, or --follow")
    if follow:
        return _follow(run, name, lines, root)
    found = find_one_run(run, root)
    path = logs.find_log(found.dir, name, attempt)
    if sys.stdout.isatty():
        print(f"{os.path.relpath(path)}:", file=sys.stderr)
    logs.copy_log(path, lines, _write)
    return 0


def _follow(name: str, of_command: str | None, lines: int | None, root: str | None) -> int:
    from assay.study import logs
    from assay.study.lookup import find_runs

    runs = find_runs(name, root)
    if len(runs) == 1 and runs[0].place.name != name.rstrip("/"):
        logs.follow_run(runs[0].dir, of_command, lines, _write)
        return 0
    places = {run.place for run in runs}
    if len(places) != 1:
        raise UsageError(f"{name!r} names {len(runs)} runs of {len(places)} studies", "follow one study at a time")
    (place,) = places
    if not logs.follow_study(place.dir, of_command, lines, _write):
        print(f"nothing is running in {place.name}", file=sys.stderr)
    return 0


def _write(data: bytes) -> None:
    """Straight through: a person may be watching, and bytes need not be text."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
