"""Downloads: what arrives is what was there, whole, once; and every failure has its own words."""

from __future__ import annotations

import base64
import datetime as dt
import errno
import functools
import gzip
import hashlib
import io
import ipaddress
import logging
import multiprocessing
import os
import re
import resource
import socket
import ssl
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.exchange.store.test_transfer import source
from tests.finished_study import until

from assay.compat.perfzero.download import build_disk_error, fetch
from assay.compat.perfzero.values import DownloadRetry, parse_checksum
from assay.errors import AssayError, InfrastructureError, MissingExtraError, UsageError
from assay.values.notify import Notify, ignore

__all__ = ["source"]
DATA = bytes(range(256)) * 2000  # 512,000: several chunks
NO_WAIT = DownloadRetry(attempts=3, sleep=lambda _: None, timeout_s=20)


ONCE = functools.cache(ssl.create_default_context)


@pytest.fixture(autouse=True)
def one_context(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Reading the system's authorities takes longer than a download."""
    if "self_signed" not in request.fixturenames:
        monkeypatch.setattr(ssl, "create_default_context", ONCE)


def pull(url: str, target: Path, notify: Notify = ignore, **more: Any) -> bool:
    """Whether the target was there already."""
    said: list[str] = []

    def note(text: str) -> None:
        said.append(text)
        notify(text)

    fetch(url, str(target), notify=note, retry=more.pop("retry", NO_WAIT), **more)
    return said[-1] == f"{target} is already there"


def get(url: str, target: Path, **more: Any) -> bytes:
    pull(url, target, **more)
    return target.read_bytes()


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


# ---------------------------------------------------------------- over http


def test_a_file_arrives_and_is_not_fetched_again(web: Any, tmp_path: Path) -> None:
    web.add("/d/x.bin", DATA)
    said: list[str] = []
    target = tmp_path / "data" / "deep" / "renamed"
    pull(f"{web.url}/d/x.bin", target, notify=said.append)
    assert target.read_bytes() == DATA
    assert names_in(target.parent) == ["renamed"]
    pull(f"{web.url}/d/x.bin", target, notify=said.append)
    assert said == [f"downloading {web.url}/d/x.bin", f"{target} is already there"]
    assert len(web.requests) == 1
    for name, page in {"empty": {"body": b""}, "unknown length": {"body": DATA, "chunked": True}}.items():
        web.add("/y", **page)
        assert get(f"{web.url}/y", tmp_path / name) == page["body"]


@pytest.mark.parametrize(
    ("status", "words"), [(404, "there is nothing at"), (403, "may not be read"), (204, "cannot be downloaded")]
)
def test_an_error_page_never_becomes_data(web: Any, tmp_path: Path, status: int, words: str) -> None:
    web.add("/x", DATA, statuses=[status] * 9)
    with pytest.raises(UsageError, match=words) as caught:
        pull(f"{web.url}/x", tmp_path / "x")
    assert f"HTTP {status}" in caught.value.message
    assert names_in(tmp_path) == []
    assert len(web.requests) == 1


def test_a_server_in_trouble_is_asked_again_and_left(web: Any, tmp_path: Path) -> None:
    web.add("/y", DATA, statuses=[503] * 9)
    said: list[str] = []
    with pytest.raises(InfrastructureError, match=r"HTTP 503 Service Unavailable \(3 tries\)") as caught:
        pull(f"{web.url}/y", tmp_path / "y", notify=said.append)
    assert caught.value.exit_code == 4
    assert len(web.requests) == 3
    assert [line for line in said if "trying again" in line] == [
        f"{web.url}/y: the server answers HTTP 503 Service Unavailable; trying again in 1 s",
        f"{web.url}/y: the server answers HTTP 503 Service Unavailable; trying again in 2 s",
    ]


def test_delays_grow_and_the_server_may_ask_for_one(web: Any, tmp_path: Path) -> None:
    waited: list[float] = []
    web.add("/x", DATA, statuses=[503] * 4 + [200])
    pull(f"{web.url}/x", tmp_path / "x", retry=DownloadRetry(sleep=waited.append))
    assert waited == [1, 2, 4, 8]
    web.add("/y", DATA, statuses=[429, 503, 200], headers={"Retry-After": "7"})
    pull(f"{web.url}/y", tmp_path / "y", retry=DownloadRetry(sleep=waited.append))
    assert waited[4:] == [7, 7]
    web.add("/z", DATA, statuses=[429, 200], headers={"Retry-After": "86400"})
    pull(f"{web.url}/z", tmp_path / "z", retry=DownloadRetry(sleep=waited.append))
    assert waited[6:] == [60]


def test_redirects_are_followed_to_an_end(web: Any, tmp_path: Path) -> None:
    web.add("/a", location=f"{web.url}/b")
    web.add("/b", location="/c")
    web.add("/c", DATA)
    assert get(f"{web.url}/a", tmp_path / "x") == DATA
    web.add("/c", location="/c")
    with pytest.raises(UsageError, match=r"cannot be downloaded: .*redirects"):
        pull(f"{web.url}/a", tmp_path / "y")


@pytest.mark.parametrize(
    ("number", "words", "asked"),
    [
        (socket.EAI_NONAME, "there is no host 'nowhere.invalid'", 1),
        (socket.EAI_AGAIN, r"Try later \(3 tries\)\n.*is nowhere.invalid reachable", 3),
    ],
)
def test_a_host_that_does_not_exist_is_not_asked_for_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str, asked: int
) -> None:
    calls: list[object] = []

    def refuse(*arguments: object, **_: object) -> None:
        calls.append(arguments)
        raise socket.gaierror(number, "Try later")

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(InfrastructureError, match=words):
        pull("http://nowhere.invalid/x", tmp_path / "x")
    assert len(calls) == asked


