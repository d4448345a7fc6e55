"""Convergence files: YAML of the original harness, or a native study with a `golden:` section.

A native study describes one training. Its `golden:` section defines how much of it is recorded, and by which rules a
check is judged. `golden: {segment: 300}` is enough: every run begins at step 0, and is ended after its segment. A long
training is checked from its checkpoints instead, where the section defines how they are written, named and loaded:

    study: charlm
    command: python charlm.py --log-interval 1 --seed 0
    metrics:
      step: '^step (\\d+)'
      loss: '\\bloss ({number})'
      grad_norm: 'grad_norm ({number})'
    golden:
      segment: 50                      # steps that are recorded after each checkpoint
      save: 'saved checkpoint (\\S+) at step (?P<step>\\d+)'
      checkpoint: --checkpoint-dir     # gather: the folder to save into
      resume: --resume                 # check: the checkpoint to start from
      start: --start-step              # check: the step it was saved at (may be left out)
      length: --steps                  # check: the step to train to; {flag: --num-steps, counts: segment} for an amount
      gather: --steps 300 --save-interval 100      # further arguments, only while gathering
      check: --no-eval                             # further arguments, only while checking
      replicas: 5                      # recordings of each segment in all: their differences are the noise
      metrics:
        loss: paired                   # or {rule: paired, delta: 0.5%, direction: min}
        grad_norm: {rule: paired, direction: both}
      variants:                        # changes that are harmless: gathered too, and what they show passes
        two-threads: {env: {OMP_NUM_THREADS: 2}}
        halves: {flags: --micro-batches 2}
      same:                            # configurations that a check runs too: each must agree within the noise
        accum8: {flags: --micro-batches 8}
      selftest:                        # faults that `assay golden selftest` injects, one at a time
        env: {CHARLM_FAULT: [lr-up-10, no-gradient-hidden-weight]}
        flags: {--lr: [x0.9, x1.1]}    # x: times the value in the command

The flags are put after the command. A flag that ends with `=` is joined to its value.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Literal, cast

from assay.config.fields import Fields
from assay.config.native import parse_native
from assay.config.source import Item, Node, Problems, join_key, load_text, parse_documents
from assay.errors import ConfigError, did_you_mean
from assay.golden.harness_file import Mode, compile_regex, looks_like_convergence, parse_convergence
from assay.golden.values import OPERATORS, Fault, FlagSpec, GoldenFile, GoldenTest, Operator, Rule, RuleKind, Variant
from assay.values.study import MetricFile, Pattern, Problem, ShellText, Study

SECTION = "golden"
KEYS = (
    "segment", "save", "checkpoint", "resume", "start", "length", "seed", "gather", "check", "metrics", "replicas",
    "most_checks", "selftest", "variants", "same",
)  # fmt: skip
RULE_KEYS = ("rule", "delta", "alpha", "window", "direction", "operator", "margin")
DEFAULT_REPLICAS = 5
_CHECKPOINT_KEYS = {  # all or none: how a program saves checkpoints and starts from one
    "save": r"the log line of a saved checkpoint, its path in a group: 'saved (\S+)'",
    "checkpoint": "the flag for the folder to save checkpoints into, as in `checkpoint: --checkpoint-dir`",
    "resume": "the flag for the checkpoint to start from, as in `resume: --resume`",
}
_ONLY_WITH_CHECKPOINTS = {
    "start": "leave it out: every run begins at step 0",
    "gather": "put the arguments into `command`: gathering and checking run the same",
    "check": "put the arguments into `command`: gathering and checking run the same",
}
_RULES = ("paired", "exact", "unmatched", "margin")
_DIRECTIONS = ("min", "max", "both")
_POSITIONS = ("step", "epoch")
_HOW_TO = """FILE is the convergence harness's YAML, or a native study with a `golden:` section;
  examples/charlm/golden.yml and examples/convergence/demo_config.yml are small ones of each kind"""


def load_golden_file(path: str, needs: Sequence[Mode] = ("gather", "run")) -> GoldenFile:
    """Load a convergence file. Raises UsageError if it cannot be read, ConfigError with all errors in it."""
    folder = os.getcwd()
    full = os.path.join(folder, path)
    text = load_text(full, path, lambda: _HOW_TO)
    nodes = parse_documents(text, path, how_to=lambda: _HOW_TO)
    config_hash = hashlib.sha256(text.encode()).hexdigest()
    document = next(node for node in nodes if not node.is_null)
    is_original, keys = looks_like_convergence(nodes), {entry.key for entry in document.items()}
    if not is_original and not keys & {SECTION, "study", "command", "commands"}:  # the file has neither format
        raise ConfigError([Problem("there is neither a test nor a `golden:` section", "", document.position, _HOW_TO)])
    section = document.find(SECTION)
    if not is_original or (section is not None and section.find("log_parsing") is None):
        study, problems = parse_native(nodes, path, folder), Problems()
        if (entry := next((each for each in document.items() if each.key == SECTION), None)) is None:
            hint = "add one, as in golden: {segment: 300}: docs/how-to/check-convergence.md"
            raise ConfigError([Problem(f"there is no `{SECTION}:` section", "", document.position, hint)])
        test = _Reader(entry, study, problems).test()
        problems.raise_if_any()
        assert test is not None  # a section without problems makes a test
        return GoldenFile(path, full, "native", (test,), config_hash, study.warnings, study)
    tests, warnings = parse_convergence(parse_documents(text, path, flavour="originals"), needs)
    return GoldenFile(path, full, "convergence", tests, config_hash, warnings)


class _Reader(Fields):
    """Reads the `golden:` section of a study."""

    def __init__(self, section: Item, study: Study, problems: Problems) -> None:
        super().__init__(problems)
        self._section = section
        self._study = study
        self._top = self.mapping(section.node, SECTION, KEYS)
        self._patterns = tuple(metric for metric in study.metrics if isinstance(metric, Pattern))
        self._files = tuple(metric for metric in study.metrics if isinstance(metric, MetricFile))

    def test(self) -> GoldenTest | None:
        self._check_checkpoints()
        self._need("segment", "how many steps are recorded, as in `segment: 300`")
        flags = [self._flag(name, role) for name, role in (("resume", "checkpoint_input"), ("start", "start_step"))]
        flags += [self._length(), self._flag("seed", "seed")]
        checkpoint = self._flag("checkpoint", "checkpoint_output")
        metrics = tuple(pattern for pattern in self._patterns if pattern.metric not in _POSITIONS)
        step, save, rules, segment = self._step(), self._save(), self._rules(metrics), self._count("segment", 0)
        if not segment:
            return None
        return GoldenTest(
            name=self._study.name,
            executable=(),
            directory=None,
            stream="both",
            step=step,
            save=save,
            metrics=metrics,
            rules=rules,
            steps_to_record=segment,
            gather_flags=(*([checkpoint] if checkpoint else []), *self._arguments("gather")),
            run_flags=(*(flag for flag in flags if flag), *self._arguments("check")),
            replicas=self._count("replicas", DEFAULT_REPLICAS) - 1,
            most_checks=self._count("most_checks", 3),
            timeout_s=self._study.timeout_s,
            position=self._section.position,
            files=self._files,
            env=self._study.env,
            resources=self._study.resources,
            selftest=self._selftest(),
            variants=self._variants("variants"),
            same=self._same(),
        )

    def _need(self, name: str, hint: str) -> None:
        if name not in self._top and self._section.node.kind == "mapping":
            self.problems.add(f"{name} is missing", SECTION, self._section.position, hint)

    def _count(self, name: str, default: int) -> int:
        return self.child(self._top, name, SECTION, lambda node, key: self.integer(node, key, 1), default)

    def _text(self, name: str, wanted: str) -> str:
        """Return the string of a key; an empty string if the key is missing."""
        return self.child(self._top, name, SECTION, lambda node, key: self.text(node, key, wanted), "")

    def _check_checkpoints(self) -> None:
        """Refuse checkpoints without all of their keys, and keys that mean nothing without checkpoints."""
        named = [name for name in _CHECKPOINT_KEYS if name in self._top]
        for name in _CHECKPOINT_KEYS if named else ():
            rest = f"; or leave out {' and '.join(named)}: every run then begins at step 0"
            self._need(name, f"{_CHECKPOINT_KEYS[name]}{rest}")
        for name, hint in () if named else _ONLY_WITH_CHECKPOINTS.items():
            if name in self._top:
                message = f"is for checkpoints, and {', '.join(_CHECKPOINT_KEYS)} are missing"
                self.problems.add(message, join_key(SECTION, name), self._top[name].position, hint)

    def _step(self) -> Pattern | None:
        """Find the step's pattern. Without one, values are counted, unless a run begins at a checkpoint."""
        found = next((pattern for name in _POSITIONS for pattern in self._patterns if pattern.metric == name), None)
        if found is None and any(name in self._top for name in _CHECKPOINT_KEYS):
            hint = r"a run from a checkpoint has to log it: add one under metrics, as in step: 'step (\d+)'"
            self.problems.add("no pattern reads the step", "metrics", self._section.position, hint)
        return found

    def _save(self) -> Pattern | None:
        text, key = self._text("save", "a regular expression"), join_key(SECTION, "save")
        node = self._top["save"].node if text else self._section.node
        if (compiled := compile_regex(text, key, node, self.problems) if text else None) is None:
            return None
        if compiled.groups - ("step" in compiled.groupindex) < 1:
            hint = r"put the path into a group, as in 'saved (\S+)'; (?P<step>\d+) may name its step"
            self.problems.add("no group holds the checkpoint's path", key, node.position, hint)
        return Pattern("save", text, position=node.position)

    def _flag(self, name: str, role: str, example: str = "--resume") -> FlagSpec | None:
        text = self._text(name, f"a flag such as {example}")
        return FlagSpec(role, text.strip(), is_set=True) if text else None

    def _length(self) -> FlagSpec | None:
        """Return the flag for the step to train to or, with `counts: segment`, for the number of steps to train. A
        program without it is ended when its segment is complete."""
        entry, key = self._top.get("length"), join_key(SECTION, "length")
        if entry is None or entry.node.kind != "mapping":
            return self._flag("length", "run_for", "--steps")
        fields = self.mapping(entry.node, key, ("flag", "counts"))
        counts = self._choice(fields, "counts", key, ("total", "segment"))
        if "flag" not in fields:
            self.problems.add("has no `flag`", key, entry.position, "as in {flag: --steps, counts: total}")
        text = self.child(fields, "flag", key, self.text, "")
        return FlagSpec("run_length" if counts == "segment" else "run_for", text.strip(), is_set=True) if text else None

    def _arguments(self, name: str) -> tuple[FlagSpec, ...]:
        """Return further arguments, as they would be typed."""
        words: tuple[str, ...] = self.child(self._top, name, SECTION, self._split, ())
        return tuple(FlagSpec(name, word) for word in words)

    def _variants(self, name: str) -> tuple[Variant, ...]:
        """Read `{two-threads: {env: {OMP_NUM_THREADS: 2}}, halves: {flags: --micro-batches 2}}`."""
        variants = []
        for entry in self._named(self._top, name, SECTION, "a mapping of names to env and flags"):
            key = join_key(f"{SECTION}.{name}", entry.key)
            fields = self.mapping(entry.node, key, ("env", "flags"))
            if entry.node.kind == "mapping" and not fields:
                hint = "as in {env: {OMP_NUM_THREADS: 2}} or {flags: --micro-batches 2}"
                self.problems.add("changes nothing", key, entry.position, hint)
            found, where = self._named(fields, "env", key, "a mapping of variables"), join_key(key, "env")
            texts = [(each.key, self.text(each.node, join_key(where, each.key), "a value")) for each in found]
            env = tuple((variable, text) for variable, text in texts if text is not None)
            variants.append(Variant(entry.key, env, self.child(fields, "flags", key, self._split, ())))
        return tuple(variants)

    def _named(self, fields: Mapping[str, Item], name: str, key: str, what: str) -> Sequence[Item]:
        """Return the entries of an optional mapping."""
        return self.child(fields, name, key, lambda node, where: self.open_mapping(node, where, what), [])

    def _same(self) -> tuple[Variant, ...]:
        """Return configurations that must agree. The canonical configuration is refused: it would agree with itself."""
        found = self._variants("same")
        pieces = [piece.text for each in self._study.commands for piece in each.pieces if isinstance(piece, ShellText)]
        command = f" {' '.join(pieces)} "
        for one in found:
            node, flags = self._top["same"].node.find(one.name), shlex.join(one.flags)
            is_here = f" {flags} ".replace("  ", " ") in command and {*one.env} <= {*self._study.env}
            key, position = f"{SECTION}.same.{one.name}", node.position if node else None
            if one.name in ("", "canonical"):
                self.problems.add("is how reports call the command as it is", key, position, "give it another name")
            elif is_here and (one.flags or one.env):
                hint = "set a variable or a flag to another value than the command has"
                self.problems.add("is the canonical configuration itself", key, position, hint)
        return found

    def _split(self, node: Node, key: str) -> tuple[str, ...]:
        """Split arguments as a shell does."""
        text = self.text(node, key, "arguments, as they would be typed")
        try:
            return tuple(shlex.split(text or ""))
        except ValueError as error:
            self.problems.add(f"cannot be split into words: {error}", key, node.position)
            return ()

    def _selftest(self) -> tuple[Fault, ...]:
        """Read `{env: {BREAK_IT: [a, b]}, flags: {--lr: [x0.9, x1.1]}}`."""
        key, faults = join_key(SECTION, "selftest"), list[Fault]()
        fields = self.mapping(self._top["selftest"].node, key, ("env", "flags")) if "selftest" in self._top else {}
        kinds: dict[str, Literal["env", "flag"]] = {"env": "env", "flags": "flag"}
        for part, kind in kinds.items():
            for each in self._named(fields, part, key, "a mapping of names to values"):
                where = join_key(join_key(key, part), each.key)
                values = self.texts(each.node, where, "a value, or a list of values to try")
                faults += [Fault(kind, each.key, value.strip()) for value in values]
        return tuple(faults)

    def _rules(self, patterns: Sequence[Pattern]) -> tuple[Rule, ...]:
        names: list[str] = []  # a named group is a metric of that name
        for pattern in patterns:
            names += list(re.compile(pattern.regex).groupindex) or [pattern.metric]
        known = tuple(dict.fromkeys(names))
        if "metrics" in self._top:
            listed, key = self._named(self._top, "metrics", SECTION, "a mapping of metrics to rules"), "golden.metrics"
            found = [self._rule(metric, join_key(key, metric.key), known) for metric in listed]
            return tuple(rule for rule in found if rule is not None)
        if not known:
            hint = "name the metrics of the files under golden.metrics"
            if not self._files:
                advice = "add patterns under metrics, as in loss: 'loss ({number})'"
                hint = f"{advice}; or name what the program passes to assay.log: {{metrics: {{loss: paired}}}}"
            self.problems.add("nothing would be compared", SECTION, self._section.position, hint)
        return tuple(Rule(name, position=self._section.position) for name in known)

    def _rule(self, entry: Item, key: str, known: Sequence[str]) -> Rule | None:
        if known and entry.key not in known and not self._files:  # without patterns the program calls assay.log
            hint = did_you_mean(entry.key, known) or "add a pattern for it under metrics"
            self.problems.add("no pattern reads this metric", key, entry.position, hint)
        if entry.node.kind == "scalar" and entry.node.text == "margin":
            hint = f"as in {entry.key}: {{operator: '<=', margin: 0.1}}"
            self.problems.add("a margin needs its operator and its size", key, entry.node.position, hint)
            return None
        if entry.node.kind == "scalar":
            kind = self.one_of(entry.node, key, _RULES[:-1])
            return Rule(entry.key, cast("RuleKind", kind), position=entry.position) if kind else None
        fields = self.mapping(entry.node, key, RULE_KEYS)
        return self._build_rule(entry, key, fields) if entry.node.kind == "mapping" else None

    def _build_rule(self, entry: Item, key: str, fields: Mapping[str, Item]) -> Rule | None:
        default = "margin" if "operator" in fields or "margin" in fields else "paired"
        kind = self._choice(fields, "rule", key, _RULES) if "rule" in fields else default
        rule = Rule(
            entry.key,
            cast("RuleKind", kind),
            delta=self.child(fields, "delta", key, self._fraction, None),
            alpha=self.child(fields, "alpha", key, self._fraction, 0.01),
            window=self.child(fields, "window", key, lambda node, where: self.integer(node, where, 1), None),
            direction=cast("Literal['min', 'max', 'both'] | None", self._choice(fields, "direction", key, _DIRECTIONS)),
            operator=cast("Operator | None", self._choice(fields, "operator", key, OPERATORS)),
            margin=self.child(fields, "margin", key, self._fraction, None),
            position=entry.position,
        )
        if kind is not None:
            self._check_fit(entry, key, fields, kind)
        return rule if kind is not None else None

    def _check_fit(self, entry: Item, key: str, fields: Mapping[str, Item], kind: str) -> None:
        """Refuse keys of a rule of another kind."""
        others = {"exact": ("rule",), "margin": ("rule", "operator", "margin")}
        fitting = others.get(kind, ("rule", "delta", "alpha", "window", "direction"))
        hint = f"it takes {', '.join(fitting[1:]) or 'nothing'}"
        for name, field in fields.items():
            if name in RULE_KEYS and name not in fitting:
                self.problems.add(f"does not go with the rule {kind}", join_key(key, name), field.position, hint)
        for name in ("operator", "margin"):
            if kind == "margin" and name not in fields:
                self.problems.add(f"has no `{name}`", key, entry.position, "as in {operator: '<=', margin: 0.1}")

    def _choice(self, fields: Mapping[str, Item], name: str, key: str, choices: Sequence[str]) -> str | None:
        return self.child(fields, name, key, lambda node, where: self.one_of(node, where, choices), None)

    def _fraction(self, node: Node, key: str) -> float | None:
        """Parse `0.005` or `0.5%`, above 0; alpha must also be below 1."""
        text = node.text.strip()
        try:
            value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            value = math.nan
        if node.kind == "scalar" and 0 < value < (1 if key.endswith(".alpha") else math.inf):
            return value
        self.refuse(node, key, "a fraction above 0", "such as 0.005 or 0.5%")
        return None
