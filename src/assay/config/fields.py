"""Typed reading of nodes: each reader returns a value, or records a problem and returns nothing; and functions that the
readers of all dialects share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from assay.config.source import Item, Node, Problems, find_duplicates, join_key
from assay.errors import did_you_mean
from assay.system.fast_dataclasses import dataclass
from assay.values.study import Choices, Params, Problem
from assay.values.units import parse_duration, parse_size

T = TypeVar("T")

_LARGEST = 10**308  # larger whole numbers do not fit into a float


def describe(node: Node) -> str:
    """Describe the kind of a node for messages: `a list`, `the text 'abc'`, `0.5`."""
    if node.kind == "mapping":
        return node.mapping_name
    if node.kind == "sequence":
        return "a list"
    if (value := node.value) is None:
        return "nothing"
    return f"the text {value!r}" if isinstance(value, str) else node.text


class Fields:
    """Readers that share one list of problems."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems

    def refuse(self, node: Node, key: str, wanted: str, hint: str | None = None) -> None:
        self.problems.add(f"must be {wanted}, not {describe(node)}", key, node.position, hint)

    def mapping(self, node: Node, key: str, known: Iterable[str]) -> Mapping[str, Item]:
        """Read a mapping with a fixed set of keys."""
        names = tuple(known)
        if node.kind != "mapping":
            self.refuse(node, key, node.mapping_name, f"with the keys {', '.join(names)}")
            return {}
        found = {entry.key: entry for entry in node.items()}
        for entry in found.values():
            if entry.key not in names:
                hint = did_you_mean(entry.key, names) or f"known: {', '.join(names)}"
                self.problems.add("unknown key", join_key(key, entry.key), entry.position, hint)
        return found

    def open_mapping(self, node: Node, key: str, wanted: str) -> list[Item]:
        """Read a mapping whose keys are the user's own names."""
        if node.kind != "mapping":
            self.refuse(node, key, wanted)
            return []
        if not node.items():
            self.problems.add("is empty", key, node.position, "leave the key out, or fill it in")
        return node.items()

    def elements(self, node: Node, key: str, wanted: str) -> list[Node]:
        """Read a list that must not be empty."""
        if node.kind != "sequence":
            self.refuse(node, key, wanted)
            return []
        if not node.elements():
            self.problems.add("is an empty list", key, node.position, "leave the key out, or fill it in")
        return node.elements()

    def text(self, node: Node, key: str, wanted: str = "a text") -> str | None:
        """Read a text that is not blank; a number is read as it is written."""
        if node.kind != "scalar" or node.value is None or isinstance(node.value, bool):
            self.refuse(node, key, wanted)
            return None
        if not node.text.strip():
            self.problems.add("is an empty text", key, node.position)
            return None
        return node.text

    def string(self, node: Node, key: str, hint: str | None = None) -> str | None:
        """Read a string that is not blank; a number is refused."""
        if isinstance(node.value, str) and node.value.strip():
            return node.value
        self.refuse(node, key, "a string", hint)
        return None

    def strings(
        self, node: Node, key: str, wanted: str = "a string or a list of strings", hint: str | None = None
    ) -> tuple[str, ...]:
        """Read a string, or a list of strings."""
        values = [each.value for each in node.elements()] if node.kind == "sequence" else [node.value]
        if not all(isinstance(each, str) and each.strip() for each in values):
            self.refuse(node, key, wanted, hint)
            return ()
        return tuple(values)

    def texts(self, node: Node, key: str, wanted: str) -> tuple[str, ...]:
        """Read a list of texts, or a single text."""
        if node.kind == "sequence":
            found = [self.text(element, f"{key}[{index}]") for index, element in enumerate(node.elements())]
        else:
            found = [self.text(node, key, wanted)]
        return tuple(text for text in found if text is not None)

    def boolean(self, node: Node, key: str) -> bool | None:
        if isinstance(node.value, bool):
            return node.value
        self.refuse(node, key, "true or false")
        return None

    def integer(self, node: Node, key: str, minimum: int | None = 0) -> int | None:
        value = node.value
        wanted = "a whole number" if minimum is None else f"a whole number, {minimum} or more"
        if isinstance(value, bool) or not isinstance(value, int) or (minimum is not None and value < minimum):
            self.refuse(node, key, wanted)
            return None
        return value

    def number(self, node: Node, key: str) -> float | None:
        value = node.value
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124 nan
            self.refuse(node, key, "a number")
            return None
        if isinstance(value, int) and abs(value) > _LARGEST:
            self.problems.add("is a number with too many digits", key, node.position, "the largest are about 1e308")
            return None
        return value

    def duration(self, node: Node, key: str) -> float | None:
        seconds = parse_duration(node.text) if node.kind == "scalar" else None
        if seconds is None or seconds <= 0:
            self.refuse(node, key, "a duration", "such as 90s, 30m, 2h or 1h30m; a plain number counts seconds")
            return None
        return seconds

    def size(self, node: Node, key: str) -> int | None:
        size = parse_size(node.text) if node.kind == "scalar" else None
        if size is None:
            self.refuse(node, key, "a size", "such as 10GB, 512MiB or a number of bytes")
        return size

    def child(
        self, entries: Mapping[str, Item], name: str, key: str, read: Callable[[Node, str], T | None], default: T
    ) -> T:
        """Read one entry of a mapping with `read`; return the default if the entry is missing or invalid."""
        found = read(entries[name].node, join_key(key, name)) if name in entries else None
        return default if found is None else found

    def one_of(self, node: Node, key: str, choices: Iterable[str]) -> str | None:
        names = tuple(choices)
        if node.kind == "scalar" and node.text in names:
            return node.text
        hint = did_you_mean(node.text, names) if node.kind == "scalar" else None
        self.refuse(node, key, f"one of {', '.join(names)}", hint)
        return None


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options of the command line for reading a file."""

    dialect: str | None = None  # the name of a dialect; None: by content
    config_file: str | None = None  # a configuration file of the dialect's tool, instead of those in `cwd` and `home`
    farm: str | None = None  # the name of a farm, used instead of the file's
    exp_name: str | None = None  # the study's name
    home: str | None = None  # None: the user's home
    cwd: str | None = None  # the folder of relative paths and of the code; None: the process's working directory
    overrides: tuple[str, ...] = ()  # NAME=VALUE: parameters
    settings: tuple[str, ...] = ()  # KEY=VALUE: other keys of the file (--set)
    base: Params | None = None  # the parameters of a run to repeat with changes; replaces the file's sweeps
    text: str | None = None  # a text to read instead of the file: a definition in Python, or a kept copy


def build_duplicate_warnings(nodes: Iterable[Node]) -> list[Problem]:
    """Build a warning for each duplicate key, of which another tool uses the last value."""
    return [
        Problem("this key is here twice", key, position, "the last one counts; remove the other")
        for node in nodes
        for key, position in find_duplicates(node)
    ]


def build_axis(node: Node, key: str, problems: Problems) -> Choices:
    """Build an axis: a list is swept, anything else is a single value."""
    if node.kind != "sequence":
        return Choices((node.value,), node.position)
    if not node.elements():
        hint = "an empty axis has no runs; give it values, or write [[]] for one empty list"
        problems.add("the list of values is empty", key, node.position, hint)
    return Choices(tuple(element.value for element in node.elements()), node.position)
