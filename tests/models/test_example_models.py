"""The example models: the same bytes everywhere, and numbers that are worth comparing."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest
from tests.example_models import EXAMPLES, activate, load_examples, run, sample

from assay.models.graph.graph import build_outline

MODELS = load_examples().MODELS


def test_they_are_built_on_the_spot_by_their_script(tmp_path):
    command = [sys.executable, EXAMPLES / "build_models.py", tmp_path / "made here"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    made = sorted((tmp_path / "made here").iterdir())
    assert [path.stem for path in made] == sorted(MODELS)
    assert sorted(result.stdout.split("\n")[:-1]) == [str(path) for path in made]
    for path in made:
        assert path.read_bytes() == MODELS[path.stem]().SerializeToString(deterministic=True)


@pytest.mark.parametrize("name", MODELS)
def test_they_are_valid_and_small(name):
    model = MODELS[name]()
    onnx.checker.check_model(model, full_check=True)
    assert model.ByteSize() < 100_000
    assert model.graph.name == name


@pytest.mark.parametrize("name", MODELS)
def test_no_tensor_in_them_is_constant_or_saturated(name):
    """A layer whose output is constant would prove nothing about a target."""
    model = MODELS[name]()
    found = activate(model, sample(model))
    shapes = {
        output
        for layer in build_outline(model).layers
        if layer.ops[0] in ("Shape", "Gather", "Unsqueeze", "Concat")
        for output in layer.outputs
    }
    for tensor, value in found.items():
        if tensor not in shapes:
            assert np.unique(value).size > min(4, value.size - 1), tensor


@pytest.mark.parametrize("name", MODELS)
def test_both_references_agree(name):
    model = MODELS[name]()
    feeds = sample(model)
    one, other = run(model, feeds), run(model, feeds, "reference")
    for output, value in one.items():
        assert np.allclose(other[output], value, rtol=1e-4, atol=1e-5)
