"""The page that compares runs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.finished_study import GOOD, STUDY, Bench
from tests.web_client import open_client

from assay.web.pages import compare
from assay.web.pages.compare import _build_numbers

PAGE = "/studies/fit/compare"
OTHER = "lr=0.1,n=8"


def get_table(text: str, title: str) -> str:
    return text.partition(f">{title}</h2>")[2].partition("</table>")[0]


def test_runs_are_rows_and_only_what_differs_is_there(client: TestClient) -> None:
    text = client.get(PAGE, params={"run": [GOOD, OTHER]}).text
    table = get_table(text, "Parameters")
    assert table.count('<th scope="row">') == 2
    assert ">n</a></th>" in table
    assert ">lr</a></th>" not in table  # it is equal in both
    assert ">lr</a></th>" in get_table(client.get(PAGE, params={"run": [GOOD, OTHER], "all": 1}).text, "Parameters")
    assert text.count("<table") == 3  # parameters, metrics, environment: each once
    metrics = get_table(text, "Metrics")
    assert '<span class="change-by">+0.1</span>' in metrics
    assert '<b>1.7</b> <span class="is-best">best</span>' in metrics
    assert re.search(r"assay diff \S*fit/lr=0.1,n=7 \S*fit/lr=0.1,n=8<", text)
    turned = get_table(client.get(PAGE, params={"run": [GOOD, OTHER], "turn": 1}).text, "Metrics")
    assert turned.count('<th scope="col"><a') == 2
    assert '<th scope="row">loss</th>' in turned


def test_the_run_that_others_are_compared_with(client: TestClient) -> None:
    """The first of the named runs is the base; among all runs none was chosen first."""
    marked = client.get(PAGE, params={"run": [GOOD, OTHER]}).text
    assert f"differences to {GOOD}" in get_table(marked, "Metrics")
    other = client.get(PAGE, params={"run": [GOOD, OTHER], "to": OTHER}).text
    assert f"differences to {OTHER}" in get_table(other, "Metrics")
    assert '<span class="change-by">-0.1</span>' in get_table(other, "Metrics")
    assert f'<option value="{OTHER}" selected>' in other
    assert other.count(">reference<") == 3
    assert "differences to the best of each" in get_table(client.get(PAGE).text, "Metrics")
    assert "differences to the best of each" in get_table(client.get(PAGE, params={"to": "gone"}).text, "Metrics")


def test_columns_sort_by_a_click(client: TestClient) -> None:
    found = {}
    for sort in ("Metrics/loss", "-Metrics/loss", "Metrics/test.acc", "-run"):
        text = client.get(PAGE, params={"sort": sort}).text
        found[sort] = re.findall(r'<th scope="row"><a [^>]*>lr=([\d.]+),n=(\d)<', get_table(text, "Metrics"))
        assert f'aria-sort="{"descending" if sort[0] == "-" else "ascending"}"' in text
    assert [n for _, n in found["Metrics/loss"]] == ["7", "7", "8", "8"]
    assert [n for _, n in found["-Metrics/loss"]] == ["8", "8", "7", "7"]
    assert [lr for lr, _ in found["Metrics/test.acc"]] == ["0.1", "0.1", "0.5", "0.5"]  # runs without one are last
    assert found["-run"] == [("0.5", "8"), ("0.5", "7"), ("0.1", "8"), ("0.1", "7")]
    again = client.get(PAGE, params={"sort": "Metrics/loss"}).text
    assert "sort=-Metrics%2Floss" in again  # a second one turns it round
    assert client.get(PAGE, params={"sort": "Metrics/never"}).status_code == 200


def test_numbers_beside_the_first_and_the_best() -> None:
    nan = float("nan")
    cells = _build_numbers([2.0, 1.0, nan, None, 2.0], "min", 0)
    assert [cell.change for cell in cells] == ["", "-1", "", "", "±0"]
    assert [cell.is_best for cell in cells] == [False, True, False, False, False]
    assert [cell.text for cell in cells] == ["2", "1", "nan", "", "2"]
    assert [cell.change for cell in _build_numbers([2.0, 1.0, nan, None], "max", None)] == ["", "-1", "", ""]
    assert not any(cell.is_best for cell in _build_numbers([1.0, 1.0], "min", 0))


def test_the_filter_is_on_the_page(client: TestClient) -> None:
    assert "2 runs compared" in client.get(PAGE, params={"where": "lr == 0.1"}).text
    assert "4 runs compared" in client.get(PAGE).text
    text = client.get(PAGE, params={"run": [GOOD, OTHER, "lr=0.5,n=7"], "where": "state == done"}).text
    assert "2 runs compared" in text
    assert text.count('<input type="hidden" name="run"') == 3


@pytest.mark.parametrize(
    "query", [*({"where": w} for w in ("lr ==", "(" * 10_000, "nonsense > 3", "lr > 100")), {"run": GOOD}]
)
def test_a_filter_that_does_not_fit_is_answered_where_it_was_typed(client: TestClient, query: dict[str, str]) -> None:
    """So is one run, which is not a comparison."""
    answer = client.get(PAGE, params=query)
    assert answer.status_code == 400
    assert 'class="answer"' in answer.text
    assert 'name="where"' in answer.text
    assert ("two runs or more" in answer.text) is ("run" in query)


def test_curves_are_those_of_the_runs(client: TestClient) -> None:
    text = client.get(PAGE, params={"run": [GOOD, OTHER]}).text
    address = text.partition('data-curves="')[2].partition('"')[0].replace("&amp;", "&")
    assert [curve["name"] for curve in client.get(address).json()["curves"]] == ["n=7", "n=8"]
    curves = f"/api{PAGE}/curves"
    assert client.get(curves, params={"metric": "los"}).status_code == 404
    assert client.get(curves, params={"metric": "loss", "x": "miles"}).status_code == 400
    assert client.get(curves, params={"metric": "loss", "where": "lr > 100"}).status_code in (400, 404)


def test_code_line_by_line_and_runs_of_two_studies(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (bench.folder / "train.py").write_text("one\ntwo\n")
    bench.run(STUDY)
    (bench.folder / "train.py").write_text("one\nthree <b>\n")
    bench.run(STUDY.replace("study: fit", "study: new"), file="other.yml")
    with open_client(bench.root) as client:
        text = client.get(PAGE, params={"run": [GOOD, f"new/{GOOD}"]}).text
        code = text.partition('id="code"')[2]
        assert '<span class="removed">-two\n</span><span class="added">+three &lt;b&gt;\n</span>' in code
        assert f">fit/{GOOD}</a>" in text
        assert f">new/{GOOD}</a>" in text
        assert "runs compared" in client.get("/studies/new/compare", params={"run": [GOOD, f"fit/{OTHER}"]}).text


def test_many_runs_and_disjoint_metrics(served: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_PER_PAGE", 20)
    source, root = served.root / "fit" / GOOD, tmp_path / "runs"
    record = json.loads((source / "run.json").read_text())
    for i in range(48):
        run = root / "many" / f"i={i}"
        (run / "metrics").mkdir(parents=True)
        spec = {**record["spec"], "name": run.name, "id": f"{i:016x}", "params": {"i": i, f"p{i}": 1}}
        (run / "run.json").write_text(json.dumps({**record, "study": "many", "spec": spec, "uid": f"u{i}"}))
        for name in ("environment.json", "lease.1", "outcome.1"):
            shutil.copy(source / name, run / name)
        points = [{"step": step, f"m{i % 12}": step / (i + 1)} for step in range(3)]
        (run / "metrics" / "1-1-1.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    with open_client(root) as client:
        text = client.get("/studies/many/compare").text
        pages = [
            client.get("/studies/many/compare", params={"page": page, "sort": "-Parameters/i"}).text
            for page in (1, 3, 99)
        ]
        rows = [re.findall(r'<th scope="row"><a [^>]*>i=(\d+)<', get_table(page, "Parameters")) for page in pages]
        assert rows[0] == [str(i) for i in range(47, 27, -1)]  # as numbers
        assert rows[1] == rows[2] == [str(i) for i in range(7, -1, -1)]  # a page beyond the last
        assert "48 runs, of which 41 to 48 are on this page, sorted by i" in pages[1]
        assert get_table(text, "Metrics").count("max-height") == 0
        assert len(client.get("/api/studies/many/compare/curves?metric=m3").json()["curves"]) == 4


def test_a_run_has_one_colour_in_every_view(client: TestClient) -> None:
    """The runs next to it do not matter: "the orange one" is the same run in another view."""
    whole = client.get("/api/studies/fit/curves?metric=loss").json()["curves"]
    colors = {curve["run"]: curve["color"] for curve in whole}
    assert len(set(colors.values())) == len(colors) == 4
    names = sorted(colors)[1:3]
    addresses = [
        f"/api/studies/fit/curves?metric=loss&best=1&where=name=='{names[0]}'",
        f"/api/studies/fit/curves?metric=loss&smooth=0.5&where=name=='{names[1]}'",
        f"/api/studies/fit/compare/curves?metric=loss&run={names[1]}&run={names[0]}",
        f"/api/studies/fit/runs/{names[0]}/curves?metric=loss",
    ]
    for address in addresses:
        curves = client.get(address).json()["curves"]
        assert curves
        assert {curve["run"]: curve["color"] for curve in curves}.items() <= colors.items(), address
    groups = client.get("/api/studies/fit/curves?metric=loss&group=n").json()["curves"]
    of_group = {curve["name"]: curve["color"] for curve in groups}
    some = client.get("/api/studies/fit/curves?metric=loss&group=n&best=1").json()["curves"]
    assert [of_group.get(curve["name"], curve["color"]) for curve in some] == [curve["color"] for curve in some]
