"""The whole model with its inside with every intermediate tensor as an output, and the part of it between chosen
tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from assay.errors import NotFoundError, UsageError
from assay.models.graph.graph import infer_specs
from assay.models.graph.onnx_library import Model, Wiring, build_wiring, import_onnx
from assay.models.graph.submodel import NON_TENSORS, build_submodel, build_value
from assay.models.graph.weights import copy_fields
from assay.models.values.tensors import TensorSpec

Types = Mapping[str, TensorSpec]


def build_marked(model: Model, names: Iterable[str] | None = None, *, types: Types | None = None) -> Model:
    """The model with these tensors as outputs as well, behind its own ones; by default all that nodes make.

    `types` are what a reference run found: they go before what the graph or shape inference says, for inputs and
    outputs as well, so that a model with open dimensions becomes one with the sample's. Sequences and the like cannot
    be compared, and are left out.
    """
    wiring = build_wiring(model.graph)
    wanted = list(wiring.intermediates if names is None else names)
    check_names(wiring, wanted)
    types = types or {}
    specs = {**infer_specs(model), **types}
    marked = copy_model(model)
    _retype(marked.graph, types)
    for name in dict.fromkeys(wanted):
        spec = specs.get(name, TensorSpec(name, ""))
        if spec.dtype not in NON_TENSORS and name in wiring.producers and not wiring.is_output(name):
            marked.graph.output.append(build_value(spec))
    return marked


def build_typed(model: Model, types: Types) -> Model:
    """The model itself, with the types and shapes that a reference run found."""
    typed = copy_model(model)
    _retype(typed.graph, types)
    return typed


def copy_model(model: Model) -> Model:
    copied = import_onnx().ModelProto()
    copy_fields(model, copied, leave=("graph",))
    copy_fields(model.graph, copied.graph)
    return copied


def _retype(graph: Any, types: Types) -> None:
    """What the graph said of a tensor in between goes: it may contradict what was found."""
    for values in (graph.input, graph.output):
        for value in values:
            if value.name in types and types[value.name].dtype not in NON_TENSORS:
                value.CopyFrom(build_value(types[value.name]))
    kept = [value for value in graph.value_info if value.name not in types]
    del graph.value_info[:]
    graph.value_info.extend(kept)


def check_names(wiring: Wiring, names: Iterable[str]) -> None:
    known = {*wiring.producers, *wiring.constants, *wiring.inputs, *wiring.weights}
    for name in names:
        if name not in known:
            raise NotFoundError("tensor", name, known)


def build_cut(
    model: Model, inputs: Sequence[str], outputs: Sequence[str], types: Types | None = None, *, name: str = ""
) -> Model:
    """The smallest sub-model that computes `outputs` from `inputs`.

    Inputs of the model that are needed besides stay inputs; given ones that are not needed are left out. Raises
    UsageError for an input of unknown type, and for an output that no node makes.
    """
    wiring = build_wiring(model.graph)
    check_names(wiring, (*inputs, *outputs))
    for output in outputs:
        if output in inputs or output not in wiring.producers:
            raise UsageError(f"{output!r} is not made between the inputs and the outputs of the cut")
    indices = wiring.find_ancestors(outputs, stop=inputs)
    read = {tensor for index in indices for tensor in wiring.reads[index]}
    needed = [tensor for tensor in dict.fromkeys((*inputs, *wiring.inputs)) if tensor in read]
    specs = {**infer_specs(model), **(types or {})}
    made = {tensor for index in indices for tensor in wiring.nodes[index].output} - {*outputs, *wiring.constants, ""}
    return build_submodel(
        model,
        wiring,
        indices,
        [_find_input(tensor, specs) for tensor in needed],
        [specs.get(tensor, TensorSpec(tensor, "")) for tensor in outputs],
        name=name or model.graph.name or "cut",
        values=[specs[tensor] for tensor in sorted(made) if _is_tensor(specs.get(tensor))],
    )


def _is_tensor(spec: TensorSpec | None) -> bool:
    return spec is not None and bool(spec.dtype) and spec.dtype not in NON_TENSORS


def _find_input(name: str, specs: Types) -> TensorSpec:
    spec = specs.get(name)
    if spec is None or not spec.dtype:
        raise UsageError(f"the type of {name!r} is not known: no cut can be made there")
    return spec
