"""How soon the table is there: 2,000 runs of 100 epochs beside sumx, 10,000 from the index, 1,000 beside MLflow.

Us: `assay sum` and `assay sumx`, cold (no index yet: everything is read) and warm (the index is looked through for
what changed). Peers: runx's own `python -m runx.sumx` on the same folders, and MLflow's `search_runs` on SQLite.
sumx imports no torch (only its logx does), so it is measured as it is. Whole processes, start-up included, unless it
says "in-process", which begins after the imports.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from measuring import (
    ASSAY,
    PEERS,
    Taken,
    build_env,
    cpu,
    has_peer,
    quick_folder,
    render_ratio,
    render_spread,
    run_process,
    take_turns,
    wall,
)

RUNS = 2000
MANY_RUNS = 10_000
MLFLOW_RUNS = 1000

# in-process: the same steps as `assay sum`, from looking at the folders to the text of the table
_TABLE = """
import gc, json, sys, time
gc.set_threshold(50_000, 20, 50)
from assay.follow.locations import find_locations
from assay.follow.opening import open_index_of
from assay.reading.summary import SummaryOptions, summarise
from assay.show.table import render_table
times = []
for _ in range(int(sys.argv[3])):
    start = (time.perf_counter(), time.process_time())
    locations = find_locations([sys.argv[2]], sys.argv[1])
    with open_index_of(locations) as index:
        text = render_table(summarise(index, locations, SummaryOptions()).table)
    times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
assert text.count("\\n") > int(sys.argv[4])
print(json.dumps(times))
"""

_FILL_MLFLOW = """
import random, sys
import mlflow
from mlflow.entities import Metric, Param
client = mlflow.MlflowClient(tracking_uri=sys.argv[1])
experiment = client.create_experiment("study")
rng = random.Random(1)
for number in range(int(sys.argv[2])):
    run = client.create_run(experiment, run_name=f"run-{number}").info.run_id
    params = [Param(name, str(rng.random())) for name in ("lr", "momentum", "width", "seed")]
    metrics = [Metric(name, rng.random(), 1000 + step, step) for name in ("loss", "acc") for step in range(5)]
    client.log_batch(run, metrics=metrics, params=params)
    client.set_terminated(run)
print(experiment)
"""

_SEARCH_MLFLOW = """
import json, sys, time
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
times = []
for _ in range(int(sys.argv[3])):
    start = (time.perf_counter(), time.process_time())
    found = mlflow.search_runs([sys.argv[2]], order_by=["metrics.loss ASC"])
    times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
