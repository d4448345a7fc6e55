"""Parses YAML of the original convergence harness into GoldenTests, one for each top-level name.

A file that the original harness accepts has the same effect, with a warning if the effect may surprise a user; an entry
that can only lead to a wrong verdict is an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, cast

from assay.config.fields import Fields, build_duplicate_warnings
from assay.config.source import Item, Node, Problems, join_key
from assay.errors import did_you_mean
from assay.golden.values import (
    OPERATORS,
    FlagSpec,
    GoldenTest,
    MissingFlag,
    MissingOption,
    MissingSection,
    Operator,
    Rule,
)
from assay.system.fast_dataclasses import replace
from assay.values.run import LogStream
from assay.values.study import STUDY_NAME_RULE, Pattern, Problem, is_study_name

Mode = Literal["gather", "run"]

STEP, SAVE = "step_num", "model_save"
SET_BY_US: dict[str, tuple[str, ...]] = {
    "gather": ("checkpoint_output",),
    "run": ("checkpoint_input", "start_step", "run_for"),
}
_KEYS = ("directory", "executable", "log_output", "log_parsing", "metrics", "recording", "flags", "timeout")
_NEEDED = ("executable", "log_parsing", "metrics", "recording", "flags")
_FLAG_KEYS = ("key", "value", "set_in_script")
_FLAG_EXAMPLE = "{key: --flag, set_in_script: true}"
_LENGTH = "run_for"  # the flag that may have `counts`
_STEPS = "steps_to_record_after_save"
_SHAPE = "each top-level name is a test with the keys " + ", ".join(_KEYS)


def looks_like_convergence(nodes: Sequence[Node]) -> bool:
    first = next((node for node in nodes if node.kind == "mapping"), None)
    tests = [entry.node for entry in first.items() if entry.node.kind == "mapping"] if first else []
    return any(test.find("log_parsing") or test.find("executable") for test in tests)


def parse_convergence(
    nodes: Sequence[Node], needs: Sequence[Mode]
) -> tuple[tuple[GoldenTest, ...], tuple[Problem, ...]]:
    """Return tests and warnings; raise ConfigError with all problems. As in the original harness, `flags` must
    have both sections, and only a section that is used (`needs`) must be complete."""
    problems = Problems()
    documents = [node for node in nodes if not node.is_null]
    for extra in documents[1:]:
        problems.add("the file holds one document", "", extra.position, "remove the `---` line")
    warnings = build_duplicate_warnings(documents)
    tests = [_TestReader(entry, problems, warnings, needs).test() for entry in documents[0].items()]
    if not tests:
        problems.add("there is no test", "", documents[0].position, _SHAPE)
    problems.raise_if_any()
    return tuple(test for test in tests if test is not None), tuple(warnings)


def compile_regex(text: str, key: str, node: Node, problems: Problems) -> re.Pattern[str] | None:
    """Return the compiled expression; None, and add a problem, if it is not valid."""
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        problems.add(f"the regular expression is broken: {error} in {text!r}", key, node.position)
        return None


class _TestReader(Fields):
    def __init__(self, entry: Item, problems: Problems, warnings: list[Problem], needs: Sequence[Mode]) -> None:
        super().__init__(problems)
        self._entry = entry
        self._name = entry.key
        self._warnings = warnings
        self._needs = needs

    def test(self) -> GoldenTest | None:
        if not is_study_name(self._name, from_file=True):
            self.problems.add("cannot name a test", self._name, self._entry.position, STUDY_NAME_RULE)
        if self._entry.node.kind != "mapping":
            self.refuse(self._entry.node, self._name, "a test", _SHAPE)
            return None
        self._top = top = self._known(self._entry.node, self._name, _KEYS)
        for key in _NEEDED:
            if key not in top:
                self._miss(MissingOption, f"the section {key} is missing", self._name, self._entry)
        patterns: dict[str, Pattern] = self.child(top, "log_parsing", self._name, self._patterns, {})
        metrics = tuple(pattern for name, pattern in patterns.items() if name not in (STEP, SAVE))
        rules = self._rules(top["metrics"].node, patterns) if "metrics" in top else ()
        flags: dict[str, tuple[FlagSpec, ...]] = self.child(top, "flags", self._name, self._flags, {})
        steps = self.child(top, "recording", self._name, self._steps, None)
        step, save = patterns.get(STEP), patterns.get(SAVE)
        executable: tuple[str, ...] = self.child(top, "executable", self._name, self._executable, ())
        if step is None or save is None or steps is None or not executable:
            return None
        return GoldenTest(
            name=self._name,
            executable=executable,
            directory=self.child(top, "directory", self._name, partial(self.text, wanted="a folder"), None),
            stream=self.child(top, "log_output", self._name, self._stream, "stdout"),
            step=step,
            save=save,
            metrics=metrics,
            rules=rules,
            steps_to_record=steps,
            gather_flags=flags.get("gather", ()),
            run_flags=flags.get("run", ()),
            position=self._entry.position,
            same_line=True,
            timeout_s=self.child(top, "timeout", self._name, self.duration, None),
        )

    def _warn(self, message: str, key: str, node: Node | Item, hint: str | None = None) -> None:
        self._warnings.append(Problem(message, key, node.position, hint))

    def _miss(self, kind: type[Problem], message: str, key: str, node: Node | Item, hint: str | None = None) -> None:
        if (problem := kind(message, key, node.position, hint)) not in self.problems.found:
            self.problems.found.append(problem)

    def _known(self, node: Node, key: str, names: Sequence[str]) -> Mapping[str, Item]:
        """Return the known entries of a mapping; ignore other keys, as the original harness does, with a warning."""
        if node.kind != "mapping":
            self.refuse(node, key, "a mapping", f"with the keys {', '.join(names)}")
            return {}
        for entry in node.items():
            if entry.key not in names:
                hint = did_you_mean(entry.key, names) or f"known: {', '.join(names)}"
                self._warn("unknown key, ignored", join_key(key, entry.key), entry, hint)
        return {entry.key: entry for entry in node.items() if entry.key in names}

    def _executable(self, node: Node, key: str) -> tuple[str, ...]:
        wanted = "a list of texts, as in [python3, train.py]"
        words = node.text.split() if node.kind == "scalar" and not node.is_null else []
        if len(words) > 1:
            message = "must be a list with one element for each word, not a string"
            self.problems.add(message, key, node.position, f"as in executable: [{', '.join(words)}]")
            return ()
        if node.kind == "sequence":
            self.elements(node, key, wanted)
        return self.texts(node, key, wanted)

    def _stream(self, node: Node, key: str) -> LogStream | None:
        return cast("LogStream | None", self.one_of(node, key, ("stdout", "stderr")))

    def _steps(self, node: Node, key: str) -> int | None:
        found = self._known(node, key, (_STEPS,))
        if _STEPS not in found:
            hint = "how many steps are recorded after a checkpoint"
            self._miss(MissingOption, f"{_STEPS} is missing", key, self._top["recording"], hint)
        return self.child(found, _STEPS, key, lambda inner, where: self.integer(inner, where, minimum=1), None)

    def _patterns(self, node: Node, key: str) -> dict[str, Pattern]:
        parsers = self.open_mapping(node, key, "a mapping of names to regular expressions")
        for name in (STEP, SAVE):
            if name not in {parser.key for parser in parsers}:
                what = "the step" if name == STEP else "the path of a saved checkpoint"
                hint = f"its one group is {what}"
                self._miss(MissingOption, f"the parser {name} is missing", key, self._top["log_parsing"], hint)
        found = {parser.key: self._pattern(parser, join_key(key, parser.key)) for parser in parsers}
        return {name: pattern for name, pattern in found.items() if pattern is not None}

    def _pattern(self, entry: Item, key: str) -> Pattern | None:
        fields = self._known(entry.node, key, ("regex", "labels"))
        if "regex" not in fields:
            if entry.node.kind == "mapping":
                self._miss(MissingOption, "has no `regex`", key, entry, "as in {regex: 'Loss: (\\S+)'}")
            return None
        node, where = fields["regex"].node, join_key(key, "regex")
        text = self.text(node, where, "a regular expression")
        compiled = compile_regex(text, where, node, self.problems) if text is not None else None
        if text is None or compiled is None:
            return None
        if not compiled.groups:
            hint = "put what is to be read into a group, as in 'Loss: (\\S+)'"
            self.problems.add("the pattern has no group", where, node.position, hint)
            return None
        labels, listed = tuple[str, ...](), fields.get("labels")
        if listed is not None and not listed.node.is_null:
            labels = self.texts(listed.node, join_key(key, "labels"), "a list of names, one for each group")
            if len(labels) != compiled.groups:
                message = f"{len(labels)} labels for {compiled.groups} groups: the values are numbered instead"
                self._warn(message, join_key(key, "labels"), listed, "give each group of the pattern one label")
                labels = ()
        return Pattern(entry.key, text, labels, position=node.position)

    def _rules(self, node: Node, patterns: Mapping[str, Pattern]) -> tuple[Rule, ...]:
        key = join_key(self._name, "metrics")
        listed = self.open_mapping(node, key, "a mapping of metrics to margins and comparisons")
        found = [self._rule(metric, join_key(key, metric.key), patterns) for metric in listed]
        return tuple(rule for rule in found if rule is not None)

    def _rule(self, entry: Item, key: str, patterns: Mapping[str, Pattern]) -> Rule | None:
        fields = self._known(entry.node, key, ("margin", "comparison"))
        for name in ("margin", "comparison"):
            if name not in fields and entry.node.kind == "mapping":
                self._miss(MissingOption, f"has no `{name}`", key, entry, 'as in {margin: 0.1, comparison: "<="}')
        margin = self._margin(fields["margin"], join_key(key, "margin")) if "margin" in fields else None
        operator = self.child(fields, "comparison", key, lambda node, at: self.one_of(node, at, OPERATORS), None)
        if entry.key not in patterns:
            nothing = "without one there is nothing to compare, so the test cannot pass"
            self._warn("no parser reads this metric", key, entry, did_you_mean(entry.key, patterns) or nothing)
        if margin is None or operator is None:
            return None
        labels, sign = patterns[entry.key].labels if entry.key in patterns else (), cast("Operator", operator)
        return Rule(entry.key, "margin", operator=sign, margin=margin, labels=labels, position=entry.position)

    def _margin(self, entry: Item, key: str) -> float | None:
        value = entry.node.value
        if isinstance(value, str):  # YAML 1.1 reads 1e-4 as a text
            try:
                value = float(value)
            except ValueError:
                value = None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            self.refuse(entry.node, key, "a number, 0 or more", "a fraction of the recorded value: 0.1 is 10%")
            return None
        if value == 0:
            self._warn("a margin of 0 accepts not even rounding", key, entry, "give it one above the noise")
        return float(value)

    def _flags(self, node: Node, key: str) -> dict[str, tuple[FlagSpec, ...]]:
        """Return the flags in the order of the command: flags that Assay sets, flags of the mode, common flags."""
        sections = self._known(node, key, ("common", "gather", "run"))
        common: tuple[FlagSpec, ...] = self.child(sections, "common", key, self._plain_flags, ())
        missing = [mode for mode in SET_BY_US if mode not in sections]
        for mode in missing:  # missing sections are reported before flags, as by the original harness
            hint = f"both gather and run must be there, as in {mode}: {{{SET_BY_US[mode][0]}: {_FLAG_EXAMPLE}}}"
            self._miss(MissingSection, f"the section {mode} is missing", key, self._top["flags"], hint)
        return {
            mode: (*self._mode_flags(mode, sections[mode], join_key(key, mode)), *common) if mode in sections else ()
            for mode in SET_BY_US
        }

    def _mode_flags(self, mode: str, section: Item, key: str) -> tuple[FlagSpec, ...]:
        if section.node.kind != "mapping":
            self.refuse(section.node, key, "a mapping of flags")
            return ()
        names = SET_BY_US[mode]
        entries = {entry.key: entry for entry in section.node.items()}
        for entry in entries.values():
            if entry.key not in (*names, "misc"):
                hint = "put it under misc" if entry.node.find("key") else did_you_mean(entry.key, (*names, "misc"))
                self._warn("this flag is ignored", join_key(key, entry.key), entry, hint)
        for name in names:
            if name not in entries:
                self._miss_flag(mode, f"the mandatory flag {name} is missing", key, section, f"{name}: {_FLAG_EXAMPLE}")
        found = [self._flag(entries[name], join_key(key, name), mode) for name in names if name in entries]
        misc: tuple[FlagSpec, ...] = self.child(entries, "misc", key, self._plain_flags, ())
        return (*(flag for flag in found if flag is not None), *misc)

    def _miss_flag(self, mode: str, message: str, key: str, entry: Item, example: str) -> None:
        """Report a missing flag: as an error if its mode is used, else as a warning."""
        if mode in self._needs:
            self._miss(MissingFlag, message, key, entry, f"as in {example}")
        else:
            self._warn(f"{message}: {'checking' if mode == 'run' else 'gathering'} will need it", key, entry)

    def _plain_flags(self, node: Node, key: str) -> tuple[FlagSpec, ...]:
        if node.is_null or node.kind != "mapping":
            if not node.is_null:
                self.refuse(node, key, "a mapping of flags")
            return ()
        found = [self._flag(entry, join_key(key, entry.key)) for entry in node.items()]
        return tuple(flag for flag in found if flag is not None)

    def _flag(self, entry: Item, key: str, ours: str | None = None) -> FlagSpec | None:
        """Parse a flag. `ours`: the mode, if the flag is one that Assay sets."""
        has_length = ours is not None and entry.key == _LENGTH
        fields = self._known(entry.node, key, (*_FLAG_KEYS, "counts") if has_length else _FLAG_KEYS)
        if "key" not in fields:
            if entry.node.kind == "mapping" and ours is not None:
                self._miss_flag(ours, "has no `key`", key, entry, f"{entry.key}: {_FLAG_EXAMPLE}")
            elif entry.node.kind == "mapping":
                self._miss(MissingOption, "has no `key`", key, entry, "as in {key: --flag, value: 5}")
            return None
        name = self.text(fields["key"].node, join_key(key, "key"), "a flag such as --steps")
        is_set = self.child(fields, "set_in_script", key, self.boolean, None)
        value = self.child(fields, "value", key, self._value, None)
        if name is None:
            return None
        if ours:
            # the flag for the length may state that it takes an amount, not the step to train to
            counts = self.child(fields, "counts", key, lambda node, at: self.one_of(node, at, ("total", "segment")), "")
            flag = self._our_flag(entry, key, name, value, is_set)
            return replace(flag, name="run_length") if counts == "segment" else flag
        if is_set:  # as in the original harness, only the flags in SET_BY_US can be set by a script
            known = ", ".join((*SET_BY_US["gather"], *SET_BY_US["run"]))
            hint = f"only {known} are set by the harness; give it a value"
            given = fields["set_in_script"]
            self._warn("nothing sets this flag: it is left out", join_key(key, given.key), given, hint)
            return None
        return FlagSpec(entry.key, name, value)

    def _our_flag(self, entry: Item, key: str, name: str, value: str | None, is_set: bool | None) -> FlagSpec:
        if value is not None and is_set is False:
            self._warn("this value replaces ours", key, entry, "leave it out, and the harness gives the right one")
            return FlagSpec(entry.key, name, value)
        if value is not None:
            self._warn("the value is decided by the harness; this one is ignored", key, entry)
        elif is_set is None:
            self._warn("has no `set_in_script`: taken as true, since the harness sets this flag", key, entry)
        return FlagSpec(entry.key, name, is_set=True)

    def _value(self, node: Node, key: str) -> str | None:
        """Render a value by `str()`, as the original harness does; None, for null, is a flag without a value."""
        if node.kind != "scalar" and not node.is_null:
            self.refuse(node, key, "a single value", "several words need a flag each")
        return str(node.value) if node.kind == "scalar" and not node.is_null else None
