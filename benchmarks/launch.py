"""What it costs to start a job: runs of `true` on two slots, everything recorded.

Us: `assay run FILE -j 2 --quiet`: run directory, code copy, lease, exit code, outcome, log and index row of every run.
Peers: `xargs -P2` (records nothing), GNU parallel (plain, and with --results and --joblog), mlrunner, Hydra's basic
launcher (which runs in its own process, one job after another) and submitit's local executor (a Python per job).

Each is measured as a whole process with a small and a large number of jobs. "all in" is the large one divided by its
jobs, start-up included; "a further job" is the difference of the two, without start-up. Slow peers get fewer jobs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from measuring import ASSAY, PEERS, Taken, build_env, has_peer, quick_folder, render_ratio, run_process, take_turns

_HYDRA_APP = """
import subprocess
import hydra

@hydra.main(version_base=None, config_path=None)
def main(config):
    subprocess.run(["true"], check=True)

main()
"""

_SUBMITIT_APP = """
import sys, submitit
from submitit.helpers import CommandFunction

executor = submitit.LocalExecutor(folder=sys.argv[2])
waiting = []
for _ in range(int(sys.argv[1])):
    if len(waiting) == 2:
        waiting.pop(0).result()
    waiting.append(executor.submit(CommandFunction(["true"], verbose=False)))
for job in waiting:
    job.result()
"""


class Launcher:
    """One way to run many jobs; every measurement gets a fresh folder, made before the clock starts."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._base = folder
        self._env = env
        self._count = 0

    def fresh(self) -> Path:
        """The last one goes first: thousands of files left behind would slow the next contestant down."""
        shutil.rmtree(self._base / f"work{self._count}", ignore_errors=True)
        self._count += 1
        work = self._base / f"work{self._count}"
        work.mkdir()
        return work

    def assay(self, jobs: int) -> Taken:
        work = self.fresh()
        values = ", ".join(map(str, range(jobs)))
        (work / "study.yml").write_text(f"study: launch\ncommand: 'true {{i}}'\nsweep: {{i: [{values}]}}\n")
        return run_process([*ASSAY, "run", "study.yml", "-j", "2", "--quiet", "--root", "runs"], work, self._env)

    def xargs(self, jobs: int) -> Taken:
        return run_process(["xargs", "-P2", "-n1", "true"], self.fresh(), self._env, _lines(jobs))

    def parallel(self, jobs: int) -> Taken:
        return run_process(["parallel", "--will-cite", "-j2", "true"], self.fresh(), self._env, _lines(jobs))

    def parallel_recorded(self, jobs: int) -> Taken:
        argv = ["parallel", "--will-cite", "-j2", "--results", "results", "--joblog", "jobs.log", "true"]
        return run_process(argv, self.fresh(), self._env, _lines(jobs))

    def mlrunner(self, jobs: int) -> Taken:
        work = self.fresh()
        values = ", ".join(map(str, range(jobs)))
        first = "template:\n  train: 'true {i}'\ndefault: {}\nresource: [0, 1]\n"
        (work / "params.yaml").write_text(f"---\n{first}---\n_title: all\ni: [{values}]\n")
        return run_process([PEERS / "run"], work, self._env)

    def hydra(self, jobs: int) -> Taken:
        work = self.fresh()
        (work / "app.py").write_text(_HYDRA_APP)
        return run_process([PEERS / "python", "app.py", "-m", f"+i=range(0,{jobs})"], work, self._env)

    def submitit(self, jobs: int) -> Taken:
        work = self.fresh()
        (work / "app.py").write_text(_SUBMITIT_APP)
        return run_process([PEERS / "python", "app.py", str(jobs), "jobs"], work, self._env)


def _lines(jobs: int) -> str:
    return "".join(f"{number}\n" for number in range(jobs))


@dataclass(frozen=True)
class Entry:
    run: Callable[[int], Taken]
    small: int
    large: int


