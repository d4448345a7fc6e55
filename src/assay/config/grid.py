"""Reads `params`, `sweep`, `zip` and `when` of a native file as sweeps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import isinf
from shlex import quote
from typing import Any, cast

from assay.config.fields import Fields, build_axis
from assay.config.overrides import Overrides, translate_hydra
from assay.config.source import Item, Node, join_key
from assay.config.template import RUN_VALUES
from assay.errors import did_you_mean
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.secrets import hide_params
from assay.values.study import Axis, Choices, Condition, Problem, Random, RandomKind, Sweep, Value, same_value

AXIS_KINDS = ("uniform", "log_uniform", "int", "log_int", "choice", "range")
_WHOLE = ("int", "log_int")
MAX_RANGE = 1_000_000
LARGEST_WHOLE = 2**53  # every smaller whole number is exact as a float, too
_RESERVED = ("zip", "when")
_BOUNDS = (("min", "max"), ("low", "high"), ("lower", "upper"), ("from", "to"), ("start", "stop"))
_MOST_SHOWN = 60  # characters of a value in a hint
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_RANGE_HINT = "write {range: 400}, {range: [from, to]} or {range: [from, to, step]}"


@dataclass(frozen=True, slots=True)
class _Rules:
    """`zip` and `when` with their positions."""

    zips: tuple[tuple[tuple[str, ...], Node, str], ...] = ()
    when: tuple[tuple[Condition, Item, str], ...] = ()


class GridReader:
    """Reads the parts of a native file that define its runs."""

    def __init__(self, fields: Fields, overrides: Overrides | None = None) -> None:
        self._fields = fields
        self._problems = fields.problems
        self._overrides = overrides or Overrides({})
        self._unmatched: list[tuple[str, Condition]] = []  # sweep and condition that no value of the command line meets

    def sweeps(self, top: Mapping[str, Item]) -> tuple[Sweep, ...]:
        if self._overrides.base is not None:
            return (Sweep(self._overrides.build_base()),)
        sweeps = self._read(top)
        if sweeps and len({key for key, _ in self._unmatched}) == len(sweeps):
            for _, condition in self._unmatched:
                axis = self._overrides.axes[condition.param]
                wanted = ", ".join(str(value) for value in condition.values[:12])
                message = f"leaves no run: `when:` keeps {condition.param} at {wanted}"
                self._problems.add(message, "", axis.position, "choose one of these values, or change `when:`")
        return sweeps

    def _read(self, top: Mapping[str, Item]) -> tuple[Sweep, ...]:
        params = self._axes(top["params"].node, "params") if "params" in top else {}
        shared = self._rules(top, "")
        if "sweep" not in top:
            position = top["params"].position if "params" in top else None
            return (self._check(Sweep(self._overrides.apply(params), position=position), shared),)
        node = top["sweep"].node
        if node.kind == "mapping":
            return (self._item(node, "sweep", params, shared),)
        elements = self._fields.elements(node, "sweep", "a mapping or a list of mappings")
        return tuple(self._item(each, f"sweep[{index}]", params, shared) for index, each in enumerate(elements))

    def _item(self, node: Node, key: str, params: Mapping[str, Axis], shared: _Rules) -> Sweep:
        if node.kind != "mapping":
            self._fields.refuse(node, key, "a mapping of parameters")
            return Sweep(params, position=node.position)
        entries = {entry.key: entry for entry in node.items()}
        own = self._rules(entries, key)
        axes = self._overrides.apply({**params, **self._axes(node, key)})
        rules = _Rules(shared.zips + own.zips, shared.when + own.when)
        return self._check(Sweep(axes, position=node.position), rules)

    def _axes(self, node: Node, key: str) -> dict[str, Axis]:
        if node.kind != "mapping":
            self._fields.refuse(node, key, "a mapping of parameters")
            return {}
        axes = {}
        for entry in node.items():
            if entry.key in _RESERVED and key != "params":
                continue
            if entry.key in RUN_VALUES:
                hint = f"{{{entry.key}}} is one of the run's own values; choose another name"
                self._problems.add("this name is taken", join_key(key, entry.key), entry.position, hint)
            axes[entry.key] = self.axis(entry.node, join_key(key, entry.key))
        return axes

    def axis(self, node: Node, key: str, *, takes_mappings: bool = False) -> Axis:
        """Read an axis. `takes_mappings`: a mapping that is not a kind of axis is a value, as in other tools' files."""
        if node.kind == "mapping":
            entries = node.items()
            if len(entries) == 1 and entries[0].key in AXIS_KINDS:
                return self._special_axis(entries[0], key)
            if not takes_mappings:
                at = join_key(key, entries[0].key) if len(entries) == 1 else key
                position = entries[0].position if len(entries) == 1 else node.position
                shown = hide_params({key: node.value})[key]
                value = shown if isinstance(shown, dict) else {}
                hint = f"{_spell(value)}; a mapping meant as the value itself is written [{_flow(value)}]"
                self._problems.add("unknown kind of axis", at, position, hint)
        for each in (node, *node.elements()):
            if each.is_plain and (mistake := _find_mistake(each.text, each.value)):
                hint = f"{mistake[1]}; a text that looks like this goes into quotes"
                self._problems.add(mistake[0], key, each.position, hint)
        if node.is_plain and (several := _find_several(node.text)) and hide_params({key: node.text})[key] == node.text:
            what, meant, quotes = *several, "quotes"
            if not node.position.line:  # on the command line
                meant, quotes = quote(f"{key}={meant}"), "quotes inside of quotes"
            hint = f"for {what} write {meant}; a text that looks like this goes into {quotes}"
            self._problems.warnings.append(Problem(f"{node.text!r} is one text", key, node.position, hint))
        return build_axis(node, key, self._problems)

    def _special_axis(self, entry: Item, key: str) -> Axis:
        key = join_key(key, entry.key)
        if entry.key == "choice":
            elements = self._fields.elements(entry.node, key, "a list of values")
            return Choices(tuple(element.value for element in elements), entry.position)
        if entry.key == "range":
            return Choices(tuple(self._range(entry.node, key)), entry.position)
        if entry.key in _WHOLE and not self._is_whole(entry.node, key):
            return Random("int", 1, 2, entry.position)
        low, high = self._bounds(entry.node, key, positive=entry.key.startswith("log_"))
        if entry.key not in _WHOLE:
            low, high = float(low), float(high)
        return Random(cast("RandomKind", entry.key), low, high, entry.position)

    def _is_whole(self, node: Node, key: str) -> bool:
        values = [element.value for element in node.elements()]
        if len(values) != 2 or not all(isinstance(value, int) for value in values):
            self._fields.refuse(node, key, "two whole numbers", "write [low, high]; both are included")
            return False
        if not all(abs(value) < LARGEST_WHOLE for value in values):
            self._problems.add("the bounds must lie between -2**53 and 2**53", key, node.position)
        return all(abs(value) < LARGEST_WHOLE for value in values)

    def _bounds(self, node: Node, key: str, *, positive: bool) -> tuple[float, float]:
        elements = node.elements()
        if len(elements) != 2:
            self._fields.refuse(node, key, "two numbers", "write [low, high]")
            return 1.0, 2.0
        low, high = (self._fields.number(element, key) for element in elements)
        if low is None or high is None:
            return 1.0, 2.0
        if not low < high or high - low == float("inf"):
            message = f"the bounds {low:g} and {high:g} enclose nothing"
            self._problems.add(message, key, node.position, "low comes first")
        elif positive and low <= 0:
            plain = key.rpartition(".")[2].removeprefix("log_")
            self._problems.add("both bounds must be above zero", key, node.position, f"or use {plain}")
        return low, high

    def _range(self, node: Node, key: str) -> range:
        parts = node.elements() if node.kind == "sequence" else [node]
        numbers = [part.value for part in parts]
        wrong = [part for part in parts if type(part.value) is not int]
        if wrong or not 1 <= len(numbers) <= 3 or (len(numbers) == 3 and numbers[2] == 0):
            self._fields.refuse(wrong[0] if wrong else node, key, "one to three whole numbers", _RANGE_HINT)
            return range(1)
        found = range(*numbers)[: MAX_RANGE + 1]  # len() of a huge range overflows
        if not 0 < len(found) <= MAX_RANGE:
            what = "contains no number" if not found else f"holds more than {MAX_RANGE} numbers"
            self._problems.add(f"this range {what}", key, node.position, _RANGE_HINT)
        return found

    def _rules(self, entries: Mapping[str, Item], key: str) -> _Rules:
        zips = self._zips(entries["zip"].node, join_key(key, "zip")) if "zip" in entries else ()
        when = self._conditions(entries["when"].node, join_key(key, "when")) if "when" in entries else ()
        return _Rules(tuple(zips), tuple(when))

    def _zips(self, node: Node, key: str) -> list[tuple[tuple[str, ...], Node, str]]:
        elements = self._fields.elements(node, key, "a list of parameter names, or a list of such lists")
        nested = any(element.kind == "sequence" for element in elements)
        groups = elements if nested else [node] if elements else []
        found = [(self._fields.texts(group, key, "a list of parameter names"), group, key) for group in groups]
        for names, group, _ in found:
            if len(set(names)) < 2:
                self._problems.add("a zip group needs two parameters or more", key, group.position)
        return found

    def _conditions(self, node: Node, key: str) -> list[tuple[Condition, Item, str]]:
        found = []
        for entry in self._fields.open_mapping(node, key, "a mapping of parameters to values"):
            nodes = entry.node.elements() if entry.node.kind == "sequence" else [entry.node]
            found.append((Condition(entry.key, tuple(node.value for node in nodes)), entry, key))
        return found

    def _check(self, sweep: Sweep, rules: _Rules) -> Sweep:
        """Check zip and when against the axes of one sweep."""
        used: set[str] = set()
        for names, node, key in rules.zips:
            self._check_zip(names, node, sweep, key, used)
            used.update(names)
        for condition, entry, key in rules.when:
            self._check_condition(condition, entry, sweep, key)
        zips = tuple(names for names, _, _ in rules.zips)
        return replace(sweep, zips=zips, when=tuple(condition for condition, _, _ in rules.when))

    def _check_zip(self, names: tuple[str, ...], node: Node, sweep: Sweep, key: str, used: set[str]) -> None:
        lengths = {}
        for name in names:
            axis = sweep.axes.get(name)
            if axis is None:
                self._unknown(name, sweep, key, node)
            elif isinstance(axis, Random):
                self._problems.add(f"{name} is random and cannot be zipped", key, node.position)
            elif name in used:
                self._problems.add(f"{name} is in two zip groups", key, node.position, "join the groups into one")
            elif len(axis.values) != 1:  # a single value fits all the others
                lengths[name] = len(axis.values)
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            message, given = f"zipped parameters need equally many values: {counts}", self._overrides.axes
            changed = next((name for name in lengths if name in given), None)
            if changed is None:
                self._problems.add(message, key, node.position)
            else:
                hint = f"give {changed} one value, or as many as the others have"
                self._problems.add(message, "", given[changed].position, hint)

    def _check_condition(self, condition: Condition, entry: Item, sweep: Sweep, key: str) -> None:
        axis = sweep.axes.get(condition.param)
        if axis is None:
            self._unknown(condition.param, sweep, key, entry.node)
        elif isinstance(axis, Random):
            self._problems.add(f"{condition.param} is random and cannot be tested", key, entry.position)
        elif any(same_value(value, wanted) for value in axis.values for wanted in condition.values):
            return
        elif condition.param in self._overrides.axes:
            self._unmatched.append((str(sweep.position), condition))
        else:
            known = ", ".join(str(value) for value in axis.values[:12])
            key = join_key(key, condition.param)
            self._problems.add("no run has this value", key, entry.position, f"its values: {known}")

    def _unknown(self, name: str, sweep: Sweep, key: str, node: Node) -> None:
        self._problems.add(f"unknown parameter {name!r}", key, node.position, did_you_mean(name, sweep.axes))


