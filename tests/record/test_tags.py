"""Tags and notes in the folder of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.errors import FormatError, InfrastructureError, UsageError
from assay.record.tags import NO_MARKS, MarksChange, Note, change_marks, check_tag, find_tags_file, load_marks


def file_of(folder: Path) -> str:
    return find_tags_file(str(folder))


def test_tags_are_added_removed_and_kept_in_order(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    assert load_marks(path) == NO_MARKS
    assert change_marks(path, MarksChange(("good", "paper", "good"))).tags == ("good", "paper")
    assert change_marks(path, MarksChange(("new",), ("good",))).tags == ("paper", "new")
    assert load_marks(path).tags == ("paper", "new")
    assert json.loads((tmp_path / "tags.json").read_text()) == {"format": 1, "tags": ["paper", "new"], "notes": []}


def test_notes_are_added_and_cleared(tmp_path: Path) -> None:
    path = find_tags_file(str(tmp_path), of_study=True)
    change_marks(path, MarksChange(note=Note(5.0, "first")))
    marks = change_marks(path, MarksChange(("t",), note=Note(6.0, "second")))
    assert (marks.note, marks.notes[0].at) == ("first\nsecond", 5.0)
    assert change_marks(path, MarksChange(clear_notes=True)) == load_marks(path)._replace(notes=())
    assert load_marks(path).tags == ("t",)
    assert (tmp_path / ".assay" / "tags.json").exists()


def test_a_change_that_changes_nothing_does_not_write(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    change_marks(path, MarksChange(("good",)))
    os.utime(path, (5, 5))
    change_marks(path, MarksChange(("good",), ("unknown",)))
    assert os.stat(path).st_mtime == 5


@pytest.mark.parametrize("tag", ["", "a b", "a,b", "a\tb", "a\x1b", "x" * 101, "a\u00a0b", "a\n"])
def test_what_is_not_a_tag(tag: str) -> None:
    with pytest.raises(UsageError, match="tag"):
        check_tag(tag)


@pytest.mark.parametrize("tag", ["good", "x" * 100, "β-2", "paper:fig.3", "=x"])
def test_what_is_a_tag(tag: str) -> None:
    assert check_tag(tag) == tag


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"format": 1, "tags": 5}',
        '{"format": 1, "tags": [1]}',
        '{"format": 99}',
        '{"format": 1, "notes": [{}]}',
    ],
)
def test_a_damaged_file_is_named_and_not_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "tags.json").write_text(text)
    marks = load_marks(file_of(tmp_path))
    assert (marks.tags, marks.notes) == ((), ())
    assert "tags.json" in marks.problem
    with pytest.raises(FormatError, match=r"tags\.json") as caught:
        change_marks(file_of(tmp_path), MarksChange(("good",)))
    assert caught.value.hint
    assert (tmp_path / "tags.json").read_text() == text


@pytest.mark.parametrize("text", ["[]", '{"tags": ["of a tokenizer"]}', '"x"'])
def test_a_file_of_another_program_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "tags.json").write_text(text)
    assert load_marks(file_of(tmp_path)) == NO_MARKS
    with pytest.raises(FormatError):
        change_marks(file_of(tmp_path), MarksChange(("good",)))
    assert (tmp_path / "tags.json").read_text() == text


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "tags.json").mkdir()
    assert "cannot be read" in load_marks(file_of(tmp_path)).problem
    with pytest.raises(InfrastructureError, match="cannot be written"):
        change_marks(file_of(tmp_path), MarksChange(("good",)))


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from assay.record.tags import *\n"
        "for n in range(20): change_marks(sys.argv[1], MarksChange((f'{sys.argv[2]}-{n}',), note=Note(0.0, sys.argv[2])))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, file_of(tmp_path), name]) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    marks = load_marks(file_of(tmp_path))
    assert sorted(marks.tags) == sorted(f"{name}-{n}" for name in "abc" for n in range(20))
    assert sorted(note.text for note in marks.notes) == sorted("abc" * 20)
    assert os.listdir(tmp_path) == ["tags.json"]


def test_a_read_only_folder_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("assay.record.tags.write_atomic", refuse)
    with pytest.raises(InfrastructureError, match="Permission denied"):
        change_marks(file_of(tmp_path), MarksChange(("good",)))
