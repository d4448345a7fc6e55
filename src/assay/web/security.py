"""Permissions of requests. Every request is checked here before any other code reads it.

On a loopback address reading needs no token, and every action needs one: any other user of the machine, and any page
that the browser shows, could otherwise execute commands. On addresses other than loopback reading needs a token, too.

A token travels in the header `Authorization: Bearer`, which no other site can make a browser send. The browser keeps it
in its session storage, which another port of the same machine cannot read. A browser loads pages without the header, so
on addresses other than loopback the login sets a cookie, which allows only reading: a forged form is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from assay.web.routes import Scope

TokenScope = Literal["read", "write", "upload"]
ALLOWS: Mapping[str, frozenset[str]] = {
    "read": frozenset({"read"}),
    "upload": frozenset({"upload"}),
    "write": frozenset({"read", "write", "upload"}),
}
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; font-src 'self'; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
# policy of a page that a script logged, which is shown in a frame
FRAME_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
COOKIE = "assay-read"
TOKEN_KEY = "assay.token"  # key of the token in a request's scope
OPEN_KEY = "assay.open"  # key in a request's scope: the path needs no token, although reading does
FILES = ("/static/", "/vendor/")  # files of Assay, the same for every reader
_WRONG_TOKENS = 10  # wrong tokens from one address within a minute, after which more are refused
_MOST_ADDRESSES = 10_000  # client addresses that a limit keeps in memory
_LARGEST_BODY = 1 << 20  # bytes; uploads have a limit of their own


@dataclass(frozen=True, slots=True)
class AccessToken:
    text: str = field(repr=False)
    scope: TokenScope = "write"
    prefix: str = ""  # prefix of the names of studies that the token may upload to; "": all

    @property
    def title(self) -> str:
        """Return the scope of the token, and a fingerprint that identifies the token without containing it."""
        scope = f"{self.scope}:{self.prefix}" if self.prefix else self.scope
        return f"{scope} token {hashlib.sha256(self.text.encode()).hexdigest()[:6]}"

    def is_same(self, given: str) -> bool:
        return hmac.compare_digest(self.text.encode(), given.encode("utf-8", "surrogateescape"))

    def build_cookie(self) -> str:
        """Return a cookie that allows reading and does not contain the token."""
        return hmac.new(self.text.encode(), b"read", hashlib.sha256).hexdigest()


class Limit:
    """A limit of events per minute for each client address."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._times: dict[str, list[float]] = {}

    def note(self, address: str) -> None:
        now = time.monotonic()
        if len(self._times) > _MOST_ADDRESSES:
            recent = [(key, times) for key, times in self._times.items() if times[-1] > now - 60]
            self._times = dict(recent[-_MOST_ADDRESSES // 2 :])
        self._times[address] = [*self._recent(address, now), now]

    def is_reached(self, address: str) -> bool:
        return len(self._recent(address, time.monotonic())) >= self.most

    def _recent(self, address: str, now: float) -> list[float]:
        return [at for at in self._times.get(address, ()) if at > now - 60][-self.most :]


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_host(text: str) -> str:
    """Return the host of `name:port` or `[::1]:port` in lower case, or "" if the text has neither form."""
    try:
        return (urlsplit(f"//{text}").hostname or "").lower()
    except ValueError:
        return ""


@dataclass(frozen=True, eq=False)
class Guard:
    """The outermost ASGI application. `hosts`: the names that requests may use for this server; `is_open`: reading
    needs no token; `wrong`: the limit of wrong tokens for each client address."""

    app: ASGIApp
    routes: Sequence[Route]
    tokens: Sequence[AccessToken]
    hosts: Sequence[str]
    is_open: bool
    wrong: Limit = field(default_factory=lambda: Limit(_WRONG_TOKENS))

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # WebSockets are not supported
            return await send({"type": "websocket.close", "code": 1008})
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                added = [(name.encode(), text.encode()) for name, text in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in added if pair[0] not in present)]
            await send(message)

        refusal = self._refuse(scope)
        if refusal is not None:
            status, text = refusal
            accepted, query = HTTPConnection(scope).headers.get("accept", ""), scope["query_string"].decode("latin-1")
            if status == 401 and scope["method"] == "GET" and "text/html" in accepted:
                target = quote(scope["path"] + (f"?{query}" if query else ""))
                return await RedirectResponse(f"/login?next={target}", 303)(scope, receive, send_safely)
            headers = {"www-authenticate": "Bearer"} if status == 401 else {}
            return await PlainTextResponse(f"{text}\n", status, headers)(scope, receive, send_safely)
        is_upload = scope["method"] == "POST" and self._find_scope(scope) == "upload"  # uploads count their bytes
        return await self.app(scope, receive if is_upload else _limit_body(receive), send_safely)

    def _refuse(self, scope: Connection) -> tuple[int, str] | None:
        request = HTTPConnection(scope)
        given = request.headers.getlist("host")
        if len(given) != 1 or split_host(given[0]) not in [host.lower() for host in self.hosts]:
            return 421, "this server has another name; `assay serve --name NAME` adds one"
        if _is_embedded(request):
            return 403, "refused: another site asks for this"
        needed = self._find_scope(scope)
        scope[OPEN_KEY] = needed == "open" and not self.is_open
        is_change = scope["method"] not in ("GET", "HEAD", "OPTIONS")
        if is_change and not self._is_own_origin(request):
            return 403, "refused: the request comes from another site"
        size = request.headers.get("content-length", "0")  # a body without a length is counted as it arrives
        is_large = not size.isdecimal() or len(size) > 18 or int(size) > _LARGEST_BODY
        if needed != "upload" and is_change and is_large:
            return 413, f"refused: more than {_LARGEST_BODY} bytes"
        if needed == "open" or (needed == "read" and self.is_open and not is_change):
            return None
        return self._check_token(request, needed)

    def _find_scope(self, scope: Connection) -> Scope:
        for route in self.routes:
            if route.matches(scope)[0] is Match.FULL:
                found: Scope = route.scope_needed  # type: ignore[attr-defined]
                return found
        if scope["method"] not in ("GET", "HEAD"):
            return "write"
        return "open" if scope["path"].startswith(FILES) else "read"  # only readers may see which paths are missing

    def _is_own_origin(self, request: HTTPConnection) -> bool:
        """Return whether no other site made the request. Browsers send Origin except with GET; programs never do."""
        site = request.headers.get("sec-fetch-site")
        if site is not None and site not in ("same-origin", "none"):
            return False
        origin = request.headers.get("origin")
        try:
            return origin is None or urlsplit(origin).netloc == request.headers.get("host")
        except ValueError:
            return False

    def _check_token(self, request: HTTPConnection, needed: Scope) -> tuple[int, str] | None:
        """Return the refusal, or None. A valid token is accepted even from an address that sent too many wrong ones."""
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        cookie = request.cookies.get(COOKIE, "")
        if kind.lower() == "bearer" and given:
            found = [token for token in self.tokens if token.is_same(given.strip())]
            if found:
                request.scope[TOKEN_KEY] = found[0]
                return None if needed in ALLOWS[found[0].scope] else (403, f"this token does not allow you to {needed}")
            address = request.client.host if request.client else ""
            if self.wrong.is_reached(address):
                return 429, "too many wrong tokens; try again in a minute"
            self.wrong.note(address)
            return 401, "wrong token"
        if needed == "read" and cookie and request.scope["method"] in ("GET", "HEAD"):
            cookies = [token.build_cookie().encode() for token in self.tokens if "read" in ALLOWS[token.scope]]
            if any(hmac.compare_digest(each, cookie.encode("utf-8", "surrogateescape")) for each in cookies):
                return None
        return 401, "this needs the token that `assay serve` printed"


def _is_embedded(request: HTTPConnection) -> bool:
    """Return whether a page of another site or port embeds the answer as a picture, a script, a frame or a stream;
    following a link is allowed."""
    site, mode, dest = (request.headers.get(f"sec-fetch-{name}", "none") for name in ("site", "mode", "dest"))
    is_link = (mode, dest) == ("navigate", "document") and request.scope["method"] in ("GET", "HEAD")
    return site not in ("same-origin", "none") and not is_link


def _limit_body(receive: Receive) -> Receive:
    size = 0

    async def receive_some() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > _LARGEST_BODY:
            raise HTTPException(413, f"refused: more than {_LARGEST_BODY} bytes")
        return message

    return receive_some
