"""How often `golden blame` calls a metric moved that is not, and how often it finds one that is.

Four cells, each a code in an environment, are simulated with repeats. The code moves what an effect is put into, the
interaction never does. Alpha was chosen on the set `choose` (`--choose` shows others); the set
`report`, with other noises and seeds, is the one that the documentation quotes.
"""

from __future__ import annotations

import argparse

import numpy as np
from golden_same import LEVEL, Noise, correlate, heavy, independent, offset
from measuring import render_share

from assay.golden.judge import contrasts
from assay.golden.values import Rule, Segment, Track

STEPS = 60
CURVE = 2 + 6 * np.exp(-np.arange(STEPS) / 20)
CODE, INTERACTION = {"aa": -1, "ba": 1}, {"aa": 1, "ab": -1, "ba": -1, "bb": 1}
SETS: dict[str, tuple[dict[str, Noise], int]] = {
    "choose": ({"independent": independent, "AR(1) 0.95": correlate(0.95)}, 1),
    "report": ({"heavy tail": heavy, "AR(1) 0.8": correlate(0.8), "offset of each run": offset}, 200_000),
}


def build_cell(noise: Noise, rng: np.random.Generator, repeats: int, size: float, effect: float) -> list[Segment]:
    rows = [CURVE * np.exp(LEVEL * (size * noise(rng, STEPS) + effect)) for _ in range(repeats)]
    tracks = tuple(Track(tuple(range(STEPS)), tuple(map(float, row))) for row in rows)
    return [Segment(0, "", {"loss": {"": tracks}})]


def count_moved(noise: Noise, seed: int, repeats: int, loud: float, effect: float, count: int) -> tuple[int, int]:
    """By the code, and by the interaction. `loud`: the noise of one cell, in that of the others; `effect` in the noise
    of a step."""
    rng, moved = np.random.default_rng([seed, repeats, round(loud), round(effect)]), [0, 0]
    for _ in range(count):
        cells = {
            name: build_cell(noise, rng, repeats, loud if name == "ba" else 1.0, effect * (name[0] == "b"))
            for name in INTERACTION
        }
        (curves,) = contrasts.build_curves(cells, Rule("loss"))
        for at, weights in enumerate((CODE, INTERACTION)):
            moved[at] += contrasts.measure_shift(curves, weights).kind == "moved"
    return moved[0], moved[1]


def print_set(noises: dict[str, Noise], seed: int, count: int) -> None:
    for kind, noise in noises.items():
        for repeats in (2, 3):
            for loud in (1.0, 10.0):
                found = count_moved(noise, seed, repeats, loud, 0.0, count)
                name = f"{kind}, {repeats} repeats, {'one cell ten times as noisy' if loud > 1 else 'cells alike'}"
                for what, moved in zip(("code", "interaction"), found, strict=True):
                    print(render_share(f"{name}: nothing moved, called moved: {what}", moved, count), flush=True)
            for effect in (2.0, 5.0):
                code = count_moved(noise, seed, repeats, 1.0, effect, count)[0]
                print(render_share(f"{kind}, {repeats} repeats: moved by {effect:g} sd of a step, found", code, count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--choose", action="store_true", help="the set on which alpha was chosen, and other alphas")
    parser.add_argument("--count", type=int, default=800, help="experiments of each kind")
    options = parser.parse_args()
    for alpha in (0.2, 0.1, 0.05, 0.01) if options.choose else (contrasts.ALPHA,):
        contrasts.ALPHA = alpha
        print(f"alpha {alpha:g}")
        print_set(*SETS["choose" if options.choose else "report"], options.count)


if __name__ == "__main__":
    main()
