"""The page of all studies: a card for each, with its states, its best run and its age."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from assay.errors import NotFoundError, UsageError
from assay.record.index.base import StudyRow
from assay.values.state import State
from assay.web.interface import ask_pages
from assay.web.pages.study_page import find_best, measure_pace
from assay.web.routes import Routes
from assay.web.site import get_site

ROUTES = Routes()
_PATIENCE_S = 1.0
_MANY = 12  # studies; with more of them the page has a search field


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
    cards = [
        Card(slug, location.root, row)
        for slug, (location, row) in known.items()
        if wanted.lower() in location.name.lower()
    ]
    cards.sort(key=_ORDERS[order])
    is_many = len(known) > _MANY or bool(wanted)
    return site.render(
        request,
        "studies.html",
        cards=cards,
        q=wanted,
        total=len(known),
        sort=order,
        orders=_ORDERS,
        is_many=is_many,
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
    site = get_site(request)
    slug = request.path_params["study"]
    known = site.snapshots.load_studies()
    if slug not in known:
        raise NotFoundError("study", slug, list(known))
    location, row = known[slug]
    return site.render(request, "parts/card.html", card=Card(slug, location.root, row))


@ROUTES.page("/studies/{study}/best")
def show_best(request: Request) -> Response:
    """Send the part of a card that needs the study's table, which the page requests when the card becomes visible."""
    site = get_site(request)
    slug = request.path_params["study"]
    location = site.snapshots.locate(slug)
    cards = ask_pages(
        site.pages, "card", lambda card: card and site.render(request, card[0], **card[1]), slug, location
    )
    card: Response | None = next(filter(None, cards), None)
    if card:  # a product's own card, without a best run
        return card
    snapshot = site.snapshots.load(slug)
    return site.render(request, "parts/best.html", slug=slug, best=find_best(snapshot), pace=measure_pace(snapshot))
