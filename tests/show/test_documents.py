"""One document through every renderer: what each shows, and that no text of a user is obeyed by any format."""

from __future__ import annotations

import math
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from assay.show.html import render_html
from assay.show.junit import render_junit
from assay.show.markdown import render_markdown
from assay.show.terminal_report import render_terminal
from assay.values import document as doc
from assay.values.table import Column, Table
from assay.values.verdict import Finding, VerdictKind

HOSTILE = "<script>alert(1)</script> | `x` \x1b[31m \u202e *b* \x00 & \"'"


def build(*blocks: doc.Block, **further: object) -> doc.Document:
    return doc.Document("a report", blocks, **further)  # type: ignore[arg-type]


def build_table(rows: int = 2) -> Table:
    columns = (Column("segment", "number"), Column("metric"), Column("verdict", "state"), Column("note", rank=1))
    return Table(columns, [[100 * index, "loss", "FAIL" if index else "PASS", None] for index in range(rows)])


def every_block(text: str) -> tuple[doc.Block, ...]:
    finding = Finding(VerdictKind.FAIL, text, text)
    table = Table((Column(text), Column("kind", "state")), [[text, "FAIL"], [doc.Span(text, "ERROR"), None]])
    chart = doc.Chart(
        (text, doc.Span(text, "soft")), (doc.Panel((doc.Curve(((0, 1), (1, 2)), "measured"),)),), hovers=((0, text),)
    )
    return (
        doc.Heading(text, VerdictKind.FAIL, word=text, note=text),
        doc.Text((text, doc.Span(text, "code"), doc.Span(text, "strong"), doc.Span(text, "FAIL")), role="soft"),
        doc.Notes([text, doc.Span(text, "soft")]),
        doc.Findings([finding]),
        doc.Facts([(text, text)]),
        doc.TableBlock(table, notes=[(text,), ()], roles=["FAIL first", ""], breaks={1: text, 2: text}),
        doc.Commands([(text, text)]),
        doc.Code(text),
        doc.Code(text, wraps=True),
        doc.Section((doc.Text(text),), title=text),
        doc.Details(text, (doc.Text(text),)),
        chart,
        doc.Legend([("measured", "line", text)]),
    )


def test_a_page_is_one_file_and_no_text_becomes_markup():
    page = render_html(build(*every_block(HOSTILE)))
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    assert "\x1b" not in page
    assert "\x00" not in page
    assert "\u202e" not in page
    assert "http" not in page
    assert "&lt;script&gt;" in page
    root = ET.fromstring(page[page.index("<main>") : page.index("</main>") + 7].replace("<br>", "<br/>"))
    assert root.find(".//table") is not None


def test_markdown_has_no_markup_of_users():
    text = render_markdown(build(*every_block(HOSTILE)))
    outside = "".join(text.split("```")[::2])
    assert "<script" not in outside.replace("`` <script", "")
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize("color", [False, True])
def test_a_terminal_obeys_no_text(color):
    text = render_terminal(build(*every_block(HOSTILE)), color=color, width=60)
    assert "\x1b[31m \\u202e" not in text
    assert "\u202e" not in text
    assert "\x00" not in text
    assert ("\x1b" in text) == color


def test_junit_takes_any_text():
    suite = doc.Suite(
        HOSTILE, [doc.Case(HOSTILE, HOSTILE, VerdictKind.FAIL, HOSTILE, HOSTILE)], [(HOSTILE, HOSTILE)], 1, HOSTILE
    )
    top = ET.fromstring(render_junit(build(suites=[suite], suites_name=HOSTILE)))
    assert top.find("testsuite/testcase/failure") is not None


def test_sections_have_a_blank_line_between_them_and_empty_ones_leave_nothing():
    document = build(
        doc.Text("above"),
        doc.Section(()),
        doc.Section((doc.Text("one"), doc.Text("two"))),
        doc.Section((doc.Text("three"),), title="Title"),
    )
    assert render_terminal(document) == "above\n\none\ntwo\n\nTitle\n  three\n"


