"""Closes connections with requests that are half sent, bodies that do not arrive, or answers that are not read. To
connect needs no token, and the server accepts a limited number of connections at once.

If an address has too many connections without a whole request, its oldest one is closed, so that a browser can connect
despite hundreds of them; no address can have all connections.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 500  # connections, also those of event streams
MOST_OF_ONE = 300  # connections from one address
MOST_WAITING = 64  # connections from one address that have not sent a whole request
HEADERS_S = 10.0  # time within which the headers of a request must be complete
STALL_S = 30.0  # time within which a part of a body must arrive, or a part of an answer must be read
LEAST_BYTES = 1024  # bytes of a body that must arrive within STALL_S
LOOK_S = 1.0


class GuardedProtocol(H11Protocol):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.host = ""
        self.asked_at = self._progress_at = self.loop.time()
        self._received = self._unsent = 0
        self._look_later: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.host = self.client[0] if self.client else ""
        others = [each for each in self.connections if isinstance(each, GuardedProtocol)]
        same = [each for each in others if each.host == self.host and not each.transport.is_closing()]
        waiting = [each for each in same if each.is_unused]
        if len(same) > MOST_OF_ONE:
            transport.abort()
        elif len(waiting) > MOST_WAITING:
            min(waiting, key=lambda each: each.asked_at).transport.abort()
        self._look_later = self.loop.call_later(LOOK_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._look_later is not None:
            self._look_later.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._received += len(data)
        if self._received >= LEAST_BYTES:
            self._received, self._progress_at = 0, self.loop.time()

    def on_response_complete(self) -> None:
        self.asked_at = self.loop.time()
        super().on_response_complete()

    def resume_writing(self) -> None:
        self._progress_at = self.loop.time()
        super().resume_writing()

    @property
    def is_unused(self) -> bool:
        """Return whether no whole request came since the last answer, or one was answered before its body arrived."""
        return self.conn.their_state is h11.IDLE or self.conn.our_state in (h11.DONE, h11.MUST_CLOSE)

    def _look(self) -> None:
        try:
            now, unsent = self.loop.time(), self.transport.get_write_buffer_size()
        except AttributeError:  # a TLS transport that asyncio has closed has no protocol
            return
        waits_for_body = self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused
        if unsent < self._unsent or not (unsent or waits_for_body):
            self._progress_at = now
        self._unsent = unsent
        is_late = self.is_unused and not unsent and now - self.asked_at > HEADERS_S
        if is_late or now - self._progress_at > STALL_S:
            self.transport.abort()
        else:
            self._look_later = self.loop.call_later(LOOK_S, self._look)
