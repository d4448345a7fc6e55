"""Reads the argparse, click or Hydra flags of a script from its text, without executing the script."""

from __future__ import annotations

import ast
import os
import re
from argparse import ArgumentError, ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from assay.config.source import parse_yaml_mapping
from assay.errors import UsageError
from assay.system.files import read_text

_HELP = 72  # characters of a help text that are kept
NAME = r"[^\W\d][\w-]*(?:\.[\w-]+)*"  # name of a parameter in a command
_SKIPPED = ("help", "version")
_SWITCHES = ("store_true", "store_false", "BooleanOptionalAction", "count", "store_const")


class ScriptFlag(NamedTuple):
    """A flag. `words`: its part of the command, with the parameter. `default`: None if missing or computed.
    `options`: its names with dashes, as the script takes them; a positional argument has none."""

    name: str
    words: str
    default: Any = None
    help: str = ""
    is_required: bool = False
    options: tuple[str, ...] = ()
    takes_several: bool = False


class Flags(NamedTuple):
    tool: str  # "": the script has no flags
    found: tuple[ScriptFlag, ...]
    file: str  # the file that defines the flags


def read_flags(path: str) -> Flags:
    """Return the flags of a script; if it has none, those of the first module in its folder that it imports."""
    tree = _parse(path)
    for file, each in ((path, tree), *_find_modules(path, tree)):
        for tool, read in (("argparse", _read_argparse), ("click", _read_click)):
            found = {flag.name: flag for flag in reversed(list(read(each))) if flag and re.fullmatch(NAME, flag.name)}
            if found:
                return Flags(tool, tuple(reversed(found.values())), file)
        if (config := _find_hydra(each, file)) is not None:
            return Flags("Hydra", tuple(_read_hydra(config)), config)
    return Flags("", (), path)


