"""The commands `assay ls`, `assay show`, `assay logs` and `assay diff`."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from assay.errors import UsageError
from assay.follow.locations import (
    HOW_TO_START,
    FoundRun,
    find_one_run,
    find_patterns,
    find_roots,
    names_study,
    need_one_run,
    show_path,
)
from assay.follow.opening import open_index_of
from assay.reading.commands.tables import fields_option, limit_option, states_option
from assay.reading.run_reader import find_step_name
from assay.reading.summary import SummaryOptions
from assay.show.console import Console
from assay.show.formatting import clean, render_count, wrap
from assay.show.table import render_json
from assay.system.terminal import is_terminal
from assay.values import layout
from assay.values.options import Request, argument, json_option, option, root_option, where_option
from assay.values.state import State

if TYPE_CHECKING:
    from assay.values.where import Where


# Modules that only one command needs are imported in its function.
_ONE_OF_MANY = "Choose the run that matches, if RUN is a study or a pattern."


class LsRequest(Request):
    study: str | None = argument(required=False)
    states: frozenset[State] | None = states_option("Only runs in this state.")
    where: Where | None = where_option()
    sort: tuple[str, ...] = option(
        "-s",
        "--sort",
        multiple=True,
        metavar="NAME[:min|max]",
        help="Sort as `assay sum` does.  [default: as they were created]",
    )
    limit: int | None = limit_option()
    as_json: bool = json_option()
    fields: tuple[str, ...] = fields_option()
    root: str | None = root_option()


def ls(request: LsRequest, console: Console) -> int:
    """List all studies, or the runs of STUDY (a name or a folder), or of STUDY/PATTERN, such as 'norm/lr=0.1*'."""
    if request.study is None and (request.where is not None or request.sort):
        raise UsageError("--where and --sort are for the runs of a study", "name one; list them: assay ls")
    if request.study is None:
        return _list_studies(request, console)
    return _list_runs(request.study, request, console)


def _list_studies(request: LsRequest, console: Console) -> int:
    from assay.reading.listing import build_study_facts, build_study_table, list_studies

    roots = find_roots(request.root).all
    studies = list_studies(roots, console)
    if request.states is not None:
        studies = [each for each in studies if any(each.row.counts.get(state) for state in request.states)]
    shown = studies[: request.limit]
    if request.as_json or request.fields:
        console.write(render_json(build_study_facts(shown), request.fields))
    elif shown:
        console.write_table(build_study_table(shown, time.time()))
    else:
        such = f" with a run that is {' or '.join(sorted(request.states))}" if request.states else ""
        console.error(f"no study{such} under {', '.join(map(show_path, roots))}; {HOW_TO_START}")
    _report_left_out(len(studies) - len(shown), console)
    return 0


def _report_left_out(count: int, console: Console) -> None:
    """Print the number of rows left out, as the last line, as below every table."""
    if count:
        console.error(f"({render_count(count, 'more row')}: leave out -n)")


def _list_runs(name: str, request: LsRequest, console: Console) -> int:
    from assay.reading.listing import build_run_facts, build_run_table, describe_total, list_runs, name_waiting

    locations, patterns = find_patterns([name], request.root)
    if len(locations) != 1:
        raise UsageError(f"{name!r} names runs of {len(locations)} studies", "put the name of one study before it")
    (location,) = locations
    with open_index_of([location]) as index:
        chosen = SummaryOptions(request.sort, states=request.states, where=request.where, patterns=patterns)
        runs = list_runs(index, location, chosen, console)
    shown = runs[: request.limit]
    if request.as_json or request.fields:
        console.write(render_json(build_run_facts(shown, location, time.time()), request.fields))
    elif shown:
        rows = [run.row for run in shown]
        waiting, step_name = name_waiting(rows, location), find_step_name([location], rows)
        found = build_run_table(shown, time.time(), console.width, waiting, step_name)
        console.write_table(found.table)
        console.write("".join(f"{wrap(clean(remark), console.width, '  ')}\n" for remark in found.remarks))
        console.print(describe_total(shown, waiting))
        if found.no_room:
            console.error(f"(no room here for {', '.join(found.no_room)}: widen the terminal, or --json)")
    else:
        chosen_ones = request.states or request.where or patterns
        console.error(f"{location.name}: no run{' matches' if chosen_ones else 's yet'}")
    _report_left_out(len(runs) - len(shown), console)
    return 0


# ---------------------------------------------------------------- show


class ShowRequest(Request):
    run: str = argument()
    where: Where | None = where_option(_ONE_OF_MANY)
    with_environment: bool = option("--env", default=False, help="The environment as well: host, GPUs, packages, git.")
    job: bool = option("--job", default=False, help="Print the run's job.sh instead.")
    as_json: bool = json_option()
    fields: tuple[str, ...] = fields_option()
    root: str | None = root_option()


def show(request: ShowRequest, console: Console) -> int:
    """Show everything about RUN: state, attempts, parameters, commands, metrics, resources, origin, files.

    RUN is STUDY/RUN, a run's name or id, or its folder.
    """
    from assay.reading.run_description import build_document, describe_run

    if request.job and (request.as_json or request.with_environment or request.fields):
        raise UsageError("--job prints the script and nothing else", "leave out --json, --fields and --env")
    found = _find_one(request.run, request.where, request.root)
    if request.job:
        path = os.path.join(found.dir, layout.JOB_FILE)
        try:
            with open(path, "rb") as file:
                console.write_bytes(file.read())
        except FileNotFoundError as error:
            raise UsageError(f"{path} does not exist", "a run that a script opened by itself has no job.sh") from error
        return 0
    with open_index_of([found.location]) as index:
        description = describe_run(index, found.location, found.dir)
    document = build_document(description, with_environment=request.with_environment)
    console.write_document(document, as_json=request.as_json, fields=request.fields)
    return 0


def _find_one(name: str, where: Where | None, root: str | None) -> FoundRun:
    if where is None:
        return find_one_run(name, root)
    from assay.reading.choosing import find_chosen_runs

    return need_one_run(f"{name} --where {where.text}", find_chosen_runs([name], where, root))


# ---------------------------------------------------------------- logs


class LogsRequest(Request):
    run: str = argument()
    where: Where | None = where_option(_ONE_OF_MANY)
    follow: bool = option(
        "-f", "--follow", default=False, help="Go on until the run is finished; with a study: all its runs."
    )
    command: str | None = option("-c", "--command", metavar="C", help="The output of this command.")
    lines: int | None = option("-n", "--lines", type=int, minimum=0, metavar="N", help="Only the last N lines.")
    errors: bool = option(
        "--errors", default=False, help="Only what matters: tracebacks, lines about errors, the last 10 (or N) lines."
    )
    attempt: int | None = option(
        "--attempt", type=int, minimum=1, metavar="N", help="The output of this attempt instead of the last."
    )
    root: str | None = root_option()


def logs(request: LogsRequest, console: Console) -> int:
    """Print the output of RUN: of the command that failed, else of the last command that began."""
    from assay.reading.logs import copy_log, find_log

    if request.follow and request.errors:
        raise UsageError("--errors is about the output that there is", "leave out --follow, or --errors")
    if request.follow and request.attempt is not None:
        raise UsageError("--follow goes with the attempt that runs", "leave out --attempt, or --follow")
    if request.follow:
        return _follow(request, console)
    found = _find_one(request.run, request.where, request.root)
    path = find_log(found.dir, request.command, request.attempt)
    if is_terminal(sys.stdout):
        console.error(f"{os.path.relpath(path)}:")
    if request.errors:
        from assay.follow.log_tails import TAIL_LINES, find_errors

        lines = find_errors(path, TAIL_LINES if request.lines is None else request.lines)
        console.write("".join(f"{line}\n" for line in lines))
    else:
        copy_log(path, request.lines, _write)
    return 0


def _follow(request: LogsRequest, console: Console) -> int:
    from assay.reading.choosing import find_chosen_runs
    from assay.reading.logs import follow_run, follow_study

    runs = find_chosen_runs([request.run], request.where, request.root)
    is_whole = request.where is None and any(names_study(request.run, run) for run in runs)
    if len(runs) == 1 and not is_whole:
        follow_run(runs[0].dir, request.command, request.lines, _write)
        return 0
    locations = {run.location for run in runs}
    if len(locations) != 1:
        text = f"{request.run!r} names {len(runs)} runs of {len(locations)} studies"
        raise UsageError(text, "follow one study at a time")
    (location,) = locations
    only = None if is_whole else [run.dir for run in runs]
    if not follow_study(location.dir, request.command, request.lines, _write, only):
        console.error(f"nothing is running in {location.name}")
    return 0


def _write(data: bytes) -> None:
    """Write the bytes unchanged and flush. If the output has no reader, the error ends a command that follows a run."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


# ---------------------------------------------------------------- diff


class DiffRequest(Request):
    first: str = argument()
    second: str = argument()
    code: bool = option("--code", default=False, help="The code line by line, as diff -u shows it.")
    as_json: bool = json_option()
    fields: tuple[str, ...] = fields_option()
    root: str | None = root_option()


def diff(request: DiffRequest, console: Console) -> int:
    """Compare two runs: parameters, commands, environment, code, metrics."""
    from assay.reading.run_diff import build_document, compare, render_code_diff

    if request.code and (request.as_json or request.fields):
        raise UsageError("--code prints a diff, not JSON", "leave out one of --code and --json")
    left, right = find_one_run(request.first, request.root), find_one_run(request.second, request.root)
    with open_index_of([left.location]) as index, open_index_of([right.location]) as other_index:
        comparison = compare(index, other_index, left, right)
    if request.code:
        console.write("".join(f"{line}\n" for line in render_code_diff(comparison)))
    else:
        console.write_document(build_document(comparison), as_json=request.as_json, fields=request.fields)
    return 0
