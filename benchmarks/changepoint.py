"""How well change points are found, and how fast.

F1 with a tolerance of 5 points, found and true ones matched one to one, counted over all series of a row together.
Synthetic rows: 500 points, 6 steps of 3 to 25%, noise about 2%. The row "real" needs a file of annotated histories
(`--history FILE`: a list of {suite, values, change_points}). Peers: Apache Otava (from .venv-peers) at p < 1e-5, and
the plain rbf kernel of ruptures (logs, scaled by sigma from the MAD of differences; gamma 0.1, penalty ln n).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import ruptures
from measuring import PEERS, has_peer, render_ratio

from assay.judge.changepoint import DEFAULT, Look, Tuning, find_change_points

TOLERANCE = 5
FOLDS = 6
NOISE = 0.02
AR_COEFFICIENT = 0.7
ROWS = ("gauss", "heavy tail", "AR(1)", "bimodal")
OTAVA = """
import json, sys, time
from otava.analysis import compute_change_points
def detect(values):
    return [int(c.index) for c in compute_change_points(values, window_len=50, max_pvalue=1e-5, min_magnitude=0.0)[0]]
series = json.load(sys.stdin)
start = time.perf_counter()
found = [detect(values) for values in series]
json.dump({"found": found, "seconds": time.perf_counter() - start}, sys.stdout)
"""

Found = list[list[int]]


@dataclass(frozen=True)
class History:
    values: list[float]
    changes: list[int]
    suite: str = ""


# ---------------------------------------------------------------- series


def build_noise(kind: str, rng: np.random.Generator, n: int) -> np.ndarray:
    if kind == "heavy tail":
        return NOISE * rng.standard_t(2, n)
    if kind == "AR(1)":
        innovations = rng.standard_normal(n) * math.sqrt(1 - AR_COEFFICIENT**2)
        noise = list(itertools.accumulate(innovations, lambda last, new: AR_COEFFICIENT * last + new))
        return NOISE * np.array(noise)
    if kind == "bimodal":
        return NOISE / 2 * rng.standard_normal(n) + np.where(rng.random(n) < 0.3, 2 * NOISE, 0.0)
    return NOISE * rng.standard_normal(n)


def build_history(kind: str, seed: int, n: int = 500, steps: int = 6) -> History:
    rng = np.random.default_rng(seed)
    changes = _draw_changes(rng, n, steps)
    level = np.zeros(n)
    for change in changes:
        level[change:] += math.log1p(rng.uniform(0.03, 0.25)) * rng.choice([-1, 1])
    return History((100 * np.exp(level + build_noise(kind, rng, n))).tolist(), changes)


def _draw_changes(rng: np.random.Generator, n: int, steps: int) -> list[int]:
    while True:
        changes = sorted(rng.choice(np.arange(20, n - 20), steps, replace=False).tolist())
        if steps < 2 or min(np.diff(changes)) >= 20:
            return changes


def load_histories(path: Path) -> list[History]:
    return [History(one["values"], one["change_points"], one["suite"]) for one in json.loads(path.read_text())]


# ---------------------------------------------------------------- detectors


def detect_ours(histories: Iterable[History], tuning: Tuning = DEFAULT) -> Found:
    return [[change.index for change in find_change_points(one.values, tuning)] for one in histories]


def detect_plain(histories: Iterable[History]) -> Found:
    return [_cut_plain(np.array(one.values)) for one in histories]


def _cut_plain(values: np.ndarray) -> list[int]:
    levels = np.log(values)
    differences = np.diff(levels)
    sigma = 1.4826 * np.median(np.abs(differences - np.median(differences))) / math.sqrt(2)
    kernel = ruptures.KernelCPD(kernel="rbf", params={"gamma": 0.1}, min_size=3)
    return kernel.fit((levels / sigma).reshape(-1, 1)).predict(pen=math.log(len(levels)))[:-1]


def run_otava(histories: Iterable[History]) -> tuple[Found, float]:
    text = json.dumps([one.values for one in histories])
    done = subprocess.run([PEERS / "python", "-c", OTAVA], input=text, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    return answer["found"], answer["seconds"]


def detect_otava(histories: Iterable[History]) -> Found:
    return run_otava(histories)[0]


# ---------------------------------------------------------------- scores


def count_hits(found: Sequence[int], true: Sequence[int]) -> tuple[int, int, int]:
    """Hits, found, true. Both in order: the first pair that can be matched may be."""
    left, right, hits = sorted(found), sorted(true), 0
    while left and right:
        if abs(left[0] - right[0]) <= TOLERANCE:
            hits += 1
            del left[0], right[0]
        else:
            del (left if left[0] < right[0] else right)[0]
    return hits, len(found), len(true)


def measure_f1(counts: Iterable[tuple[int, int, int]]) -> float:
    hits, found, true = (sum(column) for column in zip(*counts, strict=True))
    return 2 * hits / (found + true) if found + true else 1.0


def score(found: Found, histories: Sequence[History]) -> list[tuple[int, int, int]]:
    return [count_hits(one, history.changes) for one, history in zip(found, histories, strict=True)]


def bootstrap(counts: Sequence[tuple[int, int, int]], times: int = 1000) -> tuple[float, float]:
    """The middle 95% of F1 when the series are drawn again with replacement."""
    rng = random.Random(11)
    drawn = sorted(measure_f1(rng.choices(counts, k=len(counts))) for _ in range(times))
    return drawn[int(0.025 * times)], drawn[int(0.975 * times)]


def render_score(counts: Sequence[tuple[int, int, int]]) -> str:
    low, high = bootstrap(counts)
    return f"{measure_f1(counts):.3f} [{low:.3f}, {high:.3f}]"


# ---------------------------------------------------------------- cross-validation


def build_grid() -> list[Tuning]:
    """What is chosen on the other folds: the penalty, and both looks' bounds."""
    return [
        replace(DEFAULT, penalty=penalty, near=Look(20, 3.0 * near, near), far=Look(60, far, 0.5))
        for penalty, near, far in itertools.product((0.4, 0.45, 0.5), (0.85, 1.0, 1.15), (4.5, 5.0, 6.0))
    ]


