"""What a library does at its first model is done before anything is timed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from assay.models.backends.base import Made
from assay.models.backends.warm_up import rehearse
from assay.models.values.model import Job, Step

FIRST_JOB = """
import os, sys
from assay.models.backends.registry import build_backend
from assay.models.values.model import Job, Target

name, model, folder = sys.argv[1:]
backend = build_backend(Target(name, name))
backend.warm_up()
known = set(sys.modules)
backend.perform(Job(backend.steps[0], model, folder))
print(sorted(set(sys.modules) - known))
"""


@pytest.mark.parametrize("name", ["ort", "reference", "openvino", "iree"])
def test_the_first_job_loads_nothing(name: str, tmp_path: Path) -> None:
    """In a process of its own: here others have loaded everything long ago."""
    ends = [helper.make_tensor_value_info(each, TensorProto.FLOAT, [4]) for each in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "made").mkdir()
    argv = [sys.executable, "-c", FIRST_JOB, name, str(tmp_path / "m.onnx"), str(tmp_path / "made")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_rehearsal_goes_through_all_steps_and_leaves_nothing() -> None:
    seen: list[Job] = []

    def perform(job: Job) -> Made:
        assert Path(job.source).exists()
        assert job.inputs is None or Path(job.inputs).is_dir()
        made = Path(job.folder) / "made"
        made.write_text("x")
        seen.append(job)
        return Made(str(made))

    rehearse((Step.COMPILE, perform), (Step.RUN, perform))
    assert [job.step for job in seen] == [Step.COMPILE, Step.RUN]
    assert seen[1].source == str(Path(seen[0].folder) / "made")
    assert (seen[0].inputs is None, seen[1].inputs is None) == (True, False)
    assert not Path(seen[0].folder).exists()


def test_what_fails_in_a_rehearsal_is_left_to_the_first_real_job() -> None:
    tried: list[Step] = []

    def fail(job: Job) -> Made:
        tried.append(job.step)
        raise RuntimeError("no")

    rehearse((Step.COMPILE, fail), (Step.RUN, fail))
    assert tried == [Step.COMPILE]
