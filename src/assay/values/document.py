"""A report as a value. A product builds a `Document`; the renderers of `show` depend only on documents.

How a product builds a document (`golden/report/document.py` is a full example):

    Document(
        title="FAIL charlm.yaml",                       # of the HTML page
        blocks=(
            Heading("charlm", kind, level=2),           # pages and Markdown; a terminal shows no headings
            Section((TableBlock(table),)),              # sections have a blank line between them on a terminal
            Section((Findings(findings), Notes(warnings), Text(("charlm: ", Span("FAIL", "FAIL"), ", 3 segments")))),
            Only(("html",), (Chart(...), Details("Provenance", (Facts(pairs),)))),
        ),
        suites=(Suite("charlm", cases),),               # for JUnit
        facts={...},                                    # for JSON, unchanged
    )

Renderers: `show.terminal_report.render_terminal(document, width=, color=, plain=)`, `show.markdown.render_markdown`,
`show.html.render_html`, `show.junit.render_junit`, `show.formatting.render_facts`. Renderers clean and escape all
texts: a builder passes raw text of users' files, logs and programs, and never markup or colours.

If formats must differ, the builder uses `Only`; a renderer never distinguishes products.

Text is a `str`, a `Span` (a str with a role), or a tuple of both. Roles: a verdict kind or a state of a run (shown by
its colour, or as a badge), `code` (to be copied), `strong`, `soft` (less important). Cells of tables are plain values
or spans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from assay.system.fast_dataclasses import dataclass
from assay.values.table import Table
from assay.values.verdict import Finding, VerdictKind

Format = Literal["terminal", "markdown", "html"]


class Span:
    """A text and its role. A span is not a tuple: it differs from a tuple of texts, and can be in a cell of a table."""

    __slots__ = ("role", "text")

    def __init__(self, text: str, role: str = "") -> None:
        self.text = text
        self.role = role

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Span({self.text!r}, {self.role!r})"


Content: TypeAlias = str | Span | tuple[str | Span, ...]


def build_spans(content: Content) -> tuple[Span, ...]:
    parts = content if isinstance(content, tuple) else (content,)
    return tuple(Span(part) if isinstance(part, str) else part for part in parts)


def build_plain(content: Content) -> str:
    return "".join(span.text for span in build_spans(content))


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of the page (level 1) or of a part, with its verdict; `word` replaces the verdict's name."""

    text: str
    kind: VerdictKind | None = None
    level: int = 2
    word: str = ""
    note: str = ""  # less important text after the title


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph. `indent`: its indentation on a terminal."""

    content: Content
    indent: int = 0
    role: str = ""  # "soft", or "answer": the main sentence of the report


@dataclass(frozen=True, slots=True)
class Notes:
    """A list of notes; each is an item on a page, and a line on a terminal."""

    items: Sequence[Content]


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings in the given order; at most `most` are shown, then the number of the others."""

    items: Sequence[Finding]
    most: int = 20


@dataclass(frozen=True, slots=True)
class Facts:
    """Labels and values. `folds`: False for values to be copied, which only the terminal itself may break."""

    pairs: Sequence[tuple[str, str]]
    folds: bool = True


