"""Early stopping on learning curves that were recorded before: how many steps each rule needs, and what it finds.

    python benchmarks/early_stop.py              the report
    python benchmarks/early_stop.py --choose     rules with other numbers, on the data that they are chosen by

60 configurations of a small network are trained for 81 epochs each on two data sets, and their validation losses are
recorded. The numbers of our rules were chosen on four draws of `rings`; `waves` is what is reported. Each of 20 random
orders is run through an asynchronous schedule with 4 slots, in which runs differ in speed. A run that ends makes room
for the next. A rule is asked after each epoch. The same orders go through Optuna's pruners (extra `search`).
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from measuring import render_ratio

from assay.search.judge import RungCurve, find_rung, judge_curve
from assay.values.study import StopRule

CONFIGURATIONS, EPOCHS, SLOTS, ORDERS = 60, 81, 4, 20
CHOOSING_DRAWS = 4  # of 60 configurations each
NEAR = 0.01  # a result within 1% of the best loss of all configurations is as good
DATA_SETS = ("rings", "waves")

Curves = list[list[float]]


# ---------------------------------------------------------------- the training


def build_data(name: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two tasks of different kinds: three noisy rings to tell apart, and which of three waves is the highest."""
    if name == "rings":
        labels = rng.integers(0, 3, 900)
        radius, angle = labels + 1 + rng.normal(0, 0.35, 900), rng.uniform(0, 2 * np.pi, 900)
        return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1), labels
    points = rng.uniform(-1, 1, (900, 6))
    scores = np.sin(4 * points[:, :3] + 2 * points[:, 3:]) + rng.normal(0, 0.25, (900, 3))
    return points, scores.argmax(axis=1)


def train(name: str, number: int) -> list[float]:
    """The validation loss after each epoch of one configuration."""
    points, labels = build_data(name, np.random.default_rng([7, DATA_SETS.index(name)]))
    rng = np.random.default_rng([DATA_SETS.index(name), number])
    rate, width = 10 ** rng.uniform(-3, 0.3), int(2 ** rng.uniform(2, 6))
    momentum, decay, batch = rng.choice([0.0, 0.9]), 10 ** rng.uniform(-6, -2), int(rng.choice([16, 32, 64]))
    sizes = (points.shape[1], width, width, 3)
    weights = [rng.normal(0, np.sqrt(2 / low), (low, high)) for low, high in pairwise(sizes)]
    weights += [np.zeros(size) for size in sizes[1:]]
    speeds = [np.zeros_like(weight) for weight in weights]
    seen, held_out, losses = 500, slice(500, 900), []
    for _ in range(EPOCHS):
        order = rng.permutation(seen)
        for start in range(0, seen, batch):
            chosen = order[start : start + batch]
            for i, slope in enumerate(compute_slopes(weights, points[chosen], labels[chosen])):
                speeds[i] = momentum * speeds[i] - rate * (slope + decay * weights[i])
                weights[i] = weights[i] + speeds[i]
        losses.append(float(compute_loss(weights, points[held_out], labels[held_out])))
    return losses


