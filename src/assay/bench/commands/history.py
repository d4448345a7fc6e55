"""`assay bench history`, `triage`, `table` and `import`: what was measured before."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import click

from assay.bench.commands.options import all_option, effect_option, prepare, report_options, root_option, show
from assay.errors import ExitCode, UsageError
from assay.show.console import tell
from assay.show.console_warnings import say, warn
from assay.show.formatting import clean, clean_lines

_MOST_NOTES = 10


@click.command()
@click.argument("metric")
@click.argument("method", required=False)
@click.option("--label", metavar="TEXT", help="Only executions with this label.")
@effect_option(
    None, "Smaller changes are not reported, and PASS means that one so large is not there.  [default: 0.01 and 0.05]"
)
@click.option(
    "--recent",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only changes within the last N executions raise an alarm.",
)
@click.option("--better", type=click.Choice(["min", "max"]), help="Which way is better, where the name does not tell.")
@all_option
@root_option
@report_options
def history(metric: str, method: str | None, **given: Any) -> int:
    """Where METRIC changed, and by how much.

    Between which commits, and whether the environment changed as well. METHOD may be the end of a name; without it
    every benchmark that reports METRIC is looked at. Exit code 1: it got worse, stayed so, and nobody has said anything
    about it (`assay bench triage`), it creeps, or its newest execution failed. 3: the set-up changed as well, there are
    too few executions (fewer than 6; on a new set-up fewer than 4), or they are too noisy to show a change of
    --min-effect. 2: a single execution is no history at all.
    """
    from assay.bench.flow.history import HistoryOptions, load_histories
    from assay.bench.report.history import build_history_cases, render_history

    prepare(given)
    options = HistoryOptions(
        given["root"], given["label"], given["min_effect"], given["recent"], given["everything"], given["better"]
    )
    found = load_histories(metric, method, options, warn)
    show(
        given,
        f"assay bench history {metric}",
        build_history_cases(found),
        lambda color, width: "".join(render_history(each, color=color, width=width) for each in found),
        lambda: [asdict(each) for each in found],
    )
    return int(ExitCode.worst({each.verdict.kind.exit_code for each in found}))


@click.command()
@click.argument("metric")
@click.argument("method")
@click.argument("change")
@click.argument("judgement", type=click.Choice(["ack", "invalid", "wontfix", "open"]))
@click.option("--note", default="", metavar="TEXT", help="Why; kept and shown.")
@all_option
@root_option
def triage(metric: str, method: str, change: str, judgement: str, note: str, everything: bool, root: str | None) -> int:
    """Say something about a change of METRIC.

    Later verdicts respect it. CHANGE is the execution where it begins, a commit of its range, or `last`. ack: seen,
    no alarm. wontfix: the new level is meant. invalid: the executions of that level do not count. open: take an
    earlier word back.
    """
    from assay.bench.flow.triage import Word, say_about

    print(clean_lines(say_about(Word(metric, method, change, judgement, note), root, everything)))
    return int(ExitCode.OK)


@click.command()
@click.argument("method", required=False)
@click.option(
    "--by",
    default="label",
    show_default=True,
    metavar="A,B",
    help="Columns to group by: accelerator_model, framework, cudnn, label, commit, system_name, …",
)
@click.option("-m", "--metrics", metavar="A,B", help="Which metrics to show.")
@all_option
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values.")
@click.option("--json", "as_json", is_flag=True, help="JSON.")
@click.option("--md", "as_markdown", is_flag=True, help="A Markdown table.")
@root_option
def table(
    method: str | None,
    by: str,
    metrics: str | None,
    everything: bool,
    as_csv: bool,
    as_json: bool,
    as_markdown: bool,
    root: str | None,
) -> int:
    """Set-ups side by side: medians with their spread.

    ± is half the distance of the quartiles, in percent of the median. METHOD may be the end of a name; without it every
    benchmark has rows of its own.
    """
    from assay.bench.flow.tables import describe_left_out, load_table
    from assay.bench.report.history import render_setups
    from assay.bench.values.comparison import TAKEN_BY_ALL
    from assay.system.terminal import terminal_width

    if sum((as_csv, as_json, as_markdown)) > 1:
        raise UsageError("choose one of --csv, --json and --md")
    found = load_table(method, by.split(","), metrics.split(",") if metrics else None, root, everything, warn)
    form = "csv" if as_csv else "json" if as_json else "md" if as_markdown else "text"
    rows = [(row.keys, row.count, row.values) for row in found.rows]
    tell(render_setups(found.by, found.metrics, rows, form, terminal_width(sys.stdout)))
    if found.left_out and form == "text":
        names = " and ".join(reason for reason in TAKEN_BY_ALL if reason in found.left_out)
        hint = f"; --all takes {names} ones" if names else ""
        say(f"(left out: {describe_left_out(found.left_out)}{hint})")
    return int(ExitCode.OK)


@click.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--label", metavar="TEXT", help="Kept with each execution.")
@root_option
def import_files(files: tuple[str, ...], label: str | None, root: str | None) -> int:
    """Take figures of other tools into the history.

    PerfZero summaries, asv results, pytest-benchmark and google-benchmark JSON, MLPerf :::MLLOG lines. What a tool
    recorded as failed is a failed execution. A file that cannot be read adds nothing and gives exit code 2 in the end,
    the others are imported; one that was imported before adds nothing new.
    """
    from assay.bench.flow.imports import import_files as take

    found = take(files, root, label, warn)
    new = f"{found.new} execution{'' if found.new == 1 else 's'} imported"
    known = f"{found.known} {'was' if found.known == 1 else 'were'} known"
    print(clean(f"{new}, {known}: {', '.join(found.methods)}"))
    if found.failed:
        print(clean(f"failed when they were run: {', '.join(found.failed)}"))
    for note in found.notes[:_MOST_NOTES]:
        say(note)
    if len(found.notes) > _MOST_NOTES:
        say(f"… and {len(found.notes) - _MOST_NOTES} more of this kind")
    for problem in found.problems:
        warn(problem)
    return int(ExitCode.USAGE if found.problems else ExitCode.OK)
