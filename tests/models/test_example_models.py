"""The example models: the same bytes everywhere, and numbers that are worth comparing."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from tests.example_models import EXAMPLES, activate, load_examples, run, sample
from tests.fork_server import call_python

from assay.models.graph.graph import build_outline

MODELS = load_examples().MODELS


def test_they_are_built_on_the_spot_by_their_script(tmp_path):
    result = call_python([str(EXAMPLES / "build_models.py"), str(tmp_path / "made here")], kind="pytest")
    made = sorted((tmp_path / "made here").iterdir())
    assert [path.stem for path in made] == sorted(MODELS)
    assert sorted(result.stdout.split("\n")[:-1]) == [str(path) for path in made]
    for path in made:
        assert path.read_bytes() == MODELS[path.stem]().SerializeToString(deterministic=True)


@pytest.mark.parametrize("name", MODELS)
def test_they_are_valid_and_small_and_worth_comparing(name):
    """A layer whose output is constant or saturated would prove nothing about a target; both references agree."""
    model = MODELS[name]()
    onnx.checker.check_model(model, full_check=True)
    assert model.ByteSize() < 100_000
    assert model.graph.name == name
    feeds = sample(model)
    shapes = {
        output
        for layer in build_outline(model).layers
        if layer.ops[0] in ("Shape", "Gather", "Unsqueeze", "Concat")
        for output in layer.outputs
    }
    for tensor, value in activate(model, feeds).items():
        if tensor not in shapes:
            assert np.unique(value).size > min(4, value.size - 1), tensor
    one, other = run(model, feeds), run(model, feeds, "reference")
    for output, value in one.items():
        assert np.allclose(other[output], value, rtol=1e-4, atol=1e-5)
