"""`[tool.assay.models]`: the folders of models, their references and targets, and how much results may differ.

[tool.assay.models]
folder = "tests/testdata/onnx_models"      # or a list
reference = "ort"
targets = ["sim"]
modules = ["net.py:build"]                 # torch modules that pytest collects
tolerance = {rel = 1e-3}
ops.Softmax = {abs = 1e-6}
tensors.logits = {top_k = 5}
models.resnet = {samples = 3, ranges = {image = [0, 255]}, dims = {batch = 1}, tolerance = {rel = 1e-2}}
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from assay.config.fields import Fields
from assay.config.settings import Settings
from assay.config.source import Item, Node, Problems, join_key
from assay.errors import UsageError, did_you_mean
from assay.models.values.model import DEFAULT_GROUPS, InputChoice, Tolerances
from assay.models.values.tensors import Tolerance
from assay.system.fast_dataclasses import dataclass, field, fields, replace

DEFAULT_FOLDER = "tests/testdata/onnx_models"
DEFAULT_REFERENCE = "ort"
NO_VOTER = "none"
_TOLERANCE_KEYS = tuple(each.name for each in fields(Tolerance))
_FLAGS = ("allow_constant", "check_dtype", "quantized")
_WHOLE = ("ulp", "int_abs", "top_k")
_MODEL_KEYS = ("tolerance", "ops", "tensors", "samples", "seed", "ranges", "dims", "files", "function")
_KEYS = (*_MODEL_KEYS, "folder", "modules", "reference", "targets", "vote", "groups", "expected_failures", "models")


@dataclass(frozen=True, slots=True)
class ModelTable:
    """The settings of one model, and the names to which its own table gives tolerances."""

    tolerances: Tolerances
    inputs: InputChoice
    ops: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The settings that apply unless a flag overrides them."""

    folders: tuple[str, ...] = (DEFAULT_FOLDER,)
    reference: str | None = None  # None: onnxruntime, or IREE through the Torq spellings
    targets: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    vote: str | None = None
    groups: tuple[tuple[str, ...], ...] = DEFAULT_GROUPS
    expected_failures: str | None = None
    tolerances: Tolerances = field(default_factory=Tolerances)
    inputs: InputChoice = field(default_factory=InputChoice)
    models: Mapping[str, ModelTable] = field(default_factory=dict)  # by file name without `.onnx`

    def choose(self, stem: str) -> tuple[Tolerances, InputChoice]:
        """Return the settings of one model: its own table overrides the general one, key by key."""
        own = self.models.get(stem)
        return (own.tolerances, own.inputs) if own else (self.tolerances, self.inputs)


def read_model_settings(settings: Settings) -> ModelSettings:
    """Read `[tool.assay.models]`; a project's table replaces the user's. Raises ConfigError with every problem."""
    tables = settings.tables.get("models")
    return parse_model_settings(tables[-1]) if tables else ModelSettings()


def parse_model_settings(node: Node) -> ModelSettings:
    """Parse `[tool.assay.models]`. Raises ConfigError with every problem of the table."""
    problems = Problems()
    found = _Reader(problems).read(node)
    problems.raise_if_any()
    return found


