"""Search: whether our proposals are as good as Optuna's own, and what a proposal costs.

Regret: Branin and a noisy six-dimensional function (Hartmann 6 plus normal noise), 60 trials, 20 seeds, TPE. Us:
proposals as `assay run` makes them, each from the trials so far with a sampler of its own, rounded to six digits.
Optuna: `study.optimize` with one sampler, in the same process. The regret is the true value of the trial with the best
observed value, less the optimum; the seeds take turns.

Overhead: the time between the end of a trial's job and the start of the next one's, by what job.sh writes down, on one
slot. Of that, the same of a plain study with as many runs is subtracted. Optuna: ask and tell with its journal in a
file, in the same folder, with the same six parameters. A job takes 50 ms, in both: what is done ahead is done when it
ends, and the processor's caches hold no more of one than of the other. Each round has one of each; the lower quartile
of its times is taken, since others compute on the same cores.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import optuna
from measuring import ASSAY, build_env, quick_folder, render_ratio, run_process
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from assay.search.optuna_proposals import Proposer, SearchTrial, Space
from assay.values.study import Objective, Random, Search, Sweep

Function = Callable[[Sequence[float]], float]

_ALPHA = (1.0, 1.2, 3.0, 3.2)
_A = ((10, 3, 17, 3.5, 1.7, 8), (0.05, 10, 17, 0.1, 8, 14), (3, 3.5, 1.7, 10, 17, 8), (17, 8, 0.05, 10, 0.1, 14))
_P = (
    (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
    (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
    (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
    (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
)
_NOISE = 0.05
_SKIPPED = 15  # of the first trials: TPE begins at random, and everything is loaded for the first time


def branin(x: Sequence[float]) -> float:
    a, b = x
    wave = 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10
    return (b - 5.1 / (4 * math.pi**2) * a * a + 5 / math.pi * a - 6) ** 2 + wave


def hartmann(x: Sequence[float]) -> float:
    inner = (sum(a * (each - p) ** 2 for a, each, p in zip(_A[i], x, _P[i], strict=True)) for i in range(4))
    return -sum(alpha * math.exp(-value) for alpha, value in zip(_ALPHA, inner, strict=True))


PROBLEMS: dict[str, tuple[Function, Sequence[tuple[float, float]], float, float]] = {
    "Branin": (branin, ((-5, 10), (0, 15)), 0.397887, 0.0),
    "Hartmann 6 with noise": (hartmann, ((0, 1),) * 6, -3.32237, _NOISE),
}


def measure_ours(problem: str, seed: int, trials: int) -> float:
    function, bounds, optimum, noise = PROBLEMS[problem]
    sweep = Sweep({f"x{index}": Random("uniform", *each) for index, each in enumerate(bounds)})
    search = Search("tpe", (Objective("loss", "min"),), trials, seed)
    proposer, rng, done = Proposer(Space([sweep]), search), random.Random(seed), list[SearchTrial]()
    for number in range(trials):
        proposal = proposer.propose(done, number)
        assert proposal is not None
        observed = function(proposal.point.positions) + rng.gauss(0, noise)
        done.append(SearchTrial(number, proposal.point, "done", (observed,)))
    best = min(done, key=lambda trial: trial.values)
    return function(best.point.positions) - optimum


def measure_optuna(problem: str, seed: int, trials: int) -> float:
    function, bounds, optimum, noise = PROBLEMS[problem]
    rng = random.Random(seed)

    def choose(trial: optuna.SearchTrial) -> list[float]:
        return [trial.suggest_float(f"x{index}", *each) for index, each in enumerate(bounds)]

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(lambda trial: function(choose(trial)) + rng.gauss(0, noise), n_trials=trials)
    return function(list(study.best_params.values())) - optimum


def report_regret(trials: int, seeds: int) -> None:
    print(f"regret after {trials} trials, median (quartiles) over {seeds} seeds")
    for problem in PROBLEMS:
        found: dict[str, list[float]] = {"assay": [], "optuna": []}
        for seed in range(seeds):
            found["assay"].append(measure_ours(problem, seed, trials))
            found["optuna"].append(measure_optuna(problem, seed, trials))
        for name, values in found.items():
            low, middle, high = statistics.quantiles(values, n=4)
            print(f"  {problem:22} {name:7} {middle:.4f} ({low:.4f} … {high:.4f})")
        ours, (low, theirs, high) = statistics.median(found["assay"]), statistics.quantiles(found["optuna"], n=4)
        is_within = "within" if low <= ours <= high else "OUTSIDE of"
        chance = _rank_test(found["assay"], found["optuna"])
        print(f"  {problem:22} ratio {ours / theirs:.2f}, {is_within} Optuna's quartiles; rank test p = {chance:.2f}")


def _rank_test(left: Sequence[float], right: Sequence[float]) -> float:
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(left, right).pvalue)


# ---------------------------------------------------------------- overhead


_STUDY = """
study: {name}
command: 'sleep {job_s}; echo loss={{a}} {{b}} {{c}} {{d}} {{e}} {{f}}'
params: {{{params}}}
metrics: {{loss: 'loss=({{number}})'}}
{more}
resources: {{gpus: 0}}
code: live
"""
_NAMES = "abcdef"
_JOB_S = 0.05


def measure_gap(folder: Path, name: str, more: str) -> float:
    """Seconds between the end of a job and the start of the next one."""
    folder.mkdir()
    params = ", ".join(f"{each}: {{uniform: [0, 1]}}" for each in _NAMES)
    (folder / "study.yml").write_text(_STUDY.format(name=name, params=params, more=more, job_s=_JOB_S))
    run_process([*ASSAY, "run", "study.yml", "-j", "1", "--quiet"], folder, build_env(folder))
    times = []
    for path in (folder / "runs" / name).glob("*/job.log"):
        words = [line.split() for line in path.read_text().splitlines()]
        times.append(tuple(float(line[0]) for line in words if line[2:3] and line[2] in ("start", "exit")))
    times.sort()
    return take_quartile([after[0] - before[1] for before, after in pairwise(times)])


def take_quartile(times: Sequence[float]) -> float:
    return statistics.quantiles(times[_SKIPPED:], n=4)[0]


def measure_journal(folder: Path, trials: int) -> float:
    """Seconds of an ask and a tell."""
    folder.mkdir()
    storage = JournalStorage(JournalFileBackend(str(folder / "journal.log")))
    study = optuna.create_study(storage=storage, sampler=optuna.samplers.TPESampler(seed=0))
    space = {name: optuna.distributions.FloatDistribution(0, 1) for name in _NAMES}
    taken = []
    for _ in range(trials):
        began = time.perf_counter()
        trial = study.ask(space)
        asked = time.perf_counter() - began
        time.sleep(_JOB_S)
        began = time.perf_counter()
        study.tell(trial, trial.params["a"])
        taken.append(asked + time.perf_counter() - began)
    return take_quartile(taken)


def report_overhead(trials: int, rounds: int) -> None:
    search, plain, journal = list[float](), list[float](), list[float]()
    with quick_folder() as base:
        for turn in range(rounds):
            search.append(measure_gap(base / f"s{turn}", "tune", f"search: {{metric: loss, trials: {trials}}}"))
            plain.append(measure_gap(base / f"p{turn}", "grid", f"subset: {{count: {trials}}}"))
            journal.append(measure_journal(base / f"j{turn}", trials))
    print(f"from a result to the next start, {trials} trials on one slot, ms: median (least … most) of {rounds} rounds")
    over = [ours - other for ours, other in zip(search, plain, strict=True)]
    shown = {
        "assay, a search": search,
        "assay, a plain study": plain,
        "what a search adds": over,
        "optuna, ask and tell with its journal": journal,
    }
    for name, values in shown.items():
        low, middle, high = (1000 * each for each in (min(values), statistics.median(values), max(values)))
        print(f"  {name:38} {middle:6.2f} ({low:.2f} … {high:.2f})")
    ratio = statistics.median(over) / statistics.median(journal)
    print(f"  {render_ratio('what a search adds / ask and tell', ratio, at_most=1.5)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5, help="of the overhead")
    parser.add_argument("--only", choices=("regret", "overhead"))
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if options.only != "overhead":
        report_regret(options.trials, options.seeds)
    if options.only != "regret":
        report_overhead(options.trials, options.rounds)


if __name__ == "__main__":
    main()
