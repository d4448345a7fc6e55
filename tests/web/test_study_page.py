"""The pages of studies, against what the commands print."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.finished_study import BAD, GOOD, Bench
from tests.web_client import call, copy_bench, open_client

from assay.web.pages.page_view import StudyView


def read_cells(text: str) -> list[list[str]]:
    """The texts of each row, without its box."""
    rows = [re.findall(r"<td.*?</td>", row, re.DOTALL) for row in re.findall(r"<tr.*?>(.*?)</tr>", text, re.DOTALL)]
    return [[re.sub(r"<[^>]+>", "", cell).strip() for cell in row if "checkbox" not in cell] for row in rows]


def test_all_studies(client: TestClient) -> None:
    text = client.get("/studies").text
    assert 'href="/studies/fit"' in text
    assert "2 done, 2 failed" in text
    assert "no study has" in client.get("/studies?q=other").text.lower()
    assert "lr=0.1,n=8" in client.get("/studies/fit/best").text


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
        answer = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env={**os.environ, "PATH": paths}, capture_output=True, check=False
        )
        assert answer.returncode == 0, answer.stderr
    with open_client(root) as client:
        assert "3 done" in client.get("/studies").text
        assert client.get("/api/studies/first/table").json()[0]["loss"] == 1


def test_the_table_is_that_of_assay_sum(client: TestClient, served: Bench) -> None:
    rows = json.loads(call(served, "sum", "fit", "--json"))
    cells = [row for row in read_cells(client.get("/studies/fit").text) if row]
    assert [row[0] for row in cells] == [row["run"] for row in rows]
    assert [row[1] for row in cells] == [row["state"] for row in rows]


def test_the_table_is_saved_as_assay_sum_writes_it(client: TestClient, served: Bench) -> None:
    """All pages of it, as it is filtered and sorted."""
    for words, query in (
        ((), {}),
        (("--where", "lr == 0.1"), {"where": "lr == 0.1"}),
        (("--sort", "loss:max"), {"sort": "loss:max"}),
        (("--group-by", "n"), {"group": "n"}),
    ):
        (address,) = re.findall(r'id="csv" href="([^"]+)"', client.get("/studies/fit", params=query).text)
        answer = client.get(html.unescape(address), params={**query, "rows": 20})
        assert answer.text == call(served, "sum", "fit", "--csv", *words)
        assert answer.headers["content-disposition"] == 'attachment; filename="fit.csv"'
        assert all(f"{name}=" in address for name in query)


def test_sort_filter_and_pages(client: TestClient) -> None:
    def names(query: str) -> list[str]:
        return [row[0] for row in read_cells(client.get(f"/studies/fit?{query}").text) if row]

    assert names("where=lr%20%3C%200.3") == ["lr=0.1,n=8", "lr=0.1,n=7"]
    assert names("states=failed") == ["lr=0.5,n=7", "lr=0.5,n=8"]
    every = names("sort=n:max")
    assert [name[-1] for name in every] == ["8", "8", "7", "7"]
    assert names("sort=n:max&rows=3&page=2") == every[3:]
    assert names("sort=n:max&rows=3&page=9") == every[3:]


def test_a_part_of_a_page(client: TestClient) -> None:
    text = client.get("/studies/fit", headers={"hx-request": "true"}).text
    assert "<html" not in text
    assert GOOD in text


@pytest.mark.needs(search=True)
def test_plots_and_what_cannot_be_drawn(client: TestClient) -> None:
    """What the commands call options has the names of the page."""
    for tab in ("scatter", "slices", "parallel", "history"):
        answer = client.get(f"/studies/fit?tab={tab}&metric=loss")
        assert (answer.status_code, "<svg" in answer.text.partition('id="part"')[2]) == (200, True)
    text = client.get("/studies/fit?tab=importance").text
    assert "importance needs 4 finished runs" in text
    assert "choose another metric" in text
    assert "-m" not in text.partition('id="part"')[2].partition("choose another")[2][:40]


def test_curves(client: TestClient) -> None:
    value = client.get("/api/studies/fit/curves?metric=loss&best=3").json()
    assert value["metric"] == "loss"
    assert [(curve["points"], curve["x"]) for curve in value["curves"]] == [(3, [1.0, 2.0, 3.0])] * 3
    assert value["curves"][0]["y"] == [3.7, 2.7, 1.7]


def test_mistakes_are_answered(client: TestClient) -> None:
    for path, status, message in (
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
        ("/api/studies/fit/curves?metric=los", 404, '"hint":"did you mean'),
    ):
        answer = client.get(path)
        assert (answer.status_code, message in answer.text, "Traceback" in answer.text) == (status, True, False), path


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


def test_columns_are_chosen_by_name(client: TestClient) -> None:
    """What is checked becomes what differs from the usual columns, in the address."""
    answer = client.get("/studies/fit?columns=chosen&col=n&col=loss&col=test.acc", follow_redirects=False)
    assert answer.status_code == 303
    assert "hide=state%2Clr%2Cstep%2Ctime" in answer.headers["location"]
    text = client.get(answer.headers["location"]).text
    assert read_head(text) == ["run", "n", "test.acc", "loss"]
    assert 'value="n" checked' in text
    assert re.search(r'value="lr">', text)
    usual = client.get("/studies/fit?hide=lr&columns=usual", follow_redirects=False)
    assert usual.headers["location"].endswith("/studies/fit?")


def read_head(text: str) -> list[str]:
    table = text.partition('id="runs"')[2]
    cells = re.findall(r"<th .*?</th>", table, re.DOTALL)
    return [re.sub(r"<[^>]+>|[↑↓]", "", cell).strip() for cell in cells if "checkbox" not in cell]


def test_a_constant_parameter_can_be_shown(client: TestClient) -> None:
    text = client.get("/studies/fit?where=lr==0.1&show=lr").text
    assert "lr" in read_head(text)
    assert "lr" not in read_head(client.get("/studies/fit?where=lr==0.1").text)


def test_groups_are_those_of_assay_sum(client: TestClient, served: Bench) -> None:
    (row,) = json.loads(call(served, "sum", "fit", "--group-by", "n", "--where", "lr == 0.1", "--json"))
    text = client.get("/studies/fit?group=n&where=lr%20%3D%3D%200.1").text
    assert "± sd" in read_head(text)
    (cells,) = [cells for cells in read_cells(text.partition('id="runs"')[2]) if cells]
    head = read_head(text)
    assert float(cells[head.index("loss")]) == row["loss"]
    assert cells[head.index("n")] == str(row["n"])


def test_a_group_leads_to_its_runs(client: TestClient) -> None:
    text = client.get("/studies/fit?group=n").text
    (link, *_) = re.findall(r'<td class="[^"]*name[^"]*"><a href="([^"]+)"', text)
    names = [row[0] for row in read_cells(client.get("/studies/fit" + link.replace("&amp;", "&")).text) if row]
    assert len(names) == 2


def test_states_are_counted_and_chosen(client: TestClient) -> None:
    text = client.get("/studies/fit?states=failed").text
    assert re.search(r'name="states" id="state-failed" value="failed" checked', text)
    assert re.search(r'</i>done <span class="soft">2<', text)


def test_a_mistake_in_the_filter_is_beside_it(client: TestClient) -> None:
    text = client.get("/studies/fit?where=los%3C1").text
    problem = text.partition('id="where-problem"')[2].partition("</div>")[0]
    assert "did you mean" in problem
    assert "--where" not in problem
    assert 'aria-invalid="true"' in text


def test_a_part_of_a_name_is_offered_as_an_expression(client: TestClient) -> None:
    for typed, count in (("lr=0.5", 0), ("failed", 0), ("n", 1), ("lr", 1)):
        text = client.get("/studies/fit", params={"where": typed}).text.partition('id="where-problem"')[2]
        links = re.findall(r'href="([^"]+)"', text.partition("</div>")[0])
        assert len(links) == count
        for link in links:
            assert 'id="where-problem"' not in client.get("/studies/fit" + link.replace("&amp;", "&")).text


def test_all_that_match_can_be_compared(client: TestClient) -> None:
    text = client.get("/studies/fit?where=n%3D%3D7&states=done,failed").text
    assert "compare?where=%28n%3D%3D7%29%20and%20run.state%20in%20%28done%2C%20failed%29" in text


def test_several_metrics_are_small_charts(client: TestClient) -> None:
    text = client.get("/studies/fit?tab=curves").text
    assert text.count("data-curves=") == 1  # only the loss has more than one point


def test_bands_have_edges_of_their_own(client: TestClient) -> None:
    value = client.get("/api/studies/fit/curves?metric=loss&group=n&where=lr%3D%3D0.1").json()
    (curve,) = value["curves"]
    assert curve["runs"] == 2
    assert curve["x_low"] == curve["x_high"] == curve["x"]
    assert all(low <= y <= high for low, y, high in zip(curve["low"], curve["y"], curve["high"], strict=True))


def test_the_best_curves_are_those_that_are_read(client: TestClient) -> None:
    value = client.get("/api/studies/fit/curves?metric=loss&best=1").json()
    assert value["notes"] == ["the 1 best of 4"]
    assert value["curves"][0]["run"] == GOOD
    assert value["curves"][0]["last"] == value["curves"][0]["best"] == 1.7


def test_several_charts_show_the_same_runs(client: TestClient) -> None:
    """The loss is lowest with n=7, the accuracy highest with n=8; runs without an accuracy come last."""
    value = client.get("/api/studies/fit/curves?metric=loss&best=1&by=test.acc").json()
    assert value["notes"] == ["the 1 best of 4 by test.acc"]
    assert value["curves"][0]["run"] == GOOD.replace("n=7", "n=8")


def test_a_metric_can_be_an_axis_and_a_colour(client: TestClient) -> None:
    text = client.get("/studies/fit?tab=scatter&metric=loss&param=test.acc&color=test.acc").text
    assert "<circle" in text


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
        (link,) = re.findall(r'<a class="tag" href="([^"]+)"', text)
        found = client.get(f"/studies/fit{link.replace('&amp;', '&')}").text
        assert [row[0] for row in read_cells(found) if row] == [GOOD]


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


def test_parameters_of_a_drawing_are_chosen(client: TestClient) -> None:
    text = client.get("/studies/fit?tab=slices&metric=loss&params=n").text
    assert text.count("<figure") == 1
    assert "did you mean" in client.get("/studies/fit?tab=slices&metric=loss&params=lrr").text


def test_every_example_chooses_some_runs(client: TestClient) -> None:
    text = client.get("/studies/fit").text.partition("<dt>Examples</dt>")[2].partition("</dd>")[0]
    links = re.findall(r'href="([^"]+)"', text)
    assert len(links) == 4
    for link in links:
        assert "where-problem" not in client.get("/studies/fit" + link.replace("&amp;", "&")).text


def test_more_runs_than_can_be_drawn(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says how many, and the best are among them."""
    monkeypatch.setattr("assay.web.pages.study_page.MOST_DRAWN", {"scatter": 3, "history": 1})
    text = client.get("/studies/fit?tab=scatter&metric=loss&param=n&log_x=1").text
    assert "3 of 4 runs: the 1 best, and 2 evenly from the others" in text
    assert len(re.findall(r"<(?:circle|path)[^>]*><title>", text)) == 3


def test_an_expression_that_would_hold_up_everybody_is_refused(client: TestClient) -> None:
    answer = client.get("/studies/fit", params={"where": " or ".join(f"lr < {-n}" for n in range(500))})
    assert answer.status_code == 400
    assert "more than 4000 characters" in answer.text


def test_the_table_says_why_runs_failed(client: TestClient, served: Bench) -> None:
    assert client.get("/studies/fit").text.count("exit code 1</td>") == 2
    assert "exit code" not in client.get("/studies/fit?hide=reason").text
    assert "reason" not in client.get("/api/studies/fit/table").json()[0]  # as `assay sum --json`
