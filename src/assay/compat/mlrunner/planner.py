"""The runs of an mlrunner study: aliases and defaults, commands that a document chooses, names, ids by parameters.

A name is `Norm_batch-EaStop_T`, made of what a document sweeps, in its order. The rules are the original's, so that
folders it filled are found again. Its names can collide (`%g` cuts digits, `a/b` and `a_b` look alike, long texts lose
their head); here the later of two different runs gets its numbers in full or the beginning of a hash after a `~`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from assay.compat.originals import MAX_NAME_BYTES
from assay.errors import ConfigError, did_you_mean
from assay.plan.expand import Planner, choose_commands
from assay.plan.naming import Draft
from assay.plan.render import render_command
from assay.system.files import blake2b
from assay.values.run import canonical, spec_id
from assay.values.study import CommandTemplate, Params, Problem, Study, Value

_MAX_TEXT = 100  # the original keeps the last hundred characters of a text
_NAMELESS = "default"  # a document without parameters, or no document at all

Exists = Callable[[str], bool]


class MlrunnerPlanner(Planner):
    distinct = False
    log_name = "log.{command}.{time}"

    def build_drafts(self, index: int, row: dict[str, Any]) -> Iterator[Draft]:
        """Aliases give way to what they stand for, then defaults fill what is missing; the name knows neither.

        An alias among the defaults comes too late, as in mlrunner: it changes no command.
        """
        study, sweep = self.study, self.study.sweeps[index]
        named = {key: row[key] for key in sweep.named if key in row} if sweep.named is not None else row
        params = {**study.defaults, **_resolve_aliases(study, row)}
        params |= {name: row[name] for name in study.overrides if name in row and name not in study.aliases}
        yield Draft(index, named, params, title=sweep.title)

    def render(self, template: CommandTemplate, params: Params) -> str:
        """Values are written as mlrunner prints them: True and False with a capital."""

        def show(value: Value) -> str:
            return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | None) else str(value)

        return render_command(template, params, show=show, needs_flags=True)

    def fill_commands(self, drafts: Sequence[Draft]) -> None:
        """A run holds every command that its parameters can fill; `_cmd` only selects which of them are wanted this
        time, so that documents and calls with another `_cmd` continue the same run."""
        problems: dict[Problem, None] = {}
        for draft, templates in zip(drafts, self._join_choices(drafts), strict=True):
            names = {template.name for template in templates}
            spare: dict[Problem, None] = {}
            rendered = []
            for template in self.study.commands:
                into = problems if template.name in names else spare
                before = len(into)
                command = self.try_render(template, draft, into)
                if len(into) == before or template.name in names:
                    rendered.append(command)
            draft.commands = tuple(rendered)
            draft.chosen = None if len(names) == len(rendered) else tuple(c.name for c in rendered if c.name in names)
        if problems:
            raise ConfigError(tuple(problems))

    def _join_choices(self, drafts: Sequence[Draft]) -> list[tuple[CommandTemplate, ...]]:
        """Documents that name the same parameters are one run, which has the commands of all of them."""
        keys = [canonical(draft.params) for draft in drafts]
        wanted: dict[str, set[str]] = {}
        for key, draft in zip(keys, drafts, strict=True):
            wanted.setdefault(key, set()).update(command.name for command in self.templates[draft.sweep])
        return [choose_commands(self.study, wanted[key]) for key in keys]

    def number(self, draft: Draft) -> None:
        """The id is made of the parameters alone: an edited test command keeps the trained model."""
        draft.id = spec_id((), draft.params, draft.ordinal)

    def name_runs(self, drafts: Sequence[Draft]) -> list[str]:
        namer = _Namer(self.names.exists if self.names else lambda _path: False)
        return [namer.name(draft) for draft in drafts]


def _resolve_aliases(study: Study, params: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in params.items():
        cases = study.aliases.get(name)
        if cases is None:
            found.setdefault(name, value)
        elif str(value) in cases:
            found.update(cases[str(value)])
        else:
            hint = did_you_mean(str(value), cases)
            raise ConfigError([Problem(f"{value!r} is not a case of this alias", f"alias.{name}", None, hint)])
    return found


# ---------------------------------------------------------------- names


def build_name(named: Params, exists: Exists = lambda _path: False) -> str:
    """The original's name, made fit for a directory."""
    parts = [f"{build_key(key)}_{_show_in_name(value, exists)}" for key, value in named.items()]
    return _make_safe("-".join(parts), repr(dict(named))) if parts else _NAMELESS


