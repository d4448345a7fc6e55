"""What lies beside a part decides whether it is gone on with: notes of another address, or damaged ones, say nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from assay.stage.partial_download import digest_address, forget, load_notes, remove_part, write_notes

URL = "https://example.com/data?signature=secret"


@pytest.fixture
def part(tmp_path: Path) -> str:
    return str(tmp_path / "data.part")


def test_notes_come_back_for_their_own_address_only(part: str) -> None:
    assert load_notes(part, URL) == {}
    write_notes(part, URL, {"etag": "x", "total_bytes": 3})
    assert load_notes(part, URL) == {"address": digest_address(URL), "etag": "x", "total_bytes": 3}
    assert load_notes(part, URL + "2") == {}
    write_notes(part, URL + "2", {})
    assert load_notes(part, URL) == {}
    assert os.listdir(os.path.dirname(part)) == ["data.part.json"]


def test_nothing_of_the_address_can_be_read_in_them(part: str) -> None:
    write_notes(part, URL, {})
    content = Path(part + ".json").read_text()
    assert "secret" not in content
    assert "example" not in content


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "null", '"text"', "{}", '{"address": 1}', "\0"])
def test_damaged_notes_say_nothing(part: str, content: str) -> None:
    Path(part + ".json").write_text(content)
    assert load_notes(part, URL) == {}


def test_forgetting_leaves_the_part(part: str) -> None:
    Path(part).write_text("x")
    write_notes(part, URL, {})
    forget(part)
    forget(part)
    assert load_notes(part, URL) == {}
    assert Path(part).read_text() == "x"


def test_a_part_is_a_file_a_folder_or_a_link(part: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    remove_part(part)  # nothing is there
    Path(part).write_text("x")
    remove_part(part)
    os.makedirs(os.path.join(part, "deep"))
    remove_part(part)
    os.symlink(kept, part)
    remove_part(part)
    assert not os.path.lexists(part)
    assert (kept / "file").exists(), "a link is removed, not what it leads to"
