"""Compares two sequences of operations: since all operations before the first difference are equal, none is paired."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Literal

from assay.system.fast_dataclasses import dataclass

Call = Mapping[str, Any]  # one line of `calls.jsonl`
Kind = Literal["op", "argument", "input", "result", "random"]
_MOST = 60  # the most characters of an argument in a message
_NEARER = 4.0  # a side is right if it is so many times as near to float64 as the other side


@dataclass(frozen=True, slots=True)
class Parting:
    """The first call that differs. `a`, `b`: the call of each side; None if the side has no further call."""

    kind: Kind
    a: Call | None
    b: Call | None
    text: str

    @property
    def call(self) -> Call:
        return self.b or self.a or {}

    @property
    def module(self) -> str:
        return str(self.call.get("module") or "")


def find_parting(a: Sequence[Call], b: Sequence[Call]) -> Parting | None:
    """Find the first call that differs; None if all calls are equal."""
    garbage: set[tuple[str, str]] = set()  # pairs of hashes of memory that was not yet written
    for mine, theirs in zip_longest(a, b):
        if found := _compare(mine, theirs, garbage):
            return found
    return None


def _compare(a: Call | None, b: Call | None, garbage: set[tuple[str, str]]) -> Parting | None:
    if a is None or b is None or a["op"] != b["op"]:
        names = [f"{each['op']}" if each else "nothing more" for each in (a, b)]
        return Parting("op", a, b, f"A computes {names[0]}, B {names[1]}, after operations that are equal")
    pairs = list(zip(walk_tensors(a["result"]), walk_tensors(b["result"]), strict=False))
    if "empty" in a["op"].split(".")[1]:
        garbage.update((mine["hash"], theirs["hash"]) for mine, theirs in pairs)
        a, b = {**a, "result": []}, {**b, "result": []}
    plain, tensors = [*_list_unequal(a, b, garbage, False)], [*_list_unequal(a, b, garbage, True)]
    if plain:
        return Parting("argument", a, b, f"{a['op']} gets {'; '.join(plain)}")
    if tensors:
        text = f"{a['op']} gets {'; '.join(tensors)}: it was made elsewhere, all operations before this one are equal"
        return Parting("input", a, b, text)
    if _build_key(a["result"]) == _build_key(b["result"]):
        return None
    if a["random"]:
        return Parting("random", a, b, f"{a['op']} draws other random numbers")
    return Parting("result", a, b, f"{a['op']} gets the same and computes something else")


def _list_unequal(a: Call, b: Call, garbage: set[tuple[str, str]], is_tensor: bool) -> Iterator[str]:
    """Yield tensors (`is_tensor`) or other arguments that differ, except garbage that an operation overwrites."""
    overwrites = a["op"].split(".")[1].endswith("_")
    mine, theirs = (dict(zip(each["names"], each["args"], strict=False)) | each["kwargs"] for each in (a, b))
    for name in dict.fromkeys((*mine, *theirs)):
        pair = mine.get(name), theirs.get(name)
        if overwrites and is_tensor and tuple(each["hash"] for each in walk_tensors(list(pair))) in garbage:
            continue
        if any(map(has_tensor, pair)) != is_tensor or _build_key(pair[0]) == _build_key(pair[1]):
            continue
        shapes = [each.get("shape") if isinstance(each, dict) else None for each in pair]
        own = f" (shape {shapes[0]} in A, {shapes[1]} in B)" if shapes[0] != shapes[1] else ""
        yield f"another {name}{own}" if is_tensor else f"{name} {_show(pair[0])} in A, {_show(pair[1])} in B"


def _show(value: Any) -> str:
    text = str(next(iter(value.values()))) if isinstance(value, dict) else json.dumps(value)
    return text if len(text) <= _MOST else f"{text[:_MOST]}…"


def has_tensor(value: Any) -> bool:
    return any(True for _ in walk_tensors(value))


def walk_tensors(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the facts of each tensor in arguments or results."""
    if isinstance(value, dict):
        if "hash" in value:
            yield value
        else:
            for each in value.values():
                yield from walk_tensors(each)
    elif isinstance(value, list):
        for each in value:
            yield from walk_tensors(each)


def find_unknown(value: Any) -> str | None:
    """Return the type of an argument that could not be stored; None if all were stored."""
    if isinstance(value, dict) and "unknown" in value:
        return str(value["unknown"])
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next(filter(None, map(find_unknown, inner)), None)


def _build_key(value: Any) -> str:
    """Build a key that is equal for equal bits, on any device and at any offset."""
    if isinstance(value, list):
        return f"[{','.join(map(_build_key, value))}]"
    if isinstance(value, dict) and "hash" in value:
        return f"{value['dtype']}{value['shape']}{value['hash']}"
    return "device" if isinstance(value, dict) and "device" in value else json.dumps(value)


@dataclass(frozen=True, slots=True)
class Opinion:
    """Relative distances: between the recorded results, of each side from float64, and between both in float64."""

    difference: float
    error_a: float
    error_b: float
    exact: float

    @property
    def text(self) -> str:
        if self.exact > self.difference / 2:
            return "float64 differs as well: each side is right about what it was asked to compute"
        for side, near, far in (("A", self.error_a, self.error_b), ("B", self.error_b, self.error_a)):
            if near * _NEARER < far:
                return f"{side} is right: it is {_render(near)} away from float64, the other side {_render(far)}"
        return f"rounding: both are as far from float64, A {_render(self.error_a)}, B {_render(self.error_b)}"


def _render(value: float) -> str:
    return f"{value:.2g}"
