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
import subprocess
from collections.abc import Mapping
from pathlib import Path

from measuring import (
    ASSAY,
    Taken,
    build_env,
    cpu,
    quick_folder,
    render_ratio,
    render_spread,
    run_process,
    take_turns,
    wall,
)

RUNS = 10_000
ALL = 'lr < 1 and opt in (adam, sgd) and best(loss) < 2 and mean(acc) >= 0 and state == "done" and not width == 7'
SOME = "lr < 0.05 and opt == adam and state == done"

_TABLES = """
import gc, json, sys, time
gc.set_threshold(50_000, 20, 50)
from assay.show.table import render_table
from assay.reading import choosing
from assay.follow.locations import find_locations
from assay.follow.opening import open_index_of
from assay.reading.summary import SummaryOptions, summarise
from assay.values.where import parse_where
expressions = [None, *sys.argv[3:]]
times = [[] for _ in expressions]
for number in range(int(sys.argv[2]) + 1):
    for place, text in enumerate(expressions):
        start = time.perf_counter(), time.process_time()
        locations = find_locations(["study"], sys.argv[1])
        with open_index_of(locations) as index:
            options = SummaryOptions(where=parse_where(text) if text else None)
            summary = summarise(index, locations, options)
            render_table(summary.table)
        if number:
            times[place].append((time.perf_counter() - start[0], time.process_time() - start[1]))
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


def time_inside(root: Path, env: Mapping[str, str], repeats: int) -> list[list[Taken]]:
    argv = [ASSAY[0], "-c", _TABLES, str(root), str(repeats), ALL, SOME]
    done = subprocess.run(argv, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return [[Taken(*each) for each in times] for times in json.loads(done.stdout.splitlines()[-1])]


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
    print(f"all:  {ALL}\nsome: {SOME}")
    for title, taken in (("in-process", inside), ("whole processes", whole)):
        print(f"\n{RUNS:,} runs, {title}:")
        for name, each in taken.items():
            walls, cpus = [one.wall_s for one in each], [one.cpu_s for one in each]
            print(f"  {name:<16}{render_spread(walls):<42}CPU {render_spread(cpus)}")
    print()
    for title, taken in (("in-process", inside), ("whole processes", whole)):
        for name in list(taken)[1:]:
            more = [_subtract(*pair) for pair in zip(taken[name], taken["plain"], strict=True)]
            what = f"ms more than the plain table, {name}, {title}"
            print(render_ratio(f"{what}, wall", wall(more) * 1e3, at_most=100))
            print(render_ratio(f"{what}, CPU", cpu(more) * 1e3, at_most=100))


def _subtract(one: Taken, plain: Taken) -> Taken:
    """Of the same round."""
    return Taken(one.wall_s - plain.wall_s, one.cpu_s - plain.cpu_s)


if __name__ == "__main__":
    main()
