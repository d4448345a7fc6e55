"""Proposals of a search: the same trials give the same proposal, whatever was kept in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from assay.errors import ConfigError
from assay.plan.expand import build_plan
from assay.search.optuna_proposals import Proposer, SearchTrial, Space, SpacePoint, compute_importance
from assay.system.fast_dataclasses import replace
from assay.values.study import Choices, Condition, Objective, Random, Sampler, Search, Study, Sweep

pytest.importorskip("optuna")

FLOATS = Sweep({"x": Random("uniform", -5.0, 10.0), "y": Random("uniform", 0.0, 15.0)})
MIXED = Sweep(
    {
        "lr": Random("log_uniform", 1e-4, 1.0),
        "layers": Random("int", 1, 8),
        "width": Random("log_int", 8, 512),
        "opt": Choices(("adam", "sgd", "lion")),
        "batch": Choices((16, 32, 48)),
        "epochs": Choices((5,)),
    }
)
ADAM = Sweep({"opt": Choices(("adam",)), "lr": Random("log_uniform", 1e-4, 1e-1), "beta": Random("uniform", 0.8, 0.99)})
SGD = Sweep({"opt": Choices(("sgd",)), "lr": Random("uniform", 0.1, 1.0), "momentum": Choices((0.0, 0.9))})


def build_search(sampler: Sampler = "tpe", trials: int | None = 60, seed: int = 0, metrics: int = 1) -> Search:
    return Search(sampler, tuple(Objective(f"m{index}", "min") for index in range(metrics)), trials, seed)


def score(params: Any, metrics: int) -> tuple[float, ...]:
    numbers = [value for value in params.values() if isinstance(value, int | float)]
    return tuple(sum((number - index) ** 2 for number in numbers) for index in range(metrics))


def play(
    space: Space, search: Search, count: int, parallel: int, propose: Callable[[Sequence[SearchTrial], int], Any]
) -> list[SearchTrial]:
    """A search with several trials at once; which one ends next is random, some fail and some are pruned."""
    rng = random.Random(3)
    trials: list[SearchTrial] = []
    for number in range(count):
        proposal = propose(trials, number)
        trials.append(SearchTrial(number, proposal.point, kept=proposal.kept))
        running = [trial for trial in trials if trial.state == "running"]
        while len(running) >= parallel:
            ended = running.pop(rng.randrange(len(running)))
            values = score(space.build_params(ended.point), len(search.objectives))
            fate = rng.random()
            if fate < 0.1:
                new = replace(ended, state="failed")
            elif fate < 0.3:
                new = replace(ended, state="pruned", values=values[:1], step=7)
            else:
                new = replace(ended, state="done", values=values)
            trials[ended.number] = new
    return trials


@pytest.mark.parametrize(
    ("sampler", "sweeps", "metrics", "parallel"),
    [
        ("tpe", (FLOATS,), 1, 4),
        ("tpe", (MIXED,), 1, 1),
        ("tpe", (ADAM, SGD), 1, 4),
        ("tpe", (MIXED,), 2, 4),
        ("random", (MIXED,), 1, 4),
        ("cmaes", (MIXED,), 1, 4),
        ("qmc", (MIXED,), 2, 4),
        ("qmc", (ADAM, SGD), 1, 1),
    ],
)
def test_a_rebuilt_search_proposes_the_same(
    sampler: Sampler, sweeps: tuple[Sweep, ...], metrics: int, parallel: int
) -> None:
    space, search = Space(sweeps), build_search(sampler, metrics=metrics)
    kept = Proposer(space, search)

    def propose(trials: Sequence[SearchTrial], number: int) -> Any:
        proposal = kept.propose(trials, number)
        kept.prepare(number + 1)
        return proposal

    first = play(space, search, 14, parallel, propose)
    again = play(space, search, 14, parallel, lambda trials, number: Proposer(space, search).propose(trials, number))
    assert [trial.point for trial in first] == [trial.point for trial in again]
    assert len({trial.point for trial in first}) == 14


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "qmc", "grid"])
def test_two_seeds_and_two_numbers_differ(sampler: Sampler) -> None:
    space = Space([Sweep({"a": Choices(tuple(range(100))), "b": Choices(tuple("abcdefghij"))})])
    proposers = [Proposer(space, build_search(sampler, seed=seed)) for seed in (0, 1)]
    points = {proposer.propose([], number).point for proposer in proposers for number in (0, 1)}
    assert len(points) == (2 if sampler == "grid" else 4)


def test_proposals_are_in_the_space_and_found_again() -> None:
    space = Space([MIXED])
    proposer = Proposer(space, build_search())
    for number in range(20):
        proposal = proposer.propose([], number)
        params = proposal.params
        assert list(params) == list(MIXED.axes)
        assert 1e-4 <= params["lr"] <= 1
        assert float(f"{params['lr']:.6g}") == params["lr"]
        assert params["layers"] in range(1, 9)
        assert params["width"] in range(8, 513)
        assert {type(params[name]) for name in ("layers", "width")} == {int}
        assert params["epochs"] == 5
        assert space.locate(params) == proposal.point
    branches = Proposer(Space([ADAM, SGD]), build_search("random"))  # each sweep has its own parameters
    names = {tuple(branches.propose([], number).params) for number in range(30)}
    assert names == {("opt", "lr", "beta"), ("opt", "lr", "momentum")}


def test_a_zip_is_chosen_together_and_when_is_honoured() -> None:
    sweep = Sweep(
        {"a": Choices((1, 2, 3)), "b": Choices(("x", "y", "z")), "c": Choices((True, False))},
        zips=(("a", "b"),),
        when=(Condition("c", (True,)), Condition("a", (1, 3))),
    )
    space = Space([sweep])
    found = [space.build_params(point) for point in space.order(0)]
    assert sorted(found, key=lambda each: each["a"]) == [{"a": 1, "b": "x", "c": True}, {"a": 3, "b": "z", "c": True}]


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "qmc", "grid"])
def test_a_space_with_an_end_is_tried_once_and_then_exhausted(sampler: Sampler) -> None:
    sweep = Sweep({"a": Random("int", 1, 3), "b": Choices(("x", True, 1, 1.0, None))})
    space = Space([sweep, Sweep({"only": Choices((7,))})])
    assert space.count == 16
    trials: list[SearchTrial] = []
    proposer = Proposer(space, build_search(sampler))
    for number in range(16):
        proposal = proposer.propose(trials, number)
        trials.append(SearchTrial(number, proposal.point, "done", (float(number),), kept=proposal.kept))
    assert len({trial.point for trial in trials}) == 16
    assert proposer.propose(trials, 16) is None


def test_running_trials_count_as_pending() -> None:
    space, search = Space([FLOATS]), build_search()
    done = [
        SearchTrial(number, SpacePoint(0, (number / 2, number / 2)), "done", (float(abs(number - 12)),))
        for number in range(20)
    ]
    running = [*done, SearchTrial(20, SpacePoint(0, (6.0, 6.0)))]
    failed = [*done, SearchTrial(20, SpacePoint(0, (6.0, 6.0)), "failed")]
    assert Proposer(space, search).propose(running, 21) != Proposer(space, search).propose(failed, 21)


def test_what_is_outside_of_the_space_is_not_located() -> None:
    space = Space([MIXED])
    params: dict[str, Any] = {"lr": 0.1, "layers": 3, "width": 64, "opt": "sgd", "batch": 32, "epochs": 5}
    assert space.locate(params) is not None
    outside = [("lr", 2.0), ("layers", 9), ("width", 64.5), ("opt", "adagrad"), ("batch", 17), ("epochs", 6)]
    for name, value in [*outside, ("more", 1), ("lr", "0.1"), ("layers", True)]:
        assert space.locate({**params, name: value}) is None
    assert space.locate({name: params[name] for name in ("lr", "layers")}) is None
    secret = Space([Sweep({"token": Choices(("sk-1234567890abcdef",)), "x": Random("uniform", 0.0, 1.0)})])
    assert secret.locate({"token": "***", "x": 0.5}) is not None  # as it is recorded
    assert "sk-1234567890abcdef" not in repr(secret.describe())


def test_importance_names_what_decides() -> None:
    rng = random.Random(0)
    rows = [
        {"lr": 10 ** rng.uniform(-4, 0), "opt": rng.choice(["adam", "sgd"]), "seed": rng.randrange(5), "epochs": 3}
        for _ in range(80)
    ]
    found = compute_importance(rows, [abs(row["lr"] - 0.01) for row in rows], "min")
    assert next(iter(found)) == "lr"
    assert set(found) == {"lr", "opt", "seed"}
    assert sum(found.values()) == pytest.approx(1)
    assert compute_importance([{"a": 1}, {"a": 1}], [1.0, 2.0]) == {}
    conditional = [{"a": 1, "b": index} if index % 2 else {"a": index} for index in range(20)]
    assert set(compute_importance(conditional, [float(index) for index in range(20)])) == {"a", "b"}
    equal = [{name: (index >> bit) & 1 for bit, name in enumerate("zyxwv")} for index in range(32)]
    fractions = compute_importance(equal, [0.1 * sum(row.values()) for row in equal])
    assert list(fractions.items()) == [(name, 0.2) for name in "zyxwv"], "the same in each process"


def test_a_search_has_no_list_of_runs() -> None:
    study = Study("s", "native", "s.yml", "/", (), (FLOATS,), search=build_search())
    with pytest.raises(ConfigError, match="not known beforehand"):
        build_plan(study)
