"""Torch modules of a project as tests, run by a pytest of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models.commands.test_torch_models import NET
from tests.models.pytest_support.nested_project import Project, build_project
from tests.models.pytest_support.test_collection import plan_of

from assay.errors import UsageError

TARGETS = "targets = ['torch-bf16', 'net.py:wrong', 'torch-compile']\n"
MODULES = "[tool.assay.models]\nmodules = ['net.py:build']\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = build_project(tmp_path, "from assay.models import test_torch_module\n", MODULES + TARGETS)
    found.write("net.py", NET)
    return found


def test_each_module_is_a_test_for_each_target_and_a_wrong_one_names_its_layer(project: Project) -> None:
    """The one that is expected to fail is not run."""
    names = [f"test_torch_module[net.py:build-{target}]" for target in ("torch-bf16", "net.py:wrong", "torch-compile")]
    project.write("tests/test_onnx_model-xfails.txt", f"{names[2]} #12\n")
    found = project.pytest("-v", env={"TESTS_PRELOAD": "torch"})
    assert found.verdicts == dict(zip(names, ("PASSED", "FAILED", "XFAIL"), strict=True))
    assert "the first wrong layer is b" in found.section(names[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (f"[tool.assay.models]\n{TARGETS}", "there is no torch module to test"),
        (MODULES, "there is no torch target to test"),
        (MODULES.replace("net", "ent") + TARGETS, "there is no file"),
    ],
)
def test_what_is_missing_is_refused(project: Project, settings: str, message: str) -> None:
    project.write("pyproject.toml", settings)
    with pytest.raises(UsageError, match=message):
        _ = plan_of(project).modules
