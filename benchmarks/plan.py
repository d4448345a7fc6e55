"""Plans 10,000 runs of a native file: read, expand, render, name, hash, and print as a dry run does.

The claim: within 1 s and 200 MB, the interpreter's start included. Run: python benchmarks/plan.py [RUNS]

Then `assay runx -n` with ten times as many runs. The claim: the first line within 1 s, all within 5 s of CPU time.
"""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
import tempfile
import time

REPEATS = 5
LIMIT_S, LIMIT_MB = 1.0, 200.0
STUDY = """\
study: plan
commands:
  train: python train.py --data {data} --norm {norm} [lr] [early-stop] --seed {seed} --out {run.dir}
  test: python test.py --data '{data}' --ckpt "{run.dir}/last.pt"
params: {data: cifar10, norm: [new, batch, layer, none], lr: [0.1, 0.05, 0.01, 0.005, 0.001], early-stop: [true, false]}
sweep: {seed: {range: COUNT}}
metrics:
  loss: 'loss[= ]({number})'
resources: {gpus: 1}
"""
RUNX_FIRST_S, RUNX_CPU_S = 1.0, 5.0
RUNX = """\
CMD: python train.py
HPARAMS:
  - {lr: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0], arch: [a, b, c, d, e, f, g, h, i, j], seed: SEEDS,
     logdir: LOGDIR}
"""


def plan(path: str) -> None:
    """The work itself, in a process of its own; prints its figures."""
    start = time.perf_counter()
    from assay.config.load import load_study
    from assay.plan.expand import build_plan
    from assay.values.layout import show_command

    built = build_plan(load_study(path))
    planned = time.perf_counter()
    out = io.StringIO()
    for run in built.runs:
        out.write(f"{run.name}\n")
        for command in run.commands:
            out.write(f"  {show_command(command.text, f'/runs/plan/{run.name}')}\n")
    shown = time.perf_counter()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    distinct = len({run.name for run in built.runs})
    print(len(built.runs), distinct, planned - start, shown - planned, peak_mb)


def measure(runs: int) -> tuple[float, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.yml")
        with open(path, "w") as file:
            file.write(STUDY.replace("COUNT", str(runs // 40)))
        start = time.perf_counter()
        done = subprocess.run([sys.executable, __file__, "--plan", path], check=True, capture_output=True, text=True)
        return time.perf_counter() - start, [float(figure) for figure in done.stdout.split()]


def measure_runx(runs: int) -> tuple[float, float, int]:
    """CPU seconds of the whole, wall seconds until the first line, lines."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "sweep.yml"), "w") as file:
            file.write(RUNX.replace("SEEDS", str(list(range(runs // 100)))))
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [sys.executable, "-m", "assay", "runx", "sweep.yml", "-n"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            first_s = time.perf_counter() - start
            lines = 1 + sum(1 for _ in process.stdout)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, first_s, lines


def main() -> int:
    if sys.argv[1:2] == ["--plan"]:
        plan(sys.argv[2])
        return 0
    from measuring import render_ratio  # not in the process that is measured

    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    measured = [measure(runs) for _ in range(REPEATS)]
    total_s, (count, distinct, plan_s, show_s, peak_mb) = min(measured)
    if count != distinct or count != runs // 40 * 40:
        print(f"wrong: {count:.0f} runs with {distinct:.0f} names")
        return 1
    print(f"{count:.0f} runs: plan {plan_s:.2f} s, print {show_s:.2f} s")
    each = [taken_s for taken_s, _ in measured]
    print(render_ratio(f"plan of {count:.0f} runs, s", total_s, at_most=LIMIT_S, of_each=each))
    print(render_ratio(f"plan of {count:.0f} runs, MB", peak_mb, at_most=LIMIT_MB))
    previews = [measure_runx(10 * runs) for _ in range(REPEATS)]
    cpu_s, first_s, lines = min(previews)
    what, firsts = f"assay runx -n, {lines} runs", [first for _, first, _ in previews]
    print(render_ratio(f"{what}: first line, s", first_s, at_most=RUNX_FIRST_S, of_each=firsts))
    print(render_ratio(f"{what}: CPU, s", cpu_s, at_most=RUNX_CPU_S, of_each=[cpu for cpu, _, _ in previews]))
    kept = total_s <= LIMIT_S and peak_mb <= LIMIT_MB and first_s <= RUNX_FIRST_S and cpu_s <= RUNX_CPU_S
    return 0 if kept and lines == 10 * runs else 1


if __name__ == "__main__":
    sys.exit(main())
