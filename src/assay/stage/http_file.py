"""One file over http: status and length checked, continued where it broke off, tried again when the network fails.

<part>        what has arrived
<part>.json   of which version of the file (ETag or Last-Modified): without that, a continuation could join two versions

Both stay until the caller has made something of the part and calls `forget`.
"""

from __future__ import annotations

import base64
import http.client
import os
import re
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from email.message import Message

from assay.errors import InfrastructureError, UsageError
from assay.stage.address import render_url
from assay.stage.partial_download import forget, load_notes, write_notes

_CHUNK = 1 << 17  # at most this much is lost when a connection breaks
_QUOTED_ALREADY = "%/:=&?~#+!$,;'@()*[]"
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_NAME_UNKNOWN = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait for a silent server, and how often to ask a failing one. Progress resets the count."""

    attempts: int = 5
    first_delay_s: float = 1.0
    longest_delay_s: float = 60.0
    timeout_s: float = 60.0
    report_s: float = 10.0  # between two lines about how far a long download is
    sleep: Callable[[float], None] = time.sleep

    def delay_s(self, failures: int, asked_s: float | None) -> float:
        wanted = self.first_delay_s * 2 ** (failures - 1) if asked_s is None else asked_s
        return min(wanted, self.longest_delay_s)


DEFAULT_RETRY = RetryPolicy()


@dataclass(frozen=True, slots=True)
class _State:
    """Which version of the file the part is of."""

    etag: str | None
    modified: str | None
    total_bytes: int | None

    @property
    def validator(self) -> str | None:
        return self.etag or self.modified


class _LostError(Exception):
    """Worth another try."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class _StaleError(_LostError):
    """What has arrived is of no use: from the start again."""


def download(url: str, part: str, notify: Notify, retry: RetryPolicy) -> None:
    """The whole file into `part`. Raises UsageError for what the server will never give, else InfrastructureError."""
    failures, furthest = 0, _size_of(part)
    while True:
        try:
            _attempt(url, part, notify, retry)
        except _LostError as lost:
            if isinstance(lost, _StaleError):
                forget(part)
            size = _size_of(part)
            failures = 1 if size > furthest else failures + 1
            furthest = max(size, furthest)
            if failures >= retry.attempts:
                raise _give_up(url, failures, lost) from lost
            delay_s = retry.delay_s(failures, lost.retry_after_s)
            notify(f"{render_url(url)}: {lost}; trying again in {delay_s:g} s")
            retry.sleep(delay_s)
        else:
            return


def _give_up(url: str, failures: int, lost: _LostError) -> InfrastructureError:
    host = urllib.parse.urlsplit(url).hostname
    return InfrastructureError(
        f"cannot download {render_url(url)}: {lost} ({failures} tries)",
        f"is {host} reachable from here? What has arrived is kept, and the next try continues it",
    )


# ---------------------------------------------------------------- one attempt


def _attempt(url: str, part: str, notify: Notify, retry: RetryPolicy) -> None:
    old = _load_state(part, url)
    offset = _find_offset(part, old)
    with _open(_build_request(url, old, offset), retry.timeout_s) as response:
        new = _build_state(response)
        if response.status == http.client.PARTIAL_CONTENT:
            _check_continues(old, new, offset, response)
            notify(f"continuing {render_url(url)} at byte {offset}")
        else:
            offset = 0
            _start_over(part, url, new)
        _write_part(part, offset, _report(_receive(response), url, offset, new.total_bytes, notify, retry.report_s))
    if new.total_bytes is not None and (size := _size_of(part)) != new.total_bytes:
        raise _LostError(f"the connection ended after {size} of {new.total_bytes} bytes")


def _find_offset(part: str, state: _State | None) -> int:
    """Where to go on. Of a part that is complete the last byte is asked for again: that proves it is still current."""
    if state is None or state.validator is None:
        return 0
    size = _size_of(part)
    return size if state.total_bytes is None else min(size, max(state.total_bytes - 1, 0))


def _build_request(url: str, state: _State | None, offset: int) -> urllib.request.Request:
    pieces = urllib.parse.urlsplit(url)
    user, _, host = pieces.netloc.rpartition("@")
    path, query = (urllib.parse.quote(text, safe=_QUOTED_ALREADY) for text in (pieces.path, pieces.query))
    request = urllib.request.Request(urllib.parse.urlunsplit((pieces.scheme, host, path, query, "")))  # noqa: S310
    request.add_header("User-Agent", "assay")
    request.add_header("Accept-Encoding", "identity")  # the bytes of the file, not a compressed rendering
    if user:  # and not for whoever we are redirected to
        text = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {text}")
    if offset and state and state.validator:
        request.add_header("Range", f"bytes={offset}-")
        request.add_header("If-Range", state.validator)
    return request


@contextmanager
def _open(request: urllib.request.Request, timeout_s: float) -> Iterator[http.client.HTTPResponse]:
    url = request.full_url
    try:
        response = urllib.request.urlopen(request, timeout=timeout_s)  # noqa: S310 (only http and https come here)
    except urllib.error.HTTPError as error:
        with error:
            raise _classify_status(url, error.code, error.headers) from None
    except urllib.error.URLError as error:
        raise _classify_failure(url, error.reason) from None
    except http.client.InvalidURL as error:
        raise UsageError(f"{render_url(url)} is not a valid address: {error}") from None
    except (http.client.HTTPException, OSError) as error:
        raise _LostError(_describe(error)) from None
    with response:
        if response.status not in {200, 203, 206}:
            raise _classify_status(url, response.status or 0, response.headers)
        _check_is_file(url, response)
        _check_encoding(url, response.headers)
        yield response


