"""`assay diff`."""

from __future__ import annotations

import sys

import click

from assay.errors import UsageError
from assay.study.commands.show import render


@click.command()
@click.argument("first")
@click.argument("second")
@click.option("--code", is_flag=True, help="The code line by line, as diff -u shows it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--root", metavar="DIR", help="Output root.")
def command(first: str, second: str, code: bool, as_json: bool, root: str | None) -> int:
    """Compare two runs: parameters, commands, environment, code, metrics."""
    from assay.show.json_text import render_facts
    from assay.study.lookup import find_one_run, open_index_of
    from assay.study.run_diff import build_facts, build_sections, compare, render_code_diff

    if code and as_json:
        raise UsageError("--code prints a diff, not JSON", "leave out one of --code and --json")
    left, right = find_one_run(first, root), find_one_run(second, root)
    with open_index_of([left.place]) as index, open_index_of([right.place]) as other_index:
        comparison = compare(index, other_index, left, right)
    if code:
        sys.stdout.writelines(f"{line}\n" for line in render_code_diff(comparison))
    elif as_json:
        sys.stdout.write(render_facts(build_facts(comparison)))
    else:
        sys.stdout.write(render(build_sections(comparison)))
    return 0
