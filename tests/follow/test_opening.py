"""Which index a root has."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.config.settings import load_settings
from assay.errors import InfrastructureError
from assay.follow import opening
from assay.follow.opening import find_address, open_index

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


def test_a_server_may_be_missing_for_a_while_but_not_the_plug_in_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_words: object, **_options: object) -> None:
        raise InfrastructureError("it is broken")

    monkeypatch.setenv("ASSAY_INDEX", ADDRESS)
    told: list[str] = []
    monkeypatch.setattr(opening, "require_function", lambda *_words: fail)
    open_index(tmp_path, told.append, is_needed=False).close()
    assert told == ["it is broken; the runs are not in it until a later command reads them"]
    with pytest.raises(InfrastructureError, match="it is broken"):
        open_index(tmp_path)
    monkeypatch.setattr(opening, "require_function", fail)
    with pytest.raises(InfrastructureError, match="it is broken"):
        open_index(tmp_path, told.append, is_needed=False)
