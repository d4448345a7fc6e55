"""Folders in shared storage: sent once, compared by hash, never half, never outside; on a path and on each emulator."""

from __future__ import annotations

import hashlib
import json
import shutil
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from tests.data_servers import open_store

from assay.errors import FormatError, InfrastructureError, UsageError
from assay.exchange.store import mirror
from assay.exchange.store.manifests import build_key, object_key, read_part
from assay.exchange.store.mirror import OutgoingFolder
from assay.exchange.store.remote import Remote, open_remote

KEY = build_key("folders", "data")
TREE = {
    "a.txt": b"one",
    "empty": b"",
    "sub/ümlaut #1?.bin": b"2" * 100_000,
    "sub/same": b"one",
    "code/x.py": b"x = 1\n",
}


def fill(folder: Path, tree: dict[str, bytes]) -> Path:
    for name, content in tree.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def read_tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def push(folder: Path, remote: Remote, **more: Any) -> mirror.Sent:
    (sent,) = mirror.push([OutgoingFolder(KEY, "folder", "data", str(folder), trees=("code",))], remote, **more)
    return sent


def fetch(remote: Remote, into: Path) -> mirror.FetchCounts:
    manifest = mirror.load_manifest(remote, KEY)
    assert manifest is not None
    return mirror.fetch_files(manifest, str(into), remote)


