"""Connections that hold places of the server, over real sockets: others get in beside them."""

from __future__ import annotations

import socket
import time
import urllib.request
from asyncio.sslproto import _SSLProtocolTransport
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.finished_study import until
from tests.web_client import UPLOADER, open_server

from assay.errors import UsageError
from assay.follow import collect
from assay.follow.limited_process import LimitedProcess
from assay.values.study import Pattern
from assay.web import connections
from assay.web.limited_patterns import LimitedLogParser


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of a server whose limits are low."""
    for name, value in {"MOST_WAITING": 5, "MOST_OF_ONE": 20, "HEADERS_S": 0.5, "STALL_S": 1.0, "LOOK_S": 0.05}.items():
        monkeypatch.setattr(connections, name, value)
    (tmp_path / "root").mkdir()
    with open_server(tmp_path / "root", http=connections.GuardedProtocol, limit_concurrency=30) as port:
        yield port


def connect(port: int, text: str) -> socket.socket:
    each = socket.create_connection(("127.0.0.1", port), timeout=30)
    each.sendall(text.encode())
    return each


def is_closed(each: socket.socket) -> bool:
    """By the server; what it answered before is read."""
    each.setblocking(False)
    try:
        while each.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def open_page(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/studies", timeout=30) as answer:
        return int(answer.status)


HALF = "GET /studies HTTP/1.1\r\nHost: 127.0.0.1\r\nX-"


def test_beside_many_half_sent_requests_the_page_is_there(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADERS_S", 600.0)
    with ExitStack() as stack:
        held = [stack.enter_context(connect(port, HALF)) for _ in range(150)]
        assert open_page(port) == 200
        until(lambda: sum(not is_closed(each) for each in held) <= 5, "the older ones have given way")


def test_what_does_not_go_on_is_closed_also_when_bytes_drip_in(port: int) -> None:
    """Nothing; half of the headers; half of a second request; a body after the refusal; half of a body."""
    head = "POST /api/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5000"
    body = f"{head}000\r\nContent-Type: application/zip\r\nAuthorization: Bearer {UPLOADER}\r\n\r\nPK"
    texts = ("", HALF, "GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET", f"{head}\r\n\r\n")

    def drip_until_closed(each: socket.socket) -> bool:
        try:
            each.send(b"a")
        except OSError:
            return True
        return is_closed(each)

    with ExitStack() as stack:
        held = [stack.enter_context(connect(port, text)) for text in texts]
        uploading = stack.enter_context(connect(port, body))
        until(lambda: all(list(map(drip_until_closed, held))), "the server has closed them")
        until(lambda: is_closed(uploading), "the server has closed it")
    assert open_page(port) == 200


def test_a_client_that_does_not_read_is_closed(port: int) -> None:
    asked = "GET /static/curves.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    each = socket.socket()
    each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    each.settimeout(30)
    each.connect(("127.0.0.1", port))

    def is_reset() -> bool:
        try:
            each.send(asked.encode())  # and nothing of the answers is read
        except TimeoutError:  # nothing more can be sent
            return False
        except ConnectionError:
            return True
        return False

    each.settimeout(0.05)
    with each:
        until(is_reset, "the server has closed it")


def test_one_address_cannot_have_all_places(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of events: whole requests, which are answered for ever."""
    monkeypatch.setattr(connections, "MOST_OF_ONE", 10)
    with ExitStack() as stack:
        text = "GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        held = [stack.enter_context(connect(port, text)) for _ in range(30)]
        until(lambda: sum(not is_closed(each) for each in held) <= 10, "no more than ten are left")
        other = stack.enter_context(socket.socket())
        other.bind(("127.0.0.2", 0))  # another address
        other.connect(("127.0.0.1", port))
        other.sendall(b"GET /studies HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        other.settimeout(30)
        assert b"200 OK" in other.recv(4096)


def test_a_transport_of_tls_that_asyncio_has_closed_is_left_alone() -> None:
    protocol = object.__new__(connections.GuardedProtocol)
    protocol.loop = SimpleNamespace(time=lambda: 0.0, call_later=pytest.fail)  # type: ignore[assignment]
    protocol.transport = _SSLProtocolTransport(protocol.loop, None)  # type: ignore[assignment]
    protocol.transport._closed = True  # type: ignore[attr-defined]
    protocol._look()


def test_a_connection_that_is_used_again_stays(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than the headers of one request may take."""
    monkeypatch.setattr(connections, "HEADERS_S", 0.8)
    with connect(port, "") as each:
        end = time.monotonic() + 1.2
        count = 0
        while time.monotonic() < end:
            each.sendall(b"HEAD /login HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert each.recv(4096).startswith(b"HTTP/1.1 200")
            count += 1
            time.sleep(0.05)
        assert count > 1


# ---------------------------------------------------------------- patterns that take for ever


ENDLESS = Pattern("loss", r"(([a-z]+)+)+([0-9])$")
GOOD = Pattern("loss", r"loss ([\d.]+)")


def test_the_points_are_the_same_and_patterns_that_take_for_ever_are_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parser, data = LimitedLogParser(), b"step 1 loss 0.5\nstep 2 loss 0.25\nloss"
    patterns = [GOOD, Pattern("step", r"step (\d+)")]
    for final in (False, True):
        expected = collect.parse_log(patterns, "train", data, {}, final)
        assert repr(parser(patterns, "train", data, {}, final)) == repr(expected)  # NaN is in it
    with pytest.raises(UsageError, match="not a regular expression"):
        parser([Pattern("loss", "(")], "train", b"loss 1\n", {}, True)
    monkeypatch.setattr(LimitedLogParser, "FIRST_S", 0.1)
    data = b"a" * 60 + b"!\n"
    with pytest.raises(UsageError, match="of CPU time"):
        parser([ENDLESS], "train", data, {}, True)
    monkeypatch.setattr(LimitedProcess, "call", lambda *_, **__: pytest.fail("tried again"))
    with pytest.raises(UsageError, match="too long before"):
        parser([ENDLESS], "train", data, {}, True)


def test_patterns_that_are_only_slow_run_out_of_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call stays below the limit."""
    monkeypatch.setattr(LimitedProcess, "call", lambda *_, **__: (({}, 0, {}), 4.0))
    parser = LimitedLogParser()
    for _ in range(3):
        parser([ENDLESS], "train", b"a\n", {}, False)
    with pytest.raises(UsageError, match="too long before"):
        parser([ENDLESS], "train", b"a\n", {}, False)


def test_a_log_that_is_followed_for_days_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LimitedProcess, "call", lambda *_, **__: (({}, 0, {}), 0.02))
    parser = LimitedLogParser()
    for _ in range(10_000):
        parser([GOOD], "train", b"loss 1\n", {}, False)
