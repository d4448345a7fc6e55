"""Which faults a convergence check finds, and how often it raises a false alarm, in two trainings.

`charlm`, the example (numpy), with the 36 faults of examples/charlm/faults.py: the numbers of the rule were chosen on
it. `transformer` (torch, `_transformer.py`), with 39 other faults: the report. Each is checked at two sizes of noise,
about 1e-6 and about 1e-3 of the loss, as atomic additions and bf16 rounding make it: jitter on every gradient (of the
transformer also on activations), and the rows of a batch in another order. A golden is five such replicas. A check is a
training of its own, run again while it is inconclusive, up to three times.

A fault counts when its final weights differ from a replica's ten times more than the replicas' do, decided before
anything is judged. A null check has no fault, but real differences: another order of sums, the batch in other parts,
other kernels, another thread count; none is equal bit for bit. Alarm is whatever is not PASS.

Last, as most programs are: replicas equal bit for bit, without jitter. There the null checks are harmless changes that
were not declared: once with three declared variants (six goldens, each with variants of its own), once with one, and
once with none. With variants the smallest faults of the transformer are tried too.

`1%` is the original's rule: each logged loss at most 1% above the golden's; `=1%` the same to both sides.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import pickle
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import _transformer
import numpy as np
from measuring import render_rate, render_share

from assay.golden.judge.convergence import CheckRun, count_peers, judge_rules
from assay.golden.judge.golden import measure_golden_noise
from assay.golden.values import Golden, Rule, Segment, Track
from assay.values.verdict import Verdict, VerdictKind

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "charlm"
# Small, so that hundreds of runs take minutes; with everything on that a fault can break.
SIZES = ("--hidden", "48", "--context", "12", "--embedding", "16", "--batch-size", "64", "--micro-batches", "4")
FLAGS = (*SIZES, "--dropout", "0.1", "--warmup", "100", "--weight-decay", "0.1")
MORE_FLAGS: list[str] = []  # another set-up of charlm, from --flags
SEGMENTS = ((40, 120), (400, 180))  # of charlm: start, steps
SIZE = _transformer.Size(24, 12, 32, 2, 2, warm=60, steps=60, text_bytes=300_000)
REPLICAS, MOST_CHECKS, GOLDENS = 5, 3, 6
LEVELS = {"1e-6": {"charlm": 2e-5, "transformer": 7e-5}, "1e-3": {"charlm": 0.02, "transformer": 0.06}}
COUNTS_FROM = 10.0
METRICS = ("loss", "grad_norm", "lr")
COLUMNS = {
    "1%": (Rule("loss", "margin", operator="<=", margin=0.01),),
    "=1%": (Rule("loss", "margin", operator="==", margin=0.01),),
    "loss": (Rule("loss"),),
    "all": (Rule("loss"), Rule("grad_norm"), Rule("lr"), Rule("eval_loss")),
}


@dataclass(frozen=True)
class Order:
    """One repetition of one segment."""

    family: str
    folder: Path
    segment: int
    seed: int | None  # of jitter and order; None: the program as it is
    jitter: float = 0.0
    fault: str | None = None
    way: int = 0  # which harmless change, of the family's list


@dataclass(frozen=True)
class Made:
    run: CheckRun
    weights: Any


def make(order: Order) -> Made:
    return make_charlm(order) if order.family == "charlm" else make_transformer(order)


# ---------------------------------------------------------------- charlm

CHARLM_WAYS = (4, 2, 1, 8, 16)  # micro-batches; the first is the program as it is


def load_module(name: str) -> ModuleType:
    """A new one each time: a fault is planted by replacing functions."""
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


def add_flags(flags: Sequence[str]) -> None:
    MORE_FLAGS.extend(flags)


def build_options(lm: ModuleType) -> Any:
    return lm.Options(**vars(lm.build_parser().parse_args([*FLAGS, *MORE_FLAGS])))


def write_charlm(folder: Path) -> None:
    """The one training that the segments start from."""
    lm = load_module("charlm")
    options, text = build_options(lm), lm.Text(*load_tokens())
    state = lm.build_state(options, text)
    while state.step < SEGMENTS[-1][0]:
        lm.train_step(state, text, options)
        if state.step in dict(SEGMENTS):
            lm.write_checkpoint(state, text, folder)


def shuffle_rows(lm: Any, seed: int) -> None:
    """The rows of each batch in another order: the sums over them are rounded otherwise."""
    sample, mask, count = lm.sample_windows, lm.dropout_mask, iter(range(10**9))
    now: list[Any] = []

    def sample_shuffled(tokens: Any, rows: int, context: int, rng: Any) -> Any:
        windows, targets = sample(tokens, rows, context, rng)
        if rows == lm.EVAL_WINDOWS:
            return windows, targets
        now[:] = [np.random.default_rng([seed, next(count)]).permutation(rows)]
        return windows[now[0]], targets[now[0]]

    def mask_shuffled(options: Any, step: int) -> Any:
        found = mask(options, step)
        return found if found is None or len(found) == lm.EVAL_WINDOWS else found[now[0]]

    lm.sample_windows, lm.dropout_mask = sample_shuffled, mask_shuffled


def make_charlm(order: Order) -> Made:
    start, steps = SEGMENTS[order.segment]
    lm = load_module("charlm")
    if order.fault:
        load_faults().FAULTS[order.fault](lm)
    if order.seed is not None:
        load_faults().add_jitter(lm, order.jitter, order.seed)
        shuffle_rows(lm, order.seed)
    options, text = build_options(lm), lm.Text(*load_tokens())
    if not order.fault:
        options = replace(options, micro_batches=CHARLM_WAYS[order.way % len(CHARLM_WAYS)])
    state = lm.load_checkpoint(order.folder / f"step_{start:06d}.npz", options, text)
    lines = [lm.train_step(state, text, options).split() for _ in range(steps)]
    rows = [dict(zip(line[::2], line[1::2], strict=True)) for line in lines]
    at = tuple(int(row["step"]) for row in rows)
    tracks = {metric: {"": Track(at, tuple(float(row[metric]) for row in rows))} for metric in METRICS}
    run = {**tracks, "eval_loss": {"": Track(at[-1:], (lm.evaluate(state, text, options)[0],))}}
    return Made(run, np.concatenate([array.ravel() for array in state.params.values()]))


# ---------------------------------------------------------------- the transformer

TORCH_WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"parts": 1},
    {"attention": "plain"},
    {"parts": 4},
    {"optimiser": "fused"},
    {"attention": "plain", "parts": 1},
    {"optimiser": "fused", "parts": 4},
    {"attention": "plain", "optimiser": "fused"},
    {"parts": 3},
    {"parts": 6, "attention": "plain"},
)
THREADS_EVERY = 50  # of the null checks has two threads


def write_transformer(folder: Path) -> None:
    saved = _transformer.write_start(SIZE, _transformer.Way())
    (folder / "transformer.pickle").write_bytes(pickle.dumps(saved))


@cache
def load_start(folder: Path) -> Any:
    return pickle.loads((folder / "transformer.pickle").read_bytes())


def make_transformer(order: Order) -> Made:
    way = _transformer.Way(jitter=order.jitter, seed=order.seed or 0, order=order.seed)
    if not order.fault:
        threads = 2 if order.way and order.way % THREADS_EVERY == 0 else 1
        way = replace(way, **TORCH_WAYS[order.way % len(TORCH_WAYS)], threads=threads)
    recipe = {**_transformer.FAULTS, **_transformer.SMALL_FAULTS}[order.fault] if order.fault else None
    outcome = _transformer.train(SIZE, way, load_start(order.folder), recipe)
    return Made(outcome.run, outcome.weights)


# ---------------------------------------------------------------- checking


@dataclass(frozen=True)
class Family:
    name: str
    starts: tuple[int, ...]
    faults: tuple[str, ...]
    write: Callable[[Path], None]
    ways: int


def find_family(name: str) -> Family:
    if name == "charlm":
        starts = tuple(start for start, _ in SEGMENTS)
        return Family(name, starts, tuple(load_faults().FAULTS), write_charlm, len(CHARLM_WAYS))
    return Family(name, (SIZE.warm,), tuple(_transformer.FAULTS), write_transformer, len(TORCH_WAYS))


def build_golden(
    family: Family, runs: Sequence[Sequence[CheckRun]], variants: Sequence[Mapping[str, CheckRun]] = ()
) -> Golden:
    """`runs[i]`: the replicas of segment i."""
    segments = [
        Segment(
            start,
            "",
            {metric: {"": tuple(run[metric][""] for run in replicas)} for metric in replicas[0]},
            variants=variants[at] if variants else {},
        )
        for at, (start, replicas) in enumerate(zip(family.starts, runs, strict=True))
    ]
    return Golden(family.name, tuple(segments))


def check(rules: Sequence[Rule], golden: Golden, again: Callable[[int, int], CheckRun]) -> Verdict:
    """As `assay golden check` does it: one run per segment, more of those that are inconclusive."""
    verdicts = []
    for at, segment in enumerate(golden.segments):
        runs: list[CheckRun] = []
        verdict = None
        while verdict is None or (verdict.kind is VerdictKind.INCONCLUSIVE and len(runs) < MOST_CHECKS):
            runs.append(again(at, len(runs)))
            verdict = judge_rules(rules, segment, runs, peers=count_peers(rules, golden))
        verdicts.append(verdict)
    findings = [finding for verdict in verdicts for finding in verdict.findings]
    return Verdict.of(findings, sum(verdict.comparisons for verdict in verdicts))


@dataclass(frozen=True)
class Checked:
    verdicts: Mapping[str, Verdict]
    ratio: float  # of the distance of its weights to that of two replicas
    is_equal: bool  # bit for bit to a replica


@dataclass(frozen=True)
class Job:
    order: Order  # of the first segment and run; the others follow from it
    golden: Golden
    weights: Sequence[Sequence[Any]]  # of the replicas, by segment


def run_job(job: Job) -> Checked:
    """One check by every column's rules, on the same runs."""
    made: dict[tuple[int, int], Made] = {}

    def again(segment: int, number: int) -> CheckRun:
        seed = None if job.order.seed is None else job.order.seed * MOST_CHECKS + number
        key = (segment, number if seed is not None else 0)
        if key not in made:
            made[key] = make(replace(job.order, segment=segment, seed=seed))
        return made[key].run

    verdicts = {name: check(rules, job.golden, again) for name, rules in COLUMNS.items()}
    ratios = [measure_ratio(made[at, 0].weights, weights) for at, weights in enumerate(job.weights)]
    first = job.golden.segments[0].tracks["loss"][""]
    is_equal = any(made[0, 0].run["loss"][""].values == track.values for track in first)
    return Checked(verdicts, max(ratios), is_equal)


