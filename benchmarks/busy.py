"""What `assay bench` still finds on a busy machine, and how many of its alarms are false there.

    python benchmarks/busy.py                        all of it: about ten minutes
    python benchmarks/busy.py --find                 ten commits, a step of +30%, thirty executions, as a user would
    python benchmarks/busy.py --record FILE          executions of A and of B (30% more work), in turns, kept in FILE
    python benchmarks/busy.py --judge FILE ...       error rates of histories and comparisons made of them (--draws N)

Busy processes are added until the machine has a load of 10. Histories are 30 executions that followed each other, half
of A and half of B, or all of one (no change: an alarm is false); comparisons are ten trials of each side in turns. No
execution is in two of the same kind, and rates have Wilson's 95% interval; `--draws N` draws them from blocks of five
neighbours instead, and its intervals are for the recorded executions. `LOAD_SLOPE`, the rule for load that
changes, was chosen with other executions: `--slope FILE ...` prints by how much a time grew with the load in them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measuring import ASSAY, build_env, quick_folder, render_share

LOAD = 10
PAIRS = 90  # executions of A and of B, for each kind of work
STEP = 1.3
TRIALS = 10
LENGTH = 30
BLOCK = 5
WORK = ("loop", "sort", "copy")

CODE = """
import json, sys, time
from assay.bench import measure
from assay.bench.flow.machine import CpuMeter, load_own_cpu_s
name, factor = sys.argv[1], float(sys.argv[2])
data = [(i * 7919) % 10007 for i in range(int(4000 * factor))]
block = bytearray(int(1_000_000 * factor))
count = int(8000 * factor)
def loop():
    x = 0
    for i in range(count): x += i
    return x
calls = {"loop": loop, "sort": lambda: sorted(data), "copy": lambda: bytes(block)}
meter, own = CpuMeter(), load_own_cpu_s()
timing = measure(calls[name], seconds=0.06, warmup=3)
load = meter.foreign_fraction(load_own_cpu_s() - own, __import__("os").cpu_count() or 1)
print(json.dumps([time.time(), timing.median_s, timing.cpu_median_s, load]))
"""

MODULE = """
WORK = {work}
def add():
    total = 0
    for number in range(WORK): total += number
    return total