@pytest.fixture
def self_signed(tmp_path: Path) -> Path:
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - dt.timedelta(1)).not_valid_after(now + dt.timedelta(1))
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    kind = serialization.PrivateFormat.PKCS8
    path = tmp_path / "server.pem"
    secret = key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
    path.write_bytes(secret + certificate.public_bytes(serialization.Encoding.PEM))
    return path


def test_a_certificate_that_proves_nothing_is_not_asked_twice(
    web: Any, tmp_path: Path, self_signed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.encrypt(self_signed)
    web.add("/x", DATA)
    url = web.url.replace("http:", "https:") + "/x"
    said: list[str] = []
    with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1 has no valid certificate: self.signed certificate"):
        pull(url, tmp_path / "x", notify=said.append)
    assert "trying again" not in "".join(said)
    monkeypatch.setenv("SSL_CERT_FILE", str(self_signed))
    assert get(url, tmp_path / "x") == DATA


def test_the_proxy_of_the_environment_is_asked_or_named(
    web: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("http_proxy", web.url)
    web.add("http://far.invalid/x", DATA)
    assert get("http://far.invalid/x", tmp_path / "x") == DATA
    monkeypatch.setenv("all_proxy", "ftp://me:word@proxy")
    with pytest.raises(UsageError, match="a proxy that cannot be used") as caught:
        pull("http://far.invalid/x", tmp_path / "y")
    assert "word" not in str(caught.value)


def test_without_httpx_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.delitem(sys.modules, "assay.compat.perfzero.http_file", raising=False)
    monkeypatch.delattr("assay.compat.perfzero.http_file", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'assay\[download\]'"):
        pull("http://me:word@far.invalid/x", tmp_path / "x")
    assert names_in(tmp_path) == []


def test_a_server_that_says_nothing_is_not_waited_for_forever(web: Any, tmp_path: Path) -> None:
    web.add("/x", DATA, hold_at=0)
    with pytest.raises(InfrastructureError, match="no answer in time"):
        pull(f"{web.url}/x", tmp_path / "x", retry=DownloadRetry(attempts=1, timeout_s=0.2))


def test_odd_letters_in_an_address(web: Any, tmp_path: Path) -> None:
    web.add("/a%20b/%C3%BC?q=1%2F2&r=%20", DATA)
    assert get(f"{web.url}/a b/ü?q=1%2F2&r= ", tmp_path / "x") == DATA
    with pytest.raises(UsageError, match="is not a valid address"):
        pull("http://h:port/x", tmp_path / "y")


def test_a_login_in_the_address_is_for_that_host_only(web: Any, tmp_path: Path) -> None:
    web.add("/a", location="/b")
    web.add("/b", location=f"{web.url.replace('127.0.0.1', 'localhost')}/c")
    web.add("/c", DATA)
    said: list[str] = []
    log, logger = io.StringIO(), logging.getLogger("httpx")
    logger.addHandler(handler := logging.StreamHandler(log))
    logger.setLevel(logging.INFO)
    pull(web.url.replace("//", "//me:p%40ss@") + "/a", tmp_path / "x", notify=said.append)
    logger.removeHandler(handler)
    login = "Basic " + base64.b64encode(b"me:p@ss").decode()
    assert [headers.get("Authorization") for _, headers in web.requests] == [login, login, None]
    assert log.getvalue()
    assert "p%40ss" not in "".join(said) + log.getvalue()


def test_a_file_that_comes_compressed_unasked_is_refused(web: Any, tmp_path: Path) -> None:
    web.add("/x.csv", gzip.compress(DATA), headers={"Content-Encoding": "gzip"})
    with pytest.raises(InfrastructureError, match="comes compressed"):
        pull(f"{web.url}/x.csv", tmp_path / "x.csv")
    assert names_in(tmp_path) == []
    web.add("/x.csv.gz", gzip.compress(DATA), headers={"Content-Encoding": "x-gzip"})  # the file itself, says Apache
    pull(f"{web.url}/x.csv.gz", tmp_path / "x.csv.gz")
    assert (tmp_path / "x.csv").read_bytes() == DATA


def test_long_downloads_say_how_far_they_are(web: Any, tmp_path: Path) -> None:
    web.add("/x", DATA)
    said: list[str] = []
    pull(f"{web.url}/x", tmp_path / "x", notify=said.append, retry=DownloadRetry(report_s=0))
    assert said[-1] == f"{web.url}/x: 0.5 of 0.5 MB"
    assert len(said) > 2  # one per block that arrives


# ---------------------------------------------------------------- continuing


@pytest.mark.parametrize("version", [{"etag": '"one"'}, {"etag": None, "modified": "Mon, 05 Jan 2026 10:00:00 GMT"}])
def test_a_broken_connection_is_continued(web: Any, tmp_path: Path, version: dict[str, str | None]) -> None:
    web.add("/x", DATA, cuts=[300_000, 100_000], **version)
    said: list[str] = []
    assert get(f"{web.url}/x", tmp_path / "x", notify=said.append) == DATA
    assert web.ranges() == [None, "bytes=300000-", "bytes=400000-"]
    assert web.requests[1][1]["If-Range"] == next(value for value in version.values() if value)
    assert f"continuing {web.url}/x at byte 300000" in said
    assert names_in(tmp_path) == ["x"]


def test_only_progress_renews_the_patience(web: Any, tmp_path: Path) -> None:
    web.add("/x", DATA, cuts=[100_000] * 5)
    assert get(f"{web.url}/x", tmp_path / "x") == DATA
    assert len(web.requests) == 6
    web.requests.clear()
    web.add("/y", DATA, cuts=[10_000] + [0] * 40)
    with pytest.raises(InfrastructureError, match="the connection broke"):
        pull(f"{web.url}/y", tmp_path / "y")
    assert len(web.requests) == 3  # one step forward, then twice nothing
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize("page", [{"ranges": False}, {"etag": None}, {"etag": 'W/"weak"'}])
def test_a_server_that_cannot_continue_starts_over(web: Any, tmp_path: Path, page: dict[str, Any]) -> None:
    web.add("/x", DATA, cuts=[300_000], **page)
    assert get(f"{web.url}/x", tmp_path / "x") == DATA
    assert len(web.requests) == 2


def leave_part(web: Any, target: Path, **more: Any) -> Any:
    """A download that broke off after 300,000 bytes and was left; the page that it is of."""
    page = web.add("/x", DATA, cuts=[300_000], statuses=[200, 500, 500], **more)
    with pytest.raises(InfrastructureError):
        pull(f"{web.url}/x", target)
    return page


def test_another_version_is_not_joined_to_the_first(web: Any, tmp_path: Path) -> None:
    """Some servers do not look at If-Range: what they send names the new version."""
    leave_part(web, tmp_path / "x")
    web.add("/x", DATA[::-1], etag='"two"')
    assert get(f"{web.url}/x", tmp_path / "x") == DATA[::-1]
    assert web.ranges()[-1] == "bytes=300000-"
    page = leave_part(web, tmp_path / "y", etag='"one"', modified="then")
    page.etag, page.modified, page.body = '"two"', '"one"', DATA[::-1]  # matches If-Range, carries another ETag
    assert get(f"{web.url}/x", tmp_path / "y") == DATA[::-1]


@pytest.mark.parametrize("claim", ["bytes 0-511999/512000", "bytes 300000-411999/412000", "nonsense"])
def test_a_server_that_continues_something_else_starts_over(web: Any, tmp_path: Path, claim: str) -> None:
    web.add("/x", DATA, cuts=[300_000], wrong_ranges=[claim])
    assert get(f"{web.url}/x", tmp_path / "x") == DATA
    assert web.ranges() == [None, "bytes=300000-", None]


def test_a_part_that_is_too_long_by_now_or_of_another_address_starts_over(web: Any, tmp_path: Path) -> None:
    page = leave_part(web, tmp_path / "x", chunked=True)
    page.body, page.chunked = DATA[:1000], False
    assert get(f"{web.url}/x", tmp_path / "x") == DATA[:1000]
    leave_part(web, tmp_path / "y")
    web.add("/y", DATA[::-1])
    assert get(f"{web.url}/y", tmp_path / "y") == DATA[::-1]
    assert web.ranges()[-1] is None


# ---------------------------------------------------------------- once, for all processes


def test_several_fetch_the_same_thing_once(web: Any, tmp_path: Path) -> None:
    """Threads, since the lock is one of open files. It is made and removed by each in turn: none may hold one that is no
    longer there."""
    page = web.add("/x.tar.gz", build_tar({f"data/{number}": b"x" * 1000 for number in range(20)}), hold_at=10)
    said: list[str] = []

    def fetch_it(_: int) -> bool:
        return pull(f"{web.url}/x.tar.gz", tmp_path / "x.tar.gz", notify=said.append)

    with ThreadPoolExecutor(4) as pool:
        found = pool.map(fetch_it, range(4))
        until(lambda: sum("waiting for another process" in line for line in said) == 3, "three wait", 60)
        page.release.set()
        assert sorted(found) == [False, True, True, True]
    assert names_in(tmp_path) == ["data", "x.tar.gz"]
    assert len(web.requests) == 1


def test_a_killed_download_is_continued_by_the_one_that_waits(web: Any, tmp_path: Path) -> None:
    page = web.add("/x", DATA, hold_at=300_000)
    first = multiprocessing.get_context("fork").Process(target=pull, args=(f"{web.url}/x", tmp_path / "x"))
    first.start()
    part = tmp_path / "x.part"
    until(lambda: part.exists() and part.stat().st_size >= 200_000, "the rest waits for the server", 60)

    def kill(text: str) -> None:
        if text.startswith("waiting"):
            first.kill()
            first.join()
            sizes.append(part.stat().st_size)
            page.hold_at = None
            page.release.set()

    sizes: list[int] = []
    assert not pull(f"{web.url}/x", tmp_path / "x", notify=kill)
    assert (tmp_path / "x").read_bytes() == DATA
    assert web.ranges() == [None, f"bytes={sizes[0]}-"]
    assert names_in(tmp_path) == ["x"]


def test_a_checksum_is_compared_also_with_what_is_there(web: Any, tmp_path: Path) -> None:
    web.add("/x.tar.gz", build_tar({"data/x": b"1"}))
    wrong = parse_checksum("0" * 40)
    with pytest.raises(UsageError, match=rf"is not what was expected: sha1 [0-9a-f]{{40}}, expected {'0' * 40}"):
        pull(f"{web.url}/x.tar.gz", tmp_path / "x.tar.gz", checksum=wrong)
    assert names_in(tmp_path) == []
    web.add("/x", DATA)
    pull(f"{web.url}/x", tmp_path / "x", checksum=parse_checksum(f"sha256:{hashlib.sha256(DATA).hexdigest()}"))
    assert pull(f"{web.url}/x", tmp_path / "x", checksum=parse_checksum(hashlib.md5(DATA).hexdigest()))
    with pytest.raises(UsageError, match="already there, but it is other data"):
        pull(f"{web.url}/x", tmp_path / "x", checksum=wrong)
    assert (tmp_path / "x").read_bytes() == DATA
    with pytest.raises(UsageError, match="is a folder, and a checksum is of a file"):
        pull(str(tmp_path), tmp_path.parent / "y", checksum=wrong)
    assert not [*tmp_path.parent.glob("y*")]


# ---------------------------------------------------------------- archives


def test_a_renamed_archive_is_unpacked_into_the_parent_and_reported(web: Any, tmp_path: Path) -> None:
    """It is known by the path of its address, without a signature after it."""
    web.add("/ds.tar.gz?sig=1", build_tar({"inner/a": b"1"}))
    said: list[str] = []
    pull(f"{web.url}/ds.tar.gz?sig=1", tmp_path / "mydata", notify=said.append)
    assert names_in(tmp_path) == ["inner", "mydata"]
    assert said[-1] == f"unpacking ds.tar.gz (kept as mydata) into {tmp_path}"
    pull(f"{web.url}/ds.tar.gz?sig=1", tmp_path / "packed" / "x.tar.gz", decompress=False)
    assert names_in(tmp_path / "packed") == ["x.tar.gz"]
    # without an ending it is known by its content; another ending says that it is something else
    web.add("/download?id=3", build_tar({"inner/a": b"1"}))
    for target, there in {"plain/mydata": ["inner", "mydata"], "other/data.bin": ["data.bin"]}.items():
        pull(f"{web.url}/download?id=3", tmp_path / target)
        assert names_in((tmp_path / target).parent) == there


@pytest.mark.parametrize("content", [b"\0" * 2048, b"", b"text", gzip.compress(b"text", mtime=0)])
def test_other_data_without_an_ending_stays_as_it_is(web: Any, tmp_path: Path, content: bytes) -> None:
    web.add("/data", content)
    said: list[str] = []
    assert get(f"{web.url}/data", tmp_path / "data", notify=said.append) == content
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
        assert not pull(f"{web.url}{path}", tmp_path / str(number))


def test_a_target_that_is_in_the_archive_is_the_folder(web: Any, tmp_path: Path) -> None:
    web.add("/data.tar.gz", build_tar({"data/x": b"1", "also": b"2"}))
    fetched = pull(f"{web.url}/data.tar.gz", tmp_path / "data")
    assert names_in(tmp_path) == ["also", "data"]
    assert (tmp_path / "data" / "x").read_bytes() == b"1"
    assert not fetched
    wrong = parse_checksum("0" * 64)  # of the archive, which is gone
    assert pull(f"{web.url}/data.tar.gz", tmp_path / "data", checksum=wrong)


@pytest.mark.parametrize(("target", "there"), [("t.csv.gz", ["t.csv", "t.csv.gz"]), ("t.csv", ["t.csv"]), ("u", ["u"])])
def test_a_plain_gzip_is_unpacked(web: Any, tmp_path: Path, target: str, there: list[str]) -> None:
    web.add("/t.csv.gz", gzip.compress(b"a,b\n"))
    pull(f"{web.url}/t.csv.gz", tmp_path / target)
    assert names_in(tmp_path) == there
    assert (tmp_path / there[0]).read_bytes() == b"a,b\n"
    assert pull(f"{web.url}/t.csv.gz", tmp_path / target)


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
        if text == f"unpacking x.tar.gz into {tmp_path}":
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


@pytest.mark.parametrize("form", ["{}", "{}/*", "file://{}/", "file:{}"])
def test_a_folder_is_copied_whole(source: Path, tmp_path: Path, form: str) -> None:
    target = tmp_path / "data" / "copy"
    (tmp_path / "data" / "copy.part").mkdir(parents=True)
    (tmp_path / "data" / "copy.part" / "junk").write_bytes(b"of a copy that was killed")
    pull(form.format(source), target)
    names = sorted(str(path.relative_to(target)) for path in target.rglob("*"))
    assert names == ["sub", "sub/empty", "sub/link", "sub/run.sh", "x"]
    assert not (target / "sub" / "link").is_symlink()  # the data, not a pointer back
    assert os.access(target / "sub" / "run.sh", os.X_OK)
    assert names_in(tmp_path / "data") == ["copy"]


def test_a_single_file_is_copied_and_an_archive_unpacked(hostile_path: Path) -> None:
    (hostile_path / "x").write_bytes(DATA)
    assert get(str(hostile_path / "x"), hostile_path / "y") == DATA
    (hostile_path / "x.tar.gz").write_bytes(build_tar({"data/x": b"1"}))
    pull(str(hostile_path / "x.tar.gz"), hostile_path / "in" / "x.tar.gz")
    assert names_in(hostile_path / "in") == ["data", "x.tar.gz"]


def test_what_cannot_be_copied(source: Path, tmp_path: Path) -> None:
    for url in ("/nowhere/at/all", "file:///nowhere/at/all", "relative/nowhere"):
        with pytest.raises(UsageError, match=r"there is no file or folder '.*nowhere"):
            pull(url, tmp_path / "x")
    with pytest.raises(UsageError, match="into itself"):
        pull(str(source), source / "sub" / "copy")
    assert names_in(source / "sub") == ["empty", "link", "run.sh"]
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(UsageError, match="link is a broken link"):
        pull(str(source), tmp_path / "link")
    os.mkfifo(source / "pipe")
    for path in (source / "pipe", source):
        with pytest.raises(UsageError, match="neither a file nor a folder"):
            pull(str(path), tmp_path / "x")
    assert not (tmp_path / "x").exists()
    for target in ("", "/"):
        with pytest.raises(UsageError, match="not a valid target"):
            fetch(str(source), target)


# ---------------------------------------------------------------- the disk


def test_a_folder_that_may_not_be_written(web: Any, forbidden_dir: Path) -> None:
    web.add("/x", DATA)
    words = rf"{forbidden_dir}/.* cannot be written: Permission denied\n.*choose another folder"
    for target in (forbidden_dir / "x", forbidden_dir / "sub" / "x"):
        with pytest.raises(UsageError, match=words):
            pull(f"{web.url}/x", target)
    fetch("/etc/hostname", str(forbidden_dir.parent))  # what is there needs no writing


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
    assert get(f"{web.url}/x", tmp_path / "x") == DATA


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, InfrastructureError, "no room for /d/x: No space left on device"),
        (errno.ENOTDIR, UsageError, "/d/x cannot be made: /d/x: Not a directory"),
        (errno.EROFS, UsageError, "/d/x cannot be written: Read-only file system"),
        (errno.EIO, InfrastructureError, "/d/x cannot be written: Input/output error"),
    ],
)
def test_each_refusal_of_the_disk_has_its_words(number: int, kind: type[AssayError], words: str) -> None:
    error = build_disk_error("/d/x", OSError(number, os.strerror(number)))
    assert isinstance(error, kind)
    assert re.search(words, str(error))
