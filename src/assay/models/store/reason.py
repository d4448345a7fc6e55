"""Why the artifact store has something or not, in one line a person can act on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC
from typing import Any

from assay.values.plain import render_date

NOTHING = "miss: nothing like it"
_WORDS = {"source": "the model", "model": "the model", "inputs": "the inputs"}
_WORDS_OF_RUN = {**_WORDS, "source": "what the step before it made"}
_CODE = "tools.code "  # of somebody's own back end: the file follows
_ABSENT = object()
_MOST_CHANGES = 3
_LONGEST = 60


def render_hit(made_at: float, made_by: str) -> str:
    return f"hit: made {render_date(made_at, '%Y-%m-%d %H:%M:%S UTC', UTC)} by {made_by}"


def render_miss(parts: Mapping[str, Any], entries: Iterable[tuple[Mapping[str, Any], float]]) -> str:
    """`entries`: parts of what there is, and when each was last used; the nearest one of the same kind is named."""
    near = [
        (sum(1 for _ in find_changes(old, parts)), -used_at, old) for old, used_at in entries if _is_kin(old, parts)
    ]
    if not near:
        return NOTHING
    _, _, old = min(near, key=lambda each: each[:2])
    words = _WORDS_OF_RUN if parts.get("what") == "run" else _WORDS
    changes = [render_change(*change, words) for change in find_changes(old, parts)]
    more = f", and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
    return f"miss: {'; '.join(changes[:_MOST_CHANGES])}{more}"


def _is_kin(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return all(old.get(name) == new.get(name) for name in ("what", "case", "backend"))


def find_changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """What differs, as (name, old, new); inside of mappings `tools.iree`."""
    for name in sorted({*old, *new}):
        before, after = old.get(name, _ABSENT), new.get(name, _ABSENT)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from find_changes(before, after, f"{prefix}{name}.")
        elif _differ(before, after):
            yield f"{prefix}{name}", before, after


def _differ(before: Any, after: Any) -> bool:
    """As the key sees it: a list is a tuple, and 1 is neither 1.0 nor true."""
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        return len(before) != len(after) or any(map(_differ, before, after))
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return any(find_changes(before, after))
    return type(before) is not type(after) or repr(before) != repr(after)


def render_change(name: str, before: Any, after: Any, words: Mapping[str, str] = _WORDS) -> str:
    if name.startswith(_CODE):
        return f"the back end's code changed: {_show(name.removeprefix(_CODE))}"
    name = _show(name)
    if name in words and _is_digest(before) and _is_digest(after):
        return f"{words[name]} changed (sha {_show(before)} → {_show(after)})"
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        return f"{name} changed: {_render_lists(before, after)}"
    if before is _ABSENT:
        return f"{name} is new: {_show(after)}"
    if after is _ABSENT:
        return f"{name} is gone: {_show(before)}"
    return f"{name} changed: {_show(before)} → {_show(after)}"


def _render_lists(before: list[Any] | tuple[Any, ...], after: list[Any] | tuple[Any, ...]) -> str:
    """Only what came and what went: a compiler has many flags."""
    gone = [each for each in before if each not in after]
    new = [each for each in after if each not in before]
    if gone and new:
        return f"{_join(gone)} → {_join(new)}"
    if gone or new:
        return f"without {_join(gone)}" if gone else f"with {_join(new)}"
    return "another order" if len(before) == len(after) else f"{_join(before)} → {_join(after)}"


def _join(values: Iterable[Any]) -> str:
    return _shorten(" ".join(_show(each) for each in values))


def _show(value: Any) -> str:
    if _is_digest(value):
        return f"{value[:4]}…"
    text = value if isinstance(value, str) and value else repr(value)
    return _shorten(" ".join(text.split()))


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32,}", value) is not None
