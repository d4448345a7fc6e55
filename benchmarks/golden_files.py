"""How often `assay golden check --against` is wrong, and what it finds, with the noise of several goldens.

Curves are simulated. A set has shapes and kinds of noise of its own; the rule (how many times the distance between
goldens is inside, and alpha) was chosen on the set `choose` (`--choose` prints its grid), the set `report` has other
shapes, other noise and other seeds. A good run is drawn as the goldens are; a worse one is the same times 1 + effect.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from measuring import render_rate, render_share

from assay.golden.judge import effects
from assay.golden.judge.convergence import judge_segment
from assay.golden.values import Rule, Segment, Track
from assay.values.verdict import VerdictKind

GOLDENS = (2, 3, 5, 10)
EFFECTS = (0.01, 0.03, 0.1)
LEVELS = (0.001, 0.01)  # of the noise: what one golden's windows differ by, about
Curve = Callable[[int], np.ndarray]
Noise = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Set:
    name: str
    shapes: dict[str, Curve]
    noises: dict[str, Noise]
    lengths: tuple[int, ...]
    seed: int


def _walk(rng: np.random.Generator, n: int) -> np.ndarray:
    """Two runs that drift apart, as rounding makes them."""
    return rng.standard_normal(n).cumsum() / math.sqrt(n)


def _correlate(rng: np.random.Generator, n: int, keep: float = 0.9) -> np.ndarray:
    found = rng.standard_normal(n)
    for at in range(1, n):
        found[at] = keep * found[at - 1] + math.sqrt(1 - keep**2) * found[at]
    return found


SETS = {
    "choose": Set(
        "choose",
        {
            "exponential": lambda n: 2 + 9 * np.exp(-np.arange(n) / n * 4),
            "power": lambda n: 8 * np.arange(1, n + 1.0) ** -0.3,
        },
        {
            "independent": lambda rng, n: rng.standard_normal(n),
            "offset": lambda rng, n: np.full(n, rng.standard_normal()),
            "walk": _walk,
            "loud at first": lambda rng, n: rng.standard_normal(n) * np.where(np.arange(n) < n / 10, 30, 1),
        },
        (20, 100, 500),
        1,
    ),
    "report": Set(
        "report",
        {
            "plateau and cosine": lambda n: 3 + 4 * np.where(np.arange(n) < n / 5, 1, np.cos(np.arange(n) / n * 1.4)),
            "accuracy": lambda n: 0.9 - 0.8 * np.exp(-np.arange(n) / n * 5),
            "reward through zero": lambda n: np.linspace(-1, 2, n),
        },
        {
            "heavy tail": lambda rng, n: rng.standard_t(3, n),
            "AR(1)": _correlate,
            "offset and steps": lambda rng, n: rng.standard_normal() + rng.standard_normal(n),
            "growing": lambda rng, n: rng.standard_normal(n) * np.linspace(0.1, 2, n),
            "settling": lambda rng, n: rng.standard_normal(n) * (1 + 20 * np.exp(-np.arange(n) / n * 20)),
        },
        (30, 200),
        100_000,
    ),
}


def draw(rng: np.random.Generator, curve: np.ndarray, noise: Noise, level: float) -> np.ndarray:
    """Relative noise, or relative to the mean size where the curve goes through zero."""
    size = np.abs(curve) if (curve > 0).all() else np.full(len(curve), np.abs(curve).mean())
    return curve + size * level * noise(rng, len(curve))


def judge(goldens: Sequence[np.ndarray], run: np.ndarray, alpha: float) -> VerdictKind:
    steps = tuple(range(1, len(run) + 1))
    tracks = tuple(Track(steps, tuple(map(float, each))) for each in goldens)
    check = {"metric": {"": Track(steps, tuple(map(float, run)))}}
    rule = Rule("metric", "noise", alpha=alpha)
    return judge_segment(rule, Segment(1, "", {"metric": {"": tracks}}), [check]).kind


@dataclass
class Tally:
    """What was said of so many runs."""

    runs: int = 0
    passed: int = 0
    failed: int = 0

    def add(self, kind: VerdictKind) -> None:
        self.runs += 1
        self.passed += kind is VerdictKind.PASS
        self.failed += kind is VerdictKind.FAIL

    @property
    def text(self) -> str:
        return f"{render_rate(self.runs - self.passed, self.runs)}, FAIL {render_rate(self.failed, self.runs)}"


def measure(chosen: Set, count: int, goldens: int, alpha: float, level: float, effect: float) -> dict[str, Tally]:
    found: dict[str, Tally] = {}
    for kind, noise in chosen.noises.items():
        for shape, build in chosen.shapes.items():
            for length in chosen.lengths:
                rng = np.random.default_rng([chosen.seed, goldens, length, len(shape), round(1e6 * (effect + level))])
                for _ in range(count):
                    curve = build(length)
                    known = [draw(rng, curve, noise, level) for _ in range(goldens)]
                    run = draw(rng, curve, noise, level)
                    size = np.abs(curve) if (curve > 0).all() else np.full(length, np.abs(curve).mean())
                    found.setdefault(kind, Tally()).add(judge(known, run + effect * size, alpha))
    return found


def print_report(chosen: Set, count: int, alpha: float) -> None:
    for level in LEVELS:
        for goldens in GOLDENS:
            for effect in (0.0, *EFFECTS):
                found = measure(chosen, count, goldens, alpha, level, effect)
                every = Tally(
                    *(sum(getattr(each, name) for each in found.values()) for name in ("runs", "passed", "failed"))
                )
                name = f"{100 * effect:g}% worse" if effect else "good"
                what = f"noise {100 * level:g}%, {goldens} goldens, {name}"
                print(render_share(f"{what}: not PASS", every.runs - every.passed, every.runs))
                print(render_share(f"{what}: FAIL", every.failed, every.runs))
                print("    " + "; ".join(f"{kind} {each.text}" for kind, each in found.items()))


def print_grid(chosen: Set, count: int) -> None:
    """The multiple that is inside, and alpha: good runs that do not pass, and 3% worse ones that do not."""
    for multiple in (2.0, 3.0, 4.0, 6.0):
        for alpha in (0.05, 0.01, 0.001):
            effects.MULTIPLE = multiple
            line = []
            for goldens in (2, 3, 5):
                good = measure(chosen, count, goldens, alpha, 0.001, 0.0).values()
                worse = measure(chosen, count, goldens, alpha, 0.001, 0.01).values()
                runs = sum(each.runs for each in good)
                shares = [runs - sum(each.passed for each in good), sum(each.failed for each in good)]
                shares += [runs - sum(each.passed for each in worse), sum(each.failed for each in worse)]
                line.append(f"{goldens}: " + " ".join(f"{100 * share / runs:5.1f}%" for share in shares))
            print(f"multiple {multiple:g}, alpha {alpha:g} | " + " | ".join(line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--choose", action="store_true", help="the grid of the set that the rule was chosen on")
    parser.add_argument("--count", type=int, default=20, help="draws of each shape, noise and length")
    chosen = parser.parse_args()
    if chosen.choose:
        print("of each number of goldens: good not PASS, good FAIL, 1% worse not PASS, 1% worse FAIL")
        print_grid(SETS["choose"], chosen.count)
    else:
        print_report(SETS["report"], chosen.count, Rule("").alpha)


if __name__ == "__main__":
    main()
