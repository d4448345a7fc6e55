"""A plug-in as a value: what it offers, by hook."""

from __future__ import annotations

from collections.abc import Mapping

from assay.system.fast_dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Part:
    """For `assay doctor`: an optional package, the extra that installs it, what it is for."""

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
    """Each field after `needs` is a hook. `docs/reference/plug-ins.md` has their signatures."""

    name: str
    needs: tuple[str, ...] = ()  # plug-ins without which this one is left out
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # word -> handler or Group, help, section
    reading: tuple[str, ...] = ()  # words of `commands` that change nothing, and may be called again
    children: Mapping[str, str] = field(default_factory=dict)  # `python -m assay child NAME` -> main() -> int
    options: Mapping[str, str] = field(default_factory=dict)  # command -> Request with further options of it
    study_keys: Mapping[str, str] = field(default_factory=dict)  # key of a study file -> reader of its value
    settings: Mapping[str, str] = field(default_factory=dict)  # key of assay.toml -> reader of its value
    dialects: Mapping[str, str] = field(default_factory=dict)  # name -> Dialect: study files of another tool
    executors: Mapping[str, str] = field(default_factory=dict)  # name -> Executor class
    places: str = ""  # Places: farms, as the core asks about them
    run_steps: Mapping[str, str] = field(default_factory=dict)  # study key or option of `run` -> RunStep class
    importers: tuple[str, ...] = ()  # tuples of Importer, for `assay index ingest`
    pages: tuple[str, ...] = ()  # Pages of `assay serve`
    reports: tuple[str, ...] = ()  # build_report(location, rest) -> Document | None, for `assay report`
    doctor: tuple[Part | Program | Folder, ...] = ()
    functions: Mapping[str, str] = field(default_factory=dict)  # name -> function that others call by this name


@dataclass(frozen=True, slots=True)
class PluginProblem:
    """A plug-in, or a part of one, that is left out."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the core asks about the tool that a study file is written for. The defaults suit files of ours.

    A text `module:name` is loaded where it is needed; where it is empty, the core's own way is taken.
    """

    name: str  # run.json keeps it
    is_ours: bool = False  # the file has the keys of a study of ours: metrics, env, resume
    keys: frozenset[str] = frozenset()  # a file with one of these is of this dialect,
    weak_keys: frozenset[str] = frozenset()  # or with one of these and no command of ours
    how_to: str = ""  # a smallest file
    parser: str = ""  # (documents, path, LoadOptions) -> Study
    planner: str = ""  # a class like assay.plan.expand.Planner
    run_rules: str = ""  # a class like assay.launch.run_rules.RunRules
    folder_reader: str = ""  # (folder) -> FolderRun of a run that the tool made without us, or None
    roots_reader: str = ""  # () -> (folders of studies, folders that hold copies of them), by the tool's own settings
    guesses_code: bool = True  # a snapshot leaves out what is probably no code
    renews_code: bool = True  # a failed run that is repeated gets the current code
    name_flag: str = "--study"  # names the study; empty: a path does
    root_hint: str = "--root DIR"  # how another output root is chosen
    shorten_hint: str = "shorten the lists, zip some of them, or add `subset: {count: 100, seed: 0}`"
    ignore_hint: str = "`code: {ignore: [NAMES]}` links them instead"
    command_key: str = "command {name}"  # where messages find a command in the file
    farm_key: str = "farms.{name}"
    farm_hint: str = "`--on local` runs here, without a farm"


NATIVE = Dialect("native", is_ours=True)
