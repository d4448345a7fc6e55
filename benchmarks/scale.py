"""What a supervisor with very many runs costs: a simulated farm, by default 100,000 runs, 5,000 at a time.

Real are the study file, the plan, the run directories, the supervisor's loop, the collector, the index and the tables.
Simulated are the jobs: an executor that writes the log and the exit marker of each after a drawn time. Some fail, and
nodes are lost with all their jobs, which then have no marker. Every run is accounted for at the end: its state and its
number of attempts must be those that the simulation gave it, and the table must have as many runs of each state.

    python benchmarks/scale.py                          # 100,000 runs, 5,000 at a time: some minutes
    python benchmarks/scale.py --job-s 6                # the same with shorter jobs: the supervisor has no pause
    python benchmarks/scale.py --runs 5000 --at-once 500 --profile

It needs Python 3.11 with click, PyYAML, rich, psutil and numpy; without an installation of Assay, call it with
PYTHONPATH=src. The run directories (10 files and 40 kB each) are made in /dev/shm, or below --folder, and removed
afterwards; whether there is room for them is checked first. The exit code is 1 where a run is not accounted for.
"""

from __future__ import annotations

import argparse
import cProfile
import csv
import heapq
import io
import os
import pstats
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from measuring import build_env, quick_folder, render_count, render_ratio

from assay.execute import process
from assay.execute.base import Executor, Publish
from assay.follow.attempts import MAX_DEATHS
from assay.launch import sweep
from assay.launch.prepared import RunOptions
from assay.values import layout
from assay.values.run import JobHandle, JobRequest, Liveness, State

FILES_PER_RUN = 10
BYTES_PER_RUN = 40_000


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
        self.at_half: Callable[[], None] | None = None  # called once, when half of the runs have ended
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
        if self.at_half is not None and len(self.expected) >= self._options.runs // 2:
            self.at_half()
            self.at_half = None

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


class Table:
    """`assay sum` as a process of its own: how long it takes, and how many runs of each state it lists."""

    def __init__(self, folder: Path) -> None:
        self._argv = [sys.executable, "-m", "assay", "sum", "big", "--root", str(folder / "runs"), "--csv"]
        self._thread = threading.Thread(target=self.take)
        self.took_s = 0.0
        self.states: Counter[str] = Counter()

    def begin(self) -> None:
        self._thread.start()

    def wait(self) -> Table:
        self._thread.join()
        return self

    def take(self) -> Table:
        began = time.perf_counter()
        text = subprocess.run(self._argv, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
        self.took_s = time.perf_counter() - began
        self.states = Counter(row.get("state") or "done" for row in csv.DictReader(io.StringIO(text)))
        return self


def prepare(options: argparse.Namespace, folder: Path) -> sweep.Prepared:
    env = build_env(folder)
    names = ("ASSAY_CACHE_DIR", "ASSAY_SLOTS_DIR", "HOME", "TMPDIR", "PYTHONPATH")
    os.environ.update({name: env[name] for name in names})
    os.chdir(folder)
    Path("big.yml").write_text(
        "study: big\ncode: live\n"
        "commands: {main: 'true {i}'}\n"
        "metrics: {loss: 'loss ([0-9.]+)'}\n"
        f"sweep: {{i: [{', '.join(map(str, range(options.runs)))}]}}\n",
        encoding="utf-8",
    )
    return sweep.prepare(RunOptions("big.yml", root=str(folder / "runs")))


def measure(options: argparse.Namespace, folder: Path) -> None:
    check_room(folder, options.runs)
    began = time.perf_counter()
    prepared = prepare(options, folder)
    planned_s, planned = time.perf_counter() - began, measure_peak()
    farm, at_half = SimulatedFarm(options), Table(folder)
    farm.at_half = at_half.begin
    sweep._choose_executor = lambda *_: (farm, None, options.at_once)  # noqa: SLF001 instead of a farm of the file
    profile = cProfile.Profile() if options.profile else None
    if profile is not None:
        profile.enable()
    cpu, began = time.process_time(), time.perf_counter()
    report = sweep.run_study(prepared, sweep.RunHooks())
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    if profile is not None:
        profile.disable()
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
    peak = measure_peak()
    counts, wrong = account(farm, report.entries)
    at_half.wait()
    first, again = Table(folder).take(), Table(folder).take()
    print(
        f"{options.runs} runs, at most {options.at_once} at a time, {options.nodes} nodes, jobs of {options.job_s:g} s"
    )
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, run directories below {folder}")
    print(f"plan:                    {planned_s:.1f} s")
    print(f"run:                     {wall_s:.0f} s wall, {cpu_s:.0f} s CPU of the supervisor")
    each_ms = cpu_s / farm.submitted * 1e3
    print(f"attempts:                {farm.submitted} ({farm.submitted / wall_s:.0f} per second)")
    print(render_ratio(f"an attempt, {options.runs} runs: CPU of the supervisor, ms", each_ms))
    print(f"most at once:            {farm.most_at_once}")
    print(f"polls:                   {farm.polls / wall_s:.1f} per second, {farm.looks} looks at single jobs")
    grown_kib = (peak - planned) * 1024 / options.runs
    print(f"supervisor's memory:     {peak:.0f} MiB at most, {planned:.0f} with the plan")
    print(render_ratio("memory of the supervisor for each run, KiB", grown_kib))
    print(f"time to table:           {at_half.took_s:.1f} s when half have ended (beside the supervisor)")
    print(render_ratio(f"the first table of {options.runs} runs, s", first.took_s))
    print(render_ratio(f"the table of {options.runs} runs again, s", again.took_s))
    print("accounted for:           " + ", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
    print("the table has:           " + ", ".join(f"{count} {state}" for state, count in sorted(first.states.items())))
    print(render_count("runs that did not end as simulated", len(wrong), options.runs))
    for line in wrong[:10]:
        print(f"  {line}")
    simulated = Counter(str(states[-1]) for states in farm.expected.values())
    if wrong or simulated.total() != options.runs or not simulated == first.states == again.states:
        sys.exit(1)


def measure_peak() -> float:
    """The most memory that this process has had so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000, help="%(default)s")
    parser.add_argument("--at-once", type=int, default=5_000, help="how many run at the same time (%(default)s)")
    parser.add_argument("--nodes", type=int, default=200, help="of the farm; each job is on one (%(default)s)")
    parser.add_argument("--job-s", type=float, default=15.0, help="mean time of a job (%(default)s)")
    parser.add_argument("--failing", type=float, default=0.03, help="share of jobs that end with 1 (%(default)s)")
    parser.add_argument("--lose-every", type=int, default=1000, help="a node is lost after so many ends (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn (%(default)s)")
    parser.add_argument("--folder", help="make the run directories below this one instead of /dev/shm")
    parser.add_argument("--profile", action="store_true", help="print where the supervisor's time goes (it is slower)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) if options.folder else quick_folder() as folder:
        measure(options, Path(folder))


if __name__ == "__main__":
    main()
