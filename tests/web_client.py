"""A root with a real study, and the application that serves it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.finished_study import Bench, build_bench, until

if TYPE_CHECKING:
    from starlette.testclient import TestClient

    from assay.web.security import AccessToken

TOKEN = "a-token-of-the-tests-0123456789"
READER = "a-reader-of-the-tests-0123456789"
UPLOADER = "an-uploader-of-the-tests-0123456789"
WRITE = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A bench with four runs of the study `fit`: two are done, two failed."""
    return build_bench(tmp_path_factory.mktemp("served"))


def copy_bench(served: Bench, folder: Path) -> Bench:
    """The runs of `served` for a test that changes them."""
    bench = Bench(folder)
    shutil.copytree(served.folder, bench.folder, symlinks=True, dirs_exist_ok=True)
    return bench


@pytest.fixture(scope="session")
def client(served: Bench) -> Iterator[TestClient]:
    with open_client(served.root) as client:
        yield client


def build_tokens() -> tuple[AccessToken, ...]:
    from assay.web.security import AccessToken

    return AccessToken(TOKEN), AccessToken(READER, "read"), AccessToken(UPLOADER, "upload")


def open_client(*roots: Path, is_open: bool = True) -> TestClient:
    from starlette.testclient import TestClient

    from assay.web.app import build_app
    from assay.web.site import Site

    site = Site(tuple(map(str, roots)), build_tokens(), is_open=is_open)
    return TestClient(build_app(site), base_url="http://127.0.0.1:8666", raise_server_exceptions=False)


@contextmanager
def open_server(root: Path, **options: Any) -> Iterator[int]:
    """A real server: its port."""
    import uvicorn

    from assay.web.app import build_app
    from assay.web.site import Site

    app = build_app(Site((str(root),), build_tokens()))
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", access_log=False, **options))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    until(lambda: running.started, "the server has started")
    yield running.servers[0].sockets[0].getsockname()[1]
    running.should_exit = True
    thread.join(30)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A real server: its address and its root."""
    root = tmp_path / "there"
    root.mkdir()
    with open_server(root) as port:
        yield f"http://127.0.0.1:{port}", root


def call(bench: Bench, *words: str) -> str:
    """What a command that only reads prints in this bench, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        return bench.enter(patch).read(*words).stdout
