"""Names in the store's folders: which entry counts, which is older, what is on its way out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from assay.models.store.layout import StoreLayout, find_key, find_size, remove_tree

KEYS = tuple(letter * 64 for letter in "abc")


@pytest.fixture
def store_layout(tmp_path: Path) -> StoreLayout:
    store_layout = StoreLayout(str(tmp_path))
    assert not store_layout.has_keys()
    assert not store_layout.has_entries()
    store_layout.make_folders()
    return store_layout


def place(store_layout: StoreLayout, key: str, size: int = 10, used_at: float | None = None, folder: str = "") -> str:
    """An entry with one file; its name."""
    aside = store_layout.choose_aside(key)
    os.mkdir(aside)
    Path(aside, "file").write_text("content")
    name = f"{os.path.basename(aside)}.{size}"
    store_layout.place(aside, name)
    if used_at is not None:
        os.utime(os.path.join(folder, "keys", key), (used_at, used_at))
    return name


def test_the_folders_are_made_once(store_layout: StoreLayout) -> None:
    assert store_layout.has_keys()
    assert store_layout.has_entries()
    store_layout.make_folders()
    assert store_layout.list_keys() == store_layout.list_by_use() == list(store_layout.find_leftovers()) == []
    assert store_layout.measure() == 0


def test_what_was_placed_last_counts(store_layout: StoreLayout) -> None:
    assert store_layout.load_pointer(KEYS[0]) is None
    first, second = place(store_layout, KEYS[0], 3), place(store_layout, KEYS[0], 4)
    assert first != second
    assert store_layout.load_pointer(KEYS[0]) == second
    assert store_layout.list_keys() == [KEYS[0]]
    assert store_layout.list_by_use() == [first, second], "what no key names comes first"
    assert store_layout.measure() == 7
    assert Path(store_layout.find_entry(first), "file").read_text() == "content"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"nonsense", b"b" * 64 + b"." + b"1" * 16 + b".5"])
def test_a_pointer_that_is_none_names_an_entry_that_is_not_there(
    store_layout: StoreLayout, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "keys" / KEYS[0]).write_bytes(content)
    name = store_layout.load_pointer(KEYS[0])
    assert name is not None
    assert find_key(name) == KEYS[0]
    assert not os.path.exists(store_layout.find_entry(name))


def test_the_least_recently_used_come_first(store_layout: StoreLayout, tmp_path: Path) -> None:
    times = (300.0, 100.0, 200.0)
    names = [
        place(store_layout, key, used_at=time, folder=str(tmp_path)) for key, time in zip(KEYS, times, strict=True)
    ]
    assert store_layout.list_by_use() == [names[1], names[2], names[0]]
    assert [store_layout.load_used_at(key) for key in KEYS] == list(times)
    store_layout.mark_used(KEYS[1])
    assert store_layout.list_by_use()[-1] == names[1]
    store_layout.mark_used("d" * 64)  # nothing to mark, nothing to say


def test_an_entry_that_is_taken_down_waits_to_be_deleted(store_layout: StoreLayout) -> None:
    old, new = place(store_layout, KEYS[0]), place(store_layout, KEYS[0])
    store_layout.take_down(old)
    assert store_layout.load_pointer(KEYS[0]) == new, "another entry has the key"
    store_layout.take_down(new)
    store_layout.take_down(new)
    assert store_layout.load_pointer(KEYS[0]) is None
    assert store_layout.list_by_use() == []
    left = list(store_layout.find_leftovers())
    assert [key for _, key in left] == [None, None]
    for path, _ in left:
        remove_tree(path)
    assert list(store_layout.find_leftovers()) == []


def test_a_build_that_was_left_is_known_by_its_key(store_layout: StoreLayout) -> None:
    aside = store_layout.choose_aside(KEYS[2])
    os.mkdir(aside)
    assert list(store_layout.find_leftovers()) == [(aside, KEYS[2])]


def test_only_half_written_pointers_are_removed(store_layout: StoreLayout, tmp_path: Path) -> None:
    name = place(store_layout, KEYS[0])
    (tmp_path / "keys" / f".{KEYS[1]}.tmp").write_text("half")
    store_layout.remove_torn()
    assert os.listdir(tmp_path / "keys") == [KEYS[0]]
    assert store_layout.load_pointer(KEYS[0]) == name


def test_strange_names_are_nobodys(store_layout: StoreLayout, tmp_path: Path) -> None:
    (tmp_path / "entries" / "notes").mkdir()
    (tmp_path / "keys" / "readme").write_text("mine")
    assert store_layout.list_by_use() == store_layout.list_keys() == []
    assert find_size("notes") == store_layout.measure() == 0
