"""What `--where` costs: the table of 10,000 runs with 5 parameters and 3 metrics, with and without an expression.

In one process that has its imports, from looking at the folders to the text of the table, as benchmarks/summary.py does
it. One expression keeps every run, so that both tables have as many rows; another keeps one in six. Whole processes of
`assay sum`, start-up and the parser's import included, are printed as well.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
from collections.abc import Mapping
from pathlib import Path

from measuring import ASSAY, Taken, build_env, quick_folder, render_ratio, render_spread, run_process, take_turns, wall

RUNS = 10_000
ALL = 'lr < 1 and opt in (adam, sgd) and best(loss) < 2 and mean(acc) >= 0 and state == "done" and not width == 7'
SOME = "lr < 0.05 and opt == adam and state == done"

_TABLES = """
import gc, json, sys, time
gc.set_threshold(50_000, 20, 50)
from assay.show.table import render_table
from assay.study import choosing
from assay.study.locations import find_locations, open_index_of
from assay.study.summary import SummaryOptions, summarise
from assay.values.where import parse_where
expressions = [None, *sys.argv[3:]]
times = [[] for _ in expressions]
for number in range(int(sys.argv[2]) + 1):
    for place, text in enumerate(expressions):
        start = time.perf_counter()
        locations = find_locations(["study"], sys.argv[1])
        with open_index_of(locations) as index:
            options = SummaryOptions(where=parse_where(text) if text else None)
            summary = summarise(index, locations, options)
            render_table(summary.table)
        if number:
            times[place].append(time.perf_counter() - start)
            assert len(summary.rows) == {0: 10_000, 1: 10_000}.get(place, len(summary.rows))
print(json.dumps(times))
"""


def write_study(folder: Path) -> None:
    """Folders as runx and logx leave them: hparams.json and the headerless metrics.csv."""
    rng = random.Random(7)
    for number in range(RUNS):
        run = folder / f"run-{number:05}"
        run.mkdir(parents=True)
        hparams = {
            "lr": rng.choice([0.1, 0.01, "1e-3"]),
            "opt": rng.choice(["adam", "sgd"]),
            "width": rng.choice([64, 128]),
            "dropout": rng.random(),
            "seed": number,
        }
        (run / "hparams.json").write_text(json.dumps({**hparams, "logdir": str(run), "command": "python train.py"}))
        lines = ["start,start/step,0,timestamp,1936000000.0"]
        for epoch in range(3):
            values = f"loss,{rng.random():.6f},acc,{rng.random():.5f},iou,{rng.random():.5f}"
            lines.append(f"val,{values},epoch,{epoch},timestamp,{1936000000 + 60.5 * epoch}")
        (run / "metrics.csv").write_text("\n".join(lines) + "\n")


def time_inside(root: Path, env: Mapping[str, str], repeats: int) -> list[list[float]]:
    argv = [ASSAY[0], "-c", _TABLES, str(root), str(repeats), ALL, SOME]
    done = subprocess.run(argv, env=env, check=True, stdout=subprocess.PIPE, text=True)
    times: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
    return times


def time_processes(root: Path, env: Mapping[str, str], repeats: int) -> dict[str, list[Taken]]:
    plain = [*ASSAY, "sum", "study", "--root", root]
    contestants = {"plain": lambda: run_process(plain, root, env)}
    contestants["--where, all"] = lambda: run_process([*plain, "--where", ALL], root, env)
    contestants["--where, some"] = lambda: run_process([*plain, "--where", SOME], root, env)
    return take_turns(contestants, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    with quick_folder() as folder:
        env = build_env(folder)
        root = folder / "runs"
        write_study(root / "study")
        whole = time_processes(root, env, options.repeats)
        inside = dict(zip(whole, time_inside(root, env, options.repeats), strict=True))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.repeats} repeats, contestants in turns")
    print(f"all:  {ALL}\nsome: {SOME}\n\n{RUNS:,} runs, in-process:")
    for name, times in inside.items():
        print(f"  {name:<16}{render_spread(times)}")
    print("whole processes:")
    for name, taken in whole.items():
        print(f"  {name:<16}{render_spread([one.wall_s for one in taken])}")
    print()
    for name in list(inside)[1:]:
        extra = statistics.median(each - plain for each, plain in zip(inside[name], inside["plain"], strict=True))
        print(render_ratio(f"ms more than the plain table, {name}, in-process", extra * 1e3, at_most=100))
    for name in list(whole)[1:]:
        extra = wall(whole[name]) - wall(whole["plain"])
        print(render_ratio(f"ms more than the plain table, {name}, whole processes", extra * 1e3, at_most=100))


if __name__ == "__main__":
    main()
