"""The servers that this user runs on this machine: each has a file about itself in the cache while it serves."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from assay.system.files import cache_dir, list_names, parse_json, read_text, write_atomic
from assay.system.processes import boot_id, is_alive, own_start


class Server(NamedTuple):
    pid: int
    start: int
    boot: str
    roots: list[str]
    address: str  # ends with a slash
    secret: str = ""  # the token, if the server generated it

    @property
    def port(self) -> str:
        return self.address.rstrip("/").rpartition(":")[2]


@contextmanager
def noted(roots: tuple[str, ...], address: str, secret: str) -> Iterator[None]:
    """List this server in the cache while the context is open. The server also works if that fails."""
    server = Server(os.getpid(), own_start(), boot_id(), [os.path.realpath(root) for root in roots], address, secret)
    path = build_path(server, "json")
    with suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        write_atomic(path, json.dumps(server._asdict()), 0o600)
    try:
        yield
    finally:
        for each in (path, build_path(server, "html")):
            with suppress(OSError):
                os.remove(each)


def build_path(server: Server, suffix: str) -> str:
    return os.path.join(cache_dir(os.environ), f"serve-{server.port}.{suffix}")


def list_servers() -> Iterator[Server]:
    """Yield the servers that are alive. Files that are damaged or of another version are ignored."""
    folder = cache_dir(os.environ)
    for name in sorted(list_names(folder)):
        if name.startswith("serve-") and name.endswith(".json"):
            with suppress(OSError, ValueError, TypeError):
                server = Server(**parse_json(read_text(os.path.join(folder, name))))
                if is_alive(server.pid, server.start, server.boot):
                    yield server
