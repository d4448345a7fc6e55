"""runx's experiment file, with the `.runx` that surrounds it → Study.

CMD: python train.py                HPARAMS: a mapping, or a list whose first item all others inherit
PYTHONPATH, CODE_IGNORE_PATTERNS, and every key of `.runx`, which the experiment's keys override:
LOGROOT, FARM, and per farm SUBMIT_CMD, RESOURCES, WORKSPACE, NGC_LOGROOT, SUBMIT_TEMPLATE, CANCEL_CMD, PYTHONPATH

`LOGDIR` stays in parameters and commands; rendering a command replaces it by the run's directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Literal

from assay.compat.study_files import build_folder, build_name, read_overrides
from assay.config.fields import Fields, LoadOptions, build_axis, build_duplicate_warnings
from assay.config.overrides import Overrides
from assay.config.places import read_farm
from assay.config.source import Item, Node, Problems, join_key, load_text, parse_documents
from assay.errors import UsageError, did_you_mean
from assay.system.fast_dataclasses import replace
from assay.values.layout import RUN_DIR_REFERENCE
from assay.values.study import (
    AllFlags,
    Choices,
    CodePolicy,
    CommandTemplate,
    Farm,
    Position,
    Problem,
    ShellText,
    Study,
    Sweep,
)

FarmKind = Literal["generic", "draco", "ngc", "template"]
_KNOWN_FARMS: tuple[FarmKind, ...] = ("ngc", "draco")
COMMAND = "train"  # runx has one command and no name for it
LOGDIR = "LOGDIR"
TAG, SKIP = "RUNX.TAG", "RUNX.SKIP"
NODES, PARTITION = "SUBMIT_JOB.NODES", "SUBMIT_JOB.PARTITION"

DEFAULT_IGNORE = ".git,*.pyc,docs*,test*"
CHECKPOINTS = "*.pth"  # never copied, in addition to the file's own patterns
DEFAULT_PYTHONPATH = f"{LOGDIR}/code"

_EXPERIMENT_KEYS = ("CMD", "HPARAMS")
_CONFIG_KEYS = ("LOGROOT", "FARM", "CODE_IGNORE_PATTERNS")
_FARM_KEYS = ("SUBMIT_CMD", "RESOURCES", "PYTHONPATH", "WORKSPACE", "NGC_LOGROOT", "SUBMIT_TEMPLATE", "CANCEL_CMD")
_FARM_TEXTS = tuple(key for key in _FARM_KEYS if key not in ("RESOURCES", "PYTHONPATH"))
_KEYS = (*_EXPERIMENT_KEYS, *_CONFIG_KEYS, *_FARM_KEYS)
# keys in the older spelling, except those of farms, whose sections may have any name
_OLDER_KEYS = tuple(key.lower() for key in (*_EXPERIMENT_KEYS, "LOGROOT", "PYTHONPATH", "CODE_IGNORE_PATTERNS"))
_MAGIC = (TAG, SKIP, NODES, PARTITION)
_ALWAYS = (TAG, NODES, PARTITION)  # allowed on the command line even if the file does not have them
_HPARAMS_HINT = "write `HPARAMS: {lr: [0.01, 0.02]}`; `HPARAMS: {}` is a single run without flags"


def parse_runx(nodes: list[Node], path: str, options: LoadOptions) -> Study:
    """Parse an experiment file to a study; raise ConfigError with all problems of the file and its `.runx`."""
    problems = Problems()
    documents = [node for node in nodes if not node.is_null]
    for extra in documents[1:]:
        problems.add("a runx file holds one document", "", extra.position, "remove the `---` line")
    study = _Reader(documents[0], load_config(options), options, problems).study(path)
    problems.raise_if_any()
    return study


# ---------------------------------------------------------------- .runx


def find_config(options: LoadOptions) -> str | None:
    """Return the path of `-c FILE`, which must exist, else ./.runx, else ~/.config/runx.yml, or None."""
    folder = build_folder(options)
    if options.config_file is not None:
        path = os.path.join(folder, options.config_file)
        if not os.path.isfile(path):
            hint = "give the path of a .runx file, or leave -c out"
            raise UsageError(f"there is no configuration file {options.config_file!r}", hint)
        return path
    home = options.home or os.path.expanduser("~")
    candidates = (os.path.join(folder, ".runx"), os.path.join(home, ".config", "runx.yml"))
    return next((path for path in candidates if os.path.isfile(path)), None)


def load_config(options: LoadOptions) -> Node | None:
    """Load the `.runx` that applies here; None if it does not exist or is empty."""
    path = find_config(options)
    if path is None:
        return None
    shown = path.removeprefix(build_folder(options) + os.sep)
    text = load_text(path, shown)
    if not re.sub(r"^\s*(#.*|---\s*|\.\.\.\s*)?$", "", text, flags=re.MULTILINE).strip():
        return None
    return parse_documents(text, shown, flavour="originals")[0]


def load_log_roots() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the folders of LOGROOT, and those of NGC_LOGROOT, where a farm leaves copies of the same runs."""
    options = LoadOptions()
    config = load_config(options)
    if config is None or config.kind != "mapping":
        return (), ()
    base = os.path.dirname(find_config(options) or "")
    sections = [config.value, *(value for value in config.value.values() if isinstance(value, dict))]

    def collect(key: str) -> tuple[str, ...]:
        given = [section[key] for section in reversed(sections) if isinstance(section.get(key), str) and section[key]]
        paths = (os.path.expanduser(os.path.expandvars(path)) for path in given)
        return tuple(os.path.normpath(os.path.join(base, path)) for path in paths)

    return collect("LOGROOT"), collect("NGC_LOGROOT")


