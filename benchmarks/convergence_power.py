"""Which bugs a convergence check finds, and how often it cries wolf: the example model, trained for real.

A golden is two segments of charlm's training (one inside the warm-up), five replicas of each, with jitter the size of
bf16's rounding on every gradient. A check repeats the segments once, and up to three times while inconclusive. The
faults are those of examples/charlm/faults.py. Null checks have no fault: whatever they raise is a false alarm.

Columns: `N%` is the original's rule, every logged loss at most N% above the golden's; `loss` the paired windows on the
loss alone; `all` the paired windows on loss, gradient norm, learning rate and eval loss, which is the default.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from assay.judge.convergence import CheckRun, judge_segments, merge_verdicts, next_action
from assay.judge.noise import measure_golden_noise
from assay.values.golden import Golden, Rule, Segment, Track
from assay.values.verdict import Verdict, VerdictKind

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "charlm"
# Small, so that hundreds of runs take minutes; with everything on that a fault can break.
SIZES = ("--hidden", "48", "--context", "12", "--embedding", "16", "--batch-size", "64", "--micro-batches", "4")
FLAGS = (*SIZES, "--dropout", "0.1", "--warmup", "100", "--weight-decay", "0.1")
SEGMENTS = ((40, 120), (400, 180))  # start, steps
MORE_FLAGS: list[str] = []  # another set-up, from --flags
REPLICAS, MOST_CHECKS, GOLDENS = 5, 3, 10
JITTER = 0.004
METRICS = ("loss", "grad_norm", "lr")

MARGINS = {f"{percent}%": (Rule("loss", "margin", operator="<=", margin=percent / 100),) for percent in (20, 5, 1)}
PAIRED = {"loss": (Rule("loss"),), "all": (Rule("loss"), Rule("grad_norm"), Rule("lr"), Rule("eval_loss"))}
COLUMNS = {**MARGINS, **PAIRED}


# ---------------------------------------------------------------- training


def load_module(name: str) -> ModuleType:
    """Afresh each time: a fault is planted by replacing functions."""
    spec = importlib.util.spec_from_file_location(f"power_{name}", EXAMPLE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(EXAMPLE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@cache
def load_faults() -> ModuleType:
    return load_module("faults")


@cache
def load_tokens() -> tuple[Any, ...]:
    lm = load_module("charlm")
    options = build_options(lm)
    text = lm.load_text(options.data, options.context)
    return text.vocabulary, text.train, text.held_out


def build_options(lm: ModuleType) -> Any:
    return lm.Options(**vars(lm.build_parser().parse_args([*FLAGS, *MORE_FLAGS])))


def write_checkpoints(folder: Path) -> None:
    """The one training that the segments start from."""
    lm = load_module("charlm")
    options, text = build_options(lm), lm.Text(*load_tokens())
    state = lm.build_state(options, text)
    while state.step < SEGMENTS[-1][0]:
        lm.train_step(state, text, options)
        if state.step in dict(SEGMENTS):
            lm.write_checkpoint(state, text, folder)


@dataclass(frozen=True)
class Order:
    """One repetition of one segment."""

    folder: Path
    segment: int
    seed: int  # of the jitter
    fault: str | None = None


def run_segment(order: Order) -> CheckRun:
    start, steps = SEGMENTS[order.segment]
    lm = load_module("charlm")
    if order.fault:
        load_faults().FAULTS[order.fault](lm)
    load_faults().add_jitter(lm, JITTER, order.seed)
    options, text = build_options(lm), lm.Text(*load_tokens())
    state = lm.load_checkpoint(order.folder / f"step_{start:06d}.npz", options, text)
    lines = [lm.train_step(state, text, options).split() for _ in range(steps)]
    rows = [dict(zip(line[::2], line[1::2], strict=True)) for line in lines]
    at = tuple(int(row["step"]) for row in rows)
    tracks = {metric: {"": Track(at, tuple(float(row[metric]) for row in rows))} for metric in METRICS}
    return {**tracks, "eval_loss": {"": Track(at[-1:], (lm.evaluate(state, text, options)[0],))}}


# ---------------------------------------------------------------- checking


def build_golden(runs: Sequence[Sequence[CheckRun]]) -> Golden:
    """`runs[i]`: the replicas of segment i."""
    segments = [
        Segment(start, "", {metric: {"": tuple(run[metric][""] for run in replicas)} for metric in replicas[0]})
        for (start, _), replicas in zip(SEGMENTS, runs, strict=True)
    ]
    return Golden("charlm", tuple(segments), steps_per_segment=SEGMENTS[0][1])


def check(rules: Sequence[Rule], golden: Golden, again: Callable[[int, int], CheckRun]) -> Verdict:
    """As `assay golden check` does it: one run per segment, more of those that are inconclusive."""
    runs: list[list[CheckRun]] = [[] for _ in golden.segments]
    history: list[list[Verdict]] = [[] for _ in golden.segments]
    while wanted := [at for at, seen in enumerate(history) if next_action(seen, MOST_CHECKS) == "repeat"]:
        for at in wanted:
            runs[at].append(again(at, len(runs[at])))
        verdicts = judge_segments(rules, golden, runs)
        for at in wanted:
            history[at].append(verdicts[at])
    return merge_verdicts((seen[-1] for seen in history), golden)


def check_all(order: tuple[Path, Golden, int, str | None]) -> dict[str, Verdict]:
    """One check by every column's rules, on the same runs."""
    folder, golden, seed, fault = order
    runs: dict[tuple[int, int], CheckRun] = {}

    def again(segment: int, number: int) -> CheckRun:
        key = (segment, number)
        if key not in runs:
            runs[key] = run_segment(Order(folder, segment, seed * MOST_CHECKS + number, fault))
        return runs[key]

    return {name: check(rules, golden, again) for name, rules in COLUMNS.items()}


