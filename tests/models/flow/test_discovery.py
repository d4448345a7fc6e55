"""Models in folders, and the names of their cases, without running or weighing anything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.models.model_shelf import parse

from assay.models.flow.discovery import find_models

GROUPS = (("Conv", "Clip"),)


def write(path: Path, body: str = "g (float[2] x) => (float[2] y) { t = Relu(x) y = Neg(t) }") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(parse(body), path)
    return path


def shown(folder: Path, *more: Path) -> list[str]:
    return [case.shown for model in find_models([str(folder), *map(str, more)], GROUPS) for case in model.cases]


def test_layers_come_in_the_models_order_and_the_whole_last(tmp_path):
    write(tmp_path / "net.onnx")
    assert shown(tmp_path) == ["net_layer_Relu_0", "net_layer_Neg_1", "net_full_model"]


def test_models_are_sorted_and_found_in_folders_below(tmp_path):
    for name in ("b.onnx", "a.onnx", "sub/c.onnx"):
        write(tmp_path / name, "g (float[2] x) => (float[2] y) { y = Relu(x) }")
    found = find_models([str(tmp_path)], GROUPS)
    assert [model.stem for model in found] == ["a", "b", "c"]
    assert found[2].path == str(tmp_path / "sub" / "c.onnx")


def test_what_was_put_aside_is_left_alone(tmp_path):
    for name in ("net.onnx", "disable_net.onnx", "disabled/x.onnx", ".hidden.onnx", "net.onnx.data"):
        write(tmp_path / name)
    assert {model.stem for model in find_models([str(tmp_path)], GROUPS)} == {"net"}


def test_two_models_of_one_name_are_told_apart_by_their_folders(tmp_path):
    body = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
    write(tmp_path / "models" / "net.onnx", body)
    write(tmp_path / "models" / "old" / "net.onnx", body)
    assert shown(tmp_path / "models") == [
        "models_net_layer_Relu_0", "models_net_full_model", "models_old_net_layer_Relu_0", "models_old_net_full_model",
    ]  # fmt: skip
    (model, _) = find_models([str(tmp_path / "models")], GROUPS)
    assert [case.name for case in model.cases] == ["net_layer_Relu_0", "net_full_model"]


def test_folders_that_come_to_one_name_are_numbered(tmp_path):
    """In the model's part of the name: what comes behind it are the target and the chip."""
    body = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
    for name in ("a/b_c", "a_b/c", "a/b_c/n_1"):
        write(tmp_path / "m" / name / "n.onnx", body)
    write(tmp_path / "m" / "m_a_b_c_n_2.onnx", body)
    names = [model.shown for model in find_models([str(tmp_path / "m")], GROUPS)]
    assert names == ["m_a_b_c_n_1", "m_a_b_c_n_1_n", "m_a_b_c_n_2", "m_a_b_c_n_3"]


def test_a_link_that_leads_back_is_not_followed(tmp_path):
    write(tmp_path / "m" / "sub" / "net.onnx")
    (tmp_path / "m" / "loop").symlink_to(".")
    (tmp_path / "m" / "sub" / "up").symlink_to("..")
    assert len(find_models([str(tmp_path / "m")], GROUPS)) == 1


def test_a_link_to_another_folder_is_followed(tmp_path):
    write(tmp_path / "elsewhere" / "net.onnx")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "link").symlink_to(tmp_path / "elsewhere")
    assert [model.stem for model in find_models([str(tmp_path / "m")], GROUPS)] == ["net"]


@pytest.mark.parametrize("content", [b"", b"not a model at all", b"\x08\x07"])
def test_a_broken_file_is_one_case_with_its_reason(tmp_path, content):
    (tmp_path / "broken.onnx").write_bytes(content)
    write(tmp_path / "net.onnx")
    broken, net = find_models([str(tmp_path)], GROUPS)
    assert [case.shown for case in broken.cases] == ["broken_full_model"]
    assert "is not an ONNX model" in broken.problem
    assert net.problem == ""


def test_a_missing_folder_has_no_models_and_a_file_is_one(tmp_path):
    assert find_models([str(tmp_path / "missing")], GROUPS) == []
    path = write(tmp_path / "net.onnx")
    assert [model.path for model in find_models([str(path)], GROUPS)] == [str(path)]


def test_weights_are_not_read(tmp_path):
    """The external data is not even there."""
    weights = {"w": np.ones(2, np.float32)}
    model = parse("g (float[2] x) => (float[2] y) { y = Add(x, w) }", weights=weights)
    onnx.external_data_helper.convert_model_to_external_data(model, location="w.bin", size_threshold=0)
    onnx.save(model, tmp_path / "net.onnx")
    (tmp_path / "w.bin").unlink(missing_ok=True)
    assert shown(tmp_path) == ["net_layer_Add_0", "net_full_model"]


def test_groups_are_one_case(tmp_path):
    body = "g (float[1,1,4,4] x, float[1,1,3,3] w) => (float[1,1,2,2] y) { c = Conv(x, w) y = Clip(c) }"
    write(tmp_path / "net.onnx", body)
    assert shown(tmp_path) == ["net_layer_Conv_0", "net_full_model"]
    assert [case.shown for case in find_models([str(tmp_path)], ())[0].cases] == [
        "net_layer_Conv_0", "net_layer_Clip_1", "net_full_model",
    ]  # fmt: skip
