"""Models in folders, the names of their cases, and tolerances for what is not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.example_models import parse

from assay.config.toml_source import parse_toml
from assay.errors import UsageError
from assay.models.config.settings import parse_model_settings
from assay.models.flow.discovery import (
    KnownNames,
    find_models,
    find_unknown_stems,
    join_names,
    list_names,
    load_project,
    refuse_unknown_flags,
)
from assay.models.graph.graph import build_outline

GROUPS = (("Conv", "Clip"),)


def write(path: Path, body: str = "g (float[2] x) => (float[2] y) { t = Relu(x) y = Neg(t) }") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(parse(body), path)
    return path


def shown(folder: Path, *more: Path) -> list[str]:
    return [case.shown for model in find_models([str(folder), *map(str, more)], GROUPS) for case in model.cases]


def test_models_are_sorted_and_found_below_unless_they_were_put_aside(tmp_path):
    ignored = ("disable_net.onnx", "disabled/x.onnx", ".hidden.onnx", "a.onnx.data")
    for name in ("b.onnx", "a.onnx", "sub/c.onnx", *ignored):
        write(tmp_path / name)
    found = find_models([str(tmp_path)], GROUPS)
    assert [model.stem for model in found] == ["a", "b", "c"]
    assert found[2].path == str(tmp_path / "sub" / "c.onnx")
    assert [case.shown for case in found[0].cases] == ["a_layer_Relu_0", "a_layer_Neg_1", "a_full_model"]


def test_two_models_of_one_name_are_distinguished_by_their_folders(tmp_path):
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


def test_links_are_followed_but_not_back(tmp_path):
    write(tmp_path / "m" / "sub" / "net.onnx")
    (tmp_path / "m" / "loop").symlink_to(".")
    (tmp_path / "m" / "sub" / "up").symlink_to("..")
    write(tmp_path / "elsewhere" / "other.onnx")
    (tmp_path / "m" / "link").symlink_to(tmp_path / "elsewhere")
    assert [model.stem for model in find_models([str(tmp_path / "m")], GROUPS)] == ["net", "other"]


def test_a_broken_file_is_one_case_with_its_reason(tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"not a model at all")
    write(tmp_path / "net.onnx")
    broken, net = find_models([str(tmp_path)], GROUPS)
    assert [case.shown for case in broken.cases] == ["broken_full_model"]
    assert "is not an ONNX model" in broken.problem
    assert net.problem == ""


def test_a_missing_folder_has_no_models_and_a_file_is_one_whose_weights_are_not_read(tmp_path):
    """The external data is not even there."""
    assert find_models([str(tmp_path / "missing")], GROUPS) == []
    model = parse("g (float[2] x) => (float[2] y) { y = Add(x, w) }", weights={"w": np.ones(2, np.float32)})
    onnx.external_data_helper.convert_model_to_external_data(model, location="w.bin", size_threshold=0)
    onnx.save(model, tmp_path / "net.onnx")
    (tmp_path / "w.bin").unlink(missing_ok=True)
    assert shown(tmp_path / "net.onnx") == ["net_layer_Add_0", "net_full_model"]


def test_groups_are_one_case(tmp_path):
    body = "g (float[1,1,4,4] x, float[1,1,3,3] w) => (float[1,1,2,2] y) { c = Conv(x, w) y = Clip(c) }"
    write(tmp_path / "net.onnx", body)
    assert shown(tmp_path) == ["net_layer_Conv_0", "net_full_model"]
    assert [case.shown for case in find_models([str(tmp_path)], ())[0].cases] == [
        "net_layer_Conv_0", "net_layer_Clip_1", "net_full_model",
    ]  # fmt: skip


def test_folders_are_those_of_the_settings_wherever_one_stands(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.assay.models]\nseed = 1\n")
    (tmp_path / "tests").mkdir()
    project = load_project(str(tmp_path / "tests"))
    assert (project.folder, project.targets) == (str(tmp_path), ())
    assert project.folders == (str(tmp_path / "tests/testdata/onnx_models"),)
    assert project.chip_folder == str(tmp_path / "tests/testdata/chips")


NET = """g (float[1,1,2,2] x, float[1,1,1,1] w) => (float[1,1,2,2] y, float[1,1,2,2] z)
    { c = Conv(x, w) k = Clip(c) y = Relu(k) z = Neg(k) }"""


@pytest.fixture(scope="module")
def known() -> KnownNames:
    return list_names(build_outline(parse(NET)))


def test_names_are_what_layers_are_judged_by(known: KnownNames) -> None:
    assert known.operators == {"Conv", "Relu", "Neg"}
    assert known.tensors == {"k", "y", "z"}, "what is inside a group is never compared"
    assert known.leaders == {("Clip", "Conv")}
    assert known.has_tensor("y[0]"), "an output may be a sequence"
    assert not known.has_tensor("x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Cov:rel=1", "--tolerance: no layer of the model begins with 'Cov'\n  did you mean 'Conv'?"),
        ("Clip:rel=1", "--tolerance: no layer of the model begins with 'Clip'\n  it is judged together with Conv: name that"),
        ("LSTM:rel=1", "no layer of the model begins with 'LSTM'"),
        ("tensor=x:rel=1", "--tolerance: no layer of the model makes 'x'\n  known: k, y, z"),
        ("tensor=c:rel=1", "no layer of the model makes 'c'"),
    ],
)  # fmt: skip
def test_a_flag_for_nothing_is_refused(text: str, said: str, known: KnownNames) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_unknown_flags(["rel=0.5", "Conv:rel=1", "tensor=y:ulp=3", text], known)
    assert said in str(caught.value)


def test_joined_names_have_all_of_each(known: KnownNames) -> None:
    both = join_names([known, KnownNames(frozenset({"A"}), frozenset({"t"}), frozenset({("Relu", "A")}))])
    assert both == KnownNames(known.operators | {"A"}, known.tensors | {"t"}, known.leaders | {("Relu", "A")})
    assert join_names([]) == KnownNames()


def test_tables_of_models_that_are_not_there_are_reported() -> None:
    text = "models = {net = {seed = 1}, nett = {seed = 1}, q = {seed = 1}}"
    settings = parse_model_settings(parse_toml(text, "assay.toml"))
    near, far = find_unknown_stems(settings, ["net", *(f"model{number}" for number in range(20))])
    assert near == "models.models.nett: there is no such model; did you mean 'net'?"
    assert far == "models.models.q: there is no such model; it does nothing"
