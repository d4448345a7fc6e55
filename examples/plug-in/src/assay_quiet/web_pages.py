"""The page /longest/STUDY of `assay serve`."""

import os

from starlette.requests import Request
from starlette.responses import Response

from assay.web.api import Pages, get, get_site
from assay_quiet.durations import list_longest


def show(request: Request) -> Response:
    site, study = get_site(request), request.path_params["study"]
    runs = list_longest(site.snapshots.load(study).location, 20)
    return site.render(request, "longest.html", study=study, runs=runs)


PAGES = Pages(
    routes=[get("/longest/{study}", show)],
    templates=os.path.join(os.path.dirname(__file__), "templates"),
)
