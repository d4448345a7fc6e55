"""One POST: whatever a server does, there is an answer or an OSError, within the time that was given."""

from __future__ import annotations

import gc
import socket
import struct
import threading
import time
import warnings

import pytest
from tests.bad_servers import answering

from assay.system.http_post import post

HEADERS = {"Authorization": "Bearer secret"}
OK = b"HTTP/1.1 200 OK\r\n"


def test_an_answer() -> None:
    heard: list[bytes] = []
    with answering([OK + b"Content-Length: 2\r\n\r\nok"], heard=heard) as url:
        assert post(f"{url}/a?b=c", b"body", HEADERS) == (200, b"ok")
    assert heard[0].startswith(b"POST /a?b=c HTTP/1.1\r\n")
    assert b"Bearer secret" in heard[0]
    with answering([OK + b"Content-Length: 99999999999\r\n\r\nshort"]) as url:  # it announces more than it sends
        assert post(url, b"", HEADERS) == (200, b"short")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x16\x03\x01 hello garbage\r\n\r\n",
        OK + b"".join(b"x-%d: 1\r\n" % n for n in range(200)) + b"\r\n",
        OK + b"x: " + b"a" * 100_000 + b"\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nbroken",
        b"HTTP/1.1 999999999999999 X\r\n\r\n",
    ],
)
def test_what_is_not_an_answer(answer: bytes) -> None:
    with answering([answer]) as url, pytest.raises(OSError):
        post(url, b"body", HEADERS, 5.0)


def test_an_answer_that_breaks_off_leaves_no_open_socket() -> None:
    """The error and the frames of the call refer to each other: what is open would stay until garbage is collected."""

    def answer_and_reset(server: socket.socket) -> None:
        connection = server.accept()[0]
        connection.recv(65536)
        connection.sendall(OK + b"Connection: close\r\nContent-Length: 100\r\n\r\nshort")
        time.sleep(0.2)  # the client is reading by then
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    gc.collect()  # the garbage of other tests
    with socket.create_server(("127.0.0.1", 0)) as server, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = threading.Thread(target=answer_and_reset, args=(server,))
        thread.start()
        with pytest.raises(ConnectionResetError):
            post(f"http://127.0.0.1:{server.getsockname()[1]}", b"body", HEADERS, 5.0)
        thread.join()
        gc.collect()
    assert [str(each.message) for each in caught] == []


@pytest.mark.parametrize(
    ("parts", "again"),
    [([b"HTTP/1.1 100 Continue\r\n\r\n"], 0.01), ([OK + b"x: ", b"a"], 0.05), ([OK + b"\r\n", b"a"], 0.05)],
)
def test_an_answer_without_an_end(parts: list[bytes], again: float) -> None:
    with answering(parts, again=again) as url, pytest.raises(TimeoutError, match="no complete answer"):
        post(url, b"body", HEADERS, 0.3)


def test_a_redirection_takes_no_token_elsewhere() -> None:
    heard: list[bytes] = []
    with answering([OK + b"\r\n"], heard=heard) as other:
        moved = f"HTTP/1.1 302 Found\r\nLocation: {other}/stolen\r\nContent-Length: 0\r\n\r\n".encode()
        with answering([moved]) as url:
            assert post(url, b"body", HEADERS) == (302, b"")
    assert not heard


@pytest.mark.parametrize("url", ["http://h h/", "http://h:x/", "http://[::1", "http://h\x01/"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(OSError, match="its address is not valid"):
        post(url, b"", {})


def test_a_header_that_cannot_be_sent_is_not_told(closed_port: int) -> None:
    with answering([OK + b"\r\n"]) as url, pytest.raises(OSError, match="cannot be asked") as caught:
        post(url, b"", {"Authorization": "Bearer sec\nret"})
    assert "sec" not in str(caught.value)
    with pytest.raises(OSError, match="efused"):
        post(f"http://127.0.0.1:{closed_port}", b"", {})
