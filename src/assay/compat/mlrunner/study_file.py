"""mlrunner's params.yaml → Study.

The first document has `template` (command → text), `resource` (one worker per entry), `alias`, `default`.
Each later document is a grid: parameters, a `_title`, and the commands `_cmd` it runs.

In a template `{p}` is a value and `[p]` a flag; `{_output}`, `{_name}` and `{_time}` are values of the run. Shell text
that looks like a placeholder, such as `${HOME}` or `l[0]`, stays unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from assay.compat.study_files import build_folder, build_name, read_overrides
from assay.config.fields import Fields, LoadOptions, build_axis, build_duplicate_warnings
from assay.config.overrides import Overrides
from assay.config.source import Item, Node, Problems, join_key
from assay.config.template import parse_template
from assay.errors import ConfigError, did_you_mean
from assay.values.study import (
    Axis,
    CodePolicy,
    CommandTemplate,
    Flag,
    Params,
    Piece,
    Placeholder,
    Problem,
    ShellText,
    Study,
    Sweep,
)

OWN_VALUES = {"_output": "run.output", "_name": "run.name", "_time": "run.time"}

_KEYS = ("template", "resource", "alias", "default")
_RESERVED = (*OWN_VALUES, "_scripts")
_COMMAND_NAME = re.compile(r"[\w-]+")
_LINE_BREAK = re.compile(r"\s*\n\s*")
_TEMPLATE_HINT = "write `template:` with a line `train: python train.py {data} [lr]` below it"


def parse_mlrunner(nodes: list[Node], path: str, options: LoadOptions) -> Study:
    """Parse a params.yaml to a study; raise ConfigError with all problems."""
    problems = Problems()
    study = _Reader(nodes, problems).study(path, options)
    problems.raise_if_any()
    return study


class _Reader:
    def __init__(self, nodes: Sequence[Node], problems: Problems) -> None:
        documents = [node for node in nodes if not node.is_null]
        self._head, self._documents = documents[0], documents[1:]
        self._problems = problems
        self._fields = Fields(problems)
        self._top: Mapping[str, Item] = self._fields.mapping(self._head, "", _KEYS)
        self._warnings = build_duplicate_warnings(documents)
        for node in nodes:
            if node.is_null:
                self._warn("this document is empty", node, "it is skipped; remove one of the `---` lines")

    def study(self, path: str, options: LoadOptions) -> Study:
        commands = self._commands()
        alias, defaults = self._top.get("alias"), self._defaults()
        entries = []
        if alias is not None and not alias.node.is_null:
            entries = self._fields.open_mapping(alias.node, "alias", "a mapping of names to cases")
        aliases = {entry.key: self._cases(entry, join_key("alias", entry.key)) for entry in entries}
        names = tuple(command.name for command in commands)
        sweeps = tuple(self._sweep(document, names) for document in self._documents)
        sweeps = sweeps or (Sweep({}, position=self._head.position),)
        sweeps, overrides = self._override(sweeps, commands, defaults, aliases, options)
        self._check_aliases(commands, aliases, sweeps)
        targets = {name for cases in aliases.values() for case in cases.values() for name in case}
        self._check_places(commands, sweeps, {*defaults, *aliases, *targets})
        return Study(
            name=build_name(path, options),
            dialect="mlrunner",
            source=path,
            folder=build_folder(options),
            commands=commands,
            sweeps=sweeps,
            defaults=defaults,
            aliases=aliases,
            slots=self._slots(),
            code=CodePolicy("live"),
            overrides=overrides,
            warnings=tuple(self._warnings),
        )

    def _override(
        self,
        sweeps: tuple[Sweep, ...],
        commands: Sequence[CommandTemplate],
        defaults: Params,
        aliases: Mapping[str, Mapping[str, Params]],
        options: LoadOptions,
    ) -> tuple[tuple[Sweep, ...], dict[str, Axis]]:
        """Return the sweeps with the command line's values, which run names include, and the axes of the values."""
        listed = list(dict.fromkeys(name for sweep in sweeps for name in sweep.axes))
        targets = [name for cases in aliases.values() for case in cases.values() for name in case]
        asked = [name for command in commands for name in sorted(_names(command))]
        known = dict.fromkeys((*listed, *defaults, *aliases, *targets, *asked, *(options.base or ())))
        axes = read_overrides(options, tuple(known), self._fields)
        everywhere = {name for name in axes if name in defaults or name in targets or name not in listed}
        overrides = Overrides(axes, everywhere, options.base)
        if options.base is not None:
            whole = overrides.build_base()
            named = tuple(name for name in dict.fromkeys((*listed, *axes)) if name in whole)
            return (Sweep(whole, named=named),), axes
        if not axes:
            return sweeps, axes
        changed = [overrides.apply(sweep.axes) for sweep in sweeps]
        return tuple(replace(s, axes=new, named=tuple(new)) for s, new in zip(sweeps, changed, strict=True)), axes

    def _warn(self, message: str, node: Node, hint: str) -> None:
        self._warnings.append(Problem(message, "", node.position, hint))

    # ------------------------------------------------------------ the first document

    def _slots(self) -> tuple[str, ...] | None:
        entry = self._top.get("resource")
        if entry is None:
            hint = "free GPUs are looked for; `resource: [0, 1]` names them"
            self._warn("there is no resource", self._head, hint)
            return None
        elements = self._fields.elements(entry.node, "resource", "a list, one entry per worker")
        slots = []
        for index, element in enumerate(elements):  # an element is `0`, `"1,2"`, or `[1, 2]` for two GPUs
            parts = self._fields.texts(element, f"resource[{index}]", "the number of a GPU, or several: 1,2")
            slots.append(",".join(part.strip() for text in parts for part in text.split(",")))
        return tuple(filter(None, slots))

    def _commands(self) -> tuple[CommandTemplate, ...]:
        entry = self._top.get("template")
        if entry is None:
            self._problems.add("there is no template", "", self._head.position, _TEMPLATE_HINT)
            return ()
        if entry.node.kind != "mapping":
            self._fields.refuse(entry.node, "template", "a mapping of command names to commands", _TEMPLATE_HINT)
            return ()
        entries = self._fields.open_mapping(entry.node, "template", "a mapping")
        found = [self._command(command, join_key("template", command.key)) for command in entries]
        return tuple(command for command in found if command is not None)

    def _command(self, entry: Item, key: str) -> CommandTemplate | None:
        if not _COMMAND_NAME.fullmatch(entry.key):
            self._problems.add("cannot name a command", key, entry.position, "a name has letters, digits, _ and -")
        text = self._fields.text(entry.node, key, "the text of a command")
        if text is None:
            return None
        try:
            pieces = parse_template(_LINE_BREAK.sub(" ", text.strip()), entry.node.position, key)
        except ConfigError as error:
            self._problems.extend(error)
            return None
        command = CommandTemplate(entry.key, tuple(map(_translate, pieces)), position=entry.node.position)
        places = {piece.name for piece in command.pieces if isinstance(piece, Placeholder)}
        flags = {piece.name for piece in command.pieces if isinstance(piece, Flag)}
        for name in sorted(places & flags):
            hint = f"keep one of the two, or write {{{{{name}}}}} or [[{name}]] for the literal text"
            self._problems.add(f"{name} is here as {{{name}}} and as [{name}]", key, command.position, hint)
        for own in sorted(flags & OWN_VALUES.keys()):
            self._problems.add(f"[{own}] is not a flag", key, command.position, f"write {{{own}}}")
        return command

    def _defaults(self) -> Params:
        entry = self._top.get("default")
        if entry is None or entry.node.is_null:
            return {}
        if entry.node.kind != "mapping":
            self._fields.refuse(entry.node, "default", "a mapping of parameters to values")
            return {}
        for item in entry.node.items():
            self._check_reserved(item, join_key("default", item.key))
        return dict(entry.node.value)

    def _cases(self, alias: Item, key: str) -> dict[str, Params]:
        """Parse the cases of an alias, `case: {param: value}`, which must all set the same parameters."""
        cases: dict[str, Params] = {}
        for case in self._fields.open_mapping(alias.node, key, "a mapping of cases, each {param: value}"):
            here = join_key(key, case.key)
            targets = self._fields.open_mapping(case.node, here, "a mapping {param: value}")
            first = next(iter(cases.values()), None)
            if targets and first is not None and set(first) != {target.key for target in targets}:
                hint = f"every case sets {', '.join(first)}"
                self._problems.add("this case sets other parameters than the first", here, case.position, hint)
            for target in targets:
                self._check_reserved(target, join_key(here, target.key))
            cases[case.key] = {target.key: target.node.value for target in targets}
        return cases

    # ------------------------------------------------------------ the grids

    def _sweep(self, document: Node, commands: Sequence[str]) -> Sweep:
        entries = {entry.key: entry for entry in document.items()}
        title, chosen = entries.pop("_title", None), entries.pop("_cmd", None)
        for entry in entries.values():
            self._check_reserved(entry, entry.key)
        axes = {entry.key: build_axis(entry.node, entry.key, self._problems) for entry in entries.values()}
        return Sweep(
            axes,
            title=self._fields.text(title.node, "_title") if title and not title.node.is_null else None,
            commands=self._chosen(chosen, commands) if chosen else None,
            named=tuple(axes),
            position=document.position,
        )

    def _chosen(self, entry: Item, commands: Sequence[str]) -> tuple[str, ...] | None:
        """Return the commands that a document chooses, in the template's order, or None if it chooses none."""
        if entry.node.is_null:
            return None
        names = self._fields.texts(entry.node, "_cmd", "the name of a command, or a list of them")
        for name in names:
            if commands and name not in commands:
                hint = did_you_mean(name, commands)
                self._problems.add(f"there is no command {name!r}", "_cmd", entry.node.position, hint)
        return tuple(name for name in commands if name in names) or None

    def _check_reserved(self, entry: Item, key: str) -> None:
        if entry.key in _RESERVED:
            hint = "choose another name" if entry.key in OWN_VALUES else "it is what `param` keeps the commands under"
            self._problems.add("this name is taken by the run's own values", key, entry.position, hint)

    def _check_aliases(
        self, commands: Sequence[CommandTemplate], aliases: Mapping[str, Mapping[str, Params]], sweeps: Sequence[Sweep]
    ) -> None:
        for command in commands:
            for name in sorted(_names(command) & aliases.keys()):
                targets = next(iter(aliases[name].values()), {})
                hint = f"an alias only stands for others: use {', '.join(targets) or 'those'} here"
                key = join_key("template", command.name)
                self._problems.add(f"{name} is an alias", key, command.position, hint)
        for sweep in sweeps:
            for name in sweep.axes.keys() & aliases.keys():
                axis = sweep.axes[name]
                for value in getattr(axis, "values", ()):
                    if str(value) not in aliases[name]:
                        guess = did_you_mean(str(value), aliases[name])
                        self._problems.add(f"the alias has no case {value!r}", name, axis.position, guess)

    def _check_places(self, commands: Sequence[CommandTemplate], sweeps: Sequence[Sweep], given: set[str]) -> None:
        """Report names without a value in the whole file. A value that one document lacks is reported at its run."""
        known = given.union(*(sweep.axes for sweep in sweeps))
        run = {name for sweep in sweeps for name in sweep.commands or [command.name for command in commands]}
        for command in commands:
            if run and command.name not in run:
                continue  # no document runs this command
            for name in sorted(_names(command) - known):
                guess = did_you_mean(name, [*known, *OWN_VALUES])
                where = "give it a value in a document or under `default`"
                hint = f"{where}, or write {{{{{name}}}}} or [[{name}]] literally"
                hint = f"{guess}\n    {hint}" if guess else hint
                key = join_key("template", command.name)
                self._problems.add(f"{name} has no value", key, command.position, hint)


# ---------------------------------------------------------------- placeholders


def _translate(piece: Piece) -> Piece:
    """Replace mlrunner's names for the run's own values by Assay's. A name with a dot is text, not a parameter."""
    if isinstance(piece, Placeholder) and piece.name in OWN_VALUES:
        return replace(piece, name=OWN_VALUES[piece.name])
    if isinstance(piece, Placeholder) and "." in piece.name:
        return ShellText(f"{{{piece.name}}}")
    if isinstance(piece, Flag) and "." in piece.name:
        return ShellText(f"[{piece.name}]")
    return piece


def _names(command: CommandTemplate) -> set[str]:
    """Return the names of the parameters in a template."""
    return {piece.name for piece in command.pieces if isinstance(piece, Placeholder | Flag)} - {*OWN_VALUES.values()}
