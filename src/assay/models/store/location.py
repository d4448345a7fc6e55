"""Where the artifact store lies, and how much it may hold."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from assay.errors import UsageError
from assay.system.cache_dir import cache_dir

ENV_CACHE = "ASSAY_CACHE"
ENV_LIMIT = "ASSAY_CACHE_LIMIT"
DEFAULT_LIMIT_BYTES = 10 * 1024**3
NO_LIMIT = 2**63 - 1

_LIMIT = re.compile(r"(?P<amount>\d+(?:\.\d+)?)\s*(?P<prefix>[kmgt]?)(?P<binary>i?)b?", re.IGNORECASE)


def choose_store_folder(env: Mapping[str, str], start: str) -> str:
    """ASSAY_CACHE (relative: to `start`), else `artifacts` in the user's cache folder."""
    if env.get(ENV_CACHE):
        return os.path.abspath(os.path.join(start, env[ENV_CACHE]))
    return os.path.join(cache_dir(env), "artifacts")


def choose_limit(env: Mapping[str, str]) -> int:
    return parse_limit(env[ENV_LIMIT]) if env.get(ENV_LIMIT) else DEFAULT_LIMIT_BYTES


def parse_limit(text: str) -> int:
    """`20GB`, `512 MiB`, `1.5g`, a number of bytes; `none`: no limit. GB is a thousand MB, GiB 1024 MiB."""
    if text.strip().lower() == "none":
        return NO_LIMIT
    match = _LIMIT.fullmatch(text.strip())
    if match is None or (match["binary"] and not match["prefix"]):
        raise UsageError(f"{ENV_LIMIT}={text}: this is no size", "for example 20GB, 512MiB, or none for no limit")
    power = "kmgt".index(match["prefix"].lower()) + 1 if match["prefix"] else 0
    return min(int(float(match["amount"]) * (1024 if match["binary"] else 1000) ** power), NO_LIMIT)
