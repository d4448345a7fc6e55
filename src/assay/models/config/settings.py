"""`[tool.assay.models]`: where models lie, what they are compared with, and how far off they may be.

[tool.assay.models]
folder = "tests/testdata/onnx_models"      # or a list
reference = "ort"
targets = ["sim"]
tolerance = {rel = 1e-3}
ops.Softmax = {abs = 1e-6}
tensors.logits = {top_k = 5}
models.resnet = {samples = 3, ranges = {image = [0, 255]}, dims = {batch = 1}, tolerance = {rel = 1e-2}}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from assay.errors import UsageError, did_you_mean
from assay.models.values.model import InputChoice, Tolerances
from assay.models.values.tensors import Tolerance

DEFAULT_FOLDER = "tests/testdata/onnx_models"
DEFAULT_REFERENCE = "ort"
DEFAULT_GROUPS = (("Conv", "Clip"),)
NO_VOTER = "none"
_TOLERANCE_KEYS = tuple(each.name for each in fields(Tolerance))
_FLAGS = ("allow_constant", "check_dtype", "quantized")
_WHOLE = ("ulp", "int_abs", "top_k")
_MODEL_KEYS = ("tolerance", "ops", "tensors", "samples", "seed", "ranges", "dims", "files", "function")
_KEYS = (*_MODEL_KEYS, "folder", "reference", "targets", "vote", "groups", "expected_failures", "models")


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What holds where no flag says otherwise."""

    folders: tuple[str, ...] = (DEFAULT_FOLDER,)
    reference: str | None = None  # None: onnxruntime, or IREE through the Torq spellings
    targets: tuple[str, ...] = ()
    vote: str | None = None
    groups: tuple[tuple[str, ...], ...] = DEFAULT_GROUPS
    expected_failures: str | None = None
    tolerances: Tolerances = field(default_factory=Tolerances)
    inputs: InputChoice = field(default_factory=InputChoice)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by file name without `.onnx`

    def choose(self, stem: str) -> tuple[Tolerances, InputChoice]:
        """What holds for one model: its own table goes before the general one, key by key."""
        own = self.models.get(stem, {})
        return _read_tolerances(own, f"models.{stem}", self.tolerances), _read_inputs(
            own, f"models.{stem}", self.inputs
        )


def parse_model_settings(table: Mapping[str, Any], where: str = "models") -> ModelSettings:
    """Raises UsageError, naming the key."""
    _check_keys(table, _KEYS, where)
    models = _mapping(table, "models", where)
    settings = ModelSettings(
        folders=_texts(table, "folder", where) or (DEFAULT_FOLDER,),
        reference=_text(table, "reference", where),
        targets=_texts(table, "targets", where),
        vote=_text(table, "vote", where),
        groups=_groups(table, where),
        expected_failures=_text(table, "expected_failures", where),
        tolerances=_read_tolerances(table, where, Tolerances()),
        inputs=_read_inputs(table, where, InputChoice()),
        models=models,
    )
    for stem, own in models.items():
        place = f"{where}.models.{stem}"
        _check_keys(_is_table(own, place), _MODEL_KEYS, place)
        settings.choose(stem)  # everything that is wrong is said at once, not when the model's turn comes
    return settings


# ---------------------------------------------------------------- tolerances


def parse_tolerance(table: Any, where: str, base: Tolerance | None = None) -> Tolerance:
    """`{rel = 1e-3, top_k = 5}`; what is not given comes from `base`."""
    given = _is_table(table, where)
    _check_keys(given, _TOLERANCE_KEYS, where)
    return replace(base or Tolerance(), **{key: _bound(key, value, where) for key, value in given.items()})


def parse_tolerance_text(text: str, tolerances: Tolerances) -> Tolerances:
    """A flag: `rel=1e-3,abs=1e-5` for the model, `Conv:rel=1e-2` for an operator, `tensor=logits:top_k=5`."""
    head, colon, tail = text.rpartition(":")
    pairs = dict(_split_pair(part, text) for part in (tail if colon else text).split(","))
    table = {key: _parse_number(key, value, text) for key, value in pairs.items()}
    if not colon:
        return replace(tolerances, model=parse_tolerance(table, text, tolerances.model))
    if head.startswith("tensor="):
        name = head.removeprefix("tensor=")
        found = parse_tolerance(table, text, tolerances.by_tensor.get(name, tolerances.model))
        return replace(tolerances, by_tensor={**tolerances.by_tensor, name: found})
    found = parse_tolerance(table, text, tolerances.by_op.get(head, tolerances.model))
    return replace(tolerances, by_op={**tolerances.by_op, head: found})


