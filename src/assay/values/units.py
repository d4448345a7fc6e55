"""Durations and sizes as people write them."""

from __future__ import annotations

import re

from assay.errors import UsageError

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|[smhd])\s*")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?)[bB]?")
_SIZE_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_duration(text: str) -> float | None:
    """`2h`, `1h30m`, `90s`, `1.5d`, `90` → seconds; None when it is not a duration."""
    stripped = text.strip()
    if re.fullmatch(r"\d+(?:\.\d+)?", stripped):
        return float(stripped)
    parts = _DURATION_PART.findall(stripped)
    if not parts or _DURATION_PART.sub("", stripped):
        return None
    return sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)


def parse_size(text: str) -> int | None:
    """`10GB` (powers of 1000), `10GiB` (powers of 1024), `512` → bytes; None when it is not a size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** _SIZE_POWERS[match[2].lower()])


def parse_timeout(text: str | None, flag: str = "--timeout") -> float | None:
    seconds = parse_duration(text) if text is not None else None
    if text is not None and not seconds:
        raise UsageError(f"{flag} {text!r} is not a duration", f"write for example {flag} 90s, 30m, 2h or 1h30m")
    return seconds
