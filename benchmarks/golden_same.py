"""How often `golden.same` alarms for a configuration that agrees, and how often it finds one that is biased.

Residuals are simulated, with autocorrelation of several kinds. A set has shapes, noises and seeds of its own; the rule
(alpha, and the degrees of freedom of few recordings: `--alpha`, `--few`) was chosen on the set `choose`, and the set
`report` is the one that the documentation quotes. A configuration that agrees is drawn as the recordings are. `--train`
runs a real training instead, with batches in parts, as configurations that are right and wrong.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from assay.golden.judge.convergence import judge_segment
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


def render(count: int, many: int) -> str:
    """With Wilson's interval at 95%."""
    z, share = 1.96, count / many
    middle, half = share + z * z / 2 / many, z * math.sqrt(share * (1 - share) / many + z * z / 4 / many**2)
    low, high = ((middle + sign * half) / (1 + z * z / many) for sign in (-1, 1))
    return f"{100 * share:.1f}% [{100 * max(low, 0):.1f}%, {100 * high:.1f}%]"


def print_set(chosen: Set, alpha: float, count: int, biases: Sequence[float]) -> None:
    for replicas in REPLICAS:
        for bias in biases:
            found = {
                kind: sum(measure(chosen, kind, n, replicas, bias, alpha, count) for n in chosen.lengths)
                for kind in chosen.noises
            }
            many = count * len(chosen.lengths)
            name = f"off by {bias:g} sd of a window's mean" if bias else "agrees"
            print(f"{replicas} recordings, {name}: not PASS {render(sum(found.values()), many * len(found))}")
            print("    " + "; ".join(f"{kind} {render(number, many)}" for kind, number in found.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--choose", action="store_true", help="the set on which the rule was chosen")
    parser.add_argument("--count", type=int, default=200, help="configurations of each kind and length")
    parser.add_argument("--alpha", type=float, default=0.01)
    options = parser.parse_args()
    print_set(SETS["choose" if options.choose else "report"], options.alpha, options.count, (0.0, *BIASES))


if __name__ == "__main__":
    main()
