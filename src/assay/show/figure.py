"""The chart as a PNG, SVG or PDF file, by matplotlib."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.errors import InfrastructureError, MissingExtraError, UsageError
from assay.show import formatting
from assay.show.plot import Chart, Line, Scale, build_band_edges, build_shown, last_value, render_end_value
from assay.system.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
# colours that stay apart for colour-blind readers and in grey print (after Okabe and Ito)
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8c6bb1", "#4d4d4d")
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("", "o", "s", "^", "v", "D", "x", "+", "*")
_LABELLED = 14  # more lines than this have their names in a legend, not next to their ends
_LEGEND_ROWS = 28
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "svg.hashsalt": "assay",  # the same chart gives the same file
    "svg.fonttype": "path",  # looks the same where the font is missing
}


def write_figure(chart: Chart, path: Path, *, width: float = 8.0, height: float = 4.5) -> None:
    """Draw into a file; its suffix says the format. Size in inches."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise UsageError(f"cannot write a plot to {path.name!r}", "end the name in " + ", ".join(FORMATS))
    shown = build_shown(chart)
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingExtraError("a plot in a file", "plot") from error
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script that the font lacks
        metadata = {"Date": None} if kind == "svg" else {"CreationDate": None} if kind == "pdf" else None
        with _writing(path) as aside:
            _build_figure(shown, width, height).savefig(aside, format=kind, dpi=150, metadata=metadata)


def write_pages(charts: Sequence[Chart], path: Path, *, width: float = 8.0, height: float = 4.5) -> None:
    """A PDF with one chart to a page; every y axis begins at zero. Size in inches."""
    shown = [build_shown(chart) for chart in charts]
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_pdf import PdfPages
    except ImportError as error:
        raise MissingExtraError("a plot in a file", "plot") from error
    with mpl.rc_context(_STYLE), _writing(path) as aside, PdfPages(aside, metadata={"CreationDate": None}) as pages:
        for chart in shown:
            figure = _build_figure(chart, width, height)
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


def _build_figure(chart: Chart, width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_yscale(chart.scale)
    for number, line in enumerate(chart.lines):
        _draw_line(axes, line, number, len(chart.lines), chart.scale)
    _dress(axes, chart)
    if 1 < len(chart.lines) <= _LABELLED:
        _label_ends(axes, chart)
    elif len(chart.lines) > _LABELLED:
        columns = -(-len(chart.lines) // _LEGEND_ROWS)
        labels = [" " + _label(line) for line in chart.lines]  # matplotlib leaves out names that begin with _
        figure.legend(axes.get_lines(), labels, loc="outside right upper", fontsize=6, ncols=columns, frameon=False)
    else:
        axes.set_title(_label(chart.lines[0]), loc="right", fontsize=9, color=_color(0))
    return figure


def _color(number: int) -> str:
    return _COLORS[number % len(_COLORS)]


def _label(line: Line) -> str:
    return _as_it_is(f"{formatting.shorten(formatting.clean(line.label), 40)}  {render_end_value(line)}")


def _as_it_is(text: str) -> str:
    """What matplotlib would take for a formula is text."""
    return formatting.clean(text).replace("$", r"\$")


def _draw_line(axes: Axes, line: Line, number: int, total: int, scale: Scale) -> None:
    many = total > _LABELLED
    turn = number // len(_COLORS)  # beyond the palette's length, dash and marker tell lines of the same colour apart
    marker = _MARKERS[turn // len(_DASHES) % len(_MARKERS)]
    lonely = sum(map(math.isfinite, line.ys)) == 1
    axes.plot(
        line.xs,
        line.ys,
        color=_color(number),
        linewidth=1.0 if many else 1.6,
        alpha=0.6 if many else 1.0,
        linestyle=_DASHES[turn % len(_DASHES)],
        marker=marker or ("o" if lonely else ""),
        markevery=max(1, len(line.xs) // 8),
        markersize=4,
    )
    if line.spread:
        lower, upper = build_band_edges(line, scale)
        axes.fill_between(line.xs, lower, upper, color=_color(number), alpha=0.18, linewidth=0)


def _dress(axes: Axes, chart: Chart) -> None:
    from matplotlib.ticker import MaxNLocator

    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(visible=True, alpha=0.25, linewidth=0.6)
    axes.margins(x=0.01)
    axes.set_xlabel(_as_it_is(chart.x_name))
    axes.set_ylabel(_as_it_is(chart.y_name))
    locator = axes.yaxis.get_major_locator()
    is_whole = all(float(y).is_integer() for line in chart.lines for y in line.ys if math.isfinite(y))
    if isinstance(locator, MaxNLocator) and is_whole:  # counts have nothing between; a logarithmic axis has another
        locator.set_params(integer=True)
    if chart.title:
        axes.set_title(_as_it_is(chart.title), loc="left", fontweight="bold")


def _label_ends(axes: Axes, chart: Chart) -> None:
    """Names beside the ends of their lines, moved apart so that none covers another."""
    to_axes = axes.transScale + axes.transLimits
    axes.autoscale_view()
    drawn = [(number, line) for number, line in enumerate(chart.lines) if math.isfinite(last_value(line))]
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
