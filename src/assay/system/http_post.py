"""Send one POST to an untrusted server, which may be down or slow, or may not speak HTTP."""

from __future__ import annotations

import base64
import http.client
import io
import ipaddress
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import IO
from urllib.parse import unquote, urlsplit

TIMEOUT_S = 60.0
_SLOWEST = 100_000  # bytes per second of a slow upload
_MOST_ANSWER = 1 << 24


class NotHttpError(OSError):
    """The server does not speak HTTP: a second try would not help."""

    def __init__(self, error: http.client.HTTPException) -> None:
        self.kind = type(error).__name__
        super().__init__(f"its answer is not HTTP: {str(error)[:200] or self.kind}")


class ProxyError(OSError):
    """The environment names a proxy that Assay cannot use."""

    def __init__(self, host: str) -> None:
        super().__init__("the proxy of the environment is not an http:// address")
        self.hint = f"reach {host} without it: export no_proxy={host}"


def is_web_address(url: str) -> bool:
    """Whether the address begins with http:// or https://, and has a host and a valid port."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number, or a bracket is not closed
        return False


def post(
    url: str, body: bytes | IO[bytes], headers: Mapping[str, str], limit_s: float = TIMEOUT_S
) -> tuple[int, bytes]:
    """Return the status and the answer, cut off after _MOST_ANSWER bytes. Every error is raised as an OSError.
    Redirections, which would send a token elsewhere, are not followed. `limit_s` covers everything from the name lookup
    on, and grows with the size of the body; an endless answer does not extend the limit."""
    file = io.BytesIO(body) if isinstance(body, bytes) else body
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    limit_s += size / _SLOWEST
    try:
        connection, path, more = _connect(url, limit_s)
    except (ValueError, http.client.InvalidURL) as error:
        raise OSError(f"its address is not valid: {error}") from None
    given = {**more, **headers, "Content-Length": str(size)}
    answers: list[tuple[int, bytes] | OSError] = []
    thread = threading.Thread(target=lambda: answers.append(_ask(connection, path, file, given)), daemon=True)
    thread.start()
    thread.join(limit_s)
    if not answers:
        with suppress(OSError, AttributeError):  # there may be no connection yet
            connection.sock.shutdown(socket.SHUT_RDWR)
        raise TimeoutError(f"no complete answer within {limit_s:.0f} s")
    if isinstance(answers[0], OSError):
        raise answers[0]
    return answers[0]


def _ask(
    connection: http.client.HTTPConnection, path: str, file: IO[bytes], headers: Mapping[str, str]
) -> tuple[int, bytes] | OSError:
    try:
        with suppress(BrokenPipeError, ConnectionResetError):  # the server may answer before it closes the connection
            connection.request("POST", path, file, headers)
        with connection.getresponse() as answer:  # an answer that is not read to its end keeps the socket open
            return answer.status, answer.read(_MOST_ANSWER)
    except OSError as error:
        return error
    except http.client.HTTPException as error:
        return NotHttpError(error)
    except Exception as error:  # noqa: BLE001 also for an invalid header; the error's text may contain the token
        return OSError(f"it cannot be asked: {type(error).__name__}")
    finally:
        connection.close()


def _connect(url: str, limit_s: float) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
    """Return a direct connection, or one by the proxy of the environment, with the path and headers to use."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    host, known = str(parts.hostname), dict[str, str]()
    if parts.username is not None:
        known["Authorization"] = _build_basic(parts.username, parts.password)
    path = parts.path + (f"?{parts.query}" if parts.query else "") or "/"
    proxy = find_proxy(parts.scheme, host, parts.port)
    if proxy is None:
        return kind(host, parts.port, timeout=limit_s), path, known
    by = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if by.scheme != "http" or not by.hostname:
        raise ProxyError(host)
    login = {"Proxy-Authorization": _build_basic(by.username, by.password)} if by.username else {}
    connection = kind(by.hostname, by.port or 80, timeout=limit_s)
    if parts.scheme == "https":
        connection.set_tunnel(host, parts.port, login)
        return connection, path, known
    return connection, f"http://{parts.netloc.rpartition('@')[2]}{path}", known | login


def _build_basic(user: str, password: str | None) -> str:
    return "Basic " + base64.b64encode(f"{unquote(user)}:{unquote(password or '')}".encode()).decode()


def find_proxy(scheme: str, host: str, port: int | None) -> str | None:
    """Return the proxy that the environment sets, as urllib, curl and pip do; None without one and for this machine."""
    from urllib.request import getproxies, proxy_bypass

    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return None
    if host == "localhost":
        return None
    proxies = getproxies()
    name = f"[{host}]" if ":" in host else host
    if proxy_bypass(f"{name}:{port}" if port else name):
        return None
    return proxies.get(scheme) or proxies.get("all") or None
