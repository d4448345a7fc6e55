"""Writes a folder that shows one operation of two sides alone: its calls, its tensors, and `repro.py`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.resources import files
from typing import Any

from assay.system.fast_dataclasses import dataclass
from assay.trace.judge.calls import Call, Opinion, Parting, find_unknown, walk_tensors

_LIMIT_S = 600
_FIGURES = re.compile(r"by (\S+); computed.*\n.*A (\S+), B (\S+); in float64 B differs from A by (\S+)")


@dataclass(frozen=True, slots=True)
class Repro:
    """A folder that was written. `opinion`: None with the reason in `problem`."""

    folder: str | None
    opinion: Opinion | None = None
    problem: str = ""


def write_repro(parting: Parting, folders: tuple[str, str], target: str, title: str) -> Repro:
    """Write a repro and execute it once. `folders`: the traces of the two sides, which contain the tensors."""
    sides = list(zip("ab", (parting.a, parting.b), folders, strict=True))
    for letter, call, _ in sides:
        unknown = find_unknown([call["args"], call["kwargs"], call["result"]]) if call else "no further operation"
        if unknown or call is None:
            return Repro(None, problem=f"no repro.py: side {letter} has {unknown}")
    os.makedirs(target, exist_ok=True)
    for letter, call, folder in sides:
        _write_call(call or {}, os.path.join(folder, "kept.bin"), os.path.join(target, letter))
    text = files("assay.trace").joinpath("repro_template.txt").read_text(encoding="utf-8")
    path = os.path.join(target, "repro.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace("TITLE", title.replace("\\", "/").replace('"', "'")))
    return _execute(path, str(parting.call.get("executable")))


def _write_call(call: Call, kept: str, path: str) -> None:
    """Write a call to `path`.json and its tensors, each once, to `path`.bin."""
    own: Any = json.loads(json.dumps({name: call[name] for name in ("op", "args", "kwargs", "result")}))
    written: dict[str, int] = {}
    with open(kept, "rb") as source, open(f"{path}.bin", "wb") as file:
        for tensor in walk_tensors(own):
            source.seek(tensor["offset"])
            if tensor["hash"] not in written:
                written[tensor["hash"]] = file.tell()
                file.write(source.read(tensor["bytes"]))
            tensor["offset"] = written[tensor["hash"]]
    with open(f"{path}.json", "w", encoding="utf-8") as file:
        json.dump(own, file)


def _execute(path: str, executable: str) -> Repro:
    """Execute the repro with the interpreter of side B, if that is on this machine."""
    python, folder = executable if os.path.exists(executable) else sys.executable, os.path.dirname(path)
    try:
        done = subprocess.run([python, path], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Repro(folder, problem=f"float64 was not asked: {error}")
    if found := _FIGURES.search(done.stdout):
        return Repro(folder, Opinion(*map(float, found.groups())))
    lines = (done.stderr.strip() or done.stdout.strip() or "it printed nothing").splitlines()
    is_said = lines[-1].startswith("float64 ")  # no opinion: the operation has no such kernel
    return Repro(folder, problem=lines[-1] if is_said else f"float64 was not asked: {lines[-1]}")
