"""What a library does once, at its first model: load kernels, register operators, start threads.

A back end does it before anything is timed: else the first case, which is the full model, pays for it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from assay.models.backends.base import Made
from assay.models.graph.onnx_library import import_onnx
from assay.models.graph.tensorfile import write_tensors
from assay.models.values.model import Job, Step

_OPSET, _IR_VERSION = 13, 7  # old enough for every library
Perform = Callable[[Job], Made]


def rehearse(*steps: tuple[Step, Perform]) -> None:
    """Take a model of one node through these steps. Whatever is wrong is said by the first real job."""
    with suppress(Exception), tempfile.TemporaryDirectory(prefix="assay-rehearsal-") as folder:
        made = _write_model(folder)
        inputs = _write_inputs(folder)
        for step, perform in steps:
            job = Job(step, made, tempfile.mkdtemp(dir=folder), inputs=inputs, outputs=("y",), case="rehearsal")
            made = perform(replace(job, inputs=inputs if step is Step.RUN else None)).path


def _write_model(folder: str) -> str:
    onnx = import_onnx()
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "x"], ["y"])], "rehearsal", ends[:1], ends[1:])
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION
    )  # fmt: skip
    path = os.path.join(folder, "rehearsal.onnx")
    with open(path, "wb") as file:
        file.write(model.SerializeToString())
    return path


def _write_inputs(folder: str) -> str:
    import numpy as np

    path = os.path.join(folder, "inputs")
    write_tensors(path, {"x": np.ones(4, np.float32)})
    return path
