"""Runs that need not be listed: a dry run of very many prints the first before the last is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from typing import overload

from assay.values.run import RunSpec


class LazyRuns(Sequence[RunSpec]):
    """Runs that are made when they are looked at, and kept: the first is there long before the last."""

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

    @overload
    def __getitem__(self, index: int) -> RunSpec: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[RunSpec]: ...
    def __getitem__(self, index: int | slice) -> RunSpec | Sequence[RunSpec]:
        return self._all()[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def _all(self) -> list[RunSpec]:
        self._made.extend(self._source)
        return self._made
