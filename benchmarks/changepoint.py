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

from assay.bench.judge.changepoint import DEFAULT, YOUNG_BOUNDS, Tuning, Window, find_change_points
from assay.bench.judge.history import VISIBLE, find_detectable, find_trend
from assay.bench.judge.noise import measure_level_drift, measure_student_gains

TOLERANCE = 5
NEIGHBOURHOOD = 25  # a change that is not found, and something found no farther away: misplaced
FOLDS = 6
WINDOWS = (DEFAULT.near, DEFAULT.far)
NOISE = 0.02
AR_COEFFICIENT = 0.7
ROWS = ("gauss", "heavy tail", "AR(1)", "bimodal")
WHITE = ("gauss", "heavy tail", "bimodal")
LENGTHS = (6, 7, 8, 10, 12, 15, 20, 30, 50, 80, 119, 120, 150, 200)
WHITE_LENGTHS = (100, 200, 500, 1000, 2000)
HEIGHTS = (3, 5, 8)
OUTLIER_LENGTHS = (12, 24, 36, 60, 100, 150)
OUTLIER_SEED = 1001  # bounds were chosen with others
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
    annotators: tuple[int, ...] = ()  # how many people marked each change, where that is known


# ---------------------------------------------------------------- series


def build_noise(kind: str, rng: np.random.Generator, n: int, autocorrelation: float = AR_COEFFICIENT) -> np.ndarray:
    if kind == "heavy tail":
        return NOISE * rng.standard_t(2, n)
    if kind == "AR(1)":
        innovations = rng.standard_normal(n) * math.sqrt(1 - autocorrelation**2)
        return NOISE * np.array(list(itertools.accumulate(innovations, lambda last, new: autocorrelation * last + new)))
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
    return [
        History(one["values"], one["change_points"], one["suite"], tuple(one.get("annotators", ())))
        for one in json.loads(path.read_text())
    ]


# ---------------------------------------------------------------- detectors


def detect_ours(histories: Iterable[History], tuning: Tuning = DEFAULT) -> Found:
    return [[change.at for change in find_change_points(one.values, tuning)] for one in histories]


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


def count_errors(found: Sequence[int], true: Sequence[int]) -> np.ndarray:
    """Misplaced, missed, too many."""
    missed = [one for one in true if not any(abs(one - other) <= TOLERANCE for other in found)]
    extra = [one for one in found if not any(abs(one - other) <= TOLERANCE for other in true)]
    misplaced = sum(any(abs(one - other) <= NEIGHBOURHOOD for other in extra) for one in missed)
    return np.array((misplaced, len(missed) - misplaced, max(len(extra) - misplaced, 0)))


def render_errors(found: Found, histories: Sequence[History]) -> str:
    errors = sum(count_errors(one, history.changes) for one, history in zip(found, histories, strict=True))
    return "{} misplaced, {} missed, {} too many".format(*errors)


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
    indices = range(len(ours))
    leads = []
    for _ in range(times):
        drawn = rng.choices(indices, k=len(ours))
        leads.append(measure_f1([ours[i] for i in drawn]) - measure_f1([theirs[i] for i in drawn]))
    leads.sort()
    return leads[int(0.025 * times)], leads[int(0.975 * times)]


def render_score(counts: Counts) -> str:
    low, high = bootstrap(counts)
    return f"{measure_f1(counts):.3f} [{low:.3f}, {high:.3f}]"


# ---------------------------------------------------------------- cross-validation


