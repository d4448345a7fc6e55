"""Back ends by name, loaded when they are asked for: OpenVINO is not imported to run IREE."""

from __future__ import annotations

import sys
from importlib import import_module

from assay.errors import NotFoundError
from assay.models.backends.base import Backend
from assay.models.values.model import Target

BACKENDS: dict[str, str] = {
    "ort": "assay.models.backends.ort:OrtBackend",
    "reference": "assay.models.backends.onnx_backend:ReferenceBackend",
    "openvino": "assay.models.backends.openvino_backend:OpenvinoBackend",
    "iree": "assay.models.backends.iree_backend:IreeBackend",
    "command": "assay.models.backends.command:CommandBackend",
    "ssh": "assay.models.backends.ssh:SshBackend",
}


def locate(target: Target) -> tuple[str, str]:
    """The module and the class of a target's back end; from here on the module can be imported."""
    name = BACKENDS.get(target.backend, target.backend)
    module, colon, attribute = name.partition(":")
    if not colon:
        raise NotFoundError("back end", target.backend, BACKENDS)
    folder = str(target.options.get("folder", ""))
    if folder and folder not in sys.path:
        sys.path.append(folder)  # next to the settings that name it; at the end: it may hold an onnx.py
    return module, attribute


def build_backend(target: Target) -> Backend:
    """The back end of a target: one of ours, or `module:Class` of somebody's own."""
    module, attribute = locate(target)
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise NotFoundError("back end", target.backend, BACKENDS, hint=f"it cannot be loaded: {error}") from error
    backend: Backend = found(target)
    return backend