def _find_mistake(text: str, value: Value) -> tuple[str, str] | None:
    """Return why a scalar without quotes is probably a mistake, and what to write."""
    if meant := translate_hydra(text):
        return "this is Hydra's notation, which Assay does not read", f"write {meant}"
    if text.count("(") > text.count(")"):
        meant = translate_hydra(f"{text}, …)") or f"[{text.rpartition('(')[2]}, …]"
        return "the parenthesis is not closed: between brackets a comma ends a value", f"write {meant}"
    if isinstance(value, float) and isinf(value) and "inf" not in text.lower():
        return "is beyond the largest number, about 1e308", f"for infinity write {'-' * (value < 0)}.inf"
    return None


def _find_several(text: str) -> tuple[str, str] | None:
    """Return what a text that looks like several numbers or a range probably means, and what to write."""
    if re.fullmatch(rf"{_NUMBER}(\s*,\s*{_NUMBER})+", text):
        return f"{text.count(',') + 1} values", f"[{text}]"
    if found := re.fullmatch(r"range:\s*(\d+)", text):
        return "a range", f"{{range: {found[1]}}}"
    if found := re.fullmatch(rf"{_NUMBER}\s*\.\.\s*{_NUMBER}", text):
        low, high = sorted((found[1], found[2]), key=float)
        if low.lstrip("+-").isdigit() and high.lstrip("+-").isdigit():
            return "a range", f"{{range: [{int(low)}, {int(high) + 1}]}}"
        return "a range", f"{{uniform: [{low}, {high}]}}"
    return None


