"""The JSON interface, against what the commands print."""

from __future__ import annotations

import json
import math
import os
from array import array
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.finished_study import BAD, GOOD, Bench
from tests.web_client import call, copy_bench, open_client

from assay.errors import NotFoundError
from assay.follow.api import StudyLocation, record_verdicts
from assay.record.index.base import Series
from assay.values.verdict import Finding, Verdict, VerdictKind
from assay.web.json_routes import build_series_facts

API = "/api/studies/fit"


def ask(client: TestClient, path: str, **query: Any) -> Any:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


class TestStudies:
    def test_all_and_one(self, client: TestClient) -> None:
        (study,) = [each for each in ask(client, "/api/studies") if each["study"] == "fit"]
        assert (study["runs"], study["counts"]["done"], study["counts"]["failed"]) == (4, 2, 2)
        assert client.get(study["link"]).status_code == 200
        study = ask(client, API)
        assert study["metrics"] == ["loss", "test.acc"]
        assert study["differing"] == ["lr", "n"]
        assert study["best"]["run"] == "lr=0.1,n=8"

    def test_the_table_and_the_runs_are_those_of_the_commands(self, client: TestClient, served: Bench) -> None:
        for words, query in (
            ("", {}),
            ("-s loss:min", {"sort": "loss:min"}),
            ("-g n", {"group": "n"}),
            ("-m loss --ignore lr", {"metrics": "loss", "hide": "lr"}),
            ("--where n==7 --state done", {"where": "n == 7", "states": "done"}),
        ):
            printed = json.loads(call(served, "sum", "fit", "--json", *words.split()))
            assert ask(client, f"{API}/table", **query) == printed
        rows = ask(client, f"{API}/table")
        assert ask(client, f"{API}/table", rows=3, page=2) == rows[3:]
        assert ask(client, f"{API}/runs") == json.loads(call(served, "ls", "fit", "--json"))
        chosen = ask(client, f"{API}/runs", where="n == 8", sort="lr:max")
        assert [row["name"] for row in chosen] == ["lr=0.5,n=8", "lr=0.1,n=8"]

    def test_verdicts(self, served: Bench, tmp_path: Path) -> None:
        bench = copy_bench(served, tmp_path)
        with open_client(bench.root) as client:
            before = ask(client, f"{API}/verdicts")
            finding = Finding(VerdictKind.FAIL, "loss", "too high", value=math.inf, expected=1.0)
            record_verdicts(StudyLocation(str(bench.root), "fit"), "checks", {GOOD: Verdict.of([finding], 1)})
            (verdict,) = ask(client, f"{API}/verdicts")[len(before) :]
        assert verdict["key"] == f"fit/{GOOD}"
        assert (verdict["result"], verdict["value"], verdict["expected"]) == (str(VerdictKind.FAIL), "Infinity", 1.0)


class TestRuns:
    def test_facts_are_those_of_assay_show_and_diff(self, client: TestClient, served: Bench) -> None:
        for run in (GOOD, BAD):
            assert ask(client, f"{API}/runs/{run}") == json.loads(call(served, "show", f"fit/{run}", "--json"))
        names = [f"fit/{GOOD}", f"fit/{BAD}", "fit/lr=0.1,n=8"]
        for other, each in zip(names[1:], ask(client, "/api/compare", run=names), strict=True):
            assert each == json.loads(call(served, "diff", names[0], other, "--json"))

    def test_series(self, client: TestClient) -> None:
        found = ask(client, f"{API}/runs/{GOOD}/series", metric="loss")
        assert (found["step"], found["value"]) == ([1.0, 2.0, 3.0], [3.7, 2.7, 1.7])
        assert (found["points"], found["is_thinned"]) == (3, False)

    def test_a_thinned_series_keeps_what_stands_out(self) -> None:
        values = [math.sin(i / 1000) for i in range(20_000)]
        values[4321], values[6000], values[6001] = 99.0, math.nan, math.inf
        steps = array("d", range(len(values)))
        found = build_series_facts(Series(steps, array("d", values), array("d", values)), "loss", ["loss"], 500)
        assert 99.0 in found["value"]
        assert "NaN" in found["value"]
        assert len(found["value"]) == len(found["step"]) == len(found["time"]) <= 510
        assert (found["points"], found["is_thinned"]) == (20_000, True)
        json.dumps(found, allow_nan=False)
        with pytest.raises(NotFoundError):
            build_series_facts(Series(array("d"), array("d"), array("d")), "los", ["loss"], None)


class TestMistakes:
    def test_what_is_wrong_is_said(self, client: TestClient) -> None:
        series = f"{API}/runs/{GOOD}/series?metric"
        for path, status in (
            ("/api/studies/fot", 404),
            ("/api/studies/fot/table", 404),
            (f"{API}/table?where=%28", 400),
            (f"{API}/table?sort=nothing", 404),
            (f"{API}/table?states=gone", 400),
            (f"{API}/table?rows=x", 400),
            (f"{API}/runs/nothing", 404),
            (f"{series}=los", 404),
            (f"{API}/runs/{GOOD}/series", 404),
            (f"{series}=loss&points=0", 400),
            (f"{series}=loss&points=%EF%BC%91", 400),
            (f"{series}=loss&points=9999999999999999999999", 400),
            ("/api/compare", 400),
            (f"/api/compare?run=fit/{GOOD}", 400),
            (f"/api/compare?run=fit/{GOOD}&run=fit/nothing", 404),
            ("/api/compare?run=..%2f..&run=x", 404),
            ("/api/nothing", 404),
        ):
            answer = client.get(path)
            assert answer.status_code in ((400, 404) if status == 404 else (status,)), answer.text
            assert answer.json()["error"]

    def test_a_damaged_run_and_a_name_that_is_not_text(self, served: Bench, tmp_path: Path) -> None:
        bench = copy_bench(served, tmp_path)
        (bench.root / "fit" / BAD / "run.json").write_text("{")
        with open(os.path.join(os.fsencode(bench.root / "fit" / GOOD), b"odd-\xff.txt"), "w") as file:
            file.write("x")
        with open_client(bench.root) as client:
            assert client.get(f"{API}/runs/{BAD}").status_code < 500
            assert len(ask(client, f"{API}/runs")) == 4
            assert any(name.startswith("odd-") for name in ask(client, f"{API}/runs/{GOOD}")["files"])
