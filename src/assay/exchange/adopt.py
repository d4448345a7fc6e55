"""`assay adopt`: turn a received run into a run of the study, with job.sh and code/ from the owner's study file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from assay.errors import FormatError, UsageError
from assay.follow.locations import FoundRun, StudyLocation, find_own_files, show_adopt, show_command
from assay.launch.commands.rerun import split_words
from assay.launch.prepared import Prepared, RunOptions
from assay.launch.run_dir_builder import DirBuilder, put_away
from assay.launch.sweep import prepare
from assay.reading.choosing import find_chosen_runs
from assay.record import run_directory
from assay.record.received import Received, find_user, is_foreign, load_received, write_received
from assay.show.console import Console
from assay.system.fast_dataclasses import replace
from assay.values.options import Request, argument, json_option, option, root_option, where_option
from assay.values.run import RunSpec

if TYPE_CHECKING:
    from assay.values.where import Where


class AdoptRequest(Request):
    names: tuple[str, ...] = argument("RUN... [PARAMETER=VALUE]...", multiple=True)
    file: str | None = option(
        "--file", metavar="FILE", help="Your study file.  [default: that of the study's newest run that was made here]"
    )
    where: Where | None = where_option()
    as_json: bool = json_option()
    root: str | None = root_option()


def adopt(request: AdoptRequest, console: Console) -> int:
    """Adopt uploaded runs as runs of your study: they are ranked, continued and repeated from then on.

    job.sh and code/ are made again from your study file; logs and metrics stay. Everything else that came with a run,
    also its checkpoints, moves to received/ in its folder and is not used. A run that is not in the file is refused.
    """
    names, overrides = split_words(request.names, request.root, console)
    runs = find_chosen_runs(names, request.where, request.root)
    if not runs:
        raise UsageError(f"{', '.join(names)}: no runs")
    done = [*adopt_runs(runs, request.file, overrides)]
    if request.as_json:
        console.write_json([{"run": key, "file": file or None} for key, file in done])
        return 0
    for key, file in done:
        what = f"job.sh and code made again from {file}" if file else "it has no command"
        console.print(f"adopted {key}: {what}")
    return 0


def adopt_runs(runs: Sequence[FoundRun], file: str | None, overrides: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Adopt all runs or none: a run that cannot be adopted is found before any run is changed. Yield the key of each
    run, and the file that its job.sh and code/ were made from, or "" if the run has no command."""
    received = {run.dir: _check(run) for run in runs}
    chosen: dict[str, run_directory.RunRecord] = {}
    for run in runs:
        if (record := run_directory.try_record(run.dir)) is None:
            raise FormatError(f"{run.key} is damaged: {run_directory.find_damage(run.dir)}", "it cannot be adopted")
        chosen[run.dir] = record
    plans: dict[StudyLocation, Prepared] = {}
    specs: dict[str, RunSpec] = {}
    for run in runs:
        if not chosen[run.dir].spec.commands:
            continue
        if run.location not in plans:
            plans[run.location] = _prepare(run.location, os.path.basename(run.dir), file, overrides)
        spec = _find_spec(run, chosen[run.dir], plans[run.location])
        _refuse_same_run(run, spec, plans[run.location], specs)
        specs[run.dir] = replace(spec, name=os.path.basename(run.dir))
    builders = {}
    for location, prepared in plans.items():
        own = tuple(specs[run.dir] for run in runs if run.location == location and run.dir in specs)
        builders[location] = DirBuilder(replace(prepared, plan=replace(prepared.plan, runs=own, links=())))
    for run in runs:
        if run.dir in specs:
            builders[run.location].remake(specs[run.dir], run.dir, find_user())
        else:
            put_away(run.dir, received[run.dir])
            write_received(run.dir, replace(received[run.dir], adopted_by=find_user(), adopted_at=time.time()))
        yield run.key, plans[run.location].study.source if run.dir in specs else ""


def _check(run: FoundRun) -> Received:
    received = load_received(run.dir)
    if received is None:
        raise UsageError(f"{run.key} was made here: there is nothing to adopt")
    if not received.needs_code:
        raise UsageError(f"{run.key} was adopted already", f"see it: {show_command(['show'], *run.words)}")
    return received


def _prepare(location: StudyLocation, run: str, file: str | None, overrides: tuple[str, ...]) -> Prepared:
    """Prepare the plan of the owner's study file, never of a file that a received run names."""
    file = file or max(find_own_files(location), default=(0.0, ""))[1]
    if not file:
        hint = f"name it: {show_adopt(location, run)}"
        raise UsageError(f"{location.name} has no run that was made here, so your study file is not known", hint)
    prepared = prepare(RunOptions(file, location.root, location.name, overrides=overrides))
    if prepared.search is not None:
        hint = "a run that was received cannot be a trial"
        raise UsageError(f"{file} is a search, whose trials its sampler proposes", hint)
    return prepared


def _find_spec(run: FoundRun, record: run_directory.RunRecord, prepared: Prepared) -> RunSpec:
    """Return the run of the owner's study file with the same id and parameters, or raise an error."""
    source, wanted = prepared.study.source, record.spec
    spec = next((each for each in prepared.plan.runs if each.id == wanted.id), None)
    if spec is None or dict(spec.params) != dict(wanted.params):
        given = " ".join(record.overrides)
        hint = f"the run was started with {given}: give these words as well" if given else "name its file with --file"
        problem = f"{run.key} is not one of the {len(prepared.plan.runs)} runs of {source}: their ids differ"
        raise UsageError(problem, hint)
    return spec


def _refuse_same_run(run: FoundRun, spec: RunSpec, prepared: Prepared, adopted: Mapping[str, RunSpec]) -> None:
    """Refuse a second run with the same id: the run would count twice in means and in `assay best`."""
    own = prepared.dir_of(spec)  # the directory is found by the id, also under a name of an earlier file
    same = [each for each in adopted if adopted[each].id == spec.id and os.path.dirname(each) == run.location.dir]
    same += [own] if own != run.dir and not is_foreign(own) and run_directory.try_record(own) else []
    if same:
        names = [os.path.basename(each) for each in (same[0], run.dir)]
        hint = f"compare them: {show_command(['diff'], run.location, *names)}"
        reason = f"{run.key} is the same run as {run.location.key(same[0])}"
        raise UsageError(f"{reason}: adopted, it would count twice in means and in `assay best`", hint)
