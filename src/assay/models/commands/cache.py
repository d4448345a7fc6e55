"""`assay model cache`: what is kept of earlier checks."""

from __future__ import annotations

from assay.errors import ExitCode
from assay.show.console import Console
from assay.values.options import Group, Request, json_option

GROUP = Group(
    """Show or clear compiled models and results, kept by content: a changed model, tool or flag never gets an old one.

    ASSAY_CACHE is the folder, ASSAY_CACHE_LIMIT how large it may grow (10 GiB by default).
    """,
    {
        "ls": ("assay.models.commands.cache:ls", "List what is kept, the least recently used first."),
        "clear": ("assay.models.commands.cache:clear", "Remove everything that no running check uses."),
    },
)


class LsRequest(Request):
    as_json: bool = json_option("JSON.")


def ls(request: LsRequest, console: Console) -> int:
    """List what is kept, the least recently used first."""
    from assay.models.flow.cache import build_document, load_cache

    console.write_document(build_document(*load_cache()), as_json=request.as_json)
    return int(ExitCode.OK)


class ClearRequest(Request):
    pass


def clear(request: ClearRequest, console: Console) -> int:  # noqa: ARG001 it has no options
    """Remove everything that no running check uses."""
    from assay.models.flow.cache import clear_cache
    from assay.show.formatting import render_size

    cleared = clear_cache()
    kept = f"; {cleared.kept} are in use and stay" if cleared.kept else ""
    console.print(f"{cleared.removed} artifacts removed, {render_size(cleared.freed_bytes)} freed{kept}")
    return int(ExitCode.OK)
