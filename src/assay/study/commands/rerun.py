"""`assay rerun`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from assay.errors import ExitCode, UsageError
from assay.show.console_warnings import warn
from assay.study.commands.run import supervise
from assay.values.slots import parse_slot_flags

if TYPE_CHECKING:
    from assay.study.lookup import FoundRun


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "-c",
    "--command",
    "commands",
    multiple=True,
    metavar="C",
    help="Only these commands; the others must have finished.",
)
@click.option("--slots", metavar="LIST", help="Slots: 0,1 (GPUs), 0+1 (one slot of two), cpu:4. Default: found.")
@click.option("-j", "--jobs", type=click.IntRange(min=1), metavar="N", help="N runs at once on the CPU: --slots cpu:N.")
@click.option("--new-code", is_flag=True, help="With the code of now; the old copy is kept as code.N.")
@click.option("--quiet", is_flag=True, help="Say nothing until the end.")
@click.option("--plain", is_flag=True, help="Lines instead of the live view.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
@click.option("--root", metavar="DIR", help="Output root.")
def command(
    names: tuple[str, ...],
    commands: tuple[str, ...],
    slots: str | None,
    jobs: int | None,
    new_code: bool,
    quiet: bool,
    plain: bool,
    as_json: bool,
    root: str | None,
) -> int:
    """Run studies, runs or patterns again: a new attempt of each, with the code that it had.

    All commands are run, also those that an earlier attempt finished. Results of earlier attempts are kept.
    """
    from assay.study.locations import HOW_TO_START
    from assay.study.lookup import find_runs
    from assay.study.rerun import RerunOptions, find_damaged, prepare_rerun, renew_code

    runs: dict[str, FoundRun] = {run.dir: run for name in names for run in find_runs(name, root)}
    if not runs:
        raise UsageError(f"{', '.join(names)}: no runs yet", HOW_TO_START)
    options = RerunOptions(commands or None, parse_slot_flags(slots, jobs), new_code, command_line=tuple(sys.argv))
    prepared = prepare_rerun(list(runs.values()), options)
    if as_json and len(prepared) > 1:
        raise UsageError("--json tells of one study at a time", "name the runs of one study only")
    if new_code:
        changed = renew_code(list(runs.values()))
        print(f"the code has changed for {changed} of {len(runs)} runs", file=sys.stderr)
    damaged = find_damaged(list(runs.values()))
    for text in damaged:
        warn(text)
    codes = [ExitCode(supervise(each, quiet=quiet or as_json, plain=plain, as_json=as_json)) for each in prepared]
    return int(ExitCode.worst([*codes, *([ExitCode.INTERNAL] if damaged else [])]))
