"""`assay sum` and `assay plot`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from assay.errors import UsageError
from assay.reading.commands.runs import states_option
from assay.show.console import Console
from assay.values.options import Request, argument, json_option, option, root_option, split_commas, where_option
from assay.values.state import State

if TYPE_CHECKING:
    from assay.reading.plotting import Plot, PlottedRuns
    from assay.reading.summary import StudySummary, SummaryOptions
    from assay.record.index.base import Index
    from assay.values.table import Table
    from assay.values.where import Where


def group_option(what: str) -> Any:
    text = f"One {what} for runs that differ only here: mean ± sd."
    return option("-g", "--group-by", multiple=True, metavar="PARAM", parse=split_commas, help=text)


class TableRequest(Request):
    """Which runs of which studies, in which order, with which columns."""

    studies: tuple[str, ...] = argument(multiple=True, required=False)
    sort: tuple[str, ...] = option(
        "-s",
        "--sort",
        multiple=True,
        metavar="NAME[:min|max]",
        help="Sort by a metric's best value, a parameter or time; may be given again, the first counts most.",
    )
    pareto: tuple[str, ...] | None = option(
        "--pareto",
        metavar="A,B",
        parse=split_commas,
        help="Only runs that no other beats in all of these: metrics, parameters, time; each may have :min or :max.",
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
    root: str | None = root_option()

    def build_options(self, patterns: tuple[tuple[str, str], ...]) -> SummaryOptions:
        from assay.reading.summary import SummaryOptions

        return SummaryOptions(
            sort=self.sort,
            group_by=self.group_by,
            metrics=self.metrics,
            ignore=self.ignore or (),
            best=self.best,
            states=self.states,
            limit=self.limit,
            where=self.where,
            patterns=patterns,
            pareto=tuple(name.strip() for name in self.pareto or ()),
        )


class SumRequest(TableRequest):
    as_csv: bool = option("--csv", default=False, help="Comma-separated values.")
    csv_raw: bool = option("--csv-raw", default=False, help="The same, with text that looks like a formula as it is.")
    as_json: bool = json_option("JSON.")
    as_markdown: bool = option("--md", default=False, help="A Markdown table.")
    tensorboard: str | None = option(
        "--tensorboard", metavar="DIR", help="Write the study for TensorBoard's HParams tab instead."
    )


def summarise(request: SumRequest, console: Console) -> int:
    """Print the summary table of STUDIES (names or folders): parameters that differ, metrics, time.

    STUDY/PATTERN means some runs of a study, as 'norm/lr=0.1*'. Folders that runx, logx or mlrunner filled are
    tabled as well.
    """
    from assay.follow.locations import find_patterns
    from assay.follow.opening import open_index_of
    from assay.reading import summary
    from assay.show.formatting import unguard

    forms = request.as_csv or request.csv_raw, request.as_json, request.as_markdown
    if sum(forms) > 1:
        raise UsageError("choose one of --csv, --json and --md")
    locations, patterns = find_patterns(request.studies, request.root)
    options = request.build_options(patterns)
    with open_index_of(locations) as index:
        if request.tensorboard is not None:
            import shlex

            from assay.plugins import require_function

            write_hparams_events = require_function("tensorboard.write", "--tensorboard")
            count = write_hparams_events(index, locations, request.tensorboard, options)
            console.print(f"{count} runs written; show them: tensorboard --logdir {shlex.quote(request.tensorboard)}")
            return 0
        found = summary.summarise(index, locations, options, console)
    if not any(forms):
        found = found if console.width is None else summary.fit_summary(found, console.width)
        console.write_table(found.table)
    elif request.csv_raw:
        unguard(sys.stdout).write(_render(found.table, request))
    else:
        console.write(_render(found.table, request))
    if found.unranked:
        console.error(summary.describe_unranked(found.unranked, locations))
    _tell_rest(found._replace(hidden=0) if any(forms) else found, request, console)
    return 0


def _tell_rest(found: StudySummary, request: SumRequest, console: Console) -> None:
    """What is not in the table."""
    from assay.reading.summary import describe_front
    from assay.show.formatting import render_count

    if found.hidden:
        console.error(f"({render_count(found.hidden, 'more metric')}: --metrics all)")
    if found.no_room:
        console.error(f"(no room here for {', '.join(found.no_room)}: widen the terminal, or --csv)")
    for remark in found.remarks:
        console.error(remark)
    if found.front is not None:
        what = "group" if request.group_by else "run"
        console.error(f"({describe_front(found.front, what, found.not_done)})")
    if found.left_out:
        console.error(f"({render_count(found.left_out, 'more row')}: leave out -n)")


def _render(table: Table, request: SumRequest) -> str:
    from assay.show import table as tables

    if request.as_json:
        return tables.render_json(table) + "\n"
    if request.as_markdown:
        return tables.render_markdown(table)
    return tables.render_csv(table, raw=request.csv_raw)


# ---------------------------------------------------------------- plot


class PlotRequest(Request):
    names: tuple[str, ...] = argument("[STUDY|RUN]...", multiple=True, required=False)
    metrics: tuple[str, ...] = option(
        "-m",
        "--metric",
        multiple=True,
        metavar="METRIC[:min|max]",
        help="What to plot, and which way is better; may be given again.  [default: the most informative]",
    )
    where: Where | None = where_option()
    x: str | None = option(
        "-x",
        "--x",
        choices=("step", "epoch", "time"),
        help="Over what; time is since the run's start.  [default: step]",
    )
    smooth: float | None = option(
        "--smooth", type=float, minimum=0, maximum=0.9999, metavar="W",
        help="Smooth by an exponential moving average with this weight, 0 to 0.9999.",
    )  # fmt: skip
    group_by: tuple[str, ...] = group_option("line")
    scatter: str | None = option(
        "--scatter", metavar="PARAM", help="A point for each run: the metric over a parameter."
    )
    color: str | None = option("--color", metavar="PARAM", help="With --scatter or --slices: colour by this parameter.")
    slices: bool = option("--slices", default=False, help="A small scatter for each parameter.")
    parallel: bool = option(
        "--parallel", default=False, help="Parallel coordinates: a line for each run through its parameters; needs -o."
    )
    history: bool = option("--history", default=False, help="The runs in the order of finishing, and the best so far.")
    pareto: bool = option(
        "--pareto", default=False, help="A point for each run: one metric over another, and the Pareto set of both."
    )
    importance: bool = option(
        "--importance", default=False, help="A bar for each parameter: how much it decides about the metric."
    )
    params: tuple[str, ...] | None = option(
        "--params",
        metavar="A,B",
        parse=split_commas,
        help="The parameters of --slices and --parallel.  [default: those that differ]",
    )
    log: bool = option("--log", default=False, help="A logarithmic scale.")
    log_x: bool = option("--log-x", default=False, help="A logarithmic x axis.")
    best: int | None = option("--best", type=int, minimum=1, metavar="N", help="Only the N best runs or groups.")
    output: str | None = option(
        "-o", "--output", metavar="FILE", help="Draw into a .png, .svg, .pdf or .html file instead."
    )
    width: float | None = option("--width", type=float, minimum=1, metavar="N", help="Columns; inches with --output.")
    height: float | None = option("--height", type=float, minimum=1, metavar="N", help="Rows; inches with --output.")
    root: str | None = root_option()


def plot(request: PlotRequest, console: Console) -> int:
    """Plot metrics of studies or of single runs: over steps, epochs or time, or over parameters."""
    from assay.follow.locations import find_patterns
    from assay.follow.opening import open_index_of
    from assay.reading.plotting import load_selection

    form = _choose_form(request)
    kind = _choose_kind(request)
    locations, patterns = find_patterns(request.names, request.root)
    with open_index_of(locations) as index:
        selection = load_selection(index, locations, request.where, patterns, console)
        plots = _build_plots(form, index, selection, request)
    for note in dict.fromkeys(note for plot in plots for note in plot.notes):
        console.error(note)
    if request.output is None:
        for plot in plots:
            _print_plot(plot, request, console)
    elif kind == _PAGE:
        _write_page(plots, selection, request.output, console)
    else:
        _write_files(plots, request.output, request.width, request.height, console)
    return 0


_FORMS = {  # what each kind of plot takes beside what all of them take
    "": ("x", "smooth", "group_by", "best", "log", "log_x"),
    "scatter": ("color", "log", "log_x"),
    "slices": ("color", "params", "log"),
    "parallel": ("params", "log"),
    "history": ("log",),
    "pareto": ("log", "log_x"),
    "importance": (),
}


_PAGE = "html"


def _choose_kind(request: PlotRequest) -> str:
    """Of the file, by the end of its name; what could not be written is refused before anything is drawn."""
    from assay.show.figure import FORMATS
    from assay.show.report_files import check_targets

    if request.output is None:
        return ""
    kind = os.path.splitext(request.output)[1].lower().removeprefix(".")
    if kind not in (*FORMATS, _PAGE):
        name = os.path.basename(request.output)
        raise UsageError(f"cannot write a plot to {name!r}", f"end the name in {', '.join(FORMATS)} or {_PAGE}")
    if kind == _PAGE:
        check_targets(request.output)
        if request.width or request.height:
            raise UsageError("--width and --height have no meaning for a page", "it takes the width of its window")
    elif (request.width or 0) > 100 or (request.height or 0) > 100:
        raise UsageError("with --output, --width and --height are inches", "for example --width 8 --height 4.5")
    return kind


def _choose_form(request: PlotRequest) -> str:
    """Which kind of plot; options that have no meaning for it are refused."""
    given = [name for name in _FORMS if name and getattr(request, name)]
    if len(given) > 1:
        raise UsageError(f"choose one of {' and '.join(f'--{name}' for name in given)}")
    form = given[0] if given else ""
    spelled = {"group_by": "--group-by", "log_x": "--log-x", "x": "-x"}
    every = dict.fromkeys(name for names in _FORMS.values() for name in names)
    for name in every:
        if getattr(request, name) and name not in _FORMS[form]:
            takers = [f"--{each}" if each else "a plot of curves" for each, names in _FORMS.items() if name in names]
            kind = f"--{form}" if form else "a plot of curves"
            message = f"{spelled.get(name, f'--{name}')} has no meaning for {kind}"
            raise UsageError(message, f"it is for {' and '.join(takers)}")
    if form == "parallel" and request.output is None:
        raise UsageError(
            "--parallel cannot be read on a terminal", "draw it into a file: add -o parallel.svg, or -o parallel.html"
        )
    return form


def _build_plots(form: str, index: Index, selection: PlottedRuns, request: PlotRequest) -> list[Plot]:
    from assay.reading import param_plots, plotting

    if not form:
        x = cast("plotting.XName | None", request.x)
        smooth = request.smooth or 0.0
        options = plotting.PlotOptions(
            request.metrics, request.group_by, request.log, request.best, x, smooth, request.log_x
        )
        return plotting.build_plots(index, selection, options)
    wish = param_plots.ParamOptions(request.metrics, request.params or (), request.color, request.log, request.log_x)
    if request.scatter is not None:
        return param_plots.build_scatters(selection, request.scatter, wish)
    builders = {
        "slices": param_plots.build_slices,
        "parallel": param_plots.build_parallels,
        "history": param_plots.build_histories,
        "pareto": param_plots.build_pareto,
        "importance": param_plots.build_importances,
    }
    return builders[form](selection, wish)


def _print_plot(plot: Plot, request: PlotRequest, console: Console) -> None:
    from assay.show.chart import Chart
    from assay.show.formatting import clean
    from assay.show.heat_map import render_bars
    from assay.show.plot import render_plot
    from assay.values.document import Bars

    if isinstance(plot.chart, Bars):
        bars = render_bars(plot.chart, color=console.color, plain=console.is_plain)
        console.write("\n".join((clean(plot.chart.label), *bars)) + "\n")
        return
    is_single = isinstance(plot.chart, Chart)
    columns = int(request.width) if request.width else console.width or 80
    rows = int(request.height or (20 if is_single else 12))
    charts = [plot.chart] if isinstance(plot.chart, Chart) else plot.chart
    texts = [
        render_plot(each, width=columns, height=rows, color=console.color, plain=console.is_plain) for each in charts
    ]
    console.write("\n".join(texts))


def _write_page(plots: Sequence[Plot], selection: PlottedRuns, output: str, console: Console) -> None:
    from assay.reading.plot_document import build_page
    from assay.show.formatting import render_count
    from assay.show.html import render_html
    from assay.show.report_files import write_text

    document = build_page(selection.studies, render_count(len(selection.keep), "run"), plots)
    write_text(output, render_html(document))
    console.print(output)


def _write_files(
    plots: Sequence[Plot], output: str, width: float | None, height: float | None, console: Console
) -> None:
    from pathlib import Path

    from assay.reading.plotting import build_paths
    from assay.show.figure import write_figure

    for plot, path in zip(plots, build_paths(output, [plot.name for plot in plots]), strict=True):
        write_figure(plot.chart, Path(path), width=width, height=height, title=plot.title)
        console.print(path)
