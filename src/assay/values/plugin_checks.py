"""Find the mistakes of a plug-in: a value of a wrong kind, a word that is taken, a missing requirement."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from assay.values.hooks import NATIVE, Dialect, Folder, Part, Plugin, Program
from assay.values.options import Group, find_request, reads_words

# Words of the core: a plug-in that uses one of these words is left out.
CORE_WORDS: Mapping[str, frozenset[str]] = {
    hook: frozenset(words.split())
    for hook, words in {
        "commands": "doctor run stop rerun ls sum best show logs diff tag note index",
        "children": "readings",
        "executors": "local",
        "dialects": NATIVE.name,
        "study_keys": "study command commands params sweep zip when subset repeat metrics resources slots timeout "
        "retries leave_running priority env checks code root on farms golden resume",
        "settings": "root slots farm farms max_wait notify index secret_names secret_files",
    }.items()
}

_TUPLES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("needs", "reading", "importers", "pages", "reports"), (str,)),
    "doctor": (Part, Program, Folder),
}
_TEXTS = ("children", "options", "study_keys", "settings", "dialects", "executors", "run_steps", "functions")


def find_mistake(plugin: Any) -> str:
    if type(plugin) is not Plugin:  # the attributes of a subclass may raise
        return f"{type(plugin).__name__} is not an assay.plugins.Plugin"
    if type(plugin.name) is not str or not plugin.name:
        return f"name is {plugin.name!r}: it must be a text"
    return next(_find_mistakes(plugin), "")


def _find_mistakes(plugin: Plugin) -> Iterator[str]:
    for hook in (*_TEXTS, "commands"):
        value = getattr(plugin, hook)
        if not isinstance(value, Mapping):
            yield f"{hook} must be a mapping"
        yield from (f"{hook}: {word!r} is not a word" for word in value if not _is_word(word, hook))
    for hook, kinds in _TUPLES.items():
        value = getattr(plugin, hook)
        if type(value) is not tuple or not all(type(each) in kinds for each in value):
            yield f"{hook} must be a tuple of {'texts' if kinds == (str,) else 'Part, Program or Folder'}"
    for word, value in plugin.commands.items():
        if not (type(value) is tuple and len(value) in (2, 3) and all(type(each) is str for each in value)):
            yield f"commands: {word!r} must have two texts, module:name and what it does, and perhaps its section"
    for hook, text in list_names(plugin):
        if type(text) is not str or not all(text.partition(":")[::2]):
            yield f"{hook}: {text!r} is not of the form module:name"


def _is_word(word: Any, hook: str) -> bool:
    return type(word) is str and (hook != "commands" or re.fullmatch(r"\w[\w-]*", word) is not None)


def list_names(plugin: Plugin) -> Iterator[tuple[str, str]]:
    """Yield the texts `module:name` of a plug-in with their hooks; `pages.find_problems` checks texts in pages."""
    for hook in _TEXTS:
        yield from ((hook, text) for text in getattr(plugin, hook).values())
    yield from (("commands", value[0]) for value in plugin.commands.values())
    for hook in ("importers", "pages", "reports"):
        yield from ((hook, text) for text in getattr(plugin, hook))
    yield from [("places", plugin.places)] if plugin.places else []


def find_dialect_mistake(name: str, value: Any) -> str:
    if type(value) is not Dialect or value.name != name:
        return f"dialects: {name!r} is not a Dialect of this name"
    is_right = type(value.keys) is type(value.weak_keys) is frozenset
    return "" if is_right else f"dialects: the keys of {name!r} must be frozensets"


def find_value_mistake(hook: str, text: str, value: Any) -> str:
    """Describe what is wrong with the object that a name of this hook refers to."""
    if hook == "commands" and not isinstance(value, Group) and not reads_words(value):
        return "" if find_request(value) else f"commands: {text} has no argument `request` whose type is a Request"
    kind = {"run_steps": "RunStep", "executors": "Executor"}.get(hook)
    if kind and kind not in (each.__name__ for each in getattr(value, "__mro__", ())):
        return f"{hook}: {text} is not a subclass of {kind}"
    is_called = hook in ("children", "study_keys", "settings", "reports", "functions") and not callable(value)
    return f"{hook}: {text} is not a function" if is_called else ""


def find_conflict(plugin: Plugin, known: Mapping[str, Plugin]) -> str:
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


def find_unmet(found: Mapping[str, Plugin]) -> Iterator[tuple[str, str]]:
    """Yield each plug-in whose `needs` are missing or circular, or that needs such a plug-in, and the reason."""
    left = dict(found)
    while True:
        missing = {name: need for name, each in left.items() for need in each.needs if need not in left}
        if not missing:
            break
        for name, need in missing.items():
            yield name, f"it needs the plug-in {need}, which is not installed"
            del left[name]
    solved: set[str] = set()
    while ready := [name for name, each in left.items() if name not in solved and solved.issuperset(each.needs)]:
        solved.update(ready)
    for name, each in left.items():
        if name not in solved:
            yield name, f"its needs are circular: {', '.join(each.needs)}"
