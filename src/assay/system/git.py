"""Call git with the same options each time, independent of the user's settings and hooks."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from assay.errors import UsageError

if TYPE_CHECKING:
    import subprocess

_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")
_SETTINGS = ("core.hooksPath=/dev/null", "advice.detachedHead=false")


# Messages of git, curl and ssh if a server cannot be reached or is unavailable. Other messages are answers of a server.
_UNREACHABLE = (
    r"(?i)could not resolve (host|proxy)|name or service not known|name resolution|unable to look up|unable to connect"
    r"|(failed to|couldn't|could not) connect|network is unreachable|no route to host|empty reply|recv failure"
    r"|connection (refused|timed out|reset|closed)|(operation|connect\w*) timed out|rpc failed|early eof|hung up"
    r"|returned error: (408|429|5\d\d)|certificate|\bssl|\btls|gnutls"
)

_QUOTED = r"'[^'\n]*'|\S+://\S+"  # paths and addresses, which may contain any word of _UNREACHABLE


class GitError(Exception):
    """git's error message, in one line."""

    def __init__(self, message: str, is_unreachable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.is_unreachable = is_unreachable  # whether the cause is a server that may answer later


def is_unreachable(text: str) -> bool:
    """Whether git's messages show that a server cannot be reached; ssh's reason may be in any line."""
    return re.search(_UNREACHABLE, re.sub(_QUOTED, "", text)) is not None


def build_environment() -> dict[str, str]:
    """Return the environment without variables that name another repository: a git hook may have called Assay."""
    return {name: value for name, value in os.environ.items() if name not in _VARIABLES}


def find_git_root(folder: str) -> str | None:
    """Return the nearest folder with a `.git`, from `folder` upwards; None outside repositories saves a call of git."""
    while not os.path.lexists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent
    return folder


def run_git(folder: str | None, *arguments: str, settings: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    import subprocess

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


def call_git(folder: str | None, *arguments: str, settings: Sequence[str] = ()) -> str:
    """Return the output of git; raise GitError if it fails."""
    done = run_git(folder, *arguments, settings=settings)
    if done.returncode:
        message = find_reason(done.stderr) or f"git ended with exit code {done.returncode}"
        raise GitError(message, is_unreachable(done.stderr))
    return done.stdout


def find_reason(text: str) -> str:
    """Return the line of git's messages with the error; progress and warnings may come before it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [line for line in lines if line.startswith(("ssh:", "fatal:", "error:"))]
    return (reasons or lines or [""])[0]


def read_git(folder: str, *arguments: str, limit: int = -1, timeout_s: float) -> tuple[bytes | None, str]:
    """Return the output of git, up to one byte more than `limit` (None if it fails, is missing or takes too long), and
    its messages. git takes no lock in the user's repository."""
    import subprocess
    import threading

    env = {**build_environment(), "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            ["git", *arguments],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError:
        return None, ""
    watchdog = threading.Timer(timeout_s, process.kill)
    watchdog.start()
    try:
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            output = process.stdout.read(limit + 1 if limit >= 0 else -1)
            is_cut = 0 <= limit < len(output)
            if is_cut:
                process.kill()
            messages = process.stderr.read(1 << 14).decode(errors="replace")
    finally:
        watchdog.cancel()
    if process.returncode < 0 and not is_cut:
        messages = messages or f"git took longer than {timeout_s:g} s"
    return (output if process.returncode == 0 or is_cut else None), messages
