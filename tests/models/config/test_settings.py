"""`[tool.assay.models]` and the flag `--tolerance`."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.config.settings import load_settings
from assay.config.toml_source import parse_toml
from assay.errors import ConfigError, UsageError
from assay.models.config.settings import (
    DEFAULT_FOLDER,
    ModelSettings,
    parse_model_settings,
    parse_tolerance_text,
    read_model_settings,
)
from assay.models.values.model import InputChoice, Tolerances
from assay.models.values.tensors import Tolerance

WHOLE = """
folder = ["models", "more"]
reference = "iree"
targets = ["sim", "ort:unoptimized"]
vote = "none"
groups = [["Conv", "Relu"], ["MatMul", "Add"]]
expected_failures = "xfails.txt"
samples = 2
seed = 7
tolerance = {rel = 1e-3}
ops.Softmax = {abs = 1e-6}
tensors.logits = {top_k = 5}
ranges.image = [0, 255]
dims.batch = 4
[models.resnet]
samples = 3
tolerance = {rel = 1e-2}
ops.Conv = {ulp = 8}
dims.image = [1, 3, 32, 32]
files = "inputs"
function = "make:inputs"
"""


def parse(text: str) -> ModelSettings:
    return parse_model_settings(parse_toml(text, "assay.toml"))


def test_without_settings_it_is_the_usual_folder_and_defaults() -> None:
    settings = parse("")
    assert settings == ModelSettings()
    assert settings.folders == (DEFAULT_FOLDER,)
    assert settings.choose("any") == (Tolerances(), InputChoice())


def test_every_key_is_read_and_a_model_s_own_table_goes_before_the_general_one() -> None:
    settings = parse(WHOLE)
    assert settings.folders == ("models", "more")
    assert (settings.reference, settings.targets, settings.vote) == ("iree", ("sim", "ort:unoptimized"), "none")
    assert settings.groups == (("Conv", "Relu"), ("MatMul", "Add"))
    assert settings.expected_failures == "xfails.txt"
    tolerances, inputs = settings.choose("another")
    assert tolerances.model == Tolerance(rel=1e-3)
    assert tolerances.by_op == {"Softmax": Tolerance(rel=1e-3, abs=1e-6)}
    assert tolerances.by_tensor == {"logits": Tolerance(rel=1e-3, top_k=5)}
    assert inputs == InputChoice(2, 7, {"image": (0.0, 255.0)}, {"batch": 4})
    tolerances, inputs = settings.choose("resnet")
    assert tolerances.model == Tolerance(rel=1e-2)
    assert tolerances.by_op == {"Softmax": Tolerance(rel=1e-3, abs=1e-6), "Conv": Tolerance(rel=1e-2, ulp=8)}
    assert inputs == InputChoice(
        3, 7, {"image": (0.0, 255.0)}, {"batch": 4, "image": (1, 3, 32, 32)}, ("inputs",), "make:inputs"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('folders = "x"', "did you mean 'folder'"),
        ("folder = 3", "assay.toml:1:10 models.folder: must be a string or a list of strings"),
        ("folder = ['']", "models.folder: must be a string or a list of strings"),
        ("reference = 3", "models.reference: must be a string"),
        ("tolerance = 1e-3", "1:13 models.tolerance: must be a table, not 1e-3"),
        ("tolerance = {rell = 1}", "did you mean 'rel'"),
        ("tolerance = {rel = -1}", "not negative"),
        ("tolerance = {ulp = 1.5}", "1:20 models.tolerance.ulp: must be a whole number"),
        ("tolerance = {rel = true}", "models.tolerance.rel: must be a number"),
        ("tolerance = {allow_constant = 1}", "true or false"),
        ("tolerance = {allowed_wrong = 2}", "cannot be more than 1"),
        ("ops.Conv = {atol = 1}", "1:13 models.ops.Conv.atol: unknown key"),
        ("samples = 0", "1:11 models.samples: must be a whole number, 1 or more"),
        ("ranges.x = [3, 1]", "the lower one first"),
        ("ranges.x = 3", "a pair of numbers"),
        ("dims.batch = 1.5", "models.dims.batch: must be a whole number"),
        ('groups = [["Conv"]]', "a list of lists"),
        ("models.resnet = 3", "models.models.resnet: must be a table"),
        ('models.resnet = {folder = "x"}', "models.models.resnet.folder: unknown key"),
        ("models.resnet = {samples = -1}", "1:28 models.models.resnet.samples"),
    ],
)
def test_what_is_wrong_is_named(text: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(text)
    assert words in str(error.value)


def test_all_mistakes_are_reported_at_once_with_their_positions() -> None:
    text = """[tool.assay.models]
refrence = "ort"
tolerance = {rel = "small"}

[tool.assay.models.models.resnet]
samples = 0
ranges.image = [255, 0]
"""
    node = parse_toml(text, "pyproject.toml")
    for name in ("tool", "assay", "models"):
        node = node.find(name) or node
    with pytest.raises(ConfigError) as caught:
        parse_model_settings(node)
    said = str(caught.value).splitlines()
    assert [line.split(" ")[0] for line in said if not line.startswith(" ")] == [
        "pyproject.toml:2:1",
        "pyproject.toml:3:20",
        "pyproject.toml:6:11",
        "pyproject.toml:7:16",
    ]
    assert "did you mean 'reference'?" in said[1]


def test_files_are_relative_to_the_settings_file_that_names_them(tmp_path: Path) -> None:
    text = '[models]\nfiles = "a.npz"\n[models.models.net]\nfiles = ["b.npz", "/c.npz"]\n'
    (tmp_path / "assay.toml").write_text(text)
    inner = tmp_path / "inner"
    inner.mkdir()
    settings = read_model_settings(load_settings(str(inner), {}))
    assert settings.inputs.files == (str(tmp_path / "a.npz"),)
    assert settings.choose("net")[1].files == (str(tmp_path / "b.npz"), "/c.npz")


def test_a_flag_names_the_model_an_operator_or_a_tensor() -> None:
    found = parse_tolerance_text("rel=1e-3,abs=1e-5", Tolerances())
    found = parse_tolerance_text("Conv:rel=1e-2", found)
    found = parse_tolerance_text("tensor=a:b/logits:top_k=5,allow_constant=true", found)
    assert found.model == Tolerance(rel=1e-3, abs=1e-5)
    assert found.choose("y", "Conv") == Tolerance(rel=1e-2, abs=1e-5)
    assert found.choose("a:b/logits", "Conv") == Tolerance(rel=1e-3, abs=1e-5, top_k=5, allow_constant=True)
    assert found.choose("y", "Add") == found.model


@pytest.mark.parametrize(
    "text", ["rel", "rel=x", "Conv:=3", "rel=1e-3,", "top_k=1.5", "rel=-1", "rel=inf", "int_share=2"]
)
def test_a_flag_that_reports_no_bound_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_tolerance_text(text, Tolerances())
