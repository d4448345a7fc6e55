"""Models in folders, and the names of their cases: from the graphs alone, so that listing them costs very little."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice

from assay.errors import AssayError, MissingExtraError
from assay.models.flow.tolerance_names import Names, list_names
from assay.models.graph.graph import build_outline
from assay.models.values.model import FULL_MODEL

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
    problem: str = ""  # why it is not a model: then its only case is the full model
    names: Names = field(default_factory=Names)  # that tolerances can be for


def find_models(folders: Sequence[str], groups: tuple[tuple[str, ...], ...]) -> list[ModelFile]:
    """In the order of their names. Raises MissingExtraError where no model can be read at all."""
    found = [(path, base) for base in folders for path in sorted(_walk(base))]
    return sorted(
        (_read(path, _stem(path), shown, groups) for (path, _), shown in zip(found, _choose_names(found), strict=True)),
        key=lambda each: (each.shown, each.path),
    )


def list_stems(folders: Sequence[str]) -> list[str]:
    """Of all models, without a look into them."""
    return [_stem(path) for base in folders for path in sorted(_walk(base))]


def _choose_names(found: Sequence[tuple[str, str]]) -> list[str]:
    """The stem; where two have it the folders too; where that is not enough (`a/b_c` and `a_b/c`) a number."""
    stems = Counter(_stem(path) for path, _ in found)
    names = [_stem(path) if stems[_stem(path)] == 1 else _name_by_place(path, base) for path, base in found]
    return [_number(names, index) for index in range(len(names))]


def _number(names: Sequence[str], index: int) -> str:
    name = names[index]
    if names.count(name) == 1:
        return name
    free = (text for number in count(1) if (text := f"{name}_{number}") not in names)
    return next(islice(free, names[:index].count(name), None))


def _walk(base: str) -> Iterator[str]:
    """Links are followed, but not one that leads back to a folder that it is in."""
    if os.path.isfile(base):
        yield base
    above: dict[str, frozenset[str]] = {}  # folder → itself and those around it, wherever they really are
    for folder, folders, names in os.walk(base, followlinks=True):
        real, around = os.path.realpath(folder), above.get(os.path.dirname(folder), frozenset())
        if real in around:
            folders[:] = []
            continue
        above[folder] = around | {real}
        folders[:] = sorted(name for name in folders if not name.startswith((SKIPPED, ".")))
        yield from (os.path.join(folder, name) for name in names if _is_model(name))


def _is_model(name: str) -> bool:
    return name.endswith(SUFFIX) and not name.startswith((SKIPPED, "."))


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def _name_by_place(path: str, base: str) -> str:
    """`sub/net.onnx` → `sub_net`; the folder's own name goes before what is in it directly."""
    inside = os.path.relpath(path, os.path.dirname(os.path.abspath(base)))
    return os.path.splitext(inside)[0].replace(os.sep, "_")


def _read(path: str, stem: str, shown: str, groups: tuple[tuple[str, ...], ...]) -> ModelFile:
    known, problem = Names(), ""
    try:
        outline = build_outline(path, groups=groups)
        names, known = outline.cases, list_names(outline)
    except MissingExtraError:
        raise
    except AssayError as error:
        names, problem = (f"{stem}_{FULL_MODEL}",), error.render()
    cases = tuple(NamedCase(name, shown + name.removeprefix(stem)) for name in names)
    return ModelFile(os.path.abspath(path), stem, shown, cases, problem, known)
