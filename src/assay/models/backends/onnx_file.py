"""An ONNX model in files, as the back ends that read ONNX themselves keep it: the model and its external data.

A model without external data is one file; one with external data is a folder with the model under a fixed name and the
data next to it, under the names that the model knows.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from assay.models.backends.base import BackendError
from assay.models.graph.graph import find_locations, load_skeleton
from assay.models.graph.onnx_library import Model, build_spec
from assay.models.values.tensors import TensorSpec

MODEL_FILE = "model.onnx"


def copy_model(source: str, folder: str) -> str:
    """Copy a model with all that belongs to it into a folder. Returns its path there."""
    data = find_external(source)
    target = os.path.join(folder, "model") if data else folder
    os.makedirs(target, exist_ok=True)
    shutil.copyfile(source, os.path.join(target, MODEL_FILE))
    for name in data:
        copy = os.path.join(target, name)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copyfile(os.path.join(os.path.dirname(source), name), copy)
    return target if data else os.path.join(target, MODEL_FILE)


def find_model(path: str) -> str:
    """The model's own file in what `copy_model` made."""
    return os.path.join(path, MODEL_FILE) if os.path.isdir(path) else path


def load_outline(path: str) -> Model:
    """The model without its weights. Raises BackendError for what is not there, or not ONNX."""
    try:
        model = load_skeleton(path)
    except FileNotFoundError:
        raise BackendError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise BackendError(f"{path} is not an ONNX model: {error}") from error
    if not model.graph.node and not model.graph.output:
        raise BackendError(f"{path} is not an ONNX model: it has neither nodes nor outputs")
    return model


def find_external(path: str) -> list[str]:
    """Names of the files with the model's weights, relative to it. Raises BackendError where one is missing."""
    folder = os.path.dirname(os.path.abspath(path))
    names = find_locations(load_outline(path))
    outside = [name for name in names if os.path.isabs(name) or os.path.normpath(name).startswith("..")]
    if outside:
        raise BackendError(f"the external data {', '.join(outside)} is outside of the model's folder")
    missing = [name for name in names if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        listed = ", ".join(os.path.join(folder, name) for name in missing)
        raise BackendError(f"missing external data: {listed}", hint="put the file next to the model")
    return names


# ---------------------------------------------------------------- what goes in and comes out


def build_input_specs(model: Model) -> tuple[TensorSpec, ...]:
    """Initialisers that are listed as inputs do not count."""
    known = {tensor.name for tensor in model.graph.initializer}
    return tuple(_build_spec(value) for value in model.graph.input if value.name not in known)


def build_output_specs(model: Model) -> tuple[TensorSpec, ...]:
    return tuple(_build_spec(value) for value in model.graph.output)


def _build_spec(value: Any) -> TensorSpec:
    """What is not a tensor has no type here: arrays are compared with it."""
    return build_spec(value) if value.type.HasField("tensor_type") else TensorSpec(value.name, "")
