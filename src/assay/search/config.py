"""Reads `search` and `stop` of a native study file: a Search, and the rules that end runs early."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any, Literal, cast

from assay.config.fields import Fields
from assay.config.source import Item, Node, join_key
from assay.errors import suggest
from assay.values.series import find_direction
from assay.values.study import AT, At, Objective, Position, Random, Sampler, Search, StopRule, Sweep

_SAMPLERS = ("tpe", "random", "cmaes", "qmc", "grid")
_DIRECTIONS = ("min", "max")
_UNKNOWN, _DIRECT = "whether {!r} should be small or large is not known", "add `direction: min` or `direction: max`"
_NOT_BESIDE = {
    "subset": "a search chooses its runs itself; remove one of the two",
    "repeat": "a search runs each proposal once; take the mean over seeds inside the command",
}
_OBJECTIVE = "as in {metric: loss, direction: min}"
_RULES: Mapping[str, tuple[str, ...]] = {
    "asha": ("at",),
    "median": ("at",),
    "patience": ("patience", "min_delta"),
    "bounds": ("min", "max", "finite", "target"),
}
_RULE_KEYS = tuple(dict.fromkeys(name for names in _RULES.values() for name in names))
_EXAMPLES = {
    "asha": "as in {rule: asha, metric: loss, at: {min: 2, factor: 2}}",
    "median": "as in {rule: median, metric: loss, at: {min: 5, every: 1}}",
    "patience": "as in {rule: patience, metric: loss, patience: 10}",
    "bounds": "as in {rule: bounds, metric: loss, max: 10}",
}
_AT_KEYS = {"asha": ("min", "factor", "max", "runs"), "median": ("min", "every", "runs")}
_FIRST = {"asha": 2, "median": 5}


def read_search(fields: Fields, top: Mapping[str, Item], sweeps: tuple[Sweep, ...]) -> Search | None:
    return _SearchReader(fields.problems).search(top, sweeps)


def read_stop(fields: Fields, top: Mapping[str, Item], _sweeps: object) -> tuple[StopRule, ...]:
    return _StopReader(fields.problems).rules(top["stop"].node)


class _SearchReader(Fields):
    _patterns: tuple[str, ...] = ()  # metrics that the study file names

    def search(self, top: Mapping[str, Item], sweeps: tuple[Sweep, ...]) -> Search | None:
        if "metrics" in top and top["metrics"].node.kind == "mapping":
            self._patterns = tuple(entry.key for entry in top["metrics"].node.items())
        node = top["search"].node
        known = ("sampler", "metric", "metrics", "direction", "trials", "seed", "at")
        entries = self.mapping(node, "search", known)
        if node.kind != "mapping":
            return None
        for key, hint in _NOT_BESIDE.items():
            if key in top:
                self.problems.add("does not go with search", key, top[key].position, hint)
        sampler = self.child(entries, "sampler", "search", partial(self.one_of, choices=_SAMPLERS), "tpe")
        trials = self.child(entries, "trials", "search", partial(self.integer, minimum=1), None)
        if "trials" not in entries and sampler != "grid":
            self.problems.add("has no trials", "search", node.position, "add `trials: 60`, the most runs it starts")
        seed = self.child(entries, "seed", "search", self.integer, 0)
        at = self.child(entries, "at", "search", partial(self.one_of, choices=AT), "best")
        objectives = self._objectives(node, entries)
        if sampler == "cmaes" and len(objectives) > 1:
            position = entries["sampler"].position
            self.problems.add("cmaes takes one metric", "search.sampler", position, "use tpe, random or qmc")
        axes = {name: axis for sweep in sweeps for name, axis in sweep.axes.items() if isinstance(axis, Random)}
        for name, axis in axes.items() if sampler == "grid" else ():
            if axis.kind in ("uniform", "log_uniform"):
                hint = "list its values, or choose another sampler"
                self.problems.add("a grid needs listed values, not a continuous range", name, axis.position, hint)
        return Search(cast("Sampler", sampler), objectives, trials, seed, cast("At", at), node.position)

    def _objectives(self, node: Node, entries: Mapping[str, Item]) -> tuple[Objective, ...]:
        """Parse `metric: loss, direction: min`, lists of both, or `metrics: [{metric: loss, direction: min}]`."""
        if "metrics" in entries:
            for name in ("metric", "direction"):
                if name in entries:
                    self.problems.add("give either metric or metrics", f"search.{name}", entries[name].position)
            nodes = self.elements(entries["metrics"].node, "search.metrics", "a list such as [loss, time]")
            found = [self._objective(each, f"search.metrics[{index}]") for index, each in enumerate(nodes)]
        elif "metric" in entries:
            found = self._paired_objectives(entries)
        else:
            self.problems.add("has no metric", "search", node.position, _OBJECTIVE)
            return ()
        objectives = tuple(each for each in found if each is not None)
        names = [each.metric for each in objectives]
        if not names and not self.problems.found:
            self.problems.add("does not name a metric", "search", node.position, _OBJECTIVE)
        if len(set(names)) < len(names):
            self.problems.add("a metric is listed twice", "search", node.position)
        return objectives

    def _paired_objectives(self, entries: Mapping[str, Item]) -> list[Objective | None]:
        metric = entries["metric"]
        names = self.texts(metric.node, "search.metric", "the name of a metric, or a list of names")
        nodes: list[Node | None] = [None] * len(names)
        if "direction" in entries:
            direction = entries["direction"].node
            nodes = [*direction.elements()] if direction.kind == "sequence" else [direction]
            if len(nodes) != len(names):
                message = f"{len(nodes)} directions for {len(names)} metrics"
                self.problems.add(message, "search.direction", direction.position, "give each metric one of min, max")
                return []
        pairs = zip(names, nodes, strict=True)
        return [self._build_objective(name, node, "search.direction", metric.position) for name, node in pairs]

    def _objective(self, node: Node, key: str) -> Objective | None:
        direction = None
        if node.kind == "mapping":
            entries = self.mapping(node, key, ("metric", "direction"))
            if "metric" not in entries:
                self.problems.add("has no metric", key, node.position, _OBJECTIVE)
                return None
            name = self.text(entries["metric"].node, join_key(key, "metric"))
            key, direction = join_key(key, "direction"), entries["direction"].node if "direction" in entries else None
        else:
            name = self.text(node, key, "the name of a metric, or {metric: loss, direction: min}")
        return self._build_objective(name, direction, key, node.position) if name else None

    def _build_objective(self, name: str, node: Node | None, key: str, position: Position | None) -> Objective | None:
        """Build an objective. Without a direction, a well-known metric's name decides; other names are a problem."""
        direction = self.one_of(node, key, _DIRECTIONS) if node else find_direction(name)
        if direction is None:
            if node is None:
                close = suggest(name, self._patterns) if name not in self._patterns else None
                self.problems.add(_UNKNOWN.format(name), key, position, close or _DIRECT)
            return None
        return Objective(name, cast("Literal['min', 'max']", direction))


