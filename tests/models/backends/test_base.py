"""What back ends share: how a tool of our environment is named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from assay.models.backends.base import name_program


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ours, with one tool; and another folder with a tool of the same name."""
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tool").write_text("#!/bin/sh\n")
        (tmp_path / name / "tool").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "ours" / "python"))
    return tmp_path


def test_an_active_environment_needs_no_path(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tools}/ours{os.pathsep}{tools}/theirs")
    assert name_program("tool") == "tool"


@pytest.mark.parametrize("path", ["", "{}/theirs", "{0}/theirs:{0}/ours"])
def test_a_name_that_leads_elsewhere_is_no_name(tools: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("PATH", path.format(tools))
    assert name_program("tool") == f"{tools}/ours/tool"


def test_what_we_do_not_have_is_looked_for_on_path(tools: Path) -> None:
    assert name_program("other") == "other"
