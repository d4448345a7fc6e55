"""`assay model cache`: what is kept of earlier checks."""

from __future__ import annotations

import sys

import click

from assay.errors import ExitCode


@click.group()
def command() -> None:
    """Compiled models and results, by content: a changed model, tool or flag is never served from here.

    Where it lies says ASSAY_CACHE, how large it may grow ASSAY_CACHE_LIMIT (10 GiB unless said otherwise).
    """


@command.command()
@click.option("--json", "as_json", is_flag=True, help="JSON.")
def ls(as_json: bool) -> int:
    """List what is kept, the least recently used first."""
    from assay.models.flow.cache import load_cache
    from assay.models.report.cache import build_cache_facts, render_cache
    from assay.show.json_text import render_facts
    from assay.system.terminal import terminal_width

    folder, entries = load_cache()
    if as_json:
        sys.stdout.write(render_facts(build_cache_facts(folder, entries)))
    else:
        sys.stdout.write(render_cache(folder, entries, terminal_width(sys.stdout)))
    return int(ExitCode.OK)


@command.command()
def clear() -> int:
    """Remove everything that no running check uses."""
    from assay.models.flow.cache import clear_cache
    from assay.show.formatting import render_size

    cleared = clear_cache()
    kept = f"; {cleared.kept} are in use and stay" if cleared.kept else ""
    print(f"{cleared.removed} artifacts removed, {render_size(cleared.freed_bytes)} freed{kept}")
    return int(ExitCode.OK)