class Numbers:
    def __init__(self): self.numbers = [(i * 7919) % 10007 for i in range(WORK // 4)]
    def order(self): return sorted(self.numbers)
"""


@contextmanager
def keep_busy(target: int) -> Iterator[int]:
    """As many busy processes as the machine lacks for this load."""
    missing = max(0, target - round(os.getloadavg()[0]))
    hogs = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(missing)]
    try:
        yield missing
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


# ---------------------------------------------------------------- as a user would


def find_step(folder: Path) -> bool:
    """Ten commits, the sixth with 30% more work, three executions of each; then what history and compare say."""
    env = {**build_env(folder), "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b.c", "GIT_COMMITTER_NAME": "a"}
    env |= {"GIT_COMMITTER_EMAIL": "a@b.c"}
    repo = folder / "repo"
    repo.mkdir()
    commits: list[str] = []

    def call(*words: object) -> tuple[int, str]:
        done = subprocess.run([*map(str, words)], cwd=repo, env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    call("git", "init", "-q")
    (repo / ".gitignore").write_text("runs/\n__pycache__/\n")
    methods = ("bench_x.add", "bench_x.Numbers.order")
    for number in range(10):
        text = MODULE.format(work=int(20_000 * (STEP if number >= 5 else 1)))
        (repo / "bench_x.py").write_text(f"# {number}\n{text}")
        call("git", "add", "-A")
        call("git", "commit", "-qm", f"commit {number}")
        commits.append(call("git", "rev-parse", "HEAD")[1].strip())
        call(*ASSAY, "bench", "run", *methods, "--trials", 3, "--quiet")
    well = True
    for method in methods:
        code, said = call(*ASSAY, "bench", "history", "cpu_time", method)
        print(said)
        well &= code == 1 and f"{commits[4][:12]}..{commits[5][:12]}" in said
        code, said = call(*ASSAY, "bench", "compare", "--git", f"{commits[4]}..{commits[5]}", method, "--quiet")
        print(said)
        well &= code == 1
    return well


# ---------------------------------------------------------------- executions that are kept


def record(path: Path, pairs: int) -> None:
    """`kind` → [A, B] → [when, wall time, CPU time, load of others], A and B in turns: A B B A."""
    kept: dict[str, list[list[Any]]] = {name: [[], []] for name in WORK}
    for number in range(pairs):
        for name in WORK:
            for side in (0, 1) if number % 2 else (1, 0):
                words = [sys.executable, "-c", CODE, name, str(STEP if side else 1.0)]
                done = subprocess.run(words, capture_output=True, text=True, check=True)
                kept[name][side].append(json.loads(done.stdout))
        path.write_text(json.dumps(kept))


def load_kept(paths: Sequence[Path]) -> list[tuple[str, list[Any], list[Any]]]:
    return [(name, *sides) for path in paths for name, sides in json.loads(path.read_text()).items()]


def report_slope(paths: Sequence[Path]) -> None:
    """The quarter of A with the most load against the quarter with the least: growth as a log, by the load's."""
    for name, rows, _ in load_kept(paths):
        known = sorted((row for row in rows if row[3] is not None), key=lambda row: row[3])
        low, high = known[: len(known) // 4], known[-(len(known) // 4) :]
        loads = [statistics.median(row[3] for row in part) for part in (low, high)]
        growth = math.log(statistics.median(row[2] for row in high) / statistics.median(row[2] for row in low))
        slope = growth / (loads[1] - loads[0])
        print(f"{name:6} load {loads[0]:.2f} to {loads[1]:.2f}: CPU time {growth:+.3f}, slope {slope:+.2f}")


# ---------------------------------------------------------------- error rates


def build_executions(rows: Sequence[Any], label: str | None = None) -> list[Any]:
    from assay.bench.values.execution import BenchExecution, BenchResult, Machine

    return [
        BenchExecution(
            f"e{number:04d}", "m.f", 1, BenchResult("m.f", True, wall_time=wall, cpu_time=cpu), "", "", at, label=label,
            commit=f"{number:040x}", setup={"cpu": "one"}, fingerprint="one",
            machine=Machine(foreign_cpu=load, logical_cpus=2),
            contaminated=(f"others used {load:.0%} of the CPUs during the run",) if load and load > 0.1 else (),
        )
        for number, (at, wall, cpu, load) in enumerate(rows)
    ]  # fmt: skip


def judge_history(rows: Sequence[Any]) -> str:
    """The verdict on CPU time."""
    from assay.bench.flow.history import HistoryOptions, build_history

    return str(build_history("m.f", "cpu_time", build_executions(rows), HistoryOptions(), ()).verdict.kind)


def judge_comparison(base: Sequence[Any], head: Sequence[Any]) -> dict[str, str]:
    """The verdicts on wall time and CPU time, of trials in turns; a first round, which a second would confirm."""
    from assay.bench.flow.compare import CompareOptions, compare_executions
    from assay.bench.flow.sides import Executions

    sides = [Executions(name, tuple(build_executions(rows, name))) for name, rows in (("base", base), ("head", head))]
    report = compare_executions(sides[0], sides[1], CompareOptions(in_turns=True, across=True))
    return {each.metric: str(each.finding.kind) for each in report.metrics}


def judge(paths: Sequence[Path], draws: int = 0) -> dict[str, list[str]]:
    """`what` → the verdict on each history or comparison: disjoint ones as they were recorded, and so many `draws`."""
    found: dict[str, list[str]] = {}
    for name, calm, slow in load_kept(paths):
        rng = random.Random(name)
        half, turns = LENGTH // 2, 2 * TRIALS
        for rows in (calm, slow):
            for part in _cut(rows, LENGTH, draws, rng):
                found.setdefault("history, no change", []).append(judge_history(part))
            for part in _cut(rows, turns, draws, rng):
                sides = [[part[n] for n in range(turns) if (n % 4 in (0, 3)) is first] for first in (True, False)]
                for metric, kind in judge_comparison(*sides).items():
                    found.setdefault(f"compare {metric}, no change", []).append(kind)
        both = list(zip(calm, slow, strict=True))
        for part in _cut(both, LENGTH, draws, rng):
            step = [*(row for row, _ in part[:half]), *(row for _, row in part[half:])]
            found.setdefault("history, +30%", []).append(judge_history(step))
        for part in _cut(both, TRIALS, draws, rng):
            for metric, kind in judge_comparison([row for row, _ in part], [row for _, row in part]).items():
                found.setdefault(f"compare {metric}, +30%", []).append(kind)
    return found


def _cut(rows: Sequence[Any], length: int, draws: int, rng: random.Random) -> Iterator[list[Any]]:
    """Disjoint stretches; or so many drawn ones, of blocks of neighbours, which keep what lasts for a while."""
    if not draws:
        yield from (list(rows[at : at + length]) for at in range(0, len(rows) - length + 1, length))
    for _ in range(draws):
        starts = [rng.randrange(len(rows) - BLOCK + 1) for _ in range(-(-length // BLOCK))]
        yield [row for start in starts for row in rows[start : start + BLOCK]][:length]


def report_rates(paths: Sequence[Path], draws: int = 0) -> None:
    print(f"{draws} draws of each kind of work" if draws else "as recorded")
    for what, kinds in sorted(judge(paths, draws).items()):
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
        print(f"{render_share(f'{what}: FAIL', kinds.count('FAIL'), len(kinds))}   {counts}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--find", action="store_true")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--load", type=int, default=LOAD)
    parser.add_argument("--judge", type=Path, nargs="+", default=[])
    parser.add_argument("--draws", type=int, default=0, help="with --judge: so many, of blocks of five neighbours")
    parser.add_argument("--slope", type=Path, nargs="+", default=[])
    given = parser.parse_args()
    everything = not (given.find or given.record or given.judge or given.slope)
    well = True
    with quick_folder() as folder:
        if given.record or everything:
            with keep_busy(given.load):
                record(given.record or folder / "kept.json", given.pairs)
        if given.judge or everything:
            report_rates(given.judge or [folder / "kept.json"], given.draws)
        if given.slope:
            report_slope(given.slope)
        if given.find or everything:
            with keep_busy(given.load) as added:
                print(f"({added} busy processes added)")
                well = find_step(folder)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
