"""The numbers on the page of a study: the same on every page, in every order and view."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.finished_study import GOOD, Bench
from tests.web.test_study_page import read_cells, read_head
from tests.web_client import call, open_client

from assay.web.snapshots import Snapshots

# seed 3 of lr=0.1 is NaN from step 3 on, seed 2 of lr=0.01 fails behind its last point; the lowest loss is not the last
STUDY = r"""
study: odd
command: >-
  for i in 1 2 3 4; do v=$((9 - i * {seed} % 4)).5; [ {lr}{seed} = 0.13 ] && [ $i -gt 2 ] && v=nan; echo "step $i loss $v gap $((i * (2 - {seed})))"; done;
  [ {lr}{seed} != 0.012 ]
params: {lr: [0.1, 0.01], seed: [1, 2, 3]}
metrics: {step: 'step (\d+)', loss: 'loss ({number})', gap: 'gap ({number})'}
resources: {gpus: 0}
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    bench = Bench(tmp_path_factory.mktemp("odd"))
    assert bench.run(STUDY).returncode == 1
    call(bench, "tag", "odd/lr=0.1,seed=1", "good")
    return bench


@pytest.fixture(scope="module")
def client(odd: Bench) -> Iterator[TestClient]:
    with open_client(odd.root) as client:
        yield client


def read_table(client: TestClient, query: str = "") -> list[dict[str, str]]:
    text = client.get(f"/studies/odd?{query}").text
    head = read_head(text)
    return [dict(zip(head, row, strict=True)) for row in read_cells(text.partition('id="runs"')[2]) if row]


def read_curves(client: TestClient, **query: Any) -> dict[str, Any]:
    answer = client.get("/api/studies/odd/curves", params=query)
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


class TestOrder:
    def test_reversed_rows_are_the_same_rows(self, client: TestClient) -> None:
        """What is best is a fact of the study, not of the order in which its runs are looked at."""
        rows, turned = read_table(client, "sort=loss"), read_table(client, "sort=loss&reverse=1")
        assert {row["best loss"] for row in rows} != {row["loss"] for row in rows}
        assert sorted(map(str, turned)) == sorted(map(str, rows))
        best = [float(row["best loss"]) for row in rows]
        assert best == sorted(best)
        assert [float(row["best loss"]) for row in turned] == best[::-1]
        plain, other = (client.get(f"/api/studies/odd/table?sort=lr,seed{more}").json() for more in ("", "&reverse=1"))
        assert [row["run"] for row in other] == [row["run"] for row in plain][::-1]

    def test_only_what_is_sorted_by_has_the_arrow_and_a_second_click_reverses(self, client: TestClient) -> None:
        text = client.get("/studies/odd?sort=loss").text
        (link,) = re.findall(r'<a id="sort-\d+" href="([^"]+)">best loss', text)
        assert link == "?sort=loss&amp;reverse=1"
        turned = client.get("/studies/odd" + link.replace("&amp;", "&")).text
        assert ">best loss" in turned
        assert 'aria-sort="descending"' in turned
        heads = re.findall(r"<th .*?</th>", text.partition('id="runs"')[2], re.DOTALL)
        (arrow,) = [head for head in heads if "↑" in head or "↓" in head]
        assert "best loss" in arrow
        assert [head for head in heads if "aria-sort" in head] == [arrow]
        assert "6 runs, sorted by best loss<" in text
        assert "6 runs, by best loss<" in text
        (head,) = [name for name in read_table(client, "sort=loss:max")[0] if name.endswith(" loss")]
        assert head == "highest loss"

    def test_columns_stay_where_they_are(self, client: TestClient) -> None:
        """A second click at the same place reverses: what is sorted by is where it was clicked on."""
        heads = {name: list(read_table(client, f"sort={name}")[0]) for name in ("lr", "gap", "loss")}
        for name in ("gap", "loss"):
            assert heads[name].index(f"best {name}") == heads["lr"].index(name)
            assert [each for each in heads[name] if each != f"best {name}"] == heads["lr"]


class TestPages:
    def test_each_page_has_the_columns_of_all_that_match(self, client: TestClient, odd: Bench) -> None:
        whole = json.loads(call(odd, "sum", "odd", "--json", "-s", "loss"))
        for page in range(1, 7):
            (row,) = client.get(f"/api/studies/odd/table?sort=loss&rows=1&page={page}").json()
            assert row == whole[page - 1]
            (cells,) = read_table(client, f"sort=loss&rows=1&page={page}")
            assert list(cells) == list(read_table(client, "sort=loss")[0])
        groups = client.get("/api/studies/odd/table?group=seed").json()
        assert "not_done" in groups[0]
        pages = [client.get(f"/api/studies/odd/table?group=seed&rows=1&page={n}").json() for n in (1, 2)]
        assert pages == [[row] for row in groups]
        assert "state" not in read_table(client, "states=done&rows=2")[0]  # nothing of what does not match

    @pytest.mark.parametrize("query", ["rows=4&page=99", "rows=4&page=99&group=seed", "rows=4&page=99&where=lr==0.1"])
    def test_behind_the_last_is_the_last(self, client: TestClient, query: str) -> None:
        answer = client.get(f"/studies/odd?{query}")
        last = read_table(client, query.replace("page=99", "page=2" if query.endswith("99") else "page=1"))
        assert last
        assert read_table(client, query) == last
        assert "page=99" not in answer.headers["hx-push-url"]
        assert "of 98" not in answer.text


