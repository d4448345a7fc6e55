"""Outputs in the forms of other tools."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.errors import UsageError
from assay.models.graph.foreign_outputs import load_both, load_outputs

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def encode(array: Any) -> dict[str, str]:
    stream = io.BytesIO()
    np.save(stream, array)
    return {"array": base64.b64encode(stream.getvalue()).decode(), "polygraphy_class": "ndarray"}


def write_polygraphy(path: Path, *runners: str, lazily: bool = False) -> Path:
    value: Any = {"values": encode(ARRAY), "polygraphy_class": "LazyArray"} if lazily else encode(ARRAY)
    iteration = {"outputs": {"y": value}, "runtime": 0.1, "runner_name": "r", "polygraphy_class": "IterationResult"}
    content = {"lst": [[name, [iteration, iteration]] for name in runners], "polygraphy_class": "RunResults"}
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("lazily", [False, True])
def test_polygraphy_has_runners_with_iterations(tmp_path: Path, lazily: bool) -> None:
    one, other = load_both(str(write_polygraphy(tmp_path / "out.json", "onnxrt", "trt", lazily=lazily)), None)
    assert (one.name, other.name) == ("onnxrt", "trt")
    assert len(one.samples) == 2
    np.testing.assert_array_equal(other.samples[1]["y"], ARRAY)


def test_a_board_leaves_raw_files_and_a_list(tmp_path: Path) -> None:
    (tmp_path / "0.bin").write_bytes(ARRAY.tobytes())
    rows = [{"name": "y", "file": "0.bin", "dtype": "float32", "shape": [2, 3]}]
    (tmp_path / "index.json").write_text(json.dumps(rows))
    (found,) = load_outputs(str(tmp_path))
    np.testing.assert_array_equal(found.samples[0]["y"], ARRAY)


def test_a_folder_has_both_sides(tmp_path: Path) -> None:
    np.savez(tmp_path / "reference.npz", y=ARRAY)
    np.savez(tmp_path / "target.npz", y=ARRAY + 1)
    one, other = load_both(str(tmp_path), None)
    assert (other.samples[0]["y"] - one.samples[0]["y"] == 1).all()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("out.json", "{}", "does not have the form of Polygraphy's outputs"),
        ("out.json", '{"lst": [["a", [{"outputs": {"y": {"array": "?"}}}]]]}', "does not have the form"),
        ("out.json", '{"lst": [["a", []]]}', "a runner without outputs"),
        ("out.json", "{", "is not readable JSON"),
        ("out.npz", "no", "is not a readable .npz file"),
        ("dump/index.json", '[{"name": "y"}]', "entry 0 does not name a tensor"),
        ("dump/index.json", '[{"name": "y", "file": "missing.bin", "dtype": "float32"}]', "there is no file"),
        ("dump/index.json", '[{"name": "y", "file": "y.npy"}, {"name": "y", "file": "y.npy"}]', "names y again"),
        ("dump/other.bin", "", "has other.bin, which is not a .npy file and would not be compared"),
        ("dump/sample/y.npy", "", "has sample, which is not a .npy file and would not be compared"),
    ],
)
def test_what_is_damaged_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(content)
    if name.startswith("dump"):
        np.save(tmp_path / "dump/y.npy", ARRAY)
    with pytest.raises(UsageError, match=message):
        load_outputs(str(tmp_path / "dump" if name.startswith("dump") else path))


def test_one_side_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has the outputs of one runner"):
        load_both(str(write_polygraphy(tmp_path / "out.json", "onnxrt")), None)
    with pytest.raises(UsageError, match="neither outputs of a check nor"):
        load_both(str(tmp_path), None)


def test_a_runner_that_would_not_be_compared_is_named(tmp_path: Path) -> None:
    one = str(write_polygraphy(tmp_path / "one.json", "onnxrt"))
    two = str(write_polygraphy(tmp_path / "two.json", "onnxrt", "trt"))
    with pytest.raises(UsageError, match="has the outputs of 2 runners: onnxrt, trt"):
        load_both(one, two)
    with pytest.raises(UsageError, match="has the outputs of 3 runners: a, b, c"):
        load_both(str(write_polygraphy(tmp_path / "three.json", "a", "b", "c")), None)
