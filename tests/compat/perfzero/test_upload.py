"""Uploads: everything arrives, is looked at, and lands nowhere else."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.compat.perfzero.uploads import check_target, upload_folder
from assay.errors import InfrastructureError, MissingExtraError, UsageError
from assay.exchange.store import object_store
from assay.exchange.store.transfer import DataFile

TREE = {
    "perfzero.log": b"line\n" * 100,
    "perfzero_summary.json": b"{}",
    "profiler_data/plugins/x.pb": b"\0" * 300,
    "empty": b"",
}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "output"
    for name, content in TREE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def read_tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---------------------------------------------------------------- to object stores


@pytest.mark.parametrize("ending", ["", "/"])
def test_a_folder_is_sent(store: Any, output: Path, ending: str) -> None:
    for scheme in store.schemes:
        assert upload_folder(str(output), store.url(f"results/{scheme}/id-1{ending}", scheme)) == len(TREE)
        for name, content in TREE.items():
            assert store.read(f"results/{scheme}/id-1/{name}") == content


@pytest.mark.filterwarnings("ignore:Sending a large body directly with raw bytes:ResourceWarning")  # the libraries'
def test_a_large_file_is_sent(store: Any, tmp_path: Path) -> None:
    content = os.urandom(9_000_000)
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "x").write_bytes(content)
    assert upload_folder(str(tmp_path / "big"), store.url("r")) == 1
    assert store.read("r/x") == content


def test_what_is_there_is_replaced(store: Any, output: Path) -> None:
    store.put("r/perfzero.log", b"a much longer text than before" * 1000)
    upload_folder(str(output), store.url("r"))
    assert store.read("r/perfzero.log") == TREE["perfzero.log"]


def test_a_bucket_is_never_made(store: Any, output: Path) -> None:
    url = f"{store.schemes[0]}://bucket-with-a-typo/r"
    with pytest.raises(UsageError, match=f"there is nothing at {url}"):
        upload_folder(str(output), url)
    assert not store.filesystem().exists("bucket-with-a-typo")


def test_an_empty_folder_tells_whether_the_bucket_is_there(store: Any, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UsageError, match="there is nothing at"):
        upload_folder(str(tmp_path / "nothing"), f"{store.schemes[0]}://bucket-with-a-typo/r")


def test_an_empty_folder_sends_nothing(store: Any, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    assert upload_folder(str(tmp_path / "nothing"), store.url("r")) == 0


class Liar:
    """A store that loses the end of what it is given, and does not let us look at its bucket."""

    def put_file(self, _path: str, _place: str) -> None: ...

    def info(self, place: str) -> dict[str, Any]:
        if "/" not in place:
            raise PermissionError("Forbidden")
        return {"size": 3}


def test_a_file_that_arrives_short_is_noticed(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_open", lambda _url: (Liar(), "b/r"))
    with pytest.raises(InfrastructureError, match=r"b/r/.* has 3 bytes after sending"):
        upload_folder(str(output), "s3://b/r")


def test_a_log_may_grow_while_it_is_sent(tmp_path: Path) -> None:
    class Slow(Liar):
        def put_file(self, path: str, _place: str) -> None:
            Path(path).write_bytes(b"1234")

    (tmp_path / "log").write_bytes(b"12")
    object_store._send(Slow(), DataFile("log", str(tmp_path / "log"), 2), "b/log")  # 3 lies between 2 and 4


# ---------------------------------------------------------------- to this machine


@pytest.mark.parametrize("form", ["{}", "{}/", "file://{}", "file://{}/"])
def test_a_folder_is_copied(output: Path, tmp_path: Path, form: str) -> None:
    target = tmp_path / "results" / "id-1"
    assert upload_folder(str(output), form.format(target)) == len(TREE)
    assert read_tree(target) == TREE
    assert upload_folder(str(output), form.format(target)) == len(TREE)  # and again: replaced
    assert read_tree(target) == TREE


def test_odd_names_are_copied(output: Path, hostile_path: Path) -> None:
    assert upload_folder(str(output), str(hostile_path / "r")) == len(TREE)
    assert read_tree(hostile_path / "r") == TREE


def test_a_copy_that_was_killed_does_not_hinder(output: Path, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "empty.tmp").write_bytes(b"half")
    upload_folder(str(output), str(tmp_path / "r"))
    assert read_tree(tmp_path / "r") == TREE


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("name", ["nowhere", "output/empty"])
def test_no_folder_to_send(output: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        upload_folder(str(tmp_path / name), str(tmp_path / "r"))
    assert not (tmp_path / "r").exists()


def test_a_folder_is_not_sent_into_itself(output: Path) -> None:
    for target in (output, output / "deeper"):
        with pytest.raises(UsageError, match="into itself"):
            upload_folder(str(output), str(target))
    assert read_tree(output) == TREE


def test_a_place_that_may_not_be_written(forbidden_dir: Path) -> None:
    with pytest.raises(UsageError, match=f"{forbidden_dir}/r cannot be used: Permission denied"):
        upload_folder("/etc/default", str(forbidden_dir / "r"))
    with pytest.raises(UsageError, match=f"{forbidden_dir} cannot be used: Permission denied"):
        upload_folder("/etc/default", str(forbidden_dir))


def test_a_file_in_the_way(output: Path, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "profiler_data").write_bytes(b"")
    with pytest.raises(InfrastructureError, match=r"cannot be sent to .*r: "):
        upload_folder(str(output), str(tmp_path / "r"))


# ---------------------------------------------------------------- before there is anything to send


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("gsx://bucket/x", "gsx:// cannot be used"),
        ("gs://", "names no bucket"),
        ("file:///proc/nowhere", "/proc/nowhere cannot be written"),
        ("file:///etc/hostname", "/etc/hostname cannot be written"),
        ("", "leads nowhere"),
    ],
)
def test_what_can_never_be_sent_to(url: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_target(url)


def test_a_folder_that_may_not_be_written_is_refused(forbidden_dir: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        check_target(f"file://{forbidden_dir}/x")


@pytest.mark.parametrize(("scheme", "module"), [("gs", "gcsfs"), ("s3", "s3fs"), ("az", "adlfs")])
def test_a_store_is_not_asked_before_there_is_something_to_send(
    monkeypatch: pytest.MonkeyPatch, scheme: str, module: str
) -> None:
    pytest.importorskip(module)

    def refuse(*_arguments: object) -> None:
        pytest.fail("it looked for the network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(object_store, "_open", refuse)
    check_target(f"{scheme}://bucket/x")


def test_a_store_whose_part_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match="gs://"):
        check_target("gs://bucket/x")


def test_a_local_target_is_made(tmp_path: Path) -> None:
    check_target(f"file://{tmp_path}/new/folder")
    assert (tmp_path / "new" / "folder").is_dir()
