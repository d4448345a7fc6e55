"""What `assay try` and `assay tries --confirm` decide: simulated tries with a known truth, and a real small training.

1. Equal sides: how often 1,000 tries at each of four shapes of noise say `better`, and 10,000 at the worst shape that
   was found; beside it a t-test after every pair, at 5% on one side.
2. Pairs: how many a try needs on average where it finds an improvement with 90% power, and how many a t-test of fixed
   size needs for the same improvement and power.
3. Ledgers: 100 ledgers of twenty tries that share the runs of one base. Two are real, by three standard deviations of
   the noise; the others are equal to the base. How often are exactly the two kept?
4. A real training (numpy, two layers) with twelve ideas, through the command line, next to the loop that keeps every
   idea whose single run has a lower loss. What an idea is worth is measured with 200 other seeds.

The number and the places of the looks and the shape of the boundary were chosen on other random numbers than these, and
the boundary itself is calibrated with a seed of its own (`gate/paired_test.py`). All figures have 95% intervals.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from measuring import ASSAY, quick_folder, render_ratio, render_share

from assay.gate.paired_test import (
    ALPHA,
    Choice,
    SeedPair,
    TryQuestion,
    build_schedule,
    choose_kept,
    judge_look,
    measure_chance,
)
from assay.judge.statistics import t_quantile
from assay.values.series import mean_and_sd

MOST = 20
ANY = TryQuestion("min", change=0.0)  # every difference matters: the hardest case for equal sides
Both = Callable[[random.Random], tuple[float, float]]  # the values of the two sides


def build_both(noise: Callable[[random.Random], float]) -> Both:
    return lambda r: (noise(r), noise(r))


SHAPES: dict[str, Both] = {
    "normal": build_both(lambda r: r.gauss(0, 1)),
    "heavy tails (t, 3 degrees)": build_both(
        lambda r: r.gauss(0, 1) / math.sqrt(sum(r.gauss(0, 1) ** 2 for _ in range(3)) / 3)
    ),
    "skewed (lognormal)": build_both(lambda r: r.lognormvariate(0, 1)),
    "coarse (two values)": build_both(lambda r: float(r.random() < 0.5)),
}
WORST = "all differences of one size"
SHAPES[WORST] = lambda r: (0.0, r.choice((-1.0, 1.0)))  # six pairs agree in 1 of 64 cases, and t is infinite then


def decide(pairs: Sequence[SeedPair], question: TryQuestion = ANY) -> tuple[Choice, int]:
    """What a try says, and after how many pairs."""
    schedule = build_schedule(len(pairs))
    for count, level in schedule:
        verdict = judge_look(pairs[:count], level, question).verdict
        if verdict != "undecided":
            return verdict, count
    return "undecided", len(pairs)


# ---------------------------------------------------------------- equal sides


def show_equal_sides(tries: int) -> None:
    print(f"1. Equal sides, at most {MOST} pairs: tries that say `better`; a t-test at every pair")
    for number, (name, draw) in enumerate(SHAPES.items()):
        generator, count = random.Random(9_000 + number), 10 * tries if name == WORST else tries
        better = naive = 0
        for _ in range(count):
            pairs = [SeedPair(seed, *draw(generator)) for seed in range(MOST)]
            better += decide(pairs)[0] == "better"
            naive += any(_is_significant(pairs[:length]) for length in range(3, MOST + 1))
        print("   " + render_share(f"equal sides, {name}: called better", better, count))
        print("   " + render_share(f"equal sides, {name}: better by a t-test after every pair", naive, count))


def _is_significant(pairs: Sequence[SeedPair], level: float = 0.05) -> bool:
    return measure_t(pairs) > t_quantile(len(pairs) - 1, level)


def measure_t(pairs: Sequence[SeedPair]) -> float:
    mean, sd = mean_and_sd([(pair.a or 0.0) - (pair.b or 0.0) for pair in pairs])
    return 0.0 if not mean else math.inf * mean if not sd else mean / sd * math.sqrt(len(pairs))


# ---------------------------------------------------------------- pairs


def show_pairs(count: int) -> None:
    low, high = 0.5, 1.5
    for _ in range(7):  # the improvement that is found with 90% power, on random numbers of its own
        middle = (low + high) / 2
        low, high = (low, middle) if _measure_power(middle, 4_000, 77)[0] >= 0.9 else (middle, high)
    power, pairs, error = _measure_power(high, count, 78)
    fixed = _find_fixed_size(high, power)
    print(f"2. Pairs for an improvement of {high:.2f} standard deviations of the difference, {count} tries")
    print(f"   power {power:.1%}; pairs on average: {pairs:.1f}; a fixed t-test of that power: {fixed:.1f}")
    room = 1.96 * error / fixed
    each = (pairs / fixed - room, pairs / fixed + room)
    print("   " + render_ratio("pairs of a try / of a fixed test of the same power", pairs / fixed, of_each=each))


def _measure_power(effect: float, count: int, seed: int) -> tuple[float, float, float]:
    """How often it is found, the mean number of pairs, and the standard error of that."""
    generator = random.Random(seed)
    found = [decide([SeedPair(seed, 0.0, generator.gauss(-effect, 1)) for seed in range(MOST)]) for _ in range(count)]
    mean, sd = mean_and_sd([float(pairs) for _, pairs in found])
    power = sum(verdict == "better" for verdict, _ in found) / count
    return power, mean or 0.0, (sd or 0.0) / math.sqrt(count)


def _find_fixed_size(effect: float, power: float) -> float:
    """The size at which a t-test at the same level has this power, between whole numbers by interpolation."""
    from scipy.stats import nct

    def measure(size: int) -> float:
        return float(nct.sf(t_quantile(size - 1, ALPHA), size - 1, effect * math.sqrt(size)))

    size = next(size for size in range(3, 1000) if measure(size) >= power)
    before, after = measure(size - 1), measure(size)
    return size - 1 + (power - before) / (after - before)


# ---------------------------------------------------------------- ledgers


def show_ledgers(count: int) -> None:
    generator, exact, kept_wrong, lost = random.Random(4_711), 0, 0, 0
    for _ in range(count):
        kept = list(_keep(generator))
        exact += kept == [True, True] + [False] * 18
        kept_wrong += any(kept[2:])
        lost += not all(kept[:2])
    print(render_share("3. ledgers of 20 tries, 2 of them real: exactly these kept", exact, count))
    print(f"   a wrong one kept in {kept_wrong}, a real one lost in {lost}")


def _keep(generator: random.Random) -> Iterator[bool]:
    effects = [3.0, 3.0] + [0.0] * 18
    base = [generator.gauss(0, 1) for _ in range(MOST)]
    tries = [[SeedPair(seed, a, generator.gauss(-effect, 1)) for seed, a in enumerate(base)] for effect in effects]
    better = [decide(pairs)[0] == "better" for pairs in tries]
    fresh = [
        [SeedPair(seed, generator.gauss(0, 1), generator.gauss(-effect, 1)) for seed in range(MOST)]
        for effect, is_better in zip(effects, better, strict=True)
        if is_better
    ]
    kept = iter(choose_kept([measure_chance(pairs, ANY) for pairs in fresh]))
    return (next(kept) if is_better else False for is_better in better)


# ---------------------------------------------------------------- a real training

TRAIN = '''\
"""A network of two layers learns a noisy function; `--seed` decides the data's order and the first weights."""
import argparse
import numpy as np
from settings import *

