"""Renders command templates and parameters to the bash text of a command.

The run's own values stay references to the job's environment: the text does not depend on the run directory, and a
run's identity does not depend on its name.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable

from assay.errors import ConfigError
from assay.values import layout, study

RUN_REFERENCES = {
    "run.dir": layout.RUN_DIR_REFERENCE,
    "run.output": study.OUTPUT_REFERENCE,
    "run.name": f"${{{layout.ENV_RUN_NAME}}}",
    "run.id": f"${{{layout.ENV_RUN_ID}}}",
    "run.time": f"${{{layout.ENV_TIME}}}",
    "study": f"${{{layout.ENV_STUDY}}}",
}

Show = Callable[[study.Value], str]


class Reference(str):
    """A value that the shell expands when the command is started."""

    __slots__ = ()


REFERENCE_FORMS: dict[study.Quote, str] = {"bare": '"{}"', "single": "'\"{}\"'", "double": "{}"}


def show_value(value: study.Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | None) else str(value)


def render_command(
    template: study.CommandTemplate,
    params: study.Params,
    *,
    show: Show = show_value,
    flags: Callable[[study.Params], str] = lambda _params: "",
    needs_flags: bool = False,
) -> str:
    """Return the text of one command. Raises ConfigError for a value that is not valid there. `flags` is the text
    of `AllFlags`; `needs_flags` refuses `[name]` if name has no value."""
    parts: list[str] = []
    for piece in template.pieces:
        if isinstance(piece, study.ShellText):
            parts.append(piece.text)
        elif isinstance(piece, study.Placeholder):
            parts.append(_render_place(piece, params, template, show))
        elif isinstance(piece, study.Flag):
            if needs_flags and piece.name not in params:
                raise _no_value(template, piece.name)
            _append_words(parts, _render_flag(piece, params, show))
        else:
            _append_words(parts, flags(params))
    text = "".join(parts)
    if "\0" in text:
        raise _error(template, "a value holds a NUL character, which no command line can carry", "remove it")
    return text


def _append_words(parts: list[str], words: str) -> None:
    """Append flags with one space between them, and no space if there are none."""
    if words:
        if parts and parts[-1] and not parts[-1][-1:].isspace() and parts[-1][-1] not in "\"'(`":
            parts.append(" ")
        parts.append(words)
    elif parts and parts[-1].endswith(" "):
        parts[-1] = parts[-1][:-1]


def _render_place(piece: study.Placeholder, params: study.Params, template: study.CommandTemplate, show: Show) -> str:
    reference = RUN_REFERENCES.get(piece.name)
    if reference is not None:
        return REFERENCE_FORMS[piece.quote].format(reference)
    if piece.name not in params:
        raise _no_value(template, piece.name)
    value = params[piece.name]
    if value is None:
        hint = f"give {piece.name} a value, or use [{piece.name}] to leave it out"
        raise _error(template, f"{piece.name} is null here", hint)
    if isinstance(value, list):
        return _render_list(value, piece.quote, show)
    if isinstance(value, Reference):
        return REFERENCE_FORMS[piece.quote].format(value)
    return study.quote_inside(show(value), piece.quote)


def _render_flag(piece: study.Flag, params: study.Params, show: Show) -> str:
    value = params.get(piece.name)
    if value is None or value is False:
        return ""
    words = f"--{piece.name}"
    if isinstance(value, Reference):  # inside quotes another shell splits the words
        return f'{words} \\"{value}\\"' if piece.quote == "double" else f'{words} "{value}"'
    if isinstance(value, list):
        words = f"{words} {_render_list(value, 'bare', show)}".rstrip(" ")
    elif value is not True:
        words = f"{words} {shlex.quote(show(value))}"
    return words if piece.quote == "bare" else study.quote_inside(words, piece.quote)


def _render_list(values: list[study.Value], quote: study.Quote, show: Show) -> str:
    """Return one word per element; inside quotes, one text with all elements."""
    return " ".join(study.quote_inside(show(value), quote) for value in values)


def _no_value(template: study.CommandTemplate, name: str) -> ConfigError:
    return _error(template, f"{name} has no value", f"give {name} a value, or write {{{{{name}}}}} for the text itself")


def _error(template: study.CommandTemplate, message: str, hint: str) -> ConfigError:
    return ConfigError([study.Problem(message, template.name, template.position, hint)])
