"""Torq's dashboard: send it the archive of a test session."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from urllib.parse import urlsplit

from assay.errors import InfrastructureError, UsageError

_UPLOAD = "/api/test-sessions/upload_zip/"
_ATTEMPTS = 3
_TIMEOUT_S = 60.0
_MOST_SAID = 300  # characters of a refusal


def check_server(url: str) -> str:
    """The address without a slash at its end. Raises UsageError for what is none."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"TORQ_PERF_SERVER={url} is not a valid address", "such as http://localhost:8080")
    return url.rstrip("/")


def send_session(
    server: str, archive: bytes, token: str | None = None, sleep: Callable[[float], None] = time.sleep
) -> str:
    """The number that the dashboard gave it. A server that does not answer, or is in trouble, is asked again."""
    problem = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            sleep(2.0**attempt)
        try:
            return _send(server, archive, token)
        except _RefusedError as error:
            problem = str(error)
            break
        except OSError as error:
            problem = str(getattr(error, "reason", None) or error)
    raise InfrastructureError(
        f"the results could not be sent to {urlsplit(server).netloc.rpartition('@')[2]}: {problem}"
    )


class _RefusedError(Exception):
    """Asking again would not help."""


def _send(server: str, archive: bytes, token: str | None) -> str:
    import urllib.error
    import urllib.request

    boundary = uuid.uuid4().hex
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    url = server + _UPLOAD
    request = urllib.request.Request(url, _build_body(archive, boundary), headers, method="POST")  # noqa: S310 http only
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return _read_number(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            said = f"{error.code} {error.reason}: {error.read().decode(errors='replace')[:_MOST_SAID]}".rstrip(": \n")
        if error.code < 500:
            raise _RefusedError(said) from None
        raise OSError(said) from None


def _build_body(archive: bytes, boundary: str) -> bytes:
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="bundle.zip"\r\n'
        "Content-Type: application/zip\r\n\r\n"
    )
    return head.encode() + archive + f"\r\n--{boundary}--\r\n".encode()


def _read_number(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["id"])
    except (ValueError, KeyError, TypeError):
        said = answer.decode(errors="replace")[:_MOST_SAID]
        raise _RefusedError(f"it answered without the number of the session: {said}") from None
