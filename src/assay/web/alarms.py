"""What is not well: checks of studies, and what plug-ins find.

Judged in a thread, from what is kept anyway, and shown at the top of the list of studies and at the navigation.
Nothing is guessed: what cannot be read or is not judged yet is named, and is not counted as good.
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

_AGE_S = 5.0  # between two looks, as long as pages ask
_OLD_S = 30.0  # what was found so long ago is not shown


class FoundAlarms(NamedTuple):
    """`is_known` False: nothing was looked at yet, or too long ago."""

    alarms: tuple[Alarm, ...] = ()
    is_known: bool = False

    @property
    def marks(self) -> Mapping[str, int]:
        """How many there are of each part of the navigation."""
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
        """What was found last; a look that is due begins now. `patience_s`: how long a first one is waited for."""
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
