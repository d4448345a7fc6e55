"""Back ends that misbehave on purpose: they refuse, die or hang at an operator, or fuse what they should not."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

from assay.probe.backends.base import BackendError, Made
from assay.probe.backends.ort import OrtBackend
from assay.values.model import Ending, Job, Step


class Picky(OrtBackend):
    """Options: `refuses`, `abort`, `hang`: operators; an option names the step with `at` (compile unless said)."""

    def perform(self, job: Job) -> Made:
        if job.step is Step.COMPILE:
            self._look(job)
        return super().perform(job)

    def _look(self, job: Job) -> None:
        import onnx

        ops = {node.op_type for node in onnx.load(job.source).graph.node}
        if self.target.options.get("refuses") in ops:
            raise BackendError(f"no {self.target.options['refuses']} here", ending=Ending.UNSUPPORTED)
        if self.target.options.get("abort") in ops:
            os.kill(os.getpid(), signal.SIGABRT)
        if self.target.options.get("hang") in ops:
            time.sleep(600)


class Fusing(OrtBackend):
    """Right node by node; where three may be fused (nothing between them is an output), the result is wrong."""

    def perform(self, job: Job) -> Made:
        if job.step is not Step.COMPILE:
            return super().perform(job)
        import numpy as np
        import onnx
        from onnx import helper, numpy_helper

        model = onnx.load(job.source)
        outputs = {value.name for value in model.graph.output}
        if not {"product", "sum"} & outputs and len(model.graph.node) == 3:
            model.graph.node[-1].output[0] = "right"
            model.graph.initializer.append(numpy_helper.from_array(np.array(1.05, np.float32), "factor"))
            model.graph.node.append(helper.make_node("Mul", ["right", "factor"], ["y"]))
            path = os.path.join(os.path.dirname(job.source), "fused.onnx")
            onnx.save(model, path)
            return super().perform(replace(job, source=path))
        return super().perform(job)
