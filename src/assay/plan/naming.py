"""Names of run directories.

A native name holds what differs: `norm=new,lr=0.1,seed=0`; a single combination is named by all its parameters. Two
different runs never share a name, also not on a file system that ignores case: where they would, both end in `~` and a
part of their id.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from assay.plan import mlrunner_names, runx_names
from assay.plan.draft import Draft, NameSource
from assay.plan.identity import canonical
from assay.values.study import Study, Value

MAX_NAME_BYTES = 120
SINGLE_NAME = "run"
_SHORT_HASH = 8
_UNSAFE = re.compile(r"[^\w.+@-]")


def name_runs(drafts: Sequence[Draft], study: Study, names: NameSource | None = None) -> list[str]:
    """A directory name for each draft, by the rules of the study's dialect."""
    if study.dialect == "runx":
        return runx_names.name_runs(drafts, study, names)
    if study.dialect == "mlrunner":
        return (
            mlrunner_names.name_runs(drafts, study, names.exists) if names else mlrunner_names.name_runs(drafts, study)
        )
    return name_native(drafts)


def name_native(drafts: Sequence[Draft]) -> list[str]:
    """Names made of the parameters that differ between the runs."""
    varying = find_varying(drafts)
    repeated = any(draft.ordinal for draft in drafts)
    bases = [_build_name(draft, varying, repeated=repeated) for draft in drafts]
    ids = [draft.id for draft in drafts]
    names = _settle([_fit(base, identity) for base, identity in zip(bases, ids, strict=True)], bases, ids)
    return _settle(names, bases, ids, digits=None)


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
    return _protect(",".join(parts)) if parts else SINGLE_NAME


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


def _protect(name: str) -> str:
    """No leading dot or dash (hidden, or taken for a flag), no trailing dot."""
    if name[0] in ".-+@":
        name = f"_{name}"
    return f"{name[:-1]}_" if name.endswith(".") else name


def _fit(base: str, identity: str) -> str:
    encoded = base.encode()
    return base if len(encoded) <= MAX_NAME_BYTES else _with_hash(base, identity[:_SHORT_HASH])


def _with_hash(base: str, digits: str) -> str:
    room = MAX_NAME_BYTES - len(digits) - 1
    return f"{base.encode()[:room].decode(errors='ignore')}~{digits}"


def _settle(
    names: Sequence[str], bases: Sequence[str], ids: Sequence[str], digits: int | None = _SHORT_HASH
) -> list[str]:
    """Gives a hash to every name that two different runs would share."""
    owners: dict[str, set[str]] = {}
    keys = [_fold(name) for name in names]
    for key, identity in zip(keys, ids, strict=True):
        owners.setdefault(key, set()).add(identity)
    return [
        _with_hash(base, identity[:digits]) if len(owners[key]) > 1 else name
        for name, base, identity, key in zip(names, bases, ids, keys, strict=True)
    ]


def _fold(name: str) -> str:
    return unicodedata.normalize("NFC", name.casefold())
