"""Plug-ins: what a folder next to the core, or another distribution, adds to Assay.

A plug-in is one `Plugin` value (or a tuple of them), named by an entry point of the group `assay.plugins`; Assay's own
plug-ins are registered in the same way. A plug-in offers strings `module:name`, which are loaded when they are needed:
a command pays only for the plug-ins that it uses. The core looks up hooks, never the name of a plug-in. A plug-in that
cannot be used is left out, and `assay doctor` prints why.

`docs/how-to/write-a-plug-in.md` shows a plug-in of another distribution.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr, redirect_stdout, suppress
from functools import cache
from importlib import import_module
from typing import Any

from assay.errors import InfrastructureError, UsageError
from assay.values.hooks import NATIVE, Dialect, Folder, Part, Plugin, PluginProblem, Program

__all__ = ["Folder", "Part", "Plugin", "PluginProblem", "Program"]  # the names that a plug-in imports
GROUP = "assay.plugins"
DOCTOR_HINT = "`assay doctor` lists what is installed"
_OWN = "assay"

_Loaded = tuple[Mapping[str, Plugin], tuple[PluginProblem, ...]]


def find_plugins() -> Mapping[str, Plugin]:
    """Return the plug-ins by name: Assay's own first, then the others in the order of their distributions' names."""
    return _load_plugins()[0]


def find_problems() -> tuple[PluginProblem, ...]:
    """Return the plug-ins and parts that are left out, and why; every name that a plug-in offers is loaded."""
    plugins, problems = _load_plugins()
    found = [*problems, *(problem for plugin in plugins.values() for problem in _try_names(plugin))]
    with suppress(InfrastructureError):  # pages are checked by the plug-in that serves them and has their libraries
        found += (find_function("pages.find_problems") or tuple)()
    return tuple(found)


def read_child_words(name: str, words: Sequence[str], **kinds: Callable[[str], Any]) -> list[Any]:
    """Return the arguments of a child process, converted by `kinds`, which raise ValueError or OSError for an invalid
    argument. Raises UsageError for arguments that Assay does not give."""
    try:
        if len(words) != len(kinds):
            raise ValueError(f"not with {len(words)} arguments")  # noqa: TRY301 the error is reported below
        return [kind(word) for kind, word in zip(kinds.values(), words, strict=True)]
    except (ValueError, OSError) as error:
        call = f"python -m assay child {' '.join((name, *map(str.upper, kinds)))}"
        raise UsageError(f"Assay starts this process itself, as `{call}` ({error})") from error


def load(text: str) -> Any:
    """Load the object `module:name`. In the main thread, output of the module goes to stderr; other threads do not
    replace standard output, since two threads that replace it at once could leave it replaced."""
    module, _, name = text.partition(":")
    threading = sys.modules.get("threading")  # if `threading` is not loaded, there are no other threads
    is_main = threading is None or threading.current_thread() is threading.main_thread()
    is_redirected = is_main and module not in sys.modules
    try:
        with redirect_stdout(sys.stderr) if is_redirected else nullcontext():
            return getattr(import_module(module), name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise InfrastructureError(f"{text} cannot be loaded: {describe_error(error)}", DOCTOR_HINT) from error


def merge(hook: str) -> dict[str, Any]:
    """Return the mappings of all plug-ins for a hook as one."""
    return {name: value for plugin in find_plugins().values() for name, value in getattr(plugin, hook).items()}


class Merged(Mapping[str, Any]):
    """The core's entries of a hook and those of plug-ins, which are loaded only if the core's do not suffice."""

    def __init__(self, hook: str, own: Mapping[str, Any]) -> None:
        self._hook, self._own = hook, own

    def __getitem__(self, name: str) -> Any:
        return self._own[name] if name in self._own else merge(self._hook)[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._own, **merge(self._hook)})

    def __len__(self) -> int:
        return len({**self._own, **merge(self._hook)})


def load_all(hook: str, name: str = "") -> list[tuple[Plugin, Any]]:
    """Load the objects that plug-ins offer for a hook (under this name if the hook is a mapping). An object that cannot
    be loaded is left out; `assay doctor` names it."""
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
    """Load the function of this name; None if no plug-in offers it."""
    functions = merge("functions")
    return load(functions[name]) if name in functions else None


def require_function(name: str, what: str) -> Any:
    """Load the function that an option or a value needs. Raises UsageError if no plug-in offers it."""
    found = find_function(name)
    if found is None:
        raise UsageError(f"{what} needs a plug-in that is not installed: none offers {name}")
    return found


def find_dialect(name: str) -> Dialect:
    """Return a dialect. A dialect that no installed plug-in offers has only a name: its runs can still be read."""
    if name == NATIVE.name:
        return NATIVE
    unknown = Dialect(name, guesses_code=False, renews_code=False)
    return next((dialect for dialect in find_dialects() if dialect.name == name), unknown)


@cache
def find_dialects() -> tuple[Dialect, ...]:
    """Return the dialects of plug-ins, the last first: a later one may recognise files that an earlier one accepts."""
    from assay.values.plugin_checks import find_dialect_mistake

    found = []
    for name, text in reversed(merge("dialects").items()):
        with suppress(Exception, SystemExit):  # `assay doctor` names it
            value = load(text)
            found += [] if find_dialect_mistake(name, value) else [value]
    return tuple(found)


@cache
def _load_plugins() -> _Loaded:
    from assay.values.plugin_checks import find_conflict, find_mistake, find_unmet

    found: dict[str, Plugin] = {}
    problems: list[PluginProblem] = []
    for origin, target in find_entry_points():
        result = _load_quietly(target)
        if isinstance(result, str):
            problems.append(PluginProblem(origin, result))
            continue
        for plugin in result:
            name = target
            try:
                name = str(plugin.name) if type(plugin) is Plugin else target
                mistake = find_mistake(plugin) or find_conflict(plugin, found)
            except (Exception, SystemExit) as error:  # noqa: BLE001 a foreign value may raise any error
                mistake = describe_error(error)
            if mistake:
                problems.append(PluginProblem(f"{origin}: {name}", mistake))
            else:
                found[plugin.name] = plugin
    for name, why in find_unmet(found):
        problems.append(PluginProblem(name, why))
        del found[name]
    return found, tuple(problems)


def _load_quietly(target: str) -> tuple[Any, ...] | str:
    """Return the plug-ins of an entry point, or what is wrong with it; a module that prints is wrong, too."""
    import io

    printed = io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            value = load(target)
    except InfrastructureError as error:
        return error.message
    module = target.partition(":")[0]
    if printed.closed:
        return f"{module} closes standard output when it is imported"
    if lines := printed.getvalue().strip().splitlines():
        return f"{module} prints when it is imported: {lines[0][:80]!r}"
    if type(value) is not tuple:  # a subclass may raise when it is read
        return (value,)
    return value or f"{target} is an empty tuple"


def describe_error(error: BaseException) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}".strip().splitlines()[0]
    except BaseException:  # noqa: BLE001 the error's __str__ failed
        return name


def _try_names(plugin: Plugin) -> Iterator[PluginProblem]:
    from assay.values.plugin_checks import find_dialect_mistake, find_value_mistake, list_names

    dialects = {text: name for name, text in plugin.dialects.items()}
    for hook, text in list_names(plugin):
        try:
            value = load(text) if hook != "pages" else None
            mistake = find_value_mistake(hook, text, value)
            mistake = find_dialect_mistake(dialects[text], value) if hook == "dialects" else mistake
        except InfrastructureError as error:
            mistake = error.message
        except (Exception, SystemExit) as error:  # noqa: BLE001 a foreign value may raise any error
            mistake = f"{hook}: {text}: {describe_error(error)}"
        if mistake:
            yield PluginProblem(plugin.name, mistake)


def find_entry_points() -> list[tuple[str, str]]:
    """Return (distribution, module:name) of installed plug-ins, Assay's own first. The files are read directly, since
    importlib.metadata takes longer to import than everything that a command needs. Folders of Assay with a `plugin.py`
    count as well: a source tree may be on PYTHONPATH, or newer than its installation."""
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
    folders = (entry for entry in os.scandir(os.path.dirname(os.path.abspath(__file__))) if entry.is_dir())
    ours = {f"{_OWN}.{each.name}.plugin:PLUGIN" for each in folders if os.path.exists(f"{each.path}/plugin.py")}
    own = sorted(ours.union(found.pop(_OWN, ())))  # an order that does not depend on the installation
    return [(_OWN, target) for target in own] + [(name, each) for name in sorted(found) for each in found[name]]


def _read_entry_points(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        yield path  # the path cannot be loaded, so that `assay doctor` names it
        return
    is_ours = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            is_ours = line == f"[{GROUP}]"
        elif is_ours and "=" in line and not line.startswith(("#", ";")):
            yield line.partition("=")[2].partition("[")[0].replace(" ", "")
