"""CONTRIBUTING.md against the tree: the picture names every folder, and every path that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

TOP = Path(__file__).parent.parent
TEXT = (TOP / "CONTRIBUTING.md").read_text(encoding="utf-8")
SOURCE = TOP / "src" / "assay"


def test_the_picture_names_every_folder_and_module_of_the_top() -> None:
    picture = TEXT.partition("## The tree")[2].split("```")[1]
    words = set(re.findall(r"[a-z_]+", picture))
    parts = {path.stem for path in SOURCE.iterdir() if (path.is_dir() or path.suffix == ".py") and path.stem[0] != "_"}
    assert parts - {"__pycache__"} - words == set()


def test_every_path_that_is_named_is_there() -> None:
    named = re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|toml|md|txt)|(?:[\w-]+/)+)`", TEXT)
    assert len(named) > 40
    missing = [name for name in named if not any(map(is_there, (TOP, SOURCE, TOP / "tests"), [name] * 3))]
    assert [name for name in missing if "NAME" not in name] == []


def is_there(top: Path, name: str) -> bool:
    """Below the folder; a single name (`plugin.py`, `flow/`) is that of several packages."""
    return (top / name).exists() or ("/" not in name.rstrip("/") and any(SOURCE.glob(f"*/{name.rstrip('/')}")))


def test_every_plug_in_is_registered_and_has_a_budget() -> None:
    import tomllib

    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    folders = {path.parent.name for path in SOURCE.glob("*/plugin.py")}
    assert set(project["entry-points"]["assay.plugins"]) == folders
    assert folders <= set(tomllib.loads((TOP / "tests" / "budget.toml").read_text())["folders"])
