"""The style sheet, joined from several files, and the files from npm, which `hatch_build.py` puts into `vendor`."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from assay.show.html import load_style
from assay.values.run import build_command
from assay.web.routes import Routes
from assay.web.site import FOLDER

ROUTES = Routes()
VENDOR = os.path.join(FOLDER, "vendor")
NEEDED = ("htmx.min.js", "uPlot.esm.js", "uPlot.min.css", os.path.join("speedscope", "index.html"))


def find_missing() -> list[str]:
    return [name for name in NEEDED if not os.path.exists(os.path.join(VENDOR, name))]


def build_remedy() -> str:
    """Return the command that gets the missing files: `hatch_build.py` in a source tree, else a new installation."""
    script = os.path.join(os.path.dirname(FOLDER), os.pardir, os.pardir, "hatch_build.py")
    if os.path.exists(script):
        return build_command([sys.executable, os.path.normpath(script)])
    source = ""  # the folder that pip installed Assay from (PEP 610)
    with suppress(PackageNotFoundError, ValueError):
        address = urlsplit(json.loads(distribution("assay").read_text("direct_url.json") or "{}").get("url", ""))
        source = unquote(address.path) if address.scheme == "file" else ""
    if source and os.path.isfile(os.path.join(source, "hatch_build.py")):
        return build_command([sys.executable, "-m", "pip", "install", "--force-reinstall", "--no-deps", source])
    return "in a clone of Assay: pip install --force-reinstall '.[web]'"


@cache
def build_style() -> str:
    """Return the styles of reports, with dark colours that the reader can switch, then the styles of the pages."""
    charts, own = _read(os.path.join(VENDOR, "uPlot.min.css")), _read(os.path.join(FOLDER, "static", "assay.css"))
    colors, _, blocks = str(load_style()).partition("* { box-sizing")
    light, _, rest = colors.partition("@media (prefers-color-scheme: dark) { :root {")
    dark = rest.rpartition("} }")[0]
    parts = (
        light,
        "@media (prefers-color-scheme: dark) { :root:not([data-theme=light]) {" + dark + "} }",
        ":root[data-theme=dark] { color-scheme: dark; " + dark + "}",
        ":root[data-theme=light] { color-scheme: light; }",
        "* { box-sizing" + blocks,
        charts,
        own,
    )
    return "\n".join(parts)


def _read(path: str) -> str:
    """Return the content of a file, or "" in a source tree without the files from npm."""
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read()


@ROUTES.page("/assay.css", "open")
def style(_request: Request) -> Response:
    return Response(build_style(), media_type="text/css", headers={"cache-control": "no-cache"})
