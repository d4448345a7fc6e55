"""The ASGI application: routes, static files, errors as pages, and the page that asks for the token."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from assay.errors import AssayError, NotFoundError, UsageError
from assay.web import actions, assets, live
from assay.web import json_routes as api
from assay.web.pages import compare, profiles, run, studies, study
from assay.web.routes import RouteEntry, Routes, build_route, send
from assay.web.security import ALLOWS, COOKIE, TOKEN_KEY, Guard
from assay.web.site import FOLDER, Site, get_site

MODULES = (assets, actions, live, studies, study, run, compare, api, profiles)
_SMALLEST_PACKED = 1024
ROUTES = Routes()


def list_entries(site: Site) -> list[RouteEntry]:
    own: list[RouteEntry] = [entry for module in MODULES for entry in module.ROUTES]
    return ROUTES + own + [entry for _, each in site.pages for entry in each.routes]


def build_app(site: Site) -> ASGIApp:
    entries = list_entries(site)
    routes = list(map(build_route, entries))
    mounts = [Mount(f"/static/{name}", StaticFiles(directory=each.static)) for name, each in site.pages if each.static]
    mounts.append(Mount("/static", StaticFiles(directory=os.path.join(FOLDER, "static"))))
    if os.path.isdir(assets.VENDOR):
        mounts.append(Mount("/vendor", StaticFiles(directory=assets.VENDOR)))

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        site.snapshots.start()
        yield
        site.snapshots.close()

    app = Starlette(
        routes=[*routes, *mounts],
        lifespan=lifespan,
        exception_handlers=dict.fromkeys((HTTPException, AssayError, OSError, Exception), _show_error),
    )
    app.state.site = site
    app.state.entries = entries
    app.state.alarms = studies.Alarms(site.snapshots, site.pages)
    packed = GZipMiddleware(app, minimum_size=_SMALLEST_PACKED, compresslevel=1)
    return Guard(packed, routes, tokens=site.tokens, hosts=site.hosts, is_open=site.is_open)


def _show_error(request: Request, error: Exception) -> Response:
    """Return a page with the error and a hint what to do next; paths below /api/ return JSON."""
    status, message, hint = 500, "Assay could not make this page", ""
    if isinstance(error, HTTPException):
        status, message = error.status_code, error.detail
    elif isinstance(error, AssayError):
        status = 404 if isinstance(error, NotFoundError) else 400 if isinstance(error, UsageError) else 503
        message, hint = error.message, error.hint or ""
    elif isinstance(error, OSError) and error.filename is not None:  # the file was removed or cannot be read
        status = 404 if isinstance(error, FileNotFoundError | NotADirectoryError) else 503
        message, hint = f"{error.filename} cannot be read: {error.strerror}", "load the page again"
    else:
        logging.getLogger("assay.web").error("%s %s", request.method, request.url.path, exc_info=error)
        hint = "the terminal where `assay serve` runs shows the details"
    if request.url.path.startswith("/api/"):
        return send({"error": message, "hint": hint}, status)
    headers = getattr(error, "headers", None)
    response = get_site(request).render(request, "error.html", status=status, code=status, message=message, hint=hint)
    response.headers.update(headers or {})
    return response


@ROUTES.page("/login", "open")
def show_login(request: Request) -> Response:
    return get_site(request).render(request, "login.html")


@ROUTES.page("/login", method="POST")
def check_login(request: Request) -> Response:
    """Return the scopes of the token that the guard has checked. The browser keeps the token for actions; if reading
    needs a token too, a cookie allows reading."""
    site, token = get_site(request), request.scope[TOKEN_KEY]
    response = send({"scopes": sorted(ALLOWS[token.scope])})
    if not site.is_open and "read" in ALLOWS[token.scope]:
        is_https = request.url.scheme == "https"
        response.set_cookie(COOKIE, token.build_cookie(), httponly=True, samesite="strict", path="/", secure=is_https)
    return response
