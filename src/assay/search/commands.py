"""The command `assay importance`, and the option `assay run --search`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from assay.errors import ExitCode
from assay.show.console import Console
from assay.show.report_files import ReportFiles, check_targets, write_document
from assay.values.options import Request, argument, json_option, option, root_option, where_option

if TYPE_CHECKING:
    from assay.values.where import Where


class SearchOptions(Request):
    search: Literal["continue", "new"] | None = option(
        "--search",
        choices=("continue", "new"),
        help="A search whose file has changed: go on with the trials that fit, or begin again.",
    )


class ImportanceRequest(ReportFiles):
    studies: tuple[str, ...] = argument("[STUDY]...", multiple=True, required=False)
    metric: str | None = option(
        "-m", "--metric", metavar="METRIC[:min|max]", help="The metric.  [default: as `assay sum` sorts]"
    )
    where: Where | None = where_option()
    as_json: bool = json_option()
    junit = None
    root: str | None = root_option()


def importance(request: ImportanceRequest, console: Console) -> int:
    """Show how much each parameter of STUDY affects a metric, by Optuna; for a search or any other study.

    The importances add up to 1. They compare the best tenth of the runs with all runs (PED-ANOVA); each run counts with
    its best value of the metric, and only runs that are done count.
    """
    from assay.follow.locations import find_patterns
    from assay.follow.opening import open_index_of
    from assay.reading.run_reader import load_fresh_table, load_objectives
    from assay.reading.summary import describe_unranked, find_left_out, leave_out_foreign, select_rows
    from assay.search.importance import build_importance_document, measure_importance

    on_stdout = check_targets(request.md, as_json=request.as_json)
    locations, patterns = find_patterns(request.studies, request.root)
    with open_index_of(locations) as index:
        data = load_fresh_table(index, locations, console)
    chosen = select_rows(data, request.where, patterns)
    keep = leave_out_foreign(data, chosen)
    if unranked := find_left_out(data, chosen, keep):
        console.error(describe_unranked(unranked, locations))
    asked = request.metric or next(iter(load_objectives(locations, data)), None)
    document = build_importance_document(measure_importance(data, keep, asked))
    write_document(document, request)
    if not on_stdout:
        console.write_document(document, as_json=request.as_json)
    return int(ExitCode.OK)
