"""What `assay demo` prints is true."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.study_processes import open_study_processes

from assay.errors import ExitCode, UsageError
from assay.start.demo import BROKEN, HARMLESS, edited, find_examples, find_hidden, lay_out, serve, show_next
from assay.web import assets


@pytest.mark.services("kills")
def test_the_whole_demo_ends_well(tmp_path: Path) -> None:
    with open_study_processes(tmp_path) as shop:
        ended = shop.call("demo", "--plain", "--dir", "play")
        assert ended.code == 0, ended.out + ended.err
        program = shop.source / "play" / "charlm" / "charlm.py"
        assert program.read_text() == (find_examples() / "charlm" / "charlm.py").read_text(), "it is put back"
    gathered, harmless, broken = (part for part in ended.out.split("$ assay golden ")[1:])
    assert "charlm: recorded" in gathered
    assert "charlm: PASS" in harmless
    assert "charlm: FAIL" in broken
    assert "begins at step 10" in broken
    assert "differs from the recording: code: charlm.py has changed" in broken
    assert "loss       paired  FAIL" in broken


def test_where_the_shell_does_not_find_assay_it_is_told_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line that is printed works when it is pasted."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    show_next(".", find_hidden())
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()[1:3]]
    words = ["bash", "-c", "\n".join([*lines, "command -v assay"])]
    typed = subprocess.run(words, capture_output=True, text=True, check=True)
    assert typed.stdout == f"{os.path.dirname(sys.executable)}/assay\n"
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    assert find_hidden() is None


@pytest.mark.parametrize("folder", ["/dev/null/x", "file", "file/x"])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be filled"):
        lay_out(tmp_path / folder)


def test_the_edits_fit_the_program_and_are_taken_back(tmp_path: Path) -> None:
    program = tmp_path / "charlm.py"
    text = (find_examples() / "charlm" / "charlm.py").read_text()
    program.write_text(text)
    for edit in (HARMLESS, BROKEN):
        with edited(program, edit) as is_there:
            assert is_there
            assert edit.after in program.read_text()
        assert program.read_text() == text


def test_a_program_that_the_user_has_changed_is_left_alone(tmp_path: Path) -> None:
    program = tmp_path / "charlm.py"
    program.write_text("print('mine')\n")
    with edited(program, BROKEN) as is_there:
        assert not is_there
    assert program.read_text() == "print('mine')\n"


@pytest.mark.parametrize(
    ("ended", "code"),
    [(ExitCode.INTERRUPTED, 0), (ExitCode.OK, 0), (ExitCode.USAGE, 2)],
    ids=["Ctrl-C", "ok", "no port"],
)
def test_it_ends_with_the_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, ended: ExitCode, code: int
) -> None:
    monkeypatch.setattr(assets, "find_missing", list)
    calls: list[list[str]] = []

    def call(words: list[str]) -> int:
        calls.append(words)
        return int(ended)

    assert serve(call) == code
    assert calls == [["serve", "--port", "0"]]
    assert "$ assay serve --port 0" in capsys.readouterr().out


def test_without_the_files_of_the_page_it_prints_how_to_get_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "find_missing", lambda: ["htmx.min.js"])
    assert serve(lambda words: pytest.fail(str(words))) == 0
    assert "hatch_build.py" in capsys.readouterr().out