def _draw_between(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def draw_few(rng: random.Random) -> Tuning:
    """The three numbers that decide how much is found: of the kernel, of its penalty, and how strictly is pruned."""
    strictness = _draw_between(rng, 0.6, 1.6)
    near, far = (replace(window, z=window.z * strictness, effect=window.effect * strictness) for window in WINDOWS)
    return replace(
        DEFAULT, gamma=_draw_between(rng, 0.05, 0.5), penalty=_draw_between(rng, 0.25, 1.0), near=near, far=far
    )


def draw_all(rng: random.Random) -> Tuning:
    """Every number that was ever tuned on annotated histories, as if none were known."""
    draw = partial(_draw_between, rng)
    return replace(
        DEFAULT,
        gamma=draw(0.05, 0.5),
        penalty=draw(0.25, 1.0),
        stretch=rng.choice((200, 400, 800)),
        near=Window(rng.choice((10, 15, 20, 30)), draw(2, 4.5), draw(0.6, 1.6)),
        far=Window(rng.choice((40, 60, 80)), draw(3.5, 8), draw(0.3, 0.8)),
        floor=draw(0.25, 1.0),
        least_autocorrelation=draw(0.2, 0.5),
    )


SEARCHES = {"few": draw_few, "all": draw_all}


def cross_validate(histories: Sequence[History], search: str, draws: int, stream: int) -> list[tuple[int, int, int]]:
    """Every series judged by the tuning, of those drawn, that was best on the folds without its suite.

    A stream has draws and folds of its own: one alone hangs on its luck with them.
    """
    rng = random.Random(stream)
    tunings = [SEARCHES[search](rng) for _ in range(draws)]
    tables = [score(detect_ours(histories, tuning), histories) for tuning in tunings]
    suites = sorted({one.suite for one in histories})
    rng.shuffle(suites)
    fold_of = {suite: number % FOLDS for number, suite in enumerate(suites)}
    folds = [fold_of[one.suite] for one in histories]
    best = [
        max(tables, key=lambda table: measure_f1(one for one, other in zip(table, folds, strict=True) if other != fold))
        for fold in range(FOLDS)
    ]
    return [best[fold][index] for index, fold in enumerate(folds)]


def pool(streams: Sequence[Counts]) -> Counts:
    """Each series' counts over all streams together; their F1 is about the streams' mean."""
    return [tuple(map(sum, zip(*counts, strict=True))) for counts in zip(*streams, strict=True)]


# ---------------------------------------------------------------- the report


def report_rows(rows: dict[str, list[History]], detectors: dict[str, Callable[[Iterable[History]], Found]]) -> None:
    for row, histories in rows.items():
        answers = {name: detect(histories) for name, detect in detectors.items()}
        figures = {name: score(found, histories) for name, found in answers.items()}
        print(f"{row:11}" + "".join(f"  {name} {render_score(counts)}" for name, counts in figures.items()))
        for name, found in answers.items():
            print(f"{'':11}  {name}: {render_errors(found, histories)}")
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


def report_real(histories: Sequence[History], search: str, draws: int, streams: int) -> None:
    answers = [cross_validate(histories, search, draws, stream) for stream in range(streams)]
    figures = [measure_f1(counts) for counts in answers]
    mean = statistics.mean(figures)
    low, high = bootstrap(pool(answers))
    print(f"real, cross-validated over {FOLDS} folds of suites, {search} numbers chosen among {draws} draws in each:")
    print(f"  {streams} streams: " + " ".join(f"{figure:.3f}" for figure in figures))
    print(f"  mean {mean:.3f} [{low:.3f}, {high:.3f}], target at least .72: {'met' if mean >= 0.72 else 'MISSED'}")


def report_recall(histories: Sequence[History]) -> None:
    """Of the changes that one person marked, that two did, ..."""
    hits: dict[int, list[bool]] = {}
    for history, found in zip(histories, detect_ours(histories), strict=True):
        for change, count in zip(history.changes, history.annotators, strict=False):
            hits.setdefault(count, []).append(any(abs(change - one) <= TOLERANCE for one in found))
    if not hits:
        print("recall by number of annotators: the file does not say how many there were (`annotators` of a history)")
    for count, seen in sorted(hits.items()):
        print(f"recall of changes that {count} annotators marked: {statistics.mean(seen):.3f} of {len(seen)}")


# ---------------------------------------------------------------- young histories with outliers, and those that creep


def build_wild(rng: np.random.Generator, n: int, step: float = 0.0, rise: float = 0.0) -> History:
    """Noise of 1.5%, a tenth of the points higher by 40% in the mean (exponential), a step in the middle."""
    values = 100 * (1 + 0.015 * rng.standard_normal(n))
    outliers = rng.random(n) < 0.1
    values[outliers] *= 1 + 0.4 * rng.exponential(size=outliers.sum())
    values *= 1 + rise * np.arange(n) / (n - 1)
    values[n // 2 :] *= 1 + step
    return History(values.tolist(), [n // 2] if step else [])


def report_outliers(count: int) -> None:
    for step in (0.2, 0.1, 0.05, 0.0):
        shares = {}
        for n in OUTLIER_LENGTHS:
            rng = np.random.default_rng(OUTLIER_SEED)
            found = detect_ours([build_wild(rng, n, step) for _ in range(count)])
            hits = [any(abs(i - n // 2) <= 1 for i in one) if step else bool(one) for one in found]
            shares[n] = 100 * statistics.mean(hits)
        what = f"step of {step:.0%} found within one point" if step else "alarms without a step"
        print(f"a tenth outliers, {what}: " + ", ".join(f"{n} points {share:.1f}%" for n, share in shares.items()))
        if step == 0.2:
            worse = min(shares[24], shares[36])
            about = f"a tenth outliers, {what}, 24 and 36 points: the worse, in percent"
            print("  " + render_ratio(about, worse, at_least=95))
        if not step:
            about = f"a tenth outliers, {what}: the worst length, in percent"
            print("  " + render_ratio(about, max(shares.values()), at_most=2.0))


def report_trend(count: int) -> None:
    """Reported as a creep, and not as steps."""
    for rise in (0.35, 0.1, 0.0):
        for n in (12, 30, 100, 400):
            rng = np.random.default_rng(OUTLIER_SEED)
            made = [build_wild(rng, n, rise=rise).values for _ in range(count)]
            share = statistics.mean(find_trend(one, find_change_points(one)) is not None for one in made)
            print(f"a rise of {rise:.0%} over {n} points, a tenth outliers, is called a creep: {share:.1%}")
    for n, autocorrelation in itertools.product((12, 30, 100), (0.4, 0.7)):
        rng = np.random.default_rng(OUTLIER_SEED)
        noise = [(100 * np.exp(build_noise("AR(1)", rng, n, autocorrelation))).tolist() for _ in range(count)]
        share = statistics.mean(find_trend(one, find_change_points(one)) is not None for one in noise)
        print(f"noise with autocorrelation {autocorrelation}, {n} points, is called a creep: {share:.1%}")


def report_visible(count: int) -> None:
    """Of steps just as high as `find_detectable` says could be seen, in the last third: how many are found."""
    for n, kind in itertools.product((8, 12, 24, 36, 60, 100, 200), ("gauss", "outliers")):
        rng = np.random.default_rng(OUTLIER_SEED)
        hits = []
        for _ in range(count):
            values = build_wild(rng, n).values if kind == "outliers" else 100 * np.exp(build_noise("gauss", rng, n))
            values = np.array(values)
            values[n - max(3, n // 3) :] *= 1 + (find_detectable(values.tolist()) or 0.0)
            hits.append(bool(find_change_points(values.tolist())))
        print(f"smallest visible step of {n} points, {kind}: found in {statistics.mean(hits):.0%}")


def report_young_bounds(count: int) -> None:
    """What the likeliest cut gains by chance in noise with an autocorrelation of .4; `YOUNG_BOUNDS` is not below it."""
    for n, bound in YOUNG_BOUNDS.items():
        rng = np.random.default_rng(OUTLIER_SEED)
        gains = [measure_student_gains(build_noise("AR(1)", rng, n, 0.4))[3 : n - 2].max() for _ in range(count)]
        print(f"gain of the likeliest cut of {n} points, 98%: {np.quantile(gains, 0.98):.1f}, bound {bound}")
    print("visible: " + ", ".join(f"{n} points {height} sigma" for n, height in VISIBLE.items()))


def build_young(kind: str, count: int, n: int, height: float = 0.0) -> list[History]:
    """With a step in the middle, in units of the noise; with as much autocorrelation as so few points cannot show."""
    rng = np.random.default_rng(17)
    step = NOISE * height * (np.arange(n) >= n // 2)
    return [History((100 * np.exp(build_noise(kind, rng, n, 0.4) + step)).tolist(), [n // 2]) for _ in range(count)]


def report_noise(count: int) -> None:
    for kind in ROWS:
        rng = np.random.default_rng(17)
        series = [History((100 * np.exp(build_noise(kind, rng, 200))).tolist(), []) for _ in range(count)]
        what = f"alarms on {count} series of 200 points of pure noise, {kind}, in percent"
        print(render_ratio(what, 100 * count_alarms(series) / count, at_most=2.0))
    for kind in ROWS:
        shares = {n: 100 * count_alarms(build_young(kind, count, n)) / count for n in LENGTHS}
        name = f"{kind}, r = .4" if kind == "AR(1)" else kind
        print(f"  by length, {name}: " + ", ".join(f"{n} points {share:.1f}%" for n, share in shares.items()))
        what = f"alarms on series of {LENGTHS[0]} to {LENGTHS[-1]} points of pure noise, {name}"
        print("  " + render_ratio(f"{what}: the worst length, in percent", max(shares.values()), at_most=2.0))


def count_alarms(series: Iterable[History]) -> int:
    return sum(map(bool, detect_ours(series)))


def report_power(count: int) -> None:
    """Of young histories with a step in their middle, how many show it within one point."""
    for kind, height in itertools.product(ROWS, HEIGHTS):
        found = {n: detect_ours(build_young(kind, count, n, height)) for n in LENGTHS}
        shares = {n: sum(any(abs(i - n // 2) <= 1 for i in one) for one in all_) / count for n, all_ in found.items()}
        print(f"step of {height} sigma found, {kind}: " + ", ".join(f"{n} {share:.0%}" for n, share in shares.items()))


def report_drift(count: int) -> None:
    """How large `drift_threshold` must be, from white noise alone: (ratio - 1) * sqrt(n) is alike at all lengths."""
    for n in WHITE_LENGTHS:
        rng = np.random.default_rng(23)
        series = [build_noise(kind, rng, n) / NOISE for kind in WHITE for _ in range(count)]
        found = [(measure_level_drift(x, []) - 1) * math.sqrt(n) for x in series]
        quantiles = np.quantile(found, (0.99, 0.999))
        above = np.mean(np.array(found) >= DEFAULT.drift_threshold)
        print("white noise of {} points: 99% {:.1f}, 99.9% {:.1f}; ".format(n, *quantiles), end="")
        print(f"above unrest = {DEFAULT.drift_threshold}: {above:.2%} of {len(found)}")


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
            about = f"seconds for {len(joined):,} points, CPU"
            print("  " + render_ratio(about, statistics.median(taken), at_most=0.1))
    if with_otava:
        print(f"{len(joined)} points: otava  {run_otava(long)[1]:.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=Path, help="annotated histories, JSON")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--search", choices=sorted(SEARCHES), default="few", help="numbers chosen in cross-validation")
    parser.add_argument("--draws", type=int, default=60, help="tunings that cross-validation chooses among")
    parser.add_argument("--streams", type=int, default=5, help="of draws and folds")
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
        report_real(real, options.search, options.draws, options.streams)
        report_recall(real)
    report_outliers(options.noise)
    report_trend(options.noise // 5)
    report_visible(options.noise // 5)
    report_young_bounds(options.noise)
    report_noise(options.noise)
    report_power(options.noise // 5)
    report_drift(options.noise)
    report_speed(options.repeats, with_otava)


if __name__ == "__main__":
    main()
