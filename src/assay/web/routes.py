"""What answers an address, and which scope a caller needs for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from assay.web.operations import Operation

Scope = Literal["open", "read", "write", "upload"]
"""`open`: anybody (the style sheet, the login page). What changes something is never `read`, and never a GET."""

Handler = Callable[[Request], Response] | Callable[[Request], Awaitable[Response]]


class RouteEntry(NamedTuple):
    path: str
    handler: Handler
    methods: tuple[str, ...] = ("GET",)
    scope: Scope = "read"
    operation: Operation | None = None  # of the JSON interface, whose paths begin with /api/


def get(
    path: str, handler: Handler, operation: Operation | None = None, *, scope: Literal["open", "read"] = "read"
) -> RouteEntry:
    return RouteEntry(path, handler, ("GET",), scope, operation)


def post(
    path: str,
    handler: Handler,
    operation: Operation | None = None,
    *,
    scope: Literal["open", "write", "upload"] = "write",
) -> RouteEntry:
    """An ordinary function is called in a thread of its own; one that waits for the body is `async`."""
    return RouteEntry(path, handler, ("POST",), scope, operation)


def build_route(entry: RouteEntry) -> Route:
    route = Route(entry.path, entry.handler, methods=list(entry.methods))
    route.scope_needed = entry.scope  # type: ignore[attr-defined]  # read by `security.Guard`
    return route
