"""Calling git: what it is told each time, whatever the user's own settings and hooks are."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence

from assay.errors import UsageError

_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")
_SETTINGS = ("core.hooksPath=/dev/null", "advice.detachedHead=false")


# What git, curl and ssh say where a server cannot be reached, or cannot serve today. Anything else is an answer.
_UNREACHABLE = re.compile(
    r"could not resolve (host|proxy)|name or service not known|name resolution|unable to look up|unable to connect"
    r"|(failed to|couldn't|could not) connect|network is unreachable|no route to host|empty reply|recv failure"
    r"|connection (refused|timed out|reset|closed)|(operation|connect\w*) timed out|rpc failed|early eof|hung up"
    r"|returned error: (408|429|5\d\d)|certificate|\bssl|\btls|gnutls",
    re.IGNORECASE,
)

_QUOTED = re.compile(r"'[^'\n]*'|\S+://\S+")  # addresses: a repository may be called as it likes


class GitError(Exception):
    """What git said, in one line."""

    def __init__(self, words: str, is_unreachable: bool = False) -> None:
        super().__init__(words)
        self.words = words
        self.is_unreachable = is_unreachable  # a server that may be there tomorrow, and not something that is not there


def is_unreachable(text: str) -> bool:
    """By all that git said: of ssh's words it repeats none in its own line."""
    return _UNREACHABLE.search(_QUOTED.sub("", text)) is not None


def build_environment() -> dict[str, str]:
    """Ours, without what would lead git to another repository: we may be called from a hook."""
    return {name: value for name, value in os.environ.items() if name not in _VARIABLES}


def find_git_root(folder: str) -> str | None:
    """The nearest folder from here up that has a `.git`: without one git need not be started."""
    while not os.path.lexists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent
    return folder


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
