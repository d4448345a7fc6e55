from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench_samples import write_module


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with `mod.py` in it; slots and index are its own."""
    folder = tmp_path / "lab"
    folder.mkdir()
    write_module(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ASSAY_SLOTS_DIR", str(tmp_path / "slots"))
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return folder
