"""Proposes the next trial of a search by Optuna: a function of the space, the search and the trials so far.

The result does not depend on a sampler's memory: for each proposal a new sampler is seeded by the search's seed and the
trial's number, and gets all trials in the order of their numbers. So equal trials give equal proposals, in whichever
process, and however often a process was killed before.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from math import prod
from typing import Any, Literal

from assay.errors import MissingExtraError
from assay.plan.expand import build_plan
from assay.plan.grid import Grid, round_drawn, shuffled
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import blake2b
from assay.values import layout
from assay.values.run import RunSpec, canonical
from assay.values.secrets import DEFAULT_RULES, SecretRules, hide_params
from assay.values.study import Choices, Params, Problem, Random, Search, Study, Sweep, Value

_SWEEP = "@sweep"  # name of the choice among several sweeps; no parameter of a file has this name
_REDRAWS = 10  # after this many proposals that were tried before, the next untried combination is taken
_KEEPS = {"cmaes": "trial", "qmc": "study"}  # sampler → the owner of the attributes that it needs in later calls


# ---------------------------------------------------------------- the space


@dataclass(frozen=True, slots=True)
class Dimension:
    """Parameters that are chosen together: a single parameter, or those of a zip."""

    key: str  # the name that Optuna gets
    names: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...] = ()  # listed values
    axis: Random | None = None  # a range of values, instead of listed values
    is_ordered: bool = False  # whether the listed values are equally spaced whole numbers

    @property
    def count(self) -> int | None:
        """The number of values; None if the range is continuous."""
        if self.axis is None:
            return len(self.rows)
        is_continuous = self.axis.kind in ("uniform", "log_uniform")
        return None if is_continuous else int(self.axis.high) - int(self.axis.low) + 1

    def locate(self, values: tuple[Value, ...]) -> float | None:
        if self.axis is None:
            wanted = canonical(values)
            return next((index for index, row in enumerate(self.rows) if canonical(row) == wanted), None)
        value = values[0]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not self.axis.low <= value <= self.axis.high:
            return None
        return value if self.count is None or value == int(value) else None


@dataclass(frozen=True, slots=True)
class SpacePoint:
    """A point of the space: the number of a sweep, and a position in each of the sweep's dimensions."""

    sweep: int
    positions: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Branch:
    names: tuple[str, ...]  # names of all parameters, in the file's order
    fixed: Params
    shown: Params  # the fixed parameters as in a run's record, where secrets are hidden
    dimensions: tuple[Dimension, ...]

    @property
    def count(self) -> int | None:
        counts = [each.count for each in self.dimensions]
        return None if None in counts else prod(count for count in counts if count is not None)


class Space:
    """The space of a search: the sweeps of a study, each with its own parameters."""

    def __init__(self, sweeps: Sequence[Sweep], rules: SecretRules = DEFAULT_RULES) -> None:
        self._rules = rules
        branches = [_build_branch(sweep, rules) for sweep in sweeps]
        self.branches = tuple(_rename_keys(branch, index, branches) for index, branch in enumerate(branches))
        counts = [branch.count for branch in self.branches]
        self.count = None if None in counts else sum(count for count in counts if count is not None)

    def build_params(self, point: SpacePoint) -> dict[str, Value]:
        branch = self.branches[point.sweep]
        found = dict(branch.fixed)
        for dimension, position in zip(branch.dimensions, point.positions, strict=True):
            values = dimension.rows[int(position)] if dimension.axis is None else (position,)
            found.update(zip(dimension.names, values, strict=True))
        return {name: found[name] for name in branch.names}

    def locate(self, params: Params, sweep: int = 0) -> SpacePoint | None:
        """Return the point of a run with these parameters; None if they are outside. Sweep `sweep` is tried first."""
        for index in sorted(range(len(self.branches)), key=lambda index: index != sweep):
            branch = self.branches[index]
            if set(params) != set(branch.names):
                continue
            positions = [each.locate(tuple(params[name] for name in each.names)) for each in branch.dimensions]
            is_fixed = canonical({name: params[name] for name in branch.shown}) == canonical(branch.shown)
            if is_fixed and None not in positions:
                return SpacePoint(index, tuple(position for position in positions if position is not None))
        return None

    def order(self, seed: int) -> Iterator[SpacePoint]:
        """Yield every combination once, in random order. The space must be finite."""
        counts = [branch.count or 0 for branch in self.branches]
        starts = [0, *accumulate(counts)]
        for number in shuffled(starts[-1], random.Random(seed)):
            sweep = next(index for index, end in enumerate(starts[1:]) if number < end)
            rest, positions = number - starts[sweep], []
            for dimension in reversed(self.branches[sweep].dimensions):
                rest, index = divmod(rest, dimension.count or 1)
                positions.append(index if dimension.axis is None else int(dimension.axis.low) + index)
            yield SpacePoint(sweep, tuple(reversed(positions)))

    def describe(self) -> list[dict[str, Any]]:
        """Return the parameters of each sweep as JSON, to compare two calls by them. Secrets are hidden."""
        found = []
        for branch in self.branches:
            facts: dict[str, Any] = dict(branch.shown)
            for each in branch.dimensions:
                named = (dict(zip(each.names, row, strict=True)) for row in each.rows)
                rows = [list(hide_params(row, self._rules).values()) for row in named]
                listed = [row[0] if len(row) == 1 else row for row in rows]
                facts[", ".join(each.names)] = (
                    {each.axis.kind: [each.axis.low, each.axis.high]} if each.axis else listed
                )
            found.append(facts)
        return found


