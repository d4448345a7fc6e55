"""Sources of data on loopback: a web server that can misbehave, and the emulators of three object stores."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.bad_servers import QuietServer, recording
from tests.services import AZURITE

START_S = 60
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # Azurite's own key
)


# ---------------------------------------------------------------- the web


@dataclass
class Page:
    """What the server has at a path, and how it misbehaves: lists are used up, one entry per request."""

    body: bytes = b""
    etag: str | None = '"one"'
    modified: str | None = None
    ranges: bool = True
    location: str | None = None
    chunked: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)  # bytes after which the connection breaks
    wrong_ranges: list[str] = field(default_factory=list)  # Content-Range to claim
    hold_at: int | None = None  # bytes after which the server waits for `release`
    release: threading.Event = field(default_factory=threading.Event)


@dataclass
class Web:
    url: str
    pages: dict[str, Page] = field(default_factory=dict)
    requests: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    server: ThreadingHTTPServer | None = None

    def encrypt(self, certificate: Path) -> None:
        """Speak https from the next connection on."""
        assert self.server is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)

    def add(self, path: str, body: bytes = b"", **more: Any) -> Page:
        self.pages[path] = Page(body, **more)
        return self.pages[path]

    def ranges(self) -> list[str | None]:
        return [headers.get("Range") for _, headers in self.requests]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    web: Web

    def do_GET(self) -> None:
        self.web.requests.append((self.path, dict(self.headers.items())))
        page = self.web.pages.get(self.path)
        if page is None:
            self.answer(404, b"<html>no such page</html>", Page(etag=None))
        elif page.statuses and (status := page.statuses.pop(0)) != 200:
            self.answer(status, b"<html>trouble</html>", page)
        elif page.location:
            self.answer(302, b"", Page(etag=None, headers={"Location": page.location}))
        else:
            self.send_page(page)

    def send_page(self, page: Page) -> None:
        wanted, condition = self.headers.get("Range"), self.headers.get("If-Range")
        current = condition in {page.etag, page.modified} or condition is None
        if not (wanted and page.ranges and current):
            self.answer(200, page.body, page)
            return
        start, size = int(wanted.removeprefix("bytes=").rstrip("-")), len(page.body)
        if start >= size:
            self.answer(416, b"", Page(etag=None, headers={"Content-Range": f"bytes */{size}"}))
            return
        claimed = page.wrong_ranges.pop(0) if page.wrong_ranges else f"bytes {start}-{size - 1}/{size}"
        self.answer(206, page.body[start:], page, {"Content-Range": claimed})

    def answer(self, status: int, body: bytes, page: Page, more: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        names = {"ETag": page.etag, "Last-Modified": page.modified, **page.headers, **(more or {})}
        names |= {"Transfer-Encoding": "chunked"} if page.chunked else {"Content-Length": str(len(body))}
        for name, value in names.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if page.chunked:
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        if page.cuts and status < 300:
            self.wfile.write(body[: page.cuts.pop(0)])
            self.close_connection = True
            return
        if page.hold_at is not None and status < 300:
            self.wfile.write(body[: page.hold_at])
            page.release.wait(START_S)
            body = body[page.hold_at :]
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    with QuietServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {})) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        site = Web(f"http://127.0.0.1:{server.server_port}", server=server)
        server.RequestHandlerClass.web = site  # type: ignore[attr-defined]
        yield site
        for page in site.pages.values():
            page.release.set()
        server.shutdown()
        thread.join()


@contextmanager
def taking(answer: Callable[[str, Mapping[str, str], bytes], tuple[int, bytes]]) -> Iterator[str]:
    """The address of a server: `answer` gets path, headers and body of each request; it returns status and body."""
    with recording(lambda got: answer(got.path, got.headers, got.body)) as server:
        yield server.url


# ---------------------------------------------------------------- emulators


VIEWS: dict[str, Any] = {}


@dataclass(frozen=True)
class Store:
    """An emulated object store with an empty bucket; `environment` has all variables that clients need."""

    name: str
    schemes: tuple[str, ...]
    bucket: str
    environment: dict[str, str]
    options: dict[str, Any]

    def filesystem(self) -> Any:
        """Return the library's own client, independent of ours; one for all tests, since it takes long to make."""
        import fsspec

        if self.name not in VIEWS:
            fsspec.register_implementation("gs", "gcsfs.core.GCSFileSystem", clobber=True)
            options = {"skip_instance_cache": True, "use_listings_cache": False, **self.options}
            VIEWS[self.name] = fsspec.filesystem(self.schemes[0], **options)
        return VIEWS[self.name]

    def put(self, path: str, content: bytes) -> None:
        self.filesystem().pipe_file(f"{self.bucket}/{path}", content)

    def read(self, path: str) -> bytes:
        return bytes(self.filesystem().cat_file(f"{self.bucket}/{path}"))

    def url(self, path: str = "", scheme: str | None = None) -> str:
        return f"{scheme or self.schemes[0]}://{self.bucket}/{path}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_emulator(build_command: Callable[[int], list[str]], folder: Path) -> Iterator[int]:
    port = free_port()
    with (folder / "emulator.log").open("wb") as log:
        process = subprocess.Popen(build_command(port), stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        wait_for_port(port, process, folder / "emulator.log")
        yield port
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail(f"the emulator does not listen:\n{log.read_text()[-2000:]}")


def need_module(name: str, package: str) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed: pip install '{package}'")


@pytest.fixture(scope="session")
def s3_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    need_module("moto", "moto[server]")
    need_module("s3fs", "s3fs")
    import botocore.session

    with pytest.MonkeyPatch.context() as patch:  # each new client parses three megabytes of descriptions of AWS
        patch.setattr(botocore.session, "create_loader", cache(botocore.session.create_loader))
        yield from start_emulator(
            lambda port: [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            tmp_path_factory.mktemp("moto"),
        )


@pytest.fixture(scope="session")
def gcs_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    need_module("gcp_storage_emulator", "gcp-storage-emulator")
    need_module("gcsfs", "gcsfs")
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--host=127.0.0.1", "--in-memory"]
    yield from start_emulator(lambda port: [*command, f"--port={port}"], tmp_path_factory.mktemp("gcs"))


@pytest.fixture(scope="session")
def azure_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    need_module("adlfs", "adlfs")
    # the emulator does not know the library's newest protocol version; the parts that we use are old
    quiet = ["--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    yield from start_emulator(
        lambda port: [AZURITE, "--blobHost", "127.0.0.1", "--blobPort", str(port), *quiet],
        tmp_path_factory.mktemp("azurite"),
    )


def build_s3(port: int, bucket: str) -> Store:
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "something",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    return Store("s3", ("s3",), bucket, environment, {})


def build_gcs(port: int, bucket: str) -> Store:
    return Store("gcs", ("gs",), bucket, {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"}, {"token": "anon"})


def build_azure(port: int, bucket: str) -> Store:
    account = "devstoreaccount1"
    text = (
        f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={AZURE_KEY};"
        f"BlobEndpoint=http://127.0.0.1:{port}/{account};"
    )
    return Store("azure", ("az", "abfs", "abfss"), bucket, {"AZURE_STORAGE_CONNECTION_STRING": text}, {})


BUILDERS = {"s3": build_s3, "gcs": build_gcs, "azure": build_azure}
CLOUD_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR", "FSSPEC_", "GCSFS_")


def open_store(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    import os

    for variable in [key for key in os.environ if key.startswith(CLOUD_VARIABLES)]:
        monkeypatch.delenv(variable)
    monkeypatch.setattr("assay.exchange.store.object_store._ANSWER_S", 120.0)  # beside other tests
    bucket = f"bucket-{abs(hash(request.node.nodeid)):x}"
    store = BUILDERS[name](request.getfixturevalue(f"{name}_port"), bucket)
    for variable, value in {**store.environment, "no_proxy": "127.0.0.1"}.items():
        monkeypatch.setenv(variable, value)
    store.filesystem().mkdir(bucket)
    return store


@pytest.fixture(params=["s3", "gcs", pytest.param("azure", marks=pytest.mark.services("azurite"))])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Each of the three stores in turn."""
    return open_store(request.param, request, monkeypatch)


@pytest.fixture
def s3(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    return open_store("s3", request, monkeypatch)
