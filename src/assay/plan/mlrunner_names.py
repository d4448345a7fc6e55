"""mlrunner's run names: `Norm_batch-EaStop_T`, made of what a document sweeps, in its order.

The rules are the original's, so that folders it filled are found again. Its names can collide (`%g` cuts digits,
`a/b` and `a_b` look alike, long texts lose their head); here the later of two different runs gets its numbers in
full or the beginning of a hash behind a `~`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from hashlib import blake2b

from assay.plan.draft import Draft
from assay.values.study import Params, Study, Value

MAX_NAME_BYTES = 240  # a file name has 255; the rest is for temporary names
MAX_TEXT = 100  # the original keeps the last hundred characters of a text
NAMELESS = "default"  # a document without parameters, or no document at all

Exists = Callable[[str], bool]


def name_runs(drafts: Sequence[Draft], study: Study, exists: Exists = lambda _path: False) -> list[str]:
    """A name per draft, in order. The same parameters under the same name share it; different ones never do.

    `exists` tells whether a value is an existing path, which the original shortens to its last part.
    """
    del study  # every rule is the dialect's, none the file's
    namer = _Namer()
    return [namer.name(draft, build_name(draft.named, exists)) for draft in drafts]


def build_name(named: Params, exists: Exists = lambda _path: False) -> str:
    """The original's name, made fit for a directory."""
    parts = [f"{build_key(key)}_{_show_value(value, exists)}" for key, value in named.items()]
    return _make_safe("-".join(parts), repr(dict(named))) if parts else NAMELESS


def build_key(key: str) -> str:
    """`early-stop` → `EaStop`; words of one or two letters before the last stay as they are: `lr_decay` → `lrDecay`."""
    words = key.split("-") if "-" in key else key.split("_")
    return "".join(word[:2].title() if len(word) > 2 else word for word in words[:-1]) + words[-1].title()


def _show_value(value: Value, exists: Exists) -> str:
    if isinstance(value, str):
        return _show_text(value, exists)
    if isinstance(value, bool):
        return "T" if value else "F"
    if isinstance(value, int | float):
        try:
            return f"{value:g}"
        except OverflowError:  # a whole number beyond what a float holds
            return str(value)
    return str(value)[-MAX_TEXT:]


def _show_text(text: str, exists: Exists) -> str:
    if exists(text):
        return os.path.basename(text)[-MAX_TEXT:]
    return re.sub(r"^[/.]*", "", text).replace("/", "_")[-MAX_TEXT:]


def _show_exactly(value: Value) -> str:
    if isinstance(value, str):
        return _show_text(value, lambda _path: False)
    if isinstance(value, bool):
        return "T" if value else "F"
    return repr(value)


def _make_safe(name: str, spec: str) -> str:
    """A single path component: no slash, no leading dot (`.assay` and `.tmp-` are ours), not too long."""
    name = name.replace("/", "_").replace("\0", "_")
    name = re.sub(r"^\.", "_", name)
    return shorten(name, spec)


def shorten(name: str, spec: str, limit: int = MAX_NAME_BYTES) -> str:
    """A name that is too long ends in a hash of what it stands for, so that two of them stay apart."""
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) <= limit:
        return name
    suffix = f"~{hash_text(spec)}"
    return encoded[: limit - len(suffix)].decode("utf-8", "ignore") + suffix


def hash_text(text: str, digits: int = 8) -> str:
    return blake2b(text.encode("utf-8", "surrogateescape")).hexdigest()[:digits]


class _Namer:
    """Remembers which parameters a name was given to."""

    def __init__(self) -> None:
        self._owners: dict[str, Params] = {}
        self._given: dict[tuple[str, str], str] = {}  # (name asked for, parameters) → name given instead

    def name(self, draft: Draft, natural: str) -> str:
        if self._take(natural, draft.params):
            return natural
        spec = _spell(draft.params)
        given = self._given.get((natural, spec))
        if given is None:
            given = next(name for name in self._others(draft, natural, spec) if self._take(name, draft.params))
            self._given[natural, spec] = given
        return given

    def _others(self, draft: Draft, natural: str, spec: str) -> list[str]:
        exact = "-".join(f"{build_key(key)}_{_show_exactly(value)}" for key, value in draft.named.items())
        hashed = [shorten(natural, spec, MAX_NAME_BYTES - 65) + "~" + hash_text(spec, digits) for digits in (8, 16, 64)]
        return [_make_safe(exact, spec), *hashed] if exact else hashed

    def _take(self, name: str, params: Params) -> bool:
        """Whether the name is free or already theirs. `==` would call 1, 1.0 and true the same."""
        owner = self._owners.setdefault(name, params)
        return owner is params or _spell(owner) == _spell(params)


def _spell(params: Params) -> str:
    return repr(sorted(params.items()))
