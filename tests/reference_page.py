"""The tables of docs/reference/command-line.md and commands-*.md, made from the requests of the commands.

    python -m tests.reference_page

writes them between `<!-- options: NAME -->` and `<!-- end -->`; NAME is a command, or a group whose commands share a
table. `<!-- options of many commands -->` has what several commands declare in the same words, so that their own tables
only name it; `<!-- commands -->` lists all commands with their pages. What is around them is written by hand.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from assay.cli.main import GROUP
from assay.plugins import load_all
from assay.values.options import Group, Option, Request

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
PAGES = [REFERENCE / "command-line.md", *sorted(REFERENCE.glob("commands-*.md"))]
COMMAND = "python -m tests.reference_page"
_PART = re.compile(
    r"(<!-- (?P<what>commands|options of many commands|options: [\w ]+) -->\n).*?(<!-- end -->\n)", re.DOTALL
)
_SEE = "[As in many commands](command-line.md#options-of-many-commands)."
_MANY = 3  # commands that declare an option in the same words
_DEFAULT = re.compile(r"\s*\[default: (.*?)\]\.?$")


def render_page(text: str) -> str:
    return _PART.sub(lambda part: part[1] + "".join(f"{line}\n" for line in render_part(part["what"])) + part[3], text)


def render_part(what: str) -> Iterator[str]:
    if what == "commands":
        return _render_commands()
    if what == "options of many commands":
        return _render_rows((f"{names} | {meaning}" for names, meaning in sorted(load_common())))
    return render_options(what.partition(": ")[2])


def _render_commands() -> Iterator[str]:
    homes = {
        name: page for page in PAGES for name in re.findall(r"^## assay (\w+)", page.read_text("utf-8"), re.MULTILINE)
    }
    yield "| command | what it does |"
    yield "|---|---|"
    for name, (_, text, *_) in sorted(GROUP.commands.items()):
        yield f"| [`assay {name}`]({homes[name].name}#assay-{name}) | {text} |"


@cache
def load_common() -> frozenset[tuple[str, str]]:
    """Load the names and meaning of options that at least `_MANY` commands have."""
    handlers = (_import(GROUP, name) for name in GROUP.commands)
    requests = [_find_request(each) for each in handlers if "request" in getattr(each, "__annotations__", {})]
    rows = Counter(row for request in requests for row in _list_options(request))
    return frozenset(row for row, count in rows.items() if count >= _MANY)


def render_options(name: str) -> Iterator[str]:
    """Render the options of `run` or `golden`, or of `model diff`, one command of a group."""
    first, *rest = name.split()
    found = _load(GROUP, first)
    for word in rest:
        assert isinstance(found, Group)
        found = _load(found, word)
    if isinstance(found, Group):
        return _render_group(found)
    return _render_request(found.extend(each for _, each in load_all("options", name)))


def _load(group: Group, name: str) -> Group | type[Request]:
    found = _import(group, name)
    return found if isinstance(found, Group) else _find_request(found)


def _import(group: Group, name: str) -> Any:
    module, _, attribute = group.commands[name][0].partition(":")
    return getattr(import_module(module), attribute)


def _find_request(handler: Any) -> type[Request]:
    request: type[Request] = handler.__globals__[handler.__annotations__["request"]]
    return request


def _render_request(request: type[Request]) -> Iterator[str]:
    declared = _list_options(request)
    common = ", ".join(row[0] for row in declared if row in load_common())
    rows = [f"{names} | {meaning}" for names, meaning in declared if (names, meaning) not in load_common()]
    return _render_rows([*rows, *([f"{common} | {_SEE}"] if common else [])])


def _list_options(request: type[Request]) -> list[tuple[str, str]]:
    return [(render_names(each), render_meaning(each)) for each in request.OPTIONS.values() if each.names]


def _render_rows(rows: Iterable[str]) -> Iterator[str]:
    yield "| option | meaning |"
    yield "|---|---|"
    yield from (f"| {row} |" for row in rows)


def _render_group(group: Group) -> Iterator[str]:
    """Render one row for equal options, with the commands that have them, unless all do."""
    commands = [(name, request) for name in group.commands if not isinstance(request := _load(group, name), Group)]
    rows: dict[tuple[str, str], list[str]] = {}
    for name, request in commands:
        for each in request.OPTIONS.values():
            if each.names:
                rows.setdefault((render_names(each), render_meaning(each)), []).append(name)
    yield "| option | commands | meaning |"
    yield "|---|---|---|"
    for (names, meaning), having in rows.items():
        yield f"| {names} | {'all' if len(having) == len(commands) else ', '.join(having)} | {meaning} |"


def render_names(option: Option) -> str:
    value = option.metavar or "|".join(option.choices)
    shown = [f"`{name}`" for name in option.names[:-1]]
    last = f"{option.names[-1]} {value}".rstrip().replace("|", "\\|")
    return ", ".join([*shown, f"`{last}`"])


def render_meaning(option: Option) -> str:
    text = option.help
    default = _DEFAULT.search(text)
    meaning = _DEFAULT.sub("", text).strip()
    if default:
        meaning += f" Default: {default[1]}."
    elif option.default not in (None, False, "", ()):
        meaning += (
            f" Default: {option.default:g}." if isinstance(option.default, float) else f" Default: {option.default}."
        )
    if option.multiple and "epeatable" not in meaning and "given again" not in meaning:
        meaning += " Repeatable."
    return meaning.replace("|", "\\|").replace("<", "\\<")


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(render_page(each.read_text(encoding="utf-8")), encoding="utf-8")