def test_a_finding_is_wrapped_below_itself_and_its_command_stays_whole():
    message = "the loss is far from the recording: assay golden show store --no-plot --metric loss\nsecond line"
    text = render_terminal(build(doc.Findings([Finding(VerdictKind.FAIL, "loss", message)])), width=40)
    assert text.splitlines() == [
        "FAIL loss: the loss is far from the",
        "  recording:",
        "  assay golden show store --no-plot --metric loss",
        "  second line",
    ]


def test_more_findings_than_are_shown_are_counted():
    found = [Finding(VerdictKind.FAIL, str(index), "bad") for index in range(5)]
    assert render_terminal(build(doc.Findings(found, most=3))).splitlines()[-1] == "and 2 more"
    assert "- and 2 more" in render_markdown(build(doc.Findings(found, most=3)))
    assert "and 2 more" in render_html(build(doc.Findings(found, most=3)))


def test_a_painted_span_is_found_after_wrapping():
    text = render_terminal(
        build(doc.Text(("one two three ", doc.Span("four five", "FAIL"), " six"))), width=20, color=True
    )
    assert text == "one two three \x1b[1m\x1b[31mfour\n  five\x1b[0m six\n"


def test_columns_that_do_not_fit_are_named():
    table = Table(
        (Column("name", short="n"), *(Column(f"figure_{index}", rank=index, cut="never") for index in range(1, 4))),
        [["abc", *(["1234567890"] * 3)]],
    )
    text = render_terminal(build(doc.TableBlock(table, hint="--json has them")), width=30)
    assert "(no room here for figure_3: --json has them)" in " ".join(text.split())
    assert text.startswith("n ")


def test_a_table_is_split_where_its_names_leave_no_room():
    columns = (Column("benchmark", rank=1), Column("wall_time", cut="never"))
    table = Table(columns, [["a" * 30, "1.234567890 s"], ["b" * 30, "2.345678901 s"]])
    lines = render_terminal(build(doc.TableBlock(table, split_by="benchmark")), width=24).splitlines()
    assert [line[:1] for line in lines if line[-1:] in "ab"] == ["…", "…"]
    assert sum("wall_time" in line for line in lines) == 2


def test_rows_that_were_left_out_are_said():
    text = render_terminal(build(doc.TableBlock(build_table(2), breaks={1: "12 more", 2: "all else"})))
    assert [line for line in text.splitlines() if line in ("12 more", "all else")] == ["12 more", "all else"]
    assert text.splitlines()[3] == "12 more"


def test_only_is_for_its_formats():
    document = build(doc.Only(("html",), (doc.Text("page"),)), doc.Only(("terminal", "markdown"), (doc.Text("lines"),)))
    assert render_terminal(document) == "lines\n"
    assert render_markdown(document) == "lines\n"
    assert "page" in render_html(document)
    assert "lines" not in render_html(document)


def test_a_heading_has_its_verdict():
    document = build(doc.Heading("charlm", VerdictKind.PASS, word="recorded"), doc.Heading("later", level=3))
    assert render_markdown(document) == "## ✅ charlm: recorded\n\n### later\n"
    assert '<h2>charlm <span class="badge PASS">recorded</span></h2>' in render_html(document)
    assert render_terminal(document) == ""


def test_a_page_has_badges_in_tables_and_notes_below_rows():
    page = render_html(build(doc.TableBlock(build_table(), notes=[(), ("because",)], roles=["", "FAIL"])))
    assert '<span class="badge FAIL">FAIL</span>' in page
    assert '<tr class="why FAIL"><td colspan="4"><div>because</div></td></tr>' in page


def test_charts_that_follow_each_other_share_a_grid():
    chart = doc.Chart("loss", (doc.Panel((doc.Curve(((0, 1), (1, 2)), "measured"),)),))
    page = render_html(build(chart, chart, doc.Text("between"), chart))
    assert page.count('<div class="charts">') == 2
    assert page.count("<svg ") == 3


