"""`assay rerun RUN` makes a new attempt of ended runs from their directories; the study's file may be gone.

`assay rerun RUN NAME=VALUE` makes new runs, with the parameters of other runs and changes, from the kept study file.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from assay.code.snapshot import load_snapshot
from assay.config.load import LoadOptions, load_study
from assay.config.places import choose_asked_farm, choose_farm
from assay.config.settings import Settings, load_settings
from assay.errors import AssayError, ConfigError, FormatError, UsageError, check_known
from assay.follow.locations import FoundRun, StudyLocation, advise_adopting, show_command
from assay.follow.refresh import describe_damage
from assay.follow.run_status import RunStatus, load_status
from assay.launch.prepared import Origin, Prepared, RunOptions
from assay.launch.run_rules import find_rules
from assay.plan.expand import NameSource, build_plan
from assay.plugins import find_dialect
from assay.record import run_directory
from assay.record.checkpoints import list_checkpoints
from assay.record.received import describe, is_foreign, load_received
from assay.record.run_directory import RunRecord
from assay.show.console import Console
from assay.show.formatting import render_count
from assay.system.fast_dataclasses import replace
from assay.values import layout
from assay.values.run import Plan, RunSpec, build_command
from assay.values.secrets import HIDDEN, hide_assignment
from assay.values.state import RETRY
from assay.values.study import CHECKPOINT_FILES, LOCAL, Choices, CodePolicy, Farm, Random, Study


def prepare_rerun(runs: Sequence[FoundRun], options: RunOptions) -> list[Prepared]:
    """Return one supervised study for each study of these runs; refuse all runs if one of them cannot be repeated.
    Without `options.commands` every command is run, also those that earlier attempts finished. Without `new_code` and
    `old_code` failed runs get the current code, and other runs keep their recorded snapshot."""
    chosen = load_repeatable(runs)
    live = [run for run, status in chosen if not status.state.is_over and status.handle is not None]
    if live:
        listed = ", ".join(run.key for run in live[:5]) + (f" and {len(live) - 5} more" if len(live) > 5 else "")
        raise UsageError(f"still running: {listed}", f"stop it first: {show_command(['stop'], *live[0].words)}")
    by_location: dict[StudyLocation, list[RunStatus]] = {}
    for run, status in chosen:
        asked = options.commands or ()
        check_known("command", asked, status.commands)
        finished = status.history.finished_commands()
        if missing := [name for name in status.commands if asked and name not in asked and name not in finished]:
            more = " ".join(f"-c {name}" for name in missing)
            what = f"{missing[0]} has not finished well in any attempt, so {asked[0]} alone would not make it done"
            raise UsageError(f"{run.key}: {what}", f"run it as well: {more}, or leave out -c to run everything")
        named = replace(status.record.spec, name=os.path.basename(run.dir))
        by_location.setdefault(run.location, []).append(replace(status, record=replace(status.record, spec=named)))
    options = replace(options, force=True, names_runs=True)
    return [_prepare(location, statuses, options) for location, statuses in by_location.items()]


def load_repeatable(runs: Sequence[FoundRun]) -> list[tuple[FoundRun, RunStatus]]:
    """Return the runs that are not damaged, with their states; refuse received runs and runs without a command."""
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
    damaged = [run for run in runs if run_directory.try_record(run.dir) is None]
    return [f"{run.key} is damaged: {describe_damage(run.dir)}" for run in damaged]


def leave_out_received(runs: list[FoundRun], console: Console) -> list[FoundRun]:
    """Leave out uploads that were not adopted. If there are only uploads, return them all, to be refused later."""
    own = [run for run in runs if not is_foreign(run.dir)]
    if own and len(own) < len(runs):
        count, verb = len(runs) - len(own), "was" if len(runs) - len(own) == 1 else "were"
        console.error(f"{render_count(count, 'run')} {verb} uploaded and {'is' if count == 1 else 'are'} not executed")
    return own or runs


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


# ---------------------------------------------------------------- the farm


def choose_rerun_farm(
    study: Study, asked: str | None, settings: Settings, statuses: Sequence[RunStatus]
) -> Farm | None:
    """Return the requested farm; without a request, a farm if a run was on one, else None, which is this machine."""
    if asked is not None:
        return choose_asked_farm(study, asked, settings)
    engine = _find_engine(statuses)
    farm = choose_farm(study, None, settings) if engine else None
    if engine and farm is None:
        text = f"{study.name} ran on a farm ({engine}), and it is not known on which to run it again"
        raise UsageError(text, "name it: --on FARM; on this machine: --on local")
    return farm


def _find_engine(statuses: Sequence[RunStatus]) -> str:
    """Return the farm executor of the first run whose last attempt was on a farm; an empty string if there is none."""
    handles = [status.handle for status in statuses if status.handle is not None]
    return next((handle.executor for handle in handles if handle.executor != LOCAL), "")


def _load_farms(location: StudyLocation, record: RunRecord) -> dict[str, Any]:
    """Return the farms of the study's current file, else of its kept copy; an empty dict if neither can be read."""
    kept = run_directory.load_file(location.dir, record.file_hash) if record.file_hash else None
    for text in (None, kept) if os.path.isfile(record.source) else (kept,):
        with suppress(AssayError, OSError):
            study = load_study(record.source, LoadOptions(dialect=record.dialect, text=text))
            return {"farms": study.farms, "farm": study.farm}
    return {}


