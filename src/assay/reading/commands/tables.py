"""The command `assay sum`, and options of tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from assay.errors import UsageError
from assay.follow.locations import find_patterns
from assay.follow.opening import open_index_of
from assay.plugins import require_function
from assay.reading import summary
from assay.reading.summary import StudySummary, SummaryOptions, describe_front
from assay.show import table as tables
from assay.show.console import Console
from assay.show.formatting import render_count, unguard
from assay.values.options import Request, argument, json_option, option, root_option, split_commas, where_option
from assay.values.state import State
from assay.values.table import Table

if TYPE_CHECKING:
    from assay.values.where import Where


def states_option(text: str) -> Any:
    choices = tuple(map(str, State))
    parse = lambda words, _flag: frozenset(map(State, words)) or None  # noqa: E731
    return option("--state", multiple=True, choices=choices, parse=parse, help=text)


def group_option(what: str) -> Any:
    text = f"One {what} for runs that differ only in PARAM: mean ± sd."
    return option("-g", "--group-by", multiple=True, metavar="PARAM", parse=split_commas, help=text)


def limit_option() -> Any:
    return option("-n", "--limit", type=int, minimum=1, metavar="N", help="Only the first N rows.")


def fields_option() -> Any:
    text = "Print JSON with only these fields; metrics.loss is a nested field."
    return option("--fields", multiple=True, metavar="A,B", parse=split_commas, help=text)


class TableRequest(Request):
    """The options that choose the runs of a table, their order, and the columns."""

    studies: tuple[str, ...] = argument(multiple=True, required=False)
    sort: tuple[str, ...] = option(
        "-s",
        "--sort",
        multiple=True,
        metavar="NAME[:min|max]",
        help="Sort by a metric's best value, a parameter or time; may be given again, the first counts most.",
    )
    pareto: tuple[str, ...] = option(
        "--pareto",
        multiple=True,
        metavar="A,B",
        parse=split_commas,
        help="Runs that no other run beats in all of these: metrics, parameters, time; each may have :min or :max.",
    )
    group_by: tuple[str, ...] = group_option("row")
    metrics: tuple[str, ...] = option(
        "-m", "--metrics", multiple=True, metavar="A,B|all", parse=split_commas, help="Which metrics to show."
    )
    ignore: tuple[str, ...] = option(
        "--ignore", multiple=True, metavar="A,B", parse=split_commas, help="Columns to leave out."
    )
    best: bool = option("--best", default=False, help="Show the best value of every metric next to its last.")
    states: frozenset[State] | None = states_option("Only these runs.")
    where: Where | None = where_option()
    limit: int | None = limit_option()
    root: str | None = root_option()

    def build_options(self, patterns: tuple[tuple[str, str], ...]) -> SummaryOptions:
        named = ("sort", "group_by", "ignore", "best", "states", "limit", "where")
        options = SummaryOptions(**{name: getattr(self, name) for name in named}, patterns=patterns)
        return options._replace(metrics=self.metrics or None, pareto=tuple(name.strip() for name in self.pareto))


class SumRequest(TableRequest):
    as_csv: bool = option("--csv", default=False, help="Comma-separated values.")
    csv_raw: bool = option("--csv-raw", default=False, help="CSV with text that looks like a formula as it is.")
    as_json: bool = json_option("JSON.")
    fields: tuple[str, ...] = fields_option()
    as_markdown: bool = option("--md", default=False, help="A Markdown table.")
    tensorboard: str | None = option(
        "--tensorboard", metavar="DIR", help="Write the study for TensorBoard's HParams tab instead."
    )


def summarise(request: SumRequest, console: Console) -> int:
    """Print the summary table of STUDIES (names or folders): parameters that differ, metrics, time.

    STUDY/PATTERN means some runs of a study, such as 'norm/lr=0.1*'. Folders that runx, logx or mlrunner wrote
    are read as well.
    """
    forms = request.as_csv or request.csv_raw, request.as_json or bool(request.fields), request.as_markdown
    if sum(forms) > 1:
        raise UsageError("choose one of --csv, --json and --md")
    locations, patterns = find_patterns(request.studies, request.root)
    options = request.build_options(patterns)
    with open_index_of(locations) as index:
        if request.tensorboard is not None:
            import shlex

            write_hparams_events = require_function("tensorboard.write", "--tensorboard")
            count = write_hparams_events(index, locations, request.tensorboard, options)
            console.print(f"{count} runs written; show them: tensorboard --logdir {shlex.quote(request.tensorboard)}")
            return 0
        found = summary.summarise(index, locations, options, console)
    if not any(forms):
        found = found if console.width is None else summary.fit_summary(found, console.width)
        console.write_table(found.table)
    elif request.csv_raw:
        unguard(sys.stdout).write(_render(found.table, request))
    else:
        console.write(_render(found.table, request))
    if found.unranked:
        console.error(summary.describe_unranked(found.unranked, locations))
    _print_rest(found._replace(hidden=0) if any(forms) else found, request, console)
    return 0


def _print_rest(found: StudySummary, request: SumRequest, console: Console) -> None:
    """Print remarks below the table: what was left out, what does not fit, and the Pareto front."""
    if found.hidden:
        console.error(f"({render_count(found.hidden, 'more metric')}: --metrics all)")
    if found.no_room:
        console.error(f"(no room here for {', '.join(found.no_room)}: widen the terminal, or --csv)")
    for remark in found.remarks:
        console.error(remark)
    if found.front is not None:
        what = "group" if request.group_by else "run"
        console.error(f"({describe_front(found.front, what, found.not_done)})")
    if found.left_out:
        console.error(f"({render_count(found.left_out, 'more row')}: leave out -n)")


def _render(table: Table, request: SumRequest) -> str:
    if request.as_json or request.fields:
        return tables.render_json(table, request.fields) + "\n"
    if request.as_markdown:
        return tables.render_markdown(table)
    return tables.render_csv(table, raw=request.csv_raw)
