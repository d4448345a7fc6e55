"""`assay demo`: the whole story on a real little training program."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from assay.errors import MissingExtraError, UsageError

_PROGRAM = "charlm"


def find_examples() -> Path:
    """Beside the source in a checkout, else where the wheel put them."""
    candidates = (
        Path(__file__).parents[3] / "examples",
        Path(sysconfig.get_path("data")) / "share" / "assay" / "examples",
    )
    for folder in candidates:
        if (folder / _PROGRAM / "charlm.py").is_file():
            return folder
    raise UsageError("the examples are not installed", "install Assay anew: pip install --force-reinstall assay")


def lay_out(folder: Path) -> Path:
    """A copy of the example to play with; what a user has there already stays."""
    if find_spec("numpy") is None:
        raise MissingExtraError("the demo's training program", "demo")
    target = folder / _PROGRAM
    source = find_examples() / _PROGRAM
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.is_file() and not (target / path.name).exists():
            shutil.copy2(path, target / path.name)
    return target


def use_this_python() -> None:
    """The examples call `python`: let it be the one that has numpy."""
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")