# ---------------------------------------------------------------- new runs with changes


def prepare_variations(runs: Sequence[FoundRun], change: RunOptions) -> list[Prepared]:
    """Return one supervised study for each study, and version of its file, that these runs belong to. `change`: what
    the new runs have in addition to their parents (`overrides`, `settings`, `from_checkpoint`), and their code: with
    `old_code` the parent's code is kept even if the parent failed."""
    found = load_repeatable(runs)
    settings = load_settings(os.getcwd(), os.environ)
    groups: dict[tuple[StudyLocation, str, str, CodePolicy], list[tuple[Study, Plan, dict[str, Origin]]]] = {}
    for run, status in found:
        study, plan, origins = _vary(run, status, change, settings)
        key = (run.location, study.text, study.folder, study.code)
        groups.setdefault(key, []).append((study, plan, origins))
    prepared = []
    for (location, *_), parts in groups.items():
        study, plan, _ = parts[0]
        specs: dict[str, RunSpec] = {}
        names: set[str] = set()
        for spec in (spec for _, each, _ in parts for spec in each.runs):
            name = spec.name if spec.name not in names else f"{spec.name}~{spec.id[:8]}"
            if spec.id not in specs:  # runs that differ only in what was changed become one
                specs[spec.id] = replace(spec, name=name)
                names.add(name)
        origins = {id_: origin for *_, own in reversed(parts) for id_, origin in own.items()}
        options = replace(change, file=study.source, root=location.root, origins=origins)
        farm = choose_rerun_farm(study, options.on, settings, [status for _, status in found])
        rules = find_rules(study.dialect)
        plan = rules.find_known(replace(plan, runs=tuple(specs.values())), location)
        prepared.append(rules.complete(Prepared(study, plan, location, True, farm, settings, options)))
    return prepared


def _vary(
    run: FoundRun, status: RunStatus, change: RunOptions, settings: Settings
) -> tuple[Study, Plan, dict[str, Origin]]:
    record = status.record
    folder = _find_folder(run, record)
    study = _load(run, record, change, folder)
    drawn = [name for name, axis in study.overrides.items() if isinstance(axis, Random)]
    if drawn and study.subset is None:
        raise UsageError(f"{drawn[0]} is random, and the number of values to draw is not known", "list them: A,B,C")
    study = replace(study, search=None, subset=study.subset if drawn else None)
    is_live = record.code_hash is None
    code = replace(study.code, kind="live" if is_live else "snapshot")
    study = replace(study, name=run.location.name, code=code, source=record.source)
    names = NameSource(random.Random(), datetime.now(), exists=os.path.exists)  # noqa: DTZ005 local time
    plan = build_plan(study, names, settings.secrets)
    plan = replace(plan, runs=tuple(find_rules(study.dialect).choose_varied(plan.runs, record)))
    shown = [hide_assignment(text, settings.secrets) for text in change.overrides]
    takes_current = change.new_code or (_is_repaired(run, status, folder) and not change.old_code)
    origin = Origin(
        parent=run.location.key(run.dir),
        overrides=_join_assignments(record.overrides, shown),
        settings=tuple(hide_assignment(text, settings.secrets) for text in _find_settings(run, record, change)),
        code_hash=None if takes_current or is_live else _check_code(run, record),
        commit=record.commit,
        failed_code=record.code_hash if takes_current else None,
    )
    study, plan = replace(study, warnings=()), replace(plan, warnings=())  # the first call for the file has shown them
    return study, plan, dict.fromkeys((spec.id for spec in plan.runs), origin)


def _is_repaired(run: FoundRun, status: RunStatus, folder: str) -> bool:
    """Whether a new run gets the current code without --new-code: its parent failed, and the code's folder exists."""
    record = status.record
    if status.state not in RETRY["failed"] or record.code_hash is None or not find_dialect(record.dialect).renews_code:
        return False
    return bool(_check_code(run, record)) and folder != os.path.join(run.dir, layout.CODE_DIR)


def _find_settings(run: FoundRun, record: RunRecord, change: RunOptions) -> tuple[str, ...]:
    """Return the parent's assignments of --set, joined with the assignments of this call."""
    found = _join_assignments(record.settings, change.settings)
    for text in found:
        if HIDDEN in text and text not in change.settings:
            name, hint = text.partition("=")[0], f"give it again: --set {text.partition('=')[0]}=…"
            raise UsageError(f"{run.key}: the value of {name} is secret and was not kept", hint)
    return found


