"""What harmless changes and faults look like on a GPU, and what a convergence check says about them.

A transformer on bytes (`_transformer.py`) trains to a checkpoint and then again and again from it, in fp32, TF32 and
bf16: the same program (replicas), three changes declared as variants (plain attention; the batch in four parts instead
of two; rows in another order), other harmless changes that are not declared (other kernels, other parts, rows in other
orders), another precision, and the faults. Printed for each: the distance of its loss and gradient norm from the
replicas (mean absolute log-ratio of a window, largest over windows) and the verdict. A fault counts where its final
weights differ ten times more than those of the variants do. Needs torch and a GPU; without them it says so and is done.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from _transformer import (
    FAULTS,
    SMALL_FAULTS,
    Outcome,
    Recipe,
    Size,
    Way,
    build_golden,
    measure_distance,
    train,
    write_start,
)
from measuring import render_share

from assay.golden.judge.convergence import count_peers, judge_rules
from assay.golden.judge.effects import build_starts, measure_effects, stack
from assay.golden.judge.pairing import line_up
from assay.golden.values import Golden, Rule
from assay.values.verdict import VerdictKind

PEAK = 1e-3
USUAL = Way(device="cuda")
PRECISIONS = ("fp32", "tf32", "bf16")
RULES = (Rule("loss"), Rule("grad_norm"), Rule("lr"), Rule("eval_loss"))
VARIANTS: dict[str, dict[str, Any]] = {"plain attention": {"attention": "plain"}, "four parts": {"parts": 4}}
VARIANTS["rows in order 9"] = {"order": 9}
NULLS: dict[str, dict[str, Any]] = {
    "one part": {"parts": 1},
    "eight parts": {"parts": 8},
    "plain attention, four parts": {"attention": "plain", "parts": 4},
    "cublaslt": {"library": "cublaslt"},
    "cublaslt, plain attention": {"library": "cublaslt", "attention": "plain"},
    "optimiser in a loop": {"optimiser": "loop"},
    "optimiser fused": {"optimiser": "fused"},
    **{f"rows in order {number}": {"order": number} for number in range(1, 6)},
    "rows in order 6, plain": {"order": 6, "attention": "plain"},
    "rows in order 7, one part": {"order": 7, "parts": 1},
}


def measure_distances(golden: Golden, outcome: Outcome) -> tuple[float, ...]:
    """Of the loss and of the gradient norm: the largest window."""
    found = []
    for rule in RULES[:2]:
        pair = line_up(rule, golden.segments[0], "", [outcome.run])
        starts = build_starts(rule, pair.steps)
        effects = measure_effects(stack(pair.golden), stack(pair.checks), starts)
        found.append(float(effects.distance.max()))
    return tuple(found)


class Bench:
    """One precision: its golden, and what has been judged against it."""

    def __init__(self, size: Size, precision: str, saved: Any, is_late: Callable[[], bool]) -> None:
        self.size, self.saved, self.is_late = size, saved, is_late
        self.way = replace(USUAL, precision=precision)
        self.recipe = Recipe(peak=PEAK)
        self.first = self.run()
        replicas = [self.first, self.run(), self.run()]
        self.are_equal = all(each.run == self.first.run for each in replicas)
        self.variants = {name: self.run(**changes) for name, changes in VARIANTS.items()}
        runs = [each.run for each in replicas]
        self.plain = build_golden(size, runs)
        self.golden = build_golden(size, runs, {name: each.run for name, each in self.variants.items()})
        self.apart = max(measure_distance(self.first.weights, each.weights) for each in self.variants.values())

    def run(self, recipe: Recipe | None = None, **changes: Any) -> Outcome:
        return train(self.size, replace(self.way, **changes), self.saved, recipe or self.recipe)

    def print(self, kind: str, name: str, outcome: Outcome) -> VerdictKind:
        verdict, alone = (
            judge_rules(RULES, golden.segments[0], [outcome.run], peers=count_peers(RULES, golden)).kind
            for golden in (self.golden, self.plain)
        )
        loss, norm = measure_distances(self.golden, outcome)
        ratio = measure_distance(self.first.weights, outcome.weights) / self.apart
        print(
            f"{self.way.precision:<5} {kind:<9} {name:<28} {loss:8.0e} {norm:8.0e} {ratio:9.1f}   "
            f"{verdict:<13} {alone}",
            flush=True,
        )
        return verdict

    def judge_all(self) -> None:
        print(f"{self.way.precision}: replicas {'bit-equal' if self.are_equal else 'differ'}")
        for name, outcome in self.variants.items():
            self.print("declared", name, outcome)
        nulls = []
        for name, changes in NULLS.items():
            outcome = self.run(**changes)
            kind = self.print("harmless", name, outcome)
            nulls += [] if outcome.run == self.first.run else [kind]  # equal bit for bit is no trial
        for other in PRECISIONS[:2]:
            if self.way.precision not in (other, "bf16"):
                self.print("precision", f"{other} instead", self.run(precision=other))
        kinds: dict[str, VerdictKind] = {}
        counted: list[str] = []
        for name, fault in (SMALL_FAULTS | FAULTS).items():
            if self.is_late():
                break
            outcome = self.run(replace(fault, peak=PEAK))
            kinds[name] = self.print("fault", name, outcome)
            if measure_distance(self.first.weights, outcome.weights) >= 10 * self.apart:
                counted.append(name)
        self._print_sums(nulls, kinds, counted)

    def _print_sums(self, nulls: Sequence[VerdictKind], kinds: dict[str, VerdictKind], counted: Sequence[str]) -> None:
        alarms = sum(kind is not VerdictKind.PASS for kind in nulls)
        worse = sum(kind in (VerdictKind.FAIL, VerdictKind.ERROR) for kind in nulls)
        inside = [name for name, kind in kinds.items() if kind is VerdictKind.PASS]
        outside = len(counted) - len(set(counted) & set(inside))
        unsure = sum(kind is VerdictKind.INCONCLUSIVE for kind in kinds.values())
        name = self.way.precision
        print(render_share(f"{name}: faults that do not pass", len(kinds) - len(inside), len(kinds)), end="")
        print(f" ({unsure} of them INCONCLUSIVE)")
        what = f"{name}: of those whose weights differ ten times more than the variants'"
        print(render_share(what, outside, len(counted)))
        print(f"  pass: {', '.join(inside) or 'none'}")
        left = len(FAULTS) + len(SMALL_FAULTS) - len(kinds)
        if left:
            print(f"  {left} faults were not run: the time was up")
        quiet = render_share(f"{name}: harmless, not declared: alarms", alarms, len(nulls))
        print(f"{quiet}, {worse} with more than CHANGED\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--warm", type=int, default=100, help="steps before the checkpoint")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--limit-s", type=float, default=440.0, help="start no further training after this")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("needs torch: not measured here")
        return 0
    if not torch.cuda.is_available():
        print("needs a GPU: not measured here")
        return 0
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    began = time.monotonic()
    size = Size(128, 32, 256, 4, 4, options.warm, options.steps, text_bytes=4_000_000)
    saved = write_start(size, USUAL, Recipe(peak=PEAK))
    print(f"{'':<5} {'':<9} {'change':<28} {'loss':>8} {'grad':>8} {'weights':>9}   with variants  without")
    for number, precision in enumerate(PRECISIONS):
        share = options.limit_s * (number + 1) / len(PRECISIONS)
        Bench(size, precision, saved, lambda share=share: time.monotonic() - began > share).judge_all()
    print(f"{time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
