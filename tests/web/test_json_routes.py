"""The JSON interface, against what the commands print."""

from __future__ import annotations

import json
import math
import os
import re
from array import array
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from starlette.testclient import TestClient
from tests.finished_study import BAD, GOOD, Bench
from tests.web_client import WRITE, build_tokens, call, copy_bench, open_client

from assay.errors import NotFoundError
from assay.follow.api import StudyLocation, record_verdicts
from assay.record.index.base import Series
from assay.values.verdict import Finding, Verdict, VerdictKind
from assay.web.app import build_app, list_entries
from assay.web.json_routes import build_document, build_series_facts
from assay.web.site import Site

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
        assert ask(client, f"{API}/table", rows=3, page=2) == ask(client, f"{API}/table")[3:]
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


# ---------------------------------------------------------------- the document that describes it


ENTRIES = list_entries(Site(()))
OPERATIONS = [(method, entry.path) for entry in ENTRIES if entry.operation for method in entry.methods]


@pytest.mark.needs(bench=True, exchange=True)
def test_every_route_is_described() -> None:
    assert {path for _, path in OPERATIONS} == {entry.path for entry in ENTRIES if entry.path.startswith("/api/")}
    assert {"/api/benchmarks/{study}/triage", "/api/uploads"} < {path for _, path in OPERATIONS}


def test_the_document_is_valid(client: TestClient) -> None:
    document = client.get("/api/openapi.json").json()
    assert document == build_document(ENTRIES)
    assert document["openapi"] == "3.1.0"
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names))
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            names_in_path = {param["name"] for param in operation["parameters"] if param["in"] == "path"}
            assert names_in_path == set(re.findall(r"{(\w+)", path))
    pytest.importorskip("openapi_spec_validator").validate(document)


@pytest.mark.parametrize("path", [path for method, path in OPERATIONS if method == "GET"])
def test_good_answers_match_it(client: TestClient, path: str) -> None:
    document = build_document(ENTRIES)
    query = {"/api/compare": [("run", f"fit/{GOOD}"), ("run", "fit/lr=0.5,n=7")]}.get(path, [])
    query += [("metric", "loss")] if path.endswith(("/series", "/compare/curves")) else []
    answer = client.get(path.replace("{study}", "fit").replace("{run}", GOOD), params=query)
    assert answer.status_code == 200, answer.text
    schema = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(answer.json(), {**schema, "components": document["components"]})


@pytest.mark.services("api")
@pytest.mark.parametrize("operation", sorted(OPERATIONS), ids=" ".join)
def test_whatever_is_asked_is_answered_as_described(served: Bench, operation: tuple[str, str]) -> None:
    """schemathesis makes the questions from the document; every second one is about a run that exists, unless it would
    change it."""
    import hypothesis
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    method, path = operation
    app = build_app(Site((str(served.root),), build_tokens(), hosts=("testserver", "127.0.0.1")))
    api = schemathesis.openapi.from_asgi("/api/openapi.json", app)[path][method]
    wanted = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]

    @hypothesis.settings(max_examples=25, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(case=api.as_strategy(), is_known=hypothesis.strategies.booleans())
    def check(case: Any, is_known: bool) -> None:
        if is_known and method == "GET":
            names = {"study": "fit", "run": GOOD}
            case.path_parameters = {name: names[name] for name in case.path_parameters or {}}
        case.call_and_validate(checks=wanted, headers=WRITE)

    check()
