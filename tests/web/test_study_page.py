"""The pages of studies, against what the commands print."""

from __future__ import annotations

import json
import re

import pytest
from starlette.testclient import TestClient
from tests.study.workbench import BAD, GOOD, Bench

from assay.study.page_view import StudyView


def read_cells(text: str) -> list[list[str]]:
    """The texts of each row, without its box."""
    rows = [re.findall(r"<td.*?</td>", row, re.DOTALL) for row in re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL)]
    return [[re.sub(r"<[^>]+>", "", cell).strip() for cell in row if "checkbox" not in cell] for row in rows]


def test_all_studies(client: TestClient) -> None:
    text = client.get("/studies").text
    assert 'href="/studies/fit"' in text
    assert "2 done, 2 failed" in text
    assert "no study has" in client.get("/studies?q=other").text.lower()
    assert "lr=0.1,n=8" in client.get("/studies/fit/best").text


def test_the_table_is_that_of_assay_sum(client: TestClient, served: Bench) -> None:
    rows = json.loads(served.assay("sum", "fit", "--json").stdout)
    cells = [row for row in read_cells(client.get("/studies/fit").text) if row]
    assert [row[0] for row in cells] == [row["run"] for row in rows]
    assert [row[1] for row in cells] == [row["state"] for row in rows]


def test_sort_filter_and_pages(client: TestClient) -> None:
    def names(query: str) -> list[str]:
        return [row[0] for row in read_cells(client.get(f"/studies/fit?{query}").text) if row]

    assert names("where=lr%20%3C%200.3") == ["lr=0.1,n=8", "lr=0.1,n=7"]
    assert names("states=failed") == ["lr=0.5,n=7", "lr=0.5,n=8"]
    every = names("sort=n:max")
    assert [name[-1] for name in every] == ["8", "8", "7", "7"]
    assert names("sort=n:max&rows=3&page=2") == every[3:]
    assert names("sort=n:max&rows=3&page=9") == []


def test_a_part_of_a_page(client: TestClient) -> None:
    text = client.get("/studies/fit", headers={"hx-request": "true"}).text
    assert "<html" not in text
    assert GOOD in text


@pytest.mark.parametrize("tab", ["scatter", "slices", "parallel", "history"])
def test_plots(client: TestClient, tab: str) -> None:
    answer = client.get(f"/studies/fit?tab={tab}&metric=loss")
    assert answer.status_code == 200
    assert "<svg" in answer.text.partition('id="part"')[2]


def test_what_cannot_be_drawn_is_said(client: TestClient) -> None:
    assert "importance needs 4 finished runs" in client.get("/studies/fit?tab=importance").text


def test_curves(client: TestClient) -> None:
    value = client.get("/api/studies/fit/curves?metric=loss&best=3").json()
    assert value["metric"] == "loss"
    assert [(curve["points"], curve["x"]) for curve in value["curves"]] == [(3, [1.0, 2.0, 3.0])] * 3
    assert value["curves"][0]["y"] == [3.7, 2.7, 1.7]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/studies/fitt", 404, "fit"),
        ("/studies/fit/runs", 404, ""),
        ("/studies/fit?tab=other", 400, "table, curves"),
        ("/studies/fit?states=odd", 400, "queued"),
        ("/studies/fit?page=x", 400, "page is not a number"),
        ("/studies/fit?smooth=nan", 400, "smooth"),
        ("/studies/fit?where=lr%20%3C", 200, "lr &lt;"),
        ("/studies/fit?sort=nothing", 200, "nothing"),
        ("/studies/..%2f..%2fetc", 404, ""),
        ("/static/..%2fapp.py", 404, ""),
    ],
)
def test_mistakes_are_answered(client: TestClient, path: str, status: int, said: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert said in answer.text
    assert "Traceback" not in answer.text


def test_mistakes_in_the_api_are_json(client: TestClient) -> None:
    answer = client.get("/api/studies/fit/curves?metric=los")
    assert answer.status_code == 404
    assert "loss" in answer.json()["hint"]


def test_the_address_is_the_view() -> None:
    view = StudyView(tab="curves", where="lr < 0.1", sort=("loss:min", "lr"), log=True, page=3, smooth=0.5)
    query = view.to_query(page=3)
    from urllib.parse import parse_qs

    assert StudyView.from_query(parse_qs(query.lstrip("?"))) == view
    assert StudyView().to_query() == "?"
    assert "page" not in view.to_query(sort=())


def test_a_run_that_failed_is_marked(client: TestClient) -> None:
    text = client.get("/studies/fit").text
    assert BAD in text
    assert '<span class="badge failed">failed</span>' in text
