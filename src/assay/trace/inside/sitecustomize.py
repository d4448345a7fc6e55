"""Python loads this module in every process of a run whose PYTHONPATH names its folder.

The module starts the recorder when torch is imported, and loads the `sitecustomize` that it hides.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_SETTINGS = "ASSAY_TRACE"  # JSON


def _note(event: str, **facts: Any) -> None:
    """Write one line of `processes.jsonl`: the state of the recorder in this process."""
    line = json.dumps({"pid": os.getpid(), "event": event, **facts}) + "\n"
    try:
        path = os.path.join(os.path.dirname(_FOLDER), "processes.jsonl")
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
    except OSError:  # a full disk must not stop the program here
        pass


def _start() -> None:
    """Start to record; an error of the recorder must not stop the program."""
    try:
        from assay.trace.inside.recorder import Recorder

        settings = json.loads(os.environ[_SETTINGS])
        Recorder(os.path.join(os.path.dirname(_FOLDER), settings.get("below", "")), settings, _note).install()
        _note("torch")
    except Exception as error:  # noqa: BLE001 whatever the error is, the program goes on
        _note("problem", text=f"{type(error).__name__}: {error}")


def _load_hidden() -> None:
    """Load the `sitecustomize` that Python would have loaded without this one."""
    others = [each for each in sys.path if os.path.abspath(each or os.curdir) != _FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if os.environ.get(_SETTINGS):
        from assay.trace.inside.imports import call_after_import

        if '"inside":true' in os.environ[_SETTINGS]:
            os.environ["TORCHINDUCTOR_EMULATE_PRECISION_CASTS"] = "1"  # otherwise hooks change a compiled result
        call_after_import("torch", _start)
        _note("python")
    _load_hidden()
