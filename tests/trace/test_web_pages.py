"""The page that compares traced runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.finished_study import Bench
from tests.trace_files import Program
from tests.web_client import copy_bench, open_client

from assay.record.folders import find_run_dirs


@pytest.fixture
def runs(served: Bench, tmp_path: Path) -> list[Path]:
    bench = copy_bench(served, tmp_path)
    programs = Program(), Program(scale={(1, 1): 1.01}), Program(poison=(1, 0))
    found = find_run_dirs(str(bench.root / "fit"))
    return [each.write(Path(run)) for each, run in zip(programs, found, strict=False)]


@pytest.fixture
def client(runs: list[Path]) -> Iterator[TestClient]:
    with open_client(runs[0].parents[1]) as client:
        yield client


def test_two_runs_are_compared_on_the_page(client: TestClient, runs: list[Path]) -> None:
    a, b, broken = (f"fit/{run.name}" for run in runs)
    page = client.get("/traces", params={"a": a, "b": b}).text
    assert "layers.1 in step 1 differs by" in page
    assert page.count('role="img"') == 2
    assert page.count('<option value="fit/') == 6
    assert "not finite" in client.get("/traces", params={"a": broken}).text


def test_only_runs_with_a_trace_are_offered(client: TestClient, runs: list[Path]) -> None:
    assert client.get("/traces", params={"a": "../../etc"}).status_code == 404
    folder = runs[2]
    (folder / "trace" / "rank-0" / "trace.json").write_text("{}")
    page = client.get("/traces", params={"a": f"fit/{folder.name}"})
    assert (page.status_code, "this version reads format 1" in page.text) == (200, True)
    shutil.rmtree(folder / "trace")
    assert client.get("/traces", params={"a": f"fit/{folder.name}"}).status_code == 404
