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
