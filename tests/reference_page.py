"""The tables of options in docs/reference/command-line.md, made from the requests of the commands.

    python -m tests.reference_page

writes them between `<!-- options: NAME -->` and `<!-- end -->`; NAME is a command, or a group whose commands share a
table. What is around them is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from assay.cli.main import GROUP
from assay.plugins import load_all
from assay.values.options import Group, Option, Request

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "command-line.md"
COMMAND = "python -m tests.reference_page"
_PART = re.compile(r"(<!-- options: (?P<name>[\w ]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
_DEFAULT = re.compile(r"\s*\[default: (.*?)\]\.?$")


def render_page(text: str) -> str:
    return _PART.sub(
        lambda part: part[1] + "".join(f"{line}\n" for line in render_options(part["name"])) + part[3], text
    )


def render_options(name: str) -> Iterator[str]:
    """`run` or `golden`; `model diff` for one command of a group."""
    first, *rest = name.split()
    found = _load(GROUP, first)
    for word in rest:
        assert isinstance(found, Group)
        found = _load(found, word)
    if isinstance(found, Group):
        return _render_group(found)
    return _render_request(found.extend(each for _, each in load_all("options", name)))


def _load(group: Group, name: str) -> Group | type[Request]:
    module, _, attribute = group.commands[name][0].partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, Group):
        return found
    request: type[Request] = found.__globals__[found.__annotations__["request"]]
    return request


def _render_request(request: type[Request]) -> Iterator[str]:
    yield "| option | meaning |"
    yield "|---|---|"
    for each in request.OPTIONS.values():
        if each.names:
            yield f"| {render_names(each)} | {render_meaning(each)} |"


def _render_group(group: Group) -> Iterator[str]:
    """One row for options that are the same; the commands that have them, unless all do."""
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
    PAGE.write_text(render_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
