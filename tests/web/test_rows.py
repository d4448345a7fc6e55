"""Rows of the table of runs are written without a template: everything in them is escaped all the same."""

from __future__ import annotations

from array import array
from html.parser import HTMLParser
from pathlib import Path

from assay.follow.api import StudyLocation
from assay.record.index.base import IndexTable, MetricColumns, RunRow
from assay.values.state import State
from assay.web.pages.page_view import StudyView
from assay.web.pages.study_page import build_table, find_best
from assay.web.rows import escape_texts, render_rows
from assay.web.snapshots import StudySnapshot

HOSTILE = '<script>alert("1")</script>\'&\x1b[31m\nnext'


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_hostile_run_is_text(tmp_path: Path) -> None:
    first = RunRow(f"s/{HOSTILE}", "s", HOSTILE, "1", State.DONE, 1, {"x": HOSTILE, "seed": 1}, tags=(HOSTILE,))
    second = RunRow("s/plain", "s", "plain", "2", State.FAILED, 1, {"x": "ok", "seed": 2})
    study = StudySnapshot("a b", StudyLocation(str(tmp_path), "s"), IndexTable([first, second], {}), 1)
    reader = Reader()
    reader.feed(render_rows(build_table(study, StudyView()), StudyView(), "a b"))
    assert {tag for tag, _ in reader.tags} <= {"tr", "td", "a", "input", "span"}
    assert [values["data-run"] for tag, values in reader.tags if tag == "tr"] == [
        HOSTILE.replace("\x1b", "\\x1b"),
        "plain",
    ]
    assert [values["class"] for tag, values in reader.tags if tag == "span"] == ["badge done", "badge failed"]
    assert all(
        (values["href"] or "").startswith(("/studies/a%20b/runs/", "?")) for tag, values in reader.tags if tag == "a"
    )
    assert "<script>" in reader.text
    assert "\x1b" not in reader.text
    assert len([tag for tag, values in reader.tags if tag == "a" and values.get("class") == "tag"]) == 1


def test_texts_are_escaped_alike_alone_and_together() -> None:
    texts = ["a<b", '"', "'", "&amp;", "", "a b"]
    assert escape_texts(texts) == [escape_texts([text])[0] for text in texts] == [
        "a&lt;b", "&quot;", "&#x27;", "&amp;amp;", "", "a b",
    ]  # fmt: skip
    assert escape_texts(["<\n>", "<"]) == ["&lt;\n&gt;", "&lt;"]
    assert escape_texts([]) == []


def test_an_upload_that_was_not_adopted_is_not_the_best(tmp_path: Path) -> None:
    own, other = (RunRow(f"s/{name}", "s", name, name, State.DONE, 1, {}) for name in ("own", "other"))
    columns = (array("d", [1, 1]), array("d", [0, 0]), *[array("d", [0.5, 0.1])] * 9)
    for received, best in ((None, "other"), ({"how": "upload"}, "own"), ({"how": "upload", "adopted_at": 1}, "other")):
        table = IndexTable([own, other._replace(received=received)], {"loss": MetricColumns("loss", *columns)})
        found = find_best(StudySnapshot("s", StudyLocation(str(tmp_path), "s"), table, 1))
        assert found is not None
        assert found.run == best
