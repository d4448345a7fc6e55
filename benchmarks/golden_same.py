"""How often `golden.same` alarms for a configuration that agrees, and how often it finds one that is biased.

Residuals are simulated, with autocorrelation of several kinds. A set has noises, lengths and seeds of its own; the rule
was chosen on the set `choose` (`--choose`), and the set `report` is the one that the documentation quotes. A
configuration that agrees is drawn as the recordings are. `--train` runs real trainings instead, whose batches are
accumulated in parts, rightly and wrongly. `--nights` is about `assay golden history`: levels of 30 nights, quiet or
with a step before the last eight.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from measuring import render_rate, render_share

from assay.bench.judge.changepoint import find_change_points
from assay.golden.judge import same
from assay.golden.judge.convergence import judge_rules, judge_segment
from assay.golden.judge.nights import Night, judge_nights
from assay.golden.judge.pairing import Pair
from assay.golden.values import Rule, Segment, Track
from assay.values.verdict import VerdictKind

REPLICAS = (2, 3, 5, 10)
BIASES = (1.0, 2.0, 3.0, 5.0)  # in standard deviations of the mean of a window
LEVEL = 0.001  # standard deviation of a step, relative
DELTA = 1.0  # so wide that everything that is not outside passes: alarms are those of the test itself
Noise = Callable[[np.random.Generator, int], np.ndarray]


def correlate(keep: float) -> Noise:
    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        found = rng.standard_normal(n)
        for at in range(1, n):
            found[at] = keep * found[at - 1] + math.sqrt(1 - keep**2) * found[at]
        return found

    return draw


def independent(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_normal(n)


def offset(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.full(n, rng.standard_normal())


def walk(rng: np.random.Generator, n: int) -> np.ndarray:
    """Two runs that drift apart, as rounding makes them."""
    return rng.standard_normal(n).cumsum() / math.sqrt(n)


def heavy(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_t(3, n) / math.sqrt(3)


def growing(rng: np.random.Generator, n: int) -> np.ndarray:
    return correlate(0.7)(rng, n) * np.linspace(0.1, 2, n)


def mix(slow: float, keep: float, quick: float) -> Noise:
    """A slow drift under quicker noise: lag 1 alone would miss it. `keep` 1: an offset that a run keeps."""

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        drift = correlate(keep)(rng, n) if keep < 1 else rng.standard_normal()
        return slow * drift + correlate(quick)(rng, n)

    return draw


@dataclass(frozen=True)
class Set:
    noises: dict[str, Noise]
    lengths: tuple[int, ...]
    seed: int


SETS = {
    "choose": Set(
        {
            "independent": independent,
            "AR(1) 0.8": correlate(0.8),
            "offset": offset,
            "walk": walk,
            "offset and steps": mix(0.3, 1.0, 0.0),
            "drift and steps": mix(0.75, 0.97, 0.0),
        },
        (20, 100, 300),
        1,
    ),
    "report": Set(
        {
            "AR(1) 0.5": correlate(0.5),
            "AR(1) 0.95": correlate(0.95),
            "heavy tail": heavy,
            "growing": growing,
            "drift and AR(1)": mix(0.5, 0.99, 0.3),
            "offset and AR(1)": mix(0.5, 1.0, 0.7),
        },
        (30, 200),
        200_000,
    ),
}


def judge(recordings: Sequence[np.ndarray], run: np.ndarray, alpha: float) -> VerdictKind:
    steps = tuple(range(1, len(run) + 1))
    tracks = tuple(Track(steps, tuple(map(float, each))) for each in recordings)
    check = {"loss": {"": Track(steps, tuple(map(float, run)))}}
    rule = Rule("loss", "same", delta=DELTA, alpha=alpha)
    return judge_segment(rule, Segment(0, "", {"loss": {"": tracks}}), [check]).kind


def measure_window(noise: Noise, length: int) -> float:
    """The standard deviation of the mean of a window, for the size of a bias."""
    rng, width = np.random.default_rng(7), math.ceil(length / 6)
    return float(np.std([noise(rng, length)[length // 2 : length // 2 + width].mean() for _ in range(400)]))


def measure(chosen: Set, kind: str, length: int, replicas: int, bias: float, alpha: float, count: int) -> int:
    """Of `count` configurations, how many did not pass."""
    noise = chosen.noises[kind]
    rng = np.random.default_rng([chosen.seed, length, replicas, len(kind), round(10 * bias)])
    curve = 2 + 3 * np.exp(-np.arange(length) / length * 4)
    shift = bias * measure_window(noise, length)
    alarms = 0
    for _ in range(count):
        rows = [curve * np.exp(LEVEL * noise(rng, length)) for _ in range(replicas)]
        run = curve * np.exp(LEVEL * (noise(rng, length) + shift))
        alarms += judge(rows, run, alpha) is not VerdictKind.PASS
    return alarms


def measure_noise_of_steps(pair: Pair, starts: Sequence[int], _in_logs: bool) -> same.Noise:
    """An effective sample of single steps instead of windows. The simulated values are all positive."""
    golden = np.log([track.values for track in pair.golden])
    rows = (golden - golden.mean(axis=0)) * math.sqrt(len(golden) / (len(golden) - 1))
    alike = same.find_autocorrelation_time(rows)
    widths = np.diff([*starts, len(pair.steps)])
    freedom = int((len(golden) - 1) * max(1.0, rows.shape[1] / alike))
    return same.Noise((rows**2).mean() * np.minimum(alike, widths) / widths, len(starts), freedom)


def measure_noise_of_runs(pair: Pair, starts: Sequence[int], in_logs: bool) -> same.Noise:
    """One degree of freedom for each recording but one."""
    found = CHOSEN(pair, starts, in_logs)
    return same.Noise(found.variance, found.windows, len(pair.golden) - 1)


CHOSEN = same.measure_noise
ALTERNATIVES = {"single steps": measure_noise_of_steps, "N - 1 degrees": measure_noise_of_runs, "chosen": CHOSEN}


def print_set(
    chosen: Set, alpha: float, count: int, biases: Sequence[float], recordings: Sequence[int] = REPLICAS
) -> None:
    for replicas in recordings:
        for bias in biases:
            found = {
                kind: sum(measure(chosen, kind, n, replicas, bias, alpha, count) for n in chosen.lengths)
                for kind in chosen.noises
            }
            many = count * len(chosen.lengths)
            name = f"off by {bias:g} sd of a window's mean" if bias else "agrees"
            print(render_share(f"{replicas} recordings, {name}: not PASS", sum(found.values()), many * len(found)))
            rates = (f"{kind} {render_rate(number, many)}" for kind, number in found.items())
            print("    " + "; ".join(rates), flush=True)


# ---------------------------------------------------------------- real trainings

STEPS, ROWS, INPUTS, HIDDEN = 120, 50, 8, 16
WRONG = {  # how the gradients of the parts of a batch are put together, and how many parts there are
    "summed instead of averaged": (4, lambda parts: sum(grad for grad, _ in parts)),
    "parts of unequal size with equal weights": (6, lambda parts: sum(grad for grad, _ in parts) / len(parts)),
    "the last part is lost": (8, lambda parts: sum(grad * rows for grad, rows in parts[:-1]) / ROWS),
    "divided by one part too many": (8, lambda parts: sum(grad for grad, _ in parts) / (len(parts) + 1)),
}


def average_parts(parts: Sequence[tuple[np.ndarray, int]]) -> np.ndarray:
    return sum(grad * rows for grad, rows in parts) / sum(rows for _, rows in parts)


def train(seed: int, parts: int, combine: Callable[..., np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A small network on random data; its gradients have the jitter of kernels that do not keep their order."""
    fixed = np.random.default_rng(seed)
    weights = fixed.normal(0, 0.5, INPUTS * HIDDEN + HIDDEN)
    teacher = fixed.standard_normal(INPUTS)
    found: dict[str, list[float]] = {"loss": [], "grad_norm": []}
    for step in range(STEPS):
        x = np.random.default_rng([seed, step]).standard_normal((ROWS, INPUTS))
        y = np.sin(x @ teacher)
        size = math.ceil(ROWS / parts)
        pieces = [differentiate(weights, x[at : at + size], y[at : at + size]) for at in range(0, ROWS, size)]
        grad = combine([(each[1], each[2]) for each in pieces])
        grad = grad * (1 + 1e-3 * rng.standard_normal(len(grad)))
        found["loss"].append(sum(loss * rows for loss, _, rows in pieces) / ROWS)
        found["grad_norm"].append(float(np.linalg.norm(grad)))
        weights = weights - 0.05 * grad
    return {name: np.array(values) for name, values in found.items()}


