"""Servers on loopback with prepared answers, HTTP or not."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Got(NamedTuple):
    path: str
    headers: Mapping[str, str]
    body: bytes


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: tests kill clients."""


class RecordingServer(QuietServer):
    """Keeps each request, and answers with a status and a body, which is an address if the status redirects."""

    def __init__(self, answer: Callable[[Got], tuple[int, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.got = answer, list[Got]()
        self.url = f"http://127.0.0.1:{self.server_port}"

    @property
    def messages(self) -> list[Any]:
        """The bodies as JSON."""
        return [json.loads(each.body) for each in self.got]


class _Handler(BaseHTTPRequestHandler):
    server: RecordingServer

    def do_POST(self) -> None:
        got = Got(self.path, self.headers, self.rfile.read(int(self.headers.get("Content-Length", 0))))
        self.server.got.append(got)
        status, body = self.server.answer(got)
        self.send_response(status)
        if status // 100 == 3:
            self.send_header("Location", body.decode())
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST  # noqa: N815 as the library calls it

    def log_message(self, *_: object) -> None: ...


@contextmanager
def recording(answer: Callable[[Got], tuple[int, bytes]]) -> Iterator[RecordingServer]:
    with RecordingServer(answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


@contextmanager
def answering(parts: Sequence[bytes], *, again: float | None = None, heard: list[bytes] | None = None) -> Iterator[str]:
    """Yield a server's address. `again`: the number of seconds after which it sends the last part again, for ever."""
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(5)
            got = connection.recv(1 << 16)
            if heard is not None:
                heard.append(got)
            for part in parts:
                connection.sendall(part)
            while again is not None and not over.wait(again):
                connection.sendall(parts[-1])
            if again is None:
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
