"""Names of run directories, by the rules of the study's dialect.

A native name holds what differs: `norm=new,lr=0.1,seed=0`; a single combination is named by all its parameters. Two
different runs never share a name, also not on a file system that ignores case: where they would, both end in `~` and a
part of their id.

runx: `[tag_]brave-otter_2020.02.06_14.19`; with --no_cooldir the tag or the study's name alone.

mlrunner: `Norm_batch-EaStop_T`, made of what a document sweeps, in its order. The rules are the original's, so that
folders it filled are found again. Its names can collide (`%g` cuts digits, `a/b` and `a_b` look alike, long texts lose
their head); here the later of two different runs gets its numbers in full or the beginning of a hash after a `~`.
"""

from __future__ import annotations

import os
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import count
from typing import Any

from assay.system.fast_dataclasses import dataclass
from assay.system.files import blake2b
from assay.values.random_names import ADJECTIVES, ANIMALS
from assay.values.run import Command, canonical
from assay.values.study import Params, Study, Value

MAX_NAME_BYTES = 120
_SINGLE_NAME = "run"
_SHORT_HASH = 8
_UNSAFE = re.compile(r"[^\w.+@-]")
_LOGDIR = "LOGDIR"  # how a runx file refers to the run directory
_NOTHING = "None"  # unquoted None is a text in YAML; to runx it means: leave this out


@dataclass(slots=True)
class Draft:
    """A run on its way to a RunSpec: everything but its name.

    `named` holds the parameters as they were swept, before aliases and defaults: names are made of these. Two drafts
    with the same id are the same run (mlrunner's documents may list it twice) and may share a name; others never.
    """

    sweep: int  # index into study.sweeps
    named: dict[str, Any]
    params: dict[str, Any]
    commands: tuple[Command, ...] = ()
    id: str = ""
    ordinal: int = 0
    title: str | None = None
    tag: str | None = None  # runx: RUNX.TAG as written in the file
    farm_resources: tuple[tuple[str, object], ...] = ()  # runx: SUBMIT_JOB.*
    chosen: tuple[str, ...] | None = None  # mlrunner: the commands asked for this time; None is all
    shown: tuple[Command, ...] | None = None  # with hidden parameters; None: nothing in the study looks secret
    shown_params: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NameSource:
    """What names are made from apart from the study; handed in, so that planning stays pure."""

    rng: random.Random
    now: datetime
    tag: str | None = None
    cooldir: bool = True
    exists: Callable[[str], bool] = lambda _path: False  # mlrunner shortens values that are paths of existing files


def name_runs(drafts: Sequence[Draft], study: Study, names: NameSource | None = None) -> list[str]:
    """A directory name for each draft, by the rules of the study's dialect."""
    if study.is_runx:
        runx = RunxNamer(study, names)
        return [runx.name(draft) for draft in drafts]
    if study.is_mlrunner:
        mlrunner = _MlrunnerNamer(names.exists if names else lambda _path: False)
        return [mlrunner.name(draft) for draft in drafts]
    return name_native(drafts, study.name_params)


def name_native(drafts: Sequence[Draft], also: Sequence[str] = ()) -> list[str]:
    """Names made of the parameters that differ between the runs; `also`: and of these, where a run has them."""
    varying = find_varying(drafts)
    if also:
        shown = {*varying, *also}
        varying = list(dict.fromkeys(name for draft in drafts for name in draft.named if name in shown))
    repeated = any(draft.ordinal for draft in drafts)
    bases = [_build_name(draft, varying, repeated=repeated) for draft in drafts]
    ids = [draft.id for draft in drafts]
    names = [
        base if len(base.encode()) <= MAX_NAME_BYTES else _with_hash(base, identity[:_SHORT_HASH])
        for base, identity in zip(bases, ids, strict=True)
    ]
    return _settle(_settle(names, bases, ids, _SHORT_HASH), bases, ids, None)


def find_varying(drafts: Iterable[Draft]) -> list[str]:
    """The parameters with several values, or with none in some runs, in order of first appearance."""
    values: dict[str, set[tuple[type, Value]]] = {}
    present: Counter[str] = Counter()
    count = 0
    for draft in drafts:
        count += 1
        present.update(draft.named.keys())
        for name, value in draft.named.items():
            spelled = canonical(value) if isinstance(value, list | dict | float) else value
            values.setdefault(name, set()).add((type(value), spelled))
    return [name for name, found in values.items() if len(found) > 1 or present[name] < count]


