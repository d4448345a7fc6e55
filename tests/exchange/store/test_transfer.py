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


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("http://h/x", "http"),
        ("HTTPS://h/x", "https"),
        ("gs://b/x", "gs"),
        ("file:///x", "file"),
        ("file:/x", "file"),
        ("/x", None),
        ("x/y", None),
        ("a:b/c", None),
    ],
)
def test_the_scheme_of_an_address(url: str, scheme: str | None) -> None:
    assert parse_scheme(url, ALL) == scheme


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("htps://h/x", r"htps:// cannot be used here\n.*did you mean 'https' or 'http'\? known: http://, https://"),
        ("ftp://h/x", r"known: .*gs://.*s3://.*az://.*abfs://.*file:// and plain paths"),
        ("http:///x", "names no host"),
        ("http://me:word@[x/", "an address that begins with http:// is not valid"),
        ("gs://", "names no bucket"),
        ("s3:///x", "names no bucket"),
        ("", "empty"),
        ("file://elsewhere/x", "names the machine 'elsewhere'"),
        ("file://", "does not name a path"),
    ],
)
def test_an_address_that_cannot_be_used(tmp_path: Path, url: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        fetch(url, str(tmp_path / "x"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///a/b%20c", "/a/b c"),
        ("file://localhost/a", "/a"),
        ("file:/a", "/a"),
        ("file:a/b", "a/b"),
        ("file:///a?b#c", "/a?b#c"),
    ],
)
def test_the_path_of_a_file_url(url: str, path: str) -> None:
    assert parse_local(url, "file") == path


def test_a_plain_path_is_taken_as_it_is() -> None:
    assert parse_local("/a%20b", None) == "/a%20b"


def test_passwords_and_signatures_are_not_shown() -> None:
    assert render_url("https://me:secret@h:8/x?sig=secret#f") == "https://h:8/x?…"
    assert render_url("gs://b/x") == "gs://b/x"


# ---------------------------------------------------------------- the part and its notes


@pytest.fixture
def part(tmp_path: Path) -> str:
    return str(tmp_path / "data.part")


def test_notes_come_back_for_their_own_address_only(part: str) -> None:
    assert load_notes(part, URL) == {}
    write_notes(part, URL, {"etag": "x", "total_bytes": 3})
    assert load_notes(part, URL) == {"address": digest_address(URL), "etag": "x", "total_bytes": 3}
    assert load_notes(part, URL + "2") == {}
    write_notes(part, URL + "2", {})
    assert load_notes(part, URL) == {}
    assert os.listdir(os.path.dirname(part)) == ["data.part.json"]


def test_nothing_of_the_address_can_be_read_in_them(part: str) -> None:
    write_notes(part, URL, {})
    content = Path(part + ".json").read_text()
    assert "secret" not in content
    assert "example" not in content


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "null", '"text"', "{}", '{"address": 1}', "\0"])
def test_damaged_notes_say_nothing(part: str, content: str) -> None:
    Path(part + ".json").write_text(content)
    assert load_notes(part, URL) == {}


def test_forgetting_leaves_the_part(part: str) -> None:
    Path(part).write_text("x")
    write_notes(part, URL, {})
    forget(part)
    forget(part)
    assert load_notes(part, URL) == {}
    assert Path(part).read_text() == "x"


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
