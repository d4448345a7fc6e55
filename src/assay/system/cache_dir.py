"""Where the index of a root lies: in the user's cache, since SQLite's WAL does not work on network file systems."""

from __future__ import annotations

import os
from collections.abc import Mapping

try:
    from _blake2 import blake2b  # hashlib's own, without the OpenSSL that hashlib loads beside it
except ImportError:
    from hashlib import blake2b

ENV_CACHE_DIR = "ASSAY_CACHE_DIR"


def cache_dir(env: Mapping[str, str]) -> str:
    """Empty and relative values count as not set, as the XDG specification asks."""
    if env.get(ENV_CACHE_DIR):
        return os.path.abspath(env[ENV_CACHE_DIR])
    base = env.get("XDG_CACHE_HOME", "")
    home = env.get("HOME") or os.path.expanduser("~")
    return os.path.join(base if os.path.isabs(base) else os.path.join(home, ".cache"), "assay")


def index_path(root: str | os.PathLike[str], env: Mapping[str, str]) -> str:
    """One file per root, whatever path leads to it."""
    digest = blake2b(os.fsencode(os.path.realpath(root)), digest_size=16).hexdigest()
    return os.path.join(cache_dir(env), "index", f"{digest}.sqlite3")
