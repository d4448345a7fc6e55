"""`search` of a native file → Search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from assay.config.fields import Fields
from assay.config.source import Entry, Node, join_key
from assay.values.series import find_direction
from assay.values.study import AT, At, Objective, Position, Random, Sampler, Search, Sweep

_SAMPLERS = ("tpe", "random", "cmaes", "qmc", "grid")


def read_search(fields: Fields, top: Mapping[str, Entry], sweeps: tuple[Sweep, ...]) -> Search | None:
    return _SearchReader(fields).search(top, sweeps)


class _SearchReader:
    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._problems = fields.problems
        self._patterns: list[str] = []  # names that the file gives to metrics

    def search(self, top: Mapping[str, Entry], sweeps: tuple[Sweep, ...]) -> Search | None:
        metrics = top["metrics"].node if "metrics" in top else None
        self._patterns = [entry.key for entry in metrics.items()] if metrics and metrics.kind == "mapping" else []
        node = top["search"].node
        known = ("sampler", "metric", "metrics", "direction", "trials", "seed", "at")
        entries = self._fields.mapping(node, "search", known)
        if node.kind != "mapping":
            return None
        self._refuse_beside(top)
        sampler = "tpe"
        if "sampler" in entries:
            sampler = self._fields.one_of(entries["sampler"].node, "search.sampler", _SAMPLERS) or sampler
        trials = self._fields.integer(entries["trials"].node, "search.trials", 1) if "trials" in entries else None
        if "trials" not in entries and sampler != "grid":
            self._problems.add("says no trials", "search", node.position, "add `trials: 60`, the most runs it starts")
        seed = self._fields.integer(entries["seed"].node, "search.seed", 0) if "seed" in entries else 0
        at = self._fields.one_of(entries["at"].node, "search.at", AT) if "at" in entries else "best"
        objectives = self._objectives(node, entries)
        if sampler == "cmaes" and len(objectives) > 1:
            position = entries["sampler"].position
            self._problems.add("cmaes takes one metric", "search.sampler", position, "use tpe, random or qmc")
        if sampler == "grid":
            self._refuse_endless(sweeps)
        return Search(cast("Sampler", sampler), objectives, trials, seed or 0, cast("At", at or "best"), node.position)

    def _refuse_beside(self, top: Mapping[str, Entry]) -> None:
        hints = {
            "subset": "a search chooses its runs itself; remove one of the two",
            "repeat": "a search runs each proposal once; take the mean over seeds inside the command",
        }
        for key, hint in hints.items():
            if key in top:
                self._problems.add("does not go with search", key, top[key].position, hint)

    def _refuse_endless(self, sweeps: tuple[Sweep, ...]) -> None:
        axes = {name: axis for sweep in sweeps for name, axis in sweep.axes.items() if isinstance(axis, Random)}
        for name, axis in axes.items():
            if axis.kind in ("uniform", "log_uniform"):
                hint = "list its values, or choose another sampler"
                self._problems.add("a grid needs listed values, not a continuous range", name, axis.position, hint)

    def _objectives(self, node: Node, entries: Mapping[str, Entry]) -> tuple[Objective, ...]:
        """`metric: loss, direction: min`, lists of both, or `metrics: [{metric: loss, direction: min}]`."""
        if "metrics" in entries:
            for name in ("metric", "direction"):
                if name in entries:
                    self._problems.add("give either metric or metrics", f"search.{name}", entries[name].position)
            found = [
                self._objective(each, f"search.metrics[{index}]")
                for index, each in enumerate(
                    self._fields.elements(entries["metrics"].node, "search.metrics", "a list such as [loss, time]")
                )
            ]
            objectives = [each for each in found if each is not None]
        elif "metric" in entries:
            objectives = self._paired_objectives(entries)
        else:
            self._problems.add("says no metric", "search", node.position, "as in {metric: loss, direction: min}")
            return ()
        names = [each.metric for each in objectives]
        if not names and not self._problems.found:
            self._problems.add("names no metric", "search", node.position, "as in {metric: loss, direction: min}")
        if len(set(names)) < len(names):
            self._problems.add("a metric is listed twice", "search", node.position)
        return tuple(objectives)

    def _paired_objectives(self, entries: Mapping[str, Entry]) -> list[Objective]:
        metric = entries["metric"]
        names = self._fields.texts(metric.node, "search.metric", "the name of a metric, or a list of names")
        nodes: list[Node] = []
        if "direction" in entries:
            direction = entries["direction"].node
            nodes = direction.elements() if direction.kind == "sequence" else [direction]
            if len(nodes) != len(names):
                message = f"{len(nodes)} directions for {len(names)} metrics"
                self._problems.add(message, "search.direction", direction.position, "give each metric one of min, max")
                return []
        found = [
            self._build_objective(name, nodes[index] if nodes else None, "search.direction", metric.position)
            for index, name in enumerate(names)
        ]
        return [each for each in found if each is not None]

    def _objective(self, node: Node, key: str) -> Objective | None:
        if node.kind != "mapping":
            name = self._fields.text(node, key, "the name of a metric, or {metric: loss, direction: min}")
            return self._build_objective(name, None, key, node.position) if name else None
        entries = self._fields.mapping(node, key, ("metric", "direction"))
        if "metric" not in entries:
            self._problems.add("says no metric", key, node.position, "as in {metric: loss, direction: min}")
            return None
        name = self._fields.text(entries["metric"].node, join_key(key, "metric"))
        direction = entries["direction"].node if "direction" in entries else None
        return self._build_objective(name, direction, join_key(key, "direction"), node.position) if name else None

    def _build_objective(self, name: str, node: Node | None, key: str, position: Position | None) -> Objective | None:
        """Without a direction the metric's name decides, where it is a well-known one."""
        import difflib

        direction = self._fields.one_of(node, key, ("min", "max")) if node else find_direction(name)
        if direction is None:
            if node is None:
                close = difflib.get_close_matches(name, self._patterns, n=1, cutoff=0.75)
                hint = f"did you mean {close[0]!r}?" if close else "add `direction: min` or `direction: max`"
                self._problems.add(f"whether {name!r} should be small or large is not known", key, position, hint)
            return None
        return Objective(name, cast("Literal['min', 'max']", direction))