def _build_branch(sweep: Sweep, rules: SecretRules) -> _Branch:
    grid = Grid(sweep, distinct=True)
    fixed: dict[str, Value] = {}
    dimensions = {}
    for group in grid.groups:
        if len(group.rows) == 1:
            fixed.update(zip(group.names, group.rows[0], strict=True))
        else:
            key = ", ".join(group.names)
            dimensions[group.names[0]] = Dimension(key, group.names, group.rows, is_ordered=_is_ordered(group.rows))
    for name, axis in grid.random.items():
        dimensions[name] = Dimension(name, (name,), axis=replace(axis, position=None))
    ordered = tuple(dimensions[name] for name in sweep.axes if name in dimensions)
    return _Branch(tuple(sweep.axes), fixed, hide_params(fixed, rules), ordered)


def _is_ordered(rows: Sequence[tuple[Value, ...]]) -> bool:
    numbers = [row[0] for row in rows]
    if len(rows) < 3 or len(rows[0]) != 1 or any(type(number) is not int for number in numbers):
        return False
    step = numbers[1] - numbers[0]
    return step > 0 and numbers == list(range(numbers[0], numbers[-1] + 1, step))


def _rename_keys(branch: _Branch, index: int, branches: Sequence[_Branch]) -> _Branch:
    """Add the sweep to the names of parameters whose values differ between sweeps: Optuna then has two parameters."""

    def rename(dimension: Dimension) -> Dimension:
        same = [each for other in branches for each in other.dimensions if each.key == dimension.key]
        is_same = all(replace(each, key="") == replace(dimension, key="") for each in same)
        return dimension if is_same else replace(dimension, key=f"{dimension.key}@{index}")

    return replace(branch, dimensions=tuple(map(rename, branch.dimensions)))


# ---------------------------------------------------------------- proposals


@dataclass(frozen=True, slots=True)
class SearchTrial:
    """A run of the search as samplers need it. `failed` includes all runs that ended without a usable result."""

    number: int
    point: SpacePoint
    state: Literal["running", "done", "pruned", "failed"] = "running"
    values: tuple[float, ...] = ()  # one value for each objective; a pruned trial has the last reported value
    step: int = 0  # the step of a pruned trial's last report
    kept: Mapping[str, Any] | None = None  # attributes that the sampler needs in later calls


@dataclass(frozen=True, slots=True)
class Proposal:
    point: SpacePoint
    params: Mapping[str, Value]
    kept: Mapping[str, Any] | None = None  # attributes that are stored with the run