class TestNotFinite:
    def test_it_is_marked_in_the_table(self, client: TestClient) -> None:
        rows = re.findall(r"<tr data-run.*?</tr>", client.get("/studies/odd?sort=loss").text, re.DOTALL)
        (row,) = [row for row in rows if "not finite" in row]
        assert 'data-run="lr=0.1,seed=3"' in row
        assert '<td class="num"><span class="bad">nan</span></td>' in row
        assert "1 run not finite" in client.get("/studies/odd/head").text

    def test_the_end_of_a_curve_and_the_mean_of_a_group_are_those_of_the_table(self, client: TestClient) -> None:
        """What a mean leaves out is in the notes."""
        table = {row["run"]: row for row in client.get("/api/studies/odd/table?sort=loss").json()}
        for curve in read_curves(client, metric="loss")["curves"]:
            assert curve["last"] == table[curve["run"]]["loss"]
            assert curve["best"] == table[curve["run"]]["loss_best"]
        means = {f"lr={row['lr']}": row["loss"] for row in client.get("/api/studies/odd/table?group=seed").json()}
        value = read_curves(client, metric="loss", group="seed")
        assert {curve["name"]: curve["last"] for curve in value["curves"]} == means
        assert means["lr=0.1"] == "NaN"
        assert "lr=0.1: mean from step 3 on of 2 of its 3 runs" in value["notes"]
        assert "lr=0.01: mean without 1 run not done" in value["notes"]
        assert read_curves(client, metric="gap", group="seed", where="lr == 0.1")["notes"] == []


class TestLogarithmic:
    def test_what_has_no_place_is_a_gap(self, client: TestClient) -> None:
        plain = read_curves(client, metric="gap", where="lr == 0.1")
        value = read_curves(client, metric="gap", where="lr == 0.1", log=1)
        assert [curve["y"] for curve in plain["curves"]] == [[1.0, 2.0, 3.0, 4.0], [0.0] * 4, [-1.0, -2.0, -3.0, -4.0]]
        assert [curve["y"] for curve in value["curves"]] == [[1.0, 2.0, 3.0, 4.0], [None] * 4, [None] * 4]
        assert plain["notes"] == []
        assert value["notes"] == ["8 values of zero or below: not on a logarithmic scale"]
        assert [(curve["last"], curve["points"]) for curve in value["curves"]] == [(4.0, 4), (0.0, 4), (-4.0, 4)]

    def test_nothing_has_a_place_and_points_too(self, client: TestClient) -> None:
        answer = client.get("/api/studies/odd/curves?metric=gap&log=1&where=seed == 2")
        assert answer.status_code == 400
        assert "cannot show zero" in answer.json()["hint"]
        text = client.get("/studies/odd?tab=history&metric=gap&log=1").text
        assert "4 runs with a gap of zero or below: not on a logarithmic scale" in text


class TestPlanned:
    @pytest.fixture
    def root(self, served: Bench, tmp_path: Path) -> Path:
        """Four runs, of which one has lost its directory, and is planned again beside another."""
        root = tmp_path / "runs"
        shutil.copytree(served.root / "fit", root / "fit")
        shutil.rmtree(root / "fit" / GOOD)
        plan = {"runs": {GOOD: "id-1", "lr=0.9,n=7": "id-2"}}
        (root / "fit" / ".assay").mkdir(exist_ok=True)
        (root / "fit" / ".assay" / "plan.json").write_text(json.dumps(plan))
        return root

    def test_they_are_counted_everywhere(self, root: Path) -> None:
        with open_client(root) as client:
            (card,) = client.get("/api/studies").json()
            study = client.get("/api/studies/fit").json()
            assert study["runs"] == card["runs"] == 5
            assert study["counts"] == {state: n for state, n in card["counts"].items() if n}
            for path in ("/studies", "/studies/fit", "/studies/fit/head"):
                assert "2 queued, 1 done, 2 failed" in client.get(path).text, path
            text = client.get("/studies/fit").text
            assert re.search(r'</i>queued <span class="soft">2<', text)
            assert "and 2 runs queued without a directory yet" in text
            assert "Compare these 3" in text

    def test_a_plan_alone_is_a_change(self, root: Path) -> None:
        held = Snapshots((str(root),))
        before = held.load("fit")
        (root / "fit" / ".assay" / "plan.json").unlink()
        after = held.refresh("fit")
        assert (before.planned, after.planned) == (2, 0)
        assert after.version > before.version
        assert held.refresh("fit") is after


def test_smoothing_has_a_range(client: TestClient) -> None:
    for wrong in ("5", "1", "-0.1"):
        answer = client.get(f"/studies/odd?tab=curves&smooth={wrong}")
        assert answer.status_code == 400
        assert "from 0 to less than 1" in answer.text
    assert read_curves(client, metric="loss", smooth="0.99")["curves"]
