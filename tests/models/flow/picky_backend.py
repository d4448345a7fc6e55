"""Back ends that misbehave on purpose: they refuse, die or hang at an operator, or fuse what they should not."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

from faulty import FaultyBackend

from assay.models.backends.base import BackendError, Made
from assay.models.backends.ort import OrtBackend
from assay.models.values.model import Job, Step, StepEnding


class Picky(OrtBackend):
    """Options, each an operator: `refuses`, `abort`, `hang`; `refuses_alone`, `hang_alone`: where it is the only node;
    `refuses_among`: where it is not. `says`: a file that is there once it hangs; `until`: one that ends this. `turns`: how often it refuses before it gives in,
    counted in the file `count`; `wordy`: never twice in the same words."""

    def perform(self, job: Job) -> Made:
        if job.step is Step.COMPILE:
            self._look(job)
        return super().perform(job)

    def _look(self, job: Job) -> None:
        import onnx

        options = self.target.options
        ops = [node.op_type for node in onnx.load(job.source).graph.node]
        refused = options.get("refuses_alone" if len(ops) == 1 else "refuses_among")
        for op, why in ((options.get("refuses"), "here"), (refused, "alone" if len(ops) == 1 else "among others")):
            if op in ops and self._has_turns():
                how = f" ({os.urandom(4).hex().translate(str.maketrans('0123456789', 'ghijklmnop'))})"
                text = f"no {op} {why}" + (how if options.get("wordy") else "")
                raise BackendError(
                    text, ending=StepEnding.UNSUPPORTED, command=f"picky {job.source} -o {job.folder}/made.bin"
                )
        if options.get("abort") in ops:
            os.kill(os.getpid(), signal.SIGABRT)
        if options.get("hang") in ops or [options.get("hang_alone")] == ops:
            if "says" in options:
                open(options["says"], "w").close()
            while not os.path.exists(options.get("until", "")):
                time.sleep(0.05)

    def _has_turns(self) -> bool:
        if "turns" not in self.target.options:
            return True
        with open(self.target.options["count"], "a+", encoding="ascii") as file:
            file.write("x")
            file.flush()
            return os.path.getsize(file.name) <= int(self.target.options["turns"])


class Exposed(OrtBackend):
    """Right as long as its inside is not requested: with `sum` among several outputs, what it gives for that is wrong."""

    def perform(self, job: Job) -> Made:
        if job.step is not Step.COMPILE:
            return super().perform(job)
        import numpy as np
        import onnx
        from onnx import helper, numpy_helper

        model = onnx.load(job.source)
        if len(model.graph.output) == 1:
            return super().perform(job)
        model.graph.node[1].output[0] = "right"
        model.graph.node[2].input[0] = "right"
        model.graph.initializer.append(numpy_helper.from_array(np.array(1.05, np.float32), "factor"))
        model.graph.node.append(helper.make_node("Mul", ["right", "factor"], ["sum"]))
        path = os.path.join(os.path.dirname(job.source), "exposed.onnx")
        onnx.save(model, path)
        return super().perform(replace(job, source=path))


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


class OneOutput(OrtBackend):
    """Refuses models with several outputs."""

    def perform(self, job: Job) -> Made:
        import onnx

        if job.step is Step.COMPILE and len(onnx.load(job.source).graph.output) > 1:
            raise BackendError("one output, please", ending=StepEnding.UNSUPPORTED)
        return super().perform(job)


class Scaled(OrtBackend):
    """The tensor `at` is `by` times what it should be, wherever it is made; `above`: where it is larger than that."""

    def perform(self, job: Job) -> Made:
        if job.step is not Step.COMPILE:
            return super().perform(job)
        import numpy as np
        import onnx
        from onnx import numpy_helper

        model = onnx.load(job.source)
        at = self.target.options["at"]
        for position, node in enumerate(list(model.graph.node)):
            if at in node.output:
                node.output[list(node.output).index(at)] = "right"
                factor = np.array(self.target.options["by"], np.float32)
                model.graph.initializer.append(numpy_helper.from_array(factor, "factor"))
                for made in reversed(self._build(at)):
                    model.graph.node.insert(position + 1, made)
                above = np.array(self.target.options.get("above", 0), np.float32)
                model.graph.initializer.append(numpy_helper.from_array(above, "above"))
        path = os.path.join(os.path.dirname(job.source), "scaled.onnx")
        onnx.save(model, path)
        return super().perform(replace(job, source=path))

    def _build(self, at: str) -> list[Any]:
        from onnx import helper

        if "above" not in self.target.options:
            return [helper.make_node("Mul", ["right", "factor"], [at])]
        return [
            helper.make_node("Mul", ["right", "factor"], ["other"]),
            helper.make_node("Greater", ["right", "above"], ["is_large"]),
            helper.make_node("Where", ["is_large", "other", "right"], [at]),
        ]


class FaultyOneOutput(FaultyBackend):
    """Refuses models with several outputs, and has a fault."""

    def perform(self, job: Job) -> Made:
        import onnx

        if job.step is Step.COMPILE and len(onnx.load(job.source).graph.output) > 1:
            raise BackendError("one output, please", ending=StepEnding.UNSUPPORTED)
        return super().perform(job)


class ScaledAndFaulty(Scaled, FaultyBackend):
    """Both: a tensor that is a little off, and a fault elsewhere."""


class WrongShape(OrtBackend):
    """Doubles what the last Shape of a model gives."""

    def perform(self, job: Job) -> Made:
        if job.step is not Step.COMPILE:
            return super().perform(job)
        import numpy as np
        import onnx
        from onnx import helper, numpy_helper

        model = onnx.load(job.source)
        found = [index for index, node in enumerate(model.graph.node) if node.op_type == "Shape"]
        if found and "shape1" in model.graph.node[found[-1]].output:
            model.graph.node[found[-1]].output[0] = "right"
            model.graph.node.insert(found[-1] + 1, helper.make_node("Mul", ["right", "two"], ["shape1"]))
            model.graph.initializer.append(numpy_helper.from_array(np.array([2]), "two"))
        path = os.path.join(os.path.dirname(job.source), "wrong_shape.onnx")
        onnx.save(model, path)
        return super().perform(replace(job, source=path))


class Static(OrtBackend):
    """Refuses a model whose inputs have open dimensions."""

    def perform(self, job: Job) -> Made:
        import onnx

        if job.step is Step.COMPILE:
            values = onnx.load(job.source).graph.input
            if any(not dim.HasField("dim_value") for value in values for dim in value.type.tensor_type.shape.dim):
                raise BackendError("every dimension must be known", ending=StepEnding.ERROR, command="static")
        return super().perform(job)
