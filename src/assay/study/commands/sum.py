"""`assay sum`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from assay.errors import UsageError
from assay.show.console_warnings import warn
from assay.values.state import State

if TYPE_CHECKING:
    from assay.study.lookup import Index, StudyPlace
    from assay.values.table import Table


@click.command()
@click.argument("studies", nargs=-1)
@click.option(
    "-s",
    "--sort",
    multiple=True,
    metavar="NAME[:min|max]",
    help="Sort by a metric's best value, or by a parameter; may be given again, the first counts most.",
)
@click.option(
    "-g", "--group-by", multiple=True, metavar="PARAM", help="One row for runs that differ only here: mean ± sd."
)
@click.option("-m", "--metrics", metavar="A,B|all", help="Which metrics to show.")
@click.option("--ignore", metavar="A,B", help="Columns to leave out.")
@click.option("--best", is_flag=True, help="The best value of every metric beside the last.")
@click.option("--state", "states", multiple=True, type=click.Choice([str(s) for s in State]), help="Only these runs.")
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N rows.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values.")
@click.option("--csv-raw", is_flag=True, help="The same, with text that looks like a formula as it is.")
@click.option("--json", "as_json", is_flag=True, help="JSON.")
@click.option("--md", "as_markdown", is_flag=True, help="A Markdown table.")
@click.option("--tensorboard", metavar="DIR", help="Write the study for TensorBoard's HParams tab instead.")
@click.option("--root", metavar="DIR", help="Output root.")
def command(
    studies: tuple[str, ...],
    sort: tuple[str, ...],
    group_by: tuple[str, ...],
    metrics: str | None,
    ignore: str | None,
    best: bool,
    states: tuple[str, ...],
    limit: int | None,
    as_csv: bool,
    csv_raw: bool,
    as_json: bool,
    as_markdown: bool,
    tensorboard: str | None,
    root: str | None,
) -> int:
    """The summary table of STUDIES (names or folders): parameters that differ, metrics, time.

    Folders that runx, logx or mlrunner filled are tabled as well.
    """
    from assay.show import formatting
    from assay.show.formatting import unguard
    from assay.study.lookup import find_places, open_index_of
    from assay.study.summary import SummaryOptions, fit_summary, summarise
    from assay.system.terminal import terminal_width

    as_csv = as_csv or csv_raw
    if sum((as_csv, as_json, as_markdown)) > 1:
        raise UsageError("choose one of --csv, --json and --md")
    options = SummaryOptions(
        sort=sort,
        group_by=tuple(part for each in group_by for part in each.split(",")),
        metrics=tuple(metrics.split(",")) if metrics else None,
        ignore=tuple(ignore.split(",")) if ignore else (),
        best=best,
        states=frozenset(State(word) for word in states) or None,
        limit=limit,
    )
    places = find_places(studies, root)
    with open_index_of(places) as index:
        if tensorboard is not None:
            return _write_tensorboard(index, places, tensorboard)
        summary = summarise(index, places, options, warn)
    width = terminal_width(sys.stdout)
    if width is not None and not (as_csv or as_json or as_markdown):
        summary = fit_summary(summary, width)
    stream = unguard(sys.stdout) if csv_raw else sys.stdout
    stream.write(_render(summary.table, as_csv, as_json, as_markdown, csv_raw))
    if summary.hidden and not (as_csv or as_json or as_markdown):
        print(f"({formatting.render_count(summary.hidden, 'more metric')}: --metrics all)", file=sys.stderr)
    if summary.left_out:
        print(f"({formatting.render_count(summary.left_out, 'more row')}: leave out -n)", file=sys.stderr)
    return 0


def _render(table: Table, as_csv: bool, as_json: bool, as_markdown: bool, csv_raw: bool) -> str:
    from assay.show import table as tables
    from assay.system.terminal import can_encode, terminal_width, use_color

    if as_csv:
        return tables.render_csv(table, raw=csv_raw)
    if as_json:
        return tables.render_json(table) + "\n"
    if as_markdown:
        return tables.render_markdown(table)
    plain = not can_encode(sys.stdout, "…±")
    return tables.render_table(table, width=terminal_width(sys.stdout), color=use_color(sys.stdout), plain=plain)


def _write_tensorboard(index: Index, places: Sequence[StudyPlace], folder: str) -> int:
    from assay.show import formatting
    from assay.study.tensorboard import write_hparams_events

    count = write_hparams_events(index, places, folder)
    print(formatting.clean(f"{count} runs written; look at them: tensorboard --logdir {shlex.quote(folder)}"))
    return 0