def _build_name(draft: Draft, varying: Sequence[str], *, repeated: bool) -> str:
    """A run with none of them is named by all its parameters: there is a single combination, or it lacks them."""
    named = draft.named
    chosen = [name for name in varying if name in named] or named
    parts = [f"{_show_safe(name)}={_show_value(named[name])}" for name in chosen]
    if repeated:
        parts.append(f"repeat={draft.ordinal}")
    if not parts:
        return _SINGLE_NAME
    base = ",".join(parts)
    if base[0] in ".-+@":  # hidden, or taken for a flag
        base = f"_{base}"
    return f"{base[:-1]}_" if base.endswith(".") else base


def _show_value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, list):
        return "+".join(_show_value(element) for element in value)
    if isinstance(value, dict):
        return _show_safe(canonical(value))
    return _show_safe(value if isinstance(value, str) else repr(value))


def _show_safe(text: str) -> str:
    """Letters of any script stay; what a shell or a file system could trip over becomes `_`."""
    return _UNSAFE.sub("_", unicodedata.normalize("NFC", text))


def _with_hash(base: str, digits: str) -> str:
    room = MAX_NAME_BYTES - len(digits) - 1
    return f"{base.encode()[:room].decode(errors='ignore')}~{digits}"


def _settle(names: Sequence[str], bases: Sequence[str], ids: Sequence[str], digits: int | None) -> list[str]:
    """Gives a hash to every name that two different runs would share."""
    owners: dict[str, set[str]] = {}
    keys = [unicodedata.normalize("NFC", name.casefold()) for name in names]
    for key, identity in zip(keys, ids, strict=True):
        owners.setdefault(key, set()).add(identity)
    return [
        _with_hash(base, identity[:digits]) if len(owners[key]) > 1 else name
        for name, base, identity, key in zip(names, bases, ids, keys, strict=True)
    ]


# ---------------------------------------------------------------- runx


MAX_FOREIGN_NAME_BYTES = 240  # a file name has 255; the rest is for temporary names

_DATE = "_%Y.%m.%d_%H.%M"
_DRAWS = 4  # before a number is put after a name that keeps coming up
_MANY = len(ADJECTIVES) * len(ANIMALS) // 2  # names from which on most draws come up again
_RESOURCE_KEYS = {"nodes": "SUBMIT_JOB.NODES", "partition": "SUBMIT_JOB.PARTITION"}


class RunxNamer:
    """Names one run after the other; no two alike. Without a source of names they follow from what the runs are."""

    def __init__(self, study: Study, names: NameSource | None = None) -> None:
        self._study = study
        self._names = names
        self._date = names.now.strftime(_DATE) if names else ""
        self._taken: dict[str, int] = {}

    def name(self, draft: Draft) -> str:
        tag = build_tag(draft, self._names)
        if self._names is not None and not self._names.cooldir:
            return _take((_join(tag, self._study.name, cooldir=False),), self._taken)
        rng = self._names.rng if self._names else random.Random(draft.id or repr(draft.params))
        if not tag:
            return _take(self._draw(rng), self._taken)
        return _take((_join(tag, slug, cooldir=True) for slug in self._draw(rng)), self._taken)

    def _draw(self, rng: random.Random) -> Iterator[str]:
        for _ in range(_DRAWS if len(self._taken) < _MANY else 1):
            yield f"{rng.choice(ADJECTIVES)}-{rng.choice(ANIMALS)}{self._date}"


def build_tag(draft: Draft, names: NameSource | None = None) -> str | None:
    """The run's own tag with its places filled, else the command line's."""
    if draft.tag is None or draft.tag in ("", _NOTHING):
        return (names.tag if names else None) or None
    keys = {_RESOURCE_KEYS.get(name, name): value for name, value in draft.farm_resources}
    return fill_tag(draft.tag, {**(draft.shown_params or draft.params), **keys})


def fill_tag(tag: str, params: Mapping[str, object]) -> str:
    """`{arch}` becomes the parameter's value as text, once and literally: neither side is a regular expression."""
    return re.sub(r"\{([^{}]*)\}", lambda match: str(params[match[1]]) if match[1] in params else match[0], tag)


def _join(tag: str | None, slug: str, *, cooldir: bool) -> str:
    """A tag with LOGDIR determines where the rest of the name goes: the directory has no other name yet."""
    if not tag:
        return slug if cooldir else build_directory_name(slug)  # our own words can be a name as they are
    if _LOGDIR in tag:
        return build_directory_name(tag.replace(_LOGDIR, slug))
    return build_directory_name(tag, f"_{slug}" if cooldir else "")


