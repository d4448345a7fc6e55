"""Another opset for a model: old models are the usual reason why an importer refuses one."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from assay.errors import UsageError
from assay.probe.graph import find_opset, load_model, measure_weights, write_model
from assay.probe.onnx_library import Model, import_onnx
from assay.probe.wiring import DEFAULT_DOMAINS

_CONVERTED_BYTES = 1_800_000_000  # the library converts a model in one piece
_NO_ADAPTER = re.compile(r"No Adapter (From|To) Version \$?(\d+) for (\w+)")
_NO_PREVIOUS = re.compile(r"No Previous Version of (\w+) exists")
_NO_SCHEMA = re.compile(r"has no registered schema.*\.(\w+?)$")
_NAMED = re.compile(r"(?:op_type|for operator):? ?(\w+)")


@dataclass(frozen=True, slots=True)
class Conversion:
    path: str
    before: int
    after: int
    nodes: int  # of the new model


def describe_opset(model: Model) -> str:
    """`opset 9, IR 4`, and the domains beside ONNX's own."""
    others = (f"{entry.domain} {entry.version}" for entry in model.opset_import if entry.domain not in DEFAULT_DOMAINS)
    return ", ".join((f"opset {find_opset(model)}", *others, f"IR {model.ir_version}"))


def find_newest_opset() -> int:
    """That the installed onnx knows."""
    return int(import_onnx().defs.onnx_opset_version())


def can_help(before: int, after: int, message: str, operator: str) -> bool:
    """Whether another opset could make a back end take a model that it refused with this message.

    An older one only where the opset itself was too new; and never where the operator that is lacking is the same in
    both: a back end has none of it, or not for these types.
    """
    if before == after or (before > after and "opset" not in message.lower()):
        return False
    return not operator or _find_version(operator, before) != _find_version(operator, after)


def _find_version(operator: str, opset: int) -> int:
    """Of ONNX's own operator in an opset; 0: it has none of this name."""
    onnx = import_onnx()
    try:
        return int(onnx.defs.get_schema(operator, opset, "").since_version)
    except onnx.defs.SchemaError:
        return 0


def convert_opset(source: str | os.PathLike[str], target: str | os.PathLike[str], opset: int) -> Conversion:
    """Write `source` with another opset to `target`. Raises UsageError, which names the operator that is in the way."""
    model = load_model(source)
    converted = build_converted(model, opset, name=os.fspath(source))
    write_model(converted, target)
    return Conversion(os.path.abspath(target), find_opset(model), find_opset(converted), len(converted.graph.node))


def build_converted(model: Model, opset: int, *, name: str = "the model") -> Model:
    newest = find_newest_opset()
    before = find_opset(model)
    if not 1 <= opset <= newest:
        raise UsageError(f"there is no opset {opset}", f"the onnx that is installed here knows 1 to {newest}")
    if not before:
        raise UsageError(f"{name} uses none of ONNX's own operators: there is nothing to convert")
    if measure_weights(model) > _CONVERTED_BYTES:
        raise UsageError(f"{name} is too large: onnx converts models of up to 2 GB", "export it again from its source")
    return model if before == opset else _convert(model, before, opset, name)


def _convert(model: Model, before: int, opset: int, name: str) -> Model:
    onnx = import_onnx()
    from onnx import inliner, version_converter

    try:
        if model.functions:
            model = inliner.inline_local_functions(model)  # the converter would lose them
        converted = version_converter.convert_version(model, opset)
        onnx.checker.check_model(converted, full_check=True)
    except (RuntimeError, ValueError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        message = (
            f"{name} cannot be converted from opset {before} to {opset}: {_explain(str(error), f'{before}{opset}')}"
        )
        raise UsageError(message, _advise(before, opset)) from error
    return converted


def _explain(text: str, versions: str) -> str:
    words = " ".join(text.split())
    patterns = (_NO_ADAPTER, _NO_PREVIOUS, _NO_SCHEMA, _NAMED)
    adapter, newer, unknown, named = (pattern.search(words) for pattern in patterns)
    if adapter:
        direction, version, op = adapter.groups()
        return f"onnx cannot convert the operator {op} {direction.lower()} version {version}"
    if newer:
        return f"the operator {newer[1]} did not exist yet"
    if unknown:  # the library forgets to fill in its message, and appends the values
        return f"onnx has no operator {unknown[1].removesuffix(versions)}"
    return (f"the operator {named[1]}: " if named else "") + words


def _advise(before: int, opset: int) -> str:
    if opset < before:
        return "newer operators often have no older form: export the model again with that opset"
    return "try a lower opset, or export the model again"
