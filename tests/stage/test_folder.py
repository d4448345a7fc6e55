"""Folders of data: every file, links followed, no way round in circles."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from assay.errors import UsageError
from assay.stage.folder import copy_data, is_inside, load_listing


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / "x").write_bytes(b"1")
    (folder / "sub" / "run.sh").write_bytes(b"2")
    (folder / "sub" / "run.sh").chmod(0o755)
    (tmp_path / "elsewhere").write_bytes(b"3")
    (folder / "sub" / "link").symlink_to(tmp_path / "elsewhere")
    return folder


def test_a_listing_knows_all_files_and_folders(source: Path) -> None:
    listing = load_listing(str(source))
    assert [file.name for file in listing.files] == ["sub/link", "sub/run.sh", "x"]
    assert listing.folders == ["sub", "sub/empty"]
    assert listing.bytes == 3


def test_the_same_folder_twice_is_no_circle(source: Path) -> None:
    (source / "again").symlink_to(source / "sub")
    assert [file.name for file in load_listing(str(source)).files][:2] == ["again/link", "again/run.sh"]


@pytest.mark.parametrize("target", ["..", ".", "../../source"])
def test_a_circle_is_named(source: Path, target: str) -> None:
    (source / "sub" / "loop").symlink_to(target)
    with pytest.raises(UsageError, match="sub/loop is a link to a folder that it is in"):
        load_listing(str(source))


def test_a_link_to_nothing_and_a_pipe_are_named(source: Path) -> None:
    os.mkfifo(source / "pipe")
    with pytest.raises(UsageError, match="source/pipe is neither a file nor a folder"):
        load_listing(str(source))
    (source / "gone").symlink_to("nowhere")
    with pytest.raises(UsageError, match="source/gone cannot be read: No such file"):
        load_listing(str(source))


def test_a_copy_keeps_time_and_x_bit(source: Path, tmp_path: Path) -> None:
    os.utime(source / "sub" / "run.sh", (1_500_000_000, 1_500_000_000))
    copy_data(str(source / "sub" / "run.sh"), str(tmp_path / "copy"))
    assert (tmp_path / "copy").stat().st_mtime == 1_500_000_000
    assert os.access(tmp_path / "copy", os.X_OK)


def test_a_file_that_may_not_be_read(forbidden_dir: Path) -> None:
    user = os.geteuid()
    os.seteuid(os.getuid())
    forbidden_dir.chmod(0o755)
    (forbidden_dir / "secret").write_bytes(b"1")
    (forbidden_dir / "secret").chmod(0o000)
    os.seteuid(user)
    with pytest.raises(UsageError, match="secret cannot be read: Permission denied"):
        copy_data(str(forbidden_dir / "secret"), str(forbidden_dir / "copy"))


@pytest.mark.parametrize(
    ("path", "inside"), [("source", True), ("source/sub/x", True), ("source-2", False), (".", False), ("door/x", True)]
)
def test_what_lies_in_a_folder(source: Path, tmp_path: Path, path: str, inside: bool) -> None:
    (tmp_path / "door").symlink_to(source / "sub")
    assert is_inside(str(tmp_path / path), str(source)) is inside
