"""Finds the models of a project: paths, names of cases, and the names for which tolerances may be given.

Names come from the graphs alone, so listing them is fast. A tolerance for an unknown name would be a bound without
effect: a name that is set for one model (by a flag, or in its own table) must be in that model. A name that is set for
all models of a project must be in at least one model, unless it is an operator of ONNX.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice

from assay.config.settings import load_settings
from assay.errors import AssayError, MissingExtraError, UsageError, did_you_mean
from assay.models.config.settings import ModelSettings, parse_tolerance_texts, read_model_settings
from assay.models.config.targets import read_target_tables
from assay.models.graph.graph import build_outline
from assay.models.graph.operators import is_operator
from assay.models.values.model import FULL_MODEL, Outline, Tolerances
from assay.system.fast_dataclasses import dataclass, field

SUFFIX = ".onnx"
SKIPPED = "disable"  # prefix of models and folders that are ignored
SETTINGS_FILES = ("assay.toml", "pyproject.toml")
CHIPS = "chips"  # a folder next to the models' folder
TOLERANCE_FLAG = "--tolerance"
_ELEMENT = re.compile(r"\[\d+\]$")  # the index of an output of a sequence


@dataclass(frozen=True, slots=True)
class Project:
    folder: str  # the folder of the project's settings, else the folder that was searched
    settings: ModelSettings
    targets: tuple[str, ...] = ()  # targets that the project's settings define

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(os.path.join(self.folder, each) for each in self.settings.folders)

    @property
    def chip_folder(self) -> str:
        return os.path.join(os.path.dirname(self.folders[0]), CHIPS)


def load_project(folder: str) -> Project:
    """Load a project. Raises UsageError for invalid settings."""
    settings = load_settings(folder, os.environ)
    files = [path for path in settings.files if os.path.basename(path) in SETTINGS_FILES]
    base = os.path.dirname(files[-1]) if files else os.path.abspath(folder)
    return Project(base, read_model_settings(settings), tuple(read_target_tables(settings)))


@dataclass(frozen=True, slots=True)
class KnownNames:
    """The names for which a tolerance can be given."""

    operators: frozenset[str] = frozenset()  # operators by which layers are judged
    tensors: frozenset[str] = frozenset()
    leaders: frozenset[tuple[str, str]] = frozenset()  # (Clip, Conv): Clip is judged only together with Conv

    def has_tensor(self, name: str) -> bool:
        return name in self.tensors or _ELEMENT.sub("", name) in self.tensors

    def covers(self, given: Tolerances) -> bool:
        """Return whether all operators and tensors that these tolerances name are known."""
        return self.operators >= set(given.by_op) and all(map(self.has_tensor, given.by_tensor))

    def refuse_others(
        self, ops: Iterable[str], tensors: Iterable[str], whose: str, ops_at: str, tensors_at: str
    ) -> None:
        """Raise UsageError for an unknown operator or tensor. `ops_at`: the key that names the operators."""
        for op in ops:
            if op not in self.operators:
                leaders = sorted(leader for follower, leader in self.leaders if follower == op)
                hint = f"it is judged together with {' or '.join(leaders)}: name that" if leaders else None
                message = f"{ops_at}: no layer of {whose} begins with {op!r}"
                raise UsageError(message, hint or did_you_mean(op, self.operators))
        for name in tensors:
            if not self.has_tensor(name):
                message = f"{tensors_at}: no layer of {whose} makes {name!r}"
                raise UsageError(message, did_you_mean(name, self.tensors))


@dataclass(frozen=True, slots=True)
class NamedCase:
    """A case. `name` is the name in its model; `shown` differs from it if two folders have models of the same name."""

    name: str
    shown: str


@dataclass(frozen=True, slots=True)
class ModelFile:
    path: str
    stem: str
    shown: str  # the stem in the names of its cases
    cases: tuple[NamedCase, ...]
    problem: str = ""  # why the file is not a model; such a file has only the case of the full model
    names: KnownNames = field(default_factory=KnownNames)  # names for which tolerances can be given


def find_models(folders: Sequence[str], groups: tuple[tuple[str, ...], ...]) -> list[ModelFile]:
    """Return the models in the order of their names. Raises MissingExtraError if no model can be read at all."""
    found = [(path, base) for base in folders for path in sorted(_walk(base))]
    stems = Counter(_stem(path) for path, _ in found)
    # a name is the stem; equal stems get the folders, too; equal results (`a/b_c` and `a_b/c`) get a number
    names = []
    for path, base in found:  # `sub/net.onnx` → `models_sub_net`: a name begins with the folder of the models
        inside = os.path.splitext(os.path.relpath(path, os.path.dirname(os.path.abspath(base))))[0]
        names.append(_stem(path) if stems[_stem(path)] == 1 else inside.replace(os.sep, "_"))
    models = []
    for index, (path, _) in enumerate(found):
        name, earlier = names[index], names[:index].count(names[index])
        free = (text for number in count(1) if (text := f"{name}_{number}") not in names)
        shown = name if names.count(name) == 1 else next(islice(free, earlier, None))
        models.append(_read(path, _stem(path), shown, groups))
    return sorted(models, key=lambda each: (each.shown, each.path))


def list_stems(folders: Sequence[str]) -> list[str]:
    """Return the names of all models without reading the models."""
    return [_stem(path) for base in folders for path in sorted(_walk(base))]


def _walk(base: str) -> Iterator[str]:
    """Yield the paths of models; links are followed, unless they lead back to a folder that contains them."""
    if os.path.isfile(base):
        yield base
    above: dict[str, frozenset[str]] = {}  # folder → real paths of the folder and of those that contain it
    for folder, folders, names in os.walk(base, followlinks=True):
        real, around = os.path.realpath(folder), above.get(os.path.dirname(folder), frozenset())
        if real in around:
            folders[:] = []
            continue
        above[folder] = around | {real}
        folders[:] = sorted(name for name in folders if not name.startswith((SKIPPED, ".")))
        models = [name for name in names if name.endswith(SUFFIX) and not name.startswith((SKIPPED, "."))]
        yield from (os.path.join(folder, name) for name in models)


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def _read(path: str, stem: str, shown: str, groups: tuple[tuple[str, ...], ...]) -> ModelFile:
    known, problem = KnownNames(), ""
    try:
        outline = build_outline(path, groups=groups)
        names, known = outline.cases, list_names(outline)
    except MissingExtraError:
        raise
    except AssayError as error:
        names, problem = (f"{stem}_{FULL_MODEL}",), error.render()
    cases = tuple(NamedCase(name, shown + name.removeprefix(stem)) for name in names)
    return ModelFile(os.path.abspath(path), stem, shown, cases, problem, known)


def list_names(outline: Outline) -> KnownNames:
    return KnownNames(
        frozenset(layer.ops[0] for layer in outline.layers),
        frozenset(name for layer in outline.layers for name in layer.outputs)
        | frozenset(spec.name for spec in outline.outputs),
        frozenset((op, layer.ops[0]) for layer in outline.layers for op in layer.ops[1:]),
    )


def join_names(several: Iterable[KnownNames]) -> KnownNames:
    each = [(names.operators, names.tensors, names.leaders) for names in (KnownNames(), *several)]
    return KnownNames(*(frozenset().union(*found) for found in zip(*each, strict=True)))


def refuse_unknown_flags(texts: Sequence[str], known: KnownNames) -> None:
    """Raise UsageError for a name in `--tolerance` that the model does not have."""
    given = parse_tolerance_texts(texts)
    known.refuse_others(given.by_op, given.by_tensor, "the model", TOLERANCE_FLAG, TOLERANCE_FLAG)


def refuse_unknown_of_model(settings: ModelSettings, stem: str, known: KnownNames) -> None:
    """Raise UsageError for a name in the table of one model that this model does not have."""
    own, table = settings.models.get(stem), f"models.models.{stem}"
    if own is not None:
        known.refuse_others(own.ops, own.tensors, "the model", f"{table}.ops", f"{table}.tensors")


def refuse_unknown_of_all(settings: ModelSettings, known: KnownNames) -> None:
    """Raise UsageError for a name in the table of all models that no model has. `known`: the names of all models."""
    ops = [op for op in settings.tolerances.by_op if not is_operator(op)]
    known.refuse_others(ops, settings.tolerances.by_tensor, "any model", "models.ops", "models.tensors")


def refuse_unknown_names(settings: ModelSettings, models: Sequence[ModelFile]) -> None:
    """Raise UsageError for an unknown name in the settings. A model that cannot be read may have every name."""
    if not models or any(model.problem for model in models):
        return
    for model in models:
        refuse_unknown_of_model(settings, model.stem, model.names)
    refuse_unknown_of_all(settings, join_names(model.names for model in models))


def find_unknown_stems(settings: ModelSettings, stems: Sequence[str]) -> list[str]:
    """Return a message for each table of a model that does not exist."""
    return [
        f"models.models.{stem}: there is no such model; {did_you_mean(stem, stems) or 'it does nothing'}"
        for stem in settings.models
        if stem not in stems
    ]
