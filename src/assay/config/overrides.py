"""Parses `NAME=VALUE` words of a command line, overrides of parameters and settings (`--set`), to nodes like a file's.

A value has the types that it would have in the file. Commas outside of quotes and brackets make a list. A value that
begins with a quote or a bracket is YAML; others are taken literally, so `*.pt`, `a: b` and `#1` need no quotes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from shlex import quote
from typing import Any

from assay.config.source import TAG, Builder, Flavour, Item, Node, Problems, Word, build_error, compose, loader_of
from assay.errors import ConfigError, suggest
from assay.system.fast_dataclasses import dataclass
from assay.values.run import canonical
from assay.values.secrets import hide_assignment
from assay.values.study import Axis, Choices, Params, Position, Sweep, UnknownParameter

SET_FLAG = "--set"
_OPENING, _CLOSING, _QUOTES = "[{", "]}", "'\""
_MOST_NAMED = 20
_QUOTES_HINT = "a text that begins with a quote or a bracket, or holds a comma, goes into quotes: name='\"a, b\"'"


def parse_assignments(texts: Iterable[str], flavour: Flavour, problems: Problems, flag: str = "") -> dict[str, Item]:
    """Return name → value. An assignment with a problem is left out; messages show `flag` before it."""
    found: dict[str, Item] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        shown = hide_assignment(text)
        word = Word(f"{flag} {shown}" if flag else shown)
        start = len(word) - len(shown) + len(name) + 1
        position, name = Position(word, 0, 1), name.strip()
        if not equals or not name:
            hint = "write NAME=VALUE, as in lr=0.1; the file comes first" if not flag else "as in --set timeout=2h"
            problems.add("is not NAME=VALUE", "", position, hint)
        elif name in found:
            problems.add(f"{name} is given twice", "", position, f"for several values write {name}=A,B")
        elif re.search("[\ud800-\udfff]", text):
            problems.add("is not UTF-8", "", position)
        elif meant := translate_hydra(value):
            hint = f"write {name}={quote(meant)}; a text that looks like this goes into quotes inside of quotes"
            problems.add("is Hydra's notation, which Assay does not read", "", position, hint)
        elif (node := _parse_value(value, start, word, flavour, problems)) is not None:
            found[name] = Item(name, position, node)
    return found


def translate_hydra(text: str) -> str | None:
    """Return the equivalent of Hydra's `choice(…)`, `range(…)` or `interval(…)`; None for other texts."""
    if (found := _HYDRA.fullmatch(text)) is None:
        return None
    values = found[2].strip()
    meant = {"choice": f"[{values}]", "range": f"{{range: [{values}]}}", "interval": f"{{uniform: [{values}]}}"}
    return meant[found[1]]


_HYDRA = re.compile(r"\s*(choice|range|interval)\((.*)\)\s*", re.DOTALL)


def _parse_value(value: str, start: int, word: Word, flavour: Flavour, problems: Problems) -> Node | None:
    """Parse a value; `start` is its column, from 0."""
    import yaml

    parts = _split(value)
    try:
        raws = [_compose_part(part, start + at, word, flavour, is_only=len(parts) == 1) for at, part in parts]
        several = yaml.SequenceNode(f"{TAG}seq", raws, raws[0].start_mark, raws[-1].end_mark)
        return Builder(word, flavour).build(raws[0] if len(raws) == 1 else several)
    except ConfigError as error:
        for problem in error.problems:
            place = getattr(problem, "position", None)
            column = place.column if place is not None and place.line < 2 else start + 1
            problems.add(getattr(problem, "message", str(problem)), "", Position(word, 0, column), _QUOTES_HINT)
        return None


def _split(value: str) -> list[tuple[int, str]]:
    """Return the parts between commas outside of quotes and brackets, each with its index."""
    parts: list[tuple[int, str]] = []
    begin, depth, quote, before = 0, 0, "", ","
    for index, character in enumerate(value):
        if quote:
            is_escaped = quote == '"' and before == "\\"
            quote = "" if character == quote and not is_escaped else quote
            before = "" if is_escaped else character
            continue
        if character in _QUOTES and before in ("", ",", ":", *_OPENING):  # elsewhere a quote is an apostrophe
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == "," and depth <= 0:
            parts.append((begin, value[begin:index]))
            begin = index + 1
        before = before if character.isspace() else character
    return [*parts, (begin, value[begin:])]


