"""`assay run --search`."""

from __future__ import annotations

from typing import Literal

from assay.values.options import Request, option


class SearchOptions(Request):
    search: Literal["continue", "new"] | None = option(
        "--search",
        choices=("continue", "new"),
        help="A search whose file has changed: go on with the trials that fit, or begin again.",
    )
