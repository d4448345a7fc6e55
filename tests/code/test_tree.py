from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.code.tree import FileEntry, Selection, build_matcher, load_tree
from assay.plots.figure import write_figure
from assay.show.chart import Line, LineChart


@given(st.lists(st.text("ab*?[].", max_size=4), max_size=4), st.text("ab.", min_size=1, max_size=5))
def test_patterns_mean_what_fnmatch_means(patterns, name):
    wanted = any(pattern and fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    assert build_matcher(patterns)(name, f"folder/{name}") == wanted


def test_a_pattern_with_a_slash_is_held_against_the_path():
    matches = build_matcher(["data/raw", "/top.py", "lib/*.bin", "./here/x/"])
    assert matches("raw", "data/raw")
    assert not matches("raw", "other/data/raw")
    assert matches("w.bin", "lib/deep/w.bin")
    assert matches("x", "here/x")
    assert not matches("top.py", "lib/top.py")
    for nothing in ([], ["", "  "]):
        assert not build_matcher(nothing)("a", "a")


def test_the_walk_is_ordered_and_counts_without_a_file_that_is_left_out(tmp_path):
    for name in ("b", "a", "Z"):
        (tmp_path / name).write_text(name)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/c").write_text("1234")
    (tmp_path / "study.yml").write_text("x")
    tree = load_tree(tmp_path, Selection(exclude=(tmp_path / "study.yml",)))
    assert [file.path for file in tree.files] == ["Z", "a", "b"]
    assert tree.linked == []
    assert [folder.path for folder in tree.walk()] == ["", "sub"]
    assert (tree.count, tree.bytes) == (4, 7)
    assert isinstance(tree.files[0], FileEntry)
    assert not tree.is_empty


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_picture_of_assay_plot_is_not_code(tmp_path, kind):
    pytest.importorskip("matplotlib")
    chart = LineChart((Line("a", [1.0, 2.0], [0.5, 0.4]),))
    write_figure(chart, tmp_path / f"ours.{kind}")
    (tmp_path / f"theirs.{kind}").write_bytes(b"a picture of the project")
    (tmp_path / f"empty.{kind}").write_bytes(b"")
    assert [file.path for file in load_tree(tmp_path, Selection()).files] == [f"empty.{kind}", f"theirs.{kind}"]
