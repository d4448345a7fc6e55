"""What a plug-in adds to the page: the hook `pages`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.web.routes import Entry


@dataclass(frozen=True)
class Pages:
    """`templates`, `static`: folders; files of `static` are served as /static/PLUG-IN/FILE."""

    routes: Sequence[Entry] = ()
    templates: str = ""
    static: str = ""