def is_alarm(verdict: Verdict) -> bool:
    return verdict.kind in (VerdictKind.FAIL, VerdictKind.CHANGED)


# ---------------------------------------------------------------- the table


def print_row(name: str, verdicts: dict[str, Verdict]) -> None:
    marks = "".join(f"{verdict.kind.lower() if is_alarm(verdict) else '-':>9}" for verdict in verdicts.values())
    alarms = [
        finding for finding in verdicts["all"].findings if finding.kind in (VerdictKind.FAIL, VerdictKind.CHANGED)
    ]
    largest = max(alarms, key=lambda finding: abs(finding.effect or 0.0), default=None)
    shown = f"   {largest.subject.split(': ')[1]} {100 * (largest.effect or 0.0):+.3g}%" if largest else ""
    print(f"{name:<28}{marks}{shown}", flush=True)


def print_noise(golden: Golden) -> None:
    for noise in measure_golden_noise(PAIRED["all"], golden):
        found = ", ".join(f"{100 * effect:.2g}%" for effect in noise.detectable)
        print(
            f"  {noise.subject:<28} noise per step {noise.per_step:.1e}, per window {noise.per_window:.1e}; "
            f"finds {found} with 1, 2, 3 checks"
        )


def count_alarms(results: Iterable[dict[str, Verdict]]) -> dict[str, int]:
    found = dict.fromkeys(COLUMNS, 0)
    for verdicts in results:
        for name, verdict in verdicts.items():
            found[name] += is_alarm(verdict)
    return found


def count_kind(results: Iterable[dict[str, Verdict]], kind: VerdictKind) -> int:
    return sum(verdicts["all"].kind is kind for verdicts in results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nulls", type=int, default=300, help="checks without a fault")
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--flags", default="", help="another set-up: more flags of charlm, such as '--seed 5'")
    options = parser.parse_args()
    MORE_FLAGS.extend(options.flags.split())
    began = time.monotonic()
    pool = ProcessPoolExecutor(options.workers, initializer=MORE_FLAGS.extend, initargs=(tuple(MORE_FLAGS),))
    with tempfile.TemporaryDirectory() as name, pool:
        folder = Path(name)
        write_checkpoints(folder)
        orders = [
            Order(folder, at, 10_000_000 + number)
            for at in range(len(SEGMENTS))
            for number in range(GOLDENS * REPLICAS)
        ]
        runs = list(pool.map(run_segment, orders, chunksize=5))
        per_segment = [runs[at * GOLDENS * REPLICAS :][: GOLDENS * REPLICAS] for at in range(len(SEGMENTS))]
        goldens = [
            build_golden([runs[number * REPLICAS :][:REPLICAS] for runs in per_segment]) for number in range(GOLDENS)
        ]
        print(f"{REPLICAS} replicas of {len(SEGMENTS)} segments, jitter {JITTER:g}, at most {MOST_CHECKS} checks")
        print_noise(goldens[0])
        faults = list(load_faults().FAULTS)
        print(f"\n{'fault':<28}" + "".join(f"{column:>9}" for column in COLUMNS) + "   largest effect")
        planted = []
        for fault, verdicts in zip(
            faults,
            pool.map(check_all, [(folder, goldens[0], at, fault) for at, fault in enumerate(faults)]),
            strict=True,
        ):
            planted.append(verdicts)
            print_row(fault, verdicts)
        null_orders = [(folder, goldens[at % GOLDENS], 1000 + at, None) for at in range(options.nulls)]
        nulls = list(pool.map(check_all, null_orders, chunksize=5))
    return print_sums(len(faults), planted, nulls, time.monotonic() - began)


def print_sums(faults: int, planted: list[dict[str, Verdict]], nulls: list[dict[str, Verdict]], taken_s: float) -> int:
    caught, false = count_alarms(planted), count_alarms(nulls)
    passed, open_ = count_kind(nulls, VerdictKind.PASS), count_kind(nulls, VerdictKind.INCONCLUSIVE)
    print(f"\nnull checks by all metrics: {passed} PASS, {open_} INCONCLUSIVE of {len(nulls)}; {taken_s:.0f} s in all")
    print(f"{'caught of ' + str(faults):<28}" + "".join(f"{caught[name]:>9}" for name in COLUMNS))
    print(f"{'false alarms of ' + str(len(nulls)):<28}" + "".join(f"{false[name]:>9}" for name in COLUMNS))
    return 0 if caught["all"] >= faults - 1 and false["all"] * 300 <= len(nulls) else 1


if __name__ == "__main__":
    sys.exit(main())
