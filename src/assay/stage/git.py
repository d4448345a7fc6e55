"""Calling git: what it is told each time, whatever the user's own settings and hooks are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from assay.errors import UsageError

_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")
_SETTINGS = ("core.hooksPath=/dev/null", "advice.detachedHead=false")


class GitError(Exception):
    """What git said, in one line."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.words = words


def build_environment() -> dict[str, str]:
    """Ours, without what would lead git to another repository: we may be called from a hook."""
    return {name: value for name, value in os.environ.items() if name not in _VARIABLES}


def run_git(folder: str | None, *arguments: str, settings: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    options = [word for setting in (*_SETTINGS, *settings) for word in ("-c", setting)]
    try:
        return subprocess.run(
            ["git", *options, *arguments],
            cwd=folder,
            env={**build_environment(), "LC_ALL": "C.UTF-8", "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
        )
    except FileNotFoundError:
        raise UsageError("git was not found", "install it: apt install git") from None
