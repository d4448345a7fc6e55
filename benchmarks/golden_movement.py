"""How often `unmatched` calls a metric smoothed that is not, and how often it finds one that is.

Curves are simulated. A set has noises and seeds of its own: the factor of the rule was chosen on the set `choose`
(`--choose`), and the set `report` is the one that the documentation quotes. A check of an unchanged program is drawn as
the recordings are. What is counted is the finding about how far the values move from step to step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from golden_same import correlate, heavy
from measuring import render_share

from assay.golden.judge.convergence import judge_segment
from assay.golden.values import Rule, Segment, Track

RECORDINGS, CHECKS, LENGTHS = (3, 5, 10), (1, 3), (40, 120, 300)
RULE = Rule("x", "unmatched", delta=0.5, direction="both")
Draw = Callable[[np.random.Generator, int], np.ndarray]


def fall(length: int) -> np.ndarray:
    return 2 + 3 * np.exp(-np.arange(length) / length * 4)


def draw_independent(rng: np.random.Generator, length: int) -> np.ndarray:
    return fall(length) * np.exp(0.01 * rng.standard_normal() + 0.02 * rng.standard_normal(length))


def draw_correlated(rng: np.random.Generator, length: int) -> np.ndarray:
    return fall(length) * np.exp(0.01 * rng.standard_normal() + 0.03 * correlate(0.7)(rng, length))


def draw_heavy(rng: np.random.Generator, length: int) -> np.ndarray:
    noise = 0.02 * heavy(rng, length)
    noise[1:] += 0.7 * noise[:-1]
    return fall(length) * np.exp(noise)


def draw_counts(rng: np.random.Generator, length: int) -> np.ndarray:
    """An accuracy over 128 examples."""
    right = 0.9 - 0.6 * np.exp(-np.arange(length) / length * 5) + 0.005 * rng.standard_normal()
    return rng.binomial(128, right) / 128


SETS: Mapping[str, Mapping[str, Draw]] = {
    "choose": {"independent": draw_independent},
    "report": {"AR(1) 0.7": draw_correlated, "heavy tail": draw_heavy, "accuracy of 128": draw_counts},
}


def average_running(values: np.ndarray) -> np.ndarray:
    return values.cumsum() / np.arange(1, len(values) + 1)


def average_exponentially(values: np.ndarray) -> np.ndarray:
    found = values.copy()
    for at in range(1, len(found)):
        found[at] = 0.9 * found[at - 1] + 0.1 * values[at]
    return found


SMOOTHED: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "unchanged": lambda values: values,
    "running mean": average_running,
    "exponential mean by 0.9": average_exponentially,
    "repeated for ten steps": lambda values: np.repeat(values[::10], 10),
}


def is_found(recordings: Sequence[np.ndarray], checks: Sequence[np.ndarray]) -> bool:
    rows = [Track(tuple(range(1, len(row) + 1)), tuple(map(float, row))) for row in (*recordings, *checks)]
    golden = Segment(0, "", {"x": {"": tuple(rows[: len(recordings)])}})
    verdict = judge_segment(RULE, golden, [{"x": {"": row}} for row in rows[len(recordings) :]])
    return any("from step to step" in finding.message for finding in verdict.findings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--choose", action="store_true", help="the set on which the factor was chosen")
    parser.add_argument("--count", type=int, default=60, help="checks of each kind, length and number of recordings")
    options = parser.parse_args()
    name = "choose" if options.choose else "report"
    for recordings in RECORDINGS:
        for kind, smooth in SMOOTHED.items():
            for length in LENGTHS:
                rng, hits = np.random.default_rng([17, len(name), recordings, length]), 0
                tries = [(draw, checks) for draw in SETS[name].values() for checks in CHECKS] * options.count
                for draw, checks in tries:
                    golden = [draw(rng, length) for _ in range(recordings)]
                    hits += is_found(golden, [smooth(draw(rng, length)) for _ in range(checks)])
                what = f"{recordings} recordings of {length} steps, {kind}: called smoothed"
                print(render_share(what, hits, len(tries)), flush=True)


if __name__ == "__main__":
    main()
