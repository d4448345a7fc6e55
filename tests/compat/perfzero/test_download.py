"""Downloads: what arrives is what was there, whole, once; and every failure has its own words."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import re
import resource
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from assay.compat.perfzero.download import Checksum, FetchedData, build_disk_error, fetch, parse_checksum
from assay.compat.perfzero.values import DownloadRetry
from assay.errors import AssayError, InfrastructureError, UsageError

DATA = bytes(range(256)) * 2000  # 512,000: several chunks
NO_WAIT = DownloadRetry(attempts=3, sleep=lambda _: None, timeout_s=20)


def pull(url: str, target: Path, **more: Any) -> FetchedData:
    return fetch(url, str(target), retry=more.pop("retry", NO_WAIT), **more)


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def build_tar(tree: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in tree.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


# ---------------------------------------------------------------- what was written


@pytest.mark.parametrize("target", ["", "/"])
def test_a_target_must_be_a_name(target: str) -> None:
    with pytest.raises(UsageError, match="not a valid target"):
        fetch("/etc/hostname", target)


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256", "sha512"])
def test_a_checksum_is_known_by_its_length(algorithm: str) -> None:
    digits = hashlib.new(algorithm, b"x").hexdigest()
    assert parse_checksum(digits.upper()) == parse_checksum(f"{algorithm}:{digits}") == Checksum(algorithm, digits)


@pytest.mark.parametrize(
    "text", ["abc", "sha256:abc", "md5:" + "0" * 40, "z" * 64, "crc32:" + "0" * 32, ":" + "0" * 32]
)
def test_what_is_no_checksum(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="is not a checksum"):
        pull("/etc/hostname", tmp_path / "x", checksum=text)
    assert names_in(tmp_path) == []


# ---------------------------------------------------------------- once, for all processes

FETCHER = """
import sys
from assay.compat.perfzero.download import fetch
print(fetch(sys.argv[1], sys.argv[2], notify=lambda text: print(text, flush=True)), flush=True)
"""


def start_fetcher(url: str, target: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", FETCHER, url, str(target)], stdout=subprocess.PIPE, text=True)


def test_a_killed_download_is_continued_by_the_next(web: Any, tmp_path: Path) -> None:
    page = web.add("/x", DATA, hold_at=300_000)
    with start_fetcher(f"{web.url}/x", tmp_path / "x") as process:
        wait_for_size(tmp_path / "x.part", 200_000)  # the rest waits for the server
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "x").exists()
    arrived = (tmp_path / "x.part").stat().st_size
    page.release.set()
    page.hold_at = None
    pull(f"{web.url}/x", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA
    assert web.ranges() == [None, f"bytes={arrived}-"]
    assert names_in(tmp_path) == ["x"]


def wait_for_size(path: Path, size: int) -> None:
    deadline = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size >= size):
        assert time.monotonic() < deadline, f"{path} does not grow"
        time.sleep(0.01)


def test_two_processes_fetch_the_same_thing_once(web: Any, tmp_path: Path) -> None:
    page = web.add("/x", DATA, hold_at=1000)
    with start_fetcher(f"{web.url}/x", tmp_path / "x") as first:
        assert first.stdout is not None
        first.stdout.readline()  # downloading: it has the lock
        with start_fetcher(f"{web.url}/x", tmp_path / "x") as second:
            assert second.stdout is not None
            assert "waiting for another process" in second.stdout.readline()
            page.release.set()
            assert "cached=False" in first.stdout.read()
            assert "cached=True" in second.stdout.read()
    assert (tmp_path / "x").read_bytes() == DATA
    assert len(web.requests) == 1
    assert names_in(tmp_path) == ["x"]


def test_a_waiting_process_takes_over_when_the_first_fails(web: Any, tmp_path: Path) -> None:
    page = web.add("/x", DATA, hold_at=1000)
    with start_fetcher(f"{web.url}/x", tmp_path / "x") as first:
        assert first.stdout is not None
        first.stdout.readline()
        with start_fetcher(f"{web.url}/x", tmp_path / "x") as second:
            assert second.stdout is not None
            second.stdout.readline()
            first.send_signal(signal.SIGKILL)
            page.release.set()
            assert "cached=False" in second.stdout.read()
    assert (tmp_path / "x").read_bytes() == DATA
    assert names_in(tmp_path) == ["x"]


def test_many_at_once(web: Any, tmp_path: Path) -> None:
    """The lock file is made and removed by each in turn: no process may hold one that is no longer there."""
    web.add("/x.tar.gz", build_tar({f"data/{number}": b"x" * 1000 for number in range(20)}))
    fetchers = [start_fetcher(f"{web.url}/x.tar.gz", tmp_path / "x.tar.gz") for _ in range(4)]
    said = [process.communicate()[0] for process in fetchers]
    assert sum("cached=False" in text for text in said) == 1
    assert sum("cached=True" in text for text in said) == 3
    assert names_in(tmp_path) == ["data", "x.tar.gz"]
    assert len(web.requests) == 1


# ---------------------------------------------------------------- checksums


def test_a_checksum_that_fits(web: Any, tmp_path: Path) -> None:
    web.add("/x", DATA)
    digest = hashlib.sha256(DATA).hexdigest()
    pull(f"{web.url}/x", tmp_path / "x", checksum=f"sha256:{digest}")
    assert pull(f"{web.url}/x", tmp_path / "x", checksum=hashlib.md5(DATA).hexdigest()).cached


def test_a_checksum_that_does_not_fit_leaves_nothing(web: Any, tmp_path: Path) -> None:
    web.add("/x.tar.gz", build_tar({"data/x": b"1"}))
    with pytest.raises(UsageError, match=rf"is not what was expected: sha1 [0-9a-f]{{40}}, expected {'0' * 40}"):
        pull(f"{web.url}/x.tar.gz", tmp_path / "x.tar.gz", checksum="0" * 40)
    assert names_in(tmp_path) == []


def test_what_is_there_is_compared_with_the_checksum_too(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"mine")
    with pytest.raises(UsageError, match="already there, but it is other data"):
        pull("/etc/hostname", tmp_path / "x", checksum=hashlib.sha256(b"theirs").hexdigest())
    assert (tmp_path / "x").read_bytes() == b"mine"


def test_a_checksum_of_a_folder_makes_no_sense(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with pytest.raises(UsageError, match="is a folder, and a checksum is of a file"):
        pull(str(tmp_path / "source"), tmp_path / "x", checksum="0" * 64)
    assert names_in(tmp_path) == ["source"]


# ---------------------------------------------------------------- archives


def test_an_archive_is_unpacked_beside_itself(web: Any, tmp_path: Path) -> None:
    content = build_tar({"cifar-10-batches-bin/data_batch_1.bin": b"1", "cifar-10-batches-bin/readme.html": b"2"})
    web.add("/~kriz/cifar-10-binary.tar.gz", content)
    said: list[str] = []
    fetched = pull(f"{web.url}/~kriz/cifar-10-binary.tar.gz", tmp_path / "cifar-10-binary.tar.gz", notify=said.append)
    assert fetched == FetchedData(str(tmp_path / "cifar-10-binary.tar.gz"), len(content), cached=False)
    assert (tmp_path / "cifar-10-binary.tar.gz").read_bytes() == content
    assert names_in(tmp_path / "cifar-10-batches-bin") == ["data_batch_1.bin", "readme.html"]
    assert names_in(tmp_path) == ["cifar-10-batches-bin", "cifar-10-binary.tar.gz"]
    assert said[-1] == f"unpacking cifar-10-binary.tar.gz into {tmp_path}"


def test_a_signed_archive_is_known_by_its_path(web: Any, tmp_path: Path) -> None:
    web.add("/x.tar.gz?sig=1", build_tar({"data/x": b"1"}))
    pull(f"{web.url}/x.tar.gz?sig=1", tmp_path / "renamed")
    assert names_in(tmp_path) == ["data", "renamed"]


def test_a_renamed_archive_is_unpacked_into_the_parent_and_reported(web: Any, tmp_path: Path) -> None:
    web.add("/ds.tar.gz", build_tar({"inner/a": b"1"}))
    said: list[str] = []
    pull(f"{web.url}/ds.tar.gz", tmp_path / "mydata", notify=said.append)
    assert names_in(tmp_path) == ["inner", "mydata"]
    assert said[-1] == f"unpacking ds.tar.gz (kept as mydata) into {tmp_path}"


def test_an_archive_without_an_ending_is_known_by_its_content(web: Any, tmp_path: Path) -> None:
    web.add("/download?id=3", build_tar({"inner/a": b"1"}))
    pull(f"{web.url}/download?id=3", tmp_path / "mydata")
    assert names_in(tmp_path) == ["inner", "mydata"]
    pull(f"{web.url}/download?id=3", tmp_path / "other" / "data.bin")
    assert names_in(tmp_path / "other") == ["data.bin"], "an ending says that it is something else"
    pull(f"{web.url}/download?id=3", tmp_path / "packed" / "x", decompress=False)
    assert names_in(tmp_path / "packed") == ["x"]


@pytest.mark.parametrize("content", [b"\0" * 2048, b"", b"text", gzip.compress(b"text", mtime=0)])
def test_other_data_without_an_ending_stays_as_it_is(web: Any, tmp_path: Path, content: bytes) -> None:
    web.add("/data", content)
    said: list[str] = []
    pull(f"{web.url}/data", tmp_path / "data", notify=said.append)
    assert (tmp_path / "data").read_bytes() == content
    assert names_in(tmp_path) == ["data"]
    assert not any(line.startswith("unpacking") for line in said)


def test_a_page_that_lists_a_folder_is_no_data(web: Any, tmp_path: Path) -> None:
    """As Python's and Apache's servers answer: with the slash at once, without it after a redirection."""
    listing = {"Content-Type": "text/html; charset=utf-8"}
    web.add("/ds/", b"<html>f.txt</html>", headers=listing)
    web.add("/ds", b"", location="/ds/")
    web.add("/page.html", b"<html>data</html>", headers=listing)
    web.add("/get/?id=3", b"<html>data</html>", headers=listing)
    web.add("/raw/", b"data", headers={"Content-Type": "application/octet-stream"})
    for path in ("/ds/", "/ds"):
        with pytest.raises(UsageError, match=f"{web.url}{path} is not a file"):
            pull(f"{web.url}{path}", tmp_path / "folder")
    assert names_in(tmp_path) == []
    for number, path in enumerate(("/page.html", "/get/?id=3", "/raw/")):
        assert pull(f"{web.url}{path}", tmp_path / str(number)).bytes > 0


def test_an_archive_stays_packed_when_asked(web: Any, tmp_path: Path) -> None:
    web.add("/x.tar.gz", build_tar({"data/x": b"1"}))
    pull(f"{web.url}/x.tar.gz", tmp_path / "x.tar.gz", decompress=False)
    assert names_in(tmp_path) == ["x.tar.gz"]


def test_a_target_that_is_in_the_archive_is_the_folder(web: Any, tmp_path: Path) -> None:
    web.add("/data.tar.gz", build_tar({"data/x": b"1", "also": b"2"}))
    fetched = pull(f"{web.url}/data.tar.gz", tmp_path / "data")
    assert names_in(tmp_path) == ["also", "data"]
    assert (tmp_path / "data" / "x").read_bytes() == b"1"
    assert not fetched.cached
    assert pull(f"{web.url}/data.tar.gz", tmp_path / "data", checksum="0" * 64).cached  # of the archive, which is gone


@pytest.mark.parametrize(("target", "there"), [("t.csv.gz", ["t.csv", "t.csv.gz"]), ("t.csv", ["t.csv"]), ("u", ["u"])])
def test_a_plain_gzip_is_unpacked(web: Any, tmp_path: Path, target: str, there: list[str]) -> None:
    web.add("/t.csv.gz", gzip.compress(b"a,b\n"))
    pull(f"{web.url}/t.csv.gz", tmp_path / target)
    assert names_in(tmp_path) == there
    assert (tmp_path / there[0]).read_bytes() == b"a,b\n"
    assert pull(f"{web.url}/t.csv.gz", tmp_path / target).cached


def test_a_hostile_archive_leaves_nothing(web: Any, tmp_path: Path) -> None:
    web.add("/x.tar.gz", build_tar({"fine": b"1", "../evil": b"2"}))
    (tmp_path / "data").mkdir()
    with pytest.raises(UsageError, match=r"x\.tar\.gz was not unpacked: '\.\./evil' .* outside"):
        pull(f"{web.url}/x.tar.gz", tmp_path / "data" / "x.tar.gz")
    assert names_in(tmp_path) == ["data"]
    assert names_in(tmp_path / "data") == []


def test_an_interrupted_unpacking_is_done_by_the_next(web: Any, tmp_path: Path) -> None:
    content = build_tar({"data/x": b"1"})
    web.add("/x.tar.gz", content)

    def interrupt(text: str) -> None:
        if text.startswith("unpacking"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(f"{web.url}/x.tar.gz", tmp_path / "x.tar.gz", notify=interrupt)
    assert names_in(tmp_path) == ["x.tar.gz.part", "x.tar.gz.part.json"]
    (tmp_path / "x.tar.gz.unpack").mkdir()  # as a kill would leave it
    (tmp_path / "x.tar.gz.unpack" / "junk").write_bytes(b"")
    pull(f"{web.url}/x.tar.gz", tmp_path / "x.tar.gz")
    assert names_in(tmp_path) == ["data", "x.tar.gz"]
    assert web.ranges() == [None, f"bytes={len(content) - 1}-"]  # one byte, to see that it is still the same file
    assert (tmp_path / "x.tar.gz").read_bytes() == content


def test_an_obstacle_keeps_what_was_downloaded(web: Any, tmp_path: Path) -> None:
    web.add("/x.tar.gz", build_tar({"data/x": b"1"}))
    (tmp_path / "data").write_bytes(b"mine")
    with pytest.raises(UsageError, match="data is in the way"):
        pull(f"{web.url}/x.tar.gz", tmp_path / "x.tar.gz")
    assert names_in(tmp_path) == ["data", "x.tar.gz.part", "x.tar.gz.part.json"]
    (tmp_path / "data").unlink()
    pull(f"{web.url}/x.tar.gz", tmp_path / "x.tar.gz")
    assert names_in(tmp_path) == ["data", "x.tar.gz"]


# ---------------------------------------------------------------- from this machine


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


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/*", "file://{}", "file://{}/*", "file:{}"])
def test_a_folder_is_copied_whole(source: Path, tmp_path: Path, form: str) -> None:
    target = tmp_path / "data" / "copy"
    assert pull(form.format(source), target) == FetchedData(str(target), 3, cached=False)
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*")) == [
        "sub",
        "sub/empty",
        "sub/link",
        "sub/run.sh",
        "x",
    ]
    assert not (target / "sub" / "link").is_symlink()  # the data, not a pointer back
    assert os.access(target / "sub" / "run.sh", os.X_OK)
    assert names_in(tmp_path / "data") == ["copy"]


def test_a_single_file_is_copied(hostile_path: Path, tmp_path: Path) -> None:
    (hostile_path / "x").write_bytes(DATA)
    pull(str(hostile_path / "x"), hostile_path / "y")
    assert (hostile_path / "y").read_bytes() == DATA


def test_an_archive_of_this_machine_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(build_tar({"data/x": b"1"}))
    pull(f"file://{tmp_path}/x.tar.gz", tmp_path / "in" / "x.tar.gz")
    assert names_in(tmp_path / "in") == ["data", "x.tar.gz"]


def test_a_copy_that_was_killed_is_made_again(source: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.part").mkdir()
    (tmp_path / "copy.part" / "junk").write_bytes(b"old")
    pull(str(source), tmp_path / "copy")
    assert names_in(tmp_path / "copy") == ["sub", "x"]


@pytest.mark.parametrize("url", ["/nowhere/at/all", "file:///nowhere/at/all", "relative/nowhere"])
def test_a_path_that_is_not_there(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match=r"there is no file or folder '.*nowhere"):
        pull(url, tmp_path / "x")
    assert names_in(tmp_path) == []


def test_a_pipe_is_no_data(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        pull(str(tmp_path / "pipe"), tmp_path / "x")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        pull(str(tmp_path), tmp_path.parent / f"{tmp_path.name}-copy")


def test_a_folder_is_not_copied_into_itself(source: Path) -> None:
    with pytest.raises(UsageError, match="into itself"):
        pull(str(source), source / "sub" / "copy")
    assert names_in(source / "sub") == ["empty", "link", "run.sh"]


def test_a_target_that_is_a_link_to_nothing_is_not_data(source: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").symlink_to("nowhere")
    with pytest.raises(UsageError, match="copy is a broken link"):
        pull(str(source), tmp_path / "copy")


# ---------------------------------------------------------------- the disk


def test_a_folder_that_may_not_be_written(web: Any, forbidden_dir: Path) -> None:
    web.add("/x", DATA)
    with pytest.raises(
        UsageError, match=rf"{forbidden_dir}/.* cannot be written: Permission denied\n.*choose another folder"
    ):
        pull(f"{web.url}/x", forbidden_dir / "x")
    with pytest.raises(UsageError, match="Permission denied"):
        pull(f"{web.url}/x", forbidden_dir / "sub" / "x")


def test_what_is_there_needs_no_writing(forbidden_dir: Path) -> None:
    assert fetch("/etc/hostname", str(forbidden_dir.parent)).cached


def test_a_file_in_the_way_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be made"):
        pull("/etc/hostname", tmp_path / "data" / "x")


def test_no_room(web: Any, tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk."""
    web.add("/x", DATA)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(InfrastructureError, match=f"there is no room for {tmp_path}/x"):
            pull(f"{web.url}/x", tmp_path / "x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(web.requests) == 1  # a full disk is not the network's fault
    assert not (tmp_path / "x").exists()
    pull(f"{web.url}/x", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, InfrastructureError, "no room for /d/x: No space left on device"),
        (errno.EDQUOT, InfrastructureError, "no room for /d/x: Disk quota exceeded"),
        (errno.EROFS, UsageError, "/d/x cannot be written: Read-only file system"),
        (errno.EIO, InfrastructureError, "/d/x cannot be written: Input/output error"),
    ],
)
def test_each_refusal_of_the_disk_has_its_words(number: int, kind: type[AssayError], words: str) -> None:
    error = build_disk_error("/d/x", OSError(number, os.strerror(number)))
    assert isinstance(error, kind)
    assert re.search(words, str(error))
