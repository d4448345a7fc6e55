"""All studies: a card for each, with its states, its best run and how old it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from assay.record.index.base import StudyRow
from assay.study.api import find_best
from assay.values.state import State
from assay.web.routes import get
from assay.web.site import get_site


@dataclass(frozen=True, slots=True)
class Card:
    """`shares`: state, count and how much of the bar it fills, in percent."""

    slug: str
    root: str
    row: StudyRow

    @property
    def shares(self) -> Sequence[tuple[State, int, float]]:
        return build_shares(self.row.counts)

    @property
    def is_running(self) -> bool:
        return any(count and not state.is_over for state, count in self.row.counts.items())


def build_shares(counts: Mapping[State, int]) -> Sequence[tuple[State, int, float]]:
    total = sum(counts.values()) or 1
    return [(state, counts[state], 100 * counts[state] / total) for state in State if counts.get(state)]


def show(request: Request) -> Response:
    site = get_site(request)
    known = site.snapshots.load_studies()
    wanted = request.query_params.get("q", "").strip().lower()
    cards = [
        Card(slug, location.root, row) for slug, (location, row) in known.items() if wanted in location.name.lower()
    ]
    cards.sort(key=lambda card: -(card.row.last_activity or 0.0))
    return site.render(request, "studies.html", cards=cards, q=wanted, total=len(known))


def show_best(request: Request) -> Response:
    """A part of a card, asked for when the card is seen: the table of a large study is read for it."""
    site = get_site(request)
    snapshot = site.snapshots.load(request.path_params["study"])
    best = snapshot.remember("best", lambda: find_best(snapshot.location, snapshot.table))
    return site.render(request, "parts/best.html", snapshot=snapshot, best=best)


ROUTES = [
    get("/", lambda _request: RedirectResponse("/studies", 303)),
    get("/studies", show),
    get("/studies/{study}/best", show_best),
]
