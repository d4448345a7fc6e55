"""A true failure of a true compiler on a true model: IREE 3.13 cannot compile one convolution of Silero's voice detector.

Conv1d with a kernel of three, a stride of two and padding, on a sequence so short that one element comes out. It is
found, cut down to that node, and shown again by the commands that were printed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import onnx
import pytest
from tests.services import MODELS

MODEL = MODELS / "faster_whisper" / "assets" / "silero_vad_v6.onnx"
SENTENCE = "'linalg.generic' op inferred input/output operand #1 has shape's dimension #2 to be 4, but found 3"

pytestmark = pytest.mark.services("models")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all: what one command has made is there for the next."""
    try:
        known = version("iree-base-compiler")
    except PackageNotFoundError:
        pytest.skip("IREE is not installed: pip install 'assay[iree]'")
    if not known.startswith("3.13."):
        pytest.skip(f"IREE {known} may have fixed it: this is about 3.13")
    return tmp_path_factory.mktemp("folder")


def call(folder, *words):
    env = {**os.environ, "ASSAY_CACHE": str(folder / "store")}
    env["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), env["PATH"]])
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)


def model(folder, *words):
    return call(folder, sys.executable, "-m", "assay", "model", *words)


def find_line(text, start):
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    return line.removeprefix(start).strip()


def write_closed(folder, batch):
    """The model for one size: with open dimensions IREE refuses more of it, and other things first."""
    closed = onnx.load(MODEL)
    for value in closed.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.dim_value = batch
    (folder / str(batch)).mkdir(exist_ok=True)
    onnx.save(closed, folder / str(batch) / MODEL.name)
    return str(folder / str(batch) / MODEL.name)


@pytest.mark.parametrize("batch", [1, 16])
def test_bisect_names_the_convolution(batch, folder):
    """Several at once, and Pad by itself is refused as well, in another way than the whole: it is not blamed."""
    said = model(folder, "bisect", write_closed(folder, batch), "--target", "iree", "--json")
    assert said.returncode == 1, said.stderr
    facts = json.loads(said.stdout)
    assert facts["first_wrong"] == "silero_vad_v6_layer_Conv_13"
    assert facts["confirmed"]
    by_name = {case["name"]: case for case in facts["cases"]}
    assert by_name["silero_vad_v6_layer_Conv_13"]["outcome"] == "compile error"
    assert by_name["silero_vad_v6_full_model"]["outcome"] == "compile error"
    assert SENTENCE in facts["summary"]


def test_reduce_leaves_one_node_and_what_it_prints_fails_in_the_same_way(folder):
    said = model(folder, "reduce", write_closed(folder, 1), "--target", "iree", "-o", "small.onnx")
    assert said.returncode == 1, said.stderr
    small = onnx.load(folder / "small.onnx")
    onnx.checker.check_model(small, full_check=True)
    (node,) = small.graph.node
    assert node.op_type == "Conv"
    shapes = [
        [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*small.graph.input, *small.graph.output)
    ]
    assert shapes == [[1, 64, 2], [1, 64, 1]]
    assert "25 nodes → 1: Conv" in said.stdout

    again = call(folder, "sh", "-c", find_line(said.stdout, "reproduce it:"))
    assert again.returncode == 1
    assert again.stdout.startswith("ERROR small on iree: the first wrong layer is Conv_0: compile error: ")
    assert SENTENCE in " ".join(again.stdout.split())

    own = call(folder, "sh", "-c", f"cd / && {find_line(again.stdout, '  $ ')}")
    assert own.returncode != 0
    assert SENTENCE in own.stderr


def test_the_rest_of_the_model_is_right(folder):
    """Nothing else is blamed: what is behind the convolution computes as it should."""
    only = ("--only", "Relu_14", "--only", "Conv_15", "--only", "LSTM_*")
    said = model(folder, "check", str(MODEL), "--target", "iree", "--dim", "input=1,576", *only, "--json")
    outcomes = {case["name"]: case["outcome"] for case in json.loads(said.stdout)["cases"]}
    assert len(outcomes) == 3
    assert set(outcomes.values()) == {"ok"}
    assert said.returncode == 0