def _spell(value: Mapping[str, Any]) -> str:
    """Return a hint on how to write a mapping that is not an axis, often another tool's notation."""
    import difflib

    for name in ("values", "value"):
        if name in value:
            return f"write {_flow(value[name])}"
    if kind := next((name for name in value if name in AXIS_KINDS), None):
        others = ", ".join(name for name in value if name != kind)
        counts = "; how many are drawn: `subset: {count: 20, seed: 0}`" if {"count", "seed"} & value.keys() else ""
        return f"an axis has no {others}: write {{{kind}: {_flow(value[kind])}}}{counts}"
    for low, high in _BOUNDS:
        if low in value and high in value:
            bounds = f"[{_flow(value[low])}, {_flow(value[high])}]"
            return f"write {{uniform: {bounds}}}, or for whole numbers {{int: {bounds}}}"
    for name in value:
        if close := difflib.get_close_matches(name, AXIS_KINDS, n=1, cutoff=0.75):
            return f"did you mean {close[0]!r}"
    return f"the kinds are {', '.join(AXIS_KINDS)}"


def _flow(value: Value) -> str:
    """Return a value as it can be written into a file; a long value is replaced by an ellipsis."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) <= _MOST_SHOWN:
        return text
    return "{…}" if isinstance(value, dict) else "[…]" if isinstance(value, list) else "…"


def find_grid_names(top: Mapping[str, Item]) -> list[str]:
    """Return every parameter that `params` and `sweep` name."""
    names = [entry.key for entry in top["params"].node.items()] if "params" in top else []
    node = top["sweep"].node if "sweep" in top else None
    items = [] if node is None else node.elements() if node.kind == "sequence" else [node]
    names += [entry.key for item in items for entry in item.items() if entry.key not in _RESERVED]
    return list(dict.fromkeys(names))