class _StopReader(Fields):
    def rules(self, node: Node) -> tuple[StopRule, ...]:
        """Build the rules from one mapping or a list of mappings."""
        named = [(node, "stop")]
        if node.kind == "sequence":
            elements = self.elements(node, "stop", "a rule, or a list of rules")
            named = [(element, f"stop[{index}]") for index, element in enumerate(elements)]
        return tuple(rule for each in named if (rule := self._rule(*each)) is not None)

    def _rule(self, node: Node, key: str) -> StopRule | None:
        entries = self.mapping(node, key, ("rule", "metric", "direction", *_RULE_KEYS))
        if node.kind != "mapping":
            return None
        kind = self.child(entries, "rule", key, partial(self.one_of, choices=_RULES), None)
        for name in ("rule", "metric"):
            if name not in entries:
                self.problems.add(f"has no {name}", key, node.position, _EXAMPLES[kind or "asha"])
        metric = self.child(entries, "metric", key, self.text, None)
        if kind is None:
            return None
        for name, entry in entries.items():
            if name in _RULE_KEYS and name not in _RULES[kind]:
                goes = " and ".join(other for other, names in _RULES.items() if name in names)
                hint = f"{goes} has it; {kind} is written {_EXAMPLES[kind]}"
                self.problems.add(f"does not go with {kind}", join_key(key, name), entry.position, hint)
        values = self._compared(kind, entries, key) if "at" in _RULES[kind] else self._alone(kind, entries, key, node)
        if metric is None:
            return None
        direction: Any = self._direction(metric, entries, key, is_needed=kind != "bounds" or "target" in entries)
        return StopRule(cast("Any", kind), metric, direction, position=node.position, **values)

    def _direction(self, metric: str, entries: Mapping[str, Item], key: str, *, is_needed: bool) -> str:
        """Return the direction. Without the key, only a well-known name decides: a wrong guess would end good runs."""
        found: str | None = find_direction(metric)
        if "direction" not in entries and found is None and is_needed:
            self.problems.add(_UNKNOWN.format(metric), join_key(key, "metric"), entries["metric"].position, _DIRECT)
        return self.child(entries, "direction", key, partial(self.one_of, choices=_DIRECTIONS), found or "min")

    # ------------------------------------------------------------ compared with other runs

    def _compared(self, kind: str, entries: Mapping[str, Item], key: str) -> dict[str, Any]:
        if "at" not in entries:
            return {"first": _FIRST[kind]}
        node, key = entries["at"].node, join_key(key, "at")
        if node.kind == "sequence":
            elements = self.elements(node, key, "a list of steps")
            steps = [self.number(each, f"{key}[{index}]") for index, each in enumerate(elements)]
            known = [step for step in steps if step is not None]
            if any(low >= high for low, high in pairwise(known)) or any(not 0 <= step < math.inf for step in known):
                self.problems.add("the steps must rise", key, node.position, "as in [1, 3, 9, 27]")
            return {"at": tuple(known)}
        if node.kind != "mapping":
            hint = "a list of steps, as in [1, 3, 9, 27], or " + _EXAMPLES[kind]
            self.refuse(node, key, "a mapping or a list", hint)
            return {}
        own = self.mapping(node, key, _AT_KEYS[kind])
        found: dict[str, Any] = {"first": self._above(own, "min", key, 0, _FIRST[kind])}
        if kind == "asha":
            found["factor"] = self._above(own, "factor", key, 1, 2)
            found["until"] = self._above(own, "max", key, found["first"], None)
        else:
            found["every"] = self._above(own, "every", key, 0, 1)
        runs = self.child(own, "runs", key, partial(self.integer, minimum=1), None)
        return {**found, **({} if runs is None else {"runs": runs})}

    def _above(self, entries: Mapping[str, Item], name: str, key: str, least: float, default: Any) -> Any:
        """Return a finite number above `least`; report another number, and return the default."""
        found = self.child(entries, name, key, self.number, None)
        if found is None or least < found < math.inf:
            return default if found is None else found
        node = entries[name].node
        self.problems.add(f"must be above {least:g}, not {node.text}", join_key(key, name), node.position)
        return default

    # ------------------------------------------------------------ by itself

    def _alone(self, kind: str, entries: Mapping[str, Item], key: str, node: Node) -> dict[str, Any]:
        if kind == "patience":
            if "patience" not in entries:
                hint = "the steps without a better value after which a run ends, " + _EXAMPLES[kind]
                self.problems.add("has no patience", key, node.position, hint)
            delta = self.child(entries, "min_delta", key, self.number, 0.0)
            if not 0 <= delta < math.inf:
                self.problems.add("must be 0 or more", join_key(key, "min_delta"), entries["min_delta"].position)
            return {"patience": self._above(entries, "patience", key, 0, 10), "min_delta": delta}
        finite = self.child(entries, "finite", key, self.boolean, True)
        low, high, target = (self.child(entries, name, key, self.number, None) for name in ("min", "max", "target"))
        if not finite and not {"min", "max", "target"} & set(entries):
            self.problems.add("has no bound", key, node.position, "add min, max or target, or leave out finite")
        if low is not None and high is not None and low > high:
            self.problems.add(f"min {low:g} is above max {high:g}: every run would end", key, node.position)
        return {"min": low, "max": high, "finite": finite, "target": target}
