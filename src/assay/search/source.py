"""Runs a search. Its trials, the run directories `trial-0000`, `trial-0001`, …, are its only state.

A trial is claimed by creating its directory, in which only one supervisor can succeed. The directories are read again
before each claim, so runs that any supervisor began count as pending, and runs that ended count with their results.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from assay.errors import ConfigError, ExitCode, InfrastructureError, UsageError, did_you_mean
from assay.follow.attempts import RetryPolicy
from assay.follow.collect import read_sources
from assay.follow.entry import Entry
from assay.follow.locations import show_path
from assay.follow.refresh import describe_damage, refresh_study
from assay.launch.prepared import Prepared, StepResult, build_line
from assay.launch.steps import RunContext, RunStep
from assay.launch.supervise import LoopSettings, Supervisor
from assay.reading.ranking import find_front
from assay.record import run_directory
from assay.record.index.sqlite import SqliteIndex
from assay.record.index.stored import Index
from assay.record.received import load_received
from assay.record.search_file import SearchFile, load_search, write_search
from assay.search.optuna_proposals import Proposal, Proposer, SearchTrial, Space, SpacePoint, build_trial, check_optuna
from assay.show.console import SILENT
from assay.show.formatting import render_count, render_number
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import blake2b
from assay.system.locks import locked
from assay.values import layout
from assay.values.run import Plan, RunSpec, State
from assay.values.series import Summary
from assay.values.state import has_result
from assay.values.study import CommandTemplate, Objective, Problem, Search, ShellText, Study
from assay.values.units import CPU

MOST_FAILURES = 5  # after this many failures in a row without a result, no more trials are started
_NAMED = 8  # the largest number of names in a message
_FRONT = 20  # the largest number of trials of a Pareto set that are listed
_LISTED = 20  # the largest number of trials without a result that are named


# ---------------------------------------------------------------- before anything is written


def prepare_search(prepared: Prepared, search: Search) -> Prepared:
    """Compare the search with the recorded one, and find the trials that exist."""
    study, asked = prepared.study, prepared.options.extras.get("search")
    _refuse_options(prepared)
    space = Space(study.sweeps, prepared.settings.secrets)
    if space.count is not None and space.count < 2:
        _refuse_nothing(prepared, search)
    check_optuna(search)
    commands = {template.name: _hash(template) for template in study.commands}
    described = tuple(space.describe())
    taken = _find_numbers(prepared.location.dir)
    known = load_search(prepared.location.dir)
    first = max(taken, default=-1) + 1 if asked == "new" else known.first if known is not None else 0
    wanted = SearchFile(search.sampler, search.objectives, search.seed, search.at, described, commands, first)
    if known is not None and asked is None:
        _refuse_changes(prepared, known, wanted)
    samples, warnings = _build_samples(prepared, space)
    warnings = (*warnings, *_find_seeds(study, space), *_find_other_runs(prepared))
    prepared = replace(prepared, search=wanted, samples=samples)
    found = [_load_trial(prepared, space, number) for number in sorted(taken) if number >= wanted.first]
    outside = [each.name for each in found if isinstance(each, _Outside) and not each.is_damaged]
    if outside and asked == "continue":
        message = f"{render_count(len(outside), 'earlier trial')} outside of the space, not counted: {_name(outside)}"
        warnings = (*warnings, Problem(message))
    runs = tuple(each[0] for each in found if not isinstance(each, _Outside))
    return replace(prepared, plan=Plan(study, runs, (), warnings, is_hidden=True))


def _refuse_options(prepared: Prepared) -> None:
    options, again = prepared.options, prepared.options.again
    new = f": {again.build('--search', 'new')}" if again else ""
    if options.force:
        hint = f"repeat a trial by its name with `assay rerun`, or begin the search again{new}"
        raise UsageError("--force does not go with a search", hint)
    if options.sample is not None:
        raise UsageError("--sample does not go with a search", "a search chooses its runs itself; remove --sample")
    if options.where is not None:
        hint = "a search chooses its runs itself; repeat some of its trials with `assay rerun STUDY --where …`"
        raise UsageError("--where does not go with a search", hint)


def _refuse_nothing(prepared: Prepared, search: Search) -> NoReturn:
    given, again = ", ".join(prepared.study.overrides), prepared.options.again
    if given:
        hint = f"run it without a search: {again.build('--set', 'search=null') if again else '--set search=null'}"
        raise UsageError(
            f"there is nothing to search: with the {given} of this call every parameter has one value", hint
        )
    hint = "list several values for a parameter, or give it a range as in {uniform: [0, 1]}; or remove `search`"
    message = "there is nothing to search: every parameter has a single value"
    raise ConfigError([Problem(message, "search", search.position, hint)])


def _refuse_changes(prepared: Prepared, known: SearchFile, new: SearchFile) -> None:
    changes = list(_find_changes(known, new))
    if not changes:
        return
    again = prepared.options.again
    go_on, begin = (again.build("--search", word) if again else f'search="{word}"' for word in ("continue", "new"))
    name = prepared.study.source or f"study {prepared.study.name!r}"
    raise UsageError(
        f"{name} asks for another search than was begun in {show_path(prepared.location.dir)}:\n"
        + "\n".join(f"    {line}" for line in changes),
        f"go on, with the trials that are in the new space: {go_on}\n"
        f"    or begin again, and keep the earlier trials as runs: {begin}",
    )


def _find_changes(known: SearchFile, new: SearchFile) -> Iterator[str]:
    """Yield one line for each difference between two searches; the numbers of their first trials may differ."""
    yield from _compare_facts(_list_facts(known), _list_facts(new))
    for index, (old, other) in enumerate(zip(known.space, new.space, strict=False)):
        yield from _compare_facts(old, other, f"sweep[{index}]." if len(known.space) > 1 else "")
    if len(known.space) != len(new.space):
        yield f"sweep: {len(known.space)} items → {len(new.space)}"


def _list_facts(file: SearchFile) -> dict[str, Any]:
    directions = {f"direction of {each.metric}": each.direction for each in file.objectives}
    commands = {f"command {name}": text for name, text in file.commands.items()}
    metrics = ", ".join(each.metric for each in file.objectives)
    return {"sampler": file.sampler, "metric": metrics, **directions, "seed": file.seed, "at": file.at, **commands}


def _compare_facts(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name in dict.fromkeys((*old, *new)):
        shown = prefix + name
        if name not in new:
            yield f"{shown}: removed"
        elif name not in old:
            yield f"{shown}: added"
        elif json.dumps(old[name]) != json.dumps(new[name]):
            texts = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in (old[name], new[name])]
            yield f"{shown}: changed" if shown.startswith("command ") else f"{shown}: {' → '.join(texts)}"


def _hash(template: CommandTemplate) -> str:
    pieces = [piece.text if isinstance(piece, ShellText) else repr(piece) for piece in template.pieces]
    return blake2b("\0".join(pieces).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _build_samples(prepared: Prepared, space: Space) -> tuple[tuple[RunSpec, ...], tuple[Problem, ...]]:
    """Build sample runs of each sweep; return them, and warnings about parameters that its commands do not use."""
    specs, warnings = [], dict.fromkeys(prepared.study.warnings)
    for point in _choose_samples(space):
        params = space.build_params(point)
        spec, problems = build_trial(prepared.study, params, point.sweep, 0, prepared.settings.secrets)
        specs.append(spec)
        warnings.update(dict.fromkeys(problems))
    return tuple(specs), tuple(warnings)


def _find_seeds(study: Study, space: Space) -> Iterator[Problem]:
    """Yield a warning for each seed among the parameters: a search would prefer lucky seeds."""
    names = {name for branch in space.branches for each in branch.dimensions for name in each.names}
    for name in sorted(each for each in names if each.lower().replace("-", "_").rpartition("_")[2] == "seed"):
        position = next((sweep.axes[name].position for sweep in study.sweeps if name in sweep.axes), None)
        hint = f"give it one value, and repeat the best trial with others: `assay rerun` takes {name}=1,2,3"
        yield Problem("the search chooses the luckiest seed, not the best parameters", name, position, hint)


def _find_other_runs(prepared: Prepared) -> Iterator[Problem]:
    folder = prepared.location.dir
    dirs = run_directory.find_run_dirs(folder) if os.path.isdir(folder) else ()
    others = [name for name in map(os.path.basename, dirs) if layout.parse_trial_name(name) is None]
    if others:
        what = f"{render_count(len(others), 'run')} of this study that no search proposed"
        yield Problem(f"the sampler is not given the results of {what}: {_name(others)}", "search")


def _name(runs: Sequence[str]) -> str:
    return ", ".join(runs[:_NAMED]) + (" …" if len(runs) > _NAMED else "")


def _choose_samples(space: Space) -> Iterator[SpacePoint]:
    """Yield points that cover each type of value: a command that accepts a number may not accept a null."""
    for sweep, branch in enumerate(space.branches):
        first = tuple(0 if each.axis is None else each.axis.low for each in branch.dimensions)
        yield SpacePoint(sweep, first)
        for index, dimension in enumerate(branch.dimensions):
            kinds = {tuple(map(type, row)): place for place, row in reversed([*enumerate(dimension.rows)])}
            for place in sorted(kinds.values())[1:]:
                yield SpacePoint(sweep, (*first[:index], place, *first[index + 1 :]))


@dataclass(frozen=True, slots=True)
class _Outside:
    """A directory that is not a trial of this search: it belongs to an earlier space, or its record is unreadable."""

    name: str
    is_damaged: bool = False  # a damaged trial has no known point; it counts, so that `trials` is not exceeded


def _find_numbers(study_dir: str) -> set[int]:
    """Return the numbers of all names of trials that are taken, whether by a run or by another file or folder."""
    try:
        found = (layout.parse_trial_name(name) for name in os.listdir(study_dir))
    except (FileNotFoundError, NotADirectoryError):
        return set()
    return {number for number in found if number is not None}


def _load_trial(prepared: Prepared, space: Space, number: int) -> tuple[RunSpec, SearchTrial] | _Outside:
    name = layout.trial_name(number)
    run_dir = os.path.join(prepared.location.dir, name)
    received = load_received(run_dir)
    if received is not None and received.is_foreign:  # an upload is not a trial
        return _Outside(name)
    record = run_directory.try_record(run_dir)
    is_ours = record is not None and record.trial == number
    if record is not None and record.search_from is not None and prepared.search is not None:
        is_ours = is_ours and record.search_from == prepared.search.first  # an earlier search may still be running
    point = space.locate(record.spec.params, record.spec.sweep) if record is not None and is_ours else None
    if record is None or point is None:
        is_run = os.path.exists(os.path.join(run_dir, layout.JOB_FILE))  # without job.sh, it is a user's folder
        return _Outside(name, is_damaged=record is None and is_run)
    rules = prepared.settings.secrets
    spec, _ = build_trial(prepared.study, space.build_params(point), point.sweep, number, rules)
    # a run with commands of an earlier version of the file keeps them; commands of another user's file are never used
    is_of_file = spec.id == record.spec.id or (received is not None and received.needs_code)
    return spec if is_of_file else record.spec, SearchTrial(number, point, kept=record.search)


# ---------------------------------------------------------------- while it runs


def count_wanted(search: Search, space: Space) -> int:
    """Return how many trials the search has at its end."""
    return min((each for each in (search.trials, space.count) if each is not None), default=0)


class SearchSource:
    """Proposes trials, one for each free slot, until the search has enough trials."""

    def __init__(
        self,
        prepared: Prepared,
        index: Index,
        entries: Sequence[Entry],
        create: Callable[[Entry], bool],
        build_entry: Callable[[RunSpec], Entry],
        settle: Callable[[], bool] = lambda: True,
    ) -> None:
        """`settle` writes collected points into the index, and returns False if some points could not be written."""
        assert prepared.study.search is not None
        assert prepared.search is not None
        self._prepared, self._index = prepared, index
        self._create, self._build_entry, self._settle = create, build_entry, settle
        self._search, self._first = prepared.study.search, prepared.search.first
        self._space = Space(prepared.study.sweeps, prepared.settings.secrets)
        self._proposer = Proposer(self._space, self._search)
        self._wanted = count_wanted(self._search, self._space)
        self._known: dict[int, _Known] = {}
        self._taken: set[int] = set()  # includes the numbers of directories that are not trials
        self._damaged: dict[int, str] = {}
        for entry in entries:
            self._note(int(entry.spec.name.removeprefix(layout.TRIAL_PREFIX)), entry)
        self.failure: str | None = None
        self.is_exhausted = False

    def count_left(self) -> int:
        return 0 if self.failure or self.is_exhausted else max(0, self._wanted - len(self._known) - len(self._damaged))

    def take(self, supervisor: Supervisor) -> Sequence[Entry]:
        """Return the trials that other supervisors began since the last call; if there are none, claim a new one."""
        found = self._find_new()
        if found or not self.count_left():
            return found
        supervisor.look_at_others()
        number = max(self._taken, default=-1) + 1
        proposal = self._propose(number)
        if proposal is None:
            return ()
        entry = self._build_entry(self._build_spec(proposal, number))
        entry.trial, entry.search_from, entry.kept = number, self._first, proposal.kept
        if not self._create(entry):
            self._note(number, None)  # another supervisor was faster, or another file has this name
            return [self._known[number].entry] if number in self._known else ()
        entry.is_here = True
        self._taken.add(number)
        self._known[number] = _Known(entry, SearchTrial(number, proposal.point, kept=proposal.kept))
        return [entry]

    def prepare(self) -> None:
        if self.count_left():
            self._proposer.prepare(max(self._taken, default=-1) + 1)

    def propose_next(self) -> RunSpec | None:
        """Return the run of the trial that would be started next; None if no trial would be."""
        self._find_new()
        number = max(self._taken, default=-1) + 1
        proposal = self._propose(number) if self.count_left() else None
        return self._build_spec(proposal, number) if proposal is not None else None

    def _propose(self, number: int) -> Proposal | None:
        trials = self._load_trials()
        self._check_results()
        if self.failure:
            return None
        proposal = self._proposer.propose(trials, number)
        self.is_exhausted = proposal is None
        return proposal

    def _build_spec(self, proposal: Proposal, number: int) -> RunSpec:
        rules = self._prepared.settings.secrets
        return build_trial(self._prepared.study, proposal.params, proposal.point.sweep, number, rules)[0]

    def _find_new(self) -> list[Entry]:
        numbers = sorted(_find_numbers(self._prepared.location.dir) - self._taken)
        return [entry for number in numbers if (entry := self._note(number, None)) is not None]

    def _note(self, number: int, entry: Entry | None) -> Entry | None:
        self._taken.add(number)
        found = _load_trial(self._prepared, self._space, number) if number >= self._first else None
        if isinstance(found, _Outside) and found.is_damaged:
            self._damaged[number] = found.name
        if found is None or isinstance(found, _Outside):
            return None
        spec, trial = found
        entry = entry or self._build_entry(spec)
        entry.trial, entry.kept = number, trial.kept
        self._known[number] = _Known(entry, trial)
        return entry

    # ------------------------------------------------------------ results

    def _load_trials(self) -> list[SearchTrial]:
        """Return all trials by number, with the results of the trials that have ended since the last call."""
        known = self._known.values()
        if ended := [each for each in known if each.seen != (each.entry.state, each.entry.attempt)]:
            summaries = self._load_summaries([each.entry for each in ended])
            for each in ended:
                each.conclude(self._search, summaries.get(self._prepared.location.key(each.entry.dir), {}))
        return [self._known[number].trial for number in sorted(self._known)]

    def _load_summaries(self, entries: Sequence[Entry]) -> Mapping[str, Mapping[str, Summary]]:
        """Load summaries of ended runs; the files of runs that did not end under this supervisor are read first."""
        location = self._prepared.location
        keys = {location.key(entry.dir): entry for entry in entries if entry.state in (State.DONE, State.PRUNED)}
        found: dict[str, Mapping[str, Summary]] = {}
        is_whole = self._settle()
        with suppress(InfrastructureError):
            if not all(entry.finished_here for entry in keys.values()):
                refresh_study(self._index, location, SILENT)
            found.update(self._index.load_summaries(keys=list(keys)))
        metrics = {each.metric for each in self._search.objectives}
        doubtful = {key: each for key, each in keys.items() if not is_whole or metrics - found.get(key, {}).keys()}
        if not doubtful:
            return found
        with SqliteIndex(":memory:") as index:  # the stored index may be broken, and must not affect proposals
            for key, entry in doubtful.items():
                with suppress(OSError):
                    read_sources(index, key, entry.dir, entry.spec)
            return {**found, **index.load_summaries(keys=list(doubtful))}

    def _check_results(self) -> None:
        """Set the failure if further trials are pointless: a trial lacks a metric, or trials fail one after another."""
        ended = [known for known in self._known.values() if known.trial.state != "running"]
        if self.failure or any(known.trial.state in ("done", "pruned") for known in ended):
            return
        without = next((known for known in ended if known.missing), None)
        if without is not None:
            there = ", ".join(without.names[:_NAMED]) or "no metric at all"
            close = did_you_mean(without.missing[0], without.names)
            self.failure = (
                f"{without.entry.spec.name} is done and did not record {', '.join(without.missing)}; "
                f"it recorded {there}{f'; {close}' if close else ''}; no more trials are started"
            )
            return
        failed = [known for known in ended if known.entry.finished_here]
        if len(failed) >= MOST_FAILURES:
            outcome = failed[-1].entry.outcome
            reason = failed[-1].why or (outcome.reason if outcome else "")
            self.failure = (
                f"no trial has a result and {len(failed)} have failed, the last one with: {reason}; no more are started"
            )

    # ------------------------------------------------------------ at the end

    def build_result(self) -> StepResult:
        trials = self._load_trials()
        self._check_results()
        known = [self._known[trial.number] for trial in trials]
        best = find_best([each.trial for each in known], self._search.objectives)
        states = [trial.state for trial in trials]
        lines = [self._describe(trial) for trial in best[:_FRONT]]
        if self.is_exhausted or (self._space.count is not None and len(known) >= self._space.count):
            lines.insert(0, f"every combination has been tried: {render_count(len(known), 'trial')}")
        failed = {each.entry.spec.name: each.why for each in known if each.why}
        warnings = [f"{name} counts as failed: {why}" for name, why in list(failed.items())[:_LISTED]]
        for number in sorted(self._damaged)[:_LISTED]:
            damage = describe_damage(os.path.join(self._prepared.location.dir, self._damaged[number]))
            warnings.append(f"{self._damaged[number]} counts as a trial without a result: {damage}")
        codes = {ExitCode.FAILED if failed or self.failure else ExitCode.OK}
        facts = {
            "best": [self._build_row(trial) for trial in best],
            "trials": {state: states.count(state) for state in ("done", "pruned", "failed", "running")},
            "failed": failed,
            "failure": self.failure,
        }
        return StepResult(
            lines=tuple(lines),
            warnings=(*warnings, *([self.failure] if self.failure else [])),
            exit_code=ExitCode.worst(codes | ({ExitCode.INTERNAL} if self._damaged else set())),
            facts={"search": facts},
        )

    def _build_row(self, trial: SearchTrial) -> dict[str, Any]:
        spec = self._known[trial.number].entry.spec
        values = dict(zip((each.metric for each in self._search.objectives), trial.values, strict=True))
        return {"trial": trial.number, "name": spec.name, "values": values, "params": dict(spec.params)}

    def _describe(self, trial: SearchTrial) -> str:
        row = self._build_row(trial)
        values = ", ".join(f"{name} {render_number(value)}" for name, value in row["values"].items())
        branch = self._space.branches[trial.point.sweep]
        # fixed parameters are listed if they differ between sweeps
        fixes = [each.fixed for each in self._space.branches]
        fixed = [name for name, value in branch.fixed.items() if any(each.get(name) != value for each in fixes)]
        searched = [*fixed, *(name for each in branch.dimensions for name in each.names)]
        params = ", ".join(f"{name}={row['params'][name]}" for name in searched)
        what = "best" if len(self._search.objectives) == 1 else "Pareto set"
        return f"{what}: {row['name']}: {values}" + (f" ({params})" if params else "")


@dataclass(slots=True)
class _Known:
    """A trial, with the part of its result that has been read."""

    entry: Entry
    trial: SearchTrial
    seen: tuple[State, int] | None = None  # state and attempt at which `trial` was built
    why: str = ""  # why a finished run has no usable result
    missing: tuple[str, ...] = ()  # metrics that the run did not record
    names: tuple[str, ...] = ()  # metrics that the run recorded

    def conclude(self, search: Search, summaries: Mapping[str, Summary]) -> None:
        state = self.entry.state
        self.seen, self.why, self.missing = (state, self.entry.attempt), "", ()
        plain = replace(self.trial, state="running", values=(), step=0)
        self.trial = replace(plain, state="failed") if state.is_over else plain
        if has_result(state, self.entry.outcome.cause if self.entry.outcome else ""):
            self._conclude_done(search, summaries, plain)
        elif state is State.PRUNED:
            summary = summaries.get(search.objectives[0].metric)
            is_known = summary is not None and math.isfinite(summary.last)
            values, step = ((summary.last,), int(summary.last_step or 0)) if summary and is_known else ((), 0)
            self.trial = replace(plain, state="pruned", values=values, step=step)

    def _conclude_done(self, search: Search, summaries: Mapping[str, Summary], plain: SearchTrial) -> None:
        self.names = tuple(summaries)
        self.missing = tuple(each.metric for each in search.objectives if each.metric not in summaries)
        if self.missing:
            self.why = f"it did not record {', '.join(self.missing)}"
            return
        values = tuple(pick_value(summaries[each.metric], search, each) for each in search.objectives)
        lasts = (summaries[each.metric].last for each in search.objectives)  # a training that diverged has no result
        results = [
            (each.metric, value if math.isfinite(last) else last)
            for each, value, last in zip(search.objectives, values, lasts, strict=True)
        ]
        self.why = ", ".join(f"{metric} is {result:g}" for metric, result in results if not math.isfinite(result))
        if not self.why:
            self.trial = replace(plain, state="done", values=values)


def pick_value(summary: Summary, search: Search | SearchFile, objective: Objective) -> float:
    """Return the value of a metric that is the result of a run, by `at` of the search."""
    at = objective.direction if search.at == "best" else search.at
    return {"last": summary.last, "min": summary.min, "max": summary.max, "mean": summary.mean}[at]


def find_best(trials: Sequence[SearchTrial], objectives: Sequence[Objective]) -> list[SearchTrial]:
    """Return the best trial; for several objectives all trials that no other is better than (the Pareto set)."""
    signs = [1.0 if each.direction == "min" else -1.0 for each in objectives]
    done = [trial for trial in trials if trial.state == "done"]
    costs = [tuple(sign * value for sign, value in zip(signs, trial.values, strict=True)) for trial in done]
    front = sorted(find_front(costs))
    return [done[i] for i in (front[:1] if len(objectives) == 1 else front)]


# ---------------------------------------------------------------- beginning, and a dry run


def find_next_trial(prepared: Prepared) -> RunSpec | None:
    """Return the next trial that would be proposed; nothing is written, not even into the index."""

    def build_entry(spec: RunSpec) -> Entry:
        return Entry(spec, prepared.dir_of(spec), RetryPolicy())

    with SqliteIndex(":memory:", prepared.location.root) as index:
        refresh_study(index, prepared.location, SILENT)
        rows = {row.name: row for row in index.load_runs([prepared.location.name])}
        entries = [
            replace(build_entry(spec), state=rows[spec.name].state, attempt=rows[spec.name].attempt)
            for spec in prepared.plan.runs
            if spec.name in rows
        ]
        return SearchSource(prepared, index, entries, lambda _entry: False, build_entry).propose_next()


class SearchStep(RunStep):
    """The search as a step of `assay run`."""

    _source: SearchSource | None = None

    def prepare(self, prepared: Prepared) -> Prepared:
        if prepared.study.search is None:
            raise UsageError(f"{prepared.study.source} has no search", "leave out --search")
        return prepare_search(prepared, prepared.study.search)

    def complete(self, prepared: Prepared) -> Prepared:
        """Add the trial that would be proposed next to the runs of the plan."""
        spec = find_next_trial(prepared)
        return replace(prepared, plan=replace(prepared.plan, runs=(*prepared.plan.runs, *([spec] if spec else ()))))

    def describe_plan(self, prepared: Prepared) -> Iterable[str]:
        """Yield lines that describe the search, its space, and the trial that would be proposed next."""
        search, spec = prepared.study.search, find_next_trial(prepared)
        assert search is not None
        metrics = ", ".join(f"{each.metric} ({each.direction})" for each in search.objectives)
        yield f"# search: {search.sampler}, {metrics}, at {search.at}, seed {search.seed}"
        space = Space(prepared.study.sweeps, prepared.settings.secrets)
        for sweep in space.describe():
            yield f"# space: {', '.join(f'{name}: {json.dumps(value)}' for name, value in sweep.items())}"
        yield f"# trials: {len(prepared.plan.runs)} of {count_wanted(search, space)}"
        if spec is not None:
            yield f"# next: {spec.name}"
            for command in spec.commands:
                yield build_line(prepared, spec, command.text)

    def begin(self, context: RunContext, loop: LoopSettings) -> LoopSettings:
        prepared, collector = context.prepared, context.collector
        if prepared.search is None:  # trials are repeated without a search
            return loop

        def settle() -> bool:
            collector.flush()
            return collector.failure is None

        folder = prepared.location.dir
        with locked(os.path.join(folder, layout.STUDY_META_DIR)):
            known = load_search(folder)  # another supervisor may have begun a search after the comparison
            if known is not None and "search" not in prepared.options.extras:
                _refuse_changes(prepared, known, prepared.search)
            if known != prepared.search:
                write_search(folder, prepared.search)
        self._source = SearchSource(prepared, context.index, context.entries, loop.create, context.build_entry, settle)
        # a farm accepts any number of jobs, but if all trials were proposed at once, no result could guide the search
        most = len(prepared.options.slots or prepared.study.slots or (CPU,)) if context.pool is None else None
        return replace(loop, source=self._source, limit=loop.limit or most)

    def build_result(self) -> StepResult | None:
        return self._source.build_result() if self._source is not None else None
