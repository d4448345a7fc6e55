"""`assay ls`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from assay.show.console_warnings import warn
from assay.values.run import State

if TYPE_CHECKING:
    from assay.values.table import Table


@click.command()
@click.argument("study", required=False)
@click.option(
    "--state", "states", multiple=True, type=click.Choice([str(s) for s in State]), help="Only runs in this state."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--root", metavar="DIR", help="Output root.")
def command(study: str | None, states: tuple[str, ...], as_json: bool, root: str | None) -> int:
    """List all studies, or the runs of STUDY (a name or a folder)."""
    wanted = frozenset(State(word) for word in states) or None
    if study is None:
        return _list_studies(root, wanted, as_json)
    return _list_runs(study, root, wanted, as_json)


def _list_studies(root: str | None, states: frozenset[State] | None, as_json: bool) -> int:
    from assay.show.table import render_json
    from assay.study.listing import build_study_facts, build_study_table, list_studies
    from assay.study.locations import HOW_TO_START, show_path
    from assay.study.lookup import load_roots

    roots = load_roots(root)
    studies = list_studies(roots, warn)
    if states is not None:
        studies = [each for each in studies if any(each.row.counts.get(state) for state in states)]
    if as_json:
        sys.stdout.write(render_json(build_study_facts(studies)))
    elif studies:
        sys.stdout.write(render(build_study_table(studies, time.time())))
    else:
        such = f" with a run that is {' or '.join(sorted(states))}" if states else ""
        print(
            f"no study{such} under {', '.join(map(show_path, roots))}; {HOW_TO_START}",
            file=sys.stderr,
        )
    return 0


def _list_runs(name: str, root: str | None, states: frozenset[State] | None, as_json: bool) -> int:
    from assay.show.formatting import clean, wrap
    from assay.show.table import render_json
    from assay.study.listing import build_run_facts, build_run_table, describe_total, list_runs
    from assay.study.lookup import find_places, open_index_of
    from assay.system.terminal import terminal_width

    (place,) = find_places([name], root)
    with open_index_of([place]) as index:
        runs = list_runs(index, place, states, warn)
    if as_json:
        sys.stdout.write(render_json(build_run_facts(runs, place, time.time())))
    elif runs:
        width = terminal_width(sys.stdout)
        found = build_run_table(runs, time.time(), width)
        sys.stdout.write(render(found.table))
        sys.stdout.write("".join(f"{wrap(clean(remark), width, '  ')}\n" for remark in found.remarks))
        print(describe_total(runs))
    else:
        print(f"{place.name}: no run{' in this state' if states else 's yet'}", file=sys.stderr)
    return 0


def render(table: Table) -> str:
    from assay.show.table import render_table
    from assay.system.terminal import can_encode, terminal_width, use_color

    plain = not can_encode(sys.stdout, "…─")
    return render_table(table, width=terminal_width(sys.stdout), color=use_color(sys.stdout), plain=plain)
