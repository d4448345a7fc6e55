"""What differs, value by value and file by file."""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from assay.reading import run_diff

VALUES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=2)
PARAMS = st.dictionaries(st.sampled_from("abcd"), VALUES)


@given(PARAMS, PARAMS)
def test_differences_are_the_same_from_both_sides(left: dict[str, object], right: dict[str, object]) -> None:
    assert run_diff.differ(left, dict(left)) == ()
    there = {each.name for each in run_diff.differ(left, right)}
    assert there == {each.name for each in run_diff.differ(right, left)}
    assert there >= left.keys() ^ right.keys()


def test_kinds_of_values_count() -> None:
    assert [
        each.name for each in run_diff.differ({"a": 1, "b": 1, "c": math.nan}, {"a": True, "b": 1.0, "c": math.nan})
    ] == ["a", "b"]


def test_files(tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    for folder in (left, right):
        (folder / "sub").mkdir(parents=True)
        (folder / "same").write_text("x")
        (folder / "data").symlink_to("/somewhere")
    (left / "sub" / "a").write_text("1")
    (right / "sub" / "a").write_text("2")
    (left / "only").write_text("")
    (right / "other").symlink_to("/here")
    found = {each.path: each.kind for each in run_diff._compare_folders(str(left), str(right))}
    assert found == {"only": "only in the first", "other": "only in the second", "sub/a": "differs"}
    (right / "data").unlink()
    (right / "data").symlink_to("/elsewhere")
    assert "data" in {each.path for each in run_diff._compare_folders(str(left), str(right))}
