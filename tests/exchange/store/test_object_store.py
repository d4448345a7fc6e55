"""Object stores: the same promises for all three, each against its own emulator, reached by environment alone."""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.exchange.store.test_mirror import read_tree

from assay.compat.perfzero.download import fetch
from assay.errors import InfrastructureError, MissingExtraError, UsageError
from assay.exchange.store import object_store
from assay.exchange.store.object_store import StoredObject

TREE = {"a.bin": b"1" * 1000, "sub/b.bin": b"2" * 2000, "sub/deep/er/c": b"", "ümlaut and space#1.txt": b"3"}


def fill(store: Any, prefix: str, tree: dict[str, bytes]) -> None:
    for name, content in tree.items():
        store.put(f"{prefix}/{name}", content)


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# ---------------------------------------------------------------- bringing in


def test_objects_folders_and_buckets_arrive_whole(store: Any, tmp_path: Path) -> None:
    content = os.urandom(300_000) + b"."  # the emulator of Google's store loses a carriage return at the end
    store.put("deep/x.bin", content)
    for scheme in store.schemes:
        target = tmp_path / scheme / "renamed.bin"
        fetch(store.url("deep/x.bin", scheme), str(target))
        assert target.read_bytes() == content
        assert names_in(target.parent) == ["renamed.bin"]
    fill(store, "data/set", TREE)
    store.put("data/set-2/other", b"not ours")
    for number, ending in enumerate(("", "/", "/*")):
        folder = tmp_path / str(number)
        fetch(store.url(f"data/set{ending}"), str(folder / "set"))
        assert read_tree(folder / "set") == TREE
        assert names_in(folder) == ["set"]
    fetch(store.url()[:-1], str(tmp_path / "all"))
    assert read_tree(tmp_path / "all").keys() == {"deep/x.bin", "data/set-2/other", *(f"data/set/{n}" for n in TREE)}
    store.put("data/set/later", b"4")
    fetch(store.url("data/set"), str(tmp_path / "0" / "set"))
    assert read_tree(tmp_path / "0" / "set") == TREE, "what is there is not fetched again"


def test_nothing_there(store: Any, tmp_path: Path) -> None:
    store.put("data/set/x", b"1")
    other = f"{store.schemes[0]}://no-such-bucket-here"
    for url in (*map(store.url, ("none", "none/*", "data/se")), f"{other}/x", other):
        with pytest.raises(UsageError, match=f"there is nothing at {re.escape(url)}\n"):
            fetch(url, str(tmp_path / "x"))
    assert names_in(tmp_path) == []


def test_an_object_that_is_also_a_folder_is_the_object_and_a_part_of_another_kind_is_removed(
    s3: Any, tmp_path: Path
) -> None:
    s3.put("x", b"1")
    s3.put("x/y", b"2")
    (tmp_path / "one.part").mkdir()
    fetch(s3.url("x"), str(tmp_path / "one"))
    (tmp_path / "all.part").write_bytes(b"once a file")
    fetch(s3.url("x/"), str(tmp_path / "all"))
    assert (tmp_path / "one").read_bytes() == b"1"
    assert read_tree(tmp_path / "all") == {"y": b"2"}
    assert names_in(tmp_path) == ["all", "one"]


# ---------------------------------------------------------------- going on


