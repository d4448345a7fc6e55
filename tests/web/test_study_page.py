"""The pages of studies, against what the commands print."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from starlette.testclient import TestClient
from tests.finished_study import BAD, GOOD, Bench
from tests.plots.test_plot_document import Page as HtmlPage
from tests.web_client import call, copy_bench, open_client

from assay.follow.api import StudyLocation
from assay.record.index.base import IndexTable, MetricColumns, RunRow
from assay.values.state import State
from assay.web.pages.page_view import StudyView
from assay.web.pages.study_page import build_table, find_best
from assay.web.rows import escape_texts, render_rows
from assay.web.snapshots import StudySnapshot


def read_cells(text: str) -> list[list[str]]:
    """The texts of each row, without its box."""
    rows = [re.findall(r"<td.*?</td>", row, re.DOTALL) for row in re.findall(r"<tr.*?>(.*?)</tr>", text, re.DOTALL)]
    return [[re.sub(r"<[^>]+>", "", cell).strip() for cell in row if "checkbox" not in cell] for row in rows]


def read_names(text: str) -> list[str]:
    return [row[0] for row in read_cells(text) if row]


def read_head(text: str) -> list[str]:
    cells = re.findall(r"<th .*?</th>", text.partition('id="runs"')[2], re.DOTALL)
    return [re.sub(r"<[^>]+>|[↑↓]", "", cell).strip() for cell in cells if "checkbox" not in cell]


def find_links(pattern: str, text: str) -> list[str]:
    return [html.unescape(link) for link in re.findall(pattern, text)]


@pytest.fixture
def page(client: TestClient) -> Callable[..., str]:
    """The page of the study, by its query."""
    return lambda query="", **params: client.get(f"/studies/fit{query}", params=params or None).text


Page = Callable[..., str]


def test_the_list_of_studies_and_the_table_of_assay_sum(client: TestClient, served: Bench, page: Page) -> None:
    text = client.get("/studies").text
    assert 'href="/studies/fit"' in text
    assert "2 done, 2 failed" in text
    assert "no study has" in client.get("/studies?q=other").text.lower()
    assert "lr=0.1,n=8" in page("/best")
    text = page()
    rows = json.loads(call(served, "sum", "fit", "--json"))
    assert [row[:2] for row in read_cells(text) if row] == [[row["run"], row["state"]] for row in rows]
    assert BAD in text
    assert '<span class="badge failed">failed</span>' in text
    assert text.count("exit code 1</td>") == 2
    assert "exit code" not in page("?hide=reason")
    assert "reason" not in client.get("/api/studies/fit/table").json()[0]  # as `assay sum --json`
    part = client.get("/studies/fit", headers={"hx-request": "true"}).text
    assert "<html" not in part
    assert GOOD in part


def test_the_advice_of_an_empty_page_works(tmp_path: Path) -> None:
    """What it says is pasted into a shell, in whatever folder; then the page shows a study."""
    root = tmp_path / "it's a root"
    with open_client(root) as client:
        text = client.get("/studies").text
        (command,) = re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", text, re.DOTALL)
        assert "assay demo --serve" in text
        assert "<code>assay demo</code>" not in text  # its runs are not in this root
        paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        command = html.unescape(command)
        argv, env = ["bash", "-c", command], {**os.environ, "PATH": paths}
        answer = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, check=False)
        assert answer.returncode == 0, answer.stderr
    with open_client(root) as client:
        assert "3 done" in client.get("/studies").text
        assert client.get("/api/studies/first/table").json()[0]["loss"] == 1


def test_the_table_is_saved_as_assay_sum_writes_it(client: TestClient, served: Bench, page: Page) -> None:
    """All pages of it, as it is filtered and sorted."""
    for words, query in (
        ((), {}),
        (("--where", "lr == 0.1"), {"where": "lr == 0.1"}),
        (("--sort", "loss:max"), {"sort": "loss:max"}),
        (("--group-by", "n"), {"group": "n"}),
    ):
        (address,) = find_links(r'id="csv" href="([^"]+)"', page(**query))
        answer = client.get(address, params={**query, "rows": 20})
        assert answer.text == call(served, "sum", "fit", "--csv", *words)
        assert answer.headers["content-disposition"] == 'attachment; filename="fit.csv"'
        assert all(f"{name}=" in address for name in query)


def test_sort_filter_states_and_pages(page: Page) -> None:
    assert read_names(page(where="lr < 0.3")) == ["lr=0.1,n=8", "lr=0.1,n=7"]
    every = read_names(page("?sort=n:max"))
    assert [name[-1] for name in every] == ["8", "8", "7", "7"]
    for number in (2, 9):
        assert read_names(page(f"?sort=n:max&rows=3&page={number}")) == every[3:]
    text = page("?states=failed")
    assert read_names(text) == ["lr=0.5,n=7", "lr=0.5,n=8"]
    assert re.search(r'name="states" id="state-failed" value="failed" checked', text)
    assert re.search(r'</i>done <span class="soft">2<', text)
    text = page("?where=n%3D%3D7&states=done,failed")
    assert "compare?where=%28n%3D%3D7%29%20and%20run.state%20in%20%28done%2C%20failed%29" in text


@pytest.mark.needs(search=True)
def test_plots_and_what_cannot_be_drawn(client: TestClient, page: Page) -> None:
    """What the commands call options has the names of the page."""
    for tab in ("scatter", "slices", "parallel", "history"):
        answer = client.get(f"/studies/fit?tab={tab}&metric=loss")
        assert (answer.status_code, "<svg" in answer.text.partition('id="part"')[2]) == (200, True)
    text = page("?tab=importance")
    assert "importance needs 4 finished runs" in text
    assert "choose another metric" in text
    assert "-m" not in text.partition('id="part"')[2].partition("choose another")[2][:40]


def test_parameters_and_colours_of_a_drawing_are_chosen(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more runs than can be drawn the page says how many, and the best are among them."""
    assert page("?tab=slices&metric=loss&params=n").count("<figure") == 1
    assert "did you mean" in page("?tab=slices&metric=loss&params=lrr")
    assert "<circle" in page("?tab=scatter&metric=loss&param=test.acc&color=test.acc")
    monkeypatch.setattr("assay.web.pages.study_page.MOST_DRAWN", {"scatter": 3, "history": 1})
    text = page("?tab=scatter&metric=loss&param=n&log_x=1")
    assert "3 of 4 runs: the 1 best, and 2 evenly from the others" in text
    assert len(re.findall(r"<(?:circle|path)[^>]*><title>", text)) == 3


