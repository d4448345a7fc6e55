"""`assay sum` and `assay plot`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from assay.errors import UsageError
from assay.show.console import Console
from assay.study.commands.runs import states_option
from assay.values.options import Request, argument, json_option, option, root_option, split_commas, where_option
from assay.values.state import State

if TYPE_CHECKING:
    from assay.record.index.base import Index
    from assay.show.tensorboard import Points
    from assay.study.locations import StudyLocation
    from assay.study.plotting import BuiltChart
    from assay.study.summary import SummaryOptions
    from assay.values.table import Table
    from assay.values.where import Where


def group_option(what: str) -> Any:
    text = f"One {what} for runs that differ only here: mean ± sd."
    return option("-g", "--group-by", multiple=True, metavar="PARAM", parse=split_commas, help=text)


class SumRequest(Request):
    studies: tuple[str, ...] = argument(multiple=True, required=False)
    sort: tuple[str, ...] = option(
        "-s",
        "--sort",
        multiple=True,
        metavar="NAME[:min|max]",
        help="Sort by a metric's best value, or by a parameter; may be given again, the first counts most.",
    )
    group_by: tuple[str, ...] = group_option("row")
    metrics: tuple[str, ...] | None = option(
        "-m", "--metrics", metavar="A,B|all", parse=split_commas, help="Which metrics to show."
    )
    ignore: tuple[str, ...] | None = option("--ignore", metavar="A,B", parse=split_commas, help="Columns to leave out.")
    best: bool = option("--best", default=False, help="The best value of every metric next to the last.")
    states: frozenset[State] | None = states_option("Only these runs.")
    where: Where | None = where_option()
    limit: int | None = option("-n", "--limit", type=int, minimum=1, metavar="N", help="Only the first N rows.")
    as_csv: bool = option("--csv", default=False, help="Comma-separated values.")
    csv_raw: bool = option("--csv-raw", default=False, help="The same, with text that looks like a formula as it is.")
    as_json: bool = json_option("JSON.")
    as_markdown: bool = option("--md", default=False, help="A Markdown table.")
    tensorboard: str | None = option(
        "--tensorboard", metavar="DIR", help="Write the study for TensorBoard's HParams tab instead."
    )
    root: str | None = root_option()


def summarise(request: SumRequest, console: Console) -> int:
    """Print the summary table of STUDIES (names or folders): parameters that differ, metrics, time.

    STUDY/PATTERN means some runs of a study, as 'norm/lr=0.1*'. Folders that runx, logx or mlrunner filled are
    tabled as well.
    """
    from assay.show.formatting import render_count, unguard
    from assay.study import summary
    from assay.study.locations import open_index_of

    forms = request.as_csv or request.csv_raw, request.as_json, request.as_markdown
    if sum(forms) > 1:
        raise UsageError("choose one of --csv, --json and --md")
    locations, patterns = _find(request.studies, request.root)
    options = summary.SummaryOptions(
        sort=request.sort,
        group_by=request.group_by,
        metrics=request.metrics,
        ignore=request.ignore or (),
        best=request.best,
        states=request.states,
        limit=request.limit,
        where=request.where,
        patterns=patterns,
    )
    with open_index_of(locations) as index:
        if request.tensorboard is not None:
            count = write_hparams_events(index, locations, request.tensorboard, options)
            console.print(f"{count} runs written; show them: tensorboard --logdir {shlex.quote(request.tensorboard)}")
            return 0
        found = summary.summarise(index, locations, options, console)
    if not any(forms):
        console.write_table(found.table if console.width is None else summary.fit_summary(found, console.width).table)
    elif request.csv_raw:
        unguard(sys.stdout).write(_render(found.table, request))
    else:
        console.write(_render(found.table, request))
    if found.hidden and not any(forms):
        console.error(f"({render_count(found.hidden, 'more metric')}: --metrics all)")
    if found.left_out:
        console.error(f"({render_count(found.left_out, 'more row')}: leave out -n)")
    return 0


def _render(table: Table, request: SumRequest) -> str:
    from assay.show import table as tables

    if request.as_json:
        return tables.render_json(table) + "\n"
    if request.as_markdown:
        return tables.render_markdown(table)
    return tables.render_csv(table, raw=request.csv_raw)


def write_hparams_events(index: Index, locations: Sequence[StudyLocation], folder: str, options: SummaryOptions) -> int:
    """One sub-folder per run with its parameters, last values and series; how many runs."""
    from assay.show.tensorboard import BoardRun, write_board_run
    from assay.study.run_reader import load_fresh_table
    from assay.study.summary import select_rows

    table = load_fresh_table(index, locations)
    chosen = select_rows(table, options.where, options.patterns, options.states)
    for i in chosen:
        row = table.rows[i]
        last = {name: column.last[i] for name, column in table.metrics.items() if column.count[i]}
        name = row.key if len(locations) > 1 else row.key.partition("/")[2]
        write_board_run(folder, BoardRun(name, row.params, last, _load_series(index, row.key, last)))
    return len(chosen)


def _load_series(index: Index, key: str, metrics: Iterable[str]) -> Iterator[Points]:
    from assay.show.tensorboard import Points

    for metric in metrics:
        series = index.load_series(key, metric)
        yield Points(metric, series.steps, series.values, series.times)


# ---------------------------------------------------------------- plot


class PlotRequest(Request):
    names: tuple[str, ...] = argument("[STUDY|RUN]...", multiple=True, required=False)
    metrics: tuple[str, ...] = option(
        "-m",
        "--metric",
        multiple=True,
        metavar="METRIC",
        help="What to plot; may be given again.  [default: the most informative]",
    )
    where: Where | None = where_option()
    group_by: tuple[str, ...] = group_option("line")
    log: bool = option("--log", default=False, help="A logarithmic scale.")
    best: int | None = option("--best", type=int, minimum=1, metavar="N", help="Only the N best runs or groups.")
    output: str | None = option("-o", "--output", metavar="FILE", help="Draw into a .png, .svg or .pdf file instead.")
    width: float | None = option("--width", type=float, minimum=1, metavar="N", help="Columns; inches with --output.")
    height: float | None = option("--height", type=float, minimum=1, metavar="N", help="Rows; inches with --output.")
    root: str | None = root_option()


def plot(request: PlotRequest, console: Console) -> int:
    """Plot metrics of studies or of single runs over steps."""
    from assay.study.locations import open_index_of
    from assay.study.plotting import PlotOptions, build_charts

    locations, patterns = _find(request.names, request.root)
    options = PlotOptions(request.metrics, request.group_by, request.log, request.best, request.where, patterns)
    with open_index_of(locations) as index:
        charts = build_charts(index, locations, options, console)
    for chart in charts:
        _report_choices(chart, console)
    if request.output is not None:
        return _write_files(charts, request.output, request.width, request.height, console)
    for chart in charts:
        console.write(_render_chart(chart, request.width, request.height, console))
    return 0


def _find(names: Sequence[str], root: str | None) -> tuple[list[StudyLocation], tuple[tuple[str, str], ...]]:
    """Studies, and patterns of their runs where a name is not that of a study."""
    from assay.errors import NotFoundError
    from assay.study.locations import find_locations

    try:
        return find_locations(names, root), ()
    except NotFoundError:
        from assay.study.choosing import find_choice

        return find_choice(names, root)


def _report_choices(chart: BuiltChart, console: Console) -> None:
    others = [name for name in chart.others if name != chart.metric]
    if chart.was_chosen and others:
        more = ", ".join(others[:8]) + (" …" if len(others) > 8 else "")
        console.error(f"{chart.metric} (others: {more}; choose with -m)")
    if chart.hidden:
        shown = len(chart.chart.lines)
        console.error(f"the {shown} best of {shown + chart.hidden} (choose with --best N)")
    for label in chart.empty:
        console.error(f"{label}: not drawn, since none of its runs is done and has {chart.metric}")


def _render_chart(chart: BuiltChart, width: float | None, height: float | None, console: Console) -> str:
    from assay.show.plot import render_plot

    columns = int(width) if width else console.width or 80
    return render_plot(
        chart.chart, width=columns, height=int(height or 20), color=console.color, plain=console.is_plain
    )


def _write_files(
    charts: Sequence[BuiltChart], output: str, width: float | None, height: float | None, console: Console
) -> int:
    from pathlib import Path

    from assay.show.figure import write_figure
    from assay.study.plotting import build_paths

    if (width or 0) > 100 or (height or 0) > 100:
        raise UsageError("with --output, --width and --height are inches", "for example --width 8 --height 4.5")
    for chart, path in zip(charts, build_paths(output, [chart.metric for chart in charts]), strict=True):
        write_figure(chart.chart, Path(path), width=width or 8.0, height=height or 4.5)
        console.print(path)
    return 0
