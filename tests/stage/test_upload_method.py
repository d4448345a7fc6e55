"""Functions of users that take a summary: in a process of their own, whatever they do there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from assay.stage.upload_method import call_upload_method

MODULE = """
import json, os, sys, time
def keep(summary): open("kept.json", "w").write(json.dumps(summary))
def where(summary): open("where.txt", "w").write(os.getcwd() + " " + sys.executable)
def refuse(summary): raise RuntimeError("the table is full")
def silent(summary): os._exit(3)
def leave(summary): sys.exit("not today")
def hang(summary): print("hanging", flush=True); time.sleep(1000)
def talk(summary): print("one"); print("two", file=sys.stderr)
def orphan(summary):
    if os.fork() == 0:
        time.sleep(1000)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "up.py").write_text(MODULE)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "inner.py").write_text("def keep(summary): open('inner.txt', 'w').write('here')\n")
    return tmp_path


def call(folder: Path, name: str, **further: object) -> str | None:
    return call_upload_method(name, {"execution_id": "e", "wall": 1.5}, folder=str(folder), **further)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("up.refuse", "up.refuse: RuntimeError: the table is full"),
        ("up.silent", "up.silent: it ended with exit code 3"),
        ("up.leave", "up.leave: not today"),
        ("up.absent", "up.absent: AttributeError: module 'up' has no attribute 'absent'"),
        ("nowhere.keep", "nowhere.keep: ModuleNotFoundError: No module named 'nowhere'"),
        ("inner.keep", "inner.keep: ModuleNotFoundError: No module named 'inner'"),
    ],
)
def test_what_goes_wrong_is_told(folder: Path, name: str, words: str) -> None:
    assert call(folder, name) == words


def test_one_that_hangs_is_ended(folder: Path) -> None:
    assert call(folder, "up.hang", timeout_s=0.5) == "up.hang took longer than 0.5 s"


def test_what_it_leaves_behind_is_ended(folder: Path) -> None:
    """The orphan holds the pipe: without an end we would wait for it."""
    assert call(folder, "up.orphan", timeout_s=1.0) == "up.orphan took longer than 1 s"


def test_it_is_given_the_summary(folder: Path) -> None:
    assert call(folder, "up.keep") is None
    assert json.loads((folder / "kept.json").read_text()) == {"execution_id": "e", "wall": 1.5}


def test_it_finds_what_the_python_path_names(folder: Path) -> None:
    assert call(folder, "inner.keep", python_path=[str(folder / "package")]) is None
    assert (folder / "inner.txt").exists()


def test_it_runs_in_the_folder_with_the_interpreter_that_was_named(folder: Path) -> None:
    python = folder / "python"
    os.symlink(sys.executable, python)
    assert call(folder, "up.where", python=str(python)) is None
    assert (folder / "where.txt").read_text() == f"{folder} {python}"


def test_what_it_prints_is_said(folder: Path) -> None:
    said: list[str] = []
    assert call(folder, "up.talk", say=said.append) is None
    assert sorted(said) == ["one", "two"]