def _compose_part(part: str, start: int, word: Word, flavour: Flavour, *, is_only: bool) -> Any:
    """Compose one value as a node of the YAML library; `name=` is the empty text."""
    import yaml

    bare = part.strip()
    start += len(part) - len(part.lstrip())
    mark = yaml.Mark(word, start, 0, start, None, 0)
    if not bare and not is_only:
        raise build_error("a value is missing", Position(word, 0, start + 1))
    if bare and bare[0] in (*_OPENING, *_QUOTES):
        # spaces before the text make the columns of messages correct
        documents = compose(" " * start + bare, word, flavour)
        if len(documents) != 1:
            raise build_error("this is not one value", Position(word, 0, start + 1))
        return documents[0]
    tag = loader_of(flavour)("").resolve(yaml.ScalarNode, bare, (True, False)) if bare else f"{TAG}str"
    known = tag in (f"{TAG}{kind}" for kind in ("null", "bool", "int", "float", "str", "timestamp"))
    return yaml.ScalarNode(tag if known else f"{TAG}str", bare, mark, mark)


@dataclass(frozen=True, slots=True)
class Overrides:
    """The parameters that the command line sets."""

    axes: Mapping[str, Axis]
    everywhere: Collection[str] = ()  # parameters that are set even in sweeps without them
    base: Params | None = None  # the parameters of the run to repeat; None: the file's sweeps

    def apply(self, axes: Mapping[str, Axis]) -> dict[str, Axis]:
        """Return the axes of one sweep with the overrides, in the sweep's order."""
        added = {name: axis for name, axis in self.axes.items() if name in axes or name in self.everywhere}
        return {**axes, **added}

    def build_base(self) -> dict[str, Axis]:
        """Return the single sweep of a run that is repeated with changes."""
        base = {name: Choices((value,)) for name, value in (self.base or {}).items()}
        return {**base, **self.axes}


def refuse_unknown(
    entries: dict[str, Item], known: Collection[str], settings: Collection[str], problems: Problems
) -> None:
    """Report every override that is not one of the study's parameters, and remove it."""
    for name in [name for name in entries if name not in known]:
        entry = entries.pop(name)
        guess = suggest(name, known) or ""
        names = list(known)
        listed = ", ".join(names[:_MOST_NAMED]) + (" …" if len(names) > _MOST_NAMED else "")
        hint = f"{guess}\n    the parameters are {listed}".strip() if names else "the file has no parameters"
        if name in settings:
            hint = f"to change this setting: {SET_FLAG} {entry.position.file}"
        problem = UnknownParameter(f"unknown parameter {name!r}", "", entry.position, hint, name, tuple(known))
        problems.found.append(problem)


def find_name_params(plain: Sequence[Sweep], sweeps: Sequence[Sweep], given: Mapping[str, Axis]) -> tuple[str, ...]:
    """Return the parameters for names: those that differ in the file, and those whose values are not the file's."""
    order = list(dict.fromkeys(name for sweep in sweeps for name in sweep.axes))
    found = {name: _find_values(name, plain) for name in order}
    varying = {name for name, values in found.items() if values is None or len(values) > 1}
    named = {name for sweep in plain for name in sweep.axes}
    changed = {name for name, axis in given.items() if found.get(name) != _find_values(name, [Sweep({name: axis})])}
    return tuple(name for name in order if name in changed or (name in varying and name in named))


def _find_values(name: str, sweeps: Sequence[Sweep]) -> set[str] | None:
    """Return the values of a parameter as texts; None if it is random, or missing somewhere."""
    axes = [sweep.axes.get(name) for sweep in sweeps]
    if not all(isinstance(axis, Choices) for axis in axes):
        return None
    return {canonical(value) for axis in axes if isinstance(axis, Choices) for value in axis.values}


def apply_settings(
    document: Node,
    texts: Iterable[str],
    possible: Collection[str],
    refused: Collection[str],
    params: Collection[str],
    problems: Problems,
) -> Node:
    """Return the document with these keys set; a dotted name is a key inside of a key, and null removes a key.
    `refused`: existing keys that cannot be set; `params`: the study's parameters."""
    for name, entry in parse_assignments(texts, "native", problems, SET_FLAG).items():
        top = name.partition(".")[0]
        if top not in possible:
            guess = None if top in refused else suggest(top, possible)
            hint = guess or f"possible: {', '.join(possible)}"
            if top in params or name in params:
                word = entry.position.file.removeprefix(f"{SET_FLAG} ")
                hint = f"{name} is a parameter: write {word} without {SET_FLAG}"
            problems.add(f"{top!r} cannot be set here", "", entry.position, hint)
        elif not all(name.split(".")):
            problems.add(f"{name!r} is not the name of a key", "", entry.position, "as in --set resources.gpus=2")
        else:
            document = _set(document, name.split("."), entry)
    return document


def _set(node: Node, path: Sequence[str], entry: Item) -> Node:
    first, *rest = path
    if not rest:
        return node.with_entry(first, entry.position, None if entry.node.is_null else entry.node)
    inner = node.find(first)
    if inner is None or inner.kind != "mapping":
        import yaml

        column = entry.position.column - 1
        mark = yaml.Mark(entry.position.file, column, 0, column, None, 0)
        inner = Node(yaml.MappingNode(f"{TAG}map", [], mark, mark), Word(entry.position.file), "native")
    return node.with_entry(first, entry.position, _set(inner, rest, entry))
