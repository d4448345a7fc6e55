"""`[gate]` of assay.toml: the checks that a change must pass.

[gate]
checks = ["golden check charlm.yml", "model check net.onnx --target sim"]
data = ["data/*.npz"]
budget = "20m"
"""

from __future__ import annotations

import glob
import os
import shlex

from assay.config.fields import Fields
from assay.config.settings import Settings
from assay.config.source import Node, Problems
from assay.errors import UsageError, did_you_mean
from assay.plugins import load
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.options import Group, Request, find_request
from assay.values.study import Position
from assay.values.units import parse_duration

_KEYS = ("checks", "data", "budget")
_RECORDING = ("run", "gather")  # commands whose report lists what they recorded: they compare nothing
_EXAMPLE = 'write into assay.toml, for example:\n  [gate]\n  checks = ["golden check train.yml"]'


@dataclass(frozen=True, slots=True)
class GateCheck:
    """A command line of ours, as a person types it, without the word `assay`."""

    line: str
    words: tuple[str, ...]
    position: Position


@dataclass(frozen=True, slots=True)
class GateSettings:
    folder: str  # the folder of the settings file, in which the checks are executed
    checks: tuple[GateCheck, ...]
    data: tuple[str, ...] = ()  # absolute paths: the declared data and the settings files
    budget_s: float | None = None


def load_gate(settings: Settings) -> GateSettings:
    """Load the project's table [gate]. Raises UsageError without such a table, ConfigError with all mistakes in it."""
    if (found := read_gate_settings(settings)) is None:
        raise UsageError("no settings file has a table [gate]", _EXAMPLE)
    return found


def read_gate_settings(settings: Settings) -> GateSettings | None:
    """Read the project's table [gate], which replaces the user's. Checks depend on all settings files."""
    if not (tables := settings.tables.get("gate")):
        return None
    problems = Problems()
    found = _Reader(problems).read(tables[-1])
    problems.raise_if_any()
    return replace(found, data=(*found.data, *settings.files))


class _Reader(Fields):
    def read(self, node: Node) -> GateSettings:
        entries = self.mapping(node, "gate", _KEYS)
        folder = os.path.dirname(os.path.abspath(node.position.file))
        if node.kind == "mapping" and "checks" not in entries:
            self.problems.add("has no checks", "gate", node.position, 'as in checks = ["golden check train.yml"]')
        checks = self._read_checks(entries["checks"].node) if "checks" in entries else ()
        data: set[str] = set()
        for pattern in self.texts(entries["data"].node, "gate.data", "a list of paths") if "data" in entries else ():
            found = glob.glob(os.path.join(folder, os.path.expanduser(pattern)), recursive=True)
            paths = list(filter(os.path.lexists, found))  # glob returns `missing/` for `missing/**`
            if not paths:
                where = entries["data"].node.position
                self.problems.add(f"{pattern!r} matches no file", "gate.data", where, f"in {folder}")
            data.update(paths)
        budget, seconds = entries.get("budget"), None
        if budget is not None:
            seconds = parse_duration(budget.node.value) if isinstance(budget.node.value, str) else None
            if not seconds:
                self.refuse(budget.node, "gate.budget", "a duration", 'as in budget = "20m"')
        return GateSettings(folder, checks, tuple(sorted(data)), seconds)

    def _read_checks(self, node: Node) -> tuple[GateCheck, ...]:
        found: list[GateCheck] = []
        for each in self.elements(node, "gate.checks", "a list of command lines"):
            line = self.string(each, "gate.checks", 'as in "golden check train.yml"') or ""
            if "\0" in line:
                self.problems.add("contains a zero byte, which a command line cannot", "gate.checks", each.position)
                continue
            try:
                words = tuple(shlex.split(line))
            except ValueError as error:
                self.problems.add(f"cannot be read: {error}", "gate.checks", each.position)
                continue
            words = words[1:] if words[:1] == ("assay",) else words
            if any(check.words == words for check in found):
                self.problems.add(f"has {line!r} twice", "gate.checks", each.position, "remove one of them")
            elif words:
                found.append(GateCheck(shlex.join(words), words, each.position))
            elif line:
                self.problems.add("has no command", "gate.checks", each.position, 'as in "golden check train.yml"')
        return tuple(found)


def find_judging_request(check: GateCheck, group: Group) -> type[Request]:
    """Find the options of a check's command. Raises UsageError if there is no such command, or it judges nothing."""
    found, words = group, list(check.words)
    while isinstance(found, Group):
        name, listed = words.pop(0) if words else "", found.commands
        if name not in listed:
            called = " ".join(check.words[: len(check.words) - len(words)])
            hint = did_you_mean(name, listed) or "assay --help lists the commands"
            raise UsageError(f"{check.position}: there is no command `assay {called}`", hint)
        found = load(listed[name][0])
    command, request = shlex.join(check.words[: len(check.words) - len(words)]), find_request(found)
    if request is None or "junit" not in request.OPTIONS or name in _RECORDING:
        hint = "a check compares, and has --junit: golden check, bench compare, model check"
        raise UsageError(f"{check.position}: `assay {command}` judges nothing", hint)
    known = [flag for each in request.OPTIONS.values() for flag in each.names]
    for flag in (word.partition("=")[0] for word in words):
        if flag.startswith("--") and len(flag) > 2 and flag not in known:
            raise UsageError(f"{check.position}: `assay {command}` has no option {flag}", did_you_mean(flag, known))
    return request