def test_a_chart_draws_bands_marks_and_hovers():
    points = [(float(step), 1.0 + step) for step in range(4)]
    panel = doc.Panel(
        (doc.Curve(points, "measured", marker="dot"),),
        (doc.Area(points, points, "band"),),
        limits=(("tolerance", 1.5, 2.5),),
    )
    page = render_html(
        build(doc.Chart("c", (panel, panel), spans=(("fail", 1, 2),), lines=(3,), hovers=((0, "a\nb"),)))
    )
    for part in (
        *(f'class="{name}"' for name in ("band", "tolerance", "fail", "first")),
        "<title>a\nb</title>",
        "<circle",
    ):
        assert part in page


def test_a_chart_without_finite_values_says_so():
    page = render_html(build(doc.Chart("c", (doc.Panel((doc.Curve(((0, math.nan), (1, math.inf)), "measured"),)),))))
    assert "no finite values" in page


def test_junit_counts_by_kind_and_takes_an_excuse():
    kinds = [*VerdictKind, VerdictKind.CHANGED]
    cases = [doc.Case("c", str(index), kind, "why") for index, kind in enumerate(kinds)]
    cases[-1] = doc.Case("c", "5", VerdictKind.CHANGED, "why", excuse="CHANGED, allowed")
    top = ET.fromstring(render_junit(build(suites=[doc.Suite("s", cases)], suites_name="all")))
    counts = {name: top.get(name) for name in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {"tests": "6", "failures": "2", "errors": "1", "skipped": "2", "time": None}
    skipped = [each.get("message") for each in top.iter("skipped")]
    assert skipped == ["INCONCLUSIVE: why", "CHANGED, allowed: why"]


def test_lines_of_a_finding_stay_apart_in_markdown():
    found = Finding(VerdictKind.FAIL, "loss", "+2% in steps 1 to 9\n  begins at step 3")
    assert render_markdown(build(doc.Findings([found]))) == "- **FAIL** loss: +2% in steps 1 to 9; begins at step 3\n"


def test_long_names_become_numbers_where_there_is_no_room():
    table = Table((Column("fault"), Column("result")), [["none", "control"], ["x" * 50, "caught"]])
    block = doc.TableBlock(table, numbers_names=True)
    lines = render_terminal(build(block), width=30).splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["none", "#1"]
    assert lines[4:] == ["", "#1", "    " + "x" * 50]
    assert "#1" not in render_terminal(build(block), width=80)


def render_sections(*sections: doc.Section, **look: Any) -> str:
    return render_terminal(doc.Document("", sections), **look)


def build_facts(pairs: list[tuple[str, str]], title: str = "H", **further: bool) -> doc.Section:
    return doc.Section((doc.Facts(pairs, **further),), title)


def test_headings_facts_tables_and_lines() -> None:
    table = Table((Column("a"),), [["1"]])
    blocks = (doc.Facts([("long", "1"), ("b", "2")]), doc.TableBlock(table), doc.Notes(["line"]))
    text = render_sections(build_facts([("run", "x")], ""), doc.Section(blocks, "Head"))
    assert text == "run  x\n\nHead\n  long  1\n  b     2\n  a\n  ─\n  1\n  line\n"


def test_empty_sections_are_left_out() -> None:
    assert render_sections(doc.Section((), "A"), doc.Section((doc.TableBlock(Table((Column("a"),), [])),), "B")) == ""


def test_long_values_are_folded_under_themselves() -> None:
    text = render_sections(build_facts([("key", "word " * 20)]), width=40)
    lines = text.splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert all(line.startswith(" " * 7) for line in lines[2:])
    assert " ".join(text.split()).count("word") == 20


def test_a_long_word_is_not_broken() -> None:
    path = "/some/where/" + "x" * 60
    assert path in render_sections(build_facts([("key", f"in {path} it lies")]), width=40)


def test_values_to_be_copied_stay_whole() -> None:
    assert len(render_sections(build_facts([("key", "word " * 20)], folds=False), width=40).splitlines()) == 2


def test_colours_are_around_labels_only() -> None:
    text = render_sections(build_facts([("k", "v")]), color=True)
    assert "\x1b[1mH\x1b[0m" in text
    assert text.endswith("  v\n")
