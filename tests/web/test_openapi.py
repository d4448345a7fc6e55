"""The description of the JSON interface, against the routes and their answers."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
from starlette.testclient import TestClient
from tests.finished_study import GOOD, Bench
from tests.web_client import WRITE, build_tokens

from assay.web.app import build_app, list_entries
from assay.web.json_routes import build_document
from assay.web.site import Site

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
    validate = pytest.importorskip("openapi_spec_validator").validate
    validate(document)


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
