"""Names of run directories.

A name has the parameters that differ: `norm=new,lr=0.1,seed=0`; a single combination is named by all its parameters.
Two different runs never have the same name, also not on a file system that ignores case: if they would, both names end
in `~` and a part of the run's id.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from assay.system.fast_dataclasses import dataclass
from assay.values.run import Command, canonical
from assay.values.study import Value

MAX_NAME_BYTES = 120
_SINGLE_NAME = "run"
_SHORT_HASH = 8
_UNSAFE = re.compile(r"[^\w.+@-]")


@dataclass(slots=True)
class Draft:
    """The draft of a RunSpec: everything but its name. Names are built from `named`, the parameters as they were swept,
    before aliases and defaults. Two drafts with the same id are the same run, listed twice in a file, and may share a
    name; drafts with different ids never do."""

    sweep: int  # index into study.sweeps
    named: dict[str, Any]
    params: dict[str, Any]
    commands: tuple[Command, ...] = ()
    id: str = ""
    ordinal: int = 0
    title: str | None = None
    tag: str | None = None  # as written in the file
    farm_resources: tuple[tuple[str, object], ...] = ()
    chosen: tuple[str, ...] | None = None  # the commands chosen for this call; None is all
    shown: tuple[Command, ...] | None = None  # with secrets hidden; None: nothing in the study looks like a secret
    shown_params: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NameSource:
    """Data that names depend on apart from the study; passed in, so that planning stays pure."""

    rng: random.Random
    now: datetime
    tag: str | None = None
    cooldir: bool = True
    exists: Callable[[str], bool] = lambda _path: False  # whether a value is the path of an existing file


def name_native(drafts: Sequence[Draft], also: Sequence[str] = ()) -> list[str]:
    """Name runs by the parameters that differ between them; `also`: further parameters, if a run has them."""
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
    return _add_hashes(_add_hashes(names, bases, ids, _SHORT_HASH), bases, ids, None)


def find_varying(drafts: Iterable[Draft]) -> list[str]:
    """Return the parameters with several values, or missing in some runs, in order of first appearance."""
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
    """Name a run by the varying parameters that it has; a run without varying parameters by all of its parameters."""
    named = draft.named
    chosen = [name for name in varying if name in named] or named
    parts = [f"{_show_safe(name)}={_show_value(named[name])}" for name in chosen]
    if repeated:
        parts.append(f"repeat={draft.ordinal}")
    if not parts:
        return _SINGLE_NAME
    base = ",".join(parts)
    if base[0] in ".-+@":  # such a name would be hidden, or look like a flag
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
    """Keep letters of any script; replace characters that a shell or a file system may misinterpret by `_`."""
    return _UNSAFE.sub("_", unicodedata.normalize("NFC", text))


def _with_hash(base: str, digits: str) -> str:
    room = MAX_NAME_BYTES - len(digits) - 1
    return f"{base.encode()[:room].decode(errors='ignore')}~{digits}"


def _add_hashes(names: Sequence[str], bases: Sequence[str], ids: Sequence[str], digits: int | None) -> list[str]:
    """Add a hash to every name that two different runs would share."""
    owners: dict[str, set[str]] = {}
    keys = [unicodedata.normalize("NFC", name.casefold()) for name in names]
    for key, identity in zip(keys, ids, strict=True):
        owners.setdefault(key, set()).add(identity)
    return [
        _with_hash(base, identity[:digits]) if len(owners[key]) > 1 else name
        for name, base, identity, key in zip(names, bases, ids, keys, strict=True)
    ]