def test_curves(client: TestClient, page: Page) -> None:
    """The best are those that are read; several charts show the same runs; bands have edges of their own."""
    assert page("?tab=curves").count("data-curves=") == 1  # only the loss has more than one point

    def read(query: str) -> dict[str, Any]:
        return dict(client.get(f"/api/studies/fit/curves?metric=loss&{query}").json())

    value = read("best=3")
    assert value["metric"] == "loss"
    assert [(curve["points"], curve["x"]) for curve in value["curves"]] == [(3, [1.0, 2.0, 3.0])] * 3
    assert value["curves"][0]["y"] == [3.7, 2.7, 1.7]
    value = read("best=1")
    assert value["notes"] == ["the 1 best of 4"]
    assert value["curves"][0]["run"] == GOOD
    assert value["curves"][0]["last"] == value["curves"][0]["best"] == 1.7
    value = read("best=1&by=test.acc")  # highest with n=8; runs without an accuracy come last
    assert value["notes"] == ["the 1 best of 4 by test.acc"]
    assert value["curves"][0]["run"] == GOOD.replace("n=7", "n=8")
    (curve,) = read("group=n&where=lr%3D%3D0.1")["curves"]
    assert curve["runs"] == 2
    assert curve["x_low"] == curve["x_high"] == curve["x"]
    assert all(low <= y <= high for low, y, high in zip(curve["low"], curve["y"], curve["high"], strict=True))


def test_mistakes_are_answered(client: TestClient) -> None:
    long = " or ".join(f"lr < {-n}" for n in range(500))
    for path, status, message in (
        ("/studies/fit/runs", 404, ""),
        ("/studies/fit/runs/.assay", 404, ""),
        ("/studies/fit?tab=other", 400, "table, curves"),
        ("/studies/fit?states=odd", 400, "queued"),
        ("/studies/fit?page=x", 400, "page is not a number"),
        ("/studies/fit?smooth=nan", 400, "smooth"),
        (f"/studies/fit?where={long}", 400, "more than 4000 characters"),
        ("/studies/fit?where=lr%20%3C", 200, "lr &lt;"),
        ("/studies/fit?sort=nothing", 200, "nothing"),
        ("/studies/..%2f..%2fetc", 404, ""),
        ("/static/..%2fapp.py", 404, ""),
    ):
        answer = client.get(path)
        assert (answer.status_code, message in answer.text, "Traceback" in answer.text) == (status, True, False), path


def test_the_address_is_the_view() -> None:
    view = StudyView(tab="curves", where="lr < 0.1", sort=("loss:min", "lr"), log=True, page=3, smooth=0.5)
    assert StudyView.from_query(parse_qs(view.to_query(page=3).lstrip("?"))) == view
    assert StudyView().to_query() == "?"
    assert "page" not in view.to_query(sort=())


def test_columns_are_chosen_by_name(client: TestClient, page: Page) -> None:
    """What is checked becomes what differs from the usual columns, in the address; a constant can be shown as well."""
    answer = client.get("/studies/fit?columns=chosen&col=n&col=loss&col=test.acc", follow_redirects=False)
    assert answer.status_code == 303
    assert "hide=state%2Clr%2Cstep%2Ctime" in answer.headers["location"]
    text = client.get(answer.headers["location"]).text
    assert read_head(text) == ["run", "n", "test.acc", "loss"]
    assert 'value="n" checked' in text
    assert re.search(r'value="lr">', text)
    usual = client.get("/studies/fit?hide=lr&columns=usual", follow_redirects=False)
    assert usual.headers["location"].endswith("/studies/fit?")
    assert ["lr" in read_head(page(f"?where=lr==0.1{more}")) for more in ("&show=lr", "")] == [True, False]


