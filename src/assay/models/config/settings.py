"""`[tool.assay.models]`: where models are, what they are compared with, and how much they may differ.

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
from typing import Any

from assay.config.fields import Fields
from assay.config.settings import Settings
from assay.config.source import Entry, Node, Problems, join_key
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
    """What holds for one model, and the names that its own table gives tolerances to."""

    tolerances: Tolerances
    inputs: InputChoice
    ops: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What holds where no flag is given."""

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
        """What holds for one model: its own table goes before the general one, key by key."""
        own = self.models.get(stem)
        return (own.tolerances, own.inputs) if own else (self.tolerances, self.inputs)


def read_model_settings(settings: Settings) -> ModelSettings:
    """A project's table replaces the user's. Raises ConfigError with every problem of the table."""
    tables = settings.tables.get("models")
    return parse_model_settings(tables[-1]) if tables else ModelSettings()


def parse_model_settings(node: Node) -> ModelSettings:
    """Raises ConfigError with every problem of the table."""
    problems = Problems()
    found = _Reader(problems).read(node)
    problems.raise_if_any()
    return found


class _Reader(Fields):
    """Each method reads one thing, or notes what is wrong with it and returns the default."""

    def read(self, node: Node) -> ModelSettings:
        table = self.mapping(node, "models", _KEYS)
        tolerances = self._read_tolerances(table, "models", Tolerances())
        inputs = self._read_inputs(table, "models", InputChoice())
        found = ModelSettings(
            folders=self._read_strings(table, "folder") or (DEFAULT_FOLDER,),
            reference=self._read_string(table, "reference"),
            targets=self._read_strings(table, "targets"),
            modules=self._read_strings(table, "modules"),
            vote=self._read_string(table, "vote"),
            groups=self._read_groups(table),
            expected_failures=self._read_string(table, "expected_failures"),
            tolerances=tolerances,
            inputs=inputs,
        )
        own = self._read_each(table, "models", "models")
        return replace(found, models={stem: self._read_model(stem, node, found) for stem, node in own.items()})

    def _read_model(self, stem: str, node: Node, general: ModelSettings) -> ModelTable:
        key = f"models.models.{stem}"
        table = self.mapping(node, key, _MODEL_KEYS)
        return ModelTable(
            self._read_tolerances(table, key, general.tolerances),
            self._read_inputs(table, key, general.inputs),
            tuple(self._read_each(table, "ops", key)),
            tuple(self._read_each(table, "tensors", key)),
        )

    def _read_each(self, table: Mapping[str, Entry], name: str, key: str) -> dict[str, Node]:
        """The entries of an inner table with names of the user's own."""
        if name not in table:
            return {}
        node = table[name].node
        if node.kind != "mapping":
            self.refuse(node, join_key(key, name), node.mapping_name)
        return {entry.key: entry.node for entry in node.items()}

    def _read_string(self, table: Mapping[str, Entry], name: str, key: str = "models") -> str | None:
        return self.string(table[name].node, join_key(key, name)) if name in table else None

    def _read_strings(self, table: Mapping[str, Entry], name: str, key: str = "models") -> tuple[str, ...]:
        return self.strings(table[name].node, join_key(key, name)) if name in table else ()

    def _read_groups(self, table: Mapping[str, Entry]) -> tuple[tuple[str, ...], ...]:
        if "groups" not in table:
            return DEFAULT_GROUPS
        value = table["groups"].node.value
        is_listed = isinstance(value, list) and all(isinstance(each, list) and len(each) > 1 for each in value)
        if not is_listed or not all(isinstance(op, str) for each in value for op in each):
            hint = 'as in groups = [["Conv", "Relu"]]'
            self.refuse(table["groups"].node, "models.groups", "a list of lists of operators", hint)
            return DEFAULT_GROUPS
        return tuple(tuple(each) for each in value)

    # ------------------------------------------------------------ tolerances

    def _read_tolerances(self, table: Mapping[str, Entry], key: str, base: Tolerances) -> Tolerances:
        model = base.model
        if "tolerance" in table:
            model = self._read_tolerance(table["tolerance"].node, join_key(key, "tolerance"), model)
        by_op, by_tensor = (
            {
                **known,
                **{
                    each: self._read_tolerance(node, f"{key}.{name}.{each}", known.get(each, model))
                    for each, node in self._read_each(table, name, key).items()
                },
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

    # ------------------------------------------------------------ inputs

    def _read_inputs(self, table: Mapping[str, Entry], key: str, base: InputChoice) -> InputChoice:
        ranges = {
            name: self._read_range(node, f"{key}.ranges.{name}")
            for name, node in self._read_each(table, "ranges", key).items()
        }
        dims = {
            name: self._read_dim(node, f"{key}.dims.{name}")
            for name, node in self._read_each(table, "dims", key).items()
        }
        files = []
        for each in self._read_strings(table, "files", key):
            folder = os.path.dirname(table["files"].node.position.file)  # of the settings file that names them
            files.append(os.path.normpath(os.path.join(folder, os.path.expanduser(each))))
        return InputChoice(
            samples=self._read_count(table, "samples", key, base.samples, least=1),
            seed=self._read_count(table, "seed", key, base.seed, least=0),
            ranges={**base.ranges, **ranges},
            dims={**base.dims, **dims},
            files=tuple(files) or base.files,
            function=self._read_string(table, "function", key) or base.function,
        )

    def _read_count(self, table: Mapping[str, Entry], name: str, key: str, default: int, least: int) -> int:
        found = self.integer(table[name].node, join_key(key, name), least) if name in table else None
        return default if found is None else found

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


# ---------------------------------------------------------------- tolerances


def parse_tolerance(given: Mapping[str, Any], where: str, base: Tolerance) -> Tolerance:
    """`{rel = 1e-3, top_k = 5}`; what is not given comes from `base`. Raises UsageError."""
    for key, value in given.items():
        if key not in _TOLERANCE_KEYS:
            raise UsageError(f"{where}: unknown key {key!r}", did_you_mean(key, _TOLERANCE_KEYS))
        if fault := _find_fault(key, value):
            raise UsageError(f"{where}: {key} {fault}")
    return replace(base, **given)


def parse_tolerance_texts(texts: Iterable[str], tolerances: Tolerances | None = None) -> Tolerances:
    """Values of `--tolerance`, one after another."""
    found = tolerances or Tolerances()
    for text in texts:
        found = parse_tolerance_text(text, found)
    return found


def parse_tolerance_text(text: str, tolerances: Tolerances) -> Tolerances:
    """A flag: `rel=1e-3,abs=1e-5` for the model, `Conv:rel=1e-2` for an operator, `tensor=logits:top_k=5`."""
    head, colon, tail = text.rpartition(":")
    table = {}
    for part in tail.split(","):
        key, equals, value = part.partition("=")
        if not equals:
            raise UsageError(
                f"tolerance {text!r}: {part!r} has no bound", "write rel=1e-3, Conv:rel=1e-2 or tensor=y:ulp=4"
            )
        table[key.strip()] = _parse_number(key.strip(), value.strip(), text)
    if not colon:
        return replace(tolerances, model=parse_tolerance(table, text, tolerances.model))
    if head.startswith("tensor="):
        name = head.removeprefix("tensor=")
        found = parse_tolerance(table, text, tolerances.by_tensor.get(name, tolerances.model))
        return replace(tolerances, by_tensor={**tolerances.by_tensor, name: found})
    found = parse_tolerance(table, text, tolerances.by_op.get(head, tolerances.model))
    return replace(tolerances, by_op={**tolerances.by_op, head: found})


def _parse_number(key: str, value: str, text: str) -> Any:
    if key in _FLAGS:
        return value.lower() in ("", "1", "true", "yes")
    try:
        return int(value) if key in _WHOLE else float(value)
    except ValueError:
        raise UsageError(f"tolerance {text!r}: {key} must be a number, not {value!r}") from None


def _find_fault(key: str, value: Any) -> str:
    """What is wrong with the value of a bound; empty where it is valid."""
    if key in _FLAGS:
        return "" if isinstance(value, bool) else "must be true or false"
    fits = isinstance(value, int if key in _WHOLE else (int, float)) and not isinstance(value, bool)
    if not fits or not math.isfinite(value) or (value < 0 and key != "min_sqnr_db"):
        return f"must be {'a whole number' if key in _WHOLE else 'a number'} that is not negative"
    if key in ("allowed_wrong", "min_cosine", "int_share") and value > 1:
        return "is a fraction: it cannot be more than 1"
    return ""
