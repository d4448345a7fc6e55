"""runx's run names: `[tag_]brave-otter_2020.02.06_14.19`; with --no_cooldir the tag or the study's name alone."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import count

from assay.plan.draft import Draft, NameSource
from assay.values.random_names import ADJECTIVES, ANIMALS
from assay.values.study import Study

LOGDIR = "LOGDIR"  # how a runx file refers to the run directory
NONE = "None"  # unquoted None is a text in YAML; to runx it means: leave this out
MAX_NAME_BYTES = 240  # a file name has 255; the rest is for temporary names

_DATE = "_%Y.%m.%d_%H.%M"
_DRAWS = 4  # before a number is put behind a name that keeps coming up
_MANY = len(ADJECTIVES) * len(ANIMALS) // 2  # names from which on most draws come up again
_RESOURCE_KEYS = {"nodes": "SUBMIT_JOB.NODES", "partition": "SUBMIT_JOB.PARTITION"}


def name_runs(drafts: Sequence[Draft], study: Study, names: NameSource | None = None) -> list[str]:
    """A name per draft, in order, no two alike. Without a source of names they follow from what the runs are."""
    namer = Namer(study, names)
    return [namer.name(draft) for draft in drafts]


class Namer:
    """Names one run after the other; no two alike."""

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
    if draft.tag is None or draft.tag in ("", NONE):
        return (names.tag if names else None) or None
    keys = {_RESOURCE_KEYS.get(name, name): value for name, value in draft.farm_resources}
    return fill_tag(draft.tag, {**(draft.shown_params or draft.params), **keys})


def fill_tag(tag: str, params: Mapping[str, object]) -> str:
    """`{arch}` becomes the parameter's value as text, once and literally: neither side is a regular expression."""
    return re.sub(r"\{([^{}]*)\}", lambda place: str(params[place[1]]) if place[1] in params else place[0], tag)


def _join(tag: str | None, slug: str, *, cooldir: bool) -> str:
    """A tag that says LOGDIR says where the rest of the name goes: the directory has no other name yet."""
    if not tag:
        return slug if cooldir else build_directory_name(slug)  # our own words can be a name as they are
    if LOGDIR in tag:
        return build_directory_name(tag.replace(LOGDIR, slug))
    return build_directory_name(tag, f"_{slug}" if cooldir else "")


def build_directory_name(head: str, tail: str = "", limit: int = MAX_NAME_BYTES) -> str:
    """A single path component: no slash, no leading dot, printable, and a head that is too long ends in a hash."""
    clean = _clean(head)
    encoded, room = clean.encode("utf-8", "replace"), limit - len(tail.encode())
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
