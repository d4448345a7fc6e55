"""Functions of users that take a summary: in a process of their own, whatever they do there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from assay.compat.perfzero.uploads import call_upload_method, check_upload_method
from assay.errors import UsageError

MODULE = """
import json, os, sys, time
def keep(summary): open("kept.json", "w").write(json.dumps(summary))
def where(summary): open("where.txt", "w").write(os.getcwd() + " " + sys.executable)
def refuse(summary): raise RuntimeError("the table is full")
def deep(summary):
    refuse(summary)
number = 3
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
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "leaves.py").write_text("import os\nos._exit(7)\n")
    (tmp_path / "wants.py").write_text("print('on stdout')\nimport no_such_library\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "inner.py").write_text("def keep(summary): open('inner.txt', 'w').write('here')\n")
    return tmp_path


def call(folder: Path, name: str, **further: object) -> str | None:
    return call_upload_method(name, {"execution_id": "e", "wall": 1.5}, folder=str(folder), **further)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("up.refuse", "up.refuse: RuntimeError: the table is full (up.py:5 in refuse)"),
        ("up.deep", "up.deep: RuntimeError: the table is full (up.py:5 in refuse, called from up.py:7 in deep)"),
        ("broken.keep", "broken.keep: ZeroDivisionError: division by zero (broken.py:1 in <module>)"),
        ("up.silent", "up.silent: it ended with exit code 3"),
        ("up.leave", "up.leave: not today"),
        ("up.absent", "up.absent: AttributeError: module 'up' has no attribute 'absent'"),
        ("nowhere.keep", "nowhere.keep: ModuleNotFoundError: No module named 'nowhere'"),
        ("inner.keep", "inner.keep: ModuleNotFoundError: No module named 'inner'"),
    ],
)
def test_what_goes_wrong_is_told(folder: Path, name: str, words: str) -> None:
    assert call(folder, name) == words


def check(folder: Path, name: str, **further: object) -> None:
    check_upload_method(name, folder=str(folder), **further)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        ("up.refsue", "up.refsue: module up has no 'refsue'", "did you mean 'refuse'?"),
        ("up.number", "up.number is not a function", "write module.function"),
        ("nowhere.keep", "cannot be called: ModuleNotFoundError: No module named 'nowhere'", "--python_path"),
        ("inner.keep", "No module named 'inner'", "--python_path"),
        ("wants.keep", r"No module named 'no_such_library' \(wants.py:2 in <module>\)", None),
        ("broken.keep", r"ZeroDivisionError: division by zero \(broken.py:1 in <module>\)", None),
        ("leaves.keep", "importing leaves ends the process with exit code 7", None),
    ],
)
def test_what_can_never_be_called_is_said_before(folder: Path, name: str, words: str, hint: str | None) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        check(folder, name)
    assert caught.value.message.startswith(f"--result_upload_methods: {name}")
    assert caught.value.hint == hint if hint is None else hint in (caught.value.hint or "")


def test_looking_for_it_does_not_call_it(folder: Path) -> None:
    check(folder, "up.keep")
    check(folder, "inner.keep", python_path=[str(folder / "package")])
    assert sorted(path.name for path in folder.iterdir() if path.suffix in (".json", ".txt")) == []


def test_a_module_that_takes_its_time_is_left_to_the_call(folder: Path) -> None:
    (folder / "late.py").write_text("import time\ntime.sleep(1000)\n")
    check(folder, "late.keep", timeout_s=0.5)


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


def test_what_it_raises_is_one_line_and_no_traceback(folder: Path) -> None:
    said: list[str] = []
    call(folder, "up.deep", say=said.append)
    assert said == []


def test_what_it_prints_is_said(folder: Path) -> None:
    said: list[str] = []
    assert call(folder, "up.talk", say=said.append) is None
    assert sorted(said) == ["one", "two"]
