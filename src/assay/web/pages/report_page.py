"""`assay report STUDY`: the content of a study's page as one document."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from assay.errors import AssayError, UsageError
from assay.follow.locations import HOW_TO_START, StudyLocation, show_command, show_path
from assay.follow.log_tails import build_tail, find_failed_log
from assay.plots import api as plotting
from assay.reading import best, summary
from assay.reading.ranking import SortKey, differing_params
from assay.reading.run_description import build_environment_sections
from assay.reading.run_reader import find_step_name, load_fresh_table, load_objectives
from assay.reading.summary import StudySummary, SummaryOptions
from assay.record import run_directory
from assay.record.folders import is_run_dir
from assay.record.index.base import RunRow
from assay.record.index.stored import Index
from assay.show.console import SILENT, Console
from assay.show.formatting import render_count, render_duration
from assay.values import document as doc
from assay.values.plain import render_date
from assay.values.run import build_command
from assay.values.series import metric_priority
from assay.values.state import FAILED, State

ROWS = 200  # rows of the table by default
_MOST_CURVES = 3  # metrics with curves
_MOST_RUNS = 1000  # points in each chart of the parameters, so that the page stays small enough for mail
_MOST_POINTS = 4000  # points of all charts of single parameters together
_MOST_FAILED = 10  # failed runs that are shown with the end of their log
_MOST_NAMED = 100
_TAIL_LINES = 25
_MOST_COMMITS = 5


def build_report(
    index: Index, locations: Sequence[StudyLocation], options: SummaryOptions, console: Console = SILENT
) -> doc.Document:
    """Build the report with the options of `assay sum`. By default the table has at most `ROWS` rows."""
    data = load_fresh_table(index, locations, console)
    names = ", ".join(location.name for location in locations)
    if not data.rows:
        raise UsageError(f"{names}: no runs yet", HOW_TO_START)
    objectives = load_objectives(locations, data)
    options = options._replace(limit=options.limit or ROWS)
    if not options.sort and not options.pareto:
        options = options._replace(sort=objectives)
    chosen = summary.select_rows(data, options.where, options.patterns, options.states)
    keep = summary.leave_out_foreign(data, chosen) or chosen
    if not keep:
        raise UsageError(f"{names}: no run matches", f"see all of them: {show_command(['ls'], locations[0])}")
    found = summary.build_summary(data, options, find_step_name(locations, data.rows))
    rows = [data.rows[i] for i in keep]
    key = next((key for key in found.sort if key.is_metric), None)
    selection = plotting.build_selection(data, keep, locations)
    counts = selection.counts
    blocks = [*_build_head(names, rows)]
    choice = best.choose_best(data, keep, key, options.group_by) if key else None
    if choice is not None:  # the content of `assay best`: the best run, its margin, and how to repeat it
        run = best.describe_best(data, keep, choice.best.run, locations)
        blocks += [
            doc.Heading(best.build_title(choice, data)),
            doc.Section((doc.Facts(best.describe_standing(choice, run, data.metrics[choice.key.name])),)),
            doc.Details("Its parameters and commands", best.build_details(choice, run, data)),
        ]
    blocks += [
        *_build_table(found, options, locations),
        *(_build_curves(index, selection, key, options) if counts else ()),
        *(_build_param_plots(selection, key) if key and counts.get(key.name) else ()),
        *_build_failures(rows, locations),
        *_build_origin(rows, locations),
    ]
    return doc.Document(names, blocks)


# ---------------------------------------------------------------- the state


def _build_head(names: str, rows: Sequence[RunRow]) -> Iterator[doc.Block]:
    yield doc.Heading(names, level=1, note=render_date(time.time(), "%Y-%m-%d %H:%M"))
    states = [row.state for row in rows]
    counts = ((state, states.count(state)) for state in State if state in states)
    badges = [part for state, count in counts for part in (doc.Span(f"{count} {state}", str(state)), " ")]
    starts = [row.started_at for row in rows if row.started_at]
    ends = [row.ended_at for row in rows if row.ended_at]
    took = ""
    if starts and ends and all(state.is_over for state in states):
        spent = render_duration(max(0.0, max(ends) - min(starts)))
        took = f", from {render_date(min(starts), '%Y-%m-%d %H:%M')} on, {spent} until the last one ended"
    yield doc.Text((f"{render_count(len(rows), 'run')}{took}  ", *badges))


def _build_table(
    found: StudySummary, options: SummaryOptions, locations: Sequence[StudyLocation]
) -> Iterator[doc.Block]:
    order = [f"{key.name}, {'lowest' if key.direction == 'min' else 'highest'} first" for key in found.sort]
    yield doc.Heading("Groups" if options.group_by else "Runs", note=f"by {', '.join(order)}" if order else "")
    yield doc.TableBlock(found.table)
    notes = []
    if found.left_out:
        notes.append(f"{render_count(found.left_out, 'more row')} (-n N shows more)")
    if found.unranked:
        notes.append(summary.describe_unranked(found.unranked, locations))
    if found.hidden:
        notes.append(f"{render_count(found.hidden, 'more metric')} (--metrics all shows them)")
    if found.front is not None:
        what = "group" if options.group_by else "run"
        notes.append(summary.describe_front(found.front, what, found.not_done))
    yield from (doc.Text(note, role="soft") for note in notes)


# ---------------------------------------------------------------- charts


def _build_curves(
    index: Index, selection: plotting.PlottedRuns, key: SortKey | None, options: SummaryOptions
) -> Iterator[doc.Block]:
    """Build the curves of the chosen metrics, else of the metric that sorts runs and the most informative ones."""
    lines = [name for name, count in selection.counts.items() if count > 1]
    if options.metrics and options.metrics != ("all",):
        chosen = [name for name in options.metrics if name in lines]
    else:
        chosen = sorted(lines, key=lambda name: (key is None or name != key.name, metric_priority(name)))
        chosen = [name for name in chosen if name not in options.ignore][:_MOST_CURVES]
    if chosen:
        with suppress(UsageError):  # no group has a finished run
            wish = plotting.PlotOptions(tuple(chosen), options.group_by, names=_NAMES)
            yield doc.Heading("Curves")
            yield from _show(plotting.build_plots(index, selection, wish))


def _build_param_plots(selection: plotting.PlottedRuns, key: SortKey) -> Iterator[doc.Block]:
    """Build charts of the effect of the parameters on the metric; charts without enough runs are left out."""
    params: Sequence[str] = differing_params([row.params for row in selection.rows])
    if not params:
        return
    step = -(-len(selection.keep) // _MOST_RUNS)
    some = replace(selection, keep=selection.keep[::step])
    options = plotting.PlotOptions((key,), names=_NAMES)
    yield doc.Heading("Parameters")
    if step > 1:
        yield doc.Text(f"{len(some.keep)} of {render_count(len(selection.keep), 'run')}, evenly chosen", role="soft")
    with suppress(UsageError):  # UsageError, here and below: there are too few finished runs
        plots = plotting.build_importances(some, options)
        yield from _show(plots)
        params = [name for plot in plots if isinstance(plot.chart, doc.Bars) for name, _ in plot.chart.items]
    count = max(2, min(plotting.MOST_PARAMS, _MOST_POINTS // len(some.keep)))
    with suppress(UsageError):
        yield from _show(plotting.build_slices(some, replace(options, params=tuple(params[:count]))))
        if len(params) > count:
            yield doc.Text(f"the {count} most important of {len(params)} parameters", role="soft")
    for build in (plotting.build_parallels, plotting.build_histories):
        with suppress(UsageError):
            yield from _show(build(some, options))


def _show(plots: Sequence[plotting.Plot]) -> Sequence[doc.Block]:
    return plotting.build_page("", "", plots).blocks[1:]


_NAMES = plotting.OptionNames(choose_best="", choose_params="")  # a report has no options for these choices


# ---------------------------------------------------------------- failures


def _build_failures(rows: Sequence[RunRow], locations: Sequence[StudyLocation]) -> Iterator[doc.Block]:
    failed = [row for row in rows if row.state in FAILED]
    if not failed:
        return
    yield doc.Heading(render_count(len(failed), "run that failed", "runs that failed"))
    for number, row in enumerate(failed[:_MOST_NAMED]):
        why = f" {row.key if len(locations) > 1 else row.name}: {row.reason or row.state}"
        title = (doc.Span(str(row.state), str(row.state)), why)
        if number < _MOST_FAILED:
            yield doc.Details(title, _build_end(row, locations), is_open=number == 0)
        else:
            yield doc.Text(title)
    if len(failed) > _MOST_NAMED:
        yield doc.Text(f"and {len(failed) - _MOST_NAMED} more", role="soft")


def _build_end(row: RunRow, locations: Sequence[StudyLocation]) -> list[doc.Block]:
    location = _find_location(row, locations)
    run_dir, folder = os.path.join(location.root, row.key), row.folder
    record = run_directory.try_record(run_dir)
    if record is None:
        return [doc.Text("there is no readable run.json")]
    log = find_failed_log(run_dir, record.spec.log_name, tuple(each.name for each in record.spec.commands))
    if log is None:
        return [doc.Commands([])]
    again = doc.Commands([("its output", show_command(["logs"], location, folder))])
    return [*build_tail(log, show_path(log), _TAIL_LINES), again]


def _find_location(row: RunRow, locations: Sequence[StudyLocation]) -> StudyLocation:
    return next(each for each in locations if each.name == row.study)


# ---------------------------------------------------------------- the origin of the runs


def _build_origin(rows: Sequence[RunRow], locations: Sequence[StudyLocation]) -> Iterator[doc.Block]:
    """Build the origin of the runs: the facts of the newest run, and the commits and hosts of all runs."""
    row = max(rows, key=lambda row: row.created_at or row.started_at or 0.0)
    location = _find_location(row, locations)
    run_dir = os.path.join(location.root, row.key)
    record, environment = run_directory.try_record(run_dir), run_directory.load_environment(run_dir)
    commits = list(dict.fromkeys(each.commit for each in rows if each.commit))
    hosts = list(dict.fromkeys(each.host for each in rows if each.host))
    more = f" and {len(commits) - _MOST_COMMITS} more" if len(commits) > _MOST_COMMITS else ""
    facts = [
        ("folder", ", ".join(each.dir for each in locations)),
        ("study file", record.source if record else ""),
        ("overrides", build_command((), record.overrides) if record else ""),
        ("settings", build_command((), options=[f"--set={each}" for each in record.settings]) if record else ""),
        ("commit" if len(commits) == 1 else "commits", ", ".join(commits[:_MOST_COMMITS]) + more),
        ("host" if len(hosts) == 1 else "hosts", ", ".join(hosts[:_MOST_COMMITS])),
    ]
    yield doc.Heading("Origin")
    yield doc.Facts([(label, text) for label, text in facts if text], folds=False)
    if environment is not None:
        title = "Environment" if len(rows) == 1 else f"Environment of the newest run, {row.name}"
        yield doc.Details(title, build_environment_sections(environment, row.host))
    commands = [*_find_repeats(rows, location)]
    commands += [("this table", show_command(["sum"], each)) for each in locations]
    commands += [("this page, live", build_command(("assay", "serve"), options=[f"--root={location.root}"]))]
    yield doc.Section((doc.Commands(commands),), "Commands")


def _find_repeats(rows: Sequence[RunRow], location: StudyLocation) -> Iterator[tuple[str, str]]:
    """Yield commands that repeat exactly the given runs: the call that made them, or a new attempt of a single run."""
    local = [row for row in rows if row.study == location.name]
    own = [row for row in local if not row.received or "adopted_at" in row.received]
    if not own:
        return
    ordered = sorted(own, key=lambda row: row.created_at or row.started_at or 0.0, reverse=True)
    records = (run_directory.try_record(os.path.join(location.root, row.key)) for row in ordered)
    if len(rows) == 1:
        record = next(records)
        if record is not None and record.spec.commands and not record.origin and rows[0].state.is_over:
            yield "run it again, as a new attempt", show_command(["rerun"], location, rows[0].folder)
        return
    # the study file does not describe a run that `assay rerun RUN NAME=VALUE` made
    record = next((each for each in records if each and each.source and not each.parent and not each.origin), None)
    if record is not None and (again := _find_call(record, location)):
        yield "run it again: what is finished stays", again


def _find_call(record: run_directory.RunRecord, location: StudyLocation) -> str | None:
    """Return the call that repeats the runs; None if the file is gone or changed, or secrets or titles are needed."""
    from assay.launch.prepared import RunOptions
    from assay.launch.sweep import prepare

    options = RunOptions(record.source, overrides=record.overrides, settings=record.settings)
    root: dict[str, Any] = {"root": show_path(location.root)}
    study: dict[str, Any] = {"study": location.name}
    planned = run_directory.load_planned(location.dir)
    for given in ({}, root, study, root | study):
        with suppress(AssayError, OSError):
            found = prepare(replace(options, **given))
            dirs = {spec.name: found.dir_of(spec) for spec in found.plan.runs}
            is_all = all(name in planned or is_run_dir(path) for name, path in dirs.items())
            if dirs and is_all and os.path.realpath(found.location.dir) == os.path.realpath(location.dir):
                words = [f"--{name}={value}" for name, value in given.items()]
                words += [f"--set={each}" for each in record.settings]
                return build_command(("assay", "run"), (record.source, *record.overrides), words)
    return None