def run_forward(weights: Sequence[np.ndarray], points: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    layers = [points]
    for weight, offset in zip(weights[:3], weights[3:], strict=True):
        layers.append(layers[-1] @ weight + offset)
        if len(layers) < 4:
            layers[-1] = np.maximum(layers[-1], 0)
    logits = layers[-1] - layers[-1].max(axis=1, keepdims=True)
    return layers, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def compute_loss(weights: Sequence[np.ndarray], points: np.ndarray, labels: np.ndarray) -> float:
    return -run_forward(weights, points)[1][np.arange(len(labels)), labels].mean()


def compute_slopes(weights: Sequence[np.ndarray], points: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
    layers, logs = run_forward(weights, points)
    back = np.exp(logs)
    back[np.arange(len(labels)), labels] -= 1
    back /= len(labels)
    slopes, offsets = [], []
    for place in (2, 1, 0):
        slopes.insert(0, layers[place].T @ back)
        offsets.insert(0, back.sum(axis=0))
        back = (back @ weights[place].T) * (layers[place] > 0)
    return slopes + offsets


def record(folder: Path, name: str, draw: int = 0) -> Curves:
    """Trained once, kept in a file; from then on only the recorded points count. Each draw has other configurations."""
    with np.errstate(all="ignore"):  # the largest rates diverge, as they do in practice
        curves = [train(name, 1000 * draw + number) for number in range(CONFIGURATIONS)]
    path = folder / f"{name}{draw}.json"
    path.write_text(json.dumps(curves))
    return json.loads(path.read_text())


# ---------------------------------------------------------------- the schedule

Ask = Callable[[int, int, float], bool]  # configuration, epoch, loss: whether it is ended here


@dataclass
class Result:
    steps: list[float] = field(default_factory=list)  # share of all steps, of each order
    found: list[float] = field(
        default_factory=list
    )  # loss of the best that was trained to its end, over the best of all
    ended: list[int] = field(default_factory=list)
    survived: int = 0  # orders in which the best configuration was trained to its end
    seconds: float = 0.0

    def add(self, steps: int, best: float, of_all: float, ended: int, survived: bool) -> None:
        self.steps.append(steps / (CONFIGURATIONS * EPOCHS))
        self.found.append(best / of_all)
        self.ended.append(ended)
        self.survived += survived


def run_order(curves: Curves, seed: int, ask: Ask) -> tuple[int, set[int]]:
    """Steps used, and the configurations that were trained to their end."""
    rng = np.random.default_rng([99, seed])
    waiting = [int(number) for number in rng.permutation(len(curves))][::-1]
    speeds = rng.uniform(0.5, 2.0, len(curves))
    slots = [(speeds[number], number, 1) for number in (waiting.pop() for _ in range(SLOTS))]
    heapq.heapify(slots)
    steps, finished = 0, set()
    while slots:
        now, number, epoch = heapq.heappop(slots)
        steps += 1
        is_ended = ask(number, epoch, curves[number][epoch - 1])
        if is_ended or epoch == EPOCHS:
            finished |= set() if is_ended else {number}
            if waiting:
                number = waiting.pop()
                heapq.heappush(slots, (now + speeds[number], number, 1))
        else:
            heapq.heappush(slots, (now + speeds[number], number, epoch + 1))
    return steps, finished


def measure(draws: Sequence[Curves], build: Callable[[], Ask]) -> Result:
    result = Result()
    began = time.perf_counter()
    for curves in draws:
        last = [min(curve) if np.isfinite(curve[-1]) else np.inf for curve in curves]
        best = int(np.argmin(last))
        for seed in range(ORDERS):
            steps, finished = run_order(curves, seed, build())
            found = min(last[number] for number in finished)
            result.add(steps, found, last[best], CONFIGURATIONS - len(finished), best in finished)
    result.seconds = time.perf_counter() - began
    return result


# ---------------------------------------------------------------- rules


def ask_ours(rule: StopRule) -> Callable[[], Ask]:
    def build() -> Ask:
        curves: dict[int, RungCurve] = {}
        judged: dict[int, int] = {}

        def ask(number: int, epoch: int, loss: float) -> bool:
            own = curves.setdefault(number, RungCurve(rule))
            own.add(epoch, loss)
            others = (curve for other, curve in curves.items() if other != number)
            reason = judge_curve(rule, own, others, judged.get(number, 0))
            judged[number] = len(own.rungs)
            return reason is not None

        return ask

    return build


def ask_last_value(rule: StopRule) -> Callable[[], Ask]:
    """What ours was chosen against: a run counts at a rung with its value there instead of its best one until then."""

    def build() -> Ask:
        there: dict[int, list[float]] = {}
        reached: dict[int, int] = {}

        def ask(number: int, epoch: int, loss: float) -> bool:
            rung = find_rung(rule, epoch)
            if rung is None or reached.get(number) == rung:
                return False
            reached[number] = rung
            values = there.setdefault(rung, [])
            values.append(loss if np.isfinite(loss) else np.inf)
            rank = 1 + sum(value < values[-1] for value in values)
            return len(values) >= rule.runs and rank > np.ceil(len(values) / rule.factor)

        return ask

    return build


def ask_optuna(make: Callable[[object], object]) -> Callable[[], Ask]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def build() -> Ask:
        study = optuna.create_study(pruner=make(optuna.pruners))
        trials: dict[int, optuna.Trial] = {}

        def ask(number: int, epoch: int, loss: float) -> bool:
            trial = trials.setdefault(number, study.ask()) if number not in trials else trials[number]
            trial.report(loss, epoch)
            if trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                return True
            if epoch == EPOCHS:
                study.tell(
                    trial,
                    loss if np.isfinite(loss) else None,
                    skip_if_finished=True,
                    state=None if np.isfinite(loss) else optuna.trial.TrialState.FAIL,
                )
            return False

        return ask

    return build


def list_rules() -> Iterator[tuple[str, Callable[[], Ask]]]:
    """Ours with the numbers that they have where a study says none."""
    yield "assay asha", ask_ours(StopRule("asha", "loss", "min", until=EPOCHS))
    yield "assay median", ask_ours(StopRule("median", "loss", "min", first=5))
    yield "optuna SuccessiveHalving", ask_optuna(lambda pruners: pruners.SuccessiveHalvingPruner())
    like_ours = {"min_resource": 2, "reduction_factor": 2}
    yield "optuna SuccessiveHalving, 2, 2", ask_optuna(lambda pruners: pruners.SuccessiveHalvingPruner(**like_ours))
    yield "optuna Median", ask_optuna(lambda pruners: pruners.MedianPruner(n_warmup_steps=4))


def list_choices() -> Iterator[tuple[str, Callable[[], Ask]]]:
    for first in (1, 2, 3, 5):
        for factor in (2, 3, 4):
            for runs in (1, 6, 8):
                rule = StopRule("asha", "loss", "min", first=first, factor=factor, runs=runs, until=EPOCHS)
                yield f"asha min {first} factor {factor} runs {runs}", ask_ours(rule)
                yield "  the same by the value at the rung", ask_last_value(rule)
    for first in (3, 5, 9):
        for runs in (4, 6, 8):
            yield f"median min {first} runs {runs}", ask_ours(StopRule("median", "loss", "min", first=first, runs=runs))


def describe(name: str, result: Result) -> str:
    low, middle, high = (np.quantile(result.steps, q) for q in (0.0, 0.5, 1.0))
    near = sum(found <= 1 + NEAR for found in result.found)
    return (
        f"{name:36} {middle:6.1%} ({low:.1%} to {high:.1%})  best kept in {result.survived:2} of {len(result.steps)},"
        f" within {NEAR:.0%} in {near:2}, worst {max(result.found) - 1:+.1%};"
        f" {statistics.median(result.ended):.0f} ended; {result.seconds:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--choose", action="store_true", help="other numbers of our rules, on the first data set")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        name, count = (DATA_SETS[0], CHOOSING_DRAWS) if arguments.choose else (DATA_SETS[1], 1)
        draws = [record(Path(folder), name, draw) for draw in range(count)]
    results = {}
    for name, build in list_choices() if arguments.choose else list_rules():
        results[name] = measure(draws, build)
        print(describe(name, results[name]), flush=True)
    if not arguments.choose:
        ours = results.pop("assay asha")
        share = statistics.median(ours.steps)
        print(render_ratio("assay asha, of all steps", share, at_most=0.35, of_each=ours.steps))
        for name, theirs in results.items():
            ratios = sorted(a / b for a, b in zip(ours.steps, theirs.steps, strict=True))
            print(render_ratio(f"steps, assay asha / {name}", statistics.median(ratios), of_each=ratios))


if __name__ == "__main__":
    main()
