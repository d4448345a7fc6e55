"""The page that asks for the token. The browser keeps it for actions; if reading needs it too, a cookie allows that."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from assay.web.answers import send
from assay.web.routes import Routes
from assay.web.security import ALLOWS, COOKIE, TOKEN_KEY
from assay.web.site import get_site

ROUTES = Routes()


@ROUTES.page("/login", "open")
def show(request: Request) -> Response:
    return get_site(request).render(request, "login.html")


@ROUTES.page("/login", method="POST")
def check(request: Request) -> Response:
    """Return the scopes of the token, which the guard has checked, and set the cookie that allows reading."""
    site, token = get_site(request), request.scope[TOKEN_KEY]
    response = send({"scopes": sorted(ALLOWS[token.scope])})
    if not site.is_open and "read" in ALLOWS[token.scope]:
        is_https = request.url.scheme == "https"
        response.set_cookie(COOKIE, token.build_cookie(), httponly=True, samesite="strict", path="/", secure=is_https)
    return response
