"""The runs of a runx study: each parameter is a flag, a value listed twice makes two runs, names are random.

A name is `[tag_]brave-otter_2020.02.06_14.19`, with --no_cooldir only the tag or the study's name.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count, islice
from typing import Any

from assay.compat.originals import MAX_NAME_BYTES
from assay.compat.runx.study_file import LOGDIR, NODES, PARTITION, SKIP, TAG
from assay.plan.expand import Planner, build_spec, find_used_names, hide_draft, hides_values
from assay.plan.grid import Row
from assay.plan.naming import Draft, NameSource
from assay.plan.render import REFERENCE_FORMS, render_command
from assay.system.files import blake2b
from assay.values import layout
from assay.values.random_names import ADJECTIVES, ANIMALS
from assay.values.run import Plan, RunSpec, spec_id
from assay.values.secrets import SecretRules
from assay.values.study import CommandTemplate, Params, Problem, Quote, Study

_FARM_KEYS = {"nodes": NODES, "partition": PARTITION}
_OWN_KEYS = frozenset((TAG, SKIP, NODES, PARTITION))  # parameters for runx itself, which the script does not get
_NOTHING = "None"  # YAML reads an unquoted None as a string; in runx it leaves the flag out
_SHELL_TOKEN = re.compile(rf"({LOGDIR}|\\.|['\"])", re.DOTALL)
_QUOTES: dict[str, Quote] = {"'": "single", '"': "double"}
_DATE = "_%Y.%m.%d_%H.%M"
_DRAWS = 4  # so many random names are drawn for a run; if all are in use, a number is added
_MANY = len(ADJECTIVES) * len(ANIMALS) // 2  # with so many names in use, most draws would repeat one


class LazyRuns(Sequence[RunSpec]):
    """Runs that are built on first access and kept, so that a dry run of very many prints the first ones at once."""

    def __init__(self, source: Iterable[RunSpec]) -> None:
        self._source = iter(source)
        self._made: list[RunSpec] = []

    def __iter__(self) -> Iterator[RunSpec]:
        for index in count():
            self._made.extend(islice(self._source, index >= len(self._made)))
            if index == len(self._made):
                return
            yield self._made[index]

    def __len__(self) -> int:
        return len(self._all())

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def _all(self) -> list[RunSpec]:
        self._made.extend(self._source)
        return self._made


class RunxPlanner(Planner):
    distinct = False

    def __init__(self, study: Study, names: NameSource | None = None) -> None:
        super().__init__(study, names)
        self._seen: Counter[str] = Counter()
        self._taken: dict[str, int] = {}  # name → the last number that was added to it
        self._date = names.now.strftime(_DATE) if names else ""

    def plan_lazily(self, rows: Iterable[Row], warnings: Iterable[Problem], rules: SecretRules) -> Plan | None:
        """Return a plan that builds runs on access, or None if a command might not accept the parameters of all."""
        if find_used_names(self.study.commands) is not None:
            return None
        axes = [axis for sweep in self.study.sweeps for axis in sweep.axes.values()]
        if "\\x00" in repr((axes, self.study.commands)):
            return None
        return Plan(self.study, LazyRuns(self._stream(rows, rules)), (), tuple(warnings), is_hidden=True)

    def _stream(self, rows: Iterable[Row], rules: SecretRules) -> Iterator[RunSpec]:
        hides = hides_values(self.study, rules)
        for row in rows:
            for draft in self.build_drafts(*row):
                self.fill_commands([draft])
                self.number(draft)
                if hides:
                    hide_draft(self, draft, rules)
                (name,) = self.name_runs([draft])
                yield build_spec(self, draft, name, rules)

    def build_drafts(self, index: int, row: dict[str, Any]) -> Iterator[Draft]:
        """Yield the run of a row unless it is skipped, without runx's own parameters: the tag, and two for the farm."""
        if row.get(SKIP) not in (None, False, 0, "", _NOTHING):
            return
        farm = tuple((name, row[key]) for name, key in _FARM_KEYS.items() if row.get(key) is not None)
        tag = None if row.get(TAG) is None else str(row[TAG])
        params = {key: value for key, value in row.items() if key not in _OWN_KEYS}
        yield Draft(index, params, params, title=self.study.sweeps[index].title, tag=tag, farm_resources=farm)

    def render(self, template: CommandTemplate, params: Params) -> str:
        return fill_logdir(render_command(template, params, flags=render_flags))

    def number(self, draft: Draft) -> None:
        """Set the run's id. A run that is listed again gets the next ordinal and runs again."""
        first = spec_id(draft.commands, draft.params)
        draft.ordinal = self._seen[first]
        self._seen[first] += 1
        draft.id = spec_id(draft.commands, draft.params, draft.ordinal) if draft.ordinal else first

    def name_runs(self, drafts: Sequence[Draft]) -> list[str]:
        return [self._name(draft) for draft in drafts]

    def _name(self, draft: Draft) -> str:
        """Return a unique name; without a source of names, it is derived from the run's id or parameters."""
        draft.tag = tag = build_tag(draft, self.names)
        if self.names is not None and not self.names.cooldir:
            return _take((_join(tag, self.study.name, cooldir=False),), self._taken)
        rng = self.names.rng if self.names else random.Random(draft.id or repr(draft.params))
        draws = range(_DRAWS if len(self._taken) < _MANY else 1)
        slugs = (f"{rng.choice(ADJECTIVES)}-{rng.choice(ANIMALS)}{self._date}" for _ in draws)
        return _take((_join(tag, slug, cooldir=True) for slug in slugs), self._taken)


