"""Inputs are held against the model; outputs get their true types, and no others."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from tests.fork_server import call_python
from tests.models.backends.backend_helpers import MATMUL, parse, spec

from assay.models.backends.base import BackendError, Made
from assay.models.backends.tensors_io import (
    fit_type,
    is_numpy_type,
    load_inputs,
    unpack,
    warm_up,
    write_outputs,
    write_raw,
)
from assay.models.graph.tensorfile import load_refs, load_tensors, write_tensors
from assay.models.values.model import Job, Step, StepEnding


def test_inputs_come_in_the_models_order_and_all_problems_are_named_at_once(tmp_path):
    job = Job(Step.RUN, "", str(tmp_path), inputs=str(tmp_path))
    write_tensors(tmp_path, {"b": np.zeros(2), "a": np.ones(1)})
    assert list(load_inputs(job, [spec("a", "float64", "n"), spec("b", "", None)])) == ["a", "b"]
    write_tensors(tmp_path, {"a": np.zeros(2, np.int32), "z": np.zeros(1)})
    with pytest.raises(BackendError) as caught:
        load_inputs(job, [spec("a", "float32", 3), spec("b", "int64")])
    for words in ("'a' is int32[2], not float32[3]", "'b' is missing", "'z' is not an input of the model"):
        assert words in caught.value.message


@pytest.mark.parametrize(
    ("found", "wanted", "result"),
    [
        ("int8", "bool", "bool"),
        ("uint16", "bfloat16", "bfloat16"),
        ("V2", "bfloat16", "bfloat16"),
        ("uint8", "float8_e4m3fn", "float8_e4m3fn"),
        ("float32", "", "float32"),
        # another width or another kind is what the target really made: the comparison has to see it
        ("int32", "int64", "int32"),
        ("float32", "int32", "float32"),
        ("int32", "float32", "int32"),
        ("float16", "bfloat16", "float16"),
        ("bfloat16", "float16", "bfloat16"),
        ("int16", "bfloat16", "int16"),
    ],
)
def test_types_that_stand_for_others(found, wanted, result):
    kind = np.dtype(getattr(ml_dtypes, found)) if hasattr(ml_dtypes, found) else np.dtype(found)
    array = fit_type(np.zeros(4, kind), wanted)
    assert array.dtype.name == result
    assert array.shape == (4,)


@pytest.mark.parametrize(("value", "words"), [([1], "a sequence"), (None, "empty"), ({}, "a dict")])
def test_what_is_no_tensor(value, words):
    with pytest.raises(BackendError, match=f"y is {words}, not a tensor") as caught:
        fit_type(value, "float32", "y")
    assert caught.value.ending is StepEnding.UNSUPPORTED


def test_outputs_are_written_as_asked_for_and_one_that_did_not_come_is_named(tmp_path):
    job = Job(Step.RUN, "", str(tmp_path), outputs=("b", "a"), output_specs=(spec("a", "uint8", 2),))
    folder = write_outputs(job, ["a", "b", "c"], [np.array([1, -1], np.int8), np.zeros(1), np.zeros(2)])
    found = load_tensors(folder)
    assert list(found) == ["b", "a"]
    np.testing.assert_array_equal(found["a"], np.array([1, 255], np.uint8))
    with pytest.raises(BackendError, match="no output named b was computed; there are a"):
        write_outputs(job, ["a"], [np.zeros(1)])


@pytest.mark.parametrize("values", [[], [7], [-8, 7], [1, -1, 0, 5, -3]])
def test_four_bits(values):
    nibbles = [value & 15 for value in values] + [0] * (len(values) % 2)
    raw = np.array([low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2], strict=True)], np.uint8)
    signed = unpack(raw, np.dtype(ml_dtypes.int4), (len(values),))
    assert signed.astype(int).tolist() == values
    unsigned = unpack(raw, np.dtype(ml_dtypes.uint4), (len(values),))
    assert unsigned.astype(int).tolist() == [value & 15 for value in values]


def test_raw_bytes(tmp_path):
    write_tensors(tmp_path / "t", {"a": np.array([1.5, -2], ml_dtypes.bfloat16)})
    (ref,) = load_refs(tmp_path / "t")
    raw = write_raw(ref, str(tmp_path / "deep/a.bin"))
    assert np.fromfile(raw.path, ml_dtypes.bfloat16).astype(float).tolist() == [1.5, -2]
    assert (raw.name, raw.dtype, raw.shape) == ("a", "bfloat16", (2,))


def test_types_that_numpys_files_know():
    assert all(map(is_numpy_type, ("float32", "int64", "bool")))
    assert not any(map(is_numpy_type, ("int4", "bfloat16", "float8_e5m2")))


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
    """In a process that has none of their libraries: here others have loaded everything long ago."""
    (tmp_path / "first_job.py").write_text(FIRST_JOB)
    onnx.save(parse(MATMUL), tmp_path / "m.onnx")
    (tmp_path / "made").mkdir()
    words = [str(tmp_path / each) for each in ("m.onnx", "made")]
    done = call_python([str(tmp_path / "first_job.py"), name, *words], kind="pytest")
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


def test_a_rehearsal_goes_through_all_steps_leaves_nothing_and_what_fails_is_left_to_the_first_real_job() -> None:
    seen: list[Job] = []

    def perform(job: Job) -> Made:
        assert Path(job.source).exists()
        assert job.inputs is None or Path(job.inputs).is_dir()
        made = Path(job.folder) / "made"
        made.write_text("x")
        seen.append(job)
        return Made(str(made))

    def fail(job: Job) -> Made:
        seen.append(job)
        raise RuntimeError("no")

    warm_up((Step.COMPILE, perform), (Step.RUN, fail), (Step.RUN, perform))
    assert [job.step for job in seen] == [Step.COMPILE, Step.RUN]
    assert seen[1].source == str(Path(seen[0].folder) / "made")
    assert (seen[0].inputs is None, seen[1].inputs is None) == (True, False)
    assert not Path(seen[0].folder).exists()
