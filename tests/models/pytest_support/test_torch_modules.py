"""Torch modules of a project as tests, run by a pytest of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models.commands.test_torch_models import NET
from tests.models.pytest_support.nested_project import Project, build_project

SETTINGS = """
[tool.assay.models]
modules = ["net.py:build"]
targets = ["torch-bf16", "net.py:wrong"]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = build_project(tmp_path, "from assay.models import test_torch_module\n", SETTINGS)
    found.write("net.py", NET)
    return found


def test_each_module_is_a_test_for_each_target_and_a_wrong_one_names_its_layer(project: Project) -> None:
    found = project.pytest("-v")
    names = {target: f"test_torch_module[net.py:build-{target}]" for target in ("torch-bf16", "net.py:wrong")}
    assert found.verdicts == {names["torch-bf16"]: "PASSED", names["net.py:wrong"]: "FAILED"}
    assert "the first wrong layer is b" in found.section(names["net.py:wrong"])
    project.write("tests/test_onnx_model-xfails.txt", f"{names['net.py:wrong']} #12\n")
    assert project.pytest("-v").verdicts[names["net.py:wrong"]] == "XFAIL"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("[tool.assay.models]\ntargets = ['torch-bf16']\n", "there is no torch module to test"),
        ("[tool.assay.models]\nmodules = ['net.py:build']\n", "there is no torch target to test"),
        ("[tool.assay.models]\nmodules = ['ent.py:build']\ntargets = ['torch-bf16']\n", "there is no file"),
    ],
)
def test_what_is_missing_is_an_error_of_the_collection(project: Project, settings: str, message: str) -> None:
    project.write("pyproject.toml", f"[tool.pytest.ini_options]\n{settings}")
    found = project.pytest("--collect-only")
    assert found.code == 2
    assert message in found.out