@pytest.fixture(params=["folder", "s3", "gcs", pytest.param("azure", marks=pytest.mark.services("azurite"))])
def remote(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Remote:
    if request.param == "folder":
        return open_remote(str(tmp_path / "shared"))
    return open_remote(open_store(request.param, request, monkeypatch).url("shared/place"))


def test_what_every_shared_place_promises(remote: Remote, tmp_path: Path) -> None:
    """The contract of `Remote`: all else in this module is tested with a folder alone."""
    assert (remote.read("a/x.json"), remote.stat("a/x.json"), remote.find("a")) == (None, None, [])
    assert not remote.bring("a/x.json", str(tmp_path / "x"))
    assert not remote.replace(b"two", "a/x.json", b"one")
    assert remote.replace(b"one", "a/x.json", None)
    assert not remote.replace(b"two", "a/x.json", None)
    assert remote.replace(b"two", "a/x.json", b"one")
    (tmp_path / "large").write_bytes(b"3" * 100_000)
    for content, key in ((b"", "a/empty"), (str(tmp_path / "large"), "a/sub/ümlaut #1?.bin"), (b"other", "ab/y")):
        assert remote.send(content, key) in (None, hashlib.md5(b"" if key == "a/empty" else b"other").hexdigest())
    assert remote.find("a") == sorted(["a/x.json", "a/empty", "a/sub/ümlaut #1?.bin"])
    size, md5 = remote.stat("a/sub/ümlaut #1?.bin") or (0, None)
    assert (size, md5 in (None, hashlib.md5(b"3" * 100_000).hexdigest())) == (100_000, True)
    assert remote.digest("a/x.json") == hashlib.sha256(b"two").hexdigest()
    assert remote.bring("a/sub/ümlaut #1?.bin", str(tmp_path / "there"))
    assert (tmp_path / "there").read_bytes() == b"3" * 100_000
    assert remote.read("a/x.json") == b"two"


def test_what_is_sent_can_be_fetched(remote: Remote, tmp_path: Path) -> None:
    source = fill(tmp_path / "source", TREE)
    (source / "secrets.sh").write_text("export TOKEN=abc\n")
    (source / "job.sh").write_text("true\n")
    (source / "job.sh").chmod(0o755)
    (source / "hollow").mkdir()
    first = push(source, remote)
    assert (len(first.manifest.files), first.is_new) == (6, True)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "received.json.81321226.tmp").write_text("")  # as a call that was killed leaves it
    assert fetch(remote, tmp_path / "there").files == 6
    assert read_tree(tmp_path / "there") == TREE | {"job.sh": b"true\n"}
    assert (tmp_path / "there" / "job.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "there" / "hollow").is_dir()
    assert not any(b"TOKEN" in (remote.read(key) or b"") for key in (*remote.find("objects"), KEY))
    assert push(source, remote).sent == 0
    (source / "a.txt").write_bytes(b"two")
    again = push(source, remote)
    assert (again.sent, again.sent_bytes, again.is_new) == (1, 3, False)
    assert fetch(remote, tmp_path / "there").files == 1
    assert (tmp_path / "there" / "a.txt").read_bytes() == b"two"


@pytest.fixture
def here(tmp_path: Path) -> Remote:
    return open_remote(str(tmp_path / "shared"))


def test_a_damaged_or_missing_object_is_noticed_and_sent_again(here: Remote, tmp_path: Path) -> None:
    source = fill(tmp_path / "source", TREE)
    where = object_key(push(source, here).manifest.files["a.txt"].sha256)
    (tmp_path / "shared" / where).unlink()
    with pytest.raises(FormatError, match="it is missing"):
        fetch(here, tmp_path / "there")
    here.send(b"onE", where)
    with pytest.raises(FormatError, match=r"its hash is wrong\n.*assay push"):
        fetch(here, tmp_path / "there")
    assert push(source, here).sent == 0
    assert push(source, here, check=True).sent == 1
    fetch(here, tmp_path / "there")
    assert read_tree(tmp_path / "there") == TREE


def test_others_locks_and_temporary_files_are_files_like_any_other(here: Remote, tmp_path: Path) -> None:
    """uv.lock and poetry.lock are part of the code; ours are gone in a moment."""
    kept = {
        "code/uv.lock": b"x",
        "code/cfg.tmp": b"y",
        "out.tmp": b"",
        "yarn.lock": b"z",
        "a": b"1",
        "n" * 255: b"long",
    }
    ours = {"run.json.0a1b2c3d.tmp": b"half", "a.lock": b"", "supervisors.lock": b"1"}
    push(fill(tmp_path / "source", kept | ours), here)
    fetch(here, tmp_path / "there")
    assert read_tree(tmp_path / "there") == kept


def test_a_full_disk_here_is_not_the_stores(here: Remote, tmp_path: Path) -> None:
    push(fill(tmp_path / "source", {"a": b"x" * 100_000}), here)
    manifest = mirror.load_manifest(here, KEY)
    assert manifest is not None
    with pytest.raises(OSError, match="No space left"):
        here.bring(mirror.object_key(manifest.files["a"].sha256), "/dev/full")


def test_large_files_are_sent_as_files(here: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that grows while it is sent is copied first."""
    monkeypatch.setattr(mirror, "_IN_MEMORY", 10)
    monkeypatch.setattr(mirror, "_ASK_FIRST", 10)
    source = fill(tmp_path / "source", TREE | {"twin": TREE["sub/ümlaut #1?.bin"]})
    assert push(source, here).sent == 4  # what is there twice comes once
    fetch(here, tmp_path / "there")
    assert read_tree(tmp_path / "there") == read_tree(source)
    fill(source, {"log": b"line\n" * 100})
    real = here.send

    def send(content: bytes | str, key: str) -> None:
        if isinstance(content, str) and content.endswith("log"):
            with open(content, "ab") as file:
                file.write(b"more\n")
        real(content, key)

    here.send = send  # type: ignore[method-assign]
    push(source, here)
    fetch(here, tmp_path / "there")
    assert (tmp_path / "there" / "log").read_bytes() == b"line\n" * 100 + b"more\n"


def test_what_does_not_arrive_is_an_error_and_no_manifest(here: Remote, tmp_path: Path) -> None:
    source = fill(tmp_path / "source", TREE)
    real = here.send
    here.send = lambda content, key: real(b"", key)  # type: ignore[method-assign]
    with pytest.raises(InfrastructureError, match="did not arrive as it was sent"):
        push(source, here)
    assert mirror.load_manifest(here, KEY) is None


FILE = [3, "0" * 64, 420, 0]
BAD_MANIFESTS: list[dict[str, Any] | bytes] = [
    {"files": {"../evil": FILE}},
    {"files": {"/etc/evil": FILE}},
    {"files": {"a/../../evil": FILE}},
    {"files": {"sub/secrets.sh": FILE}},
    {"links": {"../evil": "x"}},
    {"empty": ["../evil"]},
    {"links": {"sub": "/tmp"}, "files": {"sub/x": FILE}},
    {"files": {"a": [3, "../../x", 420, 0]}},
    {"files": {"a": [3]}},
    {"files": []},
    {"format": 99},
    {"trees": {"code": "0" * 64}},
    {"files": {"a": [-1, "0" * 64, 420, 0]}},
    {"files": {"a": ["3", "0" * 64, 420, 0]}},
    {"files": {"a": [3, "0" * 64, 420, 2**80]}},
    {"files": {"\ud800": FILE}},
    {"links": {"a": "b"}, "files": {"a": FILE}},
    {"links": {"a": 5}},
    {"empty": "abc", "files": {"a": FILE}},
    {"name": "other"},
    {"name": "../data"},
    {"kind": "run", "name": "folders/data"},
    {"kind": "nothing"},
    *(b"", b"[]", b"{", b"\xff"),
]


def test_a_manifest_that_is_damaged_or_leads_elsewhere_is_refused_and_replaced(here: Remote, tmp_path: Path) -> None:
    source = fill(tmp_path / "source", TREE)
    fields = {"format": 1, "kind": "folder", "name": "data", "facts": {}, "files": {}, "links": {}, "trees": {}}
    for number, change in enumerate(BAD_MANIFESTS):
        here.send(change if isinstance(change, bytes) else json.dumps({**fields, **change}).encode(), KEY)
        with pytest.raises(FormatError):
            fetch(here, tmp_path / "there")
        assert not (tmp_path / "there").exists(), change
        if isinstance(change, bytes):
            push(source, here)
            fetch(here, tmp_path / f"there-{number}")
            assert read_tree(tmp_path / f"there-{number}") == TREE


def test_links_stay_inside(here: Remote, tmp_path: Path) -> None:
    source = fill(tmp_path / "source", TREE)
    (source / "near").symlink_to("sub/same")
    (source / "far").symlink_to("/etc/passwd")
    (source / "up").symlink_to("../elsewhere")
    (source / "sub" / "top").symlink_to("..")
    (source / "through").symlink_to("sub/top/../elsewhere")  # inside by its text alone
    push(source, here)
    assert sorted(fetch(here, tmp_path / "there").left_out) == ["far", "through", "up"]
    assert (tmp_path / "there" / "near").read_bytes() == b"one"
    assert fetch(here, tmp_path / "there").files == 0  # links of an earlier call are made again


def test_names_of_any_length_have_a_key_and_addresses_that_cannot_be_used(tmp_path: Path) -> None:
    assert build_key("a", "..") == "a/%2E%2E.json"
    assert len(build_key("x" * 255)) < 200
    assert build_key("x" * 255) != build_key("x" * 254)
    names = ["a", "..", "a/b", "ü#1?", "caf\udce9", "x" * 255]
    assert [read_part(build_key(name).removesuffix(".json")) for name in names] == [*names[:-1], None]
    (tmp_path / "file").write_text("x")
    for address in ("s4://x", "http://host/x", "", "s3://", str(tmp_path / "file")):
        with pytest.raises(UsageError):
            open_remote(address)


def test_two_that_send_at_once_keep_what_both_have(here: Remote, tmp_path: Path) -> None:
    """A folder that keeps what the store has: each reads the manifest before the other has written it."""
    mine, theirs = fill(tmp_path / "mine", {"a": b"1"}), fill(tmp_path / "theirs", {"b": b"2"})
    real, calls = here.replace, []

    def replace(content: bytes, key: str, before: bytes | None) -> bool:
        calls.append(key)
        if len(calls) == 1:  # at the last instant before ours
            keep(theirs, here)
        return real(content, key, before)

    here.replace = replace  # type: ignore[method-assign]
    keep(mine, here)
    assert len(calls) == 3  # theirs, and ours twice
    fetch(here, tmp_path / "there")
    assert read_tree(tmp_path / "there") == {"a": b"1", "b": b"2"}


def test_the_store_itself_refuses_what_was_outpaced(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the write there is one instant more, which only the store can guard."""
    remote = open_remote(s3.url("p"))
    remote.send(b"one", "known")
    real = remote.read

    def read(key: str) -> bytes | None:
        found = real(key)
        s3.put(f"p/{key}", b"theirs")
        return found

    monkeypatch.setattr(remote, "read", read)
    for key, before in (("new", None), ("known", b"one")):
        assert not remote.replace(b"ours", key, before)
        assert s3.read(f"p/{key}") == b"theirs"

    def refuse(_path: str, **_: object) -> bytes:
        raise PermissionError("Access Denied")

    remote._store.cat_file = refuse  # type: ignore[attr-defined]
    with pytest.raises(InfrastructureError, match="may not be used: Access Denied"):
        real("a")


def test_a_store_that_shows_late_what_it_has(here: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, int] = {}
    real = here.stat

    def stat(key: str) -> tuple[int, str | None] | None:
        seen[key] = seen.get(key, 0) + 1
        return real(key) if seen[key] > 2 else None

    monkeypatch.setattr(here, "stat", stat)
    monkeypatch.setattr(mirror, "_SHOWN_AFTER_S", (0, 0, 0))
    push(fill(tmp_path / "source", TREE), here)
    fetch(here, tmp_path / "there")
    assert read_tree(tmp_path / "there") == TREE


# ---------------------------------------------------------------- a name that changes its kind


def make(folder: Path, kind: str) -> None:
    """`out` as this kind."""
    out = folder / "out"
    if out.is_dir() and not out.is_symlink():
        for each in out.iterdir():
            each.unlink()
        out.rmdir()
    out.unlink(missing_ok=True)
    if kind == "file":
        out.write_text("1")
    elif kind == "link":
        out.symlink_to("a.txt")
    else:
        out.mkdir()
    if kind == "folder":
        (out / "f").write_text("2")


def keep(folder: Path, remote: Remote) -> mirror.Sent:
    (sent,) = mirror.push([OutgoingFolder(KEY, "folder", "data", str(folder), keeps=True)], remote)
    return sent


def test_what_is_here_now_wins_over_another_kind(here: Remote, tmp_path: Path) -> None:
    source, theirs = fill(tmp_path / "source", {"a.txt": b"one"}), fill(tmp_path / "theirs", {"b.txt": b"two"})
    for before, after in permutations(("file", "link", "folder", "empty folder"), 2):
        shutil.rmtree(tmp_path / "there", ignore_errors=True)
        here.send(b"", KEY)  # a damaged manifest is replaced
        make(source, before)
        keep(source, here)
        keep(theirs, here)
        make(source, after)
        keep(source, here)
        fetch(here, tmp_path / "there")
        out = tmp_path / "there" / "out"
        kinds = {"link": out.is_symlink(), "file": out.is_file(), "folder": out.is_dir() and any(out.iterdir())}
        found = next((kind for kind, is_it in kinds.items() if is_it), "empty folder")
        kept = before == "folder" and after == "empty folder"  # a file that was removed here stays in the store
        assert found == ("folder" if kept else after), (before, after)
        assert (tmp_path / "there" / "b.txt").read_bytes() == b"two"


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_a_killed_call_has_left_may_be_of_another_kind_now(here: Remote, tmp_path: Path, kind: str) -> None:
    source = fill(tmp_path / "source", {"a.txt": b"one"})
    make(source, kind)
    push(source, here)
    left = tmp_path / "there" / "out" / "deeper"
    left.mkdir(parents=True)
    (left / "old").write_text("as it was")
    fetch(here, tmp_path / "there")
    assert read_tree(tmp_path / "there") == read_tree(source)
    assert (tmp_path / "there" / "out").is_symlink() is (kind == "link")
    assert not left.exists()


@pytest.mark.parametrize("name", ["a.txt/f", "a.txt"])
def test_a_manifest_with_two_kinds_is_explained_and_healed(here: Remote, tmp_path: Path, name: str) -> None:
    manifest = keep(fill(tmp_path / "source", {"a.txt": b"one"}), here).manifest
    keep(fill(tmp_path / "theirs", {"b.txt": b"two"}), here)
    fields = json.loads(here.read(KEY) or b"")
    if name == "a.txt":
        fields["links"][name] = "b.txt"
    else:
        fields["files"][name] = manifest.files["a.txt"]
    here.send(json.dumps(fields).encode(), KEY)
    with pytest.raises(FormatError, match=r"as a file and as a (link|folder)\n.*assay push"):
        fetch(here, tmp_path / "there")
    keep(tmp_path / "source", here)
    fetch(here, tmp_path / "there")
    assert read_tree(tmp_path / "there") == {"a.txt": b"one", "b.txt": b"two"}
