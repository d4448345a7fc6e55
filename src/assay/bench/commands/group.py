"""`assay bench`: run, compare, bisect, history, triage, table, import."""

from __future__ import annotations

import click

from assay.bench.commands.bisect import bisect
from assay.bench.commands.compare import compare
from assay.bench.commands.history import history, import_files, table, triage
from assay.bench.commands.run import run


@click.group()
def command() -> None:
    """Is it slower, since when, and is it the code or the machine?

    METHOD is module.Class.method, module.function, or module.Class.filter:REGEX for several methods of a class.
    """


for _each in (run, compare, bisect, history, triage, table, import_files):
    command.add_command(_each)
