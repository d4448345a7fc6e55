"""Write the charts of a page to a PNG, SVG or PDF file with matplotlib."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.errors import InfrastructureError, MissingExtraError
from assay.plots.plot_document import SHADES, build_blocks
from assay.plots.plotting import Plot
from assay.show import formatting
from assay.show.chart import LineChart
from assay.system.files import replacing
from assay.values import document as doc
from assay.values.layout import PLOT_MARK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
# colours that differ for colour-blind readers and in grey print (after Okabe and Ito): c0, c1, … of the style sheet
_COLORS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"),
    *("#8c6bb1", "#4d4d4d", "#b2182b", "#7a5230", "#6b8e23", "#1b3a8b"),
)
_DASHES = ("-", "--", ":", "-.")  # the styles d0, d1, …
_MARKERS = {"dot": "o", "square": "s", "triangle": "^", "diamond": "D", "cross": "x", "crossed": "x"}
_MANY = 8  # more lines than this are drawn thinner
_LEGIBLE = 14  # the most entries of a legend in normal size
_LEGEND_ROWS = 28
_MOST_NAMES = 30  # most categories of an axis that are labelled
_METADATA: dict[str, dict[str, str | None]] = {  # without a date, so that equal curves give equal files
    "png": {"Software": PLOT_MARK},
    "svg": {"Date": None, "Creator": PLOT_MARK},
    "pdf": {"CreationDate": None, "Creator": PLOT_MARK},
}
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "svg.hashsalt": "assay",  # equal charts give equal files
    "svg.fonttype": "path",  # texts look the same if a viewer lacks the font
}


def write_figure(
    chart: LineChart | doc.Bars | tuple[LineChart, ...],
    path: Path,
    *,
    width: float | None = None,
    height: float | None = None,
    title: str = "",
) -> None:
    """Draw a chart into a file, whose suffix is one of FORMATS. Sizes are in inches. Several charts are drawn small,
    next to each other below the title."""
    kind = path.suffix.lower().removeprefix(".")
    blocks = [*build_blocks(Plot("", chart, title=title))]
    with _writing(path) as aside:
        figure = _build_figure(blocks, width, height)
        figure.savefig(aside, format=kind, dpi=150, metadata=_METADATA[kind])


def write_pages(charts: Sequence[LineChart], path: Path) -> None:
    """Write a PDF with one chart to a page; every y axis begins at zero."""
    found = [[*build_blocks(Plot("", chart))] for chart in charts]
    with _writing(path) as aside:
        from matplotlib.backends.backend_pdf import PdfPages

        with PdfPages(aside, metadata=_METADATA["pdf"]) as pages:
            for blocks in found:
                figure = _build_figure(blocks)
                figure.axes[0].set_ylim(bottom=0)
                pages.savefig(figure)


@contextmanager
def _writing(path: Path) -> Iterator[str]:
    """Write to a temporary file and rename it, so that a page that shows the plot never reads an incomplete file."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingExtraError("a plot in a file", "plot") from error
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the font lacks the script of a name
        try:
            with replacing(str(path), suffix=path.suffix) as aside:
                yield aside
        except OSError as error:
            raise InfrastructureError(f"cannot write {str(path)!r}: {error.strerror}") from error


