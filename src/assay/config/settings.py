"""Settings: the output root, the slots and other values that apply unless a study file or a flag sets them.

In order of precedence, the lowest first: `~/.config/assay/config.toml`; the nearest `assay.toml`, or `pyproject.toml`
with a `[tool.assay]` table, from the working directory upwards; the environment (`ASSAY_ROOT`, `ASSAY_SLOTS`, …).
Tables of plug-ins (the hook `settings`) are passed on unchanged with their positions: the plug-in reads them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from assay.config.fields import Fields
from assay.config.source import Item, Node, Problems, load_text
from assay.errors import UsageError, did_you_mean
from assay.plugins import merge
from assay.system.fast_dataclasses import dataclass, field
from assay.values.layout import DEFAULT_ROOT
from assay.values.units import parse_duration, parse_slots

if TYPE_CHECKING:
    from assay.values.secrets import SecretRules

PATTERNS = ("secret_names", "secret_files")
ENVIRONMENT = {key: f"ASSAY_{key.upper()}" for key in ("root", "slots", "farm", "max_wait", "notify", "index")}
VALUES = (*ENVIRONMENT, *PATTERNS)
KEYS = (*VALUES, "farms")  # besides the tables that plug-ins read
_OURS = r"^\s*\[+\s*tool\s*\.\s*assay\s*[].]"  # a header in pyproject.toml: Assay's table, or a table inside it


@dataclass(frozen=True, slots=True)
class Settings:
    root: str  # an absolute path
    root_from: str | None = None  # the file or variable that sets the root; None: nothing sets it
    slots: tuple[str, ...] | None = None
    farm: str | None = None
    files: tuple[str, ...] = ()  # the files that were read
    slots_from: str | None = None
    farm_from: str | None = None
    tables: Mapping[str, tuple[Node, ...]] = field(default_factory=dict)  # by name; user's before project's
    secret_names: tuple[str, ...] = ()
    secret_files: tuple[str, ...] = ()
    max_wait_s: float | None = None  # how long a command waits for the machine lease
    notify: tuple[str, ...] = ()  # commands and addresses
    notify_from: str | None = None
    index: str | None = None  # the address of a shared index, which may have a password; or "local"

    @property
    def secrets(self) -> SecretRules:
        return _build_rules(self.secret_names, self.secret_files)


@cache
def _build_rules(names: tuple[str, ...], files: tuple[str, ...]) -> SecretRules:
    from assay.values.secrets import SecretRules  # imported here: commands that only read runs do not need it

    return SecretRules(names, files)


def load_settings(cwd: str | None = None, env: Mapping[str, str] | None = None) -> Settings:
    """Return the settings for this folder. Raises ConfigError for an invalid settings file."""
    folder = os.path.abspath(cwd or os.getcwd())
    environment = os.environ if env is None else env
    found: dict[str, tuple[Any, str]] = {}  # key -> value, and the file or variable that sets it
    home = environment.get("HOME") or os.path.expanduser("~")
    base = environment.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    user_file, project_file = os.path.join(base, "assay", "config.toml"), _project_file(folder)
    files = [*([user_file] if os.path.isfile(user_file) else []), *([project_file] if project_file else [])]
    tables: dict[str, tuple[Node, ...]] = {}
    patterns: dict[str, tuple[str, ...]] = dict.fromkeys(PATTERNS, ())
    for path in files:
        table = _load_file(path)
        patterns = {key: (*patterns[key], *table.pop(key, ())) for key in PATTERNS}  # project files add patterns
        handed_on = [key for key in table if key not in VALUES]
        tables.update({key: (*tables.get(key, ()), table.pop(key)) for key in handed_on})
        found.update({key: (value, path) for key, value in table.items()})
    found.update(_from_environment(environment, folder))
    values: dict[str, Any] = {"root": os.path.join(folder, DEFAULT_ROOT), **patterns}
    values |= {"max_wait_s" if key == "max_wait" else key: value for key, (value, _) in found.items()}
    values |= {f"{key}_from": found[key][1] for key in ("root", "slots", "farm", "notify") if key in found}
    return Settings(files=tuple(files), tables=tables, **values)


def _project_file(folder: str) -> str | None:
    """Return the nearest settings file upwards. A pyproject.toml without a table for Assay does not count."""
    while True:
        own, shared = os.path.join(folder, "assay.toml"), os.path.join(folder, "pyproject.toml")
        if os.path.isfile(own):
            return own
        if os.path.isfile(shared) and re.search(_OURS, load_text(shared, shared), re.MULTILINE):
            return shared
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def _from_environment(env: Mapping[str, str], folder: str) -> dict[str, tuple[Any, str]]:
    """Return the settings of the environment. An empty variable counts as not set."""
    parsers: dict[str, Callable[[str], Any]] = {"slots": parse_slots, "max_wait": parse_duration}
    parsers |= {"root": lambda text: _absolute(text, folder), "notify": lambda text: (text,)}
    texts = {key: env.get(variable, "").strip() for key, variable in ENVIRONMENT.items()}
    found = {key: (parsers.get(key, str)(text), ENVIRONMENT[key]) for key, text in texts.items() if text}
    if texts["max_wait"] and not found["max_wait"][0]:
        variable = ENVIRONMENT["max_wait"]
        raise UsageError(f"{variable}={texts['max_wait']} is not a duration", f"write for example {variable}=4h")
    return found


def _absolute(path: str, folder: str) -> str:
    return os.path.normpath(os.path.join(folder, os.path.expanduser(path)))


def _load_file(path: str) -> dict[str, Any]:
    from assay.config.toml_source import parse_toml  # imported here: most folders have no settings file

    table: Node | None = parse_toml(load_text(path, path), path)
    problems = Problems()
    for name in ("tool", "assay") if os.path.basename(path) == "pyproject.toml" else ():
        table = table.find(name) if table is not None else None
    if table is not None and table.kind != "mapping":
        Fields(problems).refuse(table, "tool.assay", table.mapping_name)
    reader = _Reader(problems, path)
    found = {entry.key: reader.read(entry) for entry in table.items()} if table is not None else {}
    problems.raise_if_any()
    return found


class _Reader(Fields):
    def __init__(self, problems: Problems, path: str) -> None:
        super().__init__(problems)
        self._path = path

    def read(self, entry: Item) -> Any:
        key, node = entry.key, entry.node
        if key not in KEYS and key not in (offered := merge("settings")):
            self.problems.add("unknown setting", key, entry.position, did_you_mean(key, (*KEYS, *offered)))
        elif key == "slots":
            return self._read_slots(node)
        elif key in PATTERNS:
            value = node.value
            if isinstance(value, list) and all(isinstance(each, str) and each.strip("! ") for each in value):
                return tuple(each.strip() for each in value)
            example = '["MY_*", "!EOS_TOKEN"]' if key == "secret_names" else '["*.lic", "!public.key"]'
            self.refuse(node, key, "a list of patterns", f"as in {key} = {example}")
        elif key in ("root", "farm", "index"):
            text = self.string(node, key, f'as in {key} = "…"')
            return _absolute(text or "", os.path.dirname(self._path)) if key == "root" else text
        elif key == "notify":
            example = 'as in notify = "https://host/path", or a list of addresses and shell commands'
            return self.strings(node, key, "an address or a command", example)
        elif key == "max_wait":
            seconds = parse_duration(node.value) if isinstance(node.value, str) else None
            if not seconds:
                self.refuse(node, key, "a duration", 'as in max_wait = "4h"')
            return seconds
        return node

    def _read_slots(self, node: Node) -> tuple[str, ...]:
        wanted = 'a list such as [0, 1], ["0,1", "2,3"] or ["cpu", "cpu"]'
        slots = self.elements(node, "slots", wanted)
        for each in slots:
            if type(each.value) not in (int, str) or not str(each.value).strip():
                self.refuse(each, "slots", f"a device, in {wanted}")
        return tuple(str(each.value).strip() for each in slots)
