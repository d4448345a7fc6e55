"""A large farm, simulated: how much one supervisor needs for 100,000 runs, 5,000 at a time.

Real are the study file, the plan, the run directories (in memory), the supervisor's loop, the collector, the index and
the table afterwards. Simulated are the jobs: an executor that writes the log and the exit marker of each after a drawn
time. Some fail, and nodes are lost with all their jobs, which then have no marker. Every run is accounted for at the
end: its state and its number of attempts must be those that the simulation gave it.

    python benchmarks/scale.py                          # 100,000 runs, 5,000 at a time
    python benchmarks/scale.py --runs 5000 --at-once 500 --profile
"""

from __future__ import annotations

import argparse
import cProfile
import heapq
import os
import pstats
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from measuring import build_env, quick_folder

from assay.execute import process
from assay.execute.base import Executor, Publish
from assay.study import sweep
from assay.study.prepared import RunOptions
from assay.values import layout
from assay.values.run import JobHandle, JobRequest, Liveness, State

FILES_PER_RUN = 10
BYTES_PER_RUN = 40_000
MAX_DEATHS = 3  # attempts in a row that vanish before a run is left lost


class SimulatedFarm(Executor):
    """Jobs on nodes that may be lost; what a job does is drawn when it begins."""

    name = "simulated"

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._random = random.Random(options.seed)
        self._queue: list[tuple[float, int, str, JobHandle, int]] = []  # end, order, directory, handle, node
        self._alive: dict[tuple[str, int], JobHandle] = {}
        self._lost_nodes: dict[int, float] = {}  # node -> when it was lost
        self._next_loss = options.lose_every
        self.expected: dict[str, list[State]] = {}  # directory -> how its attempts ended
        self.most_at_once = self.submitted = self.polls = self.looks = 0

    def submit(self, request: JobRequest, publish: Publish) -> JobHandle | None:
        handle = process.build_handle(request, self.name)
        if not publish(handle):
            return None
        self.submitted += 1
        took_s = self._random.uniform(0.5, 1.5) * self._options.job_s
        node = self._random.randrange(self._options.nodes)
        heapq.heappush(self._queue, (time.monotonic() + took_s, self.submitted, request.dir, handle, node))
        self._alive[request.dir, request.attempt] = handle
        self.most_at_once = max(self.most_at_once, len(self._alive))
        return handle

    def liveness(self, handle: JobHandle, run_dir: str) -> Liveness:
        self.looks += 1
        return Liveness.ALIVE if (run_dir, handle.attempt) in self._alive else Liveness.GONE

    def wait(self, timeout_s: float) -> Sequence[JobHandle]:
        self.polls += 1
        now = time.monotonic()
        if timeout_s and self._queue and self._queue[0][0] > now:
            time.sleep(min(timeout_s, self._queue[0][0] - now))
        ended = []
        now = time.monotonic()
        while self._queue and self._queue[0][0] <= now:
            _, _, run_dir, handle, node = heapq.heappop(self._queue)
            if self._alive.pop((run_dir, handle.attempt), None) is not None:
                self._end(run_dir, handle)
                ended.append(handle)
            self._next_loss -= 1
            if not self._next_loss:
                self._next_loss = self._options.lose_every
                ended += self._lose(node)
        return ended

    def _end(self, run_dir: str, handle: JobHandle) -> None:
        code = 1 if self._random.random() < self._options.failing else 0
        name = f"main.{handle.attempt}" if handle.attempt > 1 else "main"
        with open(f"{run_dir}/{name}.log", "w", encoding="utf-8") as log:
            log.write(f"epoch 1 loss {self._random.random():.6f}\n")
        with open(os.path.join(run_dir, layout.exit_marker_name("main", handle.attempt, code)), "x", encoding="utf-8"):
            pass
        self.expected.setdefault(run_dir, []).append(State.FAILED if code else State.DONE)

    def _lose(self, node: int) -> list[JobHandle]:
        """All jobs of a node vanish at once, without a marker."""
        found = [(run_dir, handle) for _, _, run_dir, handle, its in self._queue if its == node]
        lost = []
        for run_dir, handle in found:
            if self._alive.pop((run_dir, handle.attempt), None) is not None:
                self.expected.setdefault(run_dir, []).append(State.LOST)
                lost.append(handle)
        return lost

    def watch(self, _handle: JobHandle, _run_dir: str) -> None:
        return

    def cancel(self, jobs: Sequence[tuple[JobHandle, str]], _grace_s: float) -> None:
        for handle, run_dir in jobs:
            self._alive.pop((run_dir, handle.attempt), None)