def cross_validate(histories: Sequence[History]) -> tuple[list[tuple[int, int, int]], list[Tuning]]:
    """Every series judged by the tuning that was best on the folds without its suite."""
    grid = build_grid()
    tables = [score(detect_ours(histories, tuning), histories) for tuning in grid]
    suites = sorted({one.suite for one in histories})
    random.Random(3).shuffle(suites)
    fold_of = {suite: number % FOLDS for number, suite in enumerate(suites)}
    kept: list[tuple[int, int, int]] = []
    chosen = []
    for fold in range(FOLDS):
        outside = [i for i, one in enumerate(histories) if fold_of[one.suite] != fold]
        best = max(range(len(grid)), key=lambda g: measure_f1(tables[g][i] for i in outside))
        chosen.append(grid[best])
        kept += [tables[best][i] for i, one in enumerate(histories) if fold_of[one.suite] == fold]
    return kept, chosen


# ---------------------------------------------------------------- the report


def report_rows(rows: dict[str, list[History]], detectors: dict[str, Callable[[Iterable[History]], Found]]) -> None:
    for row, histories in rows.items():
        figures = {name: score(detect(histories), histories) for name, detect in detectors.items()}
        print(f"{row:11}" + "".join(f"  {name} {render_score(counts)}" for name, counts in figures.items()))
        ours = measure_f1(figures["assay"])
        best = max((measure_f1(counts) for name, counts in figures.items() if name != "assay"), default=0.0)
        print(f"{'':11}  {'above all peers' if ours > best else 'NOT above all peers'}")
        if row == "AR(1)":
            print(f"  AR(1) {ours:.3f}, target at least .90: {'met' if ours >= 0.90 else 'MISSED'}")


def report_real(histories: Sequence[History]) -> None:
    counts, chosen = cross_validate(histories)
    print(f"real, cross-validated over {FOLDS} folds of suites: {render_score(counts)}")
    print(f"  target at least .72: {'met' if measure_f1(counts) >= 0.72 else 'MISSED'}")
    for tuning in chosen:
        print(f"  chosen: penalty {tuning.penalty}, near {tuning.near.effect}, far {tuning.far.z}")


def report_noise(count: int) -> None:
    for kind in ROWS:
        rng = np.random.default_rng(17)
        series = [History((100 * np.exp(build_noise(kind, rng, 200))).tolist(), []) for _ in range(count)]
        share = sum(map(bool, detect_ours(series))) / count
        aim = 0.02 if kind != "AR(1)" else None
        print(
            render_ratio(
                f"alarms on {count} series of pure noise, {kind}, in percent", 100 * share, at_most=aim and 2.0
            )
        )


def report_speed(repeats: int, with_otava: bool) -> None:
    joined = [value for seed in range(20) for value in build_history("gauss", seed).values]
    long = [History(joined, [])]
    for name, detect in (("assay", detect_ours), ("rbf", detect_plain)):
        taken = []
        for _ in range(repeats):
            start = time.process_time()
            detect(long)
            taken.append(time.process_time() - start)
        print(f"{len(joined)} points: {name:6} {statistics.median(taken):.3f} s (best {min(taken):.3f}), CPU time")
        if name == "assay":
            print("  " + render_ratio("seconds", statistics.median(taken), at_most=0.1))
    if with_otava:
        print(f"{len(joined)} points: otava  {run_otava(long)[1]:.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=Path, help="annotated histories, JSON")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--noise", type=int, default=1000, help="series of pure noise")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    with_otava = has_peer("otava")
    detectors: dict[str, Callable[[Iterable[History]], Found]] = {"assay": detect_ours, "rbf": detect_plain}
    if with_otava:
        detectors["otava"] = detect_otava
    rows = {kind: list(map(partial(build_history, kind), range(options.seeds))) for kind in ROWS}
    real = load_histories(options.history) if options.history else []
    report_rows({**rows, **({"real": real} if real else {})}, detectors)
    if real:
        report_real(real)
    report_noise(options.noise)
    report_speed(options.repeats, with_otava)


if __name__ == "__main__":
    main()
