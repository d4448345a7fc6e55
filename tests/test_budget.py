"""The size of the tree, against tests/budget.toml. A number that is raised names what is removed for it, or why."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest
from tests.test_architecture import OWNERS, PLUGINS

from assay.plugins import Plugin

TOP = Path(__file__).parent.parent
SOURCE = TOP / "src" / "assay"
BUDGET = tomllib.loads((TOP / "tests" / "budget.toml").read_text(encoding="utf-8"))
INTERFACE = ("plugins.py", "values/hooks.py", "launch/steps.py", "config/places.py", "web/interface.py")


def measure(paths: list[Path]) -> tuple[int, int]:
    """(lines, files)."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths), len(paths)


def list_files(folder: str) -> list[Path]:
    """Of a folder with the modules that users import from it; `top`: the modules next to the folders."""
    if folder == "top":
        return [path for path in SOURCE.glob("*.py") if path.stem not in OWNERS]
    own = [SOURCE / f"{module}.py" for module, owner in OWNERS.items() if owner == folder]
    return [*(SOURCE / folder).rglob("*.py"), *own]


def find_core() -> list[str]:
    folders = [path.name for path in SOURCE.iterdir() if path.is_dir() and path.name[0] != "_"]
    return ["top", *(name for name in folders if name not in PLUGINS)]


def test_every_folder_has_a_line() -> None:
    assert set(BUDGET["folders"]) == {*find_core(), *PLUGINS}


@pytest.mark.parametrize("folder", sorted(BUDGET["folders"]))
def test_a_folder_keeps_its_budget(folder: str) -> None:
    lines, files = measure(list_files(folder))
    most_lines, most_files = BUDGET["folders"][folder]
    assert lines <= most_lines, f"{folder}: {lines} lines"
    assert files <= most_files, f"{folder}: {files} files"


def test_the_core_does_not_grow() -> None:
    lines = sum(measure(list_files(folder))[0] for folder in find_core())
    assert lines <= BUDGET["core_lines"], lines


def test_the_source_and_the_tests_keep_their_budgets() -> None:
    assert measure(list(SOURCE.rglob("*.py")))[0] <= BUDGET["source_lines"]
    tests = [path for path in (TOP / "tests").rglob("*.py") if "formats" not in path.parts]
    assert measure(tests)[0] <= BUDGET["test_lines"]


@pytest.mark.parametrize("package", sorted(BUDGET["api_names"]))
def test_an_api_keeps_its_width(package: str) -> None:
    api = importlib.import_module(f"assay.{package}.api")
    names = [name for names in api.HOMES.values() for name in names.split()]
    assert len(names) <= BUDGET["api_names"][package], f"{package}.api: {len(names)} names"


def test_every_api_has_a_width() -> None:
    assert set(BUDGET["api_names"]) == {path.parent.name for path in SOURCE.glob("*/api.py")}


def test_the_interface_of_plug_ins_stays_small() -> None:
    paths = [path for pattern in INTERFACE for path in SOURCE.glob(pattern)]
    assert measure(paths)[0] <= BUDGET["interface_lines"]
    assert len(set(Plugin.__slots__) - {"name", "needs", "reading"}) <= BUDGET["hooks"]
