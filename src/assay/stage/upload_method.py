"""Users' own functions that take a result somewhere: each is called in a process of its own, with the summary."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

_TIMEOUT_S = 600.0
# Any interpreter can run it: it needs nothing of ours. The working directory is first on its path.
_CALL = """
import importlib, json, sys
sys.path.extend(json.loads(sys.argv[2]))
module, _, name = sys.argv[1].rpartition(".")
getattr(importlib.import_module(module), name)(json.load(sys.stdin))
"""


def call_upload_method(
    name: str,
    summary: Mapping[str, Any],
    *,
    folder: str,
    python: str | None = None,
    python_path: Sequence[str] = (),
    timeout_s: float = _TIMEOUT_S,
    say: Callable[[str], None] = lambda _text: None,
) -> str | None:
    """Call `module.function` with the summary; why it failed, or None. What it prints is said."""
    process = subprocess.Popen(
        [python or sys.executable, "-c", _CALL, name, json.dumps(list(python_path))],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(json.dumps(summary).encode(), timeout_s)
    except subprocess.TimeoutExpired:
        return f"{name} took longer than {timeout_s:g} s"
    finally:
        _end(process)
    lines = [line.rstrip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    for line in lines:
        say(line)
    if process.returncode == 0:
        return None
    return f"{name}: {lines[-1][-300:] if lines else f'it ended with exit code {process.returncode}'}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """With everything that it started and left behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
