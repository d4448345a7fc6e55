"""Command templates and parameters → the bash text of a command.

The run's own values stay references to the job's environment: the text is the same wherever the run directory is,
and a run's identity does not depend on its name.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable

from assay.errors import ConfigError
from assay.values import layout
from assay.values.study import (
    OUTPUT_REFERENCE,
    AllFlags,
    CommandTemplate,
    Dialect,
    Flag,
    Params,
    Placeholder,
    Problem,
    Quote,
    Text,
    Value,
    quote_inside,
)

RUN_REFERENCES = {
    "run.dir": layout.RUN_DIR_REFERENCE,
    "run.output": OUTPUT_REFERENCE,
    "run.name": f"${{{layout.ENV_RUN_NAME}}}",
    "run.id": f"${{{layout.ENV_RUN_ID}}}",
    "run.time": f"${{{layout.ENV_TIME}}}",
    "study": f"${{{layout.ENV_STUDY}}}",
}

_LOGDIR = "LOGDIR"  # how a runx file refers to the run's directory
_NOTHING = "None"  # unquoted None is a text in YAML; to runx it means: leave this out
_SHELL_TOKEN = re.compile(rf"({_LOGDIR}|\\.|['\"])", re.DOTALL)
_QUOTES: dict[str, Quote] = {"'": "single", '"': "double"}
_REFERENCE_FORMS: dict[Quote, str] = {"bare": '"{}"', "single": "'\"{}\"'", "double": "{}"}


def render_command(template: CommandTemplate, params: Params, dialect: Dialect = "native") -> str:
    """The text of one command; raises ConfigError for a value that the place cannot take."""
    show = _show_mlrunner if dialect == "mlrunner" else _show_native
    parts: list[str] = []
    for piece in template.pieces:
        if isinstance(piece, Text):
            parts.append(piece.text)
        elif isinstance(piece, Placeholder):
            parts.append(_render_place(piece, params, template, show))
        elif isinstance(piece, Flag):
            if dialect == "mlrunner" and piece.name not in params:
                raise _no_value(template, piece.name)
            _append_words(parts, _render_flag(piece, params, show))
        elif isinstance(piece, AllFlags):
            _append_words(parts, render_flags(params))
    text = "".join(parts)
    if dialect == "runx":
        text = fill_logdir(text)
    if "\0" in text:
        raise _error(template, "a value holds a NUL character, which no command line can carry", "remove it")
    return text


# ---------------------------------------------------------------- runx


def render_flags(params: Params) -> str:
    """runx's flags. Texts are not quoted: people put several words and further flags into them.

    True is the flag alone; false, null and the text None leave it out. A line break, which would end the command,
    comes from YAML's block texts and becomes a space.
    """
    words = []
    for name, value in params.items():
        if value is None or value is False or value == _NOTHING:
            continue
        text = "" if value is True else str(value).replace("\n", " ").strip()
        words.append(f"--{name} {text}" if text else f"--{name}")
    return " ".join(words)


def fill_logdir(text: str) -> str:
    """LOGDIR becomes the run's directory wherever it occurs, quoted for its position."""
    if _LOGDIR not in text:
        return text
    quote: Quote = "bare"
    parts = []
    for token in _SHELL_TOKEN.split(text):
        if token == _LOGDIR:
            parts.append(_REFERENCE_FORMS[quote].format(layout.RUN_DIR_REFERENCE))
            continue
        parts.append(token)
        mark = token[-1:] if quote == "single" else token  # inside '…' a backslash is a plain character
        around = _QUOTES.get(mark)
        if around is not None and quote in ("bare", around):
            quote = around if quote == "bare" else "bare"
    return "".join(parts)


# ---------------------------------------------------------------- places and flags


def _append_words(parts: list[str], words: str) -> None:
    """Flags are separated by one space, and leave no gap where there are none."""
    if words:
        if parts and parts[-1] and not parts[-1][-1:].isspace() and parts[-1][-1] not in "\"'(`":
            parts.append(" ")
        parts.append(words)
    elif parts and parts[-1].endswith(" "):
        parts[-1] = parts[-1][:-1]


def _render_place(piece: Placeholder, params: Params, template: CommandTemplate, show: Callable[[Value], str]) -> str:
    reference = RUN_REFERENCES.get(piece.name)
    if reference is not None:
        return _REFERENCE_FORMS[piece.quote].format(reference)
    if piece.name not in params:
        raise _no_value(template, piece.name)
    value = params[piece.name]
    if value is None:
        raise _error(template, f"{piece.name} is null here", f"use [{piece.name}] to leave it out")
    if isinstance(value, list):
        return _render_list(value, piece.quote, show)
    return quote_inside(show(value), piece.quote)


def _render_flag(piece: Flag, params: Params, show: Callable[[Value], str]) -> str:
    value = params.get(piece.name)
    if value is None or value is False:
        return ""
    words = f"--{piece.name}"
    if isinstance(value, list):
        words = f"{words} {_render_list(value, 'bare', show)}".rstrip(" ")
    elif value is not True:
        words = f"{words} {shlex.quote(show(value))}"
    return words if piece.quote == "bare" else quote_inside(words, piece.quote)


def _render_list(values: list[Value], quote: Quote, show: Callable[[Value], str]) -> str:
    """One word per element; inside quotes the words share them."""
    return " ".join(quote_inside(show(value), quote) for value in values)


def _show_native(value: Value) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else _show_mlrunner(value)


def _show_mlrunner(value: Value) -> str:
    """As mlrunner prints it: True and False with a capital."""
    if isinstance(value, dict | list | None):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _no_value(template: CommandTemplate, name: str) -> ConfigError:
    return _error(template, f"{name} has no value", f"give {name} a value, or write {{{{{name}}}}} for the text itself")


def _error(template: CommandTemplate, message: str, hint: str) -> ConfigError:
    return ConfigError([Problem(message, template.name, template.position, hint)])
