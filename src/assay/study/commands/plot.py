"""`assay plot`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from assay.errors import UsageError
from assay.show.console_warnings import say, warn

if TYPE_CHECKING:
    from assay.study.locations import StudyPlace
    from assay.study.lookup import FoundRun
    from assay.study.plotting import BuiltChart


@click.command()
@click.argument("names", nargs=-1, metavar="[STUDY|RUN]...")
@click.option(
    "-m",
    "--metric",
    "metrics",
    multiple=True,
    metavar="METRIC",
    help="What to plot; may be given again.  [default: the most telling]",
)
@click.option(
    "-g", "--group-by", multiple=True, metavar="PARAM", help="One line for runs that differ only here: mean ± sd."
)
@click.option("--log", is_flag=True, help="A logarithmic scale.")
@click.option("--best", type=click.IntRange(min=1), metavar="N", help="Only the N best runs or groups.")
@click.option("-o", "--output", metavar="FILE", help="Draw into a .png, .svg or .pdf file instead.")
@click.option("--width", type=click.FloatRange(min=1), metavar="N", help="Columns; inches with --output.")
@click.option("--height", type=click.FloatRange(min=1), metavar="N", help="Rows; inches with --output.")
@click.option("--root", metavar="DIR", help="Output root.")
def command(
    names: tuple[str, ...],
    metrics: tuple[str, ...],
    group_by: tuple[str, ...],
    log: bool,
    best: int | None,
    output: str | None,
    width: float | None,
    height: float | None,
    root: str | None,
) -> int:
    """Plot metrics of studies or of single runs over steps."""
    from assay.study.lookup import open_index_of
    from assay.study.plotting import PlotOptions, build_charts

    options = PlotOptions(metrics, tuple(part for each in group_by for part in each.split(",")), log, best)
    places, runs = _find(names, root)
    with open_index_of(places) as index:
        charts = build_charts(index, places, runs, options, warn)
    _say_choices(charts)
    if output is not None:
        return _write_files(charts, output, width, height)
    for chart in charts:
        sys.stdout.write(_render(chart, width, height))
    return 0


def _find(names: Sequence[str], root: str | None) -> tuple[list[StudyPlace], list[FoundRun] | None]:
    """Names of studies stand for all their runs, foreign ones included; anything else for single runs."""
    from assay.errors import NotFoundError
    from assay.study.lookup import find_places, find_runs

    try:
        return find_places(names, root), None
    except NotFoundError:
        runs = {run.dir: run for name in names for run in find_runs(name, root)}
        return list({run.place: None for run in runs.values()}), list(runs.values())


def _say_choices(charts: Sequence[BuiltChart]) -> None:
    from assay.show.formatting import clean

    for chart in charts:
        others = [name for name in chart.others if name != chart.metric]
        if chart.was_chosen and others:
            more = ", ".join(others[:8]) + (" …" if len(others) > 8 else "")
            say(clean(f"{chart.metric} (others: {more}; choose with -m)"))
        if chart.hidden:
            shown = len(chart.chart.lines)
            say(f"the {shown} best of {shown + chart.hidden} (choose with --best N)")
        for label in chart.empty:
            say(clean(f"{label}: not drawn, since none of its runs is done and has {chart.metric}"))


def _render(chart: BuiltChart, width: float | None, height: float | None) -> str:
    from assay.show.plot import render_plot
    from assay.system.terminal import can_encode, terminal_width, use_color

    columns = int(width) if width else terminal_width(sys.stdout, 80) or 80
    plain = not can_encode(sys.stdout, "⣿─┤±")
    return render_plot(chart.chart, width=columns, height=int(height or 20), color=use_color(sys.stdout), plain=plain)


def _write_files(charts: Sequence[BuiltChart], output: str, width: float | None, height: float | None) -> int:
    from pathlib import Path

    from assay.show.figure import write_figure
    from assay.show.formatting import clean
    from assay.study.plotting import build_paths

    if (width or 0) > 100 or (height or 0) > 100:
        raise UsageError("with --output, --width and --height are inches", "for example --width 8 --height 4.5")
    for chart, path in zip(charts, build_paths(output, [chart.metric for chart in charts]), strict=True):
        write_figure(chart.chart, Path(path), width=width or 8.0, height=height or 4.5)
        print(clean(path))
    return 0
