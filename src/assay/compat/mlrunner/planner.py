"""The runs of an mlrunner study: aliases, defaults, the commands that a document chooses, names, ids by parameters.

A name such as `Norm_batch-EaStop_T` is made of the parameters of a document, in the document's order. The rules are
mlrunner's, so that its folders are found. mlrunner's names can collide (`%g` cuts digits, `a/b` and `a_b` are equal,
long texts lose their start). The second of two runs with one name has numbers in full, or `~` and part of a hash.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from assay.compat.originals import MAX_NAME_BYTES
from assay.errors import ConfigError, did_you_mean
from assay.plan.expand import Planner
from assay.plan.naming import Draft
from assay.plan.render import render_command
from assay.system.files import blake2b
from assay.values.run import canonical, spec_id
from assay.values.study import CommandTemplate, Params, Problem, Study, Value

_MAX_TEXT = 100  # the original keeps this many characters from the end of a text
_NAMELESS = "default"  # the name if there are no parameters or documents

Exists = Callable[[str], bool]


class MlrunnerPlanner(Planner):
    distinct = False
    log_name = "log.{command}.{time}"

    def build_drafts(self, index: int, row: dict[str, Any]) -> Iterator[Draft]:
        """Replace aliases by their parameters, then add defaults. Names are made of the row's own parameters. As in
        mlrunner, an alias among the defaults is added too late and has no effect."""
        study, sweep = self.study, self.study.sweeps[index]
        named = {key: row[key] for key in sweep.named if key in row} if sweep.named is not None else row
        params = {**study.defaults, **_resolve_aliases(study, row)}
        params |= {name: row[name] for name in study.overrides if name in row and name not in study.aliases}
        yield Draft(index, named, params, title=sweep.title)

    def render(self, template: CommandTemplate, params: Params) -> str:
        """Render a command with values as mlrunner prints them: True and False with a capital letter."""

        def show(value: Value) -> str:
            return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | None) else str(value)

        return render_command(template, params, show=show, needs_flags=True)

    def fill_commands(self, drafts: Sequence[Draft]) -> None:
        """Give each run all commands that its parameters can fill. `_cmd` only selects the commands that this call
        runs, so that documents and calls with another `_cmd` continue the same run."""
        problems: dict[Problem, None] = {}
        keys = [canonical(draft.params) for draft in drafts]
        wanted: dict[str, set[str]] = {}  # drafts with equal parameters are one run with the commands of all
        for key, draft in zip(keys, drafts, strict=True):
            wanted.setdefault(key, set()).update(command.name for command in self.templates[draft.sweep])
        for key, draft in zip(keys, drafts, strict=True):
            names = wanted[key]
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

    def number(self, draft: Draft) -> None:
        """Make the id from the parameters only, so that a run keeps its trained model after its command was edited."""
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
    """Return mlrunner's name of a run, changed to a valid name of a directory if necessary."""
    parts = [f"{build_key(key)}_{_show_in_name(value, exists)}" for key, value in named.items()]
    return _make_safe("-".join(parts), repr(dict(named))) if parts else _NAMELESS


def build_key(key: str) -> str:
    """Shorten a key: `early-stop` → `EaStop`. Short words before the last word stay: `lr_decay` → `lrDecay`."""
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
        except OverflowError:  # the integer is too large for a float
            return str(value)
    return str(value)[-_MAX_TEXT:]


def _make_safe(name: str, spec: str) -> str:
    """Return a single path component: no slash, no leading dot (`.assay` and `.tmp-` are Assay's), not too long."""
    return _shorten(re.sub(r"^\.|[/\0]", "_", name), spec, MAX_NAME_BYTES)


def _shorten(name: str, spec: str, limit: int) -> str:
    """Cut a name that is too long and add a hash of `spec`, so that different runs have different names."""
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) <= limit:
        return name
    suffix = f"~{_hash_text(spec, 8)}"
    return encoded[: limit - len(suffix)].decode("utf-8", "ignore") + suffix


def _hash_text(text: str, digits: int) -> str:
    return blake2b(text.encode("utf-8", "surrogateescape")).hexdigest()[:digits]


class _Namer:
    """Gives names to parameters: equal parameters share a name, and different ones never do. `exists` tests whether a
    value is an existing path, which the original shortens to its last part."""

    def __init__(self, exists: Exists) -> None:
        self._exists = exists
        self._owners: dict[str, Params] = {}
        self._given: dict[tuple[str, str], str] = {}  # (original name, parameters) → name given instead

    def name(self, draft: Draft) -> str:
        natural = build_name(draft.named, self._exists)
        if self._reserve(natural, draft.params):
            return natural
        spec = _spell(draft.params)
        if (natural, spec) not in self._given:
            parts = []
            for key, value in draft.named.items():  # this name has numbers in full
                is_word = isinstance(value, str | bool)
                text = _show_in_name(value, lambda _path: False) if is_word else repr(value)
                parts.append(f"{build_key(key)}_{text}")
            short = _shorten(natural, spec, MAX_NAME_BYTES - 65)
            others = [_make_safe("-".join(parts), spec)] if parts else []
            others += [f"{short}~{_hash_text(spec, digits)}" for digits in (8, 16, 64)]
            self._given[natural, spec] = next(name for name in others if self._reserve(name, draft.params))
        return self._given[natural, spec]

    def _reserve(self, name: str, params: Params) -> bool:
        """Reserve a name unless other parameters have it; `==` of parameters would treat 1, 1.0 and true as equal."""
        owner = self._owners.setdefault(name, params)
        return owner is params or _spell(owner) == _spell(params)


def _spell(params: Params) -> str:
    return repr(sorted(params.items()))