@dataclass(frozen=True, slots=True)
class TableBlock:
    """A table. `notes`: texts below each row on a page. `roles`: for each row a verdict kind, or ""; a second word
    `first` marks the most important row. `breaks`: index of a row → a line before it (for rows that were left out).

    On a narrow terminal columns get their short names, then those of the highest rank are dropped, and `hint` names
    where they are shown. With `split_by` (a column's name) there is instead one table for each value of that column;
    with `numbers_names` long names in the first column are replaced by numbers, and listed below the table.
    """

    table: Table
    notes: Sequence[Sequence[Content]] = ()
    roles: Sequence[str] = ()
    breaks: Mapping[int, str] | None = None
    hint: str = ""
    split_by: str = ""
    numbers_names: bool = False


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands to be pasted, with a description of each."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Code:
    """Output of a program, or one long command (`wraps`); line breaks are kept."""

    text: str
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks that belong together, below an optional title."""

    blocks: Sequence[Block]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that a page and Markdown fold under a title; a terminal shows all of them."""

    title: Content
    blocks: Sequence[Block]
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Only:
    """Blocks only for these formats."""

    formats: Sequence[Format]
    blocks: Sequence[Block]


Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """Points by rising x; a point that is not finite is a gap. `style` is a class of the style sheet. A terminal draws
    only curves with a name; of several with the same name it draws mean and standard deviation. `texts` are shown by
    the mouse at each point, or a single text for the line; with them, no point is left out."""

    points: Sequence[Point]
    style: str
    line: bool = True
    marker: Literal["", "dot", "cross", "square", "triangle", "diamond"] = ""
    name: str = ""
    texts: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Area:
    """The area between two lines."""

    upper: Sequence[Point]
    lower: Sequence[Point]
    style: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One part of a chart; the parts are above one another and share the x axis."""

    curves: Sequence[Curve] = ()
    areas: Sequence[Area] = ()
    limits: Sequence[tuple[str, float, float]] = ()  # style, from y, to y: horizontal stripes
    y_range: tuple[float, float] | None = None  # None: the range of the points
    ticks: Sequence[tuple[float, str]] | None = None  # None: round numbers
    height: int = 150
    label: str = ""  # label of the y axis
    labels: Sequence[tuple[float, float, str]] = ()  # x, y, and a text to the left of it


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart; a terminal draws its named curves. Over all panels: `spans` (style, from x, to x) and `lines` (x)."""

    title: Content
    panels: Sequence[Panel]
    label: str = ""  # for screen readers
    spans: Sequence[tuple[str, float, float]] = ()
    lines: Sequence[float] = ()
    hovers: Sequence[tuple[float, str]] = ()  # x and the text that the mouse shows there
    x_range: tuple[float, float] | None = None
    x_ticks: Sequence[tuple[float, str]] | None = None  # None: round numbers; long names are slanted
    is_wide: bool = False  # over the whole width of the page
    x_label: str = ""


@dataclass(frozen=True, slots=True)
class Legend:
    """Style, shape and meaning of the parts of charts. Shapes: area, line, wide, dot, dash, cross."""

    keys: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class Bars:
    """A horizontal bar for each label and its number."""

    items: Sequence[tuple[str, float]]
    label: str = ""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Cells by level: the number of the `limits` (at most four) that a value exceeds; infinite ones have the last.
    `levels` are the meanings, from "none of the limits" to "infinite". `lengths`: the numbers of elements that the rows
    and the columns represent, `axes` the numbers of their axes (one or two), `unit` the unit of the values."""

    cells: Sequence[Sequence[float]]
    limits: Sequence[float]
    levels: Sequence[str]
    lengths: tuple[int, int]
    axes: Sequence[int]
    unit: str = ""
    label: str = ""


Block: TypeAlias = (
    Heading | Text | Notes | Findings | Facts | TableBlock | Commands | Code | Section | Details | Only | Chart | Legend
    | Bars | HeatMap
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A test case. `type`: replaces the verdict's name. `excuse`: why a failed case is skipped. `text`: the body."""

    classname: str
    name: str
    kind: VerdictKind
    message: str = ""
    text: str = ""
    seconds: float | None = None
    properties: Sequence[tuple[str, object]] = ()
    type: str = ""
    excuse: str = ""


@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    cases: Sequence[Case]
    properties: Sequence[tuple[str, object]] = ()
    seconds: float | None = None
    output: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    blocks: Sequence[Block]
    suites: Sequence[Suite] = ()
    suites_name: str = ""
    seconds: float | None = None  # the time of all suites
    facts: Any = None


def choose_blocks(blocks: Sequence[Block], form: Format) -> list[Block]:
    """Return the blocks for a format, with `Only` resolved."""
    chosen: list[Block] = []
    for block in blocks:
        if not isinstance(block, Only):
            chosen.append(block)
        elif form in block.formats:
            chosen += choose_blocks(block.blocks, form)
    return chosen
