from __future__ import annotations

from pathlib import Path

import pytest
from tests.models.pytest_support.nested_project import Project, build_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    folder = tmp_path / "my project"
    folder.mkdir()
    return build_project(folder)
