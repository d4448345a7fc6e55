"""`assay model compare` and `judge` as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.command_line import Cli
from tests.example_models import write_chain
from tests.quantised_models import plant, quantise, write_float


@pytest.fixture
def folder(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("own_bench", "lent")
def test_compare_names_the_layer_in_every_report_and_judge_repeats_it(cli: Cli, folder: Path) -> None:
    made = quantise(write_float(folder / "float.onnx"), folder / "int8.onnx")
    plant(made, folder / "bad.onnx", "v_scale", lambda array: (array * 1.5).astype(array.dtype))
    files = ("--md", "report.md", "--junit", "report.xml", "--html", "report.html")
    found = cli("model", "compare", "float.onnx", "bad.onnx", "--keep-outputs", "kept", "--quiet", *files).ended(1)
    assert found.out.startswith("FAIL bad against float: the first wrong layer is Conv_3: ")
    assert "layers paired: 6 of 6 (100%)" in found.out
    assert "assay model reduce" not in found.out
    for name in ("report.md", "report.xml", "report.html"):
        text = (folder / name).read_text()
        assert "bad against float" in text
        assert "name (other weights)" in text or name == "report.xml"
    again = json.loads(cli("model", "judge", "kept", "--json").out)
    assert (again["verdict"], again["summary"] in found.out.replace("\n", " ")) == ("FAIL", True)
    assert cli("model", "judge", "kept", "--tolerance", "rel=10").code == 0
    assert cli("model", "compare", "float.onnx", "int8.onnx", "--quiet").code == 0
    found = cli("model", "compare", "float.onnx", "bad.onnx", "--quiet", "--bisect").ended(1)
    assert found.out.startswith("FAIL bad against float: the first wrong layer is Conv_3: ")
    assert "MatMul_6" not in found.out


@pytest.mark.usefixtures("own_bench", "lent")
def test_what_cannot_be_compared_gets_one_line(cli: Cli, folder: Path) -> None:
    chain = write_chain(folder / "chain.onnx")
    (folder / "copy.onnx").write_bytes(chain.read_bytes())
    (folder / "empty").mkdir()
    messages = {
        ("compare", "chain.onnx", "missing.onnx"): "there is no model missing.onnx",
        ("compare", "chain.onnx", "copy.onnx"): "are equal: there is nothing to compare",
        ("compare", "chain.onnx", "copy.onnx", "--tolerance", "rel=no"): "rel must be a number, not 'no'",
        ("compare", "net.py:build", "chain.onnx", "--target", "torch"): "compare is for two ONNX models",
        ("compare", "chain.onnx", "copy.onnx", "--bisect", "--keep-outputs", "kept"): "give one of them",
        ("judge", "missing"): "there is no missing",
        ("judge", "empty"): "empty has neither outputs of a check nor reference.npz and target.npz",
    }
    for words, message in messages.items():
        found = cli("model", *words)
        assert (found.code, found.out) == (2, ""), found
        assert message in found.err


@pytest.mark.usefixtures("own_bench")
@pytest.mark.parametrize(
    ("actual", "code", "message"),
    [
        ({"a": [1.0, 2.0], "b": [3.0, 4.0]}, 0, "2 tensors agree with expected"),
        ({"a": [1.0, 2.0], "b": [3.0, 4.1]}, 1, "the first tensor that differs is b"),
        ({"a": [1.0, np.nan], "b": [3.0, 4.0]}, 1, "the first tensor that differs is a"),
        ({"a": [1.0, 2.0]}, 1, "b: the output is missing"),
        ({"a": [1.0, 2.0, 3.0], "b": [3.0, 4.0]}, 1, "shape (3,) instead of (2,)"),
    ],
)
def test_outputs_of_elsewhere(cli: Cli, folder: Path, actual: dict[str, list[float]], code: int, message: str) -> None:
    np.savez(folder / "expected.npz", a=np.float32([1.0, 2.0]), b=np.float32([3.0, 4.0]))
    np.savez(folder / "actual.npz", **{name: np.float32(values) for name, values in actual.items()})
    cli("model", "judge", "expected.npz", "actual.npz").ended(code).printed(message)
    assert cli("model", "judge", ".").code == code


@pytest.mark.usefixtures("own_bench")
def test_samples_that_only_one_side_has_are_not_a_pass(cli: Cli, folder: Path) -> None:
    from tests.models.graph.test_foreign_outputs import write_polygraphy

    content = json.loads(write_polygraphy(folder / "out.json", "onnxrt", "trt").read_text())
    content["lst"][1][1].pop()
    (folder / "out.json").write_text(json.dumps(content))
    cli("model", "judge", "out.json").ended(3).printed("2 samples of onnxrt, 1 of trt")