assert len(found) == int(sys.argv[4])
print(json.dumps(times))
"""


# ---------------------------------------------------------------- what is tabled


def write_study(folder: Path, runs: int, epochs: int) -> None:
    """Folders as runx and logx leave them: hparams.json and the headerless metrics.csv."""
    rng = random.Random(7)
    for number in range(runs):
        run = folder / f"dandy-{number:05}_2031.05.04_12.00"
        run.mkdir(parents=True)
        hparams = {
            "lr": rng.choice([0.1, 0.01, 0.001]),
            "width": rng.choice([64, 128]),
            "seed": number,
            "arch": "plain",
        }
        (run / "hparams.json").write_text(json.dumps({**hparams, "logdir": str(run), "command": "python train.py"}))
        lines = ["start,start/step,0,timestamp,1936000000.0"]
        lines += [_build_line(rng, epoch) for epoch in range(epochs)]
        (run / "metrics.csv").write_text("\n".join(lines) + "\n")


def _build_line(rng: random.Random, epoch: int) -> str:
    values = f"loss,{rng.random():.6f},acc,{rng.random():.5f},iou,{rng.random():.5f}"
    return f"val,{values},epoch,{epoch},timestamp,{1936000000 + 60.5 * epoch}"


# ---------------------------------------------------------------- 2,000 runs beside sumx


class Tables:
    def __init__(self, root: Path, env: Mapping[str, str]) -> None:
        self.root = root
        self.env = env

    def sumx_of_runx(self) -> Taken:
        return run_process([PEERS / "python", "-m", "runx.sumx", "study", "--logroot", self.root], self.root, self.env)

    def sum(self) -> Taken:
        return run_process([*ASSAY, "sum", "study", "--root", self.root], self.root, self.env)

    def sumx(self) -> Taken:
        return run_process([*ASSAY, "sumx", "study", "--logroot", self.root], self.root, self.env)

    def forget(self) -> None:
        shutil.rmtree(self.env["ASSAY_CACHE_DIR"], ignore_errors=True)

    def sum_cold(self) -> Taken:
        self.forget()
        return self.sum()

    def sumx_cold(self) -> Taken:
        self.forget()
        return self.sumx()


def compare_with_sumx(folder: Path, env: Mapping[str, str], repeats: int) -> list[str]:
    root = folder / "logs"
    write_study(root / "study", RUNS, 100)
    (root / ".runx").write_text(f"LOGROOT: {root}\n")
    tables = Tables(root, env)
    contestants = {"assay sum, cold": tables.sum_cold, "assay sum, indexed": tables.sum}
    contestants |= {"assay sumx, cold": tables.sumx_cold, "assay sumx, indexed": tables.sumx}
    if has_peer("runx"):
        contestants["runx sumx"] = tables.sumx_of_runx
    taken = take_turns(contestants, repeats)
    print(f"\n{RUNS:,} runs x 100 epochs, whole processes:")
    for name, times in taken.items():
        _show(name, times)
    return _sumx_ratios(taken)


def _sumx_ratios(taken: Mapping[str, list[Taken]]) -> list[str]:
    peer = taken.get("runx sumx")
    if peer is None:
        return []
    lines = []
    for name, least in (("indexed", 20), ("cold", 3)):
        for door in ("assay sum", "assay sumx"):
            ours = taken[f"{door}, {name}"]
            each = [one.wall_s / other.wall_s for one, other in zip(peer, ours, strict=True)]
            ratio = wall(peer) / wall(ours)
            lines.append(render_ratio(f"runx sumx / {door}, {name}, wall", ratio, at_least=least, of_each=each))
            lines.append(render_ratio(f"runx sumx / {door}, {name}, CPU", cpu(peer) / cpu(ours)))
    return lines


# ---------------------------------------------------------------- in-process


def time_table(root: Path, env: Mapping[str, str], repeats: int, runs: int) -> list[Taken]:
    """Each look but the first, which fills the index or the caches."""
    return _run_script([ASSAY[0], "-c", _TABLE, root, "study", repeats + 1, runs], env)[1:]


def _run_script(argv: list[object], env: Mapping[str, str]) -> list[Taken]:
    done = subprocess.run(list(map(str, argv)), env=env, check=True, stdout=subprocess.PIPE, text=True)
    return [Taken(*each) for each in json.loads(done.stdout.splitlines()[-1])]


def _show(name: str, taken: Sequence[Taken]) -> None:
    walls, cpus = [one.wall_s for one in taken], [one.cpu_s for one in taken]
    print(f"  {name:<26}{render_spread(walls):<42}CPU {render_spread(cpus)}")


def table_many(folder: Path, env: Mapping[str, str], repeats: int) -> list[str]:
    root = folder / "many"
    write_study(root / "study", MANY_RUNS, 2)
    tables = Tables(root, env)
    tables.sum_cold()
    whole = [tables.sum() for _ in range(repeats)]
    inside = time_table(root, env, repeats, MANY_RUNS)
    shutil.rmtree(root)
    print(f"\n{MANY_RUNS:,} runs from the index:")
    _show("in-process", inside)
    _show("whole process", whole)
    return [
        render_ratio(f"ms for {MANY_RUNS:,} runs, in-process, wall", wall(inside) * 1e3, at_most=150),
        render_ratio(f"ms for {MANY_RUNS:,} runs, in-process, CPU", cpu(inside) * 1e3),
    ]


def compare_with_mlflow(folder: Path, env: Mapping[str, str], repeats: int) -> list[str]:
    if not has_peer("mlflow"):
        return []
    root, store = folder / "few", f"sqlite:///{folder}/mlflow.db"
    write_study(root / "study", MLFLOW_RUNS, 5)
    quiet = {**env, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}
    fill = [PEERS / "python", "-c", _FILL_MLFLOW, store, MLFLOW_RUNS]
    filled = subprocess.run(list(map(str, fill)), env=quiet, check=True, stdout=subprocess.PIPE, text=True)
    experiment = filled.stdout.split()[-1]
    search = [PEERS / "python", "-c", _SEARCH_MLFLOW, store, experiment]
    ours = time_table(root, env, repeats, MLFLOW_RUNS)
    theirs = _run_script([*search, repeats + 1, MLFLOW_RUNS], quiet)[1:]
    tables = Tables(root, env)
    whole = take_turns({"assay": tables.sum, "mlflow": lambda: run_process([*search, 1, MLFLOW_RUNS], root, quiet)}, 3)
    print(f"\n{MLFLOW_RUNS:,} runs beside MLflow:")
    _show("assay sum, in-process", ours)
    _show("search_runs, in-process", theirs)
    _show("assay sum, whole", whole["assay"])
    _show("search_runs, whole", whole["mlflow"])
    return [
        render_ratio("MLflow search_runs / assay sum, in-process", wall(theirs) / wall(ours), at_least=10),
        render_ratio("MLflow search_runs / assay sum, in-process, CPU", cpu(theirs) / cpu(ours)),
        render_ratio("MLflow search_runs / assay sum, whole processes", wall(whole["mlflow"]) / wall(whole["assay"])),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["sumx", "many", "mlflow"])
    options = parser.parse_args()
    parts = {"sumx": compare_with_sumx, "many": table_many, "mlflow": compare_with_mlflow}
    ratios: list[str] = []
    with quick_folder() as folder:
        env = build_env(folder)
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.repeats} repeats, contestants in turns")
        for name, part in parts.items():
            if options.only in (None, name):
                ratios += part(folder, env, options.repeats)
    print("\n" + "\n".join(ratios))


if __name__ == "__main__":
    main()
