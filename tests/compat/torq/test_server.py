"""Sending results: what arrives, and what is said when it does not."""

from __future__ import annotations

import email.message
import email.parser
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from assay.compat.torq.server import check_server, send_session
from assay.errors import InfrastructureError, UsageError


@dataclass
class Dashboard:
    """A server on loopback that answers in turn, and keeps what it was sent."""

    url: str = ""
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    archives: list[bytes] = field(default_factory=list)


def read_file(headers: Any, body: bytes) -> bytes:
    head = f"Content-Type: {headers['Content-Type']}\r\n\r\n".encode()
    message = email.parser.BytesParser().parsebytes(head + body)
    (part,) = message.get_payload()
    assert isinstance(part, email.message.Message)
    assert part.get_param("name", header="Content-Disposition") == "file"
    assert part.get_content_type() == "application/zip"
    assert part.get_filename() == "bundle.zip"
    start = body.index(b"\r\n\r\n") + 4
    return body[start : body.rindex(b"\r\n--")]


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dashboard]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    found = Dashboard()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.paths.append(self.path)
            found.tokens.append(self.headers["Authorization"])
            found.archives.append(read_file(self.headers, body))
            code, answer = found.answers.pop(0) if found.answers else (201, b'{"id": 7}')
            self.send_response(code)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://host", "http://", "nonsense"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="TORQ_PERF_SERVER="):
        check_server(url)


def test_a_slash_at_the_end_does_no_harm() -> None:
    assert check_server("http://localhost:8080/") == "http://localhost:8080"


@pytest.mark.parametrize("archive", [b"PK\x03\x04", bytes(range(256)) * 40 + b"\r\n--x\r\n"])
def test_the_archive_arrives_as_it_is(dashboard: Dashboard, archive: bytes) -> None:
    assert send_session(dashboard.url, archive) == "7"
    assert dashboard.archives == [archive]
    assert dashboard.paths == ["/api/test-sessions/upload_zip/"]
    assert dashboard.tokens == [None]


def test_a_token_is_sent_along(dashboard: Dashboard) -> None:
    send_session(dashboard.url, b"x", "secret")
    assert dashboard.tokens == ["Bearer secret"]


def test_a_server_in_trouble_is_asked_again_with_more_and_more_time(dashboard: Dashboard) -> None:
    dashboard.answers = [(503, b"later"), (500, b"oh"), (200, b'{"id": "abc"}')]
    waited: list[float] = []
    assert send_session(dashboard.url, b"x", sleep=waited.append) == "abc"
    assert waited == [2.0, 4.0]
    assert len(dashboard.archives) == 3


def test_it_gives_up_after_three(dashboard: Dashboard) -> None:
    dashboard.answers = [(500, b"oh")] * 5
    with pytest.raises(InfrastructureError, match=r"could not be sent to 127.0.0.1:\d+: 500 Internal Server Error: oh"):
        send_session(dashboard.url, b"x", sleep=lambda _: None)
    assert len(dashboard.archives) == 3


def test_a_refusal_is_not_asked_again(dashboard: Dashboard) -> None:
    dashboard.answers = [(403, b'{"detail": "no token"}')]
    with pytest.raises(InfrastructureError, match=r"403 Forbidden: .*no token"):
        send_session(dashboard.url, b"x", sleep=lambda _: None)
    assert len(dashboard.archives) == 1


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b"{}"])
def test_an_answer_without_a_number_is_said(dashboard: Dashboard, answer: bytes) -> None:
    dashboard.answers = [(200, answer)]
    with pytest.raises(InfrastructureError, match="without the number"):
        send_session(dashboard.url, b"x", sleep=lambda _: None)


def test_nobody_listens(closed_port: int) -> None:
    with pytest.raises(InfrastructureError, match="refused"):
        send_session(f"http://127.0.0.1:{closed_port}", b"x", sleep=lambda _: None)


def test_credentials_in_the_address_are_not_printed(closed_port: int) -> None:
    with pytest.raises(InfrastructureError) as caught:
        send_session(f"http://user:secret@127.0.0.1:{closed_port}", b"x", sleep=lambda _: None)
    assert "secret" not in caught.value.render()