def test_groups_are_those_of_assay_sum_and_lead_to_their_runs(served: Bench, page: Page) -> None:
    (row,) = json.loads(call(served, "sum", "fit", "--group-by", "n", "--where", "lr == 0.1", "--json"))
    text = page("?group=n&where=lr%20%3D%3D%200.1")
    assert "± sd" in read_head(text)
    assert '<td class="mark">' not in text  # a group cannot be marked, as a run can
    (cells,) = [cells for cells in read_cells(text.partition('id="runs"')[2]) if cells]
    head = read_head(text)
    assert float(cells[head.index("loss")]) == row["loss"]
    assert cells[head.index("n")] == str(row["n"])
    (link, *_) = find_links(r'<td class="[^"]*name[^"]*"><a href="([^"]+)"', page("?group=n"))
    assert len(read_names(page(link))) == 2


def test_a_mistake_in_the_filter_is_next_to_it_with_offers_and_examples(page: Page) -> None:
    text = page("?where=los%3C1")
    problem = text.partition('id="where-problem"')[2].partition("</div>")[0]
    assert "did you mean" in problem
    assert "--where" not in problem
    assert 'aria-invalid="true"' in text
    for typed, count in (("lr=0.5", 0), ("failed", 0), ("n", 1), ("lr", 1)):
        offers = page(where=typed).partition('id="where-problem"')[2].partition("</div>")[0]
        links = find_links(r'href="([^"]+)"', offers)
        assert len(links) == count
        assert not [link for link in links if 'id="where-problem"' in page(link)]
    examples = page().partition("<dt>Examples</dt>")[2].partition("</dd>")[0]
    links = find_links(r'href="([^"]+)"', examples)
    assert len(links) == 4
    assert not [link for link in links if "where-problem" in page(link)]


def test_a_point_leads_to_its_run(client: TestClient) -> None:
    answer = client.get("/studies/fit/find", params={"name": GOOD}, follow_redirects=False)
    assert answer.headers["location"] == "/studies/fit/runs/lr%3D0.1%2Cn%3D7"
    assert client.get("/studies/fit/find?name=other").status_code == 404


def test_tags_and_notes_are_in_the_table(served: Bench, tmp_path: Path) -> None:
    bench = copy_bench(served, tmp_path)
    call(bench, "tag", f"fit/{GOOD}", "good")
    call(bench, "note", f"fit/{GOOD}", "a <b>remark</b>")
    with open_client(bench.root) as client:
        text = client.get("/studies/fit").text
        assert "a &lt;b&gt;remark" in text
        (link,) = find_links(r'<a class="tag" href="([^"]+)"', text)
        assert read_names(client.get(f"/studies/fit{link}").text) == [GOOD]


def test_many_parameters_and_long_numbers(tmp_path: Path) -> None:
    """There is a field to search in; a number as long as a computer writes it is shortened."""
    bench = Bench(tmp_path)
    names = "".join(f", p{n}: {n}" for n in range(25))
    text = f"study: wide\ncommand: echo loss {{lr}}\nparams: {{lr: [0.12345678901234567, 0.2]{names}}}\n"
    bench.run(text + "metrics: {loss: 'loss ({number})'}\nresources: {gpus: 0}\n")
    with open_client(bench.root) as client:
        text = client.get("/studies/wide").text
        assert "data-find-column" in text
        assert text.count("the same in all runs") == 25
        assert sorted(row[1] for row in read_cells(text) if row) == ["0.123457", "0.200000"]
        assert "data-find-column" not in client.get("/studies/wide?tab=scatter").text


# ---------------------------------------------------------------- rows, which are written without a template


HOSTILE = '<script>alert("1")</script>\'&\x1b[31m\nnext'


def test_a_hostile_run_is_text(tmp_path: Path) -> None:
    first = RunRow(f"s/{HOSTILE}", "s", HOSTILE, "1", State.DONE, 1, {"x": HOSTILE, "seed": 1}, tags=(HOSTILE,))
    second = RunRow("s/plain", "s", "plain", "2", State.FAILED, 1, {"x": "ok", "seed": 2})
    study = StudySnapshot("a b", StudyLocation(str(tmp_path), "s"), IndexTable([first, second], {}), 1)
    rows = HtmlPage(render_rows(build_table(study, StudyView()), StudyView(), "a b"))
    assert {tag for tag, _ in rows.tags} <= {"tr", "td", "a", "input", "span"}
    assert [values["data-run"] for tag, values in rows.tags if tag == "tr"] == [
        HOSTILE.replace("\x1b", "\\x1b"),
        "plain",
    ]
    assert [values["class"] for tag, values in rows.tags if tag == "span"] == ["badge done", "badge failed"]
    assert all(
        (values["href"] or "").startswith(("/studies/a%20b/runs/", "?")) for tag, values in rows.tags if tag == "a"
    )
    assert "<script>" in "".join(rows.texts)
    assert "\x1b" not in "".join(rows.texts)
    assert len([tag for tag, values in rows.tags if tag == "a" and values.get("class") == "tag"]) == 1


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
