from __future__ import annotations

import os
from pathlib import Path

import pytest

from assay.system.cache_dir import cache_dir, index_path


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"ASSAY_CACHE_DIR": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/c"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/assay"),
        ({"HOME": "/h"}, "/h/.cache/assay"),
        ({"ASSAY_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/assay"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/assay"),
    ],
)
def test_the_cache_is_where_the_environment_says(env: dict[str, str], expected: str) -> None:
    assert cache_dir(env) == expected


def test_a_relative_cache_dir_is_relative_to_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cache_dir({"ASSAY_CACHE_DIR": "c"}) == str(tmp_path / "c")


def test_without_a_home_the_users_own_is_asked_for() -> None:
    assert cache_dir({}) == os.path.expanduser("~/.cache/assay")


def test_each_root_has_its_file_whatever_path_leads_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "link").symlink_to("root")
    env = {"ASSAY_CACHE_DIR": "/c"}
    path = index_path(tmp_path / "root", env)
    assert path.startswith("/c/index/")
    assert path.endswith(".sqlite3")
    assert index_path(tmp_path / "link", env) == path
    assert index_path(tmp_path / "other", env) != path
    monkeypatch.chdir(tmp_path)
    assert index_path("root", env) == path


def test_the_name_of_a_roots_file_never_changes() -> None:
    assert index_path("/no/such/root", {"ASSAY_CACHE_DIR": "/c"}) == "/c/index/3732617931c92d8cd5db14e3f91a36ab.sqlite3"
