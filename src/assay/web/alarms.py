"""What is not well: last golden checks, changes of benchmarks that nobody has judged, models, checks of studies.

Judged beside the requests, from what is kept anyway, and shown at the top of the list of studies and at the navigation.
Nothing is guessed: what cannot be read or is not judged yet is named, and is not counted as good.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from assay.bench.api import build_overview, find_changes, is_archive
from assay.bench.web_pages import load_kept
from assay.follow.api import StudyLocation
from assay.golden.api import list_goldens
from assay.models.api import group_checks, is_model_study, list_checks
from assay.show.formatting import render_count
from assay.values.verdict import VerdictKind
from assay.web.contents.page_facts import count_failed_checks
from assay.web.site import build_address
from assay.web.snapshots import Snapshots

_AGE_S = 5.0  # between two looks, as long as somebody asks
_OLD_S = 30.0  # what was found so long ago is not shown


class Alarm(NamedTuple):
    """`place`: the part of the navigation that it belongs to. `is_note`: not judged, and so neither good nor bad."""

    place: str
    number: int
    text: str
    kind: str
    address: str
    is_note: bool = False


class Found(NamedTuple):
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
    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._alarms: tuple[Alarm, ...] = ()
        self._at = float("-inf")
        self._is_looking = threading.Lock()
        self._has_looked = threading.Event()

    def find(self, patience_s: float = 0.0) -> Found:
        """What was found last; a look that is due begins now. `patience_s`: how long a first one is waited for."""
        age = time.monotonic() - self._at
        if age > _OLD_S:
            self._has_looked.clear()
        if age > _AGE_S and not self._snapshots.is_ending and self._is_looking.acquire(blocking=False):
            threading.Thread(target=self._look, name="assay-alarms", daemon=True).start()
        if age > _OLD_S and not self._has_looked.wait(patience_s):
            return Found()
        return Found(self._alarms, is_known=True)

    def _look(self) -> None:
        try:
            self._alarms = tuple(self._list())
            self._at = time.monotonic()
            self._has_looked.set()
        finally:
            self._is_looking.release()

    def _list(self) -> Iterator[Alarm]:
        known = self._snapshots.find_locations()
        looks: Mapping[str, Callable[[Mapping[str, StudyLocation]], Iterator[Alarm]]] = {
            "goldens": _find_goldens,
            "benchmarks": self._find_benchmarks,
            "models": self._find_models,
            "studies": _find_checks,
        }
        for place, look in looks.items():
            try:
                yield from look(known)
            except Exception as error:  # one damaged record keeps nobody from seeing the others
                logging.getLogger("assay.web").exception("what is not well: %s", place)
                text = f"{place} cannot be judged: {type(error).__name__}"
                yield Alarm(place, 1, text, "ERROR", build_address(place))

    def _find_benchmarks(self, known: Mapping[str, StudyLocation]) -> Iterator[Alarm]:
        unjudged, waiting, broken = 0, 0, 0
        for slug, location in known.items():
            if is_archive(location):
                snapshot = self._snapshots.load(slug)
                overview = build_overview(snapshot.location, load_kept(snapshot).groups)
                unjudged += find_changes(overview.lines).open_count
                waiting += overview.waiting
                judged = [line.judged for line in overview.lines if line.judged]
                broken += sum(VerdictKind.ERROR in each.kinds.values() for each in judged)
        if broken:
            text = f"{render_count(broken, 'benchmark')} ERROR"
            yield Alarm("benchmarks", broken, text, "ERROR", build_address("benchmarks", sort="verdict"))
        if unjudged:
            text = f"{render_count(unjudged, 'benchmark change')} not triaged"
            yield Alarm("benchmarks", unjudged, text, "FAIL", build_address("benchmarks", sort="change"))
        if waiting:
            text = f"{render_count(waiting, 'benchmark')} not judged yet"
            yield Alarm("benchmarks", waiting, text, "INCONCLUSIVE", build_address("benchmarks"), is_note=True)

    def _find_models(self, known: Mapping[str, StudyLocation]) -> Iterator[Alarm]:
        found: Counter[str] = Counter()
        for slug, location in known.items():
            if is_model_study(location):
                rows = [row for row in self._snapshots.load(slug).table.rows if row.state.is_over]
                checks = list_checks(location, rows)  # an upload that passed does not hide a failure that was seen here
                sides = [[each for each in checks if bool(each.received) is received] for received in (False, True)]
                newest = [card.checks[0] for side in sides for card in group_checks(side)]
                found.update("ERROR" if check.kind is None else str(check.kind) for check in newest)
        found.pop(str(VerdictKind.PASS), None)
        for kind, count in found.items():
            yield Alarm("models", count, f"{render_count(count, 'model check')} {kind}", kind, build_address("models"))


def _find_goldens(known: Mapping[str, StudyLocation]) -> Iterator[Alarm]:
    """The last check of each; one that was only recorded was never judged."""
    found: dict[str, list[str]] = {}
    for card in list_goldens(known):
        if card.checks and (card.checks[0].is_damaged or card.checks[0].kind is not VerdictKind.PASS):
            found.setdefault(card.checks[0].word, []).append(card.slug)
    for word, slugs in found.items():
        address = build_address("goldens", *slugs) if len(slugs) == 1 else build_address("goldens")
        kind = "ERROR" if word == "damaged" else word
        yield Alarm("goldens", len(slugs), f"{render_count(len(slugs), 'golden check')} {word}", kind, address)


def _find_checks(known: Mapping[str, StudyLocation]) -> Iterator[Alarm]:
    for slug, location in known.items():
        for kind, count in count_failed_checks(location).items():
            text = f"{location.name}: {render_count(count, 'run')} {kind} in its checks"
            yield Alarm("studies", count, text, kind, build_address("studies", slug))
