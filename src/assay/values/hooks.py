"""A plug-in as a value: what it offers for each hook."""

from __future__ import annotations

from collections.abc import Mapping

from assay.system.fast_dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Part:
    """For `assay doctor`: an optional package, the extra that installs it, and its use."""

    package: str
    extra: str
    use: str


@dataclass(frozen=True, slots=True)
class Program:
    """For `assay doctor`: a program on PATH that some commands start."""

    name: str
    use: str
    hint: str
    question: str = "--version"


@dataclass(frozen=True, slots=True)
class Folder:
    """For `assay doctor`: a folder that must be writable. `find`: (environment, current folder) -> path."""

    name: str
    find: str
    hint: str


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plug-in. Each field after `needs` is a hook; `docs/reference/plug-ins.md` has their signatures."""

    name: str
    needs: tuple[str, ...] = ()  # plug-ins that this one requires: without them it is left out
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # word -> handler or Group, help, section
    reading: tuple[str, ...] = ()  # words of `commands` that change nothing, and may be called again
    children: Mapping[str, str] = field(default_factory=dict)  # `python -m assay child NAME` -> main() -> int
    options: Mapping[str, str] = field(default_factory=dict)  # command -> Request with further options
    study_keys: Mapping[str, str] = field(default_factory=dict)  # key of a study file -> reader of its value
    settings: Mapping[str, str] = field(default_factory=dict)  # key of assay.toml -> reader of its value
    dialects: Mapping[str, str] = field(default_factory=dict)  # name -> Dialect: study files of another tool
    executors: Mapping[str, str] = field(default_factory=dict)  # name -> Executor class
    places: str = ""  # Places: the core's interface to farms
    run_steps: Mapping[str, str] = field(default_factory=dict)  # study key or option of `run` -> RunStep class
    importers: tuple[str, ...] = ()  # tuples of Importer, for `assay index ingest`
    pages: tuple[str, ...] = ()  # Pages of `assay serve`
    reports: tuple[str, ...] = ()  # build_report(location, rest) -> Document | None, for `assay report`
    doctor: tuple[Part | Program | Folder, ...] = ()
    functions: Mapping[str, str] = field(default_factory=dict)  # name -> function that is called by this name


@dataclass(frozen=True, slots=True)
class PluginProblem:
    """A plug-in, or a part of a plug-in, that is left out."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """The tool that a study file is written for. The defaults suit native files. A text `module:name` is loaded when it
    is needed; if the text is empty, the core's own function is used."""

    name: str  # stored in run.json
    is_ours: bool = False  # the file has keys that only native studies have: metrics, env, resume
    keys: frozenset[str] = frozenset()  # a file with one of these keys is of this dialect
    weak_keys: frozenset[str] = frozenset()  # keys that show this dialect in a file without `command`
    how_to: str = ""  # a minimal file
    parser: str = ""  # (documents, path, LoadOptions) -> Study
    planner: str = ""  # a class like assay.plan.expand.Planner
    run_rules: str = ""  # a class like assay.launch.run_rules.RunRules
    folder_reader: str = ""  # (folder) -> FolderRun of a run that only the tool made, or None
    roots_reader: str = ""  # () -> (folders of studies, folders with copies of them), by the tool's own settings
    guesses_code: bool = True  # a snapshot leaves out files that are probably not code
    renews_code: bool = True  # a failed run that is repeated gets the current code
    name_flag: str = "--study"  # sets the study's name; empty: the name is a path
    root_hint: str = "--root DIR"  # how to choose another output root
    shorten_hint: str = "shorten the lists, zip some of them, or add `subset: {count: 100, seed: 0}`"
    ignore_hint: str = "`code: {ignore: [NAMES]}` links them instead"
    command_key: str = "command {name}"  # how messages name a command of the file
    farm_key: str = "farms.{name}"
    farm_hint: str = "`--on local` runs here, without a farm"


NATIVE = Dialect("native", is_ours=True)
