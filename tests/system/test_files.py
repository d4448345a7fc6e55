"""A file is whole or not there, whatever the disk and the other processes do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InfrastructureError
from assay.system import files


def _die(*_arguments: object) -> None:
    raise KeyboardInterrupt


def test_a_disk_that_takes_a_part_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = os.write, []

    def full(fd: int, data: bytes) -> int:
        calls.append(fd)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return write(fd, data[:10])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        files.publish(str(tmp_path / "lease.1"), "y" * 100)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_replacing_leaves_the_old_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.write_atomic(str(path), "old")
    monkeypatch.setattr(os, "replace", _die)
    with pytest.raises(KeyboardInterrupt):
        files.write_atomic(str(path), "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]
    files.write_atomic(str(path), "new")
    assert path.read_text() == "new"


def test_a_file_of_another_program_replaces_the_old_one_when_the_block_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    path.write_bytes(b"old")
    with files.replacing(str(path), suffix=".png") as aside:
        Path(aside).write_bytes(b"new")
        assert (path.read_bytes(), Path(aside).parent, Path(aside).suffix) == (b"old", tmp_path, ".png")
    assert path.read_bytes() == b"new"
    with pytest.raises(IsADirectoryError), files.replacing(str(path)) as aside:
        Path(aside).write_bytes((tmp_path / ".").read_bytes())
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["plot.png"]


def test_the_end_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert files.read_end(str(path), 10) == ""
    path.write_bytes("änderung\nlast".encode())
    assert files.read_end(str(path), 5) == "\nlast"
    assert files.read_end(str(path), 13) == "\N{REPLACEMENT CHARACTER}nderung\nlast"
    assert files.read_end(str(path), 99) == "änderung\nlast"


def test_a_new_file_is_written_over_nothing(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    files.write_new(str(path), "one", mode=0o700)
    assert path.stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileExistsError):
        files.write_new(str(path), "two")
    assert path.read_text() == "one"


def test_names_that_are_no_text_survive(tmp_path: Path) -> None:
    files.write_atomic(str(tmp_path / "file"), os.fsdecode(b"caf\xe9"))
    assert (tmp_path / "file").read_bytes() == b"caf\xe9"


def test_a_batch_of_news_is_flushed_once(tmp_path: Path) -> None:
    flusher = files.Flusher(str(tmp_path), gather_s=0.0, pause_s=3600.0)
    flusher.tick()
    flusher.wait()
    assert flusher.count == 0  # nothing was written
    for number in range(100):
        (tmp_path / str(number)).write_text("new")
        flusher.note()
    flusher.tick()
    flusher.wait()
    assert flusher.count == 1
    flusher.note()
    flusher.tick()  # the next batch is still gathered
    flusher.wait()
    assert flusher.count == 1
    gone = files.Flusher(str(tmp_path / "gone"), gather_s=0.0)
    gone.note()
    gone.tick()
    gone.wait()
    assert gone.count == 0


def test_a_folder_of_the_same_name_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "outcome.1" / "inside").mkdir(parents=True)
    files.write_atomic(str(tmp_path / "outcome.1"), "text", repair=True)
    assert files.read_text(str(tmp_path / "outcome.1")) == "text"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_of_a_user_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "report" / "inside").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        files.write_atomic(str(tmp_path / "report"), "text")
    with pytest.raises(IsADirectoryError), files.replacing(str(tmp_path / "report")) as aside:
        Path(aside).write_text("text")
    assert (tmp_path / "report" / "inside").is_dir()
    assert os.listdir(tmp_path) == ["report"]


@pytest.fixture(params=[None, False], ids=["as the file system can", "without cloning"])
def copying(request, monkeypatch):
    if request.param is False:
        monkeypatch.setattr(files, "_clone", lambda reader, writer: False)


@pytest.mark.parametrize("size", [0, 1, 4096, 3_000_001])
@pytest.mark.usefixtures("copying")
def test_a_copy_is_equal_and_private(tmp_path, size):
    content = os.urandom(size)
    (tmp_path / "a").write_bytes(content)
    files.copy_file(str(tmp_path / "a"), str(tmp_path / "b"), mode=0o777, mtime_ns=10**18 + 7)
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
        files.copy_file(str(tmp_path / "a"), target, mode=0o666, mtime_ns=0)
        with open(target, "rb") as stream:
            assert stream.read() == b"x" * 100_000
    finally:
        os.unlink(target)


def test_special_files_of_the_kernel_are_read_to_their_end(tmp_path):
    """copy_file_range takes them for empty."""
    files.copy_file("/proc/self/status", str(tmp_path / "s"), mode=0o666, mtime_ns=0)
    assert (tmp_path / "s").read_text().startswith("Name:")


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    with pytest.raises(FileExistsError):
        files.copy_file(str(tmp_path / "a"), str(tmp_path / "b"), mode=0o666, mtime_ns=0)
    assert (tmp_path / "b").read_text() == "b"


def test_the_answer_of_a_pair_of_devices_is_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_can_clone", {})
    (tmp_path / "a").write_text("a")
    files.copy_file(str(tmp_path / "a"), str(tmp_path / "b"), mode=0o666, mtime_ns=0)
    device = os.stat(tmp_path).st_dev
    assert set(files._can_clone) == {(device, device)}
    monkeypatch.setitem(files._can_clone, (device, device), False)
    files.copy_file(str(tmp_path / "a"), str(tmp_path / "c"), mode=0o666, mtime_ns=0)
    assert (tmp_path / "c").read_text() == "a"


@pytest.mark.parametrize("torn", ['{"number": 9', "{", '{"number": "\u00e4', "nonsense", "[1]\n3\n\n\udcff\nnull\n "])
def test_what_is_torn_or_no_object_costs_itself_alone(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "log.jsonl"
    files.append_line(str(path), {"number": 1})
    path.write_bytes(path.read_bytes() + torn.encode("utf-8", "surrogateescape")[:-1])
    files.append_line(str(path), {"number": 2})
    assert files.load_lines(str(path)) == [{"number": 1}, {"number": 2}]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="cannot be written"):
        files.append_line(str(tmp_path / "nowhere" / "log.jsonl"), {})
    (tmp_path / "folder").mkdir()
    with pytest.raises(InfrastructureError):
        files.append_line(str(tmp_path / "folder"), {})


@settings(max_examples=15, deadline=None)
@given(facts=st.lists(st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.none(), st.booleans()))))
def test_anything_can_be_kept(facts: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("lines") / "log.jsonl"
    assert files.load_lines(str(path)) == []
    for each in facts:
        files.append_line(str(path), each)
    assert files.load_lines(str(path)) == json.loads(json.dumps(facts))


def append(path, data):
    with open(path, "ab") as file:
        file.write(data)


def test_only_new_bytes_are_read(tmp_path):
    path = tmp_path / "a 'log'\n.log"
    tail = files.Tail(path)
    assert tail.read() == b""
    append(path, b"one\n")
    assert tail.read() == b"one\n"
    assert tail.read() == b""
    append(path, b"two\n")
    assert (tail.read(), tail.offset, tail.restarts) == (b"two\n", 8, 0)


def test_what_is_not_a_file_is_empty_and_nobody_waits_for_it(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    for name in ("loop", "pipe", "nothing", "none/log", "file/log"):
        assert (files.Tail(tmp_path / name).read(), files.read_end(str(tmp_path / name), 9)) == (b"", ""), name


def test_the_limit_leaves_the_rest_for_the_next_call(tmp_path):
    path = tmp_path / "log"
    append(path, b"0123456789")
    tail = files.Tail(path, offset=2)
    assert [tail.read(5), tail.read(5), tail.read(5)] == [b"23456", b"789", b""]


def test_a_file_that_was_cut_or_replaced_is_read_again_from_its_start(tmp_path):
    path, other = tmp_path / "log", tmp_path / "other"
    append(path, b"a long first version\n")
    tail = files.Tail(path, offset=100)  # beyond the end: the file was rewritten
    assert (tail.read(), tail.restarts) == (b"a long first version\n", 1)
    path.write_bytes(b"new\n")
    assert (tail.read(), tail.restarts) == (b"new\n", 2)
    append(other, b"longer than before\n")
    os.replace(other, path)
    assert (tail.read(), tail.restarts) == (b"longer than before\n", 3)


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
    assert files.cache_dir(env) == expected


def test_a_relative_cache_dir_is_relative_to_here_and_without_a_home_the_users_own_is_used() -> None:
    assert files.cache_dir({"ASSAY_CACHE_DIR": "c"}) == os.path.abspath("c")
    assert files.cache_dir({}) == os.path.expanduser("~/.cache/assay")


def test_each_root_has_its_file_whatever_path_leads_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "link").symlink_to("root")
    env = {"ASSAY_CACHE_DIR": "/c"}
    path = files.index_path(tmp_path / "root", env)
    assert path.startswith("/c/index/")
    assert path.endswith(".sqlite3")
    assert files.index_path(tmp_path / "link", env) == path
    assert files.index_path(tmp_path / "other", env) != path
    monkeypatch.chdir(tmp_path)
    assert files.index_path("root", env) == path


def test_the_name_of_a_roots_file_never_changes() -> None:
    assert (
        files.index_path("/no/such/root", {"ASSAY_CACHE_DIR": "/c"})
        == "/c/index/3732617931c92d8cd5db14e3f91a36ab.sqlite3"
    )


@pytest.mark.parametrize("write", ["write_atomic", "replacing"])
def test_what_is_not_a_file_is_written_into_and_stays(write: str, tmp_path: Path) -> None:
    """To replace /dev/null by a file would damage the machine, and a reader of a pipe would wait for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    if write == "write_atomic":
        files.write_atomic(str(pipe), "text")
    else:
        with files.replacing(str(pipe)) as aside:
            Path(aside).write_text("text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert pipe.is_fifo()
    assert files.is_special("/dev/null")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize(
    ("path", "inside"), [("source", True), ("source/sub/x", True), ("source-2", False), (".", False), ("link/x", True)]
)
def test_what_is_in_a_folder(tmp_path: Path, path: str, inside: bool) -> None:
    (tmp_path / "source" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "source" / "sub")
    assert files.is_inside(str(tmp_path / path), str(tmp_path / "source")) is inside
