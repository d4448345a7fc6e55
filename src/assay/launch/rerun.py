"""`assay rerun`: a new attempt of runs that have ended, from their directories; the study's file may be gone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from assay.config.load import LoadOptions, load_study
from assay.config.places import choose_asked_farm, choose_farm
from assay.config.settings import Settings, load_settings
from assay.errors import AssayError, FormatError, UsageError, check_known
from assay.follow.locations import FoundRun, StudyLocation, advise_adopting, show_command
from assay.follow.refresh import describe_damage
from assay.follow.run_status import RunStatus, load_status
from assay.launch.prepared import Prepared, RunOptions
from assay.record import run_directory
from assay.record.received import describe, is_foreign, load_received
from assay.show.console import Console
from assay.show.formatting import render_count
from assay.values import layout
from assay.values.run import Plan
from assay.values.study import LOCAL, CodePolicy, Farm, Study


def prepare_rerun(runs: Sequence[FoundRun], options: RunOptions) -> list[Prepared]:
    """Return one supervised study for each study that these runs belong to; refuse all if one cannot be repeated.

    Without `options.commands` every command is run, also those that earlier attempts finished. Without `new_code` and
    `old_code` failed runs get the current code, and others keep their recorded snapshot.
    """
    chosen = load_repeatable(runs)
    live = [run for run, status in chosen if not status.state.is_over and status.handle is not None]
    if live:
        listed = ", ".join(run.key for run in live[:5]) + (f" and {len(live) - 5} more" if len(live) > 5 else "")
        raise UsageError(f"still running: {listed}", f"stop it first: {show_command(['stop'], *live[0].words)}")
    by_location: dict[StudyLocation, list[RunStatus]] = {}
    for run, status in chosen:
        _check_commands(run, status, options.commands)
        named = replace(status.record.spec, name=os.path.basename(run.dir))
        by_location.setdefault(run.location, []).append(replace(status, record=replace(status.record, spec=named)))
    options = replace(options, force=True, names_runs=True)
    return [_prepare(location, statuses, options) for location, statuses in by_location.items()]


def load_repeatable(runs: Sequence[FoundRun]) -> list[tuple[FoundRun, RunStatus]]:
    """Return the runs with their states, without damaged ones; refuse runs without a command or from elsewhere."""
    for run in runs:  # an uploaded or pulled run has no job.sh and code/ from this machine
        if (received := load_received(run.dir)) is not None and received.needs_code:
            hint = ": ".join(advise_adopting(*run.words))
            raise UsageError(f"{run.key} was received ({describe(received)}) and is not executed", hint)
    chosen = {run.dir: (run, status) for run in runs if not (status := load_status(run.dir)).is_damaged}
    if not chosen:
        raise FormatError("\n".join(find_damaged(runs)) or "no runs")
    for run, status in chosen.values():
        if status.record.origin:
            hint = f"it came from {status.record.origin.get('path')}"
            raise UsageError(f"{run.key} was imported from {status.record.tool}: there is no command to run", hint)
        if not status.record.spec.commands:
            raise UsageError(f"{run.key} was opened by a script itself", "start that script again")
    return list(chosen.values())


def find_damaged(runs: Sequence[FoundRun]) -> list[str]:
    """Describe the runs that cannot be repeated because their records are lost, and how to repair each."""
    return [
        f"{run.key} is damaged: {describe_damage(run.dir)}" for run in runs if run_directory.try_record(run.dir) is None
    ]


def leave_out_received(runs: list[FoundRun], console: Console) -> list[FoundRun]:
    """Return the runs without uploads that were not adopted; if there are only uploads, all: they are refused."""
    own = [run for run in runs if not is_foreign(run.dir)]
    if own and len(own) < len(runs):
        count, verb = len(runs) - len(own), "was" if len(runs) - len(own) == 1 else "were"
        console.error(f"{render_count(count, 'run')} {verb} uploaded and {'is' if count == 1 else 'are'} not executed")
    return own or runs


def _check_commands(run: FoundRun, status: RunStatus, asked: tuple[str, ...] | None) -> None:
    check_known("command", asked or (), status.commands)
    if not asked:
        return
    finished = status.history.finished_commands()
    missing = [name for name in status.commands if name not in asked and name not in finished]
    if missing:
        more = " ".join(f"-c {name}" for name in missing)
        raise UsageError(
            f"{run.key}: {missing[0]} has not finished well in any attempt, so {asked[0]} alone would not make it done",
            f"run it as well: {more}, or leave out -c to run everything",
        )


def _prepare(location: StudyLocation, statuses: Sequence[RunStatus], options: RunOptions) -> Prepared:
    first = statuses[0].record
    study = Study(
        name=location.name,
        dialect=first.dialect,
        source=first.source,
        folder=os.path.join(location.dir, first.spec.name, first.workdir),
        commands=(),
        sweeps=(),
        resources=first.spec.resources,
        priority=first.spec.priority,
        code=CodePolicy("live"),  # each run has its own copy: no snapshot is taken
    )
    run_options = replace(options, file=first.source, root=location.root)
    settings = load_settings(os.getcwd(), os.environ)
    if options.on not in (None, LOCAL) or _find_engine(statuses):
        study = replace(study, **_load_farms(location, first))
    farm = choose_rerun_farm(study, options.on, settings, statuses)
    plan = Plan(study, tuple(status.record.spec for status in statuses))
    return Prepared(study, plan, location, True, farm, settings, run_options)


# ---------------------------------------------------------------- where


def choose_rerun_farm(
    study: Study, asked: str | None, settings: Settings, statuses: Sequence[RunStatus]
) -> Farm | None:
    """Return the farm that is asked for, else this machine; a run of a farm does not move here unasked."""
    if asked is not None:
        return choose_asked_farm(study, asked, settings)
    engine = _find_engine(statuses)
    farm = choose_farm(study, None, settings) if engine else None
    if engine and farm is None:
        raise UsageError(
            f"{study.name} ran on a farm ({engine}), and it is not known on which to run it again",
            "name it: --on FARM; on this machine: --on local",
        )
    return farm


def _find_engine(statuses: Sequence[RunStatus]) -> str:
    """Return the farm executor of the first run whose last attempt was on a farm; empty if none was."""
    handles = [status.handle for status in statuses if status.handle is not None]
    return next((handle.executor for handle in handles if handle.executor != LOCAL), "")


def _load_farms(location: StudyLocation, record: run_directory.RunRecord) -> dict[str, Any]:
    """Return the farms of the study's file as it is now, else of its kept copy; nothing if neither can be read."""
    kept = run_directory.load_file(location.dir, record.file_hash) if record.file_hash else None
    for text in (None, kept) if os.path.isfile(record.source) else (kept,):
        with suppress(AssayError, OSError):
            study = load_study(record.source, LoadOptions(dialect=record.dialect, text=text))
            return {"farms": study.farms, "farm": study.farm}
    return {}


def store_of(location: StudyLocation) -> str:
    return os.path.join(location.dir, layout.STUDY_META_DIR, layout.CODE_STORE_DIR)
