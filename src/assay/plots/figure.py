"""Charts as a PNG, SVG or PDF file, by matplotlib."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.errors import InfrastructureError, MissingExtraError, UsageError
from assay.show import formatting
from assay.show.chart import (
    Axis,
    Line,
    LineChart,
    Scale,
    build_band_edges,
    build_log_ticks,
    build_shown,
    last_value,
    number_lines,
    render_end_value,
    render_log_ticks,
    thin_line,
)
from assay.system.files import replacing
from assay.values.document import Bars
from assay.values.layout import PLOT_MARK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
# colours that stay apart for colour-blind readers and in grey print (after Okabe and Ito)
_COLORS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"),
    *("#8c6bb1", "#4d4d4d", "#b2182b", "#7a5230", "#6b8e23", "#1b3a8b"),
)
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("", "o", "s", "^", "v", "D", "x", "+", "*")
_LABELLED = 8  # more lines than this have their names in a legend, which shows their dashes as well
_LEGIBLE = 14  # lines whose legend is not small
_LEGEND_ROWS = 28
_POINTS = ("o", "s", "^", "D", "v", "P", "*", "h")
_MOST_POINTS = 4000  # of a line
_MOST_NAMES = 30  # of categories
_METADATA: dict[str, dict[str, str | None]] = {  # no date: the same curves give the same file
    "png": {"Software": PLOT_MARK},
    "svg": {"Date": None, "Creator": PLOT_MARK},
    "pdf": {"CreationDate": None, "Creator": PLOT_MARK},
}
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "svg.hashsalt": "assay",  # equal charts give equal files
    "svg.fonttype": "path",  # looks the same where the font is missing
}


def write_figure(
    chart: LineChart | Bars | Sequence[LineChart],
    path: Path,
    *,
    width: float | None = None,
    height: float | None = None,
    title: str = "",
) -> None:
    """Draw into a file; its suffix is the format. Size in inches. Several charts are small ones, side by side, below
    a title."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise UsageError(f"cannot write a plot to {path.name!r}", "end the name in " + ", ".join(FORMATS))
    charts = [chart] if isinstance(chart, LineChart) else chart
    shown = charts if isinstance(charts, Bars) else [build_shown(each) for each in charts]
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingExtraError("a plot in a file", "plot") from error
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script that the font lacks
        metadata = _METADATA.get(kind)
        with _writing(path) as aside:
            if isinstance(shown, Bars):
                figure = _build_bars(shown, width or 8.0, height)
            elif len(shown) == 1:
                figure = _build_figure(shown[0], width or 8.0, height or 4.5)
            else:
                figure = _build_grid(shown, title, width, height)
            figure.savefig(aside, format=kind, dpi=150, metadata=metadata)


def write_pages(charts: Sequence[LineChart], path: Path) -> None:
    """Write a PDF with one chart to a page; every y axis begins at zero."""
    shown = [build_shown(chart) for chart in charts]
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_pdf import PdfPages
    except ImportError as error:
        raise MissingExtraError("a plot in a file", "plot") from error
    with mpl.rc_context(_STYLE), _writing(path) as aside, PdfPages(aside, metadata=_METADATA["pdf"]) as pages:
        for chart in shown:
            figure = _build_figure(chart, 8.0, 4.5)
            figure.axes[0].set_ylim(bottom=0)
            pages.savefig(figure)


@contextmanager
def _writing(path: Path) -> Iterator[str]:
    """Written aside and renamed: a page that shows the plot never sees half of it."""
    try:
        with replacing(str(path), suffix=path.suffix) as aside:
            yield aside
    except OSError as error:
        raise InfrastructureError(f"cannot write {str(path)!r}: {error.strerror}") from error


