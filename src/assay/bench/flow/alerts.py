"""Tell somebody: findings as JSON to a web address."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from assay.errors import InfrastructureError, UsageError

_TIMEOUT_S = 20.0


def check_address(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--webhook {url} is no address", "such as https://example.org/hook")


def send_alert(url: str, content: Mapping[str, Any]) -> None:
    """POST it. An address that refuses is said, since an alarm that nobody hears is none."""
    import urllib.error
    import urllib.request

    check_address(url)
    data = json.dumps(content).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method="POST")  # noqa: S310 http only
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310
            pass
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is an open answer as well
        raise InfrastructureError(f"the alert could not be sent to {urlsplit(url).hostname}: {error}") from error
