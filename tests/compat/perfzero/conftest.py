from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.data_servers import taking

from assay.compat.perfzero.wheel import write_wheel


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Assay as a wheel, which takes a quarter of a second to pack."""
    return Path(write_wheel(str(tmp_path_factory.mktemp("wheel"))))


@pytest.fixture
def copy_wheel(packed: Path) -> Callable[[str], str]:
    """In the place of `write_wheel`."""
    return lambda folder: shutil.copy(packed, os.path.join(folder, packed.name))


@dataclass
class Warehouse:
    """Takes rows for one table as the REST interface does."""

    path: str = "/bigquery/v2/projects/p/datasets/d/tables/t/insertAll"
    rows: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0
    status: int = 200
    errors: list[dict[str, Any]] = field(default_factory=list)
    takes: int = 0  # rows that it takes before it has errors

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked += 1
        if self.status != 200:
            reason = "backendError" if self.status == 503 else "x"
            return self.status, {"error": {"message": "not today", "errors": [{"reason": reason}]}}
        if path.partition("?")[0] != self.path:
            return 404, {"error": {"code": 404, "message": "Not found: Table"}}
        if self.errors and len(self.rows) >= self.takes:
            return 200, {"insertErrors": [{"index": 0, "errors": self.errors}]}
        self.rows += body["rows"]
        return 200, {"kind": "bigquery#tableDataInsertAllResponse"}


@pytest.fixture
def warehouse(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warehouse]:
    pytest.importorskip("google.cloud.bigquery", reason="pip install 'assay[bigquery]'")
    table = Warehouse()

    def answer(path: str, _headers: object, body: bytes) -> tuple[int, bytes]:
        status, reply = table.answer(path, json.loads(body))
        return status, json.dumps(reply).encode()

    with taking(answer) as url:
        monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield table
