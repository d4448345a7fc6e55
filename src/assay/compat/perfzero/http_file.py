"""Download one file over HTTP, with httpx: check status and length, retry, and continue interrupted downloads.

<part>        the partial file
<part>.json   the file's version (ETag or Last-Modified), without which a continuation could join two versions

The two files stay until the caller has used the part and calls `forget`. The extra `download` installs httpx.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import time
from collections.abc import Iterator

import httpx

from assay.compat.perfzero.values import DownloadRetry
from assay.errors import InfrastructureError, UsageError
from assay.exchange.api import forget, load_notes, render_url, write_notes
from assay.values.notify import Notify

_TRY_AGAIN = frozenset({408, 425, 429})  # statuses that a retry may solve, besides those from 500 on
_NAME_UNKNOWN = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})
_HEADERS = {"User-Agent": "assay", "Accept-Encoding": "identity"}  # the file itself, not a compressed form of it


class _LostError(Exception):
    """The download failed in a way that another try may solve."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


def download(url: str, part: str, notify: Notify, retry: DownloadRetry) -> None:
    """Download a file into `part`. Raise UsageError if the server will never send it, else InfrastructureError."""
    failures, furthest = 0, _size_of(part)
    with _open_client(url, retry.timeout_s) as client:
        while True:
            try:
                _attempt(client, url, part, notify, retry)
            except _LostError as lost:
                size = _size_of(part)
                failures = 1 if size > furthest else failures + 1
                furthest = max(size, furthest)
                if failures >= retry.attempts:
                    kept = "What has arrived is kept, and the next try continues it"
                    hint = f"is {httpx.URL(url).host} reachable from here? {kept}"
                    message = f"cannot download {render_url(url)}: {lost} ({failures} tries)"
                    raise InfrastructureError(message, hint) from lost
                usual_s = retry.first_delay_s * 2 ** (failures - 1)
                delay_s = min(usual_s if lost.retry_after_s is None else lost.retry_after_s, retry.longest_delay_s)
                notify(f"{render_url(url)}: {lost}; trying again in {delay_s:g} s")
                retry.sleep(delay_s)
            else:
                return


def _open_client(url: str, timeout_s: float) -> httpx.Client:
    """Open a client with the environment's proxies, and the system's certificate authorities or SSL_CERT_FILE's."""
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise UsageError(f"{render_url(url)} is not a valid address: {error}") from None
    login = (address.username, address.password) if address.userinfo else None  # httpx sends logins to this host only
    try:
        tls = ssl.create_default_context()
        return httpx.Client(auth=login, headers=_HEADERS, timeout=timeout_s, verify=tls, follow_redirects=True)
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # httpx cannot use this kind of proxy
        raise UsageError(f"the environment names a proxy that cannot be used: {error}", "see HTTPS_PROXY") from None


# ---------------------------------------------------------------- one attempt


def _attempt(client: httpx.Client, url: str, part: str, notify: Notify, retry: DownloadRetry) -> None:
    old = load_notes(part, url)  # empty if the part is of another or an unknown address
    validator = next((text for name in ("etag", "modified") if (text := old.get(name)) and text.isascii()), None)
    offset, headers = 0, {}
    if validator and "total_bytes" in old:
        offset = _size_of(part)
        if old["total_bytes"] is not None:  # of a complete part, request the last byte to check the version
            offset = min(offset, max(old["total_bytes"] - 1, 0))
        headers = {"Range": f"bytes={offset}-", "If-Range": validator} if offset else {}
    bare = httpx.URL(url).copy_with(userinfo=b"")  # httpx may log the address
    try:
        with client.stream("GET", bare, headers=headers) as response:
            if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                forget(part)
                raise _LostError("the part that has arrived does not belong to the file any more")
            _check_answer(url, response)
            etag, total = response.headers.get("ETag"), _parse_total(response.headers)
            strong = etag if etag and not etag.startswith("W/") else None  # weak: bytes may differ
            new = {"etag": strong, "modified": response.headers.get("Last-Modified"), "total_bytes": total}
            if response.status_code == httpx.codes.PARTIAL_CONTENT:
                match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
                has_total = old.get("total_bytes") in {None, total} and strong in {None, old.get("etag")}
                if not (old and has_total and match and int(match[1]) == offset):
                    forget(part)
                    raise _LostError("the server continued something else; starting over")
                notify(f"continuing {render_url(url)} at byte {offset}")
            else:
                offset = 0
                # the old part goes first: with new notes it would be continued with the wrong version
                forget(part)
                with open(part, "wb"):
                    pass
                write_notes(part, url, new)
            with open(part, "ab") as file:
                file.truncate(offset)
                file.writelines(_report(response.iter_raw(), url, offset, total, notify, retry.report_s))
    except httpx.RequestError as error:
        raise _classify_failure(url, error) from error
    if total is not None and (size := _size_of(part)) != total:
        raise _LostError(f"the connection ended after {size} of {total} bytes")


