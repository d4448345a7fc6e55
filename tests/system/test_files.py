"""Whole or not there, whatever the disk and the other processes do meanwhile."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from assay.system.files import Flusher, publish, read_text, write_atomic, write_new


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
        publish(str(tmp_path / "lease.1"), "y" * 100)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_replacing_leaves_the_old_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(str(path), "old")
    monkeypatch.setattr(os, "replace", _die)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(str(path), "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]
    write_atomic(str(path), "new")
    assert path.read_text() == "new"


def test_a_new_file_is_written_over_nothing(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    write_new(str(path), "one", mode=0o700)
    assert path.stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileExistsError):
        write_new(str(path), "two")
    assert path.read_text() == "one"


def test_names_that_are_no_text_survive(tmp_path: Path) -> None:
    write_atomic(str(tmp_path / "file"), os.fsdecode(b"caf\xe9"))
    assert (tmp_path / "file").read_bytes() == b"caf\xe9"


def test_one_of_many_publishes(tmp_path: Path) -> None:
    target, gate, won = str(tmp_path / "lease.1"), threading.Barrier(8), []

    def work(number: int) -> None:
        gate.wait()
        if publish(target, str(number)):
            won.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [Path(target).read_text()] == [str(number) for number in won]
    assert os.listdir(tmp_path) == ["lease.1"]


def test_a_batch_of_news_is_flushed_once(tmp_path: Path) -> None:
    flusher = Flusher(str(tmp_path), gather_s=0.0, pause_s=3600.0)
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


def test_a_folder_that_is_gone_is_not_flushed(tmp_path: Path) -> None:
    flusher = Flusher(str(tmp_path / "gone"), gather_s=0.0)
    flusher.note()
    flusher.tick()
    flusher.wait()
    assert flusher.count == 0


def test_a_folder_of_the_same_name_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "outcome.1" / "inside").mkdir(parents=True)
    write_atomic(str(tmp_path / "outcome.1"), "text")
    assert read_text(str(tmp_path / "outcome.1")) == "text"
    assert len(list(tmp_path.iterdir())) == 2
