"""`assay show`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from assay.errors import UsageError
from assay.values import layout

if TYPE_CHECKING:
    from assay.show.sections import Section


@click.command()
@click.argument("run")
@click.option("--env", "with_environment", is_flag=True, help="The environment as well: host, GPUs, packages, git.")
@click.option("--job", is_flag=True, help="Print the run's job.sh instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--root", metavar="DIR", help="Output root.")
def command(run: str, with_environment: bool, job: bool, as_json: bool, root: str | None) -> int:
    """Everything about RUN: state, attempts, parameters, commands, metrics, resources, origin, files.

    RUN is STUDY/RUN, a run's name or id, or its folder.
    """
    from assay.show.json_text import render_facts
    from assay.study.lookup import find_one_run, open_index_of
    from assay.study.run_description import build_facts, build_sections, describe_run

    if job and (as_json or with_environment):
        raise UsageError("--job prints the script and nothing else", "leave out --json and --env")
    found = find_one_run(run, root)
    if job:
        return _print_file(os.path.join(found.dir, layout.JOB_FILE))
    with open_index_of([found.place]) as index:
        description = describe_run(index, found.place, found.dir)
    if as_json:
        sys.stdout.write(render_facts(build_facts(description)))
    else:
        sys.stdout.write(render(build_sections(description, with_environment=with_environment)))
    return 0


def render(sections: Sequence[Section]) -> str:
    from assay.show.sections import render_sections
    from assay.system.terminal import can_encode, terminal_width, use_color

    plain = not can_encode(sys.stdout, "…─")
    return render_sections(sections, width=terminal_width(sys.stdout), color=use_color(sys.stdout), plain=plain)


def _print_file(path: str) -> int:
    try:
        with open(path, "rb") as file:
            sys.stdout.buffer.write(file.read())
    except FileNotFoundError as error:
        raise UsageError(f"{path} is not there", "a run that a script opened by itself has no job.sh") from error
    return 0
