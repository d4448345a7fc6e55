"""Routes and answers. A route is the handler of a path, the token scope that the path needs, and its description in
the JSON interface. An answer can contain every value of a record, including NaN and lone surrogates.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote as quote_bytes

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Scope = Literal["open", "read", "write", "upload"]
"""`open`: anybody (the style sheet, the login page). What changes something is never `read`, and never a GET."""

Handler = Callable[[Request], Response] | Callable[[Request], Awaitable[Response]]
"""An ordinary function is called in a thread of its own; one that waits for the body is `async`."""

H = TypeVar("H", bound=Handler)
Schema = Mapping[str, Any]
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
OBJECT: Schema = {"type": "object"}
BINARY: Schema = {"type": "string", "format": "binary"}


def many(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def record(**fields: Schema) -> Schema:
    """Return the schema of an object that has all of `fields`, and possibly others."""
    return {"type": "object", "properties": dict(fields), "required": list(fields)}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


class UrlParam(NamedTuple):
    name: str
    text: str
    schema: Schema = TEXT
    needed: bool = False


class Operation(NamedTuple):
    name: str
    summary: str
    answer: Schema  # schema of answers with status 200 or a status in `more`
    params: Sequence[UrlParam] = ()
    refusals: Sequence[int] = (400, 404)
    more: Sequence[int] = ()  # other statuses of success, with an answer of the same shape
    body: Mapping[str, Any] | None = None
    schemas: Mapping[str, Schema] = {}  # schemas that only this operation refers to


class RouteEntry(NamedTuple):
    path: str
    handler: Handler
    methods: tuple[str, ...] = ("GET",)
    scope: Scope = "read"
    operation: Operation | None = None  # only for the JSON interface, whose paths begin with /api/


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
    return RouteEntry(path, handler, ("POST",), scope, operation)


class Routes(list[RouteEntry]):
    """The routes of a module: a decorator above each handler adds one."""

    def page(self, path: str, scope: Scope = "read", method: str = "GET") -> Callable[[H], H]:
        def add(handler: H) -> H:
            self.append(RouteEntry(path, handler, (method,), scope))
            return handler

        return add

    def json(
        self, path: str, name: str, answer: Schema, params: Sequence[UrlParam] = (), *, method: str = "GET", **more: Any
    ) -> Callable[[H], H]:
        """Return a decorator that adds an operation of the JSON interface; the handler's docstring is its summary."""

        def add(handler: H) -> H:
            operation = Operation(name, " ".join((handler.__doc__ or "").split()), answer, params, **more)
            self.append(RouteEntry(path, handler, (method,), "read" if method == "GET" else "write", operation))
            return handler

        return add


def build_route(entry: RouteEntry) -> Route:
    route = Route(entry.path, entry.handler, methods=list(entry.methods))
    route.scope_needed = entry.scope  # type: ignore[attr-defined]  # read by `security.Guard`
    return route


# ---------------------------------------------------------------- answers


def encode_json(value: Any) -> bytes:
    """Encode a value as JSON: an unknown type as its text, and a number that is not finite as null."""
    try:
        return _dump(value)
    except ValueError:
        return _dump(_drop_infinite(value))


def _dump(value: Any) -> bytes:
    return json.dumps(value, default=str, allow_nan=False, separators=(",", ":")).encode("ascii")


def _drop_infinite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _drop_infinite(each) for name, each in value.items()}
    return [_drop_infinite(each) for each in value] if isinstance(value, list | tuple) else value


def encode_text(text: str) -> bytes:
    """Encode a text as UTF-8. A lone surrogate, which represents a byte that is not UTF-8, becomes `\\ud800`."""
    return text.encode("utf-8", "backslashreplace")


def quote(text: str, safe: str = "") -> str:
    """Quote a part of a URL, also the name of a file that is not UTF-8."""
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = encode_text(text)
    return quote_bytes(data, safe=safe)


def send(value: Any, status: int = 200) -> Response:
    return Response(encode_json(value), status, {"cache-control": "no-store"}, "application/json")
