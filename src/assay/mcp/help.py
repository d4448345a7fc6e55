"""`assay help`: shows the help of a command, or of all commands as JSON for a program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from assay import __version__
from assay.errors import ExitCode, NotFoundError
from assay.plugins import load, load_all
from assay.show.console import Console
from assay.values.options import Group, Option, Request, argument, find_request, json_option

_CODES = {
    ExitCode.OK: "success",
    ExitCode.FAILED: "a run or a check failed",
    ExitCode.USAGE: "the command line or a file is not valid; nothing was written",
    ExitCode.INCONCLUSIVE: "inconclusive or changed; a time limit or a budget was reached",
    ExitCode.INTERNAL: "a disk, a farm or Assay itself failed",
    ExitCode.INTERRUPTED: "Ctrl-C, SIGTERM or SIGHUP",
}


class HelpRequest(Request):
    words: tuple[str, ...] = argument("[COMMAND]...", multiple=True, required=False)
    as_json: bool = json_option("Print commands, options, types and exit codes as JSON.")


def show_help(request: HelpRequest, console: Console, group: Group, call: Callable[[Sequence[str]], int]) -> int:
    """Show the help of COMMAND, such as `golden check`; with --json of all commands, for a program."""
    if not request.as_json:
        return call([*request.words, "--help"])
    commands = list(_describe(group, ()))
    chosen = [each for each in commands if tuple(each["command"].split())[: len(request.words)] == request.words]
    if not chosen:
        raise NotFoundError("command", " ".join(request.words), [each["command"] for each in commands])
    codes = {str(int(code)): text for code, text in _CODES.items()}
    console.write_json({"version": __version__, "exit_codes": codes, "commands": chosen})
    return int(ExitCode.OK)


def _describe(group: Group, path: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for name, (target, summary, *_) in group.commands.items():
        found, words = load(target), (*path, name)
        if isinstance(found, Group):
            yield from _describe(found, words)
            continue
        facts = {"command": " ".join(words), "summary": summary, "help": inspect.cleandoc(found.__doc__ or "")}
        request = find_request(found)
        if request is None:
            note = f"it has the flags of another tool: assay {' '.join(words)} --help"
            yield {**facts, "arguments": [], "options": [], "note": note}
            continue
        options = request.extend(each for _, each in load_all("options", " ".join(words))).OPTIONS
        described: dict[str, list[dict[str, Any]]] = {"arguments": [], "options": []}
        for field, each in options.items():
            described["options" if each.names else "arguments"].append(_describe_option(field, each))
        yield {**facts, **described}


def _describe_option(field: str, option: Option) -> dict[str, Any]:
    """Return an option without the fields that have no meaning for it."""
    facts = {
        "names": list(option.names) or [field],
        "type": "flag" if option.is_flag else option.type.__name__,
        "value": option.metavar,
        "choices": list(option.choices),
        "default": option.default if isinstance(option.default, str | int | float) else None,
        "minimum": option.minimum,
        "maximum": option.maximum,
        "multiple": option.multiple,
        "required": option.required,
        "help": option.help,
    }
    return {name: value for name, value in facts.items() if value not in (None, [], False, "")}
