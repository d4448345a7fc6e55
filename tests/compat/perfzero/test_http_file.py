"""Over http: status, length, versions and retry, seen through `fetch`."""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import io
import ipaddress
import logging
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.compat.perfzero.download import FetchedData, fetch
from assay.compat.perfzero.values import DownloadRetry
from assay.errors import InfrastructureError, MissingExtraError, UsageError

DATA = bytes(range(256)) * 2000  # 512,000: several chunks
NO_WAIT = DownloadRetry(attempts=3, sleep=lambda _: None, timeout_s=20)


def pull(url: str, target: Path, **more: Any) -> FetchedData:
    return fetch(url, str(target), retry=more.pop("retry", NO_WAIT), **more)


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# ---------------------------------------------------------------- over http


def test_a_file_arrives(web: Any, tmp_path: Path) -> None:
    web.add("/d/x.bin", DATA)
    said: list[str] = []
    target = tmp_path / "data" / "deep" / "x.bin"
    assert pull(f"{web.url}/d/x.bin", target, notify=said.append) == FetchedData(str(target), len(DATA), cached=False)
    assert target.read_bytes() == DATA
    assert names_in(target.parent) == ["x.bin"]
    assert said == [f"downloading {web.url}/d/x.bin"]


def test_another_name_is_only_another_name(web: Any, tmp_path: Path) -> None:
    web.add("/x.bin", DATA)
    pull(f"{web.url}/x.bin", tmp_path / "renamed")
    assert (tmp_path / "renamed").read_bytes() == DATA


def test_what_is_there_is_not_fetched_again(web: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"mine")
    said: list[str] = []
    assert pull(f"{web.url}/x", tmp_path / "x", notify=said.append) == FetchedData(str(tmp_path / "x"), 0, cached=True)
    assert web.requests == []
    assert said == [f"{tmp_path}/x is already there"]
    assert (tmp_path / "x").read_bytes() == b"mine"


def test_an_empty_file_arrives(web: Any, tmp_path: Path) -> None:
    web.add("/x", b"")
    assert pull(f"{web.url}/x", tmp_path / "x").bytes == 0
    assert (tmp_path / "x").read_bytes() == b""


def test_a_file_of_unknown_length_arrives(web: Any, tmp_path: Path) -> None:
    web.add("/x", DATA, chunked=True)
    assert pull(f"{web.url}/x", tmp_path / "x").bytes == len(DATA)


@pytest.mark.parametrize("status", [404, 410])
def test_an_error_page_never_becomes_data(web: Any, tmp_path: Path, status: int) -> None:
    web.add("/x", DATA, statuses=[status] * 9)
    with pytest.raises(UsageError, match=rf"there is nothing at {web.url}/x \(HTTP {status}"):
        pull(f"{web.url}/x", tmp_path / "x")
    assert names_in(tmp_path) == []
    assert len(web.requests) == 1


@pytest.mark.parametrize(
    ("status", "words"), [(401, "may not be read"), (403, "may not be read"), (400, "cannot be downloaded")]
)
def test_what_the_server_will_not_give(web: Any, tmp_path: Path, status: int, words: str) -> None:
    web.add("/x", DATA, statuses=[status] * 9)
    with pytest.raises(UsageError, match=f"{words} .HTTP {status}"):
        pull(f"{web.url}/x", tmp_path / "x")
    assert len(web.requests) == 1


def test_no_content_is_no_file(web: Any, tmp_path: Path) -> None:
    web.add("/x", b"", statuses=[204] * 9)
    with pytest.raises(UsageError, match="HTTP 204"):
        pull(f"{web.url}/x", tmp_path / "x")
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 507])
def test_a_server_in_trouble_is_asked_again(web: Any, tmp_path: Path, status: int) -> None:
    web.add("/x", DATA, statuses=[status, status, 200])
    assert pull(f"{web.url}/x", tmp_path / "x").bytes == len(DATA)
    assert len(web.requests) == 3