def _build_figure(blocks: Sequence[doc.Block], width: float | None = None, height: float | None = None) -> Figure:
    """Build a figure of a page's blocks: bars, or charts in rows, with a title and one legend for all charts."""
    from matplotlib.figure import Figure

    charts = [block for block in blocks if isinstance(block, doc.Chart)]
    bars = [block for block in blocks if isinstance(block, doc.Bars)]
    columns = min(3, len(charts)) or 1
    rows = -(-len(charts) // columns) or 1
    size = (3.6 * columns, 2.9 * rows) if len(charts) > 1 else (8.0, 0.8 + 0.3 * len(bars[0].items) if bars else 4.5)
    figure = Figure(figsize=(width or size[0], height or size[1]), layout="constrained")
    for each in bars:
        _draw_bars(figure.add_subplot(), each)
    for number, chart in enumerate(charts):
        _draw_chart(figure.add_subplot(rows, columns, number + 1), chart, has_y_name=number % columns == 0)
    for text in (block for block in blocks if isinstance(block, doc.Text)):
        figure.suptitle(_as_it_is(text.content), x=0.01, ha="left", fontsize=12, fontweight="bold")
    for legend in (block for block in blocks if isinstance(block, doc.Legend)):
        _add_legend(figure, legend, is_below=len(charts) > 1)
    return figure


def _add_legend(figure: Figure, legend: doc.Legend, *, is_below: bool) -> None:
    from matplotlib.lines import Line2D

    artists, labels = [], []
    for style, shape, text in legend.keys:
        name = shape.rpartition(" ")[2]
        look = {**_read_style(style), **({"alpha": 0.25} if name == "faint" else {})}
        marker = _MARKERS.get(name, "" if name in ("line", "faint") else "s")
        dash = "none" if marker else look["linestyle"]
        artists.append(Line2D([], [], **{**look, "linestyle": dash}, marker=marker, markersize=5))
        labels.append(f" {_as_it_is(text, 60)}")  # matplotlib leaves out names that begin with _
    columns = 6 if is_below else -(-len(labels) // _LEGEND_ROWS)
    looks: dict[str, Any] = {"fontsize": 6 if len(labels) > _LEGIBLE else 8, "ncols": columns, "frameon": False}
    figure.legend(artists, labels, loc="outside lower left" if is_below else "outside right upper", **looks)


def _draw_bars(axes: Axes, bars: doc.Bars) -> None:
    names, values = [_as_it_is(label, 40) for label, _ in bars.items], [value for _, value in bars.items]
    drawn = axes.barh(names, values, color=_COLORS[0], height=0.7)
    axes.bar_label(drawn, [formatting.render_number(value, 2) for value in values], padding=4, fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.tick_params(left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_chart(axes: Axes, chart: doc.Chart, *, has_y_name: bool) -> None:
    (panel,) = chart.panels
    axes.spines[["top", "right"]].set_visible(False)
    if not panel.labels:
        axes.grid(alpha=0.25, linewidth=0.6)
    for area in panel.areas:
        xs, upper = zip(*area.upper, strict=True)
        color = _read_style(area.style)["color"]
        axes.fill_between(xs, [y for _, y in area.lower], upper, color=color, alpha=0.18, linewidth=0)
    for curve in panel.curves:
        _draw_curve(axes, curve, is_thin=len(panel.curves) > _MANY)
    for x, y, text in panel.labels:  # labels of upright axes
        box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.8}
        left = x - 0.018 * len(chart.x_ticks or ())
        axes.text(left, y, _as_it_is(text, 12), fontsize=8, ha="right", va="center", bbox=box, zorder=4)
    if panel.labels:
        axes.spines[["left", "bottom"]].set_visible(False)
    points = [point for curve in panel.curves for point in curve.points]
    _name_ticks(axes.xaxis, chart.x_ticks, [x for x, _ in points], 70 if chart.is_wide else 30)
    _name_ticks(axes.yaxis, panel.ticks, [y for _, y in points])
    axes.margins(x=0.01)
    axes.set(xlim=chart.x_range, ylim=panel.y_range)
    axes.set_ylabel(_as_it_is(panel.label) if has_y_name else "")
    axes.set_xlabel(_as_it_is(chart.x_label if chart.is_wide else chart.title))
    if chart.is_wide:
        axes.set_title(_as_it_is(chart.title), loc="left", fontweight="bold")


def _draw_curve(axes: Axes, curve: doc.Curve, *, is_thin: bool) -> None:
    xs, ys = zip(*curve.points, strict=True) if curve.points else ((), ())
    look = _read_style(curve.style)
    if curve.line:
        axes.plot(xs, ys, **{**look, **({"linewidth": 1.0} if is_thin else {})})
        return
    dot: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.4}
    edge = {"linewidths": 1.2} if curve.marker == "cross" else dot
    size, marker = 22 if len(xs) < 200 else 12, _MARKERS[curve.marker]
    axes.scatter(xs, ys, s=size, color=look["color"], marker=marker, alpha=0.9, zorder=3, **edge)


def _read_style(style: str) -> dict[str, Any]:
    """Return matplotlib's options for a line with these classes of the style sheet."""
    from matplotlib import colormaps

    names = style.split()
    look: dict[str, Any] = {"color": "#4d4d4d", "linestyle": "-", "linewidth": 1.6, "alpha": 1.0}
    for name in (each for each in names if each[1:].isdigit()):
        number = int(name[1:])
        if name[0] == "c":
            look["color"] = _COLORS[number]
        elif name[0] == "d":
            look["linestyle"] = _DASHES[number]
        else:  # better values are darker; the light end of the scale would be invisible on white
            look["color"] = colormaps["viridis_r"](0.1 + 0.9 * number / (SHADES - 1))
    if "raw" in names:
        return {**look, "linewidth": 0.8, "alpha": 0.25}
    return {**look, "linewidth": 1.0, "alpha": 0.3 if "many" in names else 0.8} if "one" in names else look


def _name_ticks(
    axis: Any, ticks: Sequence[tuple[float, str]] | None, numbers: Iterable[float], room: int = 1000
) -> None:
    """Label the ticks; of many categories only some. `room` is how many characters fit next to each other."""
    from matplotlib.ticker import MaxNLocator

    if ticks is None:  # counts have no ticks between whole numbers
        is_whole = all(float(number).is_integer() for number in numbers if math.isfinite(number))
        axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=is_whole))
        return
    shown = ticks[:: -(-len(ticks) // _MOST_NAMES) or 1]
    names = [_as_it_is(name, 20) for _, name in shown]
    turn: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    axis.set_ticks([value for value, _ in shown], names, **(turn if sum(map(len, names)) > room else {}))


def _as_it_is(content: doc.Content, most: int = 1000) -> str:
    """Return at most `most` characters of a text, with `$` escaped, which matplotlib would interpret as a formula."""
    return formatting.shorten(formatting.clean(doc.build_plain(content)), most).replace("$", r"\$")