def measure_ratio(weights: Any, replicas: Sequence[Any]) -> float:
    first, *others = replicas
    known = max((_transformer.measure_distance(first, other) for other in others), default=0.0)
    apart = _transformer.measure_distance(first, weights)
    return apart / known if known else math.inf if apart else 0.0


# ---------------------------------------------------------------- the tables


def print_fault(name: str, checked: Checked) -> None:
    marks = "".join(f"{verdict.kind.lower():>14}" for verdict in checked.verdicts.values())
    found = [each for each in checked.verdicts["all"].findings if each.kind in (VerdictKind.FAIL, VerdictKind.CHANGED)]
    largest = max(found, key=lambda each: abs(each.effect or 0.0), default=None)
    shown = f"   {largest.subject.split(': ')[1]} {100 * (largest.effect or 0.0):+.3g}%" if largest else ""
    print(f"{name:<28}{checked.ratio:>9.3g}{marks}{shown}", flush=True)


def print_noise(golden: Golden) -> None:
    for noise in measure_golden_noise(COLUMNS["all"], golden):
        print(
            f"  {noise.subject:<28} noise per step {noise.per_step:.1e}, per window {noise.per_window:.1e}; "
            f"CHANGED from {100 * noise.outside:.2g}%"
        )


def count_alarms(checks: Iterable[Checked], column: str) -> int:
    return sum(each.verdicts[column].kind is not VerdictKind.PASS for each in checks)


