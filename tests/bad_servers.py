"""A server on loopback with prepared answers, HTTP or not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress


@contextmanager
def answering(parts: Sequence[bytes], *, again: float | None = None, heard: list[bytes] | None = None) -> Iterator[str]:
    """Its address. `again`: after so many seconds it says the last part once more, for ever."""
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
