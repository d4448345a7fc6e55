"""Back ends that misbehave on purpose: they refuse, die or hang at an operator, or compute something else."""

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


class Rewriting(OrtBackend):
    """Compiles what `change` makes of a model."""

    def perform(self, job: Job) -> Made:
        if job.step is not Step.COMPILE:
            return super().perform(job)
        import onnx

        model = onnx.load(job.source)
        self.change(model)
        path = os.path.join(os.path.dirname(job.source), f"{type(self).__name__}.onnx")
        onnx.save(model, path)
        return super().perform(replace(job, source=path))

    def change(self, model: Any) -> None:
        raise NotImplementedError

    def add(self, model: Any, name: str, value: Any) -> None:
        from onnx import numpy_helper

        model.graph.initializer.append(numpy_helper.from_array(value, name))

    def scale(self, model: Any, at: int, name: str, by: Any) -> None:
        """The output of a node is computed as before, and multiplied behind it."""
        from onnx import helper

        model.graph.node[at].output[0] = "right"
        model.graph.node.insert(at + 1, helper.make_node("Mul", ["right", "factor"], [name]))
        self.add(model, "factor", by)


class Exposed(Rewriting):
    """Right as long as its inside is not requested: with `sum` among several outputs, what it gives for that is wrong."""

    def change(self, model: Any) -> None:
        import numpy as np

        if len(model.graph.output) > 1:
            self.scale(model, 1, "sum", np.array(1.05, np.float32))
            model.graph.node[3].input[0] = "right"


class Fusing(Rewriting):
    """Right node by node; where three may be fused (nothing between them is an output), the result is wrong."""

    def change(self, model: Any) -> None:
        import numpy as np

        outputs = {value.name for value in model.graph.output}
        if not {"product", "sum"} & outputs and len(model.graph.node) == 3:
            self.scale(model, 2, "y", np.array(1.05, np.float32))


class Scaled(Rewriting):
    """The tensor `at` is `by` times what it should be, wherever it is made; `above`: where it is larger than that."""

    def change(self, model: Any) -> None:
        import numpy as np
        from onnx import helper

        options = self.target.options
        for position, node in enumerate(list(model.graph.node)):
            if options["at"] in node.output:
                is_whole = "above" not in options
                self.scale(model, position, options["at"] if is_whole else "other", np.array(options["by"], np.float32))
                if not is_whole:
                    self.add(model, "above", np.array(options["above"], np.float32))
                    choice = helper.make_node("Where", ["is_large", "other", "right"], [options["at"]])
                    model.graph.node.insert(position + 2, choice)
                    model.graph.node.insert(position + 2, helper.make_node("Greater", ["right", "above"], ["is_large"]))


class ScaledAndFaulty(Scaled, FaultyBackend):
    """Both: a tensor that is a little off, and a fault elsewhere."""


class WrongShape(Rewriting):
    """Doubles what the last Shape of a model gives."""

    def change(self, model: Any) -> None:
        import numpy as np

        found = [index for index, node in enumerate(model.graph.node) if node.op_type == "Shape"]
        if found and "shape1" in model.graph.node[found[-1]].output:
            self.scale(model, found[-1], "shape1", np.array([2]))


class OneOutput(OrtBackend):
    """Refuses models with several outputs."""

    def perform(self, job: Job) -> Made:
        import onnx

        if job.step is Step.COMPILE and len(onnx.load(job.source).graph.output) > 1:
            raise BackendError("one output, please", ending=StepEnding.UNSUPPORTED)
        return super().perform(job)


class FaultyOneOutput(OneOutput, FaultyBackend):
    """Refuses models with several outputs, and has a fault."""


class Static(OrtBackend):
    """Refuses a model whose inputs have open dimensions."""

    def perform(self, job: Job) -> Made:
        import onnx

        if job.step is Step.COMPILE:
            values = onnx.load(job.source).graph.input
            if any(not dim.HasField("dim_value") for value in values for dim in value.type.tensor_type.shape.dim):
                raise BackendError("every dimension must be known", ending=StepEnding.ERROR, command="static")
        return super().perform(job)
