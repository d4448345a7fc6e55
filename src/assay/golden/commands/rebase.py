"""`assay golden rebase`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from assay.errors import ExitCode
from assay.golden.commands.options import build_hooks, build_options, golden_options, warn

if TYPE_CHECKING:
    from assay.golden.flow.rebase import Rebased


@click.command()
@golden_options
@click.option("--reason", required=True, metavar="TEXT", help="Why the new behaviour is right; kept in the history.")
@click.option(
    "--from",
    "source",
    type=click.Choice(["gather", "check"]),
    default="gather",
    show_default=True,
    help="A fresh gathering, or the runs of the last check, from the same checkpoints.",
)
@click.option("--replicas", type=click.IntRange(min=1), metavar="N", help="Recordings of each segment in all.")
@click.option("--allow-wider", is_flag=True, help="Accept more noise, looser rules, fewer recordings, or new variants.")
@click.option("--allow-failed", is_flag=True, help="With --from check: also when the last check did not pass.")
@click.option("--fresh", is_flag=True, help="Do not take what an earlier call has staged, or the runs of a check.")
def rebase(reason: str, quiet: bool, as_json: bool, **given: Any) -> int:
    """Accept a new golden recording.

    It takes the place of the old one, which is kept beside it. Exit code 0: accepted. 1: refused, and the old
    recording is untouched.
    """
    from assay.golden.flow.rebase import RebaseOptions, rebase_file

    replicas = given["replicas"]
    golden = build_options(given, replicas=None if replicas is None else replicas - 1)
    options = RebaseOptions(
        golden, reason, given["source"], given["allow_wider"], given["fresh"], given["allow_failed"]
    )
    done = rebase_file(options, build_hooks(quiet or as_json), (lambda _line: None) if quiet or as_json else warn)
    if as_json:
        from assay.show.json_text import render_facts

        sys.stdout.write(render_facts([build_facts(each) for each in done]))
    else:
        sys.stdout.write("\n".join(render(each) for each in done))
    return int(ExitCode.worst(_exit_code(each) for each in done))


def _exit_code(outcome: Rebased) -> ExitCode:
    if outcome.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if outcome.is_accepted else ExitCode.FAILED


def render(outcome: Rebased) -> str:
    return "".join(f"{line}\n" for line in _describe(outcome))


def _describe(outcome: Rebased) -> Iterator[str]:
    from assay.golden.report.rows import render_percent
    from assay.show import formatting
    from assay.show.table import render_table
    from assay.system.terminal import can_encode
    from assay.values.table import Column, Table

    if not outcome.is_accepted:
        for text in outcome.refusals:
            line, *more = text.splitlines() or [""]
            yield f"refused: {formatting.clean(line)}"
            yield from (f"  {formatting.clean(each.strip())}" for each in more)
        word = "interrupted" if outcome.interrupted else "not rebased"
        yield f"{formatting.clean(outcome.test)}: {word}; the old recording is untouched"
        return
    columns = (Column("metric"), Column("effect", align="right"), Column("since the first", align="right"))
    first = outcome.since_first or {}
    rows = [
        [name, render_percent(effect), render_percent(first.get(name))]
        for name, effect in (outcome.effects or {}).items()
    ]
    yield from render_table(Table(columns, rows), plain=not can_encode(sys.stdout, "─")).splitlines()
    yield ""
    yield from (f"accepted although {text}" for text in outcome.wider)
    yield from (f"warning: {text}" for text in outcome.creep)
    yield f"the old recording is kept as {formatting.clean(str(outcome.archived))}"
    yield f"{outcome.test}: rebased"


def build_facts(outcome: Rebased) -> dict[str, Any]:
    return {
        "test": outcome.test,
        "manifest": outcome.manifest,
        "accepted": outcome.is_accepted,
        "refusals": list(outcome.refusals),
        "effects": dict(outcome.effects or {}),
        "since_first": dict(outcome.since_first or {}),
        "wider": list(outcome.wider),
        "creep": list(outcome.creep),
        "archived": outcome.archived,
        "interrupted": outcome.interrupted,
    }
