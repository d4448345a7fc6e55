"""Models in folders, and the names of their cases: from the graphs alone, so that listing them costs very little."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from assay.errors import AssayError, MissingExtraError
from assay.probe.graph import build_outline
from assay.values.model import FULL_MODEL

SUFFIX = ".onnx"
SKIPPED = "disable"  # names that begin with it: models, and whole folders, that somebody has put aside


@dataclass(frozen=True, slots=True)
class NamedCase:
    """`name` is what Assay calls it; `shown` differs where two folders have a model of one name."""

    name: str
    shown: str


@dataclass(frozen=True, slots=True)
class ModelFile:
    path: str
    stem: str
    shown: str  # the stem in the names of its cases
    cases: tuple[NamedCase, ...]
    problem: str = ""  # why it is no model: then its only case is the full model


def find_models(folders: Sequence[str], groups: tuple[tuple[str, ...], ...]) -> list[ModelFile]:
    """In the order of their names. Raises MissingExtraError where no model can be read at all."""
    found = [(path, base) for base in folders for path in sorted(_walk(base))]
    stems = Counter(_stem(path) for path, _ in found)
    files = []
    for path, base in found:
        stem = _stem(path)
        shown = stem if stems[stem] == 1 else _name_by_place(path, base)
        files.append(_read(path, stem, shown, groups))
    return sorted(files, key=lambda each: (each.shown, each.path))


def _walk(base: str) -> Iterator[str]:
    if os.path.isfile(base):
        yield base
    for folder, folders, names in os.walk(base, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith((SKIPPED, ".")))
        yield from (os.path.join(folder, name) for name in names if _is_model(name))


def _is_model(name: str) -> bool:
    return name.endswith(SUFFIX) and not name.startswith((SKIPPED, "."))


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def _name_by_place(path: str, base: str) -> str:
    """`sub/net.onnx` → `sub_net`; the folder's own name goes before what lies in it directly."""
    inside = os.path.relpath(path, os.path.dirname(os.path.abspath(base)))
    return os.path.splitext(inside)[0].replace(os.sep, "_")


def _read(path: str, stem: str, shown: str, groups: tuple[tuple[str, ...], ...]) -> ModelFile:
    try:
        names = build_outline(path, groups=groups).cases
        problem = ""
    except MissingExtraError:
        raise
    except AssayError as error:
        names, problem = (f"{stem}_{FULL_MODEL}",), error.render()
    cases = tuple(NamedCase(name, shown + name.removeprefix(stem)) for name in names)
    return ModelFile(os.path.abspath(path), stem, shown, cases, problem)
