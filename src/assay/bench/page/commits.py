"""The commits that a change of a benchmark is in, where a repository on this machine has them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache

from assay.bench.values.comparison import MetricChange
from assay.bench.values.execution import BenchExecution
from assay.errors import AssayError
from assay.record.run_directory import load_record
from assay.system.git import GitError, run_git

HASH = re.compile(r"[0-9a-f]{7,64}")
_MOST = 30


def list_commits(
    root: str, change: MetricChange, execution: BenchExecution | None
) -> tuple[int, tuple[tuple[str, str], ...]]:
    """How many they are, and the first lines of their messages; 0 where no repository has them: neither the one that
    the root is in, nor the one that the change's first execution ran in."""
    before, after = change.commits
    if before and after and before != after and HASH.fullmatch(before) and HASH.fullmatch(after):
        for folder in _list_folders(root, execution):
            found = _list_commits(folder, before, after)
            if found[0]:
                return found
    return 0, ()


def _list_folders(root: str, execution: BenchExecution | None) -> Iterator[str]:
    """A folder inside of the root is of no use: it may have been uploaded, with a `.git` and its settings."""
    yield root
    if execution and execution.run_dir:
        with suppress(AssayError, OSError):
            folder = os.path.realpath(os.path.join(execution.run_dir, load_record(execution.run_dir).workdir))
            if os.path.commonpath([folder, os.path.realpath(root)]) != os.path.realpath(root):
                yield folder


@lru_cache(maxsize=512)
def _list_commits(folder: str, before: str, after: str) -> tuple[int, tuple[tuple[str, str], ...]]:
    span = f"{before}..{after}"
    try:
        counted = run_git(folder, "rev-list", "--count", span)
        if counted.returncode:
            return 0, ()
        listed = run_git(folder, "log", f"-{_MOST}", "--no-show-signature", "--format=%h%x00%s", span).stdout
        return int(counted.stdout), tuple(tuple(line.split("\0", 1)) for line in listed.splitlines() if "\0" in line)  # type: ignore[misc]
    except (GitError, OSError, ValueError, subprocess.SubprocessError):
        return 0, ()