# ---------------------------------------------------------------- commands


def render_flags(params: Params) -> str:
    """Render every parameter as a flag. Strings are not quoted: users write several words and further flags in them.

    True is the flag without a value; false, null and the string None leave the flag out. Line breaks of YAML's block
    strings, which would end the command, become spaces.
    """
    words = []
    for name, value in params.items():
        if value is None or value is False or value == _NOTHING:
            continue
        text = "" if value is True else str(value).replace("\n", " ").strip()
        words.append(f"--{name} {text}" if text else f"--{name}")
    return " ".join(words)


def fill_logdir(text: str) -> str:
    """Replace LOGDIR everywhere by a reference to the run's directory, quoted for its position."""
    if LOGDIR not in text:
        return text
    quote: Quote = "bare"
    parts = []
    for token in _SHELL_TOKEN.split(text):
        if token == LOGDIR:
            parts.append(REFERENCE_FORMS[quote].format(layout.RUN_DIR_REFERENCE))
            continue
        parts.append(token)
        mark = token[-1:] if quote == "single" else token  # a backslash is literal inside '…'
        around = _QUOTES.get(mark)
        if around is not None and quote in ("bare", around):
            quote = around if quote == "bare" else "bare"
    return "".join(parts)


# ---------------------------------------------------------------- names


def build_tag(draft: Draft, names: NameSource | None = None) -> str | None:
    """Return the run's own tag with its placeholders filled, else the tag of the command line."""
    if draft.tag is None or draft.tag in ("", _NOTHING):
        return (names.tag if names else None) or None
    keys = {_FARM_KEYS.get(name, name): value for name, value in draft.farm_resources}
    return fill_tag(draft.tag, {**(draft.shown_params or draft.params), **keys})


def fill_tag(tag: str, params: Mapping[str, object]) -> str:
    """Replace each `{arch}` in a tag by the value of that parameter. Names and values are literal text."""
    return re.sub(r"\{([^{}]*)\}", lambda match: str(params[match[1]]) if match[1] in params else match[0], tag)


def _join(tag: str | None, slug: str, *, cooldir: bool) -> str:
    """Join tag and random words to a name. The words replace LOGDIR in a tag, since there is no directory yet."""
    if not tag:
        return slug if cooldir else build_directory_name(slug)  # random words are always valid
    if LOGDIR in tag:
        return build_directory_name(tag.replace(LOGDIR, slug))
    return build_directory_name(tag, f"_{slug}" if cooldir else "")


def build_directory_name(head: str, tail: str = "") -> str:
    """Return a single printable path component without a slash or leading dot, with a hash if `head` is too long."""
    clean = _clean(head)
    encoded, room = clean.encode("utf-8", "replace"), MAX_NAME_BYTES - len(tail.encode())
    if len(encoded) > room:
        suffix = "~" + blake2b(head.encode("utf-8", "replace")).hexdigest()[:8]
        clean = encoded[: room - len(suffix)].decode("utf-8", "ignore") + suffix
    return clean + tail


@lru_cache(maxsize=256)
def _clean(head: str) -> str:
    """Replace characters of a tag that a name must not have. Results are cached, since tags repeat."""
    clean = "".join("_" if letter == "/" or not letter.isprintable() else letter for letter in head)
    return re.sub(r"^\.+", "_", clean)


def _take(candidates: Iterable[str], taken: dict[str, int]) -> str:
    """Return the first free name, else the last one with the next number, which `taken` remembers."""
    name = ""
    for name in candidates:
        if name not in taken:
            break
    else:
        base = name
        name = next(numbered for number in count(taken[base] + 1) if (numbered := f"{base}_{number}") not in taken)
        taken[base] = int(name.rpartition("_")[2])
    taken[name] = 1
    return name
