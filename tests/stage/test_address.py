"""Addresses as users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.errors import UsageError
from assay.stage.address import parse_local, parse_scheme, render_url
from assay.stage.download import fetch

ALL = ("http", "https", "gs", "s3", "file")


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
