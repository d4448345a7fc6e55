"""Alarms: failed checks of studies, and the problems that plug-ins report.

A thread finds them in files that exist anyway; the list of studies shows them at its top, the navigation counts them.
Nothing is guessed: what cannot be read or has not been judged yet is named, and does not count as passed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from assay.follow.api import StudyLocation
from assay.show.formatting import render_count
from assay.web.interface import Alarm, Pages
from assay.web.pages.verdicts import count_failed_checks
from assay.web.site import build_address
from assay.web.snapshots import Snapshots

_AGE_S = 5.0  # between two searches for alarms, as long as pages ask
_OLD_S = 30.0  # older results are not shown


class FoundAlarms(NamedTuple):
    """The alarms that were found. `is_known` is False if there was no search yet, or the last one is too old."""

    alarms: tuple[Alarm, ...] = ()
    is_known: bool = False

    @property
    def marks(self) -> Mapping[str, int]:
        """Return the number of alarms for each part of the navigation."""
        counts: Counter[str] = Counter()
        for alarm in self.alarms:
            counts[alarm.place] += 0 if alarm.is_note else alarm.number
        return {place: count for place, count in counts.items() if count}


class Alarms:
    def __init__(self, snapshots: Snapshots, pages: Sequence[tuple[str, Pages]]) -> None:
        self._snapshots, self._pages = snapshots, pages
        self._alarms: tuple[Alarm, ...] = ()
        self._at = float("-inf")
        self._is_looking = threading.Lock()
        self._has_looked = threading.Event()

    def find(self, patience_s: float = 0.0) -> FoundAlarms:
        """Return the newest alarms, and start a new search if it is due. A first search is awaited `patience_s`."""
        age = time.monotonic() - self._at
        if age > _OLD_S:
            self._has_looked.clear()
        if age > _AGE_S and not self._snapshots.is_ending and self._is_looking.acquire(blocking=False):
            threading.Thread(target=self._look, name="assay-alarms", daemon=True).start()
        if age > _OLD_S and not self._has_looked.wait(patience_s):
            return FoundAlarms()
        return FoundAlarms(self._alarms, is_known=True)

    def _look(self) -> None:
        try:
            self._alarms = tuple(self._list())
            self._at = time.monotonic()
            self._has_looked.set()
        finally:
            self._is_looking.release()

    def _list(self) -> Iterator[Alarm]:
        known = self._snapshots.find_locations()
        looks = [
            (each.navigation.path if each.navigation else f"/{name}", each.find_alarms)
            for name, each in self._pages
            if each.find_alarms
        ]
        for place, look in (*looks, ("/studies", _find_checks)):
            try:
                yield from map(_check, look(self._snapshots, known))
            except Exception as error:  # one damaged record does not hide the others
                logging.getLogger("assay.web").exception("alarms of %s", place[1:])
                yield Alarm(place, 1, f"{place[1:]} cannot be judged: {type(error).__name__}", "ERROR", place)


def _check(alarm: object) -> Alarm:
    if not isinstance(alarm, Alarm) or not all(map(isinstance, alarm, (str, int, str, str, str))):
        raise TypeError(f"{alarm!r} is not an alarm")
    return alarm


def _find_checks(_snapshots: Snapshots, known: Mapping[str, StudyLocation]) -> Iterator[Alarm]:
    for slug, location in known.items():
        for kind, count in count_failed_checks(location).items():
            text = f"{location.name}: {render_count(count, 'run')} {kind} in its checks"
            yield Alarm("/studies", count, text, kind, build_address("studies", slug))
