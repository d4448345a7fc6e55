"""A root with a real study, and the application that serves it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.study.workbench import Bench, build_bench

from assay.web.app import build_app
from assay.web.security import Token
from assay.web.site import Site

TOKEN = "a-token-of-the-tests-0123456789"
READER = "a-reader-of-the-tests-0123456789"
UPLOADER = "an-uploader-of-the-tests-0123456789"
TOKENS = (Token(TOKEN), Token(READER, "read"), Token(UPLOADER, "upload"))
WRITE = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Four runs of the study `fit`: two are done, two failed."""
    return build_bench(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def client(served: Bench) -> Iterator[TestClient]:
    with open_client(served.root) as client:
        yield client


def open_client(*roots: Path, is_open: bool = True) -> TestClient:
    site = Site(tuple(map(str, roots)), TOKENS, is_open=is_open)
    return TestClient(build_app(site), base_url="http://127.0.0.1:8666", raise_server_exceptions=False)
