"""Answers as bytes. Every content of a record can be encoded, also NaN and half of a surrogate pair."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote as quote_bytes

from starlette.responses import Response


def encode_json(value: Any) -> bytes:
    """Encode a value as JSON: an unknown type as its text, and a number that is not finite as null."""
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
    """Encode a text as UTF-8. A lone surrogate, which stands for a byte that is not UTF-8, becomes `\\ud800`."""
    return text.encode("utf-8", "backslashreplace")


def quote(text: str, safe: str = "") -> str:
    """Quote a part of a URL. A file whose name is not UTF-8 is found by the result too."""
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = encode_text(text)
    return quote_bytes(data, safe=safe)


def send(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode_json(value), status, {"cache-control": "no-store", **(headers or {})}, "application/json")
