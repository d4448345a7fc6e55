"""Folders in a shared place: sent once, compared by hash, never half, never outside; on a path and on each emulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.errors import FormatError, InfrastructureError, UsageError
from assay.exchange.store import mirror
from assay.exchange.store.manifests import build_key, object_key
from assay.exchange.store.mirror import Fetching, OutgoingFolder
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
    return mirror.fetch_files(Fetching(manifest, str(into)), remote)


def test_what_a_killed_call_had_not_renamed_does_not_stay(store: Any, tmp_path: Path) -> None:
    source = fill(tmp_path / "source", TREE)
    remote = open_remote(store.url("shared/place"))
    push(source, remote)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "received.json.81321226.tmp").write_text("")
    fetch(remote, tmp_path / "there")
    assert read_tree(tmp_path / "there") == TREE


def test_what_is_sent_can_be_fetched(store: Any, tmp_path: Path) -> None:
    source = fill(tmp_path / "source", TREE)
    (source / "secrets.sh").write_text("export TOKEN=abc\n")
    (source / "job.sh").write_text("true\n")
    (source / "job.sh").chmod(0o755)
    (source / "hollow").mkdir()
    remote = open_remote(store.url("shared/place"))
    first = push(source, remote)
    assert (len(first.manifest.files), first.is_new) == (6, True)
    assert fetch(remote, tmp_path / "there").files == 6
    assert read_tree(tmp_path / "there") == TREE | {"job.sh": b"true\n"}
    assert (tmp_path / "there" / "job.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "there" / "hollow").is_dir()
    assert not any(
        "TOKEN" in store.read(name.partition("/")[2]).decode("latin-1")
        for name in store.filesystem().find(store.bucket)
    )
    assert push(source, remote).sent == 0
    (source / "a.txt").write_bytes(b"two")
    again = push(source, remote)
    assert (again.sent, again.sent_bytes, again.is_new) == (1, 3, False)
    assert fetch(remote, tmp_path / "there").files == 1
    assert (tmp_path / "there" / "a.txt").read_bytes() == b"two"


def test_a_damaged_object_is_noticed_and_sent_again(store: Any, tmp_path: Path) -> None:
    source = fill(tmp_path / "source", TREE)
    remote = open_remote(store.url("p"))
    manifest = push(source, remote).manifest
    where = object_key(manifest.files["a.txt"].sha256)
    store.put(f"p/{where}", b"onE")
    with pytest.raises(FormatError, match=r"its hash is wrong\n.*assay push"):
        fetch(remote, tmp_path / "there")
    assert push(source, remote).sent == 0
    assert push(source, remote, check=True).sent == 1
    fetch(remote, tmp_path / "there")
    assert read_tree(tmp_path / "there") == TREE


@pytest.fixture
def here(tmp_path: Path) -> Remote:
    return open_remote(str(tmp_path / "shared"))


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
    source = fill(tmp_path / "source", kept | ours)
    push(source, here)
    fetch(here, tmp_path / "there")
    assert read_tree(tmp_path / "there") == kept


def test_a_full_disk_here_is_not_the_stores(here: Remote, tmp_path: Path) -> None:
    push(fill(tmp_path / "source", {"a": b"x" * 100_000}), here)
    manifest = mirror.load_manifest(here, KEY)
    assert manifest is not None
    with pytest.raises(OSError, match="No space left"):
        here.bring(mirror.object_key(manifest.files["a"].sha256), "/dev/full")


def test_large_files_are_sent_as_files(here: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "_IN_MEMORY", 10)
    monkeypatch.setattr(mirror, "_ASK_FIRST", 10)
    source = fill(tmp_path / "source", TREE | {"twin": TREE["sub/ümlaut #1?.bin"]})
    assert push(source, here).sent == 4  # what is there twice comes once
    fetch(here, tmp_path / "there")
    assert read_tree(tmp_path / "there") == read_tree(source)


def test_a_file_that_grows_while_it_is_sent_is_copied_first(
    here: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_IN_MEMORY", 10)
    source = fill(tmp_path / "source", {"log": b"line\n" * 100})
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


def test_a_missing_object_is_named(here: Remote, tmp_path: Path) -> None:
    manifest = push(fill(tmp_path / "source", TREE), here).manifest
    (tmp_path / "shared" / object_key(manifest.files["a.txt"].sha256)).unlink()
    with pytest.raises(FormatError, match="it is missing"):
        fetch(here, tmp_path / "there")


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../evil": [3, "0" * 64, 420, 0]}},
        {"files": {"/etc/evil": [3, "0" * 64, 420, 0]}},
        {"files": {"a/../../evil": [3, "0" * 64, 420, 0]}},
        {"files": {"sub/secrets.sh": [3, "0" * 64, 420, 0]}},
        {"links": {"../evil": "x"}},
        {"empty": ["../evil"]},
        {"links": {"sub": "/tmp"}, "files": {"sub/x": [3, "0" * 64, 420, 0]}},
        {"files": {"a": [3, "../../x", 420, 0]}},
        {"files": {"a": [3]}},
        {"files": []},
        {"format": 99},
        {"trees": {"code": "0" * 64}},
        {"files": {"a": [-1, "0" * 64, 420, 0]}},
        {"files": {"a": ["3", "0" * 64, 420, 0]}},
        {"files": {"a": [3, "0" * 64, 420, 2**80]}},
        {"files": {"\ud800": [3, "0" * 64, 420, 0]}},
        {"links": {"a": "b"}, "files": {"a": [3, "0" * 64, 420, 0]}},
        {"links": {"a": 5}},
        {"empty": "abc", "files": {"a": [3, "0" * 64, 420, 0]}},
        {"name": "other"},
        {"name": "../data"},
        {"kind": "run", "name": "folders/data"},
        {"kind": "nothing"},
    ],
)
def test_a_manifest_that_leads_elsewhere_is_refused(here: Remote, tmp_path: Path, change: dict[str, Any]) -> None:
    fields = {"format": 1, "kind": "folder", "name": "data", "facts": {}, "files": {}, "links": {}, "trees": {}}
    here.send(json.dumps({**fields, **change}).encode(), KEY)
    with pytest.raises(FormatError):
        fetch(here, tmp_path / "there")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff"])
def test_a_damaged_manifest_is_named_and_replaced(here: Remote, tmp_path: Path, text: bytes) -> None:
    here.send(text, KEY)
    with pytest.raises(FormatError, match="damaged"):
        fetch(here, tmp_path / "there")
    push(fill(tmp_path / "source", TREE), here)
    fetch(here, tmp_path / "there")
    assert read_tree(tmp_path / "there") == TREE


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


def test_names_of_any_length_have_a_key() -> None:
    assert build_key("a", "..") == "a/%2E%2E.json"
    assert len(build_key("x" * 255)) < 200
    assert build_key("x" * 255) != build_key("x" * 254)


def test_an_address_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for address in ("s4://x", "http://host/x", "", "s3://", str(tmp_path / "file")):
        with pytest.raises(UsageError):
            open_remote(address)


def test_a_refusal_is_of_the_infrastructure(s3: Any) -> None:
    remote = open_remote(s3.url("x"))

    def refuse(_path: str, **_: object) -> bytes:
        raise PermissionError("Access Denied")

    remote._store.cat_file = refuse  # type: ignore[attr-defined]
    with pytest.raises(InfrastructureError, match="may not be used: Access Denied"):
        remote.read("a")


def test_two_that_send_at_once_keep_what_both_have(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that keeps what the store has: each reads the manifest before the other has written it."""
    address = store.url("both")
    remote, other = open_remote(address), open_remote(address)
    mine, theirs = fill(tmp_path / "mine", {"a": b"1"}), fill(tmp_path / "theirs", {"b": b"2"})
    real, calls = remote.replace, []

    def replace(content: bytes, key: str, before: bytes | None) -> bool:
        if not calls:  # at the last instant before ours
            list(mirror.push([OutgoingFolder(KEY, "folder", "data", str(theirs), keeps=True)], other))
        calls.append(key)
        return real(content, key, before)

    monkeypatch.setattr(remote, "replace", replace)
    list(mirror.push([OutgoingFolder(KEY, "folder", "data", str(mine), keeps=True)], remote))
    assert len(calls) == 2
    fetch(remote, tmp_path / "there")
    assert read_tree(tmp_path / "there") == {"a": b"1", "b": b"2"}