def _classify_failure(url: str, error: httpx.RequestError) -> Exception:
    host = httpx.URL(url).host
    cause: BaseException = error
    while deeper := cause.__cause__ or cause.__context__:  # the innermost error is the system's
        cause = deeper
    if isinstance(cause, socket.gaierror) and cause.errno in _NAME_UNKNOWN:
        return InfrastructureError(f"cannot download {render_url(url)}: there is no host {host!r}", "check the address")
    if isinstance(cause, ssl.SSLCertVerificationError):
        hint = "SSL_CERT_FILE names other authorities"
        return InfrastructureError(f"{host} has no valid certificate: {cause.verify_message}", hint)
    if isinstance(error, httpx.TooManyRedirects | httpx.UnsupportedProtocol):
        return UsageError(f"{render_url(url)} cannot be downloaded: {error}")
    if isinstance(error, httpx.TimeoutException):
        return _LostError("no answer in time")
    if isinstance(error, httpx.RemoteProtocolError):
        return _LostError("the connection broke")
    return _LostError(str(getattr(cause, "strerror", None) or cause or type(cause).__name__))


def _check_answer(url: str, response: httpx.Response) -> None:
    status, headers, where = response.status_code, response.headers, render_url(url)
    answer = f"HTTP {status} {httpx.codes.get_reason_phrase(status)}".rstrip()
    if status in _TRY_AGAIN or status >= 500:
        wait = headers.get("Retry-After", "")  # seconds; for a date the usual delay is used
        raise _LostError(f"the server answers {answer}", float(wait) if wait.isdecimal() else None)
    if status in {404, 410}:
        raise UsageError(f"there is nothing at {where} ({answer})", "check the address; nothing was saved")
    if status in {401, 403, 407}:
        raise UsageError(f"{where} may not be read ({answer})", "it needs a login, a signed address or another address")
    if status not in {200, 203, 206}:
        raise UsageError(f"{where} cannot be downloaded ({answer})")
    # the address of a folder returns a page that lists it, often after a redirect to the address with a slash
    is_page = headers.get("Content-Type", "").partition(";")[0].strip().lower() == "text/html"
    if is_page and response.url.path.endswith("/") and not response.url.query:
        hint = "name one file; folders come from gs://, s3://, az:// and file://"
        raise UsageError(f"{where} is not a file: the server answers with an HTML page", hint)
    # servers often label a .tar.gz itself as "encoded"; any other file would be saved compressed
    encoding = headers.get("Content-Encoding", "identity").lower()
    path = httpx.URL(url).path.lower()
    if encoding != "identity" and not path.endswith((".gz", ".tgz", ".bz2", ".xz", ".zst", ".br")):
        raise InfrastructureError(f"{where} comes compressed ({encoding}) though that was not requested")


def _report(
    blocks: Iterator[bytes], url: str, done: int, total: int | None, notify: Notify, every_s: float
) -> Iterator[bytes]:
    reported_at = time.monotonic()
    for block in blocks:
        done += len(block)
        yield block
        if (now := time.monotonic()) - reported_at >= every_s:
            reported_at = now
            of = f" of {total / 1e6:,.1f}" if total else ""
            notify(f"{render_url(url)}: {done / 1e6:,.1f}{of} MB")


def _parse_total(headers: httpx.Headers) -> int | None:
    match = re.fullmatch(r"bytes \d+-\d+/(\d+)", headers.get("Content-Range", ""))
    if match:
        return int(match[1])
    length = headers.get("Content-Length", "")
    chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
    return int(length) if length.isdecimal() and not chunked and "Content-Range" not in headers else None


def _size_of(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0