class _Reader(Fields):
    """Reads `[tool.assay.models]`: each method reads one value, or records a problem and returns the default."""

    def read(self, node: Node) -> ModelSettings:
        table = self.mapping(node, "models", _KEYS)
        found = ModelSettings(
            folders=self.child(table, "folder", "models", self.strings, ()) or (DEFAULT_FOLDER,),
            reference=self.child(table, "reference", "models", self.string, None),
            targets=self.child(table, "targets", "models", self.strings, ()),
            modules=self.child(table, "modules", "models", self.strings, ()),
            vote=self.child(table, "vote", "models", self.string, None),
            groups=self.child(table, "groups", "models", self._read_groups, DEFAULT_GROUPS),
            expected_failures=self.child(table, "expected_failures", "models", self.string, None),
            tolerances=self._read_tolerances(table, "models", Tolerances()),
            inputs=self._read_inputs(table, "models", InputChoice()),
        )
        own = self._list_entries(table, "models", "models")
        return replace(found, models={stem: self._read_model(node, key, found) for stem, node, key in own})

    def _read_model(self, node: Node, key: str, general: ModelSettings) -> ModelTable:
        table = self.mapping(node, key, _MODEL_KEYS)
        return ModelTable(
            self._read_tolerances(table, key, general.tolerances),
            self._read_inputs(table, key, general.inputs),
            tuple(name for name, _, _ in self._list_entries(table, "ops", key)),
            tuple(name for name, _, _ in self._list_entries(table, "tensors", key)),
        )

    def _list_entries(self, table: Mapping[str, Item], name: str, key: str) -> list[tuple[str, Node, str]]:
        """Return name, value and whole key of each entry of an inner table, whose names are the user's own."""
        if name not in table:
            return []
        node = table[name].node
        if node.kind != "mapping":
            self.refuse(node, join_key(key, name), node.mapping_name)
        return [(entry.key, entry.node, f"{key}.{name}.{entry.key}") for entry in node.items()]

    def _read_groups(self, node: Node, key: str) -> tuple[tuple[str, ...], ...] | None:
        value = node.value
        is_listed = isinstance(value, list) and all(isinstance(each, list) and len(each) > 1 for each in value)
        if not is_listed or not all(isinstance(op, str) for each in value for op in each):
            self.refuse(node, key, "a list of lists of operators", 'as in groups = [["Conv", "Relu"]]')
            return None
        return tuple(tuple(each) for each in value)

    def _read_tolerances(self, table: Mapping[str, Item], key: str, base: Tolerances) -> Tolerances:
        model = self.child(table, "tolerance", key, partial(self._read_tolerance, base=base.model), base.model)
        by_op, by_tensor = (
            dict(known)
            | {
                each: self._read_tolerance(node, whole, known.get(each, model))
                for each, node, whole in self._list_entries(table, name, key)
            }
            for name, known in (("ops", base.by_op), ("tensors", base.by_tensor))
        )
        return Tolerances(model, by_op, by_tensor)

    def _read_tolerance(self, node: Node, key: str, base: Tolerance) -> Tolerance:
        given = {}
        for entry in self.mapping(node, key, _TOLERANCE_KEYS).values():
            fault = _find_fault(entry.key, entry.node.value) if entry.key in _TOLERANCE_KEYS else ""
            if fault:
                self.problems.add(fault, join_key(key, entry.key), entry.node.position)
            elif entry.key in _TOLERANCE_KEYS:
                given[entry.key] = entry.node.value
        return replace(base, **given)

    def _read_inputs(self, table: Mapping[str, Item], key: str, base: InputChoice) -> InputChoice:
        ranges, dims = (self._list_entries(table, name, key) for name in ("ranges", "dims"))
        return InputChoice(
            samples=self.child(table, "samples", key, partial(self.integer, minimum=1), base.samples),
            seed=self.child(table, "seed", key, self.integer, base.seed),
            ranges={**base.ranges, **{name: self._read_range(node, whole) for name, node, whole in ranges}},
            dims={**base.dims, **{name: self._read_dim(node, whole) for name, node, whole in dims}},
            files=self.child(table, "files", key, self._read_files, ()) or base.files,
            function=self.child(table, "function", key, self.string, base.function),
        )

    def _read_files(self, node: Node, key: str) -> tuple[str, ...]:
        """Read paths, relative to the settings file that names them."""
        folder = os.path.dirname(node.position.file)
        return tuple(
            os.path.normpath(os.path.join(folder, os.path.expanduser(each))) for each in self.strings(node, key)
        )

    def _read_dim(self, node: Node, key: str) -> int | tuple[int, ...]:
        value = node.value
        sizes = value if isinstance(value, list) else [value]
        if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes):
            self.refuse(node, key, "a whole number, or a list of them for the shape of a whole input")
            return 0
        return tuple(value) if isinstance(value, list) else value

    def _read_range(self, node: Node, key: str) -> tuple[float, float]:
        value = node.value
        is_pair = isinstance(value, list) and len(value) == 2 and all(isinstance(each, (int, float)) for each in value)
        if not is_pair or not value[0] <= value[1]:
            self.refuse(node, key, "a pair of numbers, the lower one first", "as in ranges.image = [0, 255]")
            return 0.0, 0.0
        return float(value[0]), float(value[1])


def parse_tolerance_texts(texts: Iterable[str], tolerances: Tolerances | None = None) -> Tolerances:
    """Parse values of `--tolerance`, one after another."""
    found = tolerances or Tolerances()
    for text in texts:
        found = parse_tolerance_text(text, found)
    return found


def parse_tolerance_text(text: str, tolerances: Tolerances) -> Tolerances:
    """Parse a flag: `rel=1e-3,abs=1e-5` for the model, `Conv:rel=1e-2` for an operator, `tensor=logits:top_k=5`."""
    head, colon, tail = text.rpartition(":")
    given = {}
    for part in tail.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            hint = "write rel=1e-3, Conv:rel=1e-2 or tensor=y:ulp=4"
            raise UsageError(f"tolerance {text!r}: {part!r} has no bound", hint)
        if key not in _TOLERANCE_KEYS:
            raise UsageError(f"{text}: unknown key {key!r}", did_you_mean(key, _TOLERANCE_KEYS))
        given[key] = _parse_number(key, value, text)
        if fault := _find_fault(key, given[key]):
            raise UsageError(f"{text}: {key} {fault}")
    if not colon:
        return replace(tolerances, model=replace(tolerances.model, **given))
    is_tensor, name = head.startswith("tensor="), head.removeprefix("tensor=")
    known = tolerances.by_tensor if is_tensor else tolerances.by_op
    changed = {**known, name: replace(known.get(name, tolerances.model), **given)}
    return replace(tolerances, by_tensor=changed) if is_tensor else replace(tolerances, by_op=changed)


def _parse_number(key: str, value: str, text: str) -> Any:
    if key in _FLAGS:
        return value.lower() in ("", "1", "true", "yes")
    try:
        return int(value) if key in _WHOLE else float(value)
    except ValueError:
        raise UsageError(f"tolerance {text!r}: {key} must be a number, not {value!r}") from None


def _find_fault(key: str, value: Any) -> str:
    """Describe what is wrong with the value of a bound; empty if it is valid."""
    if key in _FLAGS:
        return "" if isinstance(value, bool) else "must be true or false"
    fits = isinstance(value, int if key in _WHOLE else (int, float)) and not isinstance(value, bool)
    if not fits or not math.isfinite(value) or (value < 0 and key != "min_sqnr_db"):
        return f"must be {'a whole number' if key in _WHOLE else 'a number'} that is not negative"
    if key in ("allowed_wrong", "min_cosine", "int_share") and value > 1:
        return "is a fraction: it cannot be more than 1"
    return ""
