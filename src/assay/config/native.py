"""Parses the native file from nodes to a Study; all problems are reported at once."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

from assay import plugins
from assay.config.fields import Fields, LoadOptions
from assay.config.grid import GridReader, find_grid_names
from assay.config.overrides import Overrides, apply_settings, find_name_params, parse_assignments, refuse_unknown
from assay.config.places import read_farm
from assay.config.source import Item, Node, Problems, build_error, find_duplicates, join_key, parse_documents
from assay.config.template import RUN_VALUES, parse_template, template_names
from assay.errors import ConfigError, did_you_mean, suggest
from assay.system.fast_dataclasses import replace
from assay.values.series import expand_number
from assay.values.study import (
    AT,
    CHECKPOINT_FILES,
    LOCAL,
    STUDY_NAME_RULE,
    At,
    Axis,
    Check,
    Choices,
    CodePolicy,
    CommandTemplate,
    Farm,
    MetricFile,
    Pattern,
    Placeholder,
    Position,
    Problem,
    Random,
    Resources,
    Resume,
    Study,
    Subset,
    Sweep,
    is_study_name,
)

KEYS = (
    "study", "command", "commands", "params", "sweep", "zip", "when", "subset", "search", "repeat", "metrics",
    "resources", "slots", "timeout", "retries", "leave_running", "priority", "env", "checks", "code", "root", "on",
    "farms", "golden", "stop", "resume",
)  # fmt: skip
NOT_SET = ("command", "commands", "params", "sweep", "zip", "when", "metrics", "golden")  # keys that --set refuses
SETTINGS = tuple(key for key in KEYS if key not in NOT_SET)
_FOREIGN_SETTINGS = {  # for files of other tools: key -> field of the study
    "slots": "slots", "timeout": "timeout_s", "retries": "retries", "leave_running": "leave_running",
    "priority": "priority", "resources": "resources", "env": "env", "checks": "checks", "code": "code", "root": "root",
}  # fmt: skip
_COMMAND_NAME = r"\w[\w-]*"
_ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_MOST_STRANGE = 5  # a file with more unknown keys, or without a known one, is of another kind
_MOST_SHOWN = 20
_HOW_TO = "a study needs a command, as in `command: python train.py --lr {lr}`; `assay demo` shows a whole one at work"
_JOB_NAME = "job"  # job.log is the log of job.sh itself
_FILE_KINDS = ("jsonl", "csv", "tensorboard")
_PATTERN_KEYS = ("regex", "labels", "command")
_GROUP_HINT = "put what is to be read into a group, as in 'loss=({number})'"


def parse_native(nodes: list[Node], path: str, cwd: str, options: LoadOptions | None = None) -> Study:
    """Return the study of a native file; raises ConfigError with all its problems."""
    problems = Problems()
    documents = [node for node in nodes if not node.is_null]
    for extra in documents[1:]:
        problems.add("a native file holds one document", "", extra.position, "remove the `---` line")
    for key, position in find_duplicates(documents[0]):
        problems.add("this key is here twice", key, position, "remove one of the two")
    _check_kind(documents[0])
    options = options or LoadOptions()
    document = documents[0]
    if options.settings and document.kind == "mapping":
        params = find_grid_names({entry.key: entry for entry in document.items()})
        document = apply_settings(document, options.settings, SETTINGS, NOT_SET, params, problems)
    study = _Reader(document, path, cwd, problems, options).study()
    problems.raise_if_any()
    return study


def read_settings(study: Study, texts: Iterable[str]) -> Study:
    """Apply Assay's settings (`--set`) to another tool's study, as far as such a study can have them."""
    problems = Problems()
    params = dict.fromkeys(name for sweep in study.sweeps for name in sweep.axes)
    empty = parse_documents("command: 'true'", study.source)[0]
    document = apply_settings(empty, texts, tuple(_FOREIGN_SETTINGS), KEYS, tuple(params), problems)
    found = _Reader(document, study.source, study.folder, problems, LoadOptions()).study()
    problems.raise_if_any()
    fields = [_FOREIGN_SETTINGS[entry.key] for entry in document.items() if entry.key in _FOREIGN_SETTINGS]
    changes = {name: getattr(found, name) for name in fields}
    if "code" in changes:  # the files that the study ignores stay the same
        changes["code"] = replace(study.code, kind=found.code.kind)
    return replace(study, **changes)


def _find_keys(document: Node) -> Sequence[str]:
    """Return the keys of a study file; plug-ins are loaded only if the core does not know all keys of this file."""
    if document.kind != "mapping" or all(entry.key in KEYS for entry in document.items()):
        return KEYS
    return tuple(dict.fromkeys((*KEYS, *plugins.merge("study_keys"))))


def _check_kind(document: Node) -> None:
    """Refuse a file that is not a study by one message, not key by key: any file with colons may be valid YAML."""
    keys = [entry.key for entry in document.items()] if document.kind == "mapping" else []
    known = _find_keys(document)
    strange = [key for key in keys if key not in known]
    if strange:
        from difflib import get_close_matches

        strange = [key for key in strange if not get_close_matches(key.lower(), known, n=1)]  # a similar key is a typo
    if not strange or (len(strange) <= _MOST_STRANGE and len(strange) < len(keys)):
        return
    named = ", ".join(repr(key if len(key) <= _MOST_SHOWN else f"{key[:_MOST_SHOWN]}…") for key in strange[:3])
    more = f" and {len(strange) - 3} more" if len(strange) > 3 else ""
    message = f"this does not look like a study file: it has the unknown keys {named}{more}"
    raise build_error(message, document.position, _HOW_TO)


class _Reader:
    def __init__(self, document: Node, path: str, cwd: str, problems: Problems, options: LoadOptions) -> None:
        self._document = document
        self._options = options
        self._path = path
        self._cwd = cwd
        self._problems = problems
        self._fields = Fields(problems)
        self._keys = _find_keys(document)
        self._top: Mapping[str, Item] = self._fields.mapping(document, "", self._keys)

    def study(self) -> Study:
        commands = self._commands()
        overrides = self._overrides(commands)
        sweeps = GridReader(self._fields, overrides).sweeps(self._top)
        resume = self._resume(commands)
        self._check_places(commands, sweeps, resume)
        reader = _MetricReader(self._fields, tuple(command.name for command in commands))
        fields, read = self._fields, self._fields.child
        section = self._node("farms")
        entries = self._fields.open_mapping(section, "farms", "a mapping of farm names") if section else []
        farms = {entry.key: read_farm(entry, join_key("farms", entry.key)) for entry in entries}
        farm, missing = self._farm(list(farms))
        return Study(
            name=self._name(),
            dialect="native",
            source=self._path,
            folder=self._cwd,
            commands=commands,
            sweeps=sweeps,
            subset=self._subset(sweeps),
            search=self._ask_plugin("search", sweeps, None),
            repeat=read(self._top, "repeat", "", partial(fields.integer, minimum=1), 1),
            metrics=read(self._top, "metrics", "", reader.metrics, ()),
            resources=self._resources(),
            slots=self._slots(),
            timeout_s=read(self._top, "timeout", "", fields.duration, None),
            retries=read(self._top, "retries", "", fields.integer, 0),
            leave_running=read(self._top, "leave_running", "", fields.boolean, False),
            priority=read(self._top, "priority", "", partial(fields.integer, minimum=None), 0),
            env=self._env(),
            checks=read(self._top, "checks", "", reader.checks, ()),
            stop=self._ask_plugin("stop", sweeps, ()),
            code=self._code(),
            root=self._root(),
            farms=farms | missing,
            farm=farm,
            resume=resume,
            overrides=overrides.axes if overrides else {},
            name_params=self._name_params(overrides, sweeps) if overrides else (),
            extras={key: self._ask_plugin(key, sweeps, None) for key in self._keys[len(KEYS) :] if key in self._top},
            warnings=tuple(dict.fromkeys((*self._problems.warnings, *_find_references(sweeps, self._node("env"))))),
        )

    # ------------------------------------------------------------ overrides

    def _overrides(self, commands: tuple[CommandTemplate, ...]) -> Overrides | None:
        base = self._options.base
        if not self._options.overrides and base is None:
            return None
        entries = parse_assignments(self._options.overrides, "native", self._problems)
        listed = find_grid_names(self._top)
        used = [name for command in commands for name in template_names(command.pieces)]
        refuse_unknown(entries, list(dict.fromkeys((*listed, *used, *(base or ())))), SETTINGS, self._problems)
        reader = GridReader(self._fields)
        axes = {name: reader.axis(entry.node, name) for name, entry in entries.items()}
        pieces = [piece for command in commands for piece in command.pieces]
        places = {piece.name for piece in pieces if isinstance(piece, Placeholder)}
        everywhere = {name for name in axes if name in places or name not in listed}
        return Overrides(axes, everywhere, base)

    def _name_params(self, overrides: Overrides, sweeps: tuple[Sweep, ...]) -> tuple[str, ...]:
        plain = GridReader(Fields(Problems())).sweeps(self._top)  # problems of `_top` are recorded already
        given = overrides.axes if overrides.base is None else overrides.build_base()
        return find_name_params(plain, sweeps, given)

    # ------------------------------------------------------------ small fields

    def _node(self, key: str) -> Node | None:
        return self._top[key].node if key in self._top else None

    def _name(self) -> str:
        node = self._node("study")
        name = self._fields.text(node, "study") if node else os.path.splitext(os.path.basename(self._path))[0]
        if node and name is not None and not is_study_name(name):
            self._problems.add(f"{name!r} cannot name a study", "study", node.position, STUDY_NAME_RULE)
        return name or "study"

    def _slots(self) -> tuple[str, ...] | None:
        if (node := self._node("slots")) is None:
            return None
        wanted = 'a list such as [0, 1], ["0,1", "2,3"] for two GPUs each, or [cpu, cpu]'
        elements = self._fields.elements(node, "slots", wanted)
        return tuple(map(str.strip, self._fields.texts(node, "slots", wanted))) if elements else ()

    def _env(self) -> tuple[tuple[str, str], ...]:
        if (node := self._node("env")) is None:
            return ()
        found = []
        for entry in self._fields.open_mapping(node, "env", "a mapping of variables to values"):
            key = join_key("env", entry.key)
            if not re.fullmatch(_ENV_NAME, entry.key):
                self._problems.add("cannot name a variable", key, entry.position, "letters, digits and _ only")
            if entry.node.kind != "scalar" or entry.node.value is None:
                self._fields.refuse(entry.node, key, "a single value", "write '' for an empty text")
            found.append((entry.key, entry.node.text))
        return tuple(found)

    def _root(self) -> str | None:
        """Return the output root; a relative path is relative to the file that names it."""
        node = self._node("root")
        text = self._fields.text(node, "root", "a folder") if node else None
        if text is None:
            return None
        base = os.path.dirname(os.path.join(self._cwd, self._path))
        return os.path.normpath(os.path.join(base, os.path.expanduser(text)))

    def _code(self) -> CodePolicy:
        if (node := self._node("code")) is None:
            return CodePolicy()
        if node.kind != "mapping":
            kind = self._fields.one_of(node, "code", ("snapshot", "live"))
            return CodePolicy(cast("Literal['snapshot', 'live']", kind or "snapshot"))
        entries, read = self._fields.mapping(node, "code", ("kind", "ignore", "link_ignored")), self._fields.child
        kind = read(entries, "kind", "code", partial(self._fields.one_of, choices=("snapshot", "live")), "snapshot")
        patterns = partial(self._fields.texts, wanted="a list of patterns")
        ignore: tuple[str, ...] = read(entries, "ignore", "code", patterns, ())
        link = read(entries, "link_ignored", "code", self._fields.boolean, True)
        return CodePolicy(cast("Literal['snapshot', 'live']", kind), ignore, link)

    def _ask_plugin(self, key: str, sweeps: tuple[Sweep, ...], default: Any) -> Any:
        """Return the value of a key that a plug-in reads."""
        if key not in self._top:
            return default
        readers = plugins.merge("study_keys")
        if key not in readers:
            self._problems.add("needs a plug-in that is not installed", key, self._top[key].position)
            return default
        return plugins.load(readers[key])(self._fields, self._top, sweeps)

    def _resources(self) -> Resources:
        if (node := self._node("resources")) is None:
            return Resources()
        entries = self._fields.mapping(node, "resources", ("gpus", "cpus", "gpu_memory", "runs_per_gpu"))
        integer, least = self._fields.integer, {"gpus": 0, "cpus": 1, "runs_per_gpu": 1}
        readers: dict[str, Any] = {name: partial(integer, minimum=low) for name, low in least.items()}
        counts = {name: self._fields.child(entries, name, "resources", readers[name], least[name]) for name in least}
        memory = self._fields.child(entries, "gpu_memory", "resources", self._fields.size, None)
        return Resources(gpu_memory_bytes=memory, **counts)

    def _resume(self, commands: tuple[CommandTemplate, ...]) -> Resume | None:
        """Read `resume: NAME`, or `resume: {param: NAME, files: 'ckpt/*.pt'}`."""
        if (node := self._node("resume")) is None:
            return None
        key, param = "resume", node
        files: tuple[str, ...] = CHECKPOINT_FILES
        if node.kind == "mapping":
            entries = self._fields.mapping(node, "resume", ("param", "files"))
            if "param" not in entries:
                hint = "as in {param: init, files: 'ckpt/*.pt'}"
                self._problems.add("has no `param`", "resume", node.position, hint)
                return None
            key, param = "resume.param", entries["param"].node
            files = self._fields.child(entries, "files", "resume", self._checkpoint_files, files)
        name = self._fields.text(param, key, "the name of a parameter")
        used = [each for command in commands for each in template_names(command.pieces)]
        if name is not None and name not in used:
            guess = suggest(name, used)
            hint = f"write [{name}] into a command" + (f"; {guess}" if guess else "")
            self._problems.add(f"no command takes {name!r}", key, param.position, hint)
        return Resume(name, files, node.position) if name is not None else None

    def _checkpoint_files(self, node: Node, key: str) -> tuple[str, ...]:
        files = self._fields.texts(node, key, "a pattern or a list of patterns")
        if node.kind == "sequence" and not files:
            self._problems.add("does not name checkpoints", key, node.position, "as in ckpt/*.pt, or leave it out")
        for pattern in files:
            if os.path.isabs(pattern) or ".." in pattern.split("/"):
                hint = "write it relative to the run's directory, as in ckpt/*.pt"
                message = "checkpoints are looked for inside the run's directory"
                self._problems.add(message, key, node.position, hint)
        return files

    def _subset(self, sweeps: tuple[Sweep, ...]) -> Subset | None:
        node = self._node("subset")
        entries = self._fields.mapping(node, "subset", ("count", "seed")) if node else {}
        count = self._fields.child(entries, "count", "subset", partial(self._fields.integer, minimum=1), 0)
        seed = self._fields.child(entries, "seed", "subset", partial(self._fields.integer, minimum=None), 0)
        if node and node.kind == "mapping" and "count" not in entries:
            self._problems.add("has no count", "subset", node.position, "as in {count: 20, seed: 7}")
        needs_count = node is None and "search" not in self._top
        axes = [pair for sweep in sweeps for pair in sweep.axes.items()] if needs_count else []
        for name, axis in axes:
            if isinstance(axis, Random):
                hint = "add `subset: {count: 20, seed: 0}` to say how many values are drawn, or a `search`"
                if axis.position is not None and not axis.position.line:
                    hint = "say how many values are drawn: --set subset.count=20"
                self._problems.add("a random axis needs a count", name, axis.position, hint)
        return Subset(count, seed) if count else None

    def _farm(self, written: Sequence[str]) -> tuple[str | None, dict[str, Farm]]:
        """Return the default of --on. An unknown farm is returned with a problem, since the settings may define
        it: the problem is raised when the farm is used."""
        node = self._node("on")
        name = self._fields.text(node, "on", "the name of a farm") if node else None
        if node is None or name is None or name in (*written, LOCAL):
            return name, {}
        problem = Problem(f"no farm {name!r}", "on", node.position, did_you_mean(name, (*written, LOCAL)))
        return name, {name: Farm(name, "missing", position=node.position, problems=(problem,))}

    # ------------------------------------------------------------ commands

    def _commands(self) -> tuple[CommandTemplate, ...]:
        single, several = self._top.get("command"), self._top.get("commands")
        if single and several:
            self._problems.add("give either command or commands", "command", single.position)
        if several is not None:
            entries = self._fields.open_mapping(several.node, "commands", "a mapping of names to commands")
            found = [self._command(entry, join_key("commands", entry.key)) for entry in entries]
        elif single is not None:
            found = [self._command(single, "command")]
        else:
            hint = "add `command: python train.py --lr {lr}`"
            self._problems.add("there is no command", "", self._document.position, hint)
            found = []
        return tuple(command for command in found if command is not None)

    def _command(self, entry: Item, key: str) -> CommandTemplate | None:
        """Read `train: text`, or `train: {run: text, timeout: 1h}`; the single `command:` is called `run`."""
        name = "run" if key == "command" else entry.key
        if not re.fullmatch(_COMMAND_NAME, name) or name == _JOB_NAME:
            hint = "letters, digits, _ and -; `job` is taken by job.log"
            self._problems.add("cannot name a command", key, entry.position, hint)
        node, timeout_s = entry.node, None
        if node.kind == "mapping":
            fields = self._fields.mapping(node, key, ("run", "timeout"))
            timeout_s = self._fields.child(fields, "timeout", key, self._fields.duration, None)
            if "run" not in fields:
                self._problems.add("has no command", key, entry.position, "as in {run: python train.py, timeout: 1h}")
                return None
            node = fields["run"].node
        if (text := self._fields.text(node, key, "the text of a command")) is None:
            if node.kind == "mapping":
                self._problems.add("a command that begins with { needs quotes", key, node.position)
            return None
        try:
            return CommandTemplate(name, parse_template(text.strip(), node.position, key), timeout_s, node.position)
        except ConfigError as error:
            self._problems.extend(error)
            return None

    def _check_places(
        self, commands: tuple[CommandTemplate, ...], sweeps: tuple[Sweep, ...], resume: Resume | None
    ) -> None:
        known: dict[str, Axis] = {name: axis for sweep in sweeps for name, axis in sweep.axes.items()}
        # a flag without a value is left out; a run that is repeated with changes may lack parameters of other sweeps
        given = {*known, *find_grid_names(self._top), *([resume.param] if resume else [])}
        for command in commands:
            missing = {name for name in template_names(command.pieces) if name not in given}
            for name in sorted(missing):
                guess = did_you_mean(name, (*known, *RUN_VALUES))
                if name == "resume" and resume is None:
                    guess = "for the path of a checkpoint add the key `resume: resume`"
                literal = f"write {{{{{name}}}}} or [[{name}]] if it is meant literally"
                self._undefined(command, f"{name} is not a parameter", f"{guess}; {literal}" if guess else literal)
            places = {piece.name for piece in command.pieces if isinstance(piece, Placeholder)}
            for sweep in sweeps:  # a placeholder needs a value in every sweep; a flag without a value is left out
                for name in sorted(places - missing - set(RUN_VALUES) - set(sweep.axes)):
                    at = sweep.position
                    where = f"in the sweep at line {at.line}" if at and at.file else "in one sweep"
                    self._undefined(command, f"{name} has no value {where}", f"give it one in params, or use [{name}]")

    def _undefined(self, command: CommandTemplate, message: str, hint: str) -> None:
        key = "command" if "commands" not in self._top else join_key("commands", command.name)
        self._problems.add(message, key, command.position, hint)


def _find_references(sweeps: tuple[Sweep, ...], env: Node | None) -> Iterator[Problem]:
    """Yield a warning for each value that has the name of a parameter in braces, as a command would."""
    names = {name for sweep in sweeps for name in sweep.axes}
    for entry in env.items() if env else ():
        yield from _build_reference(entry.node.text, names, join_key("env", entry.key), entry.node.position)
    for sweep in sweeps:
        for name, axis in sweep.axes.items():
            values = axis.values if isinstance(axis, Choices) else ()
            texts = "\n".join(str(value) for value in values if isinstance(value, str | list))
            yield from _build_reference(texts, sweep.axes, name, axis.position)


def _build_reference(text: str, names: Collection[str], key: str, position: Position | None) -> Iterator[Problem]:
    for name in dict.fromkeys(re.findall(r"(?<![{$])\{([\w.-]+)\}(?!\})", text)):
        if name in names or name in RUN_VALUES:
            message = f"{{{name}}} is passed on as this text: only commands can use the values of parameters and runs"
            yield Problem(message, key, position, f"write {{{name}}} into the command instead")


# ---------------------------------------------------------------- metrics and checks


class _MetricReader:
    def __init__(self, fields: Fields, commands: tuple[str, ...]) -> None:
        self._fields = fields
        self._problems = fields.problems
        self._commands = commands

    def metrics(self, node: Node, key: str) -> tuple[Pattern | MetricFile, ...]:
        entries = self._fields.open_mapping(node, key, "a mapping of metric names to patterns")
        found = [self._metric(entry.key, entry.node, join_key(key, entry.key)) for entry in entries]
        return tuple(metric for metrics in found for metric in metrics)

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
            self._problems.add("give one of regex, jsonl, csv or tensorboard", key, node.position)
            return []
        found = self._pattern_from(name, entries, key) if kinds == ["regex"] else self._file(kinds[0], entries, key)
        return [found] if found else []

    def _file(self, kind: str, entries: Mapping[str, Item], key: str) -> MetricFile | None:
        self._refuse_keys(entries, ("regex", "labels", "command"), key, f"does not go with {kind}")
        node = entries[kind].node
        path = self._fields.text(node, join_key(key, kind), "a path inside the run's directory")
        step = self._fields.child(entries, "step", key, self._fields.text, None)
        if path is None:
            return None
        if os.path.isabs(path) or ".." in path.split("/"):
            hint = "write it relative to the run's directory, as in metrics.jsonl or logs/*.csv"
            self._problems.add("the file must be inside the run's directory", join_key(key, kind), node.position, hint)
        return MetricFile(cast("Literal['jsonl', 'csv', 'tensorboard']", kind), path, step, node.position)

    def _pattern_from(self, name: str, entries: Mapping[str, Item], key: str) -> Pattern | None:
        self._refuse_keys(entries, ("step",), key, "goes with jsonl, csv and tensorboard files")
        names = partial(self._fields.texts, wanted="a list of names")
        labels: tuple[str, ...] = self._fields.child(entries, "labels", key, names, ())
        command = self._fields.child(entries, "command", key, self._fields.text, None)
        if command is not None and command not in self._commands:
            position, hint = entries["command"].node.position, did_you_mean(command, self._commands)
            self._problems.add(f"no command {command!r}", join_key(key, "command"), position, hint)
        return self._pattern(name, entries["regex"].node, join_key(key, "regex"), labels, command)

    def _refuse_keys(self, entries: Mapping[str, Item], keys: tuple[str, ...], key: str, why: str) -> None:
        for name in keys:
            if name in entries:
                self._problems.add(f"{name} {why}", join_key(key, name), entries[name].position)

    def _pattern(
        self, name: str, node: Node, key: str, labels: tuple[str, ...] = (), command: str | None = None
    ) -> Pattern | None:
        if (text := self._fields.text(node, key, "a regular expression")) is None:
            return None
        regex = expand_number(text)
        try:
            compiled = re.compile(regex)
        except (re.error, OverflowError, RecursionError) as error:
            self._problems.add(f"the regular expression is broken: {error} in {text!r}", key, node.position)
            return None
        if not compiled.groups:
            self._problems.add("the pattern has no group", key, node.position, _GROUP_HINT)
        if labels and len(labels) != compiled.groups:
            message = f"{len(labels)} labels for {compiled.groups} groups"
            self._problems.add(message, key, node.position, "give each group of the pattern one label")
        return Pattern(name, regex, labels, command, node.position)

    # ------------------------------------------------------------ checks

    def checks(self, node: Node, key: str) -> tuple[Check, ...]:
        elements = self._fields.elements(node, key, "a list of checks, as in [{metric: loss, max: 0.5}]")
        found = [self._check(element, f"{key}[{index}]") for index, element in enumerate(elements)]
        return tuple(check for check in found if check is not None)

    def _check(self, node: Node, key: str) -> Check | None:
        entries = self._fields.mapping(node, key, ("metric", "at", "min", "max"))
        if "metric" not in entries:
            if node.kind == "mapping":
                self._problems.add("has no metric", key, node.position, "as in {metric: loss, max: 0.5}")
            return None
        metric = self._fields.text(entries["metric"].node, join_key(key, "metric"))
        at = self._fields.child(entries, "at", key, partial(self._fields.one_of, choices=AT), "last")
        low, high = (self._fields.child(entries, name, key, self._fields.number, None) for name in ("min", "max"))
        if "min" not in entries and "max" not in entries:
            self._problems.add("has no bound", key, node.position, "add min, max or both")
        if low is not None and high is not None and low > high:
            self._problems.add(f"min {low:g} is above max {high:g}: nothing can pass", key, node.position)
        return Check(metric, cast("At", at), low, high, node.position) if metric is not None else None