def build_directory_name(head: str, tail: str = "") -> str:
    """A single path component: no slash, no leading dot, printable, and a head that is too long ends in a hash."""
    clean = _clean(head)
    encoded, room = clean.encode("utf-8", "replace"), MAX_FOREIGN_NAME_BYTES - len(tail.encode())
    if len(encoded) > room:
        suffix = "~" + blake2b(head.encode("utf-8", "replace")).hexdigest()[:8]
        clean = encoded[: room - len(suffix)].decode("utf-8", "ignore") + suffix
    return clean + tail


@lru_cache(maxsize=256)
def _clean(head: str) -> str:
    """Tags come up again and again."""
    clean = "".join("_" if letter == "/" or not letter.isprintable() else letter for letter in head)
    return re.sub(r"^\.+", "_", clean)


def _take(candidates: Iterable[str], taken: dict[str, int]) -> str:
    """The first name that is free, else the last one with a number; `taken` keeps the number reached."""
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


# ---------------------------------------------------------------- mlrunner


_MAX_TEXT = 100  # the original keeps the last hundred characters of a text
_NAMELESS = "default"  # a document without parameters, or no document at all

Exists = Callable[[str], bool]


def build_mlrunner_name(named: Params, exists: Exists = lambda _path: False) -> str:
    """The original's name, made fit for a directory."""
    parts = [f"{build_key(key)}_{_show_mlrunner_value(value, exists)}" for key, value in named.items()]
    return _make_safe("-".join(parts), repr(dict(named))) if parts else _NAMELESS


def build_key(key: str) -> str:
    """`early-stop` → `EaStop`; words of one or two letters before the last stay as they are: `lr_decay` → `lrDecay`."""
    words = key.split("-") if "-" in key else key.split("_")
    return "".join(word[:2].title() if len(word) > 2 else word for word in words[:-1]) + words[-1].title()


def _show_mlrunner_value(value: Value, exists: Exists) -> str:
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
    return _shorten(name, spec, MAX_FOREIGN_NAME_BYTES)


def _shorten(name: str, spec: str, limit: int) -> str:
    """A name that is too long ends in a hash of what it stands for, so that two of them stay apart."""
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) <= limit:
        return name
    suffix = f"~{_hash_text(spec, 8)}"
    return encoded[: limit - len(suffix)].decode("utf-8", "ignore") + suffix


def _hash_text(text: str, digits: int) -> str:
    return blake2b(text.encode("utf-8", "surrogateescape")).hexdigest()[:digits]


class _MlrunnerNamer:
    """Remembers which parameters a name was given to: the same parameters under the same name share it, different
    ones never do. `exists`: whether a value is an existing path, which the original shortens to its last part."""

    def __init__(self, exists: Exists) -> None:
        self._exists = exists
        self._owners: dict[str, Params] = {}
        self._given: dict[tuple[str, str], str] = {}  # (name asked for, parameters) → name given instead

    def name(self, draft: Draft) -> str:
        natural = build_mlrunner_name(draft.named, self._exists)
        if self._take(natural, draft.params):
            return natural
        spec = _spell(draft.params)
        given = self._given.get((natural, spec))
        if given is None:
            given = next(name for name in self._others(draft, natural, spec) if self._take(name, draft.params))
            self._given[natural, spec] = given
        return given

    def _others(self, draft: Draft, natural: str, spec: str) -> list[str]:
        parts = []
        for key, value in draft.named.items():  # numbers in full
            is_word = isinstance(value, str | bool)
            text = _show_mlrunner_value(value, lambda _path: False) if is_word else repr(value)
            parts.append(f"{build_key(key)}_{text}")
        short = _shorten(natural, spec, MAX_FOREIGN_NAME_BYTES - 65)
        hashed = [f"{short}~{_hash_text(spec, digits)}" for digits in (8, 16, 64)]
        return [_make_safe("-".join(parts), spec), *hashed] if parts else hashed

    def _take(self, name: str, params: Params) -> bool:
        """Whether the name is free or already theirs. `==` would call 1, 1.0 and true the same."""
        owner = self._owners.setdefault(name, params)
        return owner is params or _spell(owner) == _spell(params)


def _spell(params: Params) -> str:
    return repr(sorted(params.items()))
