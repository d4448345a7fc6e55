"""Goldens: tests with their last verdicts; one check with its band and its windows; drift over checks; recordings."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from assay.errors import NotFoundError
from assay.golden.api import build_golden_page, build_stored_blocks, find_stored, list_goldens
from assay.web.routes import get
from assay.web.site import get_site


def show_all(request: Request) -> Response:
    site = get_site(request)
    cards = list_goldens(site.snapshots.find_locations())
    return site.render(request, "goldens.html", cards=cards, stored=find_stored(site.roots))


def show(request: Request) -> Response:
    """A test by its study; `?check=` chooses one of its checks or gatherings."""
    site = get_site(request)
    locations, slug = site.snapshots.find_locations(), request.path_params["study"]
    known = {card.slug: card for card in list_goldens({slug: locations[slug]} if slug in locations else {})}
    if slug not in known:
        raise NotFoundError("golden", slug, [card.slug for card in list_goldens(locations)])
    page = build_golden_page(locations[slug], request.query_params.get("check") or None)
    return site.render(request, "golden.html", slug=slug, location=locations[slug], page=page)


def show_stored(request: Request) -> Response:
    """Only what the list finds: a path never leads elsewhere."""
    site = get_site(request)
    found = {each.path: each for each in find_stored(site.roots)}
    path = request.path_params["path"]
    if path not in found:
        raise NotFoundError("golden recording", path, list(found))
    return site.render(request, "recording.html", stored=found[path], blocks=build_stored_blocks(found[path]))


ROUTES = [
    get("/goldens", show_all),
    get("/goldens/{study}", show),
    get("/recordings/{path:path}", show_stored),
]