def _classify_status(url: str, status: int, headers: Message) -> Exception:
    said = f"HTTP {status} {http.client.responses.get(status, '')}".rstrip()
    where = render_url(url)
    if status == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
        return _StaleError("the part that has arrived does not belong to the file any more")
    if status in _TRY_AGAIN or status > 500:
        return _LostError(f"the server answers {said}", _parse_retry_after(headers.get("Retry-After")))
    if status in {404, 410}:
        return UsageError(f"there is nothing at {where} ({said})", "check the address; nothing was saved")
    if status in {401, 403, 407}:
        return UsageError(f"{where} may not be read ({said})", "it needs a login, a signed address or another address")
    return UsageError(f"{where} cannot be downloaded ({said})")


def _classify_failure(url: str, reason: object) -> Exception:
    host = urllib.parse.urlsplit(url).hostname
    if isinstance(reason, socket.gaierror) and reason.errno in _NAME_UNKNOWN:
        return InfrastructureError(f"cannot download {render_url(url)}: there is no host {host!r}", "check the address")
    if isinstance(reason, ssl.SSLCertVerificationError):
        return InfrastructureError(
            f"{host} does not prove who it is: {reason.verify_message}", "SSL_CERT_FILE names other authorities"
        )
    if isinstance(reason, OSError):
        return _LostError(_describe(reason))
    return UsageError(f"{render_url(url)} cannot be downloaded: {reason}")


def _check_is_file(url: str, response: http.client.HTTPResponse) -> None:
    """A folder's address gives a page that lists it, often after a redirection to the address with a slash."""
    pieces = urllib.parse.urlsplit(response.geturl())
    is_page = response.headers.get_content_type() == "text/html"
    if is_page and pieces.path.endswith("/") and not pieces.query:
        raise UsageError(
            f"{render_url(url)} is not a file: the server answers with an HTML page",
            "name one file; folders come from gs://, s3://, az:// and file://",
        )


def _check_encoding(url: str, headers: Message) -> None:
    """Servers often call a .tar.gz 'encoded', and mean the file itself. Anything else would be saved compressed."""
    encoding = headers.get("Content-Encoding", "identity").lower()
    path = urllib.parse.urlsplit(url).path.lower()
    if encoding != "identity" and not path.endswith((".gz", ".tgz", ".bz2", ".xz", ".zst", ".br")):
        raise InfrastructureError(f"{render_url(url)} comes compressed ({encoding}) though it was not asked to")


def _check_continues(old: _State | None, new: _State, offset: int, response: http.client.HTTPResponse) -> None:
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    same = old is not None and old.total_bytes in {None, new.total_bytes} and new.etag in {None, old.etag}
    if not (same and match and int(match[1]) == offset):
        raise _StaleError("the server continued something else; starting over")


def _write_part(part: str, offset: int, blocks: Iterator[bytes]) -> None:
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with open(descriptor, "wb") as file:
        file.truncate(offset)
        file.seek(offset)
        file.writelines(blocks)


def _receive(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Only reading is tried again; what the disk refuses when these are written is another matter."""
    try:
        while block := response.read(_CHUNK):
            yield block
    except (http.client.HTTPException, OSError) as error:
        raise _LostError(_describe(error)) from None


def _report(
    blocks: Iterator[bytes], url: str, done: int, total: int | None, notify: Notify, every_s: float
) -> Iterator[bytes]:
    told_at = time.monotonic()
    for block in blocks:
        done += len(block)
        yield block
        if (now := time.monotonic()) - told_at >= every_s:
            told_at = now
            of = f" of {total / 1e6:,.1f}" if total else ""
            notify(f"{render_url(url)}: {done / 1e6:,.1f}{of} MB")


def _describe(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, http.client.IncompleteRead):
        return "the connection broke"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _parse_retry_after(text: str | None) -> float | None:
    """Seconds; a date is left aside, our own delays are as good."""
    return float(text) if text and text.isdecimal() else None


# ---------------------------------------------------------------- which version the part is of


def _build_state(response: http.client.HTTPResponse) -> _State:
    headers = response.headers
    etag = headers.get("ETag")
    strong = etag if etag and not etag.startswith("W/") else None  # a weak one does not promise equal bytes
    return _State(strong, headers.get("Last-Modified"), _parse_total(headers))


def _parse_total(headers: Message) -> int | None:
    match = re.fullmatch(r"bytes \d+-\d+/(\d+)", headers.get("Content-Range", ""))
    if match:
        return int(match[1])
    length = headers.get("Content-Length", "")
    chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
    return int(length) if length.isdecimal() and not chunked and "Content-Range" not in headers else None


def _load_state(part: str, url: str) -> _State | None:
    """None for a part of another address, or of none that we know."""
    notes = load_notes(part, url)
    try:
        return _State(notes["etag"], notes["modified"], notes["total_bytes"])
    except KeyError:
        return None


def _start_over(part: str, url: str, state: _State) -> None:
    """In this order: an old part with a new state would be continued with the wrong version."""
    forget(part)
    with open(part, "wb"):
        pass
    write_notes(part, url, asdict(state))


def _size_of(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0