def train(seed):
    r = np.random.default_rng([seed, STREAM])
    task = np.random.default_rng(0)
    x, v = task.uniform(-2, 2, (256, 4)), task.uniform(-2, 2, (512, 4))
    f = lambda x: np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]
    y, w = f(x) + task.normal(0, 0.3, 256), f(v)
    a, b = r.normal(0, 1, (4, HIDDEN)) * INIT, np.zeros(HIDDEN)
    c = r.normal(0, 1, HIDDEN) / np.sqrt(HIDDEN)
    moving = [np.zeros_like(p) for p in (a, b, c)]
    for step in range(STEPS):
        rows = r.choice(256, BATCH, replace=False)
        h = np.tanh(x[rows] @ a + b)
        e = (h @ c - y[rows]) / BATCH
        d = np.outer(e, c) * (1 - h * h)
        for m, p, g in zip(moving, (a, b, c), (x[rows].T @ d, d.sum(0), h.T @ e)):
            m *= MOMENTUM
            m += g + DECAY * p
            p -= LR * m
    return float(np.mean((np.tanh(v @ a + b) @ c - w) ** 2))

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    print("val_loss", train(parser.parse_args().seed))
'''
BASE = {"LR": 0.1, "HIDDEN": 24, "BATCH": 32, "STEPS": 150, "MOMENTUM": 0.8, "DECAY": 0.0, "INIT": 0.5, "STREAM": 0}
IDEAS: dict[str, dict[str, float]] = {
    **{f"shuffle in another way ({number})": {"STREAM": number} for number in range(1, 7)},
    "a little weight decay": {"DECAY": 1e-6},
    "a first layer that begins slightly larger": {"INIT": 0.505},
    "a larger batch": {"BATCH": 64},
    "train longer": {"STEPS": 300},
    "smaller steps": {"LR": 0.05},
    "decay everything": {"DECAY": 0.02},
}


@dataclass
class Worth:
    """What an idea is worth: the mean loss over many seeds, relative to the base's, and how sure that is."""

    gain: float
    error: float

    @property
    def is_real(self) -> bool:
        return self.gain > 0.005 and self.gain > 3 * self.error


def write_settings(folder: Path, changes: dict[str, float]) -> None:
    (folder / "settings.py").write_text("".join(f"{name} = {value}\n" for name, value in (BASE | changes).items()))


def load_losses(folder: Path, seeds: Sequence[int]) -> list[float]:
    """In one process: many seeds of the files as they are."""
    code = f"import json, train; print(json.dumps([train.train(s) for s in {list(seeds)}]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return [float(value) for value in json.loads(done.stdout)]


def show_training(most: int, seeds: int) -> None:
    with quick_folder() as folder:
        (folder / "train.py").write_text(TRAIN)
        (folder / ".gitignore").write_text("runs\n__pycache__\n")
        write_settings(folder, {})
        for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "base")):
            subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], cwd=folder, check=True)
        worth, singles = _measure_worth(folder, range(5_000, 5_000 + seeds))
        print(f"4. A real training, {len(IDEAS)} ideas; their worth by {seeds} seeds; kept when one run is lower")
        rows = [_try_idea(folder, idea, most) for idea in IDEAS]
        done = subprocess.run(
            [*ASSAY, "tries", "--confirm", "--json", "-q"], cwd=folder, capture_output=True, text=True, check=True
        )
        ledger = {each["idea"]: each for each in json.loads(done.stdout)}
        for (idea, _), row in zip(IDEAS.items(), rows, strict=True):
            kept = (ledger[idea]["confirmation"] or {}).get("is_kept", False)
            gain = f"{worth[idea].gain:+.1%} ± {2 * worth[idea].error:.1%}"
            what = f"{row['verdict']}, {row['pairs']} pairs{', kept' if kept else ''}"
            print(f"   {idea:42} worth {gain:16} {what:28} single runs keep it in {singles[idea]:.0%}")
        real = {idea for idea in IDEAS if worth[idea].is_real}
        ours = {idea for idea in IDEAS if (ledger[idea]["confirmation"] or {}).get("is_kept")}
        greedy = sum(singles[idea] for idea in IDEAS if idea not in real)
        print("   " + render_share("a real training: real ideas that are kept", len(ours & real), len(real)))
        print(
            "   " + render_share("a real training: other ideas that are kept", len(ours - real), len(IDEAS) - len(real))
        )
        print(f"   kept by single runs, on average: {sum(singles[i] for i in real):.1f} real, {greedy:.1f} others")


def _measure_worth(folder: Path, seeds: range) -> tuple[dict[str, Worth], dict[str, float]]:
    """The worth of each idea, and how often a single run of it is below a single run of the base."""
    base = load_losses(folder, seeds)
    worth, singles = {}, {}
    for idea, changes in IDEAS.items():
        write_settings(folder, changes)
        found = load_losses(folder, seeds)
        mean, sd = mean_and_sd([(a - b) / (sum(base) / len(base)) for a, b in zip(base, found, strict=True)])
        worth[idea] = Worth(mean or 0.0, (sd or 0.0) / math.sqrt(len(base)))
        singles[idea] = sum(b < a for a in base for b in found) / len(base) ** 2
    return worth, singles


def _try_idea(folder: Path, idea: str, most: int) -> dict[str, str]:
    write_settings(folder, IDEAS[idea])
    words = [*ASSAY, "try", idea, "--metric", "val_loss:min", "--seeds", str(most), "--json", "-q", "-j", "2", "--"]
    done = subprocess.run(
        [*words, sys.executable, "train.py", "--seed", "{seed}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1, 3):
        raise SystemExit(done.stderr)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=1000, help="simulated tries of each shape of noise")
    parser.add_argument("--ledgers", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=200, help="for the true worth of an idea; 0: no real training")
    options = parser.parse_args()
    show_equal_sides(options.tries)
    show_pairs(10 * options.tries)
    show_ledgers(options.ledgers)
    if options.seeds:
        show_training(MOST, options.seeds)


if __name__ == "__main__":
    main()
