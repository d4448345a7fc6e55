"""The page of all studies: a card for each study, with its states, its best run and its age, below the alarms."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from assay.errors import NotFoundError, UsageError
from assay.follow.api import StudyLocation
from assay.record.index.base import StudyRow
from assay.show.formatting import render_count
from assay.values.state import State
from assay.web.interface import Alarm, Pages, ask_pages
from assay.web.pages.study_page import find_best, measure_pace
from assay.web.pages.verdicts import count_failed_checks
from assay.web.routes import Routes
from assay.web.site import build_address, get_site
from assay.web.snapshots import Snapshots

ROUTES = Routes()
_PATIENCE_S = 1.0
_MANY = 12  # with more studies than this the page has a search field
_AGE_S = 5.0  # time between two searches for alarms, as long as pages request alarms
_OLD_S = 30.0  # alarms that were found longer ago are not shown


@dataclass(frozen=True, slots=True)
class Card:
    """A card of the list of studies. `shares`: each state with its count and its part of the bar in percent."""

    slug: str
    root: str
    row: StudyRow

    @property
    def shares(self) -> Sequence[tuple[State, int, float]]:
        return build_shares(self.row.counts)

    @property
    def is_running(self) -> bool:
        return self.row.counts.get(State.RUNNING, 0) > 0


def build_shares(counts: Mapping[State, int]) -> Sequence[tuple[State, int, float]]:
    total = sum(counts.values()) or 1
    return [(state, counts[state], 100 * counts[state] / total) for state in State if counts.get(state)]


_ORDERS: Mapping[str, Callable[[Card], Any]] = {
    "newest": lambda card: -(card.row.last_activity or 0.0),
    "oldest": lambda card: card.row.last_activity or 0.0,
    "name": lambda card: card.row.name.lower(),
    "runs": lambda card: -card.row.runs,
}


@ROUTES.page("/")
def lead_to_studies(_request: Request) -> Response:
    return RedirectResponse("/studies", 303)


@ROUTES.page("/studies")
def show(request: Request) -> Response:
    site = get_site(request)
    known = site.snapshots.load_studies()
    wanted = request.query_params.get("q", "").strip()
    order = request.query_params.get("sort") or "newest"
    if order not in _ORDERS:
        raise UsageError(f"studies cannot be sorted by {order!r}", f"there are {', '.join(_ORDERS)}")
    cards = [Card(slug, location.root, row) for slug, (location, row) in known.items()]
    cards = sorted((card for card in cards if wanted.lower() in card.row.name.lower()), key=_ORDERS[order])
    return site.render(
        request,
        "studies.html",
        cards=cards,
        q=wanted,
        total=len(known),
        sort=order,
        orders=_ORDERS,
        is_many=len(known) > _MANY or bool(wanted),
        found=request.app.state.alarms.find(),
        missing=site.snapshots.find_missing_roots(),
    )


@ROUTES.page("/alarms")
def show_alarms(request: Request) -> Response:
    """Send the alarms at the top of the page, which requests them repeatedly."""
    found = request.app.state.alarms.find(_PATIENCE_S)
    return get_site(request).render(request, "parts/alarms.html", found=found)


@ROUTES.page("/studies/{study}/card")
def show_card(request: Request) -> Response:
    """Send one card, which the page requests after an event about its study."""
    site, slug = get_site(request), request.path_params["study"]
    known = site.snapshots.load_studies()
    if slug not in known:
        raise NotFoundError("study", slug, list(known))
    location, row = known[slug]
    return site.render(request, "parts/card.html", card=Card(slug, location.root, row))


@ROUTES.page("/studies/{study}/best")
def show_best(request: Request) -> Response:
    """Send the part of a card that needs the study's table, which the page requests when the card becomes visible."""
    site, slug = get_site(request), request.path_params["study"]
    location = site.snapshots.locate(slug)
    cards = ask_pages(
        site.pages, "card", lambda card: card and site.render(request, card[0], **card[1]), slug, location
    )
    card: Response | None = next(filter(None, cards), None)
    if card:  # a plug-in's own card, which has no best run
        return card
    snapshot = site.snapshots.load(slug)
    return site.render(request, "parts/best.html", slug=slug, best=find_best(snapshot), pace=measure_pace(snapshot))


# ---------------------------------------------------------------- alarms


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
    """Finds failed checks of studies and the problems that plug-ins report, in a thread and from existing files.

    A subject that cannot be read or has not been judged yet is listed, and does not count as passed.
    """

    def __init__(self, snapshots: Snapshots, pages: Sequence[tuple[str, Pages]]) -> None:
        self._snapshots, self._pages = snapshots, pages
        self._alarms: tuple[Alarm, ...] = ()
        self._at = float("-inf")
        self._is_looking = threading.Lock()
        self._has_looked = threading.Event()

    def find(self, patience_s: float = 0.0) -> FoundAlarms:
        """Return the newest alarms, and start a new search if it is due; wait `patience_s` for the first search."""
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
        for name, each in (*self._pages, ("studies", Pages(find_alarms=_find_checks))):
            place = each.navigation.path if each.navigation else f"/{name}"
            try:
                yield from map(_check, each.find_alarms(self._snapshots, known) if each.find_alarms else ())
            except (Exception, SystemExit) as error:  # one damaged record does not hide the others
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
