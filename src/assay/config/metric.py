"""`metrics` and `checks` of a native file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Literal, cast

from assay.config.fields import Fields
from assay.config.source import Entry, Node, join_key
from assay.errors import did_you_mean
from assay.values.series import NUMBER
from assay.values.study import Check, MetricFile, Pattern

_FILE_KINDS = ("jsonl", "csv", "tensorboard")
_PATTERN_KEYS = ("regex", "labels", "command")
_AT = ("last", "best", "min", "max", "mean")
_GROUP_HINT = "put what is to be read into a group, as in 'loss=({number})'"


def expand_number(regex: str) -> str:
    """Fills in `{number}`; a pattern that has one `{number}` and no group gets the group around it."""
    bare = regex.count("{number}") == 1 and not _has_group(regex.replace("{number}", "0"))
    return regex.replace("{number}", f"({NUMBER})" if bare else NUMBER)


def _has_group(regex: str) -> bool:
    try:
        return re.compile(regex).groups > 0
    except re.error:
        return True


class MetricReader:
    def __init__(self, fields: Fields, commands: tuple[str, ...]) -> None:
        self._fields = fields
        self._problems = fields.problems
        self._commands = commands

    def metrics(self, node: Node) -> tuple[Pattern | MetricFile, ...]:
        found: list[Pattern | MetricFile] = []
        for entry in self._fields.open_mapping(node, "metrics", "a mapping of metric names to patterns"):
            found.extend(self._metric(entry.key, entry.node, join_key("metrics", entry.key)))
        return tuple(found)

    def _metric(self, name: str, node: Node, key: str) -> list[Pattern | MetricFile]:
        if node.kind == "sequence":
            elements = self._fields.elements(node, key, "a list of patterns")
            nested = [self._metric(name, element, f"{key}[{index}]") for index, element in enumerate(elements)]
            return [metric for group in nested for metric in group]
        if node.kind == "scalar":
            pattern = self._pattern(name, node, key)
            return [pattern] if pattern else []
        entries = self._fields.mapping(node, key, (*_PATTERN_KEYS, *_FILE_KINDS, "step"))
        kinds = [kind for kind in (*_FILE_KINDS, "regex") if kind in entries]
        if len(kinds) != 1:
            self._problems.add("say one of regex, jsonl, csv or tensorboard", key, node.position)
            return []
        found = self._pattern_from(name, entries, key) if kinds == ["regex"] else self._file(kinds[0], entries, key)
        return [found] if found else []

    def _file(self, kind: str, entries: Mapping[str, Entry], key: str) -> MetricFile | None:
        self._refuse_keys(entries, ("regex", "labels", "command"), key, f"does not go with {kind}")
        node = entries[kind].node
        path = self._fields.text(node, join_key(key, kind), "a path inside the run's directory")
        step = self._fields.text(entries["step"].node, join_key(key, "step")) if "step" in entries else None
        if path is None:
            return None
        if os.path.isabs(path) or ".." in path.split("/"):
            hint = "write it relative to the run's directory, as in metrics.jsonl or logs/*.csv"
            self._problems.add("the file must be inside the run's directory", join_key(key, kind), node.position, hint)
        return MetricFile(cast("Literal['jsonl', 'csv', 'tensorboard']", kind), path, step, node.position)

    def _pattern_from(self, name: str, entries: Mapping[str, Entry], key: str) -> Pattern | None:
        self._refuse_keys(entries, ("step",), key, "goes with jsonl, csv and tensorboard files")
        labels: tuple[str, ...] = ()
        if "labels" in entries:
            labels = self._fields.texts(entries["labels"].node, join_key(key, "labels"), "a list of names")
        command = self._command(entries["command"].node, join_key(key, "command")) if "command" in entries else None
        return self._pattern(name, entries["regex"].node, join_key(key, "regex"), labels, command)

    def _refuse_keys(self, entries: Mapping[str, Entry], keys: tuple[str, ...], key: str, why: str) -> None:
        for name in keys:
            if name in entries:
                self._problems.add(f"{name} {why}", join_key(key, name), entries[name].position)

    def _command(self, node: Node, key: str) -> str | None:
        command = self._fields.text(node, key)
        if command is not None and command not in self._commands:
            self._problems.add(f"no command {command!r}", key, node.position, did_you_mean(command, self._commands))
        return command

    def _pattern(
        self, name: str, node: Node, key: str, labels: tuple[str, ...] = (), command: str | None = None
    ) -> Pattern | None:
        text = self._fields.text(node, key, "a regular expression")
        if text is None:
            return None
        regex = expand_number(text)
        try:
            compiled = re.compile(regex)
        except (re.error, OverflowError, RecursionError) as error:
            self._problems.add(f"the regular expression is broken: {error}", key, node.position)
            return None
        if not compiled.groups:
            self._problems.add("the pattern has no group", key, node.position, _GROUP_HINT)
        if labels and len(labels) != compiled.groups:
            message = f"{len(labels)} labels for {compiled.groups} groups"
            self._problems.add(message, key, node.position, "give each group of the pattern one label")
        return Pattern(name, regex, labels, command, node.position)

    # ------------------------------------------------------------ checks

    def checks(self, node: Node) -> tuple[Check, ...]:
        elements = self._fields.elements(node, "checks", "a list of checks, as in [{metric: loss, max: 0.5}]")
        found = [self._check(element, f"checks[{index}]") for index, element in enumerate(elements)]
        return tuple(check for check in found if check is not None)

    def _check(self, node: Node, key: str) -> Check | None:
        entries = self._fields.mapping(node, key, ("metric", "at", "min", "max"))
        if "metric" not in entries:
            if node.kind == "mapping":
                self._problems.add("says no metric", key, node.position, "as in {metric: loss, max: 0.5}")
            return None
        metric = self._fields.text(entries["metric"].node, join_key(key, "metric"))
        at = self._fields.one_of(entries["at"].node, join_key(key, "at"), _AT) if "at" in entries else "last"
        low, high = self._bound(entries, "min", key), self._bound(entries, "max", key)
        if "min" not in entries and "max" not in entries:
            self._problems.add("says no bound", key, node.position, "add min, max or both")
        if low is not None and high is not None and low > high:
            self._problems.add(f"min {low:g} is above max {high:g}: nothing can pass", key, node.position)
        if metric is None or at is None:
            return None
        return Check(metric, cast("Literal['last', 'best', 'min', 'max', 'mean']", at), low, high, node.position)

    def _bound(self, entries: Mapping[str, Entry], name: str, key: str) -> float | None:
        return self._fields.number(entries[name].node, join_key(key, name)) if name in entries else None