def watch(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    brought: list[str] = []
    real = object_store._bring

    def bring(store: Any, objects: list[StoredObject], places: list[str]) -> None:
        for item, place in zip(objects, places, strict=True):
            real(store, [item], [place])
            brought.append(item.name)

    monkeypatch.setattr(object_store, "_bring", bring)
    return brought


def break_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Ctrl-C after so many files, once."""
    watched = object_store._bring
    state = {"broken": False}

    def bring(store: Any, objects: list[StoredObject], places: list[str]) -> None:
        if state["broken"]:
            watched(store, objects, places)
            return
        state["broken"] = True
        watched(store, objects[:count], places[:count])
        raise KeyboardInterrupt

    monkeypatch.setattr(object_store, "_bring", bring)


def test_a_folder_goes_on_where_it_stopped(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came stays; what has changed since is brought again."""
    fill(s3, "set", {"a": b"old", "b": b"old", "c": b"same", "d": b"4", "gone": b"1"})
    brought = watch(monkeypatch)
    break_after(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        fetch(s3.url("set"), str(tmp_path / "set"))
    assert not (tmp_path / "set").exists()
    assert brought == ["a", "b", "c"]
    s3.put("set/a", b"new")  # of the same length
    s3.filesystem().rm_file(f"{s3.bucket}/set/gone")
    (tmp_path / "set.part" / "b").write_bytes(b"ol")  # as a kill in the middle leaves it
    fetch(s3.url("set"), str(tmp_path / "set"))
    assert read_tree(tmp_path / "set") == {"a": b"new", "b": b"old", "c": b"same", "d": b"4"}
    assert brought[3:] == ["a", "b", "d"]
    assert names_in(tmp_path) == ["set"]


class StoreLayout:
    """As much of a store as `download` uses; what it hands over may differ from what it says."""

    def __init__(self, listed: dict[str, dict[str, Any]], content: bytes = b"") -> None:
        self.listed, self.content = listed, content

    def info(self, path: str) -> dict[str, Any]:
        assert path == "bucket"
        return {"type": "directory"}

    def find(self, _path: str, detail: bool) -> dict[str, dict[str, Any]]:
        assert detail
        return self.listed

    def get(self, _paths: list[str], places: list[str]) -> None:
        for place in places:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            Path(place).write_bytes(self.content)


def test_keys_and_sizes_that_are_not_what_they_should_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A key that climbs; an object that arrives short; one that the store unpacks, which has no known length."""

    def bring(listed: dict[str, dict[str, Any]], content: bytes, target: str) -> Path:
        monkeypatch.setattr(object_store, "_open", lambda _url: (StoreLayout(listed, content), "bucket/d/"))
        fetch("gs://bucket/d/", str(tmp_path / target))
        return tmp_path / target

    empty = {"size": 0, "type": "file"}
    for key in ("bucket/d/../../evil", "bucket/d/a/../../../../evil"):
        with pytest.raises(UsageError, match=r"an object cannot be a file here: .* leads elsewhere"):
            bring({"bucket/d/fine": empty, key: empty}, b"", "deep/x")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["deep"]
    with pytest.raises(InfrastructureError, match="bucket/d/x arrived with 4 of 5 bytes"):
        bring({"bucket/d/x": {"size": 5, "type": "file"}}, b"four", "short")
    assert not (tmp_path / "short").exists()
    listed = {"bucket/d/x": {"size": 2, "contentEncoding": "gzip"}, "bucket/d/": {"size": 0}}
    assert read_tree(bring(listed, b"long", "unpacked")) == {"x": b"long"}


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("scheme", "extra", "module"),
    [("s3", "s3", "s3fs"), ("gs", "gcs", "gcsfs"), ("abfss", "azure", "adlfs"), ("s3", "s3", "fsspec")],
)
def test_a_missing_part_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, extra: str, module: str
) -> None:
    from fsspec.registry import _registry

    monkeypatch.delitem(_registry, scheme, raising=False)  # of classes that were loaded
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as caught:
        fetch(f"{scheme}://bucket/x", str(tmp_path / "x"))
    assert caught.value.render().splitlines() == [
        f"{scheme}:// needs an optional part of Assay",
        f"  install it: pip install 'assay[{extra}]'",
    ]
    assert names_in(tmp_path) == []


def test_nobody_there_and_no_login(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(InfrastructureError, match=f"{s3.url('x')} cannot be reached: Could not connect") as caught:
        fetch(s3.url("x"), str(tmp_path / "x"))
    assert caught.value.exit_code == 4
    assert names_in(tmp_path) == []
    for variable in [key for key in os.environ if key.startswith(("AWS_", "AZURE_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for url, words in (("s3://bucket/x", "AWS_ACCESS_KEY_ID"), ("az://bucket/x", "AZURE_STORAGE_CONNECTION_STRING")):
        with pytest.raises(UsageError, match=f"may not be used: .*\n.*{words}"):
            fetch(url, str(tmp_path / "x"))


def test_a_store_that_does_not_answer_is_not_waited_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(object_store, "_open", lambda _url: released.wait(60))
    monkeypatch.setattr(object_store, "_ANSWER_S", 0.1)
    said: list[str] = []
    with pytest.raises(InfrastructureError, match=r"gs://b/x cannot be reached: no answer within 0\.1 s"):
        fetch("gs://b/x", str(tmp_path / "x"), notify=said.append)
    released.set()
    assert said == ["downloading gs://b/x", "connecting to gs://b/x (for at most 0.1 s)"]
    assert names_in(tmp_path) == []


def test_options_come_from_the_environment(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec reads FSSPEC_* when it is imported."""
    import fsspec

    s3.put("x", b"1")
    s3.filesystem().chmod(f"{s3.bucket}/x", "public-read")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("FSSPEC_S3_ANON", "true")
    monkeypatch.setattr(fsspec.config, "conf", {})
    fsspec.config.set_conf_env(fsspec.config.conf)
    fetch(s3.url("x"), str(tmp_path / "x"))
    assert (tmp_path / "x").read_bytes() == b"1"


class ForbiddenError(Exception):
    status_code = 403


def test_each_error_of_a_library_has_its_words_and_those_of_the_disk_are_left_to_the_caller() -> None:
    forbidden = OSError("Forbidden: https://h/b\nno access")
    for error, kind, words in (
        (FileNotFoundError(2, "No such container", "c"), UsageError, "there is nothing at gs://b/x"),
        (PermissionError("Access Denied"), UsageError, "may not be used: Access Denied"),
        (ForbiddenError("no"), UsageError, "may not be used: no"),
        (forbidden, UsageError, "may not be used: Forbidden: https://h/b\n.*gcloud auth"),
        (RuntimeError(), InfrastructureError, "cannot be reached: RuntimeError"),
        (OSError(111, "Connect call failed"), InfrastructureError, "cannot be reached: .*Connect call failed"),
        (ValueError("one\ntwo"), InfrastructureError, "cannot be reached: one$"),
        (OSError(28, "No space left on device"), OSError, "No space"),
        (PermissionError(13, "Permission denied", "/d/x"), PermissionError, "/d/x"),
    ):
        with pytest.raises(kind, match=words), object_store._named("gs://b/x"):
            raise error