# ---------------------------------------------------------------- the two files as one


class _Layer:
    """The keys of one file or section, with older lower-case keys under their new names."""

    def __init__(self, node: Node | None) -> None:
        self.entries: dict[str, Item] = {}
        self.others: list[Item] = []
        for entry in node.items() if node is not None else ():
            if entry.key in _KEYS:
                self.entries[entry.key] = entry
            elif entry.key in _OLDER_KEYS:
                self.entries.setdefault(entry.key.upper(), entry)
            else:
                self.others.append(entry)


class _Reader:
    def __init__(self, experiment: Node, config: Node | None, options: LoadOptions, problems: Problems) -> None:
        self._document = experiment
        self._experiment = _Layer(experiment)
        self._config = _Layer(config)
        self._options = options
        self._problems = problems
        self._fields = Fields(problems)
        self._warnings = build_duplicate_warnings([experiment, *([config] if config is not None else [])])

    def study(self, path: str) -> Study:
        # sections are all mappings in `.runx`, and those of the experiment that submit: others may be anchors
        own = [entry for entry in self._experiment.others if _submits(entry.node)]
        entries = [*(entry for entry in self._config.others if entry.node.kind == "mapping"), *own]
        sections = {entry.key: _Layer(entry.node) for entry in entries}
        chosen, position = self._chosen_farm()
        farms = {name: self._farm(name, section) for name, section in sections.items()}
        section = sections.get(chosen) if chosen else None
        if chosen is not None and section is None:
            hint = did_you_mean(chosen, sections) or f"add a section `{chosen}:` with SUBMIT_CMD and RESOURCES to .runx"
            problem = Problem(f"there is no farm {chosen!r}", "FARM" if position else "--farm", position, hint)
            farms[chosen] = Farm(chosen, "missing", position=position, problems=(problem,))
        commands = self._commands()
        sweeps = self._sweeps()
        names = dict.fromkeys((*(name for sweep in sweeps for name in sweep.axes), *(self._options.base or ())))
        overrides = read_overrides(self._options, (*names, *_ALWAYS), self._fields)
        given = Overrides(overrides, _ALWAYS, self._options.base)
        applied = (replace(sweep, axes=given.apply(sweep.axes)) for sweep in sweeps)
        pythonpath = self._find("PYTHONPATH", section)
        paths = self._fields.texts(pythonpath.node, "PYTHONPATH", "a text") if pythonpath else ()
        self._warn_unknown()
        return Study(
            name=build_name(path, self._options),
            dialect="runx",
            source=path,
            folder=build_folder(self._options),
            commands=commands,
            sweeps=tuple(applied) if given.base is None else (Sweep(given.build_base()),),
            pythonpath=(":".join(paths) or DEFAULT_PYTHONPATH).replace(LOGDIR, RUN_DIR_REFERENCE),
            code=CodePolicy("snapshot", self._ignore(), link_ignored=False),
            root=self._root(),
            farms=farms,
            farm=chosen,
            overrides=overrides,
            warnings=tuple(self._warnings),
        )

    def _find(self, key: str, section: _Layer | None = None) -> Item | None:
        """Find a key in the experiment, else in the farm's section, else at the top of `.runx`; skip null values."""
        layers = (self._experiment, *([section] if section else []), self._config)
        found = (entry for layer in layers if (entry := layer.entries.get(key)) is not None)
        return next((e for e in found if e.node.kind != "scalar" or e.node.value not in (None, "", "None")), None)

    # ------------------------------------------------------------ CMD and HPARAMS

    def _commands(self) -> tuple[CommandTemplate, ...]:
        entry = self._experiment.entries.get("CMD")
        if entry is None:
            hint = self._near("CMD") or "add `CMD: python train.py`"
            self._problems.add("there is no CMD", "", self._document.position, hint)
            return ()
        text = self._fields.text(entry.node, entry.key, "the text of a command")
        if text is None:
            return ()
        # a command may end in a quote, so a space separates the flags
        pieces = (ShellText(f"{text.strip()} "), AllFlags())
        return (CommandTemplate(COMMAND, pieces, position=entry.node.position),)

    def _sweeps(self) -> tuple[Sweep, ...]:
        entry = self._experiment.entries.get("HPARAMS")
        if entry is None:
            hint = self._near("HPARAMS") or _HPARAMS_HINT
            self._problems.add("there are no HPARAMS", "", self._document.position, hint)
            return ()
        if entry.node.is_null:
            return (Sweep({}, position=entry.position),)
        if entry.node.kind == "mapping":
            sweeps = [self._sweep(entry.node.items(), entry.key, entry.node.position)]
        elif entry.node.kind == "sequence":
            sweeps = [*self._inherited(entry)]
        else:
            self._fields.refuse(entry.node, entry.key, "a mapping, or a list of mappings", _HPARAMS_HINT)
            return ()
        if sweeps and not any(sweeps):
            hint = f"remove a {SKIP}, or add an item that is not skipped"
            self._problems.add("every item is skipped: there is nothing to run", entry.key, entry.position, hint)
        return tuple(sweep for sweep in sweeps if sweep is not None)

    def _inherited(self, entry: Item) -> Iterator[Sweep | None]:
        """Parse a list of grids. Items inherit from the first, except RUNX.SKIP: a skipped first item is a template."""
        items = self._fields.elements(entry.node, entry.key, "a list of mappings")
        first = {inherited.key: inherited for inherited in items[0].items() if inherited.key != SKIP} if items else {}
        for index, item in enumerate(items):
            key = f"{entry.key}[{index}]"
            if item.kind == "mapping":
                yield self._sweep((first | {own.key: own for own in item.items()}).values(), key, item.position)
            else:
                self._fields.refuse(item, key, "a mapping of parameters")

    def _sweep(self, entries: Iterable[Item], key: str, position: Position) -> Sweep | None:
        """Parse one grid, or return None if RUNX.SKIP leaves it out."""
        found = list(entries)
        for entry in found:
            nodes = entry.node.elements() if entry.node.kind == "sequence" else [entry.node]
            if entry.key == SKIP and nodes and all(bool(node.value) and node.value != "None" for node in nodes):
                return None
            if entry.key.startswith(("RUNX.", "SUBMIT_JOB.")) and entry.key not in _MAGIC:
                hint = did_you_mean(entry.key, _MAGIC) or f"known: {', '.join(_MAGIC)}"
                self._warn("this is passed to the script as it is", join_key(key, entry.key), entry.position, hint)
            for node in nodes if entry.key == TAG else ():
                if node.kind != "scalar":
                    hint = "a tag names runs: RUNX.TAG: '{arch}' puts in the value of a parameter"
                    self._fields.refuse(node, join_key(key, TAG), "a text, or a list of texts", hint)
        is_swept = {SKIP: any(len(e.node.elements()) > 1 for e in found if e.key == SKIP)}  # [false, false]: two runs
        axes = {e.key: self._axis(e.node, join_key(key, e.key)) for e in found if is_swept.get(e.key, True)}
        return Sweep(axes, position=position)

    def _axis(self, node: Node, key: str) -> Choices:
        """Parse the values of a parameter; replace line breaks of YAML's block texts, which would end the command."""
        axis = build_axis(node, key, self._problems)
        values = (v.replace("\n", " ").strip() if isinstance(v, str) and "\n" in v else v for v in axis.values)
        return Choices(tuple(values), axis.position)

    def _near(self, key: str) -> str | None:
        """Return a hint if an unknown key of the file is probably a misspelling of `key`."""
        names = [entry.key for entry in self._experiment.others]
        return next((f"{name!r} is not known; did you mean {key!r}?" for name in names if _close(name, key)), None)

    # ------------------------------------------------------------ paths

    def _root(self) -> str | None:
        """Return the folder of LOGROOT. A relative path is relative to the file that sets LOGROOT."""
        entry = self._find("LOGROOT")
        if entry is None:
            return None
        node = entry.node
        if not isinstance(node.value, str):  # a number is a mistake, or a folder's name without quotes
            named = f"a folder with this name: LOGROOT: './{node.text}'"
            hint = named if node.kind == "scalar" else "as in LOGROOT: logs"
            self._fields.refuse(node, "LOGROOT", "the path of a folder", hint)
            return None
        text = self._fields.text(node, "LOGROOT", "the path of a folder")
        if text is None:
            return None
        if text.startswith("~/") or text == "~":
            text = (self._options.home or os.path.expanduser("~")) + text[1:]
        folder = os.path.join(build_folder(self._options), os.path.dirname(entry.position.file))
        return os.path.abspath(os.path.join(folder, os.path.expandvars(text)))

    def _ignore(self) -> tuple[str, ...]:
        entry = self._find("CODE_IGNORE_PATTERNS")
        texts: Sequence[str] = (DEFAULT_IGNORE,)
        if entry is not None:
            texts = self._fields.texts(entry.node, "CODE_IGNORE_PATTERNS", "patterns, separated by commas")
        patterns = [pattern.strip() for text in texts for pattern in text.split(",")]
        return tuple(dict.fromkeys([*filter(None, patterns), CHECKPOINTS]))

    # ------------------------------------------------------------ farms

    def _chosen_farm(self) -> tuple[str | None, Position | None]:
        """Return the name of the chosen farm and its position in the file. A later step checks if it can be used."""
        if self._options.farm is not None:
            return self._options.farm, None
        entry = self._find("FARM")
        if entry is not None:
            return self._fields.text(entry.node, "FARM", "the name of a farm"), entry.node.position
        submit = self._find("SUBMIT_CMD") or self._find("SUBMIT_TEMPLATE")
        if submit is not None:
            message = "there is no FARM: runs are started here, nothing is submitted"
            hint = "put it into a section of its own and name that section in FARM"
            self._warn(message, submit.key, submit.position, hint)
        return None, None

    def _farm(self, name: str, section: _Layer) -> Farm:
        """Return a farm with its problems, which are reported only when it is used."""
        problems = Problems()
        fields = Fields(problems)
        entry = next(e for e in (*self._experiment.others, *self._config.others) if e.key == name)
        if entry.node.find("kind"):  # the farm has an engine, with keys of its own
            return read_farm(entry, name)
        given = {key: self._find(key, section) for key in _FARM_TEXTS}
        texts = {key: fields.text(found.node, key) if found else None for key, found in given.items()}
        template, submit = texts["SUBMIT_TEMPLATE"], texts["SUBMIT_CMD"]
        kind: FarmKind = next((known for known in _KNOWN_FARMS if known in name.lower()), "generic")
        kind = "template" if template is not None else kind
        asked = self._find("RESOURCES", section)
        resources: tuple[tuple[str, object], ...] = ()
        if asked is not None and asked.node.kind == "mapping":
            resources = tuple((option.key, option.node.value) for option in asked.node.items())
        elif asked is not None:
            fields.refuse(asked.node, join_key(name, "RESOURCES"), "a mapping", "as in {gpu: 2, mem: 128}")
        needed = {"SUBMIT_CMD": template or submit}
        if kind == "ngc":
            needed["NGC_LOGROOT"] = texts["NGC_LOGROOT"]
            needed |= {} if "submit_job" in (submit or "") else {"WORKSPACE": texts["WORKSPACE"]}
        missing = [key for key, value in needed.items() if value is None and not problems.found]
        if missing:
            hint = f"add {missing[0]} to the section {name!r}, or run here: `assay runx -i` or `assay run --on local`"
            problems.add(f"the farm lacks {' and '.join(missing)}", name, entry.position, hint)
        more = (texts["WORKSPACE"], texts["NGC_LOGROOT"], texts["CANCEL_CMD"], entry.position)
        return Farm(name, kind, template or submit or "", resources, *more, tuple(problems.found))

    # ------------------------------------------------------------ remarks

    def _warn(self, message: str, key: str, position: Position, hint: str | None) -> None:
        self._warnings.append(Problem(message, key, position, hint))

    def _warn_unknown(self) -> None:
        """Warn about unknown keys, which the original ignores silently, and in which users keep anchors and notes."""
        strays = [entry for entry in self._experiment.others if not _submits(entry.node)]
        strays += [entry for entry in self._config.others if entry.node.kind != "mapping"]
        for entry in strays:
            hint = next((f"did you mean {key!r}?" for key in _KEYS if _close(entry.key, key)), None)
            self._warn("this key means nothing to runx and is ignored", entry.key, entry.position, hint)


def _submits(node: Node) -> bool:
    return node.kind == "mapping" and any(node.find(key) for key in ("SUBMIT_CMD", "SUBMIT_TEMPLATE", "kind"))


def _close(name: str, key: str) -> bool:
    return SequenceMatcher(None, name.upper(), key).ratio() > 0.7