def test_a_server_that_stays_in_trouble_is_left(web: Any, tmp_path: Path) -> None:
    web.add("/x", DATA, statuses=[503] * 9)
    said: list[str] = []
    with pytest.raises(InfrastructureError, match=r"HTTP 503 Service Unavailable \(3 tries\)") as caught:
        pull(f"{web.url}/x", tmp_path / "x", notify=said.append)
    assert caught.value.exit_code == 4
    assert len(web.requests) == 3
    assert [line for line in said if "trying again" in line] == [
        f"{web.url}/x: the server answers HTTP 503 Service Unavailable; trying again in 1 s",
        f"{web.url}/x: the server answers HTTP 503 Service Unavailable; trying again in 2 s",
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


def test_redirects_are_followed(web: Any, tmp_path: Path) -> None:
    web.add("/a", location=f"{web.url}/b")
    web.add("/b", location="/c")
    web.add("/c", DATA)
    pull(f"{web.url}/a", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA


def test_redirects_in_a_circle_end(web: Any, tmp_path: Path) -> None:
    web.add("/a", location="/a")
    with pytest.raises(UsageError, match=r"cannot be downloaded: .*redirects"):
        pull(f"{web.url}/a", tmp_path / "x")


def test_a_closed_port(tmp_path: Path, closed_port: int) -> None:
    with pytest.raises(InfrastructureError, match=r"Connection refused \(3 tries\)\n.*is 127\.0\.0\.1 reachable"):
        pull(f"http://127.0.0.1:{closed_port}/x", tmp_path / "x")
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "words", "asked"),
    [(socket.EAI_NONAME, "there is no host 'nowhere.invalid'", 1), (socket.EAI_AGAIN, r"Try later \(3 tries\)", 3)],
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
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
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
    assert pull(url, tmp_path / "x").bytes == len(DATA)


def test_the_proxy_of_the_environment_is_asked(web: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("http_proxy", web.url)
    web.add("http://far.invalid/x", DATA)
    assert pull("http://far.invalid/x", tmp_path / "x").bytes == len(DATA)


def test_a_proxy_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "ftp://me:word@proxy")
    with pytest.raises(UsageError, match="a proxy that cannot be used") as caught:
        pull("http://far.invalid/x", tmp_path / "x")
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
    pull(f"{web.url}/a b/ü?q=1%2F2&r= ", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA


def test_a_port_that_is_no_number(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a valid address"):
        pull("http://h:port/x", tmp_path / "x")


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
    pull(f"{web.url}/x", tmp_path / "x", notify=said.append)
    assert (tmp_path / "x").read_bytes() == DATA
    assert web.ranges() == [None, "bytes=300000-", "bytes=400000-"]
    assert web.requests[1][1]["If-Range"] == next(value for value in version.values() if value)
    assert f"continuing {web.url}/x at byte 300000" in said
    assert names_in(tmp_path) == ["x"]


def test_progress_renews_the_patience(web: Any, tmp_path: Path) -> None:
    web.add("/x", DATA, cuts=[10_000] * 40)
    assert pull(f"{web.url}/x", tmp_path / "x").bytes == len(DATA)
    assert len(web.requests) == 41


def test_no_progress_does_not(web: Any, tmp_path: Path) -> None:
    web.add("/x", DATA, cuts=[10_000] + [0] * 40)
    with pytest.raises(InfrastructureError, match="the connection broke"):
        pull(f"{web.url}/x", tmp_path / "x")
    assert len(web.requests) == 3  # one step forward, then twice nothing
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("page", [{"ranges": False}, {"etag": None}, {"etag": 'W/"weak"'}])
def test_a_server_that_cannot_continue_starts_over(web: Any, tmp_path: Path, page: dict[str, Any]) -> None:
    web.add("/x", DATA, cuts=[300_000], **page)
    pull(f"{web.url}/x", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA
    assert len(web.requests) == 2


def test_a_chunked_answer_that_breaks_off_is_noticed(web: Any, tmp_path: Path) -> None:
    web.add("/x", DATA, chunked=True, cuts=[300_000, 300_000, 300_000], ranges=False)
    with pytest.raises(InfrastructureError, match="the connection broke"):
        pull(f"{web.url}/x", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_another_version_is_not_joined_to_the_first(web: Any, tmp_path: Path) -> None:
    web.add("/x", DATA, cuts=[300_000], statuses=[200, 500, 500])
    with pytest.raises(InfrastructureError):
        pull(f"{web.url}/x", tmp_path / "x")
    other = DATA[::-1]
    web.add("/x", other, etag='"two"')
    pull(f"{web.url}/x", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == other
    assert web.ranges()[-1] == "bytes=300000-"


@pytest.mark.parametrize("claim", ["bytes 0-511999/512000", "bytes 300000-411999/412000", "nonsense"])
def test_a_server_that_continues_something_else_starts_over(web: Any, tmp_path: Path, claim: str) -> None:
    web.add("/x", DATA, cuts=[300_000], wrong_ranges=[claim])
    pull(f"{web.url}/x", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA
    assert web.ranges() == [None, "bytes=300000-", None]


def test_a_version_that_changed_behind_if_range_starts_over(web: Any, tmp_path: Path) -> None:
    """Some servers do not look at If-Range: what they send names the new version."""
    page = web.add("/x", DATA, etag='"one"', modified="then", cuts=[300_000], statuses=[200, 500, 500])
    with pytest.raises(InfrastructureError):
        pull(f"{web.url}/x", tmp_path / "x")
    page.etag, page.modified, page.body = '"two"', '"one"', DATA[::-1]  # matches If-Range, carries another ETag
    pull(f"{web.url}/x", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA[::-1]


def test_a_part_that_is_too_long_by_now_starts_over(web: Any, tmp_path: Path) -> None:
    page = web.add("/x", DATA, chunked=True, cuts=[300_000], statuses=[200, 500, 500])
    with pytest.raises(InfrastructureError):
        pull(f"{web.url}/x", tmp_path / "x")
    page.body, page.chunked = DATA[:1000], False
    pull(f"{web.url}/x", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA[:1000]


def test_a_part_of_another_address_is_not_continued(web: Any, tmp_path: Path) -> None:
    web.add("/x", DATA, cuts=[300_000], statuses=[200, 500, 500])
    with pytest.raises(InfrastructureError):
        pull(f"{web.url}/x", tmp_path / "x")
    web.add("/y", DATA[::-1])
    pull(f"{web.url}/y", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA[::-1]
    assert web.ranges()[-1] is None
