"""A root with a real study, and the application that serves it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A real one: its address and its root."""
    root = tmp_path / "there"
    root.mkdir()
    config = uvicorn.Config(build_app(Site((str(root),), TOKENS)), port=0, log_level="error", access_log=False)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not running.started:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    port = running.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}", root
    running.should_exit = True
    thread.join(30)
