"""The options of `assay trace run`, and `trace:` of a study file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from assay.config.fields import Fields
from assay.config.source import Item, Node
from assay.errors import ConfigError, UsageError
from assay.system.fast_dataclasses import dataclass
from assay.system.files import read_text
from assay.trace.inside.placement import NOTATION, is_placement

LEVELS = ("step", "module", "op")
ENV_TRACE = "ASSAY_TRACE"
_MOST_STEPS = 10_000
_KEYS = ("steps", "level", "in", "keep", "inside", "placement")


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """What to record. `only`, `keep`: patterns of module paths; `placement`: patterns, and how ranks share matches."""

    steps: tuple[int, ...] = (1,)
    level: str = "module"
    only: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    inside: bool = False
    placement: tuple[tuple[str, str], ...] = ()

    def render(self, **more: Any) -> str:
        """Return the value of the environment variable that the traced program reads."""
        facts = {"steps": self.steps, "level": self.level, "in": self.only, "keep": self.keep, "inside": self.inside}
        more |= {"placement": self.placement} if self.placement else {}
        return json.dumps({**facts, **more}, separators=(",", ":"))


def parse_steps(text: str, flag: str) -> tuple[int, ...]:
    """Parse steps: `1,2,100` or `1-5,100`, counted from 1."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last or last - first > _MOST_STEPS:
            hint = f"write for example {flag} 1,2,100 or {flag} 1-5"
            raise UsageError(f"{flag} {text!r} is not a list of steps", hint)
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def read_trace(fields: Fields, top: Mapping[str, Item], _sweeps: object) -> TraceSettings | None:
    """Read `trace: {steps: [1, 10], level: module, placement: {'*': S(0), 'layers.*.up:weight': S(0)}}`."""
    node = top["trace"].node
    entries = fields.mapping(node, "trace", _KEYS)
    if node.kind != "mapping":
        return None
    found: dict[str, Any] = {}
    if "steps" in entries:
        found["steps"] = _read_steps(fields, entries["steps"].node)
    if "level" in entries:
        found["level"] = fields.one_of(entries["level"].node, "trace.level", LEVELS) or "module"
    for key, name in (("in", "only"), ("keep", "keep")):
        if key in entries:
            found[name] = fields.strings(entries[key].node, f"trace.{key}")
    if "placement" in entries:
        placements = []
        for entry in fields.open_mapping(entries["placement"].node, "trace.placement", "patterns and placements"):
            text = fields.string(entry.node, f"trace.placement.{entry.key}") or "R"
            if not is_placement(text):
                fields.refuse(entry.node, f"trace.placement.{entry.key}", "a placement", NOTATION)
            placements.append((entry.key, text))
        found["placement"] = tuple(placements)
    if "inside" in entries:
        found["inside"] = bool(fields.boolean(entries["inside"].node, "trace.inside"))
    return TraceSettings(**found)


def load_placement(path: str, _flag: str) -> tuple[tuple[str, str], ...]:
    """Load lines `PATTERN = PLACEMENT` of a file."""
    return tuple(load_pairs(path, lambda _, text: "" if is_placement(text) else f"{text!r} is not {NOTATION}"))


def load_pairs(path: str, find_problem: Callable[[str, str], str]) -> list[tuple[str, str]]:
    """Load lines `LEFT = RIGHT` of a file; raise ConfigError with the problems of all lines."""
    try:
        lines = read_text(path, "strict").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None
    pairs, problems = list[tuple[str, str]](), list[str]()
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0]
        if not text.strip():
            continue
        left, equals, right = (part.strip() for part in text.partition("="))
        if problem := find_problem(left, right) if equals else "is not NAME = NAME":
            problems.append(f"{path}:{number}:1: {problem}")
        pairs.append((left, right))
    if problems:
        raise ConfigError(problems)
    return pairs


def _read_steps(fields: Fields, node: Node) -> tuple[int, ...]:
    nodes = node.elements() if node.kind == "sequence" else [node]
    numbers = [fields.integer(each, "trace.steps", 1) for each in nodes]
    if not nodes:
        fields.problems.add("is an empty list", "trace.steps", node.position, "as in steps: [1, 10]")
    return tuple(sorted({number for number in numbers if number}))