def _split_pair(part: str, text: str) -> tuple[str, str]:
    key, equals, value = part.partition("=")
    if not equals:
        raise UsageError(
            f"tolerance {text!r}: {part!r} says no bound", "write rel=1e-3, Conv:rel=1e-2 or tensor=y:ulp=4"
        )
    return key.strip(), value.strip()


def _parse_number(key: str, value: str, text: str) -> Any:
    if key in _FLAGS:
        return value.lower() in ("", "1", "true", "yes")
    try:
        return int(value) if key in _WHOLE else float(value)
    except ValueError:
        raise UsageError(f"tolerance {text!r}: {key} must be a number, not {value!r}") from None


def _bound(key: str, value: Any, where: str) -> Any:
    if key in _FLAGS:
        if not isinstance(value, bool):
            raise UsageError(f"{where}: {key} must be true or false")
        return value
    fits = isinstance(value, int if key in _WHOLE else (int, float)) and not isinstance(value, bool)
    if not fits or not math.isfinite(value) or (value < 0 and key != "min_sqnr_db"):
        what = "a whole number" if key in _WHOLE else "a number"
        raise UsageError(f"{where}: {key} must be {what} that is not negative")
    if key in ("allowed_wrong", "min_cosine", "int_share") and value > 1:
        raise UsageError(f"{where}: {key} is a share: it cannot be more than 1")
    return value


def _read_tolerances(table: Mapping[str, Any], where: str, base: Tolerances) -> Tolerances:
    model = (
        parse_tolerance(table["tolerance"], f"{where}.tolerance", base.model) if "tolerance" in table else base.model
    )
    return Tolerances(
        model,
        _read_each(table, "ops", where, model, base.by_op),
        _read_each(table, "tensors", where, model, base.by_tensor),
    )


def _read_each(
    table: Mapping[str, Any], key: str, where: str, model: Tolerance, base: Mapping[str, Tolerance]
) -> dict[str, Tolerance]:
    given = _mapping(table, key, where)
    own = {name: parse_tolerance(each, f"{where}.{key}.{name}", base.get(name, model)) for name, each in given.items()}
    return {**base, **own}


# ---------------------------------------------------------------- inputs


def _read_inputs(table: Mapping[str, Any], where: str, base: InputChoice) -> InputChoice:
    ranges = {name: _range(each, f"{where}.ranges.{name}") for name, each in _mapping(table, "ranges", where).items()}
    dims = {name: _dim(each, f"{where}.dims.{name}") for name, each in _mapping(table, "dims", where).items()}
    return InputChoice(
        samples=_count(table, "samples", where, base.samples),
        seed=_count(table, "seed", where, base.seed, least=0),
        ranges={**base.ranges, **ranges},
        dims={**base.dims, **dims},
        files=_texts(table, "files", where) or base.files,
        function=_text(table, "function", where) or base.function,
    )


def _dim(value: Any, where: str) -> int | tuple[int, ...]:
    sizes = value if isinstance(value, list) else [value]
    if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes):
        raise UsageError(f"{where} must be a whole number, or a list of them for the shape of a whole input")
    return tuple(value) if isinstance(value, list) else value


def _range(value: Any, where: str) -> tuple[float, float]:
    is_pair = isinstance(value, Sequence) and len(value) == 2 and all(isinstance(each, (int, float)) for each in value)
    if not is_pair or not value[0] <= value[1]:
        raise UsageError(f"{where} must be a pair of numbers, the lower one first", "as in ranges.image = [0, 255]")
    return float(value[0]), float(value[1])


# ---------------------------------------------------------------- kinds of values


def _check_keys(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise UsageError(f"{where}: unknown key {key!r}", did_you_mean(key, known))


def _is_table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} must be a table", "as in {rel = 1e-3}")
    return value


def _mapping(table: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    return _is_table(table.get(key, {}), f"{where}.{key}")


def _text(table: Mapping[str, Any], key: str, where: str) -> str | None:
    value = table.get(key)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise UsageError(f"{where}.{key} must be a text")
    return value


def _texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = table.get(key, [])
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, list) or not all(isinstance(each, str) and each for each in several):
        raise UsageError(f"{where}.{key} must be a text or a list of texts")
    return tuple(several)


def _count(table: Mapping[str, Any], key: str, where: str, default: int, least: int = 1) -> int:
    value = table.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{where}.{key} must be a whole number of at least {least}")
    return value


def _groups(table: Mapping[str, Any], where: str) -> tuple[tuple[str, ...], ...]:
    value = table.get("groups")
    if value is None:
        return DEFAULT_GROUPS
    if not isinstance(value, list) or not all(_is_group(each) for each in value):
        raise UsageError(f"{where}.groups must be a list of lists of operators", 'as in groups = [["Conv", "Relu"]]')
    return tuple(tuple(each) for each in value)


def _is_group(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(isinstance(op, str) for op in value)
