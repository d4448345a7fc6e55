"""Users' own functions that take a result somewhere: each is called in a process of its own, with the summary.

Whether there is such a function is asked before, in such a process as well: hours of benchmarks may lie between.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from assay.errors import UsageError, did_you_mean

_TIMEOUT_S = 600.0
_FRAMES = 3
# Any interpreter can run these: they need nothing of ours. The working directory is first on their path.
_HEAD = """
import importlib, json, os, sys, traceback
sys.path.extend(json.loads(sys.argv[2]))
module, _, name = sys.argv[1].rpartition(".")
def describe(error):
    foreign = ("<string>", "<frozen", importlib.__file__)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(foreign)]
    text = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()
    return [text[-1], ["%s:%s in %s" % (os.path.relpath(f.filename), f.lineno, f.name) for f in frames]]
def answer(**fields):
    with os.fdopen(int(sys.argv[3]), "w") as out:
        json.dump(fields, out)
try:
"""
_CHECK = (
    _HEAD
    + """
    found = importlib.import_module(module)
    known = [key for key, value in vars(found).items() if callable(value) and not key.startswith("_")]
    answer(callable=callable(getattr(found, name, None)), there=hasattr(found, name), known=known)
except Exception as error:
    answer(error=describe(error), absent=getattr(error, "name", None))
"""
)
_CALL = (
    _HEAD
    + """
    getattr(importlib.import_module(module), name)(json.load(sys.stdin))
except Exception as error:
    answer(error=describe(error))
    sys.exit(1)
"""
)


def check_upload_method(
    name: str,
    *,
    folder: str,
    python: str | None = None,
    python_path: Sequence[str] = (),
    timeout_s: float = _TIMEOUT_S,
) -> None:
    """Raise UsageError where there is no such function; the summary is not made yet, so nothing is called."""
    done = _run(_CHECK, name, b"", folder, python, python_path, timeout_s)
    said, module = done.answer, name.rpartition(".")[0]
    what = f"--result_upload_methods: {name}"
    if done.is_late:  # importing it takes long: the call itself will show what comes of it
        return
    if not said:
        raise UsageError(f"{what} cannot be called: importing {module} ends the process with exit code {done.code}")
    if "error" in said:
        is_absent = said["absent"] is not None and f"{module}.".startswith(f"{said['absent']}.")
        hint = "modules are looked for in the working directory, in --python_path and on PYTHONPATH"
        raise UsageError(f"{what} cannot be called: {_describe(said['error'])}", hint if is_absent else None)
    if not said["there"]:
        attribute = name.rpartition(".")[2]
        raise UsageError(f"{what}: module {module} has no {attribute!r}", did_you_mean(attribute, said["known"]))
    if not said["callable"]:
        raise UsageError(f"{what} is no function", "write module.function")


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
    done = _run(_CALL, name, json.dumps(summary).encode(), folder, python, python_path, timeout_s)
    for line in done.lines:
        say(line)
    if done.is_late:
        return f"{name} took longer than {timeout_s:g} s"
    if done.code == 0:
        return None
    if "error" in done.answer:
        return f"{name}: {_describe(done.answer['error'])}"
    return f"{name}: {done.lines[-1][-300:] if done.lines else f'it ended with exit code {done.code}'}"


def _describe(error: Sequence[Any]) -> str:
    """What was raised, and where in the user's own files, the innermost place first."""
    words, frames = error
    return f"{words[-300:]} ({', called from '.join(reversed(frames[-_FRAMES:]))})" if frames else words[-300:]


# ---------------------------------------------------------------- the process


@dataclass(frozen=True, slots=True)
class _Done:
    code: int
    lines: Sequence[str]  # what it printed
    answer: Mapping[str, Any]  # what our own lines said
    is_late: bool = False


def _run(
    program: str,
    name: str,
    content: bytes,
    folder: str,
    python: str | None,
    python_path: Sequence[str],
    timeout_s: float,
) -> _Done:
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [python or sys.executable, "-c", program, name, json.dumps(list(python_path)), str(said.fileno())],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(said.fileno(),),
        )
        try:
            output, _ = process.communicate(content, timeout_s)
        except subprocess.TimeoutExpired:
            return _Done(-1, (), {}, is_late=True)
        finally:
            _end(process)
        said.seek(0)
        lines = [line.rstrip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
        return _Done(process.returncode, lines, json.loads(said.read() or b"{}"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """With everything that it started and left behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
