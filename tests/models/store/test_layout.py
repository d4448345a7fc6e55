"""Names in the store's folders: which entry counts, which is older, what is on its way out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from assay.models.store.layout import Shelf, find_key, find_size, remove_tree

KEYS = tuple(letter * 64 for letter in "abc")


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(str(tmp_path))
    assert not shelf.has_keys()
    assert not shelf.has_entries()
    shelf.make_folders()
    return shelf


def place(shelf: Shelf, key: str, size: int = 10, used_at: float | None = None, folder: str = "") -> str:
    """An entry with one file; its name."""
    aside = shelf.choose_aside(key)
    os.mkdir(aside)
    Path(aside, "file").write_text("content")
    name = f"{os.path.basename(aside)}.{size}"
    shelf.place(aside, name)
    if used_at is not None:
        os.utime(os.path.join(folder, "keys", key), (used_at, used_at))
    return name


def test_the_folders_are_made_once(shelf: Shelf) -> None:
    assert shelf.has_keys()
    assert shelf.has_entries()
    shelf.make_folders()
    assert shelf.list_keys() == shelf.list_by_use() == list(shelf.find_leftovers()) == []
    assert shelf.measure() == 0


def test_what_was_placed_last_counts(shelf: Shelf) -> None:
    assert shelf.load_pointer(KEYS[0]) is None
    first, second = place(shelf, KEYS[0], 3), place(shelf, KEYS[0], 4)
    assert first != second
    assert shelf.load_pointer(KEYS[0]) == second
    assert shelf.list_keys() == [KEYS[0]]
    assert shelf.list_by_use() == [first, second], "what no key names comes first"
    assert shelf.measure() == 7
    assert Path(shelf.find_entry(first), "file").read_text() == "content"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"nonsense", b"b" * 64 + b"." + b"1" * 16 + b".5"])
def test_a_pointer_that_is_none_names_an_entry_that_is_not_there(shelf: Shelf, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "keys" / KEYS[0]).write_bytes(content)
    name = shelf.load_pointer(KEYS[0])
    assert name is not None
    assert find_key(name) == KEYS[0]
    assert not os.path.exists(shelf.find_entry(name))


def test_the_least_recently_used_come_first(shelf: Shelf, tmp_path: Path) -> None:
    times = (300.0, 100.0, 200.0)
    names = [place(shelf, key, used_at=time, folder=str(tmp_path)) for key, time in zip(KEYS, times, strict=True)]
    assert shelf.list_by_use() == [names[1], names[2], names[0]]
    assert [shelf.load_used_at(key) for key in KEYS] == list(times)
    shelf.mark_used(KEYS[1])
    assert shelf.list_by_use()[-1] == names[1]
    shelf.mark_used("d" * 64)  # nothing to mark, nothing to say


def test_an_entry_that_is_taken_down_waits_to_be_deleted(shelf: Shelf) -> None:
    old, new = place(shelf, KEYS[0]), place(shelf, KEYS[0])
    shelf.take_down(old)
    assert shelf.load_pointer(KEYS[0]) == new, "another entry has the key"
    shelf.take_down(new)
    shelf.take_down(new)
    assert shelf.load_pointer(KEYS[0]) is None
    assert shelf.list_by_use() == []
    left = list(shelf.find_leftovers())
    assert [key for _, key in left] == [None, None]
    for path, _ in left:
        remove_tree(path)
    assert list(shelf.find_leftovers()) == []


def test_a_build_that_was_left_is_known_by_its_key(shelf: Shelf) -> None:
    aside = shelf.choose_aside(KEYS[2])
    os.mkdir(aside)
    assert list(shelf.find_leftovers()) == [(aside, KEYS[2])]


def test_only_half_written_pointers_are_removed(shelf: Shelf, tmp_path: Path) -> None:
    name = place(shelf, KEYS[0])
    (tmp_path / "keys" / f".{KEYS[1]}.tmp").write_text("half")
    shelf.remove_torn()
    assert os.listdir(tmp_path / "keys") == [KEYS[0]]
    assert shelf.load_pointer(KEYS[0]) == name


def test_strange_names_are_nobodys(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "entries" / "notes").mkdir()
    (tmp_path / "keys" / "readme").write_text("mine")
    assert shelf.list_by_use() == shelf.list_keys() == []
    assert find_size("notes") == shelf.measure() == 0
