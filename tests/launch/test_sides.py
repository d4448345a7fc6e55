"""The notation of two sides: environments and commands. `assay try` uses all of it in `tests/gate/test_try.py`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from assay.errors import UsageError
from assay.launch.sides import build_side_command, parse_environment


def call(text: str, folder: Path) -> str:
    return subprocess.run(["bash", "-c", text], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_a_virtual_environment_comes_first_on_the_path(hostile_path: Path, tmp_path: Path) -> None:
    programs = hostile_path / "bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text('#!/bin/sh\necho "ours $VIRTUAL_ENV"\n')
    (programs / "python").chmod(0o755)
    text = build_side_command(("python", "--version"), parse_environment(str(hostile_path), "--a-env"))
    assert call(text, tmp_path) == f"ours {hostile_path}".strip()


def test_words_come_before_the_command_in_its_folder(tmp_path: Path) -> None:
    inner = tmp_path / "a b"
    inner.mkdir()
    words = ("sh", "-c", 'echo "$X $PWD" $1', "_", "1 2")
    text = build_side_command(words, parse_environment("env X=5", "--a-env"), "a b")
    assert call(text, tmp_path) == f"5 {inner} 1 2"


def test_one_word_is_a_text_for_the_shell(tmp_path: Path) -> None:
    assert call(build_side_command(("echo a | tr a b",)), tmp_path) == "b"
    assert call(build_side_command(('X=1; echo "$X$Y"',), "env Y=2"), tmp_path) == "12"


@pytest.mark.parametrize("text", ["/no/such/place", "'open", " "])
def test_what_is_not_an_environment_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--b-env"):
        parse_environment(text, "--b-env")
    with pytest.raises(UsageError, match="has no bin/python"):
        parse_environment(str(tmp_path), "--b-env")
