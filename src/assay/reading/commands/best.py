"""The command `assay best`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from assay.errors import ExitCode, UsageError
from assay.follow.locations import find_patterns, show_command
from assay.follow.opening import open_index_of
from assay.reading.best import build_document, build_front_document, choose_best, describe_best
from assay.reading.commands.tables import fields_option, group_option
from assay.reading.ranking import Asked, choose_sort
from assay.reading.run_reader import load_fresh_table, load_objectives
from assay.reading.summary import describe_unranked, find_left_out, leave_out_foreign, select_rows
from assay.show.console import Console
from assay.show.report_files import ReportFiles, check_targets, write_document
from assay.values.options import argument, json_option, option, root_option, split_commas, where_option
from assay.values.state import has_result

if TYPE_CHECKING:
    from assay.values.where import Where


class BestRequest(ReportFiles):
    studies: tuple[str, ...] = argument("[STUDY]...", multiple=True, required=False)
    metrics: tuple[str, ...] = option(
        "-m",
        "--metric",
        multiple=True,
        metavar="METRIC[:min|max]",
        parse=split_commas,
        help="Rank by this metric; several metrics give the Pareto set.  [default: as `assay sum` sorts]",
    )
    where: Where | None = where_option()
    group_by: tuple[str, ...] = group_option("entry")
    as_json: bool = json_option()
    fields: tuple[str, ...] = fields_option()
    junit = None
    root: str | None = root_option()


def best(request: BestRequest, console: Console) -> int:
    """Show the best run of STUDY: its parameters and commands, its margin over the next, and how to repeat it.

    Runs are ranked by the best value of the metric. Only runs that are done count. Several metrics give the Pareto set:
    the runs that no other run beats in all of them.
    """
    on_stdout = check_targets(request.md, as_json=request.as_json or bool(request.fields))
    if len(request.metrics) > 1 and request.group_by:
        pareto = ",".join(request.metrics)
        raise UsageError("-g compares groups by one metric", f"groups by several: assay sum --pareto {pareto} -g PARAM")
    locations, patterns = find_patterns(request.studies, request.root)
    with open_index_of(locations) as index:
        data = load_fresh_table(index, locations, console)
    names = ", ".join(location.name for location in locations)
    chosen = select_rows(data, request.where, patterns)
    keep = leave_out_foreign(data, chosen)
    unranked = find_left_out(data, chosen, keep)
    if not any(has_result(data.rows[i].state, data.rows[i].cause) for i in keep):
        why = f"no run is done yet; see them: {show_command(['ls'], locations[0])}"
        if unranked:
            why = f"no run that was made here is done yet; {describe_unranked(unranked, locations, others='')}"
        console.error(f"{names}: {why}")
        return int(ExitCode.FAILED)
    if unranked:
        console.error(describe_unranked(unranked, locations))
    metrics: Sequence[Asked] = request.metrics or load_objectives(locations, data)[: 1 if request.group_by else None]
    if len(metrics) > 1:
        document = build_front_document(data, keep, choose_sort(metrics, data, ()), locations)
    else:
        choice = choose_best(data, keep, next(iter(metrics), None), request.group_by)
        winner = describe_best(data, keep, choice.best.run, locations) if choice else None
        document = build_document(choice, winner, data) if choice and winner else None
    if document is None:
        wanted = " and ".join(map(str, metrics)) or "value of a metric"
        console.error(f"{names}: no run that is done has a finite {wanted}")
        return int(ExitCode.FAILED)
    write_document(document, request)
    if not on_stdout:
        console.write_document(document, as_json=request.as_json, fields=request.fields)
    return int(ExitCode.OK)