def _build_figure(chart: LineChart, width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    artists = _draw_chart(axes, chart)
    if chart.shades is not None:
        _add_color_bar(figure, axes, chart.shades)
    elif any(line.look != "line" for line in chart.lines) or len(chart.lines) > _LABELLED:
        columns = -(-len(chart.lines) // _LEGEND_ROWS)
        size = 6 if len(chart.lines) > _LEGIBLE else 8
        labels = [" " + _label(line) for line in chart.lines]  # matplotlib leaves out names that begin with _
        figure.legend(artists, labels, loc="outside right upper", fontsize=size, ncols=columns, frameon=False)
    elif len(chart.lines) > 1:
        _label_ends(axes, chart)
    else:
        axes.set_title(_label(chart.lines[0]), loc="right", fontsize=9, color=_color(number_lines(chart.lines)[0][0]))
    return figure


def _build_grid(charts: Sequence[LineChart], title: str, width: float | None, height: float | None) -> Figure:
    """Small charts in rows; the legend of the first one holds for all."""
    from matplotlib.figure import Figure

    columns = min(3, len(charts))
    rows = -(-len(charts) // columns)
    figure = Figure(figsize=(width or 3.6 * columns, height or 2.9 * rows), layout="constrained")
    first: dict[str, Any] = {}
    for number, chart in enumerate(charts):
        axes = figure.add_subplot(rows, columns, number + 1)
        artists = _draw_chart(axes, replace(chart, title="", y_name=chart.y_name if number % columns == 0 else ""))
        first.update({line.label: artist for line, artist in zip(chart.lines, artists, strict=True)})
    if len(first) > 1:
        labels = [" " + _as_it_is(label) for label in first]
        figure.legend([*first.values()], labels, loc="outside lower left", fontsize=8, ncols=6, frameon=False)
    figure.suptitle(_as_it_is(title), x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure


def _build_bars(bars: Bars, width: float, height: float | None) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height or 0.8 + 0.3 * len(bars.items)), layout="constrained")
    axes = figure.add_subplot()
    drawn = axes.barh([_as_it_is(formatting.shorten(label, 40)) for label, _ in bars.items],
                      [value for _, value in bars.items], color=_color(0), height=0.7)  # fmt: skip
    axes.bar_label(drawn, [formatting.render_number(value, 2) for _, value in bars.items], padding=4, fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.tick_params(left=False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title(_as_it_is(bars.label), loc="left", fontweight="bold")
    return figure


def _draw_chart(axes: Axes, chart: LineChart) -> list[Any]:
    """What was drawn for each line, for the legend."""
    axes.set_yscale(chart.scale)
    axes.set_xscale(chart.x_scale)
    artists = []
    for index, (number, line) in enumerate(number_lines(chart.lines)):
        kind = sum(each.look == line.look for each in chart.lines[:index])  # points of each line have their own shape
        drawn = _draw_points(axes, line, number, kind) if line.look != "line" else None
        artists.append(drawn or _draw_line(axes, line, number, len(chart.lines), chart.scale))
    _dress(axes, chart)
    if chart.axes:
        _dress_parallel(axes, chart.axes)
    return artists


def _shade_color(shade: float) -> Any:
    """Dark is good: the light end of the scale would not be seen on white."""
    from matplotlib import colormaps

    return colormaps["viridis_r"](0.1 + 0.9 * shade)


def _add_color_bar(figure: Figure, axes: Axes, shades: tuple[str, str, str]) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap

    name, worst, best = map(_as_it_is, shades)
    scale = ListedColormap([_shade_color(part / 255) for part in range(256)])
    bar = figure.colorbar(ScalarMappable(cmap=scale), ax=axes, ticks=[0, 1], pad=0.02, aspect=30)
    bar.ax.set_yticklabels([worst, best])
    bar.set_label(name)


def _color(number: int) -> str:
    return _COLORS[number % len(_COLORS)]


def _label(line: Line) -> str:
    return _as_it_is(f"{formatting.shorten(formatting.clean(line.label), 40)}  {render_end_value(line)}")


def _as_it_is(text: str) -> str:
    """What matplotlib would take for a formula is text."""
    return formatting.clean(text).replace("$", r"\$")


def _choose_alpha(line: Line, total: int) -> float:
    """How opaque a line is: of very many lines only the good ones are strong."""
    if line.shade is None:
        return 0.6 if total > _LABELLED else 1.0
    faint = min(0.8, 60 / total)
    return faint + (0.9 - faint) * line.shade**6


def _draw_line(axes: Axes, line: Line, number: int, total: int, scale: Scale) -> Any:
    cycle = number // len(_COLORS)  # beyond the palette's length, dash and marker distinguish lines of the same colour
    marker = _MARKERS[cycle // len(_DASHES) % len(_MARKERS)]
    if line.raw:
        axes.plot(*thin_line(line.xs, line.raw, _MOST_POINTS), color=_color(number), linewidth=0.8, alpha=0.25)
    lonely = sum(map(math.isfinite, line.ys)) == 1
    xs, ys = thin_line(line.xs, line.ys, _MOST_POINTS)
    (artist,) = axes.plot(
        xs,
        ys,
        color=_color(number) if line.shade is None else _shade_color(line.shade),
        linewidth=1.0 if total > _LABELLED else 1.6,
        alpha=_choose_alpha(line, total),
        linestyle=_DASHES[cycle % len(_DASHES)] if line.shade is None else "-",
        marker=marker if marker and line.shade is None else "o" if lonely else "",
        markevery=max(1, len(xs) // 8),
        markersize=4,
    )
    if line.spread:
        lower, upper = build_band_edges(line, scale)
        axes.fill_between(line.xs, lower, upper, color=_color(number), alpha=0.18, linewidth=0)
    return artist


def _draw_points(axes: Axes, line: Line, number: int, kind: int) -> Any:
    color = _color(number) if line.shade is None else _shade_color(line.shade)
    is_cross = line.look == "crosses"
    size = 22 if len(line.xs) < 200 else 12
    marker = "x" if is_cross else _POINTS[kind % len(_POINTS)]
    edge: dict[str, Any] = {"linewidths": 1.2} if is_cross else {"edgecolors": "white", "linewidths": 0.4}
    return axes.scatter(line.xs, line.ys, s=size, color=color, marker=marker, alpha=0.9, zorder=3, **edge)


def _dress_parallel(axes: Axes, uprights: Sequence[Axis]) -> None:
    """An upright line with its own numbers for each parameter; nothing else is measured here."""
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(bottom=False)
    longest = 56 // len(uprights) + 6
    names = [_as_it_is(formatting.shorten(formatting.clean(axis.name), longest)) for axis in uprights]
    axes.set_xticks(range(len(uprights)), names, fontsize=9, fontweight="bold")
    for index, axis in enumerate(uprights):
        axes.plot([index, index], [0, 1], color="#4d4d4d", linewidth=1, zorder=3)
        for place, text in axis.ticks:
            axes.plot([index - 0.012 * len(uprights), index], [place, place], color="#4d4d4d", linewidth=1, zorder=3)
            label = _as_it_is(formatting.shorten(formatting.clean(text), longest))
            box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.8}
            left = index - 0.018 * len(uprights)
            axes.text(left, place, label, fontsize=8, ha="right", va="center", bbox=box, zorder=4)


def _dress(axes: Axes, chart: LineChart) -> None:
    from matplotlib.ticker import MaxNLocator

    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(visible=True, alpha=0.25, linewidth=0.6)
    axes.margins(x=0.01 if all(line.look == "line" for line in chart.lines) else 0.05)
    if chart.x_ticks:
        _name_x_ticks(axes, chart.x_ticks)
    elif chart.x_marks:
        axes.set_xticks(chart.x_marks, [formatting.render_number(mark) for mark in chart.x_marks])
        axes.minorticks_off()
    elif chart.x_scale == "log":  # matplotlib's own names of ticks within a decade cover each other
        low, high = axes.get_xlim()
        ticks = render_log_ticks(build_log_ticks(low, high, 6))
        axes.set_xticks([value for value, _ in ticks], [text for _, text in ticks])
        axes.minorticks_off()
    axes.set_xlabel(_as_it_is(chart.x_name))
    axes.set_ylabel(_as_it_is(chart.y_name))
    values: list[tuple[Any, list[float]]] = [(axes.yaxis, [y for line in chart.lines for y in line.ys])]
    if not chart.x_ticks and not chart.x_marks:
        values.append((axes.xaxis, [x for line in chart.lines for x in line.xs]))
    for axis, numbers in values:
        locator = axis.get_major_locator()
        is_whole = all(float(number).is_integer() for number in numbers if math.isfinite(number))
        if (
            isinstance(locator, MaxNLocator) and is_whole and not chart.axes
        ):  # counts have nothing between; a logarithmic axis has another
            locator.set_params(integer=True)
    if chart.title:
        axes.set_title(_as_it_is(chart.title), loc="left", fontweight="bold")


def _name_x_ticks(axes: Axes, ticks: Sequence[tuple[float, str]]) -> None:
    """Names below the x axis; of very many categories only some have one."""
    axes.set_xlim(-0.5, len(ticks) - 0.5)
    shown = ticks[:: -(-len(ticks) // _MOST_NAMES)]
    names = [_as_it_is(formatting.shorten(formatting.clean(name), 20)) for _, name in shown]
    is_long = sum(map(len, names)) > 40
    turn: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if is_long else {}
    axes.set_xticks([value for value, _ in shown], names, fontsize=8, **turn)


def _label_ends(axes: Axes, chart: LineChart) -> None:
    """Names beside the ends of their lines, moved apart so that none covers another."""
    to_axes = axes.transScale + axes.transLimits
    axes.autoscale_view()
    drawn = [(number, line) for number, line in number_lines(chart.lines) if math.isfinite(last_value(line))]
    heights = [float(to_axes.transform((1.0, last_value(line)))[1]) for _, line in drawn]
    for (number, line), height in zip(drawn, spread_apart(heights, 0.058), strict=True):
        where = axes.transAxes
        axes.text(1.01, height, _label(line), color=_color(number), fontsize=9, va="center", transform=where)


def spread_apart(heights: Sequence[float], gap: float) -> list[float]:
    """Move heights in 0…1 as little as needed so that neighbours are `gap` apart; the order stays."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    room = min(gap, 1.0 / max(1, len(heights) - 1))
    placed = [0.0] * len(heights)
    lowest = 0.0
    for index in order:
        placed[index] = lowest = max(heights[index], lowest)
        lowest += room
    highest = 1.0
    for index in reversed(order):
        placed[index] = min(placed[index], highest)
        highest = placed[index] - room
    return placed
