"""A benchmark of another tool's suite: how it is named, and how it may end without a result."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from assay.system.fast_dataclasses import dataclass, field


class NoSuchBenchmarkError(Exception):
    """The name does not exist; the message lists what does."""


class SkippedError(Exception):
    """A benchmark that says itself that it does not apply here: it has neither a result nor failed."""


@dataclass(frozen=True, slots=True)
class SuiteBenchmark:
    """One benchmark of a suite, with its parameters. `name` is the other tool's own, as it is in its results."""

    text: str  # PATH::NAME, by which it is run
    name: str
    timeout_s: float | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)


def is_suite(text: str) -> bool:
    """Whether a text is a path, which a dotted name is not. `module.Class.filter:REGEX` may contain anything."""
    path, colons, _ = text.partition("::")
    is_path = os.sep in path or path.endswith((".py", ".json")) or "." not in path.removeprefix(os.curdir)
    return ".filter:" not in text and (bool(colons) or (is_path and ":" not in path))


def render_parameters(values: Iterable[object]) -> str:
    """`(10, 'f4')`, as asv has them in its results; without addresses, which differ in every process. Empty: none."""
    texts = [re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value)) for value in values]
    return f"({', '.join(texts)})" if texts else ""
