"""Converts a model to another opset: an old opset is the usual reason why an importer refuses a model."""

from __future__ import annotations

import os
import re

from assay.errors import UsageError
from assay.models.graph.graph import load_model, measure_weights, write_model
from assay.models.graph.onnx_library import Model, find_opset
from assay.models.libraries import onnx

_CONVERTED_BYTES = 1_800_000_000  # the largest model that onnx, which needs it in one piece, converts
_TRIED_BYTES = 100_000_000  # the conversion of a model of this size takes about a second
_NO_ADAPTER = re.compile(r"No Adapter (From|To) Version \$?(\d+) for (\w+)")
_NO_PREVIOUS = re.compile(r"No Previous Version of (\w+) exists")
_NO_SCHEMA = re.compile(r"has no registered schema.*\.(\w+?)$")
_ASSERTION = re.compile(r"^\S+\.(?:cc|h):\d+: (?:\w+: )?(?:Assertion `[^`]*` failed: )?")  # a position in onnx's code
_BROADCAST = "multibroadcastable"
_OPERATOR = re.compile(r"OpType|op_type|[Oo]perator|Op \w+|node \w+")
_NAMED = re.compile(r"(?:op_type|for operator):? ?(\w+)")


def find_newest_opset() -> int:
    """Return the newest opset that the installed onnx knows."""
    return int(onnx.defs.onnx_opset_version())


def can_help(before: int, after: int, message: str, operator: str) -> bool:
    """Return whether another opset could make a back end accept a model that it refused with this message. An older
    opset helps only if the opset itself was too new; no opset helps if the missing operator has the same version in
    both. onnx cannot convert an operator that it does not know."""
    if before == after or max(before, after) > find_newest_opset():
        return False
    if before > after and "opset" not in message.lower():
        return False
    return not operator or _find_version(operator, before) != _find_version(operator, after)


def find_obstacle(model: Model, opset: int, name: str) -> str:
    """Return why onnx cannot convert a model, by trying; empty if it can, or if the model is too large to try."""
    if measure_weights(model) > _TRIED_BYTES:
        return ""
    try:
        build_converted(model, opset, name=name)
    except UsageError as error:
        return error.render().replace("\n  ", "; ")
    return ""


def _find_version(operator: str, opset: int) -> int:
    """Return the version of ONNX's own operator in an opset; 0 if the opset lacks it."""
    try:
        return int(onnx.defs.get_schema(operator, opset, "").since_version)
    except onnx.defs.SchemaError:
        return 0


def convert_opset(source: str | os.PathLike[str], target: str | os.PathLike[str], opset: int) -> tuple[Model, Model]:
    """Write `source` with another opset to `target`, and return both models. Raises UsageError that names the operator
    that cannot be converted."""
    model = load_model(source)
    converted = build_converted(model, opset, name=os.fspath(source))
    write_model(converted, target)
    return model, converted


def build_converted(model: Model, opset: int, *, name: str = "the model") -> Model:
    newest = find_newest_opset()
    before = find_opset(model)
    if not 1 <= opset <= newest:
        raise UsageError(f"there is no opset {opset}", f"the onnx that is installed here knows 1 to {newest}")
    if before > newest:
        raise UsageError(
            f"{name} has opset {before}, which is newer than the onnx that is installed here knows ({newest})",
            "update onnx, or export the model again with an older opset",
        )
    if not before:
        raise UsageError(f"{name} uses none of ONNX's own operators: there is nothing to convert")
    if measure_weights(model) > _CONVERTED_BYTES:
        raise UsageError(f"{name} is too large: onnx converts models of up to 2 GB", "export it again from its source")
    return model if before == opset else _convert(model, before, opset, name)


def _convert(model: Model, before: int, opset: int, name: str) -> Model:
    from onnx import inliner, version_converter

    faults = (
        RuntimeError,
        ValueError,
        version_converter.ConvertError,
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
    )
    try:
        if model.functions:
            model = inliner.inline_local_functions(model)  # the converter would lose the functions
        converted = version_converter.convert_version(model, opset)
        onnx.checker.check_model(converted, full_check=True)
    except faults as error:
        if isinstance(error, version_converter.ConvertError):  # the converter failed at the graph itself
            _refuse_broken(model, before, name)
        why = _explain(str(error), f"{before}{opset}", model)
        hint = "try a lower opset, or export the model again"
        if opset < before:
            hint = "newer operators often have no older form: export the model again with that opset"
        raise UsageError(f"{name} cannot be converted from opset {before} to {opset}: {why}", hint) from error
    return converted


def _refuse_broken(model: Model, before: int, name: str) -> None:
    """Raise UsageError if a model breaks a rule of its own opset or IR version: this is why its conversion failed."""
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [str(error)]
        if not _OPERATOR.search(lines[0]):  # another line may name the operator
            lines[1:] = [line for line in lines[1:] if _OPERATOR.search(line)]
        else:
            del lines[1:]
        raise UsageError(
            f"{name} breaks a rule of ONNX: {'; '.join(lines[:2])}",
            f"it is held to opset {before} and IR version {model.ir_version}",
        ) from None


def _explain(text: str, versions: str, model: Model) -> str:
    words = _ASSERTION.sub("", " ".join(text.split()))
    patterns = (_NO_ADAPTER, _NO_PREVIOUS, _NO_SCHEMA, _NAMED)
    adapter, newer, unknown, named = (pattern.search(words) for pattern in patterns)
    if adapter:
        direction, version, op = adapter.groups()
        return f"onnx cannot convert the operator {op} {direction.lower()} version {version}"
    if newer:
        return f"the operator {newer[1]} did not exist yet"
    if unknown:  # onnx does not fill in this message, and appends the versions to it
        return f"onnx has no operator {unknown[1].removesuffix(versions)}"
    if _BROADCAST in text:  # an error at an operator with the attribute `broadcast`, up to opset 6
        ops = {node.op_type for node in model.graph.node if any(each.name == "broadcast" for each in node.attribute)}
        return f"the operator {' or '.join(sorted(ops))}: {words}" if ops else words
    return (f"the operator {named[1]}: " if named else "") + words
