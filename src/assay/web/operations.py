"""How an address of the JSON interface is described: its operation stands beside its route (`routes.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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
    """All of these, and perhaps more."""
    return {"type": "object", "properties": dict(fields), "required": list(fields)}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


class Param(NamedTuple):
    name: str
    text: str
    schema: Schema = TEXT
    needed: bool = False


class Operation(NamedTuple):
    name: str
    summary: str
    answer: Schema  # of 200, and of `more`
    params: Sequence[Param] = ()
    refusals: Sequence[int] = (400, 404)
    more: Sequence[int] = ()  # other good answers, of the same shape
    body: Mapping[str, Any] | None = None
    schemas: Mapping[str, Schema] = {}  # those of its own that it refers to
