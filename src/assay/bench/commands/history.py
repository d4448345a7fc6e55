"""`assay bench history`, `triage`, `table` and `import`: what was measured before."""

from __future__ import annotations

from typing import Literal

from assay.bench.commands.options import (
    ResultRequest,
    all_option,
    bench_root_option,
    check_result_options,
    effect_option,
    show,
)
from assay.errors import ExitCode, UsageError
from assay.show.console import Console
from assay.values.options import Request, argument, json_option, option, split_commas

_MOST_NOTES = 10


class HistoryRequest(ResultRequest):
    metric: str = argument()
    method: str | None = argument(required=False)
    label: str | None = option("--label", metavar="TEXT", help="Only executions with this label.")
    min_effect: float | None = effect_option(
        None,
        "Smaller changes are not reported, and PASS means that one so large is not there.  [default: 0.01 and 0.05]",
    )
    recent: int | None = option(
        "--recent",
        type=int,
        minimum=1,
        metavar="N",
        help="Only changes within the last N executions raise an alarm.",
    )
    better: Literal["min", "max"] | None = option(
        "--better", choices=("min", "max"), help="Which direction is better, where the name does not tell."
    )
    everything: bool = all_option()
    root: str | None = bench_root_option()


def history(request: HistoryRequest, console: Console) -> int:
    """Where METRIC changed, and by how much.

    Between which commits, and whether the environment changed as well. METHOD may be the end of a name; without it
    every benchmark that reports METRIC is looked at. Exit code 1: it got worse, stayed so, and nobody has said anything
    about it (`assay bench triage`), it creeps, or its newest execution failed. 3: the set-up changed as well, there are
    too few executions (fewer than 6; on a new set-up fewer than 4), or they are too noisy to show a change of
    --min-effect. 2: a single execution is not a history.
    """
    from assay.bench.flow.history import HistoryOptions, load_histories
    from assay.bench.report.history import build_history_cases, build_history_document

    check_result_options(request)
    options = HistoryOptions(
        request.root, request.label, request.min_effect, request.recent, request.everything, request.better
    )
    found = load_histories(request.metric, request.method, options, console)
    document = build_history_document(f"assay bench history {request.metric}", found)
    show(request, console, document, build_history_cases(found))
    return int(ExitCode.worst({each.verdict.kind.exit_code for each in found}))


# ---------------------------------------------------------------- triage


class TriageRequest(Request):
    metric: str = argument()
    method: str = argument()
    change: str = argument()
    judgement: str = argument(choices=("ack", "invalid", "wontfix", "open"))
    note: str = option("--note", default="", metavar="TEXT", help="Why; kept and shown.")
    everything: bool = all_option()
    root: str | None = bench_root_option()


def triage(request: TriageRequest, console: Console) -> int:
    """Record a judgement about a change of METRIC.

    Later verdicts respect it. CHANGE is the execution where it begins, a commit of its range, or `last`. ack: seen,
    no alarm. wontfix: the new level is meant. invalid: the executions of that level do not count. open: withdraw an
    earlier judgement.
    """
    from assay.bench.flow.triage import Decision, triage_change

    word = Decision(request.metric, request.method, request.change, request.judgement, request.note)
    console.print_lines(triage_change(word, request.root, request.everything))
    return int(ExitCode.OK)


# ---------------------------------------------------------------- table


class TableRequest(Request):
    method: str | None = argument(required=False)
    by: tuple[str, ...] = option(
        "--by",
        default="label",
        metavar="A,B",
        parse=split_commas,
        help="Columns to group by: accelerator_model, framework, cudnn, label, commit, system_name, …",
    )
    metrics: tuple[str, ...] | None = option(
        "-m", "--metrics", metavar="A,B", parse=split_commas, help="Which metrics to show."
    )
    everything: bool = all_option()
    as_csv: bool = option("--csv", default=False, help="Comma-separated values.")
    as_json: bool = json_option("JSON.")
    as_markdown: bool = option("--md", default=False, help="A Markdown table.")
    root: str | None = bench_root_option()


def table(request: TableRequest, console: Console) -> int:
    """Compare environments side by side: medians with their spread.

    ± is half the distance of the quartiles, in percent of the median. METHOD may be the end of a name; without it every
    benchmark has rows of its own.
    """
    from assay.bench.flow.tables import describe_left_out, load_table
    from assay.bench.report.history import render_setups
    from assay.bench.values.comparison import TAKEN_BY_ALL

    if request.as_csv + request.as_json + request.as_markdown > 1:
        raise UsageError("choose one of --csv, --json and --md")
    found = load_table(request.method, request.by, request.metrics, request.root, request.everything, console)
    form = "csv" if request.as_csv else "json" if request.as_json else "md" if request.as_markdown else "text"
    rows = [(row.keys, row.count, row.values) for row in found.rows]
    console.write(render_setups(found.by, found.metrics, rows, form, console.width))
    if found.left_out and form == "text":
        names = " and ".join(reason for reason in TAKEN_BY_ALL if reason in found.left_out)
        hint = f"; --all takes {names} ones" if names else ""
        console.error(f"(left out: {describe_left_out(found.left_out)}{hint})")
    return int(ExitCode.OK)


# ---------------------------------------------------------------- import


class ImportRequest(Request):
    files: tuple[str, ...] = argument("FILE...", multiple=True)
    label: str | None = option("--label", metavar="TEXT", help="Kept with each execution.")
    root: str | None = bench_root_option()


def import_files(request: ImportRequest, console: Console) -> int:
    """Import results of other tools into the history.

    PerfZero summaries, asv results, pytest-benchmark and google-benchmark JSON, MLPerf :::MLLOG lines. What a tool
    recorded as failed is a failed execution. A file that cannot be read adds nothing and gives exit code 2 in the end,
    the others are imported; one that was imported before adds nothing new.
    """
    from assay.bench.flow.archive import import_files as take

    found = take(request.files, request.root, request.label, console)
    new = f"{found.new} execution{'' if found.new == 1 else 's'} imported"
    known = f"{found.known} {'was' if found.known == 1 else 'were'} known"
    console.print(f"{new}, {known}: {', '.join(found.methods)}")
    if found.failed:
        console.print(f"failed when they were run: {', '.join(found.failed)}")
    for note in found.notes[:_MOST_NOTES]:
        console.error(note)
    if len(found.notes) > _MOST_NOTES:
        console.error(f"… and {len(found.notes) - _MOST_NOTES} more of this kind")
    for problem in found.problems:
        console.warning(problem)
    return int(ExitCode.USAGE if found.problems else ExitCode.OK)
