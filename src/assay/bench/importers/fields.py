"""Fields of a file that another tool wrote: what is not as it must be is said with the benchmark and the field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# JSON has none of these; our own summaries have them as texts
_NO_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MOST_SHOWN = 60


class FieldError(Exception):
    """Where it is and what is wrong with it, in words."""


def parse_number(value: Any) -> float | None:
    """None for what is no number; True and False are none."""
    if isinstance(value, str):
        return _NO_NUMBERS.get(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a file. What is `null` is missing."""

    values: Mapping[str, Any]
    where: str = ""  # `benchmark 'BM_x/8'`; empty: the file itself

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def number(self, key: str) -> float | None:
        if key not in self:
            return None
        found = parse_number(self.values[key])
        return found if found is not None else self._refuse(key, "no number")

    def need_number(self, key: str) -> float:
        found = self.number(key)
        return found if found is not None else self._miss(key)

    def finite(self, key: str) -> float | None:
        """For what can be nothing but a number: a time of day, a count."""
        found = self.number(key)
        return found if found is None or math.isfinite(found) else self._refuse(key, "no number")

    def whole(self, key: str) -> int:
        return int(self.finite(key) or 0)

    def text(self, key: str) -> str:
        """Numbers too: tools do not agree on what a count of processors is. Empty where it is missing."""
        value = self.values.get(key)
        if isinstance(value, (dict, list)):
            self._refuse(key, "no text")
        return "" if value is None else str(value)

    def need_text(self, key: str) -> str:
        return self.text(key) or self._miss(key)

    def part(self, key: str) -> Fields:
        """The object under a key; an empty one where it is missing."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            self._refuse(key, "no object")
        return Fields(value or {}, f"{self.where} {key}".strip())

    def items(self, key: str) -> Sequence[Any]:
        value = self.values.get(key)
        if value is not None and not isinstance(value, list):
            self._refuse(key, "no list")
        return value or ()

    def numbers(self, key: str) -> list[float]:
        found = [parse_number(value) for value in self.items(key)]
        good = [value for value in found if value is not None]
        if len(good) < len(found):
            self._refuse(key, "no list of numbers")
        return good

    def parts(self, key: str, what: str) -> Iterator[Fields]:
        """The objects of a list, each called by its own name where it has one."""
        for number, value in enumerate(self.items(key), 1):
            place = f"{self.where} {what} {number}".strip()
            if not isinstance(value, dict):
                raise FieldError(f"{place} is {_show(value)}, which is no object")
            name = value.get("fullname") or value.get("name")
            yield Fields(value, f"{self.where} {what} {name!r}".strip() if isinstance(name, str) else place)

    def choose(self, key: str, known: Mapping[str, float], default: str) -> float:
        text = self.text(key) or default
        return known[text] if text in known else self._refuse(key, f"none of {', '.join(known)}")

    def _miss(self, key: str) -> Any:
        raise FieldError(f"{self.where}: {key} is missing" if self.where else f"{key} is missing")

    def _refuse(self, key: str, what: str) -> Any:
        words = f"{key} is {_show(self.values.get(key))}, which is {what}"
        raise FieldError(f"{self.where}: {words}" if self.where else words)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
