"""What `assay bench history` says of a change in the newest executions, and how often it is not PASS without one.

Simulated histories of 8, 20, 40 and 100 executions with noise of 1% (normal, heavy tail, autocorrelated, two modes, a
tenth of outliers), without a change and with a step of 5 to 200% in the last 1, 2, 3 or 10 executions. The thresholds
of the judge were chosen with seeds below 100,000 (`--seed 0`); the documented rates are of seeds from 100,000 on.
`--history FILE` (a list of {suite, values, change_points}) also judges real histories at every tenth of their
executions: how often the newest is called outlying where nobody has marked a change.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from changepoint import NOISE, build_noise
from measuring import render_rate, render_share

from assay.bench.flow.history import HistoryOptions, build_history
from assay.bench.values.comparison import MetricHistory
from assay.bench.values.execution import BenchExecution, BenchResult
from assay.values.verdict import VerdictKind

KINDS = ("gauss", "heavy tail", "AR(1)", "bimodal", "outliers")
LENGTHS = (8, 20, 40, 100)
LASTS = (1, 2, 3, 10)
STEPS = (0.05, 0.1, 0.2, 0.3, 1.0, 2.0)
UNSEEN = 100_000  # the first seed that nothing was chosen by
SCALE = 0.01  # of the noise
NEAR = 30  # executions around a marked change that are not judged
LONGEST = 300  # executions of a real history that are judged together
ORDER = ("PASS", "too noisy", "INCONCLUSIVE", "FAIL", "CHANGED")


def build_values(kind: str, seed: int, n: int, last: int = 0, step: float = 0.0) -> list[float]:
    rng = np.random.default_rng(seed)
    if kind == "outliers":  # a tenth of them, to one side
        noise = NOISE * rng.standard_normal(n) + np.where(rng.random(n) < 0.1, 0.4 * rng.exponential(size=n), 0.0)
    else:
        noise = build_noise(kind, rng, n)
    noise *= SCALE / NOISE
    level = np.where(np.arange(n) >= n - last, math.log1p(step), 0.0)
    return (100 * np.exp(noise + level)).tolist()


def judge(values: Sequence[float]) -> MetricHistory:
    executions = [
        BenchExecution(
            f"e{number:04d}", "m.C.f", 1, BenchResult("m.C.f", True, wall_time=value), "", "", 1e9 + number,
            commit=f"{number:040x}", setup={"cpu": "one"}, fingerprint="one",
        )
        for number, value in enumerate(values)
    ]  # fmt: skip
    return build_history("m.C.f", "wall_time", executions, HistoryOptions(), ())


def name_kind(history: MetricHistory) -> str:
    """INCONCLUSIVE because of a change, or because the noise hides one of --min-effect."""
    is_noisy = history.verdict.kind is VerdictKind.INCONCLUSIVE and not any(
        finding.kind is VerdictKind.INCONCLUSIVE for finding in history.verdict.findings[: len(history.changes)]
    )
    return "too noisy" if is_noisy else str(history.verdict.kind)


def render_kinds(found: Sequence[MetricHistory]) -> str:
    kinds = Counter(map(name_kind, found))
    return ", ".join(f"{kind} {render_rate(kinds[kind], len(found))}" for kind in ORDER if kinds[kind])


def report_quiet(count: int, seed: int) -> None:
    """Without a change; what is not PASS is a false alarm, unless the noise hides a change of --min-effect."""
    for kind, n in itertools.product(KINDS, LENGTHS):
        found = [judge(build_values(kind, seed + number, n)) for number in range(count)]
        alarms = sum(bool(one.changes) for one in found)
        print(f"{render_share(f'no change, {kind}, {n} executions: named one', alarms, count)}; {render_kinds(found)}")


def report_steps(count: int, seed: int, kinds: Sequence[str]) -> None:
    named: dict[float, list[bool]] = {step: [] for step in STEPS}
    for kind, n, last in itertools.product(kinds, LENGTHS, LASTS):
        if last > n // 2:
            continue
        for step in STEPS:
            found = [judge(build_values(kind, seed + number, n, last, step)) for number in range(count)]
            named[step] += [bool(one.changes) for one in found]
            print(f"{step:+.0%} in the last {last} of {n}, {kind}: {render_kinds(found)}{_describe(found, n - last)}")
    for step, each in named.items():
        print(render_share(f"{step:+.0%} in the newest executions: named", sum(each), len(each)))


def _describe(found: Sequence[MetricHistory], onset: int) -> str:
    """Onset and size, where something was found."""
    steps = [one.changes[-1].step for one in found if one.changes]
    if not steps:
        return ""
    right = sum(step.at == onset for step in steps)
    return f"; onset right in {right} of {len(steps)}, median size {np.median([step.effect for step in steps]):+.0%}"


def iterate_real(path: Path) -> Iterator[list[float]]:
    """The history as it was at every tenth execution, where no change is marked nearby."""
    for one in json.loads(path.read_text()):
        marked = np.array([-math.inf, *one["change_points"]])
        for end in range(60, len(one["values"]), 10):
            if np.abs(marked - end).min() > NEAR:
                yield one["values"][max(0, end - LONGEST) : end]


def report_real(path: Path, most: int) -> None:
    """Every history is judged as a user sees it who has its last `LONGEST` executions."""
    drawn = np.random.default_rng(5).permutation(np.array(list(iterate_real(path)), dtype=object))[:most]
    newest = [bool(one.changes and one.changes[-1].too_few) for one in map(judge, drawn)]
    print(render_share("real histories, no change marked nearby: newest outlying", sum(newest), len(newest)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="histories of each kind")
    parser.add_argument("--seed", type=int, default=UNSEEN)
    parser.add_argument("--history", type=Path, help="annotated histories, JSON")
    parser.add_argument(
        "--all", action="store_true", help="steps in every kind of noise, and not in normal noise alone"
    )
    args = parser.parse_args()
    report_quiet(args.count, args.seed)
    report_steps(args.count, args.seed, KINDS if args.all else KINDS[:1])
    if args.history:
        report_real(args.history, 10 * args.count)


if __name__ == "__main__":
    main()
