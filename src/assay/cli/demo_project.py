"""`assay demo`: the whole story on a real little training program."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from assay.errors import MissingExtraError, UsageError

_PROGRAM = "charlm"
NEEDS = ("numpy", "scipy")  # the training program, and the judges of its curves


@dataclass(frozen=True, slots=True)
class Edit:
    """One line of the program, before and after."""

    before: str
    after: str


# Both look like the work of an afternoon; one of them breaks the training.
HARMLESS = Edit(
    '        "output_bias": d_logits.sum(axis=0),\n',
    '        "output_bias": np.ones(len(d_logits), np.float32) @ d_logits,  # quicker than a sum\n',
)
BROKEN = Edit(
    '        "hidden_weight": embedded.T @ d_sum,\n',
    '        "hidden_weight": np.zeros_like(params["hidden_weight"]),  # the gradient of one layer is lost\n',
)


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
    if any(find_spec(name) is None for name in NEEDS):
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


@contextmanager
def edited(path: Path, edit: Edit) -> Iterator[bool]:
    """The program with the edit in it, for a while; False where it does not have the line any more."""
    text = path.read_text(encoding="utf-8")
    if text.count(edit.before) != 1:
        yield False
        return
    path.write_text(text.replace(edit.before, edit.after), encoding="utf-8")
    try:
        yield True
    finally:
        path.write_text(text, encoding="utf-8")