def fill_flags(flags: Flags, words: Sequence[str]) -> tuple[Flags, list[str]]:
    """Return the flags with the values that a script's arguments give them, and the arguments of no known flag."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False, conflict_handler="resolve")
    names = {flag.name for flag in flags.found if flags.tool == "Hydra"}
    try:
        for flag in (each for each in flags.found if each.options):
            how: dict[str, Any] = {"action": "append", "nargs": "+" if flag.takes_several else 1}
            if isinstance(flag.default, bool) and flag.words[0] == "[":
                how = {"action": "append_const", "const": [True]}
            parser.add_argument(*flag.options, dest=flag.name, **how)
        found, rest = parser.parse_known_args(
            [f"--{each}" if each.partition("=")[0] in names else each for each in words]
        )
    except ArgumentError:
        return flags, list(words)
    given = {name: values for name, values in vars(found).items() if values}
    for flag in (each for each in flags.found if not each.options):
        end = next((at for at, word in enumerate(rest) if word.startswith("-")), len(rest))  # an unknown option
        if end := end if flag.takes_several else min(end, 1):
            given[flag.name], rest = [rest[:end]], rest[end:]
    if any(len(values) > 1 for values in given.values()):  # whether all or the last one counts is not known
        return flags, list(words)
    return flags._replace(found=tuple(_fill(flag, given.get(flag.name)) for flag in flags.found)), rest


def _fill(flag: ScriptFlag, given: list[list[Any]] | None) -> ScriptFlag:
    if given is None:
        return flag
    # a number is written as one if it is passed on as the same text
    is_number = re.compile(r"-?(0|[1-9]\d*)(\.0|\.\d{0,9}[1-9])?").fullmatch
    values = [ast.literal_eval(each) if is_number(str(each)) else each for each in given[0]]
    return flag._replace(default=[values] if flag.takes_several else values[0], is_required=False)


def _parse(path: str) -> ast.Module:
    try:
        return ast.parse(read_text(path).encode("utf-8", "surrogateescape"), path)  # bytes may declare an encoding
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        message = f"{path}{line} is not a Python script: {error.args[0]}"
        raise UsageError(message, "assay init takes a .py file") from error


def _find_modules(path: str, tree: ast.Module) -> Iterator[tuple[str, ast.Module]]:
    names = [each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    for name in dict.fromkeys(names):
        file = os.path.join(os.path.dirname(path), *name.split(".")) + ".py"
        if os.path.isfile(file):
            yield file, _parse(file)


# ---------------------------------------------------------------- argparse and click


def _read_argparse(tree: ast.Module) -> Iterator[ScriptFlag | None]:
    for call in _find_calls(tree, "add_argument"):
        names, given = _read_call(call)
        if names and (action := given.get("action")) not in _SKIPPED:
            if action == "BooleanOptionalAction" and given.get("default") is True:
                names, given["default"] = [f"--no-{each[2:]}" for each in names if each.startswith("--")], False
            several = given.get("nargs") in ("+", "*") or isinstance(given.get("nargs"), int)
            yield _build_flag(names, given, is_switch=action in _SWITCHES, several=several)


def _read_click(tree: ast.Module) -> Iterator[ScriptFlag | None]:
    for call in (*_find_calls(tree, "option"), *_find_calls(tree, "argument")):
        names, given = _read_call(call)
        is_argument = not any(name.startswith("-") for name in names)
        if names and names[0].isascii():
            is_switch = given.get("is_flag") is True or isinstance(given.get("default"), bool)
            is_off = given.get("default") is True and any("/" in name for name in names)  # as in --shout/--no-shout
            names = [name.split("/")[-1 if is_off else 0].strip() for name in names]
            given = {"required": is_argument, **given, **({"default": False} if is_off else {})}
            yield _build_flag(names, given, is_switch=is_switch, several=False)


def _find_calls(tree: ast.Module, name: str) -> list[ast.Call]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = [each for each in calls if (each.func.attr if isinstance(each.func, ast.Attribute) else "") == name]
    return sorted(found, key=lambda each: (each.lineno, each.col_offset))


def _read_call(call: ast.Call) -> tuple[list[str], dict[str, Any]]:
    """Return the strings among a call's arguments, and its keywords; None for a keyword that is not a plain value."""
    names = [str(each.value) for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    given: dict[str, Any] = {}
    for word in call.keywords:
        if word.arg:
            try:
                given[word.arg] = ast.literal_eval(word.value)
            except ValueError:
                given[word.arg] = ast.unparse(word.value).rpartition(".")[2] if word.arg == "action" else None
    return names, given


def _build_flag(names: list[str], given: Mapping[str, Any], *, is_switch: bool, several: bool) -> ScriptFlag | None:
    """Return the flag; None if it is short or positional, optional and without a value: commands could not omit it."""
    flag = next((name for name in names if name.startswith("--")), names[0])
    name, default, is_long = flag.lstrip("-"), given.get("default"), flag.startswith("--")
    is_required = bool(given.get("required")) or (name == flag and given.get("nargs") not in ("?", "*"))
    if is_switch:
        default = bool(default) and given.get("action") != "store_false"
    elif several and isinstance(default, list | tuple):
        default = [list(default)]  # the default is one value, which is a list
    elif several or isinstance(default, bool | list | tuple | dict | set | bytes):
        default = None  # true would be written as the flag alone, but the script takes a value
    if not is_long and not is_required and (default is None or is_switch):
        return None
    is_given = is_required or (several and default is not None)
    words = f"[{name}]" if is_switch or (is_long and not is_given) else f"{flag} {{{name}}}".removeprefix(f"{name} ")
    text = " ".join(str(given.get("help") or "").split())
    text += f" ({', '.join(map(str, some))})" if isinstance(some := given.get("choices"), list | tuple) else ""
    options = tuple(each for each in names if each.startswith("-"))
    return ScriptFlag(name, words, default, text.strip()[:_HELP], is_required and default is None, options, several)


# ---------------------------------------------------------------- Hydra


def _find_hydra(tree: ast.Module, path: str) -> str | None:
    """Return the configuration that `@hydra.main(config_path=…, config_name=…)` names, if it is a file."""
    for call in _find_calls(tree, "main"):
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "hydra":
            given = _read_call(call)[1]
            name = str(given.get("config_name") or "config").removesuffix(".yaml")
            file = os.path.join(os.path.dirname(path), given.get("config_path") or "", f"{name}.yaml")
            return os.path.normpath(file) if os.path.isfile(file) else None
    return None


def _read_hydra(path: str) -> Iterator[ScriptFlag]:
    """Yield the groups of `defaults` and the plain values; `???` is a required value; references are left out."""

    def walk(content: Mapping[Any, Any], before: str) -> Iterator[ScriptFlag]:
        for name, value in ((f"{before}{key}", value) for key, value in content.items()):
            if isinstance(value, dict) and name != "hydra":
                yield from walk(value, f"{name}.")
            elif isinstance(value, str | int | float) and "${" not in str(value) and re.fullmatch(NAME, name):
                is_required = value == "???"
                yield ScriptFlag(
                    name, f"{name}={{{name}}}", None if is_required else value, "", is_required, (f"--{name}",)
                )

    problems: list[str] = []
    content = parse_yaml_mapping(read_text(path), path, problems)
    groups = content.get("defaults")
    for part in (*(each for each in (groups if isinstance(groups, list) else ()) if isinstance(each, dict)), content):
        yield from walk(part, "")
    if problems:
        raise UsageError(problems[0])
