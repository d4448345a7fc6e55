"""Renders the rows of a study's table as HTML without a template, which would take most of the time of a request."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from assay.record.index.base import RunRow
from assay.show.formatting import clean_lines
from assay.show.table import build_texts
from assay.web.pages.page_view import StudyView
from assay.web.pages.study_page import StudyTable, quote_where
from assay.web.routes import quote


def render_rows(built: StudyTable, view: StudyView, slug: str) -> str:
    """Render a row for each run or each group, with a mark and links."""
    table, runs = built.summary.table, () if view.group else built.summary.rows
    columns: list[Sequence[str]] = []
    by_column = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    # usually all values of a column are finite, and then their sum is finite
    sums = [sum([value for value in values if type(value) is float]) for values in by_column]
    of_bad = [not math.isfinite(each) and any(map(_is_bad, by_column[i])) for i, each in enumerate(sums)]
    bad = [any(map(_is_bad, row)) for row in table.rows] if any(of_bad) else [False] * len(table.rows)
    if runs:
        keys, names = escape_texts([run.folder for run in runs]), escape_texts([run.name for run in runs])
        columns.append([_MARK.format(key=key, name=name) for key, name in zip(keys, names, strict=True)])
    else:
        columns.append(["<tr>\n"] * len(table.rows))
    for index, column in enumerate(table.columns):
        values = by_column[index]
        texts = escape_texts([text.strip() for text in build_texts(column, values)])
        kind = ("num" * (column.side == "right"), "name" * (index == 0), "note" * (column.role == "note"))
        opening = f'<td class="{" ".join(filter(None, kind))}">'
        if column.role == "run":
            folder = f"/studies/{quote(slug)}/runs"
            links = [escape(f"{folder}/{quote(run.folder)}") for run in runs]
            texts = [f'<a href="{link}" title="{text}">{text}</a>' for link, text in zip(links, texts, strict=True)]
            texts = [text + _BAD_RUN if is_bad else text for text, is_bad in zip(texts, bad, strict=True)]
        elif index == 0 and view.group:
            texts = [_link_group(view, *pair) for pair in zip(built.members, texts, strict=True)]
        elif column.role == "tags":
            texts = ["".join(_list_tags(run, view)) or text for run, text in zip(runs, texts, strict=True)]
        elif column.kind == "state":
            pairs = zip(values, texts, strict=True)
            texts = [text if value is None else _BADGE.format(text.partition(" ")[0], text) for value, text in pairs]
        if column.kind == "number" and of_bad[index]:
            pairs = zip(values, texts, strict=True)
            texts = [f'<span class="bad">{text}</span>' if _is_bad(value) else text for value, text in pairs]
        columns.append([f"{opening}{text}</td>" for text in texts])
    return "".join(f"{''.join(cells)}\n</tr>\n" for cells in zip(*columns, strict=True))


_BADGE = '<span class="badge {}">{}</span>'
_BAD_RUN = ' <span class="badge bad" title="the last value of a metric is nan or infinite">not finite</span>'


def _is_bad(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


_MARK = """\
<tr data-run="{key}">
<td class="mark"><input type="checkbox" name="run" value="{key}" aria-label="Mark {name}"></td>"""


def escape_texts(texts: Sequence[str]) -> list[str]:
    """Escape texts as a template does, all at once unless a text contains unprintable characters."""
    if not "".join(texts).isprintable():  # a text contains a line end or a control character
        return [escape(clean_lines(text)) for text in texts]
    return escape("\n".join(texts)).split("\n") if texts else []


def _link_group(view: StudyView, members: str, text: str) -> str:
    """Return a link to the runs of a group, or the plain text if `members` is empty: the group has all runs."""
    if not members:
        return text
    address = escape(view.to_query(group=(), where=members))
    return f'<a href="{address}" class="group" title="the runs of this group">{text or "(none)"}</a>'


def _list_tags(run: RunRow, view: StudyView) -> Iterator[str]:
    for tag in run.tags:
        address = view.to_query(where=f"tag == {quote_where(tag)}")
        yield f'<a class="tag" href="{escape(address)}">{escape(clean_lines(tag))}</a>'