def build_trial(
    study: Study, params: Params, sweep: int, number: int, rules: SecretRules = DEFAULT_RULES
) -> tuple[RunSpec, tuple[Problem, ...]]:
    """Build the run of a proposal, and messages about it. Raise ConfigError if a template cannot be filled."""
    origin = study.sweeps[sweep]
    axes = {name: Choices((value,), origin.axes[name].position) for name, value in params.items()}
    single = replace(origin, axes=axes, zips=(), when=())
    plan = build_plan(replace(study, sweeps=(single,), search=None), None, rules)
    return replace(plan.runs[0], name=layout.trial_name(number), sweep=sweep), plan.warnings


def check_optuna(search: Search) -> None:
    """Raise MissingExtraError if the sampler's library is missing, before anything is written. A grid needs none."""
    if search.sampler != "grid":
        _import_optuna(search.sampler)


def _import_optuna(sampler: str) -> Any:
    try:
        import optuna

        if sampler == "cmaes":
            import cmaes  # noqa: F401
        if sampler == "qmc":
            import scipy.stats.qmc  # noqa: F401
    except ImportError:
        raise MissingExtraError(f"search: {{sampler: {sampler}}}", "search") from None
    return optuna


class Proposer:
    """Proposes trials. Optuna's study is reused in the next call if it has the same trials."""

    def __init__(self, space: Space, search: Search) -> None:
        self._space = space
        self._search = search
        self._study: _Study | None = None

    def propose(self, trials: Sequence[SearchTrial], number: int) -> Proposal | None:
        """Propose trial `number`, given the others in the order of their numbers; None if no combination is left."""
        tried, proposal = {trial.point for trial in trials}, None
        if self._space.count is not None and len(tried) >= self._space.count:
            return None
        for redraw in range(_REDRAWS if self._search.sampler != "grid" else 0):
            proposal = self._ask(trials, number, redraw, proposal)
            if proposal.point not in tried:
                return proposal
        if self._space.count is None:
            return proposal
        point = next(point for point in self._space.order(self._search.seed) if point not in tried)
        return Proposal(point, self._space.build_params(point))

    def prepare(self, number: int) -> None:
        """Prepare the proposal of trial `number` while there is time, as far as it does not depend on new results."""
        if self._study is not None:
            self._study.prepare(_mix(self._search.seed, number, 0))

    def _ask(self, trials: Sequence[SearchTrial], number: int, redraw: int, rejected: Proposal | None) -> Proposal:
        optuna = _import_optuna(self._search.sampler)
        with _quiet(optuna):
            if self._study is None or not self._study.follow(trials):
                self._study = _Study(optuna, self._space, self._search, trials)
            if rejected is not None:
                self._study.keep(rejected.kept)  # in a sequence, the next proposal follows the rejected one
            point, kept = self._study.ask(_mix(self._search.seed, number, redraw), number)
        return Proposal(point, self._space.build_params(point), kept)


def _mix(*numbers: int) -> int:
    """Return a seed that differs for each trial: (seed 0, trial 1) and (seed 1, trial 0) have different seeds."""
    return int.from_bytes(blake2b(repr(numbers).encode("ascii"), digest_size=4).digest(), "big") >> 1


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Silence Optuna's messages, and restore the verbosity afterwards for programs that use Optuna themselves."""
    import warnings

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