def differentiate(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, int]:
    first, second = weights[: INPUTS * HIDDEN].reshape(INPUTS, HIDDEN), weights[INPUTS * HIDDEN :]
    hidden = np.tanh(x @ first)
    error = hidden @ second - y
    back = np.outer(error, second) * (1 - hidden**2)
    grad = np.concatenate([(x.T @ back).ravel(), hidden.T @ error]) * 2 / len(x)
    return float((error**2).mean()), grad, len(x)


def judge_training(recordings: Sequence[dict[str, np.ndarray]], run: dict[str, np.ndarray]) -> VerdictKind:
    steps, names = tuple(range(STEPS)), tuple(run)
    tracks = {name: {"": tuple(Track(steps, tuple(map(float, each[name]))) for each in recordings)} for name in names}
    check = {name: {"": Track(steps, tuple(map(float, run[name])))} for name in names}
    rules = [Rule(name, "same") for name in names]
    return judge_rules(rules, Segment(0, "", tracks), [check], peers=len(names)).kind


def print_trainings(count: int) -> None:
    alarms, found = 0, dict.fromkeys(WRONG, 0)
    for seed in range(count):
        rng = np.random.default_rng([9, seed])
        recordings = [train(seed, 1, average_parts, rng) for _ in range(5)]
        good = [train(seed, parts, average_parts, rng) for parts in (2, 3, 8)]
        alarms += sum(judge_training(recordings, run) is not VerdictKind.PASS for run in good)
        for name, (parts, combine) in WRONG.items():
            found[name] += judge_training(recordings, train(seed, parts, combine, rng)) is not VerdictKind.PASS
    print(render_share("batches in 2, 3 and 8 parts, rightly: not PASS", alarms, 3 * count))
    for name, number in found.items():
        print(render_share(f"{name}: not PASS", number, count))


