"""What differs, value by value and file by file."""

from __future__ import annotations

import math
from pathlib import Path

from assay.reading import run_diff


def test_kinds_of_values_count_and_both_sides_agree() -> None:
    left = {"a": 1, "b": 1, "c": math.nan, "d": None, "e": "x"}
    right = {"a": True, "b": 1.0, "c": math.nan, "e": "x", "f": None}
    assert list(run_diff.differ(left, right)) == ["a", "b", "d", "f"]
    assert set(run_diff.differ(right, left)) == {"a", "b", "d", "f"}
    assert run_diff.differ(left, dict(left)) == {}


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
    found = run_diff._compare_folders(str(left), str(right))
    assert found == {"only": "only in the first", "other": "only in the second", "sub/a": "differs"}
    (right / "data").unlink()
    (right / "data").symlink_to("/elsewhere")
    assert "data" in run_diff._compare_folders(str(left), str(right))
