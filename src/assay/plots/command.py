"""The command `assay plot`: its options, and its output on a terminal, in a file or as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

from assay.errors import UsageError
from assay.follow.locations import find_patterns
from assay.follow.opening import open_index_of
from assay.plots import plotting
from assay.plots.figure import FORMATS, write_figure
from assay.plots.param_plots import BUILDERS
from assay.plots.plot_document import build_page
from assay.plots.plotting import Plot, PlottedRuns, build_labels, build_paths, load_selection
from assay.reading.commands.tables import group_option
from assay.show.chart import LineChart, thin_line
from assay.show.console import Console
from assay.show.formatting import clean, escape_json, render_count, to_json
from assay.show.heat_map import render_bars
from assay.show.html import render_html
from assay.show.plot import render_plot
from assay.show.report_files import check_targets, write_text
from assay.values.document import Bars
from assay.values.options import Request, argument, json_option, option, root_option, split_commas, where_option
from assay.values.where import Where


class PlotRequest(Request):
    names: tuple[str, ...] = argument("[STUDY|RUN]...", multiple=True, required=False)
    metrics: tuple[str, ...] = option(
        "-m",
        "--metric",
        multiple=True,
        metavar="METRIC[:min|max]",
        parse=split_commas,
        help="What to plot, and which way is better; may be given again.  [default: the most informative]",
    )
    where: Where | None = where_option()
    x: str | None = option(
        "-x",
        "--x",
        choices=("step", "epoch", "time"),
        help="Values of the x axis; time is since the run's start.  [default: step]",
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
    slices: bool = option("--slices", default=False, help="A small scatter plot for each parameter.")
    parallel: bool = option(
        "--parallel", default=False, help="Parallel coordinates: a line for each run through its parameters; needs -o."
    )
    history: bool = option("--history", default=False, help="The runs in the order of finishing, and the best so far.")
    pareto: bool = option(
        "--pareto", default=False, help="A point for each run: one metric over another, and the Pareto set of both."
    )
    importance: bool = option(
        "--importance", default=False, help="A bar for each parameter: how much it affects the metric."
    )
    params: tuple[str, ...] = option(
        "--params",
        multiple=True,
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
    as_json: bool = json_option("Print the points instead.")
    points: int = option(
        "--points", type=int, minimum=2, maximum=100_000, default=200, metavar="N",
        help="With --json: about N points of each line; peaks stay.",
    )  # fmt: skip
    root: str | None = root_option()


def plot(request: PlotRequest, console: Console) -> int:
    """Plot metrics of studies or of single runs: over steps, epochs or time, or over parameters."""
    form = _choose_form(request)
    kind = _choose_kind(request)
    locations, patterns = find_patterns(request.names, request.root)
    with open_index_of(locations) as index:
        selection = load_selection(index, locations, request.where, patterns, console)
        named = ("metrics", "group_by", "log", "best", "x", "log_x", "params", "color")
        given: dict[str, Any] = {name: getattr(request, name) for name in named}
        options = plotting.PlotOptions(**given, smooth=request.smooth or 0.0, param=request.scatter or "")
        plots = BUILDERS[form](selection, options) if form else plotting.build_plots(index, selection, options)
    for note in dict.fromkeys(note for plot in plots for note in plot.notes):
        console.error(note)
    if request.as_json:
        facts = to_json([_build_facts(plot, selection, request.points) for plot in plots])
        console.write(f"{escape_json(json.dumps(facts, ensure_ascii=False))}\n")
    elif request.output is None:
        for plot in plots:
            _print_plot(plot, request, console)
    elif kind == _PAGE:
        document = build_page(selection.studies, render_count(len(selection.keep), "run"), plots)
        write_text(request.output, render_html(document))
        console.print(request.output)
    else:
        for plot, path in zip(plots, build_paths(request.output, [plot.name for plot in plots]), strict=True):
            write_figure(plot.chart, Path(path), width=request.width, height=request.height, title=plot.title)
            console.print(path)
    return 0


def _build_facts(plot: Plot, selection: PlottedRuns, most: int) -> dict[str, Any]:
    """Return the lines of a chart, each of a run or of a group; a long line is reduced to about `most` points."""
    chart = cast(LineChart, plot.chart)
    runs = dict(zip(build_labels(selection.rows), selection.rows, strict=True))
    lines = []
    for line in chart.lines:
        xs, ys = thin_line(line.xs, line.ys, most)
        is_run = line.members == 1 and line.label in runs
        name = {"run": runs[line.label].key} if is_run else {"group": line.label}
        is_thinned = len(ys) < len(line.ys)
        lines.append({**name, "points": len(line.ys), "is_thinned": is_thinned, "x": list(xs), "value": list(ys)})
    return {"metric": plot.name, "x": chart.x_name, "lines": lines}


_FORMS = {  # the options of each kind of plot in addition to the common ones
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
    """Return the kind of the file by its suffix; a kind that cannot be written is refused before anything is drawn."""
    if request.output is None:
        return ""
    kind = os.path.splitext(request.output)[1].lower().removeprefix(".")
    if kind not in (*FORMATS, _PAGE):
        name = os.path.basename(request.output)
        raise UsageError(f"cannot write a plot to {name!r}", f"end the name in {', '.join(FORMATS)} or {_PAGE}")
    check_targets(request.output)
    if kind == _PAGE:
        if request.width or request.height:
            raise UsageError("--width and --height have no meaning for a page", "it takes the width of its window")
    elif (request.width or 0) > 100 or (request.height or 0) > 100:
        raise UsageError("with --output, --width and --height are inches", "for example --width 8 --height 4.5")
    return kind


def _choose_form(request: PlotRequest) -> str:
    """Return the kind of plot; options that have no meaning for it are refused."""
    given = [name for name in _FORMS if name and getattr(request, name)]
    if len(given) > 1:
        raise UsageError(f"choose one of {' and '.join(f'--{name}' for name in given)}")
    form = given[0] if given else ""
    spelled = {"group_by": "--group-by", "log_x": "--log-x", "x": "-x"}
    for name in dict.fromkeys(name for names in _FORMS.values() for name in names):
        if getattr(request, name) and name not in _FORMS[form]:
            takers = [f"--{each}" if each else "a plot of curves" for each, names in _FORMS.items() if name in names]
            kind = f"--{form}" if form else "a plot of curves"
            message = f"{spelled.get(name, f'--{name}')} has no meaning for {kind}"
            raise UsageError(message, f"it is for {' and '.join(takers)}")
    if request.as_json and (form or request.output):
        raise UsageError("--json prints the curves of runs", f"leave out --json, or {f'--{form}' if form else '-o'}")
    if form == "parallel" and request.output is None:
        hint = "draw it into a file: add -o parallel.svg, or -o parallel.html"
        raise UsageError("--parallel cannot be read on a terminal", hint)
    return form


def _print_plot(plot: Plot, request: PlotRequest, console: Console) -> None:
    if isinstance(plot.chart, Bars):
        bars = render_bars(plot.chart, color=console.color, plain=console.is_plain)
        console.write("\n".join((clean(plot.chart.label), *bars)) + "\n")
        return
    charts, rows = ((plot.chart,), 20) if isinstance(plot.chart, LineChart) else (plot.chart, 12)
    size = {"width": int(request.width or console.width or 80), "height": int(request.height or rows)}
    console.write("\n".join(render_plot(each, **size, color=console.color, plain=console.is_plain) for each in charts))
