"""How far a metric moves from step to step, for runs with other seeds.

A running mean, an exponential average, a value that is repeated for some steps, or the loss of one device instead of
the mean over all, have the level that the unmatched rule compares. What they change is the mean absolute difference of
neighbouring values: CHANGED where it is off by more than a factor of two, and surely so by the recordings' spread.
"""

from __future__ import annotations

import math

from assay.golden.judge.effects import SURE_TAIL, find_resolution, stack, stack_variants
from assay.golden.judge.pairing import Aligned, Pair
from assay.golden.judge.pointwise import render_fraction
from assay.golden.values import Track
from assay.judge.statistics import np, t_quantile
from assay.values.verdict import Finding, VerdictKind

FEWEST_STEPS = 10  # fewer values show little of how far a metric moves
FACTOR = 2.0  # chosen on a falling curve with independent noise, tested on correlated noise and on counts


def judge_movement(pair: Pair, tests: int) -> list[Finding]:
    """Judge checks that have every step. `tests`: how many metrics and segments are judged together."""
    golden, checks = stack(pair.golden), stack(pair.checks)
    runs: list[Track | Aligned] = [*pair.golden, *pair.checks]
    if len(pair.steps) < FEWEST_STEPS or not np.isfinite(checks).all():
        return []
    if not np.median(np.abs(np.diff(golden, axis=1)), axis=1).all():
        return []  # values that rarely change do so by chance
    last = max(find_resolution(run) for run in runs)  # with fewer digits less is seen to move
    moved = [np.abs(np.diff(rows, axis=1)).mean(axis=1) for rows in (golden, checks, stack_variants(pair))]
    with np.errstate(divide="ignore"):
        known, tested, harmless = (np.log(each + last / 4) for each in moved)
    effect, error = float(tested.mean() - known.mean()), float(known.std(ddof=1))
    surely = t_quantile(len(known) - 1, SURE_TAIL / tests) * error * math.sqrt(1 / len(known) + 1 / len(tested))
    if abs(effect) <= max(math.log(FACTOR), surely, *np.abs(harmless - known.mean())):
        return []
    shown, usual = (render_fraction(float(each.mean() / np.abs(golden).mean())) for each in (moved[1], moved[0]))
    cause = "a mean or a smoothed value instead of each step's?" if effect < 0 else "a part instead of a mean?"
    message = f"moves by {shown} from step to step instead of {usual}: does it log {cause}"
    return [Finding(VerdictKind.CHANGED, pair.subject, message)]