@pytest.mark.parametrize("before", [None, b"one"])
def test_the_store_itself_refuses_what_was_outpaced(s3: Any, monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    """Between the look and the write there is one instant more, which only the store can guard."""
    remote = open_remote(s3.url("p"))
    if before is not None:
        remote.send(before, "key")
    real = remote.read

    def read(key: str) -> bytes | None:
        found = real(key)
        s3.put("p/key", b"theirs")
        return found

    monkeypatch.setattr(remote, "read", read)
    assert not remote.replace(b"ours", "key", before)
    assert s3.read("p/key") == b"theirs"


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


KINDS = ("file", "link", "folder", "empty folder")


@pytest.mark.parametrize(("before", "after"), [(a, b) for a in KINDS for b in KINDS if a != b])
def test_what_is_here_now_wins_over_another_kind(here: Remote, tmp_path: Path, before: str, after: str) -> None:
    source = fill(tmp_path / "source", {"a.txt": b"one"})
    make(source, before)
    keep(source, here)
    theirs = fill(tmp_path / "theirs", {"b.txt": b"two"})
    keep(theirs, here)
    make(source, after)
    keep(source, here)
    fetch(here, tmp_path / "there")
    out = tmp_path / "there" / "out"
    kept = before == "folder" and after == "empty folder"  # a file that was removed here stays in the store
    expected = "folder" if kept else after
    found = (
        "link" if out.is_symlink() else "file" if out.is_file() else "folder" if any(out.iterdir()) else "empty folder"
    )
    assert found == expected
    assert (tmp_path / "there" / "b.txt").read_bytes() == b"two"


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
