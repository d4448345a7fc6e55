"""What every transfer needs: addresses as users write them, what is next to a part, whole folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from assay.compat.perfzero.download import fetch
from assay.errors import UsageError
from assay.exchange.store.transfer import (
    copy_data,
    digest_address,
    forget,
    load_listing,
    load_notes,
    parse_local,
    parse_scheme,
    remove_part,
    render_url,
    write_notes,
)

ALL = ("http", "https", "gs", "s3", "file")
URL = "https://example.com/data?signature=secret"


def test_the_scheme_and_the_path_of_an_address() -> None:
    schemes = {"http://h/x": "http", "HTTPS://h/x": "https", "gs://b/x": "gs", "file:///x": "file", "file:/x": "file"}
    schemes |= dict.fromkeys(("/x", "x/y", "a:b/c"))
    assert {url: parse_scheme(url, ALL) for url in schemes} == schemes
    paths = {"file:///a/b%20c": "/a/b c", "file://localhost/a": "/a", "file:/a": "/a", "file:a/b": "a/b"}
    paths |= {"file:///a?b#c": "/a?b#c"}
    assert {url: parse_local(url, "file") for url in paths} == paths
    assert parse_local("/a%20b", None) == "/a%20b"  # a plain path is taken as it is
    assert render_url("https://me:secret@h:8/x?sig=secret#f") == "https://h:8/x?…"
    assert render_url("gs://b/x") == "gs://b/x"


def test_an_address_that_cannot_be_used(tmp_path: Path) -> None:
    for url, words in {
        "htps://h/x": r"htps:// cannot be used here\n.*did you mean 'https' or 'http'\? known: http://, https://",
        "ftp://h/x": r"known: .*gs://.*s3://.*az://.*abfs://.*file:// and plain paths",
        "http:///x": "does not name a host",
        "http://me:word@[x/": "an address that begins with http:// is not valid",
        "gs://": "does not name a bucket",
        "s3:///x": "does not name a bucket",
        "": "empty",
        "file://elsewhere/x": "names the machine 'elsewhere'",
        "file://": "does not name a path",
    }.items():
        with pytest.raises(UsageError, match=words):
            fetch(url, str(tmp_path / "x"))
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- the part and its notes


@pytest.fixture
def part(tmp_path: Path) -> str:
    return str(tmp_path / "data.part")


def test_notes_come_back_for_their_own_address_only(part: str) -> None:
    assert load_notes(part, URL) == {}
    write_notes(part, URL, {"etag": "x", "total_bytes": 3})
    assert load_notes(part, URL) == {"address": digest_address(URL), "etag": "x", "total_bytes": 3}
    content = Path(part + ".json").read_text()
    assert not [word for word in ("secret", "example") if word in content]
    assert load_notes(part, URL + "2") == {}
    write_notes(part, URL + "2", {})
    assert load_notes(part, URL) == {}
    assert os.listdir(os.path.dirname(part)) == ["data.part.json"]
    for damaged in ("", "{", "[]", "3", "null", '"text"', "{}", '{"address": 1}', "\0"):
        Path(part + ".json").write_text(damaged)
        assert load_notes(part, URL) == {}
    Path(part).write_text("x")
    forget(part)
    forget(part)
    assert os.listdir(os.path.dirname(part)) == ["data.part"]


def test_a_part_is_a_file_a_folder_or_a_link(part: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    remove_part(part)  # nothing is there
    Path(part).write_text("x")
    remove_part(part)
    os.makedirs(os.path.join(part, "deep"))
    remove_part(part)
    os.symlink(kept, part)
    remove_part(part)
    assert not os.path.lexists(part)
    assert (kept / "file").exists(), "a link is removed, not what it leads to"


# ---------------------------------------------------------------- folders: every file, links followed


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
    assert [file.bytes for file in listing.files] == [1, 1, 1]
    (source / "again").symlink_to(source / "sub")  # a folder that is there twice is not a circle
    assert [file.name for file in load_listing(str(source)).files][:2] == ["again/link", "again/run.sh"]


def test_a_circle_a_link_to_nothing_and_a_pipe_are_named(source: Path) -> None:
    def refuse(message: str) -> None:
        with pytest.raises(UsageError, match=message):
            load_listing(str(source))

    for target in ("..", ".", "../../source"):
        (source / "sub" / "loop").symlink_to(target)
        refuse("sub/loop is a link to a folder that it is in")
        (source / "sub" / "loop").unlink()
    os.mkfifo(source / "pipe")
    refuse("source/pipe is neither a file nor a folder")
    (source / "gone").symlink_to("nowhere")
    refuse("source/gone cannot be read: No such file")


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
