"""`stop:` of a native file: rules that end runs early."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal, cast

from assay.config.fields import Fields
from assay.config.source import Entry, Node, join_key
from assay.values.series import find_direction
from assay.values.study import StopRule

_KEYS: Mapping[str, tuple[str, ...]] = {
    "asha": ("at",),
    "median": ("at",),
    "patience": ("patience", "min_delta"),
    "bounds": ("min", "max", "finite", "target"),
}
_EXAMPLES = {
    "asha": "as in {rule: asha, metric: loss, at: {min: 2, factor: 2}}",
    "median": "as in {rule: median, metric: loss, at: {min: 5, every: 1}}",
    "patience": "as in {rule: patience, metric: loss, patience: 10}",
    "bounds": "as in {rule: bounds, metric: loss, max: 10}",
}
_AT_KEYS = {"asha": ("min", "factor", "max", "runs"), "median": ("min", "every", "runs")}
_FIRST = {"asha": 2, "median": 5}


def read_stop(fields: Fields, top: Mapping[str, Entry], _sweeps: object) -> tuple[StopRule, ...]:
    return _StopReader(fields).rules(top["stop"].node)


class _StopReader:
    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._problems = fields.problems

    def rules(self, node: Node) -> tuple[StopRule, ...]:
        """One mapping, or a list of them."""
        if node.kind != "sequence":
            rule = self._rule(node, "stop")
            return (rule,) if rule else ()
        elements = self._fields.elements(node, "stop", "a rule, or a list of rules")
        found = [self._rule(element, f"stop[{index}]") for index, element in enumerate(elements)]
        return tuple(rule for rule in found if rule is not None)

    def _rule(self, node: Node, key: str) -> StopRule | None:
        every_key = tuple(dict.fromkeys(name for names in _KEYS.values() for name in names))
        entries = self._fields.mapping(node, key, ("rule", "metric", "direction", *every_key))
        if node.kind != "mapping":
            return None
        kind = self._fields.one_of(entries["rule"].node, join_key(key, "rule"), _KEYS) if "rule" in entries else None
        for name in ("rule", "metric"):
            if name not in entries:
                self._problems.add(f"says no {name}", key, node.position, _EXAMPLES[kind or "asha"])
        metric = self._fields.text(entries["metric"].node, join_key(key, "metric")) if "metric" in entries else None
        if kind is None:
            return None
        for name, entry in entries.items():
            if name in every_key and name not in _KEYS[kind]:
                goes = " and ".join(other for other, names in _KEYS.items() if name in names)
                hint = f"{goes} has it; {kind} is written {_EXAMPLES[kind]}"
                self._problems.add(f"does not go with {kind}", join_key(key, name), entry.position, hint)
        values = self._compared(kind, entries, key) if "at" in _KEYS[kind] else self._alone(kind, entries, key, node)
        if metric is None:
            return None
        direction = self._direction(metric, entries, key, is_needed=kind != "bounds" or "target" in entries)
        return StopRule(
            cast("Literal['asha', 'median', 'patience', 'bounds']", kind),
            metric,
            cast("Literal['min', 'max']", direction),
            position=node.position,
            **values,
        )

    def _direction(self, metric: str, entries: Mapping[str, Entry], key: str, *, is_needed: bool) -> str:
        """Without a key the metric's name decides, where it is a well-known one: a guess would end the best."""
        if "direction" in entries:
            node = entries["direction"].node
            return self._fields.one_of(node, join_key(key, "direction"), ("min", "max")) or "min"
        found = find_direction(metric)
        if found is None and is_needed:
            message = f"whether {metric!r} should be small or large is not known"
            hint = "add `direction: min` or `direction: max`"
            self._problems.add(message, join_key(key, "metric"), entries["metric"].position, hint)
        return found or "min"

    # ------------------------------------------------------------ compared with other runs

    def _compared(self, kind: str, entries: Mapping[str, Entry], key: str) -> dict[str, Any]:
        if "at" not in entries:
            return {"first": _FIRST[kind]}
        node, key = entries["at"].node, join_key(key, "at")
        if node.kind == "sequence":
            return self._steps(node, key)
        if node.kind != "mapping":
            hint = "a list of steps, as in [1, 3, 9, 27], or " + _EXAMPLES[kind]
            self._fields.refuse(node, key, "a mapping or a list", hint)
            return {}
        fields = self._fields.mapping(node, key, _AT_KEYS[kind])
        found: dict[str, Any] = {"first": self._above(fields, "min", key, 0, _FIRST[kind])}
        if kind == "asha":
            found["factor"] = self._above(fields, "factor", key, 1, 2)
            found["until"] = self._above(fields, "max", key, found["first"], None)
        else:
            found["every"] = self._above(fields, "every", key, 0, 1)
        if "runs" in fields:
            found["runs"] = self._fields.integer(fields["runs"].node, join_key(key, "runs"), 1) or 1
        return found

    def _steps(self, node: Node, key: str) -> dict[str, Any]:
        elements = self._fields.elements(node, key, "a list of steps")
        steps = [self._fields.number(each, f"{key}[{index}]") for index, each in enumerate(elements)]
        known = [step for step in steps if step is not None]
        if any(low >= high for low, high in pairwise(known)) or any(not 0 <= step < math.inf for step in known):
            self._problems.add("the steps must rise", key, node.position, "as in [1, 3, 9, 27]")
        return {"at": tuple(known)}

    def _above(self, entries: Mapping[str, Entry], name: str, key: str, least: float, default: Any) -> Any:
        """A finite number above the least one."""
        if name not in entries:
            return default
        node, key = entries[name].node, join_key(key, name)
        found = self._fields.number(node, key)
        if found is None or least < found < math.inf:
            return default if found is None else found
        self._problems.add(f"must be above {least:g}, not {node.text}", key, node.position)
        return default

    # ------------------------------------------------------------ by itself

    def _alone(self, kind: str, entries: Mapping[str, Entry], key: str, node: Node) -> dict[str, Any]:
        if kind == "patience":
            if "patience" not in entries:
                hint = "the steps without a better value after which a run ends, " + _EXAMPLES[kind]
                self._problems.add("says no patience", key, node.position, hint)
            found = {"patience": self._above(entries, "patience", key, 0, 10), "min_delta": 0.0}
            delta = self._number(entries, "min_delta", key)
            if delta is not None and not 0 <= delta < math.inf:
                self._problems.add("must be 0 or more", join_key(key, "min_delta"), entries["min_delta"].position)
            return {**found, "min_delta": delta or 0.0}
        finite = True
        if "finite" in entries:
            finite = self._fields.boolean(entries["finite"].node, join_key(key, "finite")) is not False
        low, high, target = (self._number(entries, name, key) for name in ("min", "max", "target"))
        if not finite and not {"min", "max", "target"} & set(entries):
            self._problems.add("says no bound", key, node.position, "add min, max or target, or leave out finite")
        if low is not None and high is not None and low > high:
            self._problems.add(f"min {low:g} is above max {high:g}: every run would end", key, node.position)
        return {"min": low, "max": high, "finite": finite, "target": target}

    def _number(self, entries: Mapping[str, Entry], name: str, key: str) -> float | None:
        return self._fields.number(entries[name].node, join_key(key, name)) if name in entries else None
