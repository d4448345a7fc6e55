"""An alarm that nobody hears is none: a real server on loopback hears it, refuses it, or is not there."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from assay.bench.flow.alerts import check_address, send_alert
from assay.errors import InfrastructureError, UsageError


class Hook:
    def __init__(self) -> None:
        self.heard: list[tuple[str, str | None, Any]] = []
        self.answer = 204
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.heard.append((self.path, self.headers["Content-Type"], json.loads(body)))
                self.send_response(hook.answer)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()
    yield found
    found.close()


def test_it_arrives_as_json(hook: Hook) -> None:
    content = {"title": "it is slower", "cases": [{"verdict": "FAIL", "note": "größer ±5%"}]}
    send_alert(f"{hook.address}/a/hook?token=x", content)
    assert hook.heard == [("/a/hook?token=x", "application/json", content)]


@pytest.mark.parametrize("answer", [400, 404, 500])
def test_an_address_that_refuses_is_said(hook: Hook, answer: int) -> None:
    hook.answer = answer
    with pytest.raises(InfrastructureError, match=rf"could not be sent to 127\.0\.0\.1: .*{answer}"):
        send_alert(hook.address, {})


def test_the_words_of_an_error_do_not_tell_the_token(hook: Hook) -> None:
    hook.answer = 500
    with pytest.raises(InfrastructureError) as caught:
        send_alert(f"{hook.address}/secret-token", {})
    assert "secret-token" not in caught.value.message


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(InfrastructureError, match="could not be sent"):
        send_alert(f"http://127.0.0.1:{port}/", {})


@pytest.mark.parametrize("url", ["", "hook", "ftp://x/y", "file:///etc/passwd", "http://", "https:///path"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        check_address(url)
    with pytest.raises(UsageError):
        send_alert(url, {})