def check_room(folder: Path, runs: int) -> None:
    space = os.statvfs(folder)
    room = space.f_bavail * space.f_frsize
    if space.f_files and space.f_favail < runs * FILES_PER_RUN:
        sys.exit(f"{folder} has room for {space.f_favail} files, {runs} runs need {runs * FILES_PER_RUN}: --runs N")
    if room < runs * BYTES_PER_RUN:
        sys.exit(f"{folder} has {room >> 20} MiB, {runs} runs need {runs * BYTES_PER_RUN >> 20}: --runs N")


def account(farm: SimulatedFarm, entries: Sequence[sweep.Entry]) -> tuple[Counter[str], list[str]]:
    """How many runs ended how, and what does not agree with the simulation."""
    counts: Counter[str] = Counter()
    wrong = []
    for entry in entries:
        expected = farm.expected.get(entry.dir, [])
        counts[str(entry.state)] += 1
        counts["repeated after a loss"] += len(expected) > 1
        is_right = bool(expected) and entry.state is expected[-1] and entry.attempt == len(expected)
        is_right = is_right and all(state is State.LOST for state in expected[:-1])
        is_right = is_right and (expected[-1] is not State.LOST or len(expected) == MAX_DEATHS)
        if not is_right:
            wrong.append(f"{entry.spec.name}: {entry.state} after {entry.attempt}, simulated {expected}")
    return counts, wrong


def measure(options: argparse.Namespace, folder: Path) -> None:
    check_room(folder, options.runs)
    env = build_env(folder)
    os.environ.update({name: env[name] for name in ("ASSAY_CACHE_DIR", "ASSAY_SLOTS_DIR", "HOME", "TMPDIR")})
    os.chdir(folder)
    Path("big.yml").write_text(
        "study: big\ncode: live\n"
        "commands: {main: 'true {i}'}\n"
        "metrics: {loss: 'loss ([0-9.]+)'}\n"
        f"sweep: {{i: [{', '.join(map(str, range(options.runs)))}]}}\n",
        encoding="utf-8",
    )
    farm = SimulatedFarm(options)
    sweep._choose_executor = lambda *_: (farm, None, options.at_once)  # noqa: SLF001 instead of a farm of the file
    began = time.perf_counter()
    prepared = sweep.prepare(RunOptions("big.yml", root=str(folder / "runs")))
    planned_s = time.perf_counter() - began
    profile = cProfile.Profile() if options.profile else None
    cpu, began = time.process_time(), time.perf_counter()
    report = (
        profile.runcall(sweep.run_study, prepared, sweep.RunHooks())
        if profile
        else sweep.run_study(prepared, sweep.RunHooks())
    )
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if profile is not None:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
    counts, wrong = account(farm, report.entries)
    first_s = _time_table(folder)
    second_s = _time_table(folder)
    print(
        f"{options.runs} runs, at most {options.at_once} at a time, {options.nodes} nodes, jobs of {options.job_s:g} s"
    )
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"plan:                    {planned_s:.1f} s")
    print(f"run:                     {wall_s:.0f} s wall, {cpu_s:.0f} s CPU of the supervisor")
    each_ms = cpu_s / farm.submitted * 1e3
    print(f"attempts:                {farm.submitted} ({farm.submitted / wall_s:.0f} per second, {each_ms:.2f} ms CPU)")
    print(f"most at once:            {farm.most_at_once}")
    print(f"polls:                   {farm.polls / wall_s:.1f} per second, {farm.looks} looks at single jobs")
    print(f"supervisor's memory:     {memory:.0f} MiB at most")
    print(f"time to table:           {first_s:.1f} s first, {second_s:.1f} s again (assay sum, a new process)")
    print("accounted for:           " + ", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
    print(f"not as simulated:        {len(wrong)}")
    for line in wrong[:10]:
        print(f"  {line}")
    if wrong or sum(counts[str(state)] for state in State) != options.runs:
        sys.exit(1)


def _time_table(folder: Path) -> float:
    began = time.perf_counter()
    argv = [
        sys.executable,
        "-m",
        "assay",
        "sum",
        "big",
        "--root",
        str(folder / "runs"),
        "--csv",
    ]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--at-once", type=int, default=5_000)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--job-s", type=float, default=15.0, help="mean time of a job")
    parser.add_argument("--failing", type=float, default=0.03, help="share of jobs that end with 1")
    parser.add_argument("--lose-every", type=int, default=1000, help="jobs that end between two losses of a node")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with quick_folder() as folder:
        measure(options, folder)


if __name__ == "__main__":
    main()