def choose_entries(launcher: Launcher, jobs: int) -> dict[str, Entry]:
    small = max(1, jobs // 5)
    entries = {"assay": Entry(launcher.assay, small, jobs), "xargs -P2": Entry(launcher.xargs, small, jobs)}
    if shutil.which("parallel"):
        entries["GNU parallel"] = Entry(launcher.parallel, small, jobs)
        entries["GNU parallel, recorded"] = Entry(launcher.parallel_recorded, small, jobs)
    else:
        print("(without GNU parallel: it is not installed; make bench does that, when root)")
    if has_peer("mlrunner"):
        entries["mlrunner"] = Entry(launcher.mlrunner, small, jobs)
    if has_peer("hydra"):
        entries["Hydra basic"] = Entry(launcher.hydra, max(1, jobs // 50), max(2, jobs // 10))
    if has_peer("submitit"):
        entries["submitit local"] = Entry(launcher.submitit, 2, max(3, jobs // 50))
    return entries


@dataclass(frozen=True)
class Cost:
    """Milliseconds per job, one figure per repeat."""

    all_in: list[float]
    further: list[float]
    further_cpu: list[float]


def measure(entries: Mapping[str, Entry], repeats: int) -> dict[str, Cost]:
    contestants = {}
    for name, entry in entries.items():
        contestants[name, "small"] = lambda entry=entry: entry.run(entry.small)
        contestants[name, "large"] = lambda entry=entry: entry.run(entry.large)
    taken = take_turns(contestants, repeats)
    return {name: _build_cost(entry, taken[name, "small"], taken[name, "large"]) for name, entry in entries.items()}


def _build_cost(entry: Entry, small: list[Taken], large: list[Taken]) -> Cost:
    more = entry.large - entry.small
    return Cost(
        all_in=[many.wall_s / entry.large for many in large],
        further=[(many.wall_s - few.wall_s) / more for few, many in zip(small, large, strict=True)],
        further_cpu=[(many.cpu_s - few.cpu_s) / more for few, many in zip(small, large, strict=True)],
    )


def show(entries: Mapping[str, Entry], costs: Mapping[str, Cost]) -> None:
    print(f"{'ms per job, median (least to most)':<24}{'jobs':>6}  {'all in':<26}{'a further job':<26}its CPU time")
    for name, cost in costs.items():
        columns = [_render(values) for values in (cost.all_in, cost.further, cost.further_cpu)]
        print(f"{name:<34}{entries[name].large:>6}  {columns[0]:<26}{columns[1]:<26}{columns[2]}")


def _render(values: list[float]) -> str:
    scaled = [value * 1e3 for value in values]
    return f"{statistics.median(scaled):.2f} ({min(scaled):.2f} to {max(scaled):.2f})"


TARGETS = {"mlrunner": 0.7, "GNU parallel": 0.7, "xargs -P2": 4.0}


def show_ratios(costs: Mapping[str, Cost]) -> None:
    for label, field in (("all in", "all_in"), ("a further job", "further"), ("CPU of a further job", "further_cpu")):
        ours = getattr(costs["assay"], field)
        for name, cost in costs.items():
            if name != "assay":
                theirs = getattr(cost, field)
                target = TARGETS.get(name) if field != "further_cpu" else None
                ratio = statistics.median(ours) / statistics.median(theirs)
                each = [one / other for one, other in zip(ours, theirs, strict=False)]
                print(render_ratio(f"assay / {name}, {label}", ratio, at_most=target, of_each=each))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", help="part of the contestants' names, e.g. assay,xargs")
    options = parser.parse_args()
    with quick_folder() as folder:
        entries = choose_entries(Launcher(folder, build_env(folder)), options.jobs)
        wanted = options.only.split(",") if options.only else [""]
        entries = {name: entry for name, entry in entries.items() if any(word in name for word in wanted)}
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.repeats} repeats, contestants in turns")
        costs = measure(entries, options.repeats)
    show(entries, costs)
    if "assay" in costs:
        show_ratios(costs)


if __name__ == "__main__":
    main()
