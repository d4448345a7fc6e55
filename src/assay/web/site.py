"""The roots and tokens that the server works with, and the rendering of templates as responses."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import isfunction
from typing import Any

from jinja2 import Environment, TemplateNotFound, TemplateSyntaxError
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from assay.show import formatting
from assay.show.html import build_environment
from assay.values.plain import render_date
from assay.web.interface import Navigation, Pages, load_pages
from assay.web.routes import encode_text, quote
from assay.web.rows import render_rows
from assay.web.security import AccessToken
from assay.web.snapshots import Snapshots, StudySnapshot

FOLDER = os.path.dirname(__file__)


@dataclass(frozen=True)
class Site:
    """The roots that the server serves, and its tokens; if `is_open`, reading needs no token."""

    roots: tuple[str, ...]
    tokens: Sequence[AccessToken] = ()
    is_open: bool = True
    hosts: Sequence[str] = ("localhost", "127.0.0.1", "::1")
    snapshots: Snapshots = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "snapshots", Snapshots(self.roots))

    @cached_property
    def pages(self) -> Sequence[tuple[str, Pages]]:
        """The name and the pages of each plug-in."""
        return load_pages()

    @property
    def navigation(self) -> Sequence[Navigation]:
        theirs = [each.navigation for _, each in self.pages if each.navigation]
        return [Navigation("Studies", "/studies"), *theirs, Navigation("Profiles", "/profiles")]

    @cached_property
    def templates(self) -> Environment:
        theirs = [each.templates for _, each in self.pages if each.templates]
        environment = build_environment(os.path.join(FOLDER, "templates"), *theirs)
        environment.globals.update(
            address=build_address,
            number=formatting.render_number,
            count=formatting.render_count,
            duration=formatting.render_duration,
            age=lambda at: formatting.render_age(max(0.0, time.time() - at)),
            size=formatting.render_size,
            run_rows=render_rows,
            quote_shell=shlex.quote,
            date=lambda at: render_date(at, "%Y-%m-%d %H:%M"),
        )
        environment.filters["urlencode"] = lambda text: quote(str(text), safe="/")
        return environment

    def render(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        """Render a page; for a request of htmx, render the template of the same name in `parts/` if there is one."""
        is_part = request.headers.get("hx-request") == "true" and status == 200
        names = [f"parts/{template}", template] if is_part else [template]
        text = self.templates.select_template(names).render(request=request, site=self, **values)
        return HTMLResponse(encode_text(text), status, headers={"vary": "HX-Request", "cache-control": "no-store"})


def find_bad_templates(pages: Pages) -> list[str]:
    """Return the problems of the templates that are named in the modules of a plug-in's routes."""
    environment = build_environment(os.path.join(FOLDER, "templates"), *filter(None, [pages.templates]))
    modules = {getattr(entry.handler, "__module__", "") for entry in pages.routes}
    values = [value for name in modules.intersection(sys.modules) for value in vars(sys.modules[name]).values()]
    codes = {value.__code__ for value in values if isfunction(value) and value.__module__ in modules}
    texts = {text for code in codes if "render" in code.co_names for text in code.co_consts if isinstance(text, str)}
    found = []
    for name in sorted(text for text in texts if re.fullmatch(r"\w[\w./-]*\.html", text)):
        try:
            environment.get_template(name)
        except TemplateNotFound:
            found.append(f"the template {name} is missing")
        except TemplateSyntaxError as error:
            found.append(f"{name}, line {error.lineno}: {error.message}")
    return found


def get_site(request: Request) -> Site:
    site: Site = request.app.state.site
    return site


def load_study(request: Request) -> StudySnapshot:
    """Return the study that the request's path names."""
    return get_site(request).snapshots.load(request.path_params["study"])


def read_query(request: Request) -> dict[str, list[str]]:
    return {name: request.query_params.getlist(name) for name in request.query_params}


def build_address(*parts: str, **query: object) -> str:
    """Return a URL such as `/studies/NAME/runs/RUN?metric=loss`, quoted; values None, "" and False are left out."""
    path = "".join(f"/{quote(part)}" for part in parts) or "/"
    given = {name: value for name, value in query.items() if value not in (None, "", False, ())}
    return f"{path}?{build_query(given)}" if given else path


def build_query(values: Mapping[str, object]) -> str:
    lists = ((name, value if isinstance(value, list | tuple) else [value]) for name, value in values.items())
    pairs = ((name, "1" if each is True else str(each)) for name, several in lists for each in several)
    return "&".join(f"{quote(name)}={quote(text)}" for name, text in pairs)
