from __future__ import annotations

from tests.golden.report import golden_reports as made

from assay.golden.report.document import build_document
from assay.golden.values import GoldenReport
from assay.show import markdown


def render_markdown(report: GoldenReport) -> str:
    return markdown.render_markdown(build_document(report))


def test_a_pass_is_a_heading_and_a_table():
    text = render_markdown(made.good_report())
    assert text.startswith("## ✅ charlm: PASS\n\n1 segment, 20 values compared in 3.0s\n")
    assert "| 100 | loss | paired | PASS | +0.01% |" in text
    assert "- **" not in text


def test_what_is_bad_is_listed_and_foreign_words_do_no_harm():
    text = render_markdown(made.bad_report())
    assert text.startswith("## ❌ charlm: ERROR\n")
    assert "- **FAIL** segment 100 loss: +2% \\[+1.5%, +2.5%\\] in steps 105 to 110" in text
    assert "exit code 3 &lt;&amp;&gt; \\\\x1b\\[31m\\|boom\\|" in text
    assert "- warning: the golden was recorded on another machine" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1, "every row has the same cells"


def test_a_test_that_could_not_begin():
    assert "**ERROR** golden: there is no golden recording; gather it first" in render_markdown(made.error_report())
