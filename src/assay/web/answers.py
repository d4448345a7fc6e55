"""What is sent, as bytes: whatever a record holds, also half of a character, or NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote as quote_bytes

from starlette.responses import Response


def encode_json(value: Any) -> bytes:
    """A value as JSON; an unknown type is a text, and a number that is not finite is null."""
    try:
        return _dump(value)
    except ValueError:
        return _dump(_drop_infinite(value))


def _dump(value: Any) -> bytes:
    return json.dumps(value, default=str, allow_nan=False, separators=(",", ":")).encode("ascii")


def _drop_infinite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _drop_infinite(each) for name, each in value.items()}
    return [_drop_infinite(each) for each in value] if isinstance(value, list | tuple) else value


def encode_text(text: str) -> bytes:
    """Half of a character, as a name that is not UTF-8 has, is written as `\\ud800`."""
    return text.encode("utf-8", "backslashreplace")


def quote(text: str, safe: str = "") -> str:
    """A part of an address; a name of a file that is not UTF-8 leads to it."""
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = encode_text(text)
    return quote_bytes(data, safe=safe)


def send(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode_json(value), status, {"cache-control": "no-store", **(headers or {})}, "application/json")
