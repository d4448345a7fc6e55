"""The name of a benchmark of another tool's suite, and the errors by which it ends without a result."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from assay.system.fast_dataclasses import dataclass


class NoSuchBenchmarkError(Exception):
    """No benchmark has the given name; the message lists names that exist."""


class SkippedError(Exception):
    """A benchmark declares that it does not apply here, so that it has no result and has not failed."""


@dataclass(frozen=True, slots=True)
class SuiteBenchmark:
    """One benchmark of a suite. `name` is its name with parameters in the other tool's results."""

    text: str  # PATH::NAME, by which the benchmark is run
    name: str
    timeout_s: float | None = None


def is_suite(text: str) -> bool:
    """Return whether a text is a path, which a dotted name is not. `module.Class.filter:REGEX` may contain anything."""
    path, colons, _ = text.partition("::")
    is_path = os.sep in path or path.endswith((".py", ".json")) or "." not in path.removeprefix(os.curdir)
    return ".filter:" not in text and (bool(colons) or (is_path and ":" not in path))


_GENERATOR_FLAGS = 0x20 | 0x80 | 0x200  # flags of code: a generator, a coroutine, both


def check_runs(function: Any) -> None:
    """Refuse a coroutine or generator function: a call only creates an object, and would be timed without its body."""
    if getattr(getattr(function, "__code__", None), "co_flags", 0) & _GENERATOR_FLAGS:
        raise TypeError(f"{function.__qualname__} is a coroutine or a generator: a call of it runs nothing")


def name_values(values: Iterable[object]) -> list[str]:
    """Name values as asv's results do: without addresses, which differ in every process; equal names are numbered."""
    texts = [re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value)) for value in values]
    return [f"{text} ({texts[:n].count(text)})" if texts.count(text) > 1 else text for n, text in enumerate(texts)]
