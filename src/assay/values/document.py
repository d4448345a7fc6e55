"""A report as a value. A product builds a `Document`; the renderers of `show` know documents and nothing else.

How a product builds one (`golden/report/document.py` is a full example):

    Document(
        title="FAIL charlm.yaml",                       # of the HTML page
        blocks=(
            Heading("charlm", kind, level=2),           # pages and Markdown; a terminal shows no headings
            Section((TableBlock(table),)),              # sections have a blank line between them on a terminal
            Section((Findings(findings), Notes(warnings), Text(("charlm: ", Span("FAIL", "FAIL"), ", 3 segments")))),
            Only(("html",), (Chart(...), Details("Provenance", (Facts(pairs),)))),
        ),
        suites=(Suite("charlm", cases),),               # what JUnit counts
        facts={...},                                    # what JSON holds, exactly
    )

Renderers: `show.terminal_report.render_terminal(document, width=, color=, plain=)`, `show.markdown.render_markdown`,
`show.html.render_html`, `show.junit.render_junit`, `show.formatting.render_facts`. They clean and escape every text:
a builder hands over raw text of users' files, logs and programs, and never markup or colours.

Where the formats should differ, the builder uses `Only`; a renderer never asks which product it serves.

Text is a `str`, a `Span` (a str with a role), or a tuple of both. Roles: a verdict kind or a state of a run (its
colour, or a badge), `code` (something to copy), `strong`, `soft` (less important). Tables hold plain values, or spans
in cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from assay.system.fast_dataclasses import dataclass
from assay.values.table import Table
from assay.values.verdict import Finding, VerdictKind

Format = Literal["terminal", "markdown", "html"]


class Span:
    """A text and its role. Not a tuple, so that a tuple of texts differs from it, and a cell of a table shows it."""

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


# ---------------------------------------------------------------- blocks


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of the page (level 1) or of a part of it, with its verdict; `word` instead of the verdict's name."""

    text: str
    kind: VerdictKind | None = None
    level: int = 2
    word: str = ""
    note: str = ""  # less important, after it


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph. `indent`: steps to the right on a terminal."""

    content: Content
    indent: int = 0
    role: str = ""  # "soft", "answer": the sentence that the reader came for


@dataclass(frozen=True, slots=True)
class Notes:
    """Notes, one item each: a list on a page, a line on a terminal."""

    items: Sequence[Content]


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found, in the order given; at most `most` are shown, and how many more there are."""

    items: Sequence[Finding]
    most: int = 20


@dataclass(frozen=True, slots=True)
class Facts:
    """Label and value. `folds`: False for values that are copied, which only the terminal itself may break."""

    pairs: Sequence[tuple[str, str]]
    folds: bool = True


@dataclass(frozen=True, slots=True)
class TableBlock:
    """`notes`: for each row what a page shows below it. `roles`: for each row a verdict kind, or "" ; a second word
    `first` marks the row that matters most. `breaks`: index of a row → a line before it (rows that were left out).

    On a narrow terminal columns get their short names, then those of the highest rank leave, and `hint` names where
    they are; with `split_by` (a column's name) there is one table for each value of that column instead, and with
    `numbers_names` long names in the first column become numbers, and are listed below, each whole.
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
    """Commands to be pasted: what each does, and its line."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Code:
    """Output of a program, or one long command (`wraps`); lines stay lines."""

    text: str
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks that belong together, below an optional title."""

    blocks: Sequence[Block]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Details:
    """Folded under its title on a page and in Markdown; a terminal, which cannot fold, shows it all."""

    title: Content
    blocks: Sequence[Block]
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Only:
    """Blocks for these formats alone."""

    formats: Sequence[Format]
    blocks: Sequence[Block]


# ---------------------------------------------------------------- charts

Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """Points by rising x; one that is not finite is a gap. `style` is a class of the style sheet. A terminal draws the
    curves that have a name, and of several with the same name their mean and standard deviation. `texts`: what the
    mouse shows at each point, or a single one for the line; none of the points is then left out."""

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
    """One part of a chart; the parts are above each other and share the x axis."""

    curves: Sequence[Curve] = ()
    areas: Sequence[Area] = ()
    limits: Sequence[tuple[str, float, float]] = ()  # style, from y, to y: stripes over the whole width
    y_range: tuple[float, float] | None = None  # None: what the points need
    ticks: Sequence[tuple[float, str]] | None = None  # None: round numbers
    height: int = 150
    label: str = ""  # of the y axis
    labels: Sequence[tuple[float, float, str]] = ()  # x, y, and a text to the left of it


@dataclass(frozen=True, slots=True)
class Chart:
    """Drawn on a page, and its named curves on a terminal. `spans`: style, from x, to x; `lines`: single x; both over
    all panels."""

    title: Content
    panels: Sequence[Panel]
    label: str = ""  # for readers that cannot see it
    spans: Sequence[tuple[str, float, float]] = ()
    lines: Sequence[float] = ()
    hovers: Sequence[tuple[float, str]] = ()  # x and what the mouse shows there
    x_range: tuple[float, float] | None = None
    x_ticks: Sequence[tuple[float, str]] | None = None  # None: round numbers; long names are slanted
    is_wide: bool = False  # over the whole width of the page
    x_label: str = ""


@dataclass(frozen=True, slots=True)
class Legend:
    """Style, shape and meaning of what charts show. Shapes: area, line, wide, dot, dash, cross."""

    keys: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class Bars:
    """A horizontal bar for each label and its number."""

    items: Sequence[tuple[str, float]]
    label: str = ""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Cells by level: one for each of the `limits` (at most four) that a value exceeds; infinite ones have the last.

    `levels` are their meanings, from "none of the limits" to "infinite". `lengths`: how many elements the rows and
    the columns stand for, `axes` the numbers of their axes (one or two), `unit` the unit of the values.
    """

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


# ---------------------------------------------------------------- what JUnit counts


@dataclass(frozen=True, slots=True)
class Case:
    """`type`: instead of the verdict's name; `excuse`: why it is skipped although it did not pass; `text`: the body."""

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
    seconds: float | None = None  # that all suites took
    facts: Any = None


def choose_blocks(blocks: Sequence[Block], form: Format) -> list[Block]:
    """The blocks of a format, `Only` resolved."""
    chosen: list[Block] = []
    for block in blocks:
        if not isinstance(block, Only):
            chosen.append(block)
        elif form in block.formats:
            chosen += choose_blocks(block.blocks, form)
    return chosen