class _Study:
    """A study of Optuna, kept in memory."""

    def __init__(self, optuna: Any, space: Space, search: Search, trials: Sequence[SearchTrial]) -> None:
        self._optuna, self._space, self._search = optuna, space, search
        self._storage = optuna.storages.InMemoryStorage()
        directions = [f"{each.direction}imize" for each in search.objectives]
        self._study = optuna.create_study(storage=self._storage, directions=directions)
        self._id = self._storage.get_study_id_from_name(self._study.study_name)
        self._distributions = [
            {each.key: _build_distribution(optuna, each) for each in branch.dimensions} for branch in space.branches
        ]
        sweeps = optuna.distributions.CategoricalDistribution(range(len(space.branches)))
        self._sweeps = {_SWEEP: sweeps} if len(space.branches) > 1 else {}
        self._trials: list[SearchTrial] = []
        self._prepared: tuple[int, Any] | None = None  # a seed, and the sampler that was prepared for this seed
        for trial in trials:
            self._add(trial)

    def follow(self, trials: Sequence[SearchTrial]) -> bool:
        """Add the results of trials that have ended since the last call. Return False if the study has other trials."""
        if len(trials) != len(self._trials):
            return False
        for old, new in zip(self._trials, trials, strict=True):
            is_ended = old.state == "running" and replace(new, state="running", values=(), step=0) == old
            if old != new and not is_ended:
                return False
        for index, (old, new) in enumerate(zip(self._trials, trials, strict=True)):
            if old != new:
                trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._id, index)
                for step, value in self._find_report(new).items():
                    self._storage.set_trial_intermediate_value(trial_id, step, value)
                self._storage.set_trial_state_values(trial_id, *self._translate(new))
        self._trials = list(trials)
        return True

    def ask(self, seed: int, number: int) -> tuple[SpacePoint, Mapping[str, Any] | None]:
        """Return the next point, which counts as running from then on, and the attributes that the sampler needs."""
        ahead, sampler = self._prepared or (None, None)
        self._study.sampler = sampler if ahead == seed else _build_sampler(self._optuna, self._search, seed)
        self._prepared = None
        asked = self._study.ask(self._sweeps)
        sweep = int(asked.params.get(_SWEEP, 0))
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._id, asked.number)
        positions = []
        for dimension, (key, kind) in zip(
            self._space.branches[sweep].dimensions, self._distributions[sweep].items(), strict=True
        ):
            value = _suggest(self._optuna, asked, key, kind)
            if dimension.axis is not None:  # rounded, so that the sampler gets the value that the run gets
                value = round_drawn(dimension.axis, value)
                self._storage.set_trial_param(trial_id, key, kind.to_internal_repr(value), kind)
            positions.append(dimension.rows.index((value,)) if dimension.is_ordered else value)
        point, kept = SpacePoint(sweep, tuple(positions)), self._find_kept(trial_id)
        self._trials.append(SearchTrial(number, point, kept=kept))
        return point, kept

    def prepare(self, seed: int) -> None:
        if self._prepared is not None and self._prepared[0] == seed:
            return
        with _quiet(self._optuna):
            sampler = _build_sampler(self._optuna, self._search, seed)
            if self._search.sampler == "tpe" and self._trials:  # the sampler remembers which trials it has read
                sampler.infer_relative_search_space(self._study, self._study.get_trials(deepcopy=False)[-1])
        self._prepared = seed, sampler

    def keep(self, kept: Mapping[str, Any] | None) -> None:
        for key, value in (kept or {}).items() if _KEEPS.get(self._search.sampler) == "study" else ():
            self._storage.set_study_system_attr(self._id, key, value)

    def _find_kept(self, trial_id: int) -> Mapping[str, Any] | None:
        where = _KEEPS.get(self._search.sampler)
        if where == "trial":
            return dict(self._storage.get_trial(trial_id).system_attrs) or None
        if where == "study":
            return dict(self._storage.get_study_system_attrs(self._id)) or None
        return None

    def _add(self, trial: SearchTrial) -> None:
        sweep = trial.point.sweep
        dimensions = self._space.branches[sweep].dimensions
        params = {
            each.key: each.rows[int(position)][0] if each.is_ordered else position
            for each, position in zip(dimensions, trial.point.positions, strict=True)
        }
        state, values = self._translate(trial)
        self._study.add_trial(
            self._optuna.trial.create_trial(
                state=state,
                values=values,
                params={**dict.fromkeys(self._sweeps, sweep), **params},
                distributions={**self._sweeps, **self._distributions[sweep]},
                intermediate_values=self._find_report(trial),
                system_attrs=dict(trial.kept or {}) if _KEEPS.get(self._search.sampler) == "trial" else None,
            )
        )
        self.keep(trial.kept)
        self._trials.append(trial)

    def _translate(self, trial: SearchTrial) -> tuple[Any, Sequence[float] | None]:
        states = self._optuna.trial.TrialState
        if trial.state == "done":
            return states.COMPLETE, trial.values
        if trial.state == "pruned" and len(self._search.objectives) == 1:  # Optuna prunes only with one objective
            return states.PRUNED, None
        return states.RUNNING if trial.state == "running" else states.FAIL, None

    def _find_report(self, trial: SearchTrial) -> dict[int, float]:
        is_reported = trial.state == "pruned" and len(trial.values) == 1 and len(self._search.objectives) == 1
        return {trial.step: trial.values[0]} if is_reported else {}


