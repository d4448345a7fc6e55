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
def client(served: Bench, tmp_path: Path) -> Iterator[TestClient]:
    bench = copy_bench(served, tmp_path)
    runs = [Path(each) for each in find_run_dirs(str(bench.root / "fit"))][:3]
    Program().write(runs[0])
    Program(scale={(1, 1): 1.01}).write(runs[1])
    Program(poison=(1, 0)).write(runs[2])
    self_names = [f"fit/{run.name}" for run in runs]
    with open_client(bench.root) as client:
        client.names = self_names  # type: ignore[attr-defined]
        client.folder = runs[2]  # type: ignore[attr-defined]
        yield client


def test_two_runs_are_compared_on_the_page(client: TestClient) -> None:
    a, b, broken = client.names  # type: ignore[attr-defined]
    page = client.get("/traces", params={"a": a, "b": b}).text
    assert "layers.1 in step 1 differs by" in page
    assert page.count('role="img"') == 2
    assert page.count('<option value="fit/') == 6
    assert "not finite" in client.get("/traces", params={"a": broken}).text


def test_only_runs_with_a_trace_are_offered(client: TestClient) -> None:
    assert client.get("/traces", params={"a": "../../etc"}).status_code == 404
    folder = client.folder  # type: ignore[attr-defined]
    (folder / "trace" / "rank-0" / "trace.json").write_text("{}")
    page = client.get("/traces", params={"a": f"fit/{folder.name}"})
    assert (page.status_code, "this version reads format 1" in page.text) == (200, True)
    shutil.rmtree(folder / "trace")
    assert client.get("/traces", params={"a": f"fit/{folder.name}"}).status_code == 404
