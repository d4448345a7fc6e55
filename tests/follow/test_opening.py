"""Which index a root has."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.config.settings import load_settings
from assay.follow.opening import find_address

ADDRESS = "postgresql://host/team"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("home/.config/assay/config.toml", f'index = "{ADDRESS}"'),
        ("project/assay.toml", f'index = "{ADDRESS}"'),
        ("project/pyproject.toml", f'[tool.assay]\nindex = "{ADDRESS}"'),
        ("project/pyproject.toml", f'[ tool . assay ]\nindex = "{ADDRESS}"'),
        ("assay.toml", f'index = "{ADDRESS}"'),
        ("project/pyproject.toml", "[project]\nname = 'x'"),
        ("project/pyproject.toml", "[project]\nname = 'assay-users'"),
        ("unrelated", ""),
    ],
)
def test_every_settings_file_that_names_an_index_is_found(
    file: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project" / "inner").mkdir(parents=True)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    monkeypatch.delenv("ASSAY_INDEX", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "project" / "inner")
    assert find_address() == (load_settings().index or "")
    assert bool(find_address()) == (ADDRESS in text)
    monkeypatch.setenv("ASSAY_INDEX", "local")
    assert find_address() == ""