# ---------------------------------------------------------------- nights


def print_nights(count: int) -> None:
    for kind, noise in {"independent": independent, "AR(1) 0.3": correlate(0.3), "heavy tail": heavy}.items():
        for shape, sizes in {
            "a step before the last 8 nights": (0, 1, 2, 3, 5),
            "a drift in each night": (0.1, 0.2, 0.5),
        }.items():
            for size in sizes:
                rng, alarms = np.random.default_rng([11, round(10 * size), len(kind)]), 0
                moved = np.arange(30) >= 22 if "step" in shape else np.arange(30)
                for _ in range(count):
                    levels = 2 * np.exp(LEVEL * (noise(rng, 30) + size * moved))
                    nights = [
                        Night(str(at), VerdictKind.PASS, 1, {"loss": float(each)}) for at, each in enumerate(levels)
                    ]
                    alarms += judge_nights(nights, {}, find_change_points)[0].kind is not VerdictKind.PASS
                print(render_share(f"{kind}, {shape}, {size:g} sd: not PASS", alarms, count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--choose", action="store_true", help="the set on which the rule was chosen, by other rules too"
    )
    parser.add_argument("--count", type=int, default=200, help="configurations of each kind and length")
    parser.add_argument("--alpha", type=float, default=0.01)
    parser.add_argument("--train", action="store_true", help="real trainings; --count of them")
    parser.add_argument("--nights", action="store_true", help="levels of nights; --count histories of each kind")
    options = parser.parse_args()
    if options.train:
        print_trainings(options.count)
    if options.nights:
        print_nights(options.count)
    if options.train or options.nights:
        return
    if not options.choose:
        print_set(SETS["report"], options.alpha, options.count, (0.0, *BIASES))
    for name, method in ALTERNATIVES.items() if options.choose else ():
        print(f"noise by {name}")
        same.measure_noise = method
        print_set(SETS["choose"], options.alpha, options.count, (0.0, 3.0), (2, 5))


if __name__ == "__main__":
    main()
