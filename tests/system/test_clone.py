from __future__ import annotations

import os

import pytest

from assay.system import clone
from assay.system.clone import copy_file


@pytest.fixture(params=[None, False], ids=["as the file system can", "without cloning"])
def copying(request, monkeypatch):
    if request.param is False:
        monkeypatch.setattr(clone, "_clone", lambda reader, writer: False)


@pytest.mark.parametrize("size", [0, 1, 4096, 3_000_001])
@pytest.mark.usefixtures("copying")
def test_a_copy_is_equal_and_private(tmp_path, size):
    content = os.urandom(size)
    (tmp_path / "a").write_bytes(content)
    copy_file(str(tmp_path / "a"), str(tmp_path / "b"), mode=0o777, mtime_ns=10**18 + 7)
    assert (tmp_path / "b").read_bytes() == content
    status = (tmp_path / "b").stat()
    assert (status.st_nlink, status.st_mtime_ns, bool(status.st_mode & 0o100)) == (1, 10**18 + 7, True)
    assert status.st_ino != (tmp_path / "a").stat().st_ino
    (tmp_path / "b").write_bytes(b"changed")
    assert (tmp_path / "a").read_bytes() == content


def test_across_file_systems(tmp_path):
    candidates = ("/dev/shm", "/var/tmp", os.getcwd())
    here = os.stat(tmp_path).st_dev
    other = next((path for path in candidates if os.path.isdir(path) and os.stat(path).st_dev != here), None)
    if other is None:
        pytest.skip("there is only one file system here")
    target = f"{other}/assay-clone-{os.getpid()}"
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    try:
        copy_file(str(tmp_path / "a"), target, mode=0o666, mtime_ns=0)
        with open(target, "rb") as stream:
            assert stream.read() == b"x" * 100_000
    finally:
        os.unlink(target)


def test_special_files_of_the_kernel_are_read_to_their_end(tmp_path):
    """copy_file_range takes them for empty."""
    copy_file("/proc/self/status", str(tmp_path / "s"), mode=0o666, mtime_ns=0)
    assert (tmp_path / "s").read_text().startswith("Name:")


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    with pytest.raises(FileExistsError):
        copy_file(str(tmp_path / "a"), str(tmp_path / "b"), mode=0o666, mtime_ns=0)
    assert (tmp_path / "b").read_text() == "b"


def test_the_answer_of_a_pair_of_devices_is_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(clone, "_can_clone", {})
    (tmp_path / "a").write_text("a")
    copy_file(str(tmp_path / "a"), str(tmp_path / "b"), mode=0o666, mtime_ns=0)
    device = os.stat(tmp_path).st_dev
    assert set(clone._can_clone) == {(device, device)}
    monkeypatch.setitem(clone._can_clone, (device, device), False)
    copy_file(str(tmp_path / "a"), str(tmp_path / "c"), mode=0o666, mtime_ns=0)
    assert (tmp_path / "c").read_text() == "a"
