"""Facts under headings."""

from __future__ import annotations

from typing import Any

import pytest

from assay.show import formatting
from assay.show.terminal_report import fold, render_terminal
from assay.study.run_description import render_moment
from assay.values.document import Document, Facts, Notes, Section, TableBlock
from assay.values.table import Column, Table


def render_sections(*sections: Section, **look: Any) -> str:
    return render_terminal(Document("", sections), **look)


def build(pairs: list[tuple[str, str]], title: str = "H", **further: bool) -> Section:
    return Section((Facts(pairs, **further),), title)


def test_headings_facts_tables_and_lines() -> None:
    table = Table((Column("a"),), [["1"]])
    blocks = (Facts([("long", "1"), ("b", "2")]), TableBlock(table), Notes(["line"]))
    text = render_sections(build([("run", "x")], ""), Section(blocks, "Head"))
    assert text == "run  x\n\nHead\n  long  1\n  b     2\n  a\n  ─\n  1\n  line\n"


def test_empty_sections_are_left_out() -> None:
    assert render_sections(Section((), "A"), Section((TableBlock(Table((Column("a"),), [])),), "B")) == ""


def test_long_values_are_folded_under_themselves() -> None:
    text = render_sections(build([("key", "word " * 20)]), width=40)
    lines = text.splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert all(line.startswith(" " * 7) for line in lines[2:])
    assert " ".join(text.split()).count("word") == 20


def test_a_long_word_is_not_broken() -> None:
    path = "/some/where/" + "x" * 60
    assert path in render_sections(build([("key", f"in {path} it lies")]), width=40)


def test_values_to_be_copied_stay_whole() -> None:
    assert len(render_sections(build([("key", "word " * 20)], folds=False), width=40).splitlines()) == 2


def test_what_would_spoil_the_terminal_is_escaped() -> None:
    assert fold("a\x1b[31mb\nc", None) == ["a\\x1b[31mb", "c"]


def test_colours_are_around_labels_only() -> None:
    text = render_sections(build([("k", "v")]), color=True)
    assert "\x1b[1mH\x1b[0m" in text
    assert text.endswith("  v\n")


@pytest.mark.parametrize(("age", "said"), [(0, "just now"), (3600, "1 h ago")])
def test_moments(age: float, said: str) -> None:
    assert render_moment(1e9, 1e9 + age).endswith(f"({said})")
    assert render_moment(None, 1e9) == "-"
    assert formatting.render_age(age) == said


@pytest.mark.parametrize("seconds", [1e308, -1e308, 1e15, float("inf"), float("nan")])
def test_a_time_that_no_calendar_has_is_shown_as_such(seconds: float) -> None:
    assert render_moment(seconds, now=0.0) == "an impossible time"
