"""YAML with positions: parses a text to a tree of nodes with positions.

There are two flavours. `native`: `1e-4` is a number, only `true` and `false` are booleans, dates stay text, and `007`
stays text because a script would otherwise get `7`. `originals`: YAML 1.1 exactly as PyYAML reads it, because the users
of other tools rely on it (`1e-4` is text, `no` is false).

Aliases share one node; a document that would expand to an unreasonable size is refused.
"""

from __future__ import annotations

import os
import re
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Literal

from assay.errors import ConfigError, UsageError, suggest
from assay.system.fast_dataclasses import NamedTuple, dataclass, field
from assay.values.study import Position, Problem, Value

Flavour = Literal["native", "originals"]
HowTo = Callable[[], str]  # called only if the text is printed
Kind = Literal["mapping", "sequence", "scalar"]

MAX_UNFOLDED = 2_000_000  # values in a document after aliases are expanded
MAX_DEPTH = 100

TAG = "tag:yaml.org,2002:"
_KINDS: dict[str, Kind] = {"MappingNode": "mapping", "SequenceNode": "sequence", "ScalarNode": "scalar"}
_QUOTES_HINT = "put the whole value into quotes if it begins with one of { [ * & ! % @ ` or holds ': ' or ' #'"
_EXTRA_BREAK = re.compile("[\x85\u2028\u2029]")
_NEVER_CLOSED = "a quote or bracket is opened and never closed"
_NUMBER = r"[-+]?(?:0|[1-9][0-9]*)"
_EXPONENT = r"(?:[eE][-+]?[0-9]+)?"
_FLOAT = (
    rf"^(?:{_NUMBER}(?:\.[0-9]*)?{_EXPONENT}|[-+]?\.[0-9]+{_EXPONENT}"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_NATIVE_RULES: tuple[tuple[str, str, Iterable[str]], ...] = (
    # type, pattern and possible first characters; the patterns are those of YAML 1.2, without leading zeros
    ("null", r"^(?:~|null|Null|NULL|)$", ("~", "n", "N", "")),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", rf"^(?:{_NUMBER}|0o[0-7]+|0x[0-9a-fA-F]+)$", "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("merge", r"^<<$", "<"),
)


class Word(str):
    """A word of the command line in place of a file's name: its positions have columns but no lines."""

    __slots__ = ()


class Item(NamedTuple):
    """One `key: value` of a mapping; the position is the key's."""

    key: str
    position: Position
    node: Node


@dataclass(slots=True)
class Problems:
    """Collects the problems of a file, so that all are reported at once."""

    found: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def add(self, message: str, key: str = "", position: Position | None = None, hint: str | None = None) -> None:
        problem = Problem(message, key, position, hint)
        if problem not in self.found:
            self.found.append(problem)

    def extend(self, error: ConfigError) -> None:
        """Add the problems of an error that was raised by a called function."""
        self.found.extend(problem for problem in error.problems if isinstance(problem, Problem))

    def raise_if_any(self) -> None:
        if self.found:
            start = Position("", 0, 0)
            places = [(each.position or start, each) for each in self.found]
            raise ConfigError([each for _, each in sorted(places, key=lambda place: (place[0].line, place[0].column))])


class Node:
    """A value in a file. `text` is a scalar as written; `value` is plain Python with text keys."""

    __slots__ = ("_elements", "_entries", "_file", "_flavour", "_raw", "_value", "duplicates", "kind")

    mapping_name = "a mapping"  # the word for a mapping in messages

    def __init__(self, raw: Any, file: str, flavour: Flavour) -> None:
        self._raw = raw
        self._file = file
        self._flavour: Flavour = flavour
        self.kind: Kind = _KINDS[type(raw).__name__]
        self.duplicates: list[tuple[str, Position]] = []  # keys that this mapping has twice; the last value counts
        self._entries: list[Item] = []
        self._elements: list[Node] = []
        self._value: Any = UNSET

    @property
    def position(self) -> Position:
        return _position(self._file, self._raw.start_mark)

    @property
    def text(self) -> str:
        return str(self._raw.value) if self.kind == "scalar" else ""

    @property
    def is_plain(self) -> bool:
        """Return whether this is a scalar without quotes."""
        return self.kind == "scalar" and not getattr(self._raw, "style", None)

    @property
    def is_null(self) -> bool:
        return self.kind == "scalar" and self.value is None

    @property
    def value(self) -> Value:
        if self._value is UNSET:
            if self.kind == "mapping":
                self._value = {entry.key: entry.node.value for entry in self._entries}
            elif self.kind == "sequence":
                self._value = [node.value for node in self._elements]
            else:
                self._value = _build_scalar(self._raw, self._flavour)
        return self._value

    def items(self) -> list[Item]:
        """Return a mapping's entries in order, with merge keys and the last of repeated keys; empty for other kinds."""
        return self._entries

    def elements(self) -> list[Node]:
        """Return a sequence's nodes; empty for other kinds."""
        return self._elements

    def with_entry(self, key: str, position: Position, node: Node | None) -> Node:
        """Return the mapping with another value of a key; None: without the key."""
        changed = Node(self._raw, self._file, self._flavour)
        changed.duplicates = [each for each in self.duplicates if each[0] != key]
        entries = {entry.key: entry for entry in self._entries}
        if node is None:
            entries.pop(key, None)
        else:
            entries[key] = Item(key, position, node)
        changed._entries = list(entries.values())
        return changed

    def find(self, key: str) -> Node | None:
        """Return the value of a mapping's key."""
        return next((entry.node for entry in self._entries if entry.key == key), None)


UNSET = object()


# ---------------------------------------------------------------- reading


def parse_documents(text: str, file: str, *, flavour: Flavour = "native", how_to: HowTo | None = None) -> list[Node]:
    """Parse every document of a file to a mapping, or to null if the document is empty.

    `how_to` describes such a file, for the message about a file without content.

    Raises ConfigError for broken YAML, for a file without content and for a document that is not a mapping.
    """
    nodes = [Builder(file, flavour).build(raw) for raw in compose(text, file, flavour)]
    if all(node.is_null for node in nodes):
        raise build_error("the file is empty", Position(file, 1, 1), how_to() if how_to else None)
    for node in nodes:
        if node.kind != "mapping" and not node.is_null:
            hint = "write `key: value` lines; `study:`, `command:` and `params:` make the smallest file"
            word = "list" if node.kind == "sequence" else "single value"
            raise build_error(f"the top level is a {word}, not a mapping", node.position, hint)
    return nodes


def load_text(file: str, shown: str, how_to: HowTo | None = None) -> str:
    """Load a text file; `shown` is its path as the user wrote it, `how_to` describes such a file if it is missing."""
    if not shown:
        raise UsageError("an empty text does not name a file", how_to() if how_to else None)
    try:
        with open(file, "rb") as stream:
            data = stream.read()
    except (FileNotFoundError, NotADirectoryError):
        hint = _find_similar(file, shown) or (how_to() if how_to else None)
        raise UsageError(f"there is no file {shown}", hint) from None
    except IsADirectoryError:
        raise UsageError(f"{shown} is a folder, not a file", "name the YAML file in it") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{shown} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        start = data.rfind(b"\n", 0, error.start) + 1
        column = len(data[start : error.start].decode("utf-8", "replace")) + 1
        position = Position(shown, data.count(b"\n", 0, error.start) + 1, column)
        message = f"the byte 0x{data[error.start]:02x} is not UTF-8"
        raise build_error(message, position, "save the file as UTF-8") from None


def _find_similar(file: str, shown: str) -> str | None:
    """Return the YAML files next to a missing one whose names are similar, as a question; None if there are none."""
    folder, name = os.path.split(file)
    try:
        files = [os.path.splitext(each) for each in sorted(os.listdir(folder or "."))]
    except (OSError, ValueError):
        return None
    stem = os.path.splitext(name)[0]
    near = [each + ending for each, ending in files if ending in (".yml", ".yaml") and suggest(stem, [each])]
    paths = [repr(os.path.join(os.path.dirname(shown), each)) for each in near[:3]]
    return f"did you mean {' or '.join(paths)}?" if paths else None


def find_duplicates(node: Node) -> Iterator[tuple[str, Position]]:
    """Yield every key that a mapping has twice, at any depth, as (dotted key, position)."""
    seen: set[int] = set()
    pending = [(node, "")]
    while pending:
        current, prefix = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield from ((join_key(prefix, name), position) for name, position in current.duplicates)
        pending.extend((entry.node, join_key(prefix, entry.key)) for entry in current.items())
        pending.extend((element, f"{prefix}[{index}]") for index, element in enumerate(current.elements()))


def join_key(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


def compose(text: str, file: str, flavour: Flavour) -> list[Any]:
    import yaml

    _check_depth(text, file)
    loader = loader_of(flavour)(text)
    documents = []
    try:
        while loader.check_node():
            documents.append(loader.get_node())
    except yaml.MarkedYAMLError as error:
        raise _explain(error, text, file) from None
    except yaml.reader.ReaderError as error:
        raise _explain_character(error, text, file) from None
    finally:
        loader.dispose()
    if _EXTRA_BREAK.search(text):
        # give the nodes, and all nodes inside, the positions that editors show
        seen: set[int] = set()
        pending, starts = list(documents), _find_lines(text)
        while pending:
            node = pending.pop()
            if id(node) not in seen:
                seen.add(id(node))
                node.start_mark = _correct_mark(node.start_mark, starts)
                children = [] if node.id == "scalar" else node.value
                pending += [each for child in children for each in (child if isinstance(child, tuple) else (child,))]
    return documents


def _correct_mark(mark: Any, starts: list[int]) -> Any:
    import yaml

    line = bisect(starts, mark.index) - 1
    return yaml.Mark(mark.name, mark.index, line, mark.index - starts[line], None, 0)


def _find_lines(text: str) -> list[int]:
    """Return the index at which each line begins: YAML ends a line at _EXTRA_BREAK too, editors do not."""
    return [0, *(each.end() for each in re.finditer("\r\n?|\n", text))]


def _check_depth(text: str, file: str) -> None:
    """Refuse deep nesting before the parser reads it: the composer in C recurses without a limit of its own."""
    import yaml

    if not _looks_deep(text):
        return
    try:
        event = _find_too_deep(text)
    except yaml.YAMLError:
        return  # composing raises the same error and explains it
    if event is not None:
        position = _position(file, _correct_mark(event.start_mark, _find_lines(text)))
        raise build_error("nested too deeply", position, f"at most {MAX_DEPTH} levels are read")


def _find_too_deep(text: str) -> Any:
    """Return the event at which the nesting exceeds MAX_DEPTH; None if there is none."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=loader_of("native")):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return event
    return None


def _looks_deep(text: str) -> bool:
    """Guess quickly whether a text is deep: brackets inside one another, `- - - x` in a line, or far indentation."""
    depth = 0
    for bracket in re.finditer(r"[\[\]{}]", text):
        depth += 1 if bracket.group() in "[{" else -1
        if depth > MAX_DEPTH:
            return True
    return re.search(rf"^[ ]*(?:[-?:][ \t]+){{{MAX_DEPTH}}}|^[ ]{{{MAX_DEPTH}}}", text, re.MULTILINE) is not None


@cache
def loader_of(flavour: Flavour) -> Any:
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return base if flavour == "originals" else build_native(base)


def build_native(base: Any) -> Any:
    """Build a loader or a dumper for which a scalar without quotes has the type that the native flavour gives it."""
    native: Any = type(f"Native{base.__name__}", (base,), {"yaml_implicit_resolvers": {}})
    for name, pattern, first in _NATIVE_RULES:
        native.add_implicit_resolver(TAG + name, re.compile(pattern), list(first))
    return native


def parse_yaml_mapping(text: str, name: str, problems: list[str]) -> dict[Any, Value]:
    """Parse another tool's file as PyYAML reads it; if it cannot be read, return an empty mapping and add the reason to
    `problems`. Tuples are read too, since a plain `yaml.dump` writes them."""
    import yaml

    try:
        if _find_too_deep(text) is not None:
            raise ValueError("nested too deeply")  # noqa: TRY301 reported below like other errors
        found = yaml.load(text, Loader=_loader_with_tuples())  # noqa: S506 - a SafeLoader with one more tag
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        problems.append(f"{name}: not YAML ({' '.join(str(error).split())})")
        return {}
    if found is None or isinstance(found, dict):
        return found or {}
    problems.append(f"{name}: a mapping was expected")
    return {}


@cache
def _loader_with_tuples() -> Any:
    base = loader_of("originals")
    loader: Any = type("LoaderWithTuples", (base,), {})
    loader.add_constructor(TAG + "python/tuple", base.construct_yaml_seq)
    return loader


# ---------------------------------------------------------------- building


class Builder:
    """Converts one document's yaml nodes to Nodes, each yaml node once."""

    def __init__(self, file: str, flavour: Flavour) -> None:
        self._file = file
        self._flavour: Flavour = flavour
        self._done: dict[int, tuple[Node, int]] = {}
        self._open: set[int] = set()

    def build(self, raw: Any) -> Node:
        node, size = self._visit(raw)
        if size > MAX_UNFOLDED:
            raise build_error(f"the aliases of this file unfold into {size} values", node.position, "use fewer aliases")
        return node

    def _visit(self, raw: Any) -> tuple[Node, int]:
        if id(raw) in self._done:
            return self._done[id(raw)]
        node = Node(raw, self._file, self._flavour)
        if id(raw) in self._open:
            raise build_error("an alias that contains itself", node.position, "write the value out")
        if len(self._open) > MAX_DEPTH:
            raise build_error("nested too deeply", node.position, f"at most {MAX_DEPTH} levels are read")
        self._open.add(id(raw))
        size = 1
        if node.kind == "mapping":
            size = self._fill_mapping(node, raw)
        elif node.kind == "sequence":
            built = [self._visit(element) for element in raw.value]
            node._elements = [element for element, _ in built]  # noqa: SLF001
            size += sum(weight for _, weight in built)
        self._open.discard(id(raw))
        self._done[id(raw)] = node, size
        return node, size

    def _fill_mapping(self, node: Node, raw: Any) -> int:
        merged: dict[str, Item] = {}
        own: dict[str, Item] = {}
        size = 1
        for raw_key, raw_value in raw.value:
            value, weight = self._visit(raw_value)
            size += weight
            if raw_key.tag == TAG + "merge":
                self._merge(value, merged)
                continue
            position = _position(self._file, raw_key.start_mark)
            if type(raw_key).__name__ != "ScalarNode":
                raise build_error("a key must be a single value", position, _QUOTES_HINT)
            is_native = self._flavour == "native"
            key = str(raw_key.value if is_native else _build_scalar(raw_key, self._flavour))
            entry = Item(key, position, value)
            if entry.key in own:
                node.duplicates.append((entry.key, entry.position))
            own[entry.key] = entry
        node._entries = list({**merged, **own}.values())  # noqa: SLF001
        return size

    def _merge(self, value: Node, merged: dict[str, Item]) -> None:
        """Merge `<<: *base` or `<<: [*first, *second]`: the first of them has precedence, as in YAML."""
        sources = value.elements() if value.kind == "sequence" else [value]
        for source in sources:
            if source.kind != "mapping":
                raise build_error("<< takes a mapping or a list of mappings", value.position, "write `<<: *anchor`")
            for entry in source.items():
                merged.setdefault(entry.key, entry)


def _position(file: str, mark: Any) -> Position:
    return Position(file, 0 if isinstance(file, Word) else mark.line + 1, mark.column + 1)


# ---------------------------------------------------------------- scalars


def _build_scalar(raw: Any, flavour: Flavour) -> Value:
    name = raw.tag.removeprefix(TAG)
    try:
        return _native_scalar(name, raw.value) if flavour == "native" else _original_scalar(name, raw)
    except (ValueError, OverflowError):
        return raw.value  # the value is 2020-99-99, for example, or a number of several thousand digits


_BOOLS: dict[str, Value] = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _native_scalar(name: str, text: str) -> Value:
    if name == "null":
        return None
    if name == "bool":  # with a tag, as in `!!bool yes`, it may be any of YAML's words
        return _BOOLS.get(text.lower(), text)
    if name == "int":
        return int(text, 0)
    if name == "float":
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _original_scalar(name: str, raw: Any) -> Value:
    """Return a scalar as PyYAML builds it; values that JSON lacks (dates) become the text of `str()`."""
    if name == "str":
        return raw.value
    import yaml

    try:
        value = _constructor().construct_object(raw, deep=True)
    except (yaml.YAMLError, LookupError, AttributeError):
        value = raw.value  # its tag does not fit, as in `!!bool x` or `!!int ''`
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


@cache
def _constructor() -> Any:
    import yaml

    lenient: Any = type("LenientConstructor", (yaml.constructor.SafeConstructor,), {})
    lenient.add_constructor(None, lambda _, node: node.value)  # a value with an unknown tag is its text
    return lenient()


# ---------------------------------------------------------------- explaining


def build_error(message: str, position: Position, hint: str | None = None, key: str = "") -> ConfigError:
    return ConfigError([Problem(message, key, position, hint)])


def _explain(error: Any, text: str, file: str) -> ConfigError:
    starts = _find_lines(text)
    error.problem_mark = error.problem_mark and _correct_mark(error.problem_mark, starts)
    error.context_mark = error.context_mark and _correct_mark(error.context_mark, starts)
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return build_error(f"broken YAML: {error}", Position(file, 1, 1))
    position = _position(file, mark)
    opened = _find_open(error, text)
    if opened is not None:
        message = f"broken YAML: this {text[opened.index]} is not closed"
        return build_error(message, _position(file, _correct_mark(opened, starts)), _NEVER_CLOSED)
    lines = re.split("\r\n?|\n", text.rstrip(" \r\n"))
    line = lines[mark.line] if mark.line < len(lines) else ""
    if mark.line >= len(lines):  # the error is after the last character
        full = [number for number, written in enumerate(lines, 1) if written.strip()] or [1]
        position = Position(file, full[-1], len("".join(lines[full[-1] - 1 : full[-1]]).rstrip()) + 1)
    if "\t" in line[: len(line) - len(line.lstrip())] or line[mark.column : mark.column + 1] == "\t":
        return build_error("a tab cannot indent YAML", position, "use spaces instead of the tab")
    context = f" {error.context}" if error.context else ""
    if error.context_mark is not None and error.context_mark.line != mark.line:
        context += f" that begins in line {error.context_mark.line + 1}"
    hint = _QUOTES_HINT
    if "alias" in str(error.problem):
        hint = "define it first with &name, or put a text that begins with * into quotes"
    elif "unknown escape character" in str(error.problem):
        hint = r"in double quotes \ begins an escape; write it in single quotes, as in '(\d+)'"
    elif "end of stream" in str(error.problem) or "expected ','" in str(error.problem):
        hint = _NEVER_CLOSED
    return build_error(f"broken YAML: {error.problem}{context}", position, hint)


def _find_open(error: Any, text: str) -> Any:
    """Return the mark of the innermost bracket or quote that is open at the error; None if it is not known. The parser
    reports an open bracket lines later, usually at the end of the file."""
    if "end of stream" in error.problem:
        return error.context_mark if _stands_at(error.context_mark, text, "'\"") else None
    end = error.problem_mark.index if error.problem_mark else len(text)
    is_at_end = not text[end:].strip()
    begins = error.context_mark
    if not is_at_end and not ("expected ','" in error.problem and begins and begins.line < error.problem_mark.line):
        return None
    opened = _scan_brackets(text, end)
    return opened[-1] if opened and _stands_at(opened[-1], text, "[{") else None


def _stands_at(mark: Any, text: str, characters: str) -> bool:
    return mark is not None and mark.index < len(text) and text[mark.index] in characters


def _scan_brackets(text: str, end: int) -> list[Any]:
    """Return the marks of the brackets that are open at an index, outermost first."""
    import yaml

    opened: list[Any] = []
    try:
        for token in yaml.scan(text, Loader=loader_of("native")):
            if token.start_mark.index >= end:
                break
            if isinstance(token, yaml.FlowSequenceStartToken | yaml.FlowMappingStartToken):
                opened.append(token.start_mark)
            elif isinstance(token, yaml.FlowSequenceEndToken | yaml.FlowMappingEndToken) and opened:
                opened.pop()
    except yaml.YAMLError:
        return opened  # the brackets before the error are what is needed
    return opened


def _explain_character(error: Any, text: str, file: str) -> ConfigError:
    """Explain characters that YAML does not allow; their position is searched in the text."""
    bad = re.search(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text)
    place = bad.start() if bad else 0
    line = text.count("\n", 0, place)
    column = place - (text.rfind("\n", 0, place) + 1)
    message = f"the character {text[place]!r} is not allowed in YAML" if bad else f"broken YAML: {error}"
    hint = "remove it, or write it as an escape in double quotes"
    return build_error(message, Position(file, line + 1, column + 1), hint)
