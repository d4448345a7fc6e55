"""Renders a document as Markdown, for a comment on a pull request or the summary page of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from assay.show import formatting
from assay.show.formatting import escape_markdown as _text
from assay.show.table import render_markdown as render_table
from assay.values import document as doc
from assay.values.verdict import VerdictKind

_MARKS = {VerdictKind.PASS: "✅", VerdictKind.FAIL: "❌", VerdictKind.ERROR: "❌"}
_STRONG = {"strong", *VerdictKind}


def render_markdown(document: doc.Document) -> str:
    return "\n\n".join(_render_blocks(document.blocks)) + "\n"


def _render_blocks(blocks: Sequence[doc.Block]) -> Iterator[str]:
    for block in doc.choose_blocks(blocks, "markdown"):
        if type(block) in _RENDERERS:
            text = _RENDERERS[type(block)](block)
            if text:
                yield text


def _render_heading(block: doc.Heading) -> str:
    sign = "#" * block.level
    if block.kind is None:
        return f"{sign} {_text(block.text)}"
    return f"{sign} {_MARKS.get(block.kind, '⚠️')} {_text(block.text)}: {_text(block.word or str(block.kind))}"


def _render_content(content: doc.Content) -> str:
    """Render the spans as one text. Blanks at the ends of a span stay: they separate it from its neighbours."""
    return "".join(_render_span(span) for span in doc.build_spans(content)).strip()


def _render_span(span: doc.Span) -> str:
    head = " " * (len(span.text) - len(span.text.lstrip())) if span.text.strip() else span.text
    tail = " " * (len(span.text) - len(span.text.rstrip())) if span.text.strip() else ""
    if span.role == "code":
        return f"{head}{_quote(span.text.strip())}{tail}"
    inner = _text(span.text)
    return f"{head}**{inner}**{tail}" if span.role in _STRONG and inner else f"{head}{inner}{tail}"


def _quote(text: str) -> str:
    ticks = "`"
    while ticks in text:
        ticks += "`"
    padding = " " if len(ticks) > 1 else ""
    return f"{ticks}{padding}{formatting.clean(text)}{padding}{ticks}"


def _render_findings(block: doc.Findings) -> str:
    lines = []
    for each in block.items[: block.most]:  # the lines of a message are joined: each item is one line
        message = "; ".join(line.strip().rstrip(";") for line in each.message.splitlines() if line.strip())
        lines.append(f"- **{each.kind}** {_text(each.subject) + ': ' if each.subject else ''}{_text(message)}")
    more = len(block.items) - block.most
    return "\n".join([*lines, *([f"- and {more} more"] if more > 0 else [])])


def _render_table(block: doc.TableBlock) -> str:
    if not block.table.rows:
        return ""
    after = [_text(text) for text in (block.breaks or {}).values()]
    return "\n\n".join([render_table(block.table).rstrip("\n"), *after])


def _render_section(block: doc.Section) -> str:
    inner = list(_render_blocks(block.blocks))
    title = [f"### {_text(block.title)}"] if block.title and inner else []
    return "\n\n".join([*title, *inner])


def _render_details(block: doc.Details) -> str:
    """Render details; the title is inside of HTML, where Markdown does not apply."""
    opened = " open" if block.is_open else ""
    inner = "\n\n".join(_render_blocks(block.blocks))
    texts = [(formatting.escape_html(formatting.clean(span.text)), span.role) for span in doc.build_spans(block.title)]
    title = "".join(f"<b>{text}</b>" if role in _STRONG else text for text, role in texts)
    return f"<details{opened}><summary>{title}</summary>\n\n{inner}\n\n</details>"


def _fence(text: str, language: str = "") -> str:
    """Render a block of code with fences that are longer than any row of backticks inside."""
    ticks = "```"
    while ticks in text:
        ticks += "`"
    return f"{ticks}{language}\n{formatting.clean_lines(text)}\n{ticks}"


def _render_commands(block: doc.Commands) -> str:
    lines = [line for what, command in block.items for line in ([f"# {what}", command] if what else [command])]
    return _fence("\n".join(map(formatting.clean, lines)), "sh") if lines else ""


_RENDERERS: dict[type, Callable[[Any], str]] = {
    doc.Heading: _render_heading,
    doc.Text: lambda block: _render_content(block.content),
    doc.Notes: lambda block: "\n".join(f"- {_render_content(item)}" for item in block.items),
    doc.Findings: _render_findings,
    doc.Facts: lambda block: "\n".join(f"- {_text(label)}: {_text(value)}" for label, value in block.pairs),
    doc.TableBlock: _render_table,
    doc.Commands: _render_commands,
    doc.Code: lambda block: _fence(block.text) if block.text else "",
    doc.Section: _render_section,
    doc.Details: _render_details,
}
