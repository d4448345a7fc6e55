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
from dataclasses import dataclass
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
Counts = Sequence[tuple[int, int, int]]  # hits, found, true of each series


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


def bootstrap(counts: Counts, times: int = 1000) -> tuple[float, float]:
    """The middle 95% of F1 when the series are drawn again with replacement."""
    rng = random.Random(11)
    drawn = sorted(measure_f1(rng.choices(counts, k=len(counts))) for _ in range(times))
    return drawn[int(0.025 * times)], drawn[int(0.975 * times)]


def bootstrap_lead(ours: Counts, theirs: Counts, times: int = 1000) -> tuple[float, float]:
    rng = random.Random(11)
    places = range(len(ours))
    leads = []
    for _ in range(times):
        drawn = rng.choices(places, k=len(ours))
        leads.append(measure_f1([ours[i] for i in drawn]) - measure_f1([theirs[i] for i in drawn]))
    leads.sort()
    return leads[int(0.025 * times)], leads[int(0.975 * times)]


def render_score(counts: Counts) -> str:
    low, high = bootstrap(counts)
    return f"{measure_f1(counts):.3f} [{low:.3f}, {high:.3f}]"


# ---------------------------------------------------------------- cross-validation


def draw_tunings(count: int) -> list[Tuning]:
    """Every number of the method drawn anew, from a wide range: none of them is known beforehand to be good."""
    rng = random.Random(5)
    return [_draw_tuning(rng) for _ in range(count)]


def _draw_tuning(rng: random.Random) -> Tuning:
    def draw(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    return Tuning(
        gamma=draw(0.05, 0.5),
        penalty=draw(0.25, 1.0),
        stretch=rng.choice((200, 400, 800)),
        near=Look(rng.choice((10, 15, 20, 30)), draw(2, 4.5), draw(0.6, 1.6)),
        far=Look(rng.choice((40, 60, 80)), draw(3.5, 8), draw(0.3, 0.8)),
        floor=draw(0.25, 1.0),
        least_memory=draw(0.2, 0.5),
        ease=draw(0.5, 1.0),
        unrest=1 + draw(0.15, 1.0),
    )


def _shake(tuning: Tuning, rng: random.Random) -> Tuning:
    """A neighbour: every number a little larger or smaller."""

    def shake(value: float) -> float:
        return value * math.exp(rng.gauss(0, 0.12))

    def shake_look(look: Look) -> Look:
        return Look(round(shake(look.points)), shake(look.z), shake(look.effect))

    return Tuning(
        gamma=shake(tuning.gamma),
        penalty=shake(tuning.penalty),
        stretch=tuning.stretch,
        near=shake_look(tuning.near),
        far=shake_look(tuning.far),
        floor=shake(tuning.floor),
        least_memory=shake(tuning.least_memory),
        ease=min(shake(tuning.ease), 1.0),
        unrest=1 + shake(tuning.unrest - 1),
    )


def climb(tuning: Tuning, histories: Sequence[History], steps: int) -> Tuning:
    """From a tuning to better neighbours, on these histories alone."""
    rng = random.Random(9)
    best = measure_f1(score(detect_ours(histories, tuning), histories))
    for _ in range(steps):
        other = _shake(tuning, rng)
        found = measure_f1(score(detect_ours(histories, other), histories))
        if found > best:
            tuning, best = other, found
    return tuning


def cross_validate(histories: Sequence[History], draws: int, steps: int) -> tuple[Counts, list[Tuning]]:
    """Every series judged by a tuning that was searched for on the folds without its suite."""
    tunings = draw_tunings(draws)
    tables = [score(detect_ours(histories, tuning), histories) for tuning in tunings]
    suites = sorted({one.suite for one in histories})
    random.Random(3).shuffle(suites)
    fold_of = {suite: number % FOLDS for number, suite in enumerate(suites)}
    kept: list[tuple[int, int, int]] = []
    chosen = []
    for fold in range(FOLDS):
        outside = [i for i, one in enumerate(histories) if fold_of[one.suite] != fold]
        best = max(range(len(tunings)), key=lambda t: measure_f1(tables[t][i] for i in outside))
        chosen.append(climb(tunings[best], [histories[i] for i in outside], steps))
        inside = [one for one in histories if fold_of[one.suite] == fold]
        kept += score(detect_ours(inside, chosen[-1]), inside)
    return kept, chosen


# ---------------------------------------------------------------- the report


def report_rows(rows: dict[str, list[History]], detectors: dict[str, Callable[[Iterable[History]], Found]]) -> None:
    for row, histories in rows.items():
        figures = {name: score(detect(histories), histories) for name, detect in detectors.items()}
        print(f"{row:11}" + "".join(f"  {name} {render_score(counts)}" for name, counts in figures.items()))
        peers = {name: counts for name, counts in figures.items() if name != "assay"}
        best = max(peers, key=lambda name: measure_f1(peers[name]))
        print(f"{'':11}  {render_lead(figures['assay'], best, peers[best])}")
        if row == "AR(1)":
            ours = measure_f1(figures["assay"])
            print(f"{'':11}  {ours:.3f}, target at least .90: {'met' if ours >= 0.90 else 'MISSED'}")


def render_lead(ours: Counts, name: str, theirs: Counts) -> str:
    """How far above the best peer, with the interval of the difference on the same series."""
    lead = measure_f1(ours) - measure_f1(theirs)
    low, high = bootstrap_lead(ours, theirs)
    word = "above all peers" if lead > 0 else "level with the best peer" if lead == 0 else "BELOW a peer"
    return f"{word}: {name} {lead:+.4f} [{low:+.4f}, {high:+.4f}]"


def report_real(histories: Sequence[History], draws: int, steps: int) -> None:
    counts, chosen = cross_validate(histories, draws, steps)
    print(f"real, cross-validated over {FOLDS} folds of suites; all numbers chosen in each:")
    print(f"  {render_score(counts)}, target at least .72: {'met' if measure_f1(counts) >= 0.72 else 'MISSED'}")
    for tuning in chosen:
        print(f"  chosen: {tuning}")


def report_noise(count: int) -> None:
    for kind in ROWS:
        rng = np.random.default_rng(17)
        series = [History((100 * np.exp(build_noise(kind, rng, 200))).tolist(), []) for _ in range(count)]
        alarms = sum(map(bool, detect_ours(series)))
        what = f"alarms on {count} series of pure noise, {kind}, in percent"
        print(render_ratio(what, 100 * alarms / count, at_most=2.0))


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
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=100, help="tunings that cross-validation begins with")
    parser.add_argument("--steps", type=int, default=80, help="from the best of them to better ones, in each fold")
    parser.add_argument("--noise", type=int, default=1000, help="series of pure noise")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    with_otava = has_peer("otava")
    detectors: dict[str, Callable[[Iterable[History]], Found]] = {"assay": detect_ours, "rbf": detect_plain}
    if with_otava:
        detectors["otava"] = detect_otava
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    rows = {kind: list(map(partial(build_history, kind), seeds)) for kind in ROWS}
    real = load_histories(options.history) if options.history else []
    report_rows({**rows, **({"real": real} if real else {})}, detectors)
    if real:
        report_real(real, options.draws, options.steps)
    report_noise(options.noise)
    report_speed(options.repeats, with_otava)


if __name__ == "__main__":
    main()
