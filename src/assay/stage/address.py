"""Where data is, as users write it: http://…, gs://…, s3://…, az://…, abfs://…, file:…, or a plain path."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Sequence

from assay.errors import UsageError, did_you_mean

FILE = "file"
WEB = ("http", "https")
STORES = ("gs", "s3", "az", "abfs", "abfss")


def parse_scheme(url: str, known: Sequence[str]) -> str | None:
    """None for a plain path. A name before :// that we do not know is a mistake, not a path."""
    if not url:
        raise UsageError("an empty address leads nowhere")
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", url) or re.match(r"(file):", url, re.IGNORECASE)
    if not match:
        return None
    scheme = match[1].lower()
    try:
        netloc = urllib.parse.urlsplit(url).netloc
    except ValueError as error:  # it may hold a password: not shown
        raise UsageError(f"an address that begins with {scheme}:// is not valid: {error}") from None
    if scheme not in known:
        raise UsageError(f"{render_url(url)}: {scheme}:// cannot be used here", _suggest(scheme, known))
    if scheme != FILE and not netloc:
        raise UsageError(f"{url!r} names no {'host' if scheme in WEB else 'bucket'}")
    return scheme


def _suggest(scheme: str, known: Sequence[str]) -> str:
    text = "known: " + ", ".join(f"{name}://" for name in known) + " and plain paths"
    close = did_you_mean(scheme, known) or ""
    return f"{close} {text}" if close.startswith("did you mean") else text


def parse_local(url: str, scheme: str | None) -> str:
    """The path of a file: URL, or the plain path itself."""
    if scheme is None:
        return url
    pieces = urllib.parse.urlsplit(url)
    if pieces.netloc not in {"", "localhost"}:
        raise UsageError(
            f"{url!r} names the machine {pieces.netloc!r}", "files of this machine only: write file:///PATH"
        )
    # ? and # have a meaning on the web; in a path they are letters
    rest = url.split(":", 1)[1]
    path = urllib.parse.unquote(rest[2 + len(pieces.netloc) :] if rest.startswith("//") else rest)
    if not path:
        raise UsageError(f"{url!r} does not name a path", "write file:///PATH")
    return path


def render_url(url: str) -> str:
    """For people: passwords and signed queries stay out of logs."""
    pieces = urllib.parse.urlsplit(url)
    if pieces.scheme not in WEB:
        return url
    query = "…" if pieces.query else ""
    return urllib.parse.urlunsplit((pieces.scheme, pieces.netloc.rpartition("@")[2], pieces.path, query, ""))
