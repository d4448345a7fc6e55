"""Plug-ins: what a folder next to the core, or another distribution, adds to Assay.

A plug-in is one `Plugin` value (or a tuple of them), named by an entry point of the group `assay.plugins`; those that
come with Assay are registered in the same way. Everything it offers is a string `module:name` that is loaded when it is
asked for, so a plug-in costs a command that does not use it nothing. The core asks by hook, never by the name of a
plug-in. A plug-in that cannot be used is left out, and `assay doctor` prints why.

`docs/how-to/write-a-plug-in.md` shows one of another distribution.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from assay.errors import InfrastructureError, UsageError
from assay.system.fast_dataclasses import dataclass, field
from assay.values.study import NATIVE, Dialect

GROUP = "assay.plugins"
_OWN = "assay"

# Words of the core: a plug-in that names one of them is left out.
CORE_WORDS: Mapping[str, frozenset[str]] = {
    "commands": frozenset(
        "run ls show logs stop rerun diff plot sum tag note adopt best index doctor demo".split()  # noqa: SIM905
    ),
    "children": frozenset(("readings",)),
    "executors": frozenset(("local",)),
    "dialects": frozenset((NATIVE.name,)),
}


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
    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # word -> handler or Group, help text
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


_Loaded = tuple[Mapping[str, Plugin], tuple[PluginProblem, ...]]


# ---------------------------------------------------------------- what others ask


def find_plugins() -> Mapping[str, Plugin]:
    """By name: those that come with Assay first, then by the name of their distribution."""
    return _load_plugins()[0]


def find_problems() -> tuple[PluginProblem, ...]:
    """What was left out, and why; every name that a plug-in offers is loaded for this."""
    plugins, problems = _load_plugins()
    found = [*problems, *(problem for plugin in plugins.values() for problem in _try_names(plugin))]
    with suppress(InfrastructureError):  # of pages: by the plug-in that serves them, with the libraries that they need
        found += (find_function("pages.find_problems") or tuple)()
    return tuple(found)


def load(text: str) -> Any:
    """The object that `module:name` stands for."""
    module, _, name = text.partition(":")
    try:
        return getattr(import_module(module), name)
    except Exception as error:
        hint = "`assay doctor` lists what is installed"
        raise InfrastructureError(f"{text} cannot be loaded: {_describe(error)}", hint) from error


def merge(hook: str) -> dict[str, Any]:
    """The mappings of all plug-ins for a hook."""
    return {name: value for plugin in find_plugins().values() for name, value in getattr(plugin, hook).items()}


class Merged(Mapping[str, Any]):
    """The core's own entries, then those of the plug-ins, which are loaded only where the core's do not suffice."""

    def __init__(self, hook: str, own: Mapping[str, Any]) -> None:
        self._hook, self._own = hook, own

    def __getitem__(self, name: str) -> Any:
        return self._own[name] if name in self._own else merge(self._hook)[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._own, **merge(self._hook)})

    def __len__(self) -> int:
        return len({**self._own, **merge(self._hook)})


def load_all(hook: str, name: str = "") -> list[tuple[Plugin, Any]]:
    """The objects that plug-ins offer for a hook (under this name, where it is a mapping). What cannot be loaded is
    left out; `assay doctor` names it."""
    found = []
    for plugin in find_plugins().values():
        value = getattr(plugin, hook).get(name, ()) if name else getattr(plugin, hook)
        for text in (value,) if isinstance(value, str) else value:
            try:
                found += [(plugin, load(text))] if text else []
            except InfrastructureError:
                continue
    return found


def find_function(name: str) -> Any:
    """None: no plug-in offers it."""
    functions = merge("functions")
    return load(functions[name]) if name in functions else None


def require_function(name: str, what: str) -> Any:
    """For an option or a value that needs it. Raises UsageError where no plug-in offers it."""
    found = find_function(name)
    if found is None:
        raise UsageError(f"{what} needs a plug-in that is not installed: none offers {name}")
    return found


def find_dialect(name: str) -> Dialect:
    """One that no installed plug-in knows has a name alone: what a run directory holds can be read all the same."""
    if name == NATIVE.name:
        return NATIVE
    return next((dialect for dialect in find_dialects() if dialect.name == name), Dialect(name))


@cache
def find_dialects() -> tuple[Dialect, ...]:
    """Those of plug-ins, the last one first: it may recognise more exactly what one before it would take as well."""
    return tuple(load(text) for text in reversed(merge("dialects").values()))


# ---------------------------------------------------------------- loading


@cache
def _load_plugins() -> _Loaded:
    found: dict[str, Plugin] = {}
    problems: list[PluginProblem] = []
    for origin, target in _find_entry_points():
        result = _load_quietly(target)
        if isinstance(result, str):
            problems.append(PluginProblem(origin, result))
            continue
        for plugin in result:
            mistake = _find_mistake(plugin) or _find_conflict(plugin, found)
            if mistake:
                problems.append(PluginProblem(f"{origin}: {getattr(plugin, 'name', target)}", mistake))
            else:
                found[plugin.name] = plugin
    for name, why in _find_unmet(found):
        problems.append(PluginProblem(name, why))
        del found[name]
    return found, tuple(problems)


def _load_quietly(target: str) -> tuple[Any, ...] | str:
    """The plug-ins of an entry point, or what is wrong with it: also where its module prints."""
    import io
    from contextlib import redirect_stderr, redirect_stdout

    printed = io.StringIO()
    module, _, name = target.partition(":")
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            value = getattr(import_module(module), name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 whatever a foreign module does
        return f"{target} cannot be loaded: {_describe(error)}"
    if printed.getvalue():
        return f"{module} prints when it is imported: {printed.getvalue().strip().splitlines()[0][:80]!r}"
    return value if isinstance(value, tuple) and not hasattr(value, "_fields") else (value,)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


_TEXTS = ("children", "options", "study_keys", "settings", "dialects", "executors", "run_steps", "functions")


def _find_mistake(plugin: Any) -> str:  # noqa: PLR0911 one return for each mistake
    if not isinstance(plugin, Plugin):
        return f"{type(plugin).__name__} is not an assay.plugins.Plugin"
    if not isinstance(plugin.name, str) or not plugin.name:
        return f"name is {plugin.name!r}: it must be a text"
    values = {hook: getattr(plugin, hook) for hook in (*_TEXTS, "commands")}
    wrong = [hook for hook, value in values.items() if not isinstance(value, Mapping)]
    if wrong:
        return f"{wrong[0]} must be a mapping"
    names = [(hook, text) for hook in _TEXTS for text in values[hook].values()]
    for word, value in plugin.commands.items():
        if not (isinstance(value, tuple) and len(value) == 2 and all(isinstance(each, str) for each in value)):
            return f"commands: {word!r} must have a pair of texts: module:name, and what it does"
        names.append(("commands", value[0]))
    for hook in ("importers", "pages", "reports"):
        if not isinstance(getattr(plugin, hook), tuple):
            return f"{hook} must be a tuple of texts"
        names += [(hook, text) for text in getattr(plugin, hook)]
    names += [("places", plugin.places)] if plugin.places else []
    for hook, text in names:
        if not isinstance(text, str) or not all(text.partition(":")[::2]):
            return f"{hook}: {text!r} is not of the form module:name"
    return ""


def _find_conflict(plugin: Plugin, known: Mapping[str, Plugin]) -> str:
    if plugin.name in known:
        return "another plug-in has this name"
    for hook in (*_TEXTS, "commands"):
        for name in getattr(plugin, hook):
            if name in CORE_WORDS.get(hook, ()):
                return f"{hook}: {name!r} is a word of the core"
            owner = next((each.name for each in known.values() if name in getattr(each, hook)), None)
            if owner and hook not in ("options", "run_steps"):
                return f"{hook}: {name!r} is offered by the plug-in {owner} already"
    return ""


def _find_unmet(found: Mapping[str, Plugin]) -> Iterator[tuple[str, str]]:
    """Plug-ins whose `needs` are missing or lead back to themselves, with those that need them."""
    left = dict(found)
    while True:
        missing = {name: need for name, each in left.items() for need in each.needs if need not in left}
        if not missing:
            break
        for name, need in missing.items():
            yield name, f"it needs the plug-in {need}, which is not there"
            del left[name]
    solved: set[str] = set()
    while ready := [name for name, each in left.items() if name not in solved and solved.issuperset(each.needs)]:
        solved.update(ready)
    for name, each in left.items():
        if name not in solved:
            yield name, f"its needs lead back to itself: {', '.join(each.needs)}"


def _try_names(plugin: Plugin) -> Iterator[PluginProblem]:
    texts = [text for hook in _TEXTS for text in getattr(plugin, hook).values()]
    texts += [handler for handler, _ in plugin.commands.values()]
    texts += [*plugin.importers, *plugin.reports, *([plugin.places] if plugin.places else [])]
    for text in texts:
        try:
            load(text)
        except InfrastructureError as error:
            yield PluginProblem(plugin.name, error.message)


# ---------------------------------------------------------------- entry points


def _find_entry_points() -> list[tuple[str, str]]:
    """(distribution, module:name) of what is installed; Assay's own first.

    From the files, since importlib.metadata takes longer to import than everything that a command needs. Where Assay
    itself is not installed (a source tree on PYTHONPATH), its folders that have a `plugin.py` are taken.
    """
    found: dict[str, list[str]] = {}
    for folder in dict.fromkeys(sys.path):
        try:
            names = sorted(entry.name for entry in os.scandir(folder or ".") if entry.name.endswith(".dist-info"))
        except OSError:
            continue
        for name in names:
            distribution = name.partition("-")[0].lower()
            if distribution not in found:
                found[distribution] = list(_read_entry_points(os.path.join(folder or ".", name, "entry_points.txt")))
    own = found.pop(_OWN, None) or _list_folders()
    return [(_OWN, target) for target in own] + [(name, each) for name in sorted(found) for each in found[name]]


def _read_entry_points(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, ValueError):
        return
    is_ours = False
    for line in text.splitlines():
        if line.startswith("["):
            is_ours = line.strip() == f"[{GROUP}]"
        elif is_ours and "=" in line:
            yield line.partition("=")[2].strip()


def _list_folders() -> list[str]:
    package = os.path.dirname(os.path.abspath(__file__))
    names = sorted(entry.name for entry in os.scandir(package) if entry.is_dir())
    return [f"{_OWN}.{name}.plugin:PLUGIN" for name in names if os.path.exists(f"{package}/{name}/plugin.py")]
