"""Goldens: tests with their last verdicts; one check with its band and its windows; drift over checks; recordings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from assay.errors import FormatError, NotFoundError
from assay.follow.api import StudyLocation
from assay.golden.page import (
    build_check_comparison,
    build_golden_page,
    build_stored_blocks,
    find_stored,
    list_goldens,
    list_unkept,
)
from assay.show.formatting import render_count
from assay.values.document import Block
from assay.values.verdict import VerdictKind
from assay.web.api import Alarm, Navigation, Pages, Snapshots, build_address, get, get_site


def show_all(request: Request) -> Response:
    site = get_site(request)
    locations = site.snapshots.find_locations()
    return site.render(
        request,
        "goldens.html",
        cards=list_goldens(locations),
        unkept=list_unkept(locations),
        stored=find_stored(site.roots),
    )


def show(request: Request) -> Response:
    """Show a test by its study; `?check=` chooses a check or gathering, `?with=` another one to compare it with."""
    site = get_site(request)
    locations, slug = site.snapshots.find_locations(), request.path_params["study"]
    known = {card.slug: card for card in list_goldens({slug: locations[slug]} if slug in locations else {})}
    if slug not in known:
        raise NotFoundError("golden", slug, [card.slug for card in list_goldens(locations)])
    query = request.query_params
    page = build_golden_page(locations[slug], query.get("check") or None)
    other, both, problem = query.get("with", ""), list[Block](), ""
    if other and page.head:
        try:
            both = list(build_check_comparison(locations[slug], page.head.id, other))
        except FormatError as error:
            problem = error.message
    return site.render(
        request, "golden.html", slug=slug, location=locations[slug], page=page, other=other, both=both, problem=problem
    )


def show_stored(request: Request) -> Response:
    """Show a stored recording only if the list has it, so that no path leads to another file."""
    site = get_site(request)
    found = {each.path: each for each in find_stored(site.roots)}
    if (path := request.path_params["path"]) not in found:
        raise NotFoundError("golden recording", path, list(found))
    return site.render(request, "recording.html", stored=found[path], blocks=build_stored_blocks(found[path]))


def find_alarms(_snapshots: Snapshots, known: Mapping[str, StudyLocation]) -> Iterator[Alarm]:
    """Yield an alarm for tests whose last check did not pass; a test that was only recorded was never judged."""
    found: dict[str, list[str]] = {}
    for card in list_goldens(known):
        if card.checks and (card.checks[0].is_damaged or card.checks[0].kind is not VerdictKind.PASS):
            found.setdefault(card.checks[0].word, []).append(card.slug)
    for word, slugs in found.items():
        address = build_address("goldens", *slugs) if len(slugs) == 1 else build_address("goldens")
        kind = "ERROR" if word == "damaged" else word
        yield Alarm("/goldens", len(slugs), f"{render_count(len(slugs), 'golden check')} {word}", kind, address)


def build_card(slug: str, location: StudyLocation) -> tuple[str, Mapping[str, Any]] | None:
    goldens = list_goldens({slug: location})
    return ("parts/golden_card.html", {"golden": goldens[0]}) if goldens else None


PAGES = Pages(
    [get("/goldens", show_all), get("/goldens/{study}", show), get("/recordings/{path:path}", show_stored)],
    Navigation("Goldens", "/goldens", 1),
    templates=os.path.join(os.path.dirname(__file__), "templates"),
    find_alarms=find_alarms,
    card=build_card,
)