def build_key(key: str) -> str:
    """`early-stop` → `EaStop`; words of one or two letters before the last stay as they are: `lr_decay` → `lrDecay`."""
    words = key.split("-") if "-" in key else key.split("_")
    return "".join(word[:2].title() if len(word) > 2 else word for word in words[:-1]) + words[-1].title()


def _show_in_name(value: Value, exists: Exists) -> str:
    if isinstance(value, str):
        text = os.path.basename(value) if exists(value) else re.sub(r"^[/.]*", "", value).replace("/", "_")
        return text[-_MAX_TEXT:]
    if isinstance(value, bool):
        return "T" if value else "F"
    if isinstance(value, int | float):
        try:
            return f"{value:g}"
        except OverflowError:  # a whole number beyond what a float holds
            return str(value)
    return str(value)[-_MAX_TEXT:]


def _make_safe(name: str, spec: str) -> str:
    """A single path component: no slash, no leading dot (`.assay` and `.tmp-` are ours), not too long."""
    name = name.replace("/", "_").replace("\0", "_")
    name = re.sub(r"^\.", "_", name)
    return _shorten(name, spec, MAX_NAME_BYTES)


def _shorten(name: str, spec: str, limit: int) -> str:
    """A name that is too long ends in a hash of what it stands for, so that two of them stay apart."""
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) <= limit:
        return name
    suffix = f"~{_hash_text(spec, 8)}"
    return encoded[: limit - len(suffix)].decode("utf-8", "ignore") + suffix


def _hash_text(text: str, digits: int) -> str:
    return blake2b(text.encode("utf-8", "surrogateescape")).hexdigest()[:digits]


class _Namer:
    """Remembers which parameters a name was given to: the same parameters under the same name share it, different
    ones never do. `exists`: whether a value is an existing path, which the original shortens to its last part."""

    def __init__(self, exists: Exists) -> None:
        self._exists = exists
        self._owners: dict[str, Params] = {}
        self._given: dict[tuple[str, str], str] = {}  # (name asked for, parameters) → name given instead

    def name(self, draft: Draft) -> str:
        natural = build_name(draft.named, self._exists)
        if self._reserve(natural, draft.params):
            return natural
        spec = _spell(draft.params)
        given = self._given.get((natural, spec))
        if given is None:
            given = next(name for name in self._others(draft, natural, spec) if self._reserve(name, draft.params))
            self._given[natural, spec] = given
        return given

    def _others(self, draft: Draft, natural: str, spec: str) -> list[str]:
        parts = []
        for key, value in draft.named.items():  # numbers in full
            is_word = isinstance(value, str | bool)
            text = _show_in_name(value, lambda _path: False) if is_word else repr(value)
            parts.append(f"{build_key(key)}_{text}")
        short = _shorten(natural, spec, MAX_NAME_BYTES - 65)
        hashed = [f"{short}~{_hash_text(spec, digits)}" for digits in (8, 16, 64)]
        return [_make_safe("-".join(parts), spec), *hashed] if parts else hashed

    def _reserve(self, name: str, params: Params) -> bool:
        """Reserve a name for parameters, if it is free or theirs. For `==`, 1, 1.0 and true are equal."""
        owner = self._owners.setdefault(name, params)
        return owner is params or _spell(owner) == _spell(params)


def _spell(params: Params) -> str:
    return repr(sorted(params.items()))
