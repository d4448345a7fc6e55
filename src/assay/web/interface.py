"""The types of the hook `pages`, with which a plug-in adds pages to the server."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from assay.errors import AssayError
from assay.follow.api import StudyLocation
from assay.plugins import describe_error, load_all
from assay.web.routes import RouteEntry, build_route
from assay.web.snapshots import Snapshots


class Navigation(NamedTuple):
    """A link at the top of each page. Links are ordered by `position`, the lowest first."""

    text: str
    path: str
    position: int = 100


class Alarm(NamedTuple):
    """A problem to show. `place`: the path of its navigation link; `is_note`: the subject was not judged."""

    place: str
    number: int
    text: str
    kind: str
    address: str
    is_note: bool = False


@dataclass(frozen=True)
class Pages:
    """The routes of a plug-in, with their operations of the JSON interface, and its content on other pages.

    `templates`, `static`: folders; files of `static` are served as /static/PLUG-IN/FILE. `find_alarms` gets studies by
    their names in addresses and returns their problems. `card` returns a template and its values, which the list of
    studies shows instead of the best run, or None for a study of another plug-in. `find_related` gets a run's study,
    its name and the names of its files, and returns the text and address of each page about the run.
    """

    routes: Sequence[RouteEntry] = ()
    navigation: Navigation | None = None
    templates: str = ""
    static: str = ""
    find_alarms: Callable[[Snapshots, Mapping[str, StudyLocation]], Iterable[Alarm]] | None = None
    card: Callable[[str, StudyLocation], tuple[str, Mapping[str, Any]] | None] | None = None
    find_related: Callable[[str, str, set[str]], Sequence[tuple[str, str]]] | None = None


def load_pages() -> list[tuple[str, Pages]]:
    """Return the pages of each plug-in with its name. Unusable pages are left out; `assay doctor` names them."""
    found = [(plugin.name, pages) for plugin, pages in load_all("pages") if not find_mistake(pages)]
    return sorted(found, key=lambda each: (each[1].navigation or Navigation("", "")).position)


def find_mistake(pages: object) -> str:
    if type(pages) is not Pages:  # a subclass may raise when an attribute is read
        return f"{type(pages).__name__} is not an assay.web.api.Pages"
    kinds: dict[str, Any] = dict.fromkeys(("find_alarms", "card", "find_related"), Callable | None)
    kinds |= {"navigation": Navigation | None, "templates": str, "static": str}
    name = ""
    try:
        for name, kind in kinds.items():
            if not isinstance(value := getattr(pages, name), kind):
                return f"{name} must not be of the type {type(value).__name__}"
        if pages.navigation and not all(map(isinstance, pages.navigation, (str, str, int))):
            return f"{pages.navigation} must have two texts and a number"
        for folder in (pages.templates, pages.static):
            if folder and not os.path.isdir(folder):
                return f"there is no folder {folder}"
        name = "routes"
        list(map(build_route, pages.routes))
    except (Exception, SystemExit) as error:  # noqa: BLE001 any error of starlette, or of a foreign value
        return f"{name}: {describe_error(error)}"
    return ""


def ask_pages(
    pages: Sequence[tuple[str, Pages]], part: str, read: Callable[[Any], Any], *arguments: object
) -> Iterator[Any]:
    """Call the function `part` of each plug-in that has it, and yield what `read` returns for its result. An exception
    in one plug-in or in `read`, other than AssayError, is logged, and the next plug-in is called."""
    for name, each in pages:
        if function := getattr(each, part):
            try:
                yield read(function(*arguments))
            except AssayError:
                raise
            except (Exception, SystemExit):
                logging.getLogger("assay.web").exception("the plug-in %s: %s", name, part)