def _build_sampler(optuna: Any, search: Search, seed: int) -> Any:
    samplers = optuna.samplers
    if search.sampler == "tpe":
        return samplers.TPESampler(seed=seed, constant_liar=True)
    independent = samplers.RandomSampler(seed=seed)
    if search.sampler == "random":
        return independent
    if search.sampler == "cmaes":
        return samplers.CmaEsSampler(seed=seed, independent_sampler=independent, warn_independent_sampling=False)
    return samplers.QMCSampler(
        seed=search.seed,  # the seed of the search, as all trials are points of one sequence
        scramble=True,
        independent_sampler=independent,
        warn_independent_sampling=False,
        warn_asynchronous_seeding=False,
    )


def _build_distribution(optuna: Any, dimension: Dimension) -> Any:
    kinds, axis = optuna.distributions, dimension.axis
    if axis is None:
        if not dimension.is_ordered:
            return kinds.CategoricalDistribution(range(len(dimension.rows)))
        first, second, last = (dimension.rows[index][0] for index in (0, 1, -1))
        return kinds.IntDistribution(first, last, step=second - first)
    kind = kinds.IntDistribution if axis.kind in ("int", "log_int") else kinds.FloatDistribution
    return kind(axis.low, axis.high, log=axis.kind.startswith("log_"))


def _suggest(optuna: Any, asked: Any, key: str, kind: Any) -> Any:
    if isinstance(kind, optuna.distributions.CategoricalDistribution):
        return asked.suggest_categorical(key, kind.choices)
    if isinstance(kind, optuna.distributions.IntDistribution):
        return asked.suggest_int(key, kind.low, kind.high, step=kind.step, log=kind.log)
    return asked.suggest_float(key, kind.low, kind.high, log=kind.log)


# ---------------------------------------------------------------- importance


def compute_importance(
    params: Sequence[Params], values: Sequence[float], direction: Literal["min", "max"] = "min"
) -> dict[str, float]:
    """Return the fraction of each parameter in the best results, largest first; the fractions add up to 1.

    Only parameters that vary are included. Numbers are treated as numbers, all other values as choices.
    """
    optuna = _import_optuna("importance")
    names = dict.fromkeys(name for each in params for name in each)
    kinds = {name: _guess_kind(optuna, [each[name] for each in params if name in each]) for name in names}
    varying = {name: kind for name, kind in kinds.items() if kind is not None}
    if not varying or len(params) < 2:
        return {}
    with _quiet(optuna):
        study = optuna.create_study(storage=optuna.storages.InMemoryStorage(), direction=f"{direction}imize")
        for each, value in zip(params, values, strict=True):
            own = {name: kind for name, kind in varying.items() if name in each}
            internal = {
                name: choices.index(canonical(each[name])) if choices else float(each[name])
                for name, (_, choices) in own.items()
            }
            distributions = {name: distribution for name, (distribution, _) in own.items()}
            study.add_trial(optuna.trial.create_trial(value=value, params=internal, distributions=distributions))
        found: Mapping[str, float] = optuna.importance.get_param_importances(study)
    # Optuna adds in the order of a set, which differs between processes, so the last digits differ, too
    fractions = {name: round(found[name], 12) for name in names if name in found}
    return dict(sorted(fractions.items(), key=lambda pair: -pair[1]))


_LARGEST = 1e300  # a larger whole number may be too large for a float


def _guess_kind(optuna: Any, values: Sequence[Value]) -> tuple[Any, tuple[str, ...]] | None:
    """Return Optuna's distribution of the values, and the choices if they are not numbers; None if all are equal."""
    choices = tuple(dict.fromkeys(map(canonical, values)))
    if len(choices) < 2:
        return None
    is_numeric = all(
        isinstance(each, int | float) and not isinstance(each, bool) and abs(each) < _LARGEST for each in values
    )
    if not is_numeric or len(choices) == 2:
        return optuna.distributions.CategoricalDistribution(range(len(choices))), choices
    low, high = float(min(values)), float(max(values))
    is_log = low > 0 and high / low >= 100  # such a range is rarely meant to be linear
    return optuna.distributions.FloatDistribution(low, high, log=is_log), ()