def _join_assignments(old: Iterable[str], new: Iterable[str]) -> tuple[str, ...]:
    """Join the assignments `old` and `new`; a new assignment replaces an old one of the same name."""
    return tuple({text.partition("=")[0].strip(): text for text in (*old, *new)}.values())


# ---------------------------------------------------------------- the kept study file


def _find_folder(run: FoundRun, record: RunRecord) -> str:
    """Return the folder in which the study was started, to which paths in the study's file are relative."""
    folder = record.workdir
    if record.code_hash is not None:
        try:
            folder = load_snapshot(_find_store(run), record.code_hash).source
        except (OSError, AssayError):
            folder = os.getcwd()
    return folder if os.path.isdir(folder) else os.path.join(run.dir, layout.CODE_DIR)


def _find_store(run: FoundRun) -> str:
    return os.path.join(run.location.dir, layout.STUDY_META_DIR, layout.CODE_STORE_DIR)


def _check_code(run: FoundRun, record: RunRecord) -> str:
    try:
        load_snapshot(_find_store(run), str(record.code_hash))
    except (OSError, AssayError) as error:
        raise UsageError(f"the code snapshot of {run.key} is gone", "use the current code: --new-code") from error
    return str(record.code_hash)


def _load(run: FoundRun, record: RunRecord, change: RunOptions, folder: str) -> Study:
    """Load the study from the kept copy, else from its file; for --from checkpoint, from the first with `resume:`."""
    kept = run_directory.load_file(run.location.dir, record.file_hash) if record.file_hash is not None else None
    texts: list[str | None] = [] if kept is None else [kept]  # None: the file
    current = os.path.join(folder, record.source)
    texts += [None] if record.source and os.path.isfile(current) else []
    if not texts:
        hint = "write it again, and use: " + build_command(("assay", "run"), ["FILE"], change.overrides)
        raise UsageError(f"the study file of {run.key} is gone: {record.source or 'it had none'}", hint)
    settings = _find_settings(run, record, change)
    options = LoadOptions(dialect=record.dialect, cwd=folder, settings=settings)
    for text in texts:
        versions = replace(options, text=text)
        params = _find_params(run, record, change, versions)
        if not change.from_checkpoint:
            return load_study(record.source, replace(versions, base=params, overrides=change.overrides))
        plain = load_study(record.source, replace(versions, base=params))
        if plain.resume is not None:
            given = [each for each in change.overrides if each.partition("=")[0].strip() == plain.resume.param]
            if given:
                raise UsageError(f"{given[0]} and --from checkpoint contradict each other", "leave out one of them")
            params = {**params, plain.resume.param: find_checkpoint(run, plain.resume.files)}
            return load_study(record.source, replace(versions, base=params, overrides=change.overrides))
    by_hand = show_command(["rerun"], run.location, os.path.basename(run.dir), options=["NAME=PATH"])
    hint = f"add `resume: NAME` with the parameter that takes the path; or give the path: {by_hand}"
    if not find_dialect(record.dialect).is_ours:
        hint = f"{record.dialect}'s files have none; give the path: {by_hand}"
    raise UsageError(f"{record.source} has no `resume:` key, so it is not known how to pass a checkpoint", hint)


def _find_params(run: FoundRun, record: RunRecord, change: RunOptions, options: LoadOptions) -> dict[str, Any]:
    """Return the parent's parameters. Secret values are not in the parent's record and come from the file."""
    params = find_rules(record.dialect).load_params(record)
    given = {text.partition("=")[0].strip() for text in change.overrides}
    secret = [name for name, value in params.items() if HIDDEN in str(value) and name not in given]
    if not secret:
        return params
    before = {text.partition("=")[0].strip() for text in record.overrides}
    try:
        plain = load_study(record.source, options)
    except ConfigError:  # the file alone is incomplete without overrides
        plain = None
    for name in secret:
        axes = [sweep.axes[name] for sweep in plain.sweeps if name in sweep.axes] if plain else []
        values = [value for axis in axes if isinstance(axis, Choices) for value in axis.values]
        values += [plain.defaults[name]] if plain and not values and name in plain.defaults else []
        if name in before or not values or any(value != values[0] for value in values):
            hint = f"give it again: {name}=…"
            raise UsageError(f"{run.key}: the value of {name} is secret and was not kept", hint)
        params[name] = values[0]
    return params


# ---------------------------------------------------------------- checkpoints


def find_checkpoint(run: FoundRun, patterns: Sequence[str] = CHECKPOINT_FILES) -> str:
    """Return the newest checkpoint of a run; raise UsageError if there is none."""
    found = list_checkpoints(run.dir, patterns)
    if not found:
        hint = (
            f"looked for {', '.join(patterns)} in {os.path.relpath(run.dir)}; "
            "`resume: {param: …, files: …}` names other files"
        )
        raise UsageError(f"{run.key} has no checkpoint", hint)
    return os.path.abspath(os.path.join(run.dir, found[0].path))
