"""All studies: a card for each, with its states, its best run and how old it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from assay.record.index.base import StudyRow
from assay.study.ranking import best_values, choose_sort
from assay.study.run_reader import load_objectives
from assay.values.state import State
from assay.web.routes import get
from assay.web.site import get_site
from assay.web.snapshots import Snapshot


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


@dataclass(frozen=True, slots=True)
class Best:
    run: str
    metric: str
    value: float


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
    return site.render(request, "parts/best.html", snapshot=snapshot, best=find_best(snapshot))


def find_best(snapshot: Snapshot) -> Best | None:
    """Of the finished runs, by what the study's search or its first metric is about."""
    table = snapshot.table
    done = [i for i, row in enumerate(table.rows) if row.state in (State.DONE, State.PRUNED)]
    if not done or not table.metrics:
        return None
    keys = choose_sort(load_objectives([snapshot.location], table), table, [row.params for row in table.rows])
    if not keys or not keys[0].is_metric:
        return None
    column = table.metrics[keys[0].name]
    values = best_values(column, keys[0].direction)
    found = [i for i in done if column.count[i] and values[i] == values[i]]
    if not found:
        return None
    choose = max if keys[0].direction == "max" else min
    i = choose(found, key=values.__getitem__)
    return Best(table.rows[i].key.partition("/")[2], keys[0].name, values[i])


ROUTES = [
    get("/", lambda _request: RedirectResponse("/studies", 303)),
    get("/studies", show),
    get("/studies/{study}/best", show_best),
]