def print_sums(title: str, checks: Sequence[Checked]) -> None:
    for column in COLUMNS:
        kinds = Counter(str(each.verdicts[column].kind) for each in checks)
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        print(f"  {title}, {column:<5} {render_rate(count_alarms(checks, column), len(checks)):<28} {told}")


class Bench:
    """One family in one folder."""

    def __init__(self, family: Family, folder: Path, pool: ProcessPoolExecutor) -> None:
        self.family, self.folder, self.pool = family, folder, pool
        family.write(folder)

    def make_replicas(self, jitter: float, count: int) -> list[list[Made]]:
        """By segment."""
        at = range(len(self.family.starts))
        orders = [
            Order(self.family.name, self.folder, segment, 10_000_000 + number, jitter)
            for segment in at
            for number in range(count)
        ]
        made = list(self.pool.map(make, orders, chunksize=3))
        return [made[segment * count :][:count] for segment in at]

    def measure_level(self, level: str, nulls: int) -> tuple[list[Checked], list[Checked]]:
        """Faults that count, and null checks."""
        jitter = LEVELS[level][self.family.name]
        replicas = self.make_replicas(jitter, GOLDENS * REPLICAS)
        goldens, weights = [], []
        for at in range(GOLDENS):
            chosen = [made[at * REPLICAS :][:REPLICAS] for made in replicas]
            goldens.append(build_golden(self.family, [[each.run for each in made] for made in chosen]))
            weights.append([[each.weights for each in made] for made in chosen])
        print(f"\n{self.family.name}, noise about {level}: {REPLICAS} replicas of {len(self.family.starts)} segments")
        print_noise(goldens[0])
        print(f"{'fault':<28}{'weights':>9}" + "".join(f"{column:>14}" for column in COLUMNS) + "   largest effect")
        first = Order(self.family.name, self.folder, 0, 0, jitter)
        orders = [replace(first, seed=1000 + at, fault=name) for at, name in enumerate(self.family.faults)]
        faults = list(self.pool.map(run_job, [Job(order, goldens[0], weights[0]) for order in orders]))
        for name, checked in zip(self.family.faults, faults, strict=True):
            print_fault(name, checked)
        jobs = [
            Job(replace(first, seed=100_000 + at, way=at), goldens[at % GOLDENS], weights[at % GOLDENS])
            for at in range(nulls)
        ]
        found = [each for each in self.pool.map(run_job, jobs, chunksize=3) if not each.is_equal]
        counted = [each for each in faults if each.ratio >= COUNTS_FROM]
        print_sums("faults found", counted)
        print_sums("all faults  ", faults)
        print_sums("null alarms ", found)
        return counted, found

    def measure_equal(self, nulls: int) -> None:
        """Replicas equal bit for bit; harmless changes that are not declared, beside three variants, one, or none."""
        plain = Order(self.family.name, self.folder, 0, None)
        at = range(len(self.family.starts))
        first = [make(replace(plain, segment=segment)) for segment in at]
        other = [make(replace(plain, segment=segment, way=1)) for segment in at]
        runs, weights = [[each.run] * REPLICAS for each in first], [[each.weights] for each in first]
        variants = [{"parts": each.run} for each in other]
        three = [build_golden(self.family, runs, self.make_variants(plain, number)) for number in range(GOLDENS)]
        small = tuple(_transformer.SMALL_FAULTS) if self.family.name == "transformer" else ()
        for title, goldens, more in (
            ("three variants", three, small),
            ("one variant", [build_golden(self.family, runs, variants)], small),
            ("no variant ", [build_golden(self.family, runs)], ()),
        ):
            jobs = [
                Job(replace(plain, seed=200_000 + at, way=2 + at), goldens[at % len(goldens)], weights)
                for at in range(nulls)
            ]
            found = [each for each in self.pool.map(run_job, jobs, chunksize=3) if not each.is_equal]
            names = (*self.family.faults, *more)
            orders = [replace(plain, seed=1000 + at, fault=name) for at, name in enumerate(names)]
            faults = list(self.pool.map(run_job, [Job(order, goldens[0], weights) for order in orders]))
            print(f"\n{self.family.name}, replicas equal bit for bit, {title}")
            for name, checked in zip(names, faults, strict=True):
                if name in more or checked.verdicts["all"].kind is VerdictKind.PASS:
                    print_fault(name, checked)
            print_sums("faults found (all)", faults[: len(self.family.faults)])
            print_sums("not declared      ", found)

    def make_variants(self, plain: Order, number: int) -> list[dict[str, CheckRun]]:
        """Three for each segment: other parts or kernels, each with the rows in an order of its own."""
        return [
            {
                f"way {way}": make(replace(plain, segment=at, seed=300_000 + 10 * number + way, way=way)).run
                for way in range(1, 4)
            }
            for at in range(len(self.family.starts))
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nulls", type=int, default=300, help="checks without a fault, at 1e-6; a third at 1e-3")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--family", choices=("charlm", "transformer"), help="only this one")
    parser.add_argument("--equal", action="store_true", help="only replicas equal bit for bit, with all null checks")
    parser.add_argument("--flags", default="", help="another set-up: more flags of charlm, such as '--seed 5'")
    options = parser.parse_args()
    MORE_FLAGS.extend(options.flags.split())
    names = [options.family] if options.family else ["charlm", "transformer"]
    if "transformer" in names and importlib.util.find_spec("torch") is None:
        print("needs torch: the transformer is not measured here")
        names.remove("transformer")
    began, is_good, ratios = time.monotonic(), True, []
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # workers import numpy and torch after this
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # two threads that spin are slow on a busy machine
    pool = ProcessPoolExecutor(options.workers, get_context("spawn"), add_flags, (tuple(MORE_FLAGS),))
    with tempfile.TemporaryDirectory() as name, pool:
        for family in map(find_family, names):
            bench = Bench(family, Path(name), pool)
            for level in () if options.equal else LEVELS:
                faults, nulls = bench.measure_level(level, options.nulls if level == "1e-6" else options.nulls // 3)
                missed, alarms = len(faults) - count_alarms(faults, "all"), count_alarms(nulls, "all")
                is_good &= level != "1e-6" or (missed == 0 and alarms * 300 <= max(300, len(nulls)))
                ratios.append(describe_ratio(family.name, level, faults, nulls))
            bench.measure_equal(options.nulls if options.equal else options.nulls // 6)
    print(f"\n{time.monotonic() - began:.0f} s; by this rule, and by a margin of 1% on the loss:")
    print("\n".join(ratios))
    return 0 if is_good else 1


def describe_ratio(family: str, level: str, faults: Sequence[Checked], nulls: Sequence[Checked]) -> str:
    found, margin = (count_alarms(faults, column) for column in ("all", "=1%"))
    alarms, others = (count_alarms(nulls, column) for column in ("all", "=1%"))
    counts = ((found, faults), (margin, faults), (alarms, nulls), (others, nulls))
    names = ("faults found", "faults found by a margin of 1%", "false alarms", "false alarms of a margin of 1%")
    lines = (
        render_share(f"{family}, noise {level}: {name}", count, len(every))
        for name, (count, every) in zip(names, counts, strict=True)
    )
    return "\n".join(f"  {line}" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
