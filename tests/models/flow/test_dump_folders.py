"""Folders of dumps: one for each sample, and nothing of an earlier dump between the new files."""

from __future__ import annotations

import pytest

from assay.errors import InfrastructureError
from assay.models.flow.dump_folders import NOTE, DumpFolders


def dump(folder, *names):
    """As a process that makes one dump."""
    folders = DumpFolders()
    place = folders.choose(str(folder), "case", "compile", "sha")
    folders.clear(place)
    for name in names:
        path = folder / "case" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    folders.note(place)


def left_in(folder):
    return sorted(str(path.relative_to(folder / "case")) for path in (folder / "case").rglob("*") if path.name != NOTE)


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match="cannot be made"):
        DumpFolders().choose(str(tmp_path / "file"), "case", "compile", "sha")


def test_what_an_earlier_dump_wrote_goes(tmp_path):
    dump(tmp_path, "1_a.txt", "2_b.txt", "passes/deep/3.txt")
    dump(tmp_path, "1_a.txt")
    assert left_in(tmp_path) == ["1_a.txt"]


def test_what_somebody_else_put_there_stays(tmp_path):
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "notes.md").write_text("mine")
    dump(tmp_path, "1_a.txt")
    (tmp_path / "case" / "later.md").write_text("mine too")
    dump(tmp_path, "2_b.txt")
    assert left_in(tmp_path) == ["2_b.txt", "later.md", "notes.md"]


def test_a_note_leads_nowhere_outside(tmp_path):
    dump(tmp_path, "1_a.txt")
    (tmp_path / "precious").write_text("x")
    (tmp_path / "case" / NOTE).write_text(f"../precious\n{tmp_path}/precious\n.\n\n")
    dump(tmp_path, "2_b.txt")
    assert (tmp_path / "precious").exists()
    assert "1_a.txt" in left_in(tmp_path)


def test_one_process_clears_once(tmp_path):
    """A compiler is called again for the same case: of another target, say."""
    folders = DumpFolders()
    place = folders.choose(str(tmp_path), "case", "compile", "sha")
    for name in ("a", "b"):
        folders.clear(place)
        (tmp_path / "case" / name).touch()
        folders.note(place)
    assert left_in(tmp_path) == ["a", "b"]
    dump(tmp_path, "c")
    assert left_in(tmp_path) == ["c"]


def test_samples_have_folders_of_their_own(tmp_path):
    folders = DumpFolders()
    places = [folders.choose(str(tmp_path), "case", "run", sha) for sha in ("x", "y", "x", "z")]
    ends = [place.removeprefix(f"{tmp_path}/case") for place in places]
    assert ends == ["", "/sample_2", "", "/sample_3"]
    assert folders.choose(str(tmp_path), "other", "run", "y") == str(tmp_path / "other")
    assert folders.choose(str(tmp_path), "case", "compile", "another") == str(tmp_path / "case"), "steps share it"


def test_a_dump_of_nothing_leaves_nothing(tmp_path):
    dump(tmp_path, "a")
    dump(tmp_path)
    assert list((tmp_path / "case").iterdir()) == []
