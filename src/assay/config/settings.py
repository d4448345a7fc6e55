"""Settings: where runs go and what they may use, unless a file or a flag says otherwise.

From the weakest to the strongest: `~/.config/assay/config.toml`; the nearest `assay.toml`, or `pyproject.toml` with a
`[tool.assay]` table, from the working directory upwards; the environment (`ASSAY_ROOT`, `ASSAY_SLOTS`, `ASSAY_FARM`).
The tables `targets` and `models` are handed on as they are: `targets` and `models` of this room read them.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.config.source import Problems, load_text
from assay.errors import ConfigError, UsageError, did_you_mean
from assay.values.layout import DEFAULT_ROOT
from assay.values.secrets import DEFAULT_RULES, SecretRules
from assay.values.slots import parse_slots
from assay.values.study import Position, Problem
from assay.values.units import parse_duration

TABLES = ("targets", "models")
PATTERNS = ("secret_names", "secret_files")
KEYS = ("root", "slots", "farm", "max_wait", *PATTERNS, *TABLES)
ENVIRONMENT = {"root": "ASSAY_ROOT", "slots": "ASSAY_SLOTS", "farm": "ASSAY_FARM", "max_wait": "ASSAY_MAX_WAIT"}
_OURS = r"^\s*\[+\s*tool\s*\.\s*assay\s*[].]"  # a head in pyproject.toml: our table, or one inside it


@dataclass(frozen=True, slots=True)
class TargetTable:
    """`[tool.assay.targets.NAME]`, with the file that it stands in."""

    name: str
    content: Mapping[str, Any]
    file: str
    text: str = field(default="", repr=False)

    def find(self, key: str) -> Position:
        """Where a key stands; the table's head, or the file's beginning, where it is written in another way."""
        name = re.escape(self.name)
        head = re.search(rf"^[ \t]*\[[^\n]*targets\s*\.\s*[\"']?{name}[\"']?\s*[].]", self.text, re.MULTILINE)
        if head is None:
            return Position(self.file, 1, 1)
        after = re.compile(r"^[ \t]*\[", re.MULTILINE).search(self.text, head.end())
        line = re.compile(rf"^[ \t]*[\"']?{re.escape(key)}[\"']?\s*[.=]", re.MULTILINE)
        found = line.search(self.text, head.end(), after.start() if after else len(self.text)) or head
        indent = len(found[0]) - len(found[0].lstrip(" \t"))
        return Position(self.file, self.text.count("\n", 0, found.start()) + 1, indent + 1)


@dataclass(frozen=True, slots=True)
class Settings:
    root: str  # absolute
    root_from: str | None = None  # the file or variable that says so; None: nobody asked for it
    slots: tuple[str, ...] | None = None
    farm: str | None = None
    files: tuple[str, ...] = ()  # that were read
    slots_from: str | None = None
    farm_from: str | None = None
    targets: Mapping[str, TargetTable] = field(default_factory=dict)
    models: Mapping[str, Any] = field(default_factory=dict)
    secrets: SecretRules = DEFAULT_RULES
    max_wait_s: float | None = None  # for the machine lease


def load_settings(cwd: str | None = None, env: Mapping[str, str] | None = None) -> Settings:
    """The settings that hold in this folder. Raises ConfigError for a settings file that is not as it must be."""
    folder = os.path.abspath(cwd or os.getcwd())
    environment = os.environ if env is None else env
    found: dict[str, tuple[Any, str]] = {}  # key -> value, where it comes from
    files = [path for path in (_user_file(environment), _project_file(folder)) if path is not None]
    targets: dict[str, TargetTable] = {}
    patterns: dict[str, tuple[str, ...]] = dict.fromkeys(PATTERNS, ())
    for path in files:
        table = _load_file(path)
        patterns = {key: (*patterns[key], *table.pop(key, ())) for key in PATTERNS}  # a project adds to the user's
        targets.update(table.pop("targets", {}))  # by name: a project adds to what the user has
        found.update({key: (value, path) for key, value in table.items()})
    found.update(_from_environment(environment, folder))
    root, root_from = found.get("root", (os.path.join(folder, DEFAULT_ROOT), None))
    slots, slots_from = found.get("slots", (None, None))
    farm, farm_from = found.get("farm", (None, None))
    models, _ = found.get("models", ({}, None))
    secrets = SecretRules(patterns["secret_names"], patterns["secret_files"])
    max_wait, _ = found.get("max_wait", (None, None))
    return Settings(
        root, root_from, slots, farm, tuple(files), slots_from, farm_from, targets, models, secrets, max_wait
    )


# ---------------------------------------------------------------- where


def _user_file(env: Mapping[str, str]) -> str | None:
    base = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".config")
    path = os.path.join(base, "assay", "config.toml")
    return path if os.path.isfile(path) else None


def _project_file(folder: str) -> str | None:
    """The nearest one upwards. A pyproject.toml that does not speak of Assay is passed over."""
    while True:
        own, shared = os.path.join(folder, "assay.toml"), os.path.join(folder, "pyproject.toml")
        if os.path.isfile(own):
            return own
        if os.path.isfile(shared) and _is_ours(load_text(shared, shared)):
            return shared
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def _is_ours(text: str) -> bool:
    return re.search(_OURS, text, re.MULTILINE) is not None


def _from_environment(env: Mapping[str, str], folder: str) -> dict[str, tuple[Any, str]]:
    """A variable that is set to nothing counts as not set."""
    found: dict[str, tuple[Any, str]] = {}
    for key, variable in ENVIRONMENT.items():
        text = env.get(variable, "").strip()
        if not text:
            continue
        value: Any = _PARSERS[key](text) if key in _PARSERS else text
        found[key] = (_absolute(text, folder) if key == "root" else value, variable)
    return found


def _parse_wait(text: str) -> float:
    seconds = parse_duration(text)
    if not seconds:
        raise UsageError(f"ASSAY_MAX_WAIT={text} is not a duration", "write for example ASSAY_MAX_WAIT=4h")
    return seconds


_PARSERS: dict[str, Callable[[str], Any]] = {"slots": parse_slots, "max_wait": _parse_wait}


def _absolute(path: str, folder: str) -> str:
    return os.path.normpath(os.path.join(folder, os.path.expanduser(path)))


# ---------------------------------------------------------------- reading one file


def _load_file(path: str) -> dict[str, Any]:
    text = load_text(path, path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([_explain(error, path)]) from None
    if os.path.basename(path) == "pyproject.toml":
        table = table.get("tool", {}).get("assay", {})
    return _Table(table, text, path).read()


def _anchor_files(table: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """`files` of models, and of each of them, are relative to the file that names them."""
    anchored = dict(table)
    files = [table["files"]] if isinstance(table.get("files"), str) else table.get("files")
    if isinstance(files, list) and all(isinstance(each, str) for each in files):
        anchored["files"] = [_absolute(each, folder) for each in files]
    inner = table.get("models")
    if isinstance(inner, Mapping):
        anchored["models"] = {
            name: _anchor_files(own, folder) if isinstance(own, Mapping) else own for name, own in inner.items()
        }
    return anchored


def _explain(error: tomllib.TOMLDecodeError, path: str) -> Problem:
    place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
    position = Position(path, int(place[1]), int(place[2])) if place else Position(path, 1, 1)
    message = re.sub(r"\s*\(at .*\)$", "", str(error))
    return Problem(f"broken TOML: {message}", "", position, "texts need quotes in TOML")


class _Table:
    def __init__(self, table: Mapping[str, Any], text: str, path: str) -> None:
        self._table = table
        self._text = text
        self._path = path
        self._problems = Problems()

    def read(self) -> dict[str, Any]:
        found = {key: self._read_key(key, value) for key, value in self._table.items()}
        self._problems.raise_if_any()
        return found

    def _read_key(self, key: str, value: Any) -> Any:
        if key not in KEYS:
            self._refuse(key, "unknown setting", did_you_mean(key, KEYS))
        elif key == "slots":
            return self._slots(value)
        elif key in PATTERNS:
            return self._patterns(key, value)
        elif key in TABLES:
            return self._inner(key, value)
        elif not isinstance(value, str) or not value.strip():
            self._refuse(key, "must be a text", f'as in {key} = "…"')
        elif key == "root":
            return _absolute(value, os.path.dirname(self._path))
        elif key == "max_wait":
            seconds = parse_duration(value)
            if not seconds:
                self._refuse(key, "must be a duration", 'as in max_wait = "4h"')
            return seconds
        return value

    def _inner(self, key: str, value: Any) -> Any:
        inner = value.values() if isinstance(value, dict) and key == "targets" else [value]
        if not all(isinstance(each, dict) for each in inner):
            example = "[tool.assay.targets.NAME]" if key == "targets" else "[tool.assay.models]"
            self._refuse(key, "must be a table", f"as in {example}")
            return {}
        if key == "models":
            return _anchor_files(value, os.path.dirname(self._path))
        return {name: TargetTable(name, content, self._path, self._text) for name, content in value.items()}

    def _patterns(self, key: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(each, str) and each.strip("! ") for each in value):
            example = '["MY_*", "!EOS_TOKEN"]' if key == "secret_names" else '["*.lic", "!public.key"]'
            self._refuse(key, "must be a list of patterns", f"as in {key} = {example}")
            return ()
        return tuple(each.strip() for each in value)

    def _slots(self, value: Any) -> tuple[str, ...]:
        plain = isinstance(value, list) and all(
            isinstance(slot, int | str) and not isinstance(slot, bool) and str(slot).strip() for slot in value
        )
        if not plain or not value:
            self._refuse("slots", "must be a list", 'as in slots = [0, 1], ["0,1", "2,3"] or ["cpu", "cpu"]')
            return ()
        return tuple(str(slot).strip() for slot in value)

    def _refuse(self, key: str, message: str, hint: str | None) -> None:
        self._problems.add(message, key, self._find(key), hint)

    def _find(self, key: str) -> Position:
        """TOML's reader gives no positions; the key's first line after the table's head is near enough."""
        head = re.search(_OURS, self._text, re.MULTILINE)
        start = head.end() if head else 0
        match = re.compile(rf"^[ \t]*(\[?[\w.]*[\"']?{re.escape(key)})", re.MULTILINE).search(self._text, start)
        if match is None:
            return Position(self._path, 1, 1)
        place = match.start(1)
        return Position(self._path, self._text.count("\n", 0, place) + 1, place - self._text.rfind("\n", 0, place))
