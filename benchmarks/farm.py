"""What a farm costs: trivial jobs on an engine, by us and by the engine's own means, from the call to the last result.

Slurm (a real one of one node, started here): `assay run --on slurm` with a run directory, code copy, lease, exit code,
outcome, log and index row of every run, against a plain `sbatch --array` of the same script that leaves a file for each
task, and against submitit's `map_array` (a Python per job). Every contestant ends when the last of its files is there.

Ray (a cluster of one node, started here): `assay run --on ray` against a program that connects, starts a task for each
job, each of which runs the same script, and waits for all; both as whole processes, import of Ray included.

ssh (an sshd on loopback, started here): `assay run --on` a host with two slots against a loop of `ssh HOST bash
train.sh`, two at a time, over one connection (ControlMaster); and `assay run` on this machine with two slots.

submit: a submit command that returns at once, of a farm that never starts a job. What one more run costs, up to
20,000 of them: processor time of `assay run` and of its submit commands, until the last one was called. And what runs
cost that wait in the farm's queue: the system calls of the supervisor per second (by strace, which is attached when
everything was submitted), and of these the ones that name the runs' folder: on a cluster it is a network file system.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from measuring import (
    ASSAY,
    PEERS,
    ROOT,
    Taken,
    build_env,
    has_peer,
    quick_folder,
    render_ratio,
    render_spread,
    run_process,
    take_turns,
    wall,
)

sys.path.insert(0, str(ROOT))
from tests.slurm_cluster import start_cluster  # the tests know how to start one
from tests.ssh_hosts import Hosts, open_hosts

TRIVIAL = "true\n"
LIMIT_S = 300.0
TARGETS = {"slurm": 1.3, "ray": 2.0}  # times the engine's own means
SUBMIT_SIZES, WAIT_SIZES = (250, 1_000, 4_000, 20_000), (30, 300, 3_000)
MOST_GROWTH = 1.5  # of the cost of one run, from 250 to the largest number
MOST_CALLS = 50.0  # per second, on the file system of the runs
TRACE_S = 10.0

_SUBMITIT_APP = """
import sys, submitit
from submitit.helpers import CommandFunction

executor = submitit.SlurmExecutor(folder=sys.argv[2], max_num_timeout=0)
executor.update_parameters(time=5, cpus_per_task=1)
command = CommandFunction(["bash", "train.sh"], verbose=False)
for job in executor.map_array(lambda i: command(), list(range(int(sys.argv[1])))):
    job.result()
"""


class SlurmJobs:
    """Every measurement gets a fresh folder, made before the clock starts."""

    def __init__(self, folder: Path, env: Mapping[str, str], jobs: int) -> None:
        self._base, self._env, self._jobs, self._count = folder, env, jobs, 0

    def fresh(self) -> Path:
        shutil.rmtree(self._base / f"work{self._count}", ignore_errors=True)
        self._count += 1
        work = self._base / f"work{self._count}"
        work.mkdir()
        (work / "train.sh").write_text(TRIVIAL)
        return work

    def assay(self) -> Taken:
        work = self.fresh()
        values = ", ".join(map(str, range(self._jobs)))
        (work / "study.yml").write_text(f"study: farm\ncommand: 'bash train.sh {{i}}'\nsweep: {{i: [{values}]}}\n")
        argv = [*ASSAY, "run", "study.yml", "--on", "slurm", "--quiet", "--root", "runs"]
        return self._run(argv, work, "runs/farm/*/outcome.1")

    def plain(self) -> Taken:
        work = self.fresh()
        (work / "array.sh").write_text("#!/bin/bash\nbash train.sh; : > out.$SLURM_ARRAY_TASK_ID.$?\n")
        argv = ["sbatch", "--output=/dev/null", f"--array=0-{self._jobs - 1}", "array.sh"]
        return self._run(argv, work, "out.*.0")

    def submitit(self) -> Taken:
        work = self.fresh()
        (work / "app.py").write_text(_SUBMITIT_APP)
        return self._run([PEERS / "python", "app.py", self._jobs, "log"], work, "log/*_result.pkl")

    def _run(self, argv: list[object], work: Path, pattern: str) -> Taken:
        began = time.perf_counter()
        with (work / "said").open("w") as said:
            subprocess.run(
                [str(word) for word in argv], cwd=work, env=dict(self._env), stdout=said, stderr=said, check=True
            )
        while len(list(work.glob(pattern))) < self._jobs:
            if time.perf_counter() - began > LIMIT_S:
                raise SystemExit(f"{argv} has not ended: {(work / 'said').read_text()[-500:]}")
            time.sleep(0.02)
        return Taken(time.perf_counter() - began, 0.0)


@contextmanager
def slurm(folder: Path, jobs: int) -> Iterator[dict[str, Callable[[], Taken]]]:
    with start_cluster() as cluster:
        own = {name: cluster.env[name] for name in ("SLURM_CONF", "PATH")}
        made = SlurmJobs(folder, {**build_env(folder), **own}, jobs)
        entries = {"assay": made.assay, "sbatch --array": made.plain}
        if has_peer("submitit"):
            entries["submitit"] = made.submitit
        yield entries


_RAY_CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
print("address", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""

_RAY_APP = """
import subprocess, sys, ray

@ray.remote(max_retries=0)
def run(folder, number):
    subprocess.run(["bash", "train.sh", str(number)], cwd=folder, check=True)

ray.init(address=sys.argv[3], log_to_driver=False)
ray.get([run.remote(sys.argv[2], number) for number in range(int(sys.argv[1]))])
"""


@contextmanager
def ray(folder: Path, jobs: int) -> Iterator[dict[str, Callable[[], Taken]]]:
    """Contestants, ours first; every measurement gets a fresh folder."""
    session = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    program = subprocess.Popen(
        [sys.executable, "-c", _RAY_CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"RAY_TMPDIR": session, "RAY_USAGE_STATS_ENABLED": "0"},
        text=True,
    )
    try:
        assert program.stdout is not None
        address = next(line.split()[1] for line in program.stdout if line.startswith("address "))
        env = {**build_env(folder), "RAY_ADDRESS": address}
        if "HOME" in os.environ:  # Ray keeps its token there
            env["HOME"] = os.environ["HOME"]

        def fresh() -> Path:
            work = folder / "work"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            (work / "train.sh").write_text("true\n")
            return work

        def assay() -> Taken:
            work = fresh()
            values = ", ".join(map(str, range(jobs)))
            (work / "study.yml").write_text(f"study: farm\ncommand: 'bash train.sh {{i}}'\nparams: {{i: [{values}]}}\n")
            taken = run_process([*ASSAY, "run", "study.yml", "--on", "ray", "--quiet", "--root", "runs"], work, env)
            assert len(list(work.glob("runs/farm/*/run.exit.0"))) == jobs
            return taken

        def plain() -> Taken:
            work = fresh()
            return run_process([sys.executable, "-c", _RAY_APP, str(jobs), str(work), address], work, env)

        yield {"assay": assay, "plain tasks": plain}
    finally:
        program.communicate()
        shutil.rmtree(session, ignore_errors=True)


_SSH_LOOP = """
ssh="ssh -F $2 -o ControlPath=$PWD/s"; $ssh -MNf near; cat train.sh | $ssh near 'cat > "$HOME/train.sh"'
seq "$1" | xargs -P 2 -I% $ssh near 'cd "$HOME"; bash train.sh %; : > out.%.$?'
$ssh -O exit near 2> /dev/null
"""


class SshJobs:
    def __init__(self, folder: Path, hosts: Hosts, jobs: int) -> None:
        self._folder, self._hosts, self._jobs, self._env = folder, hosts, jobs, build_env(folder)

    def fresh(self) -> Path:
        for work in (self._folder / "work", self._hosts.home("near")):
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
        work = self._folder / "work"
        (work / "train.sh").write_text(TRIVIAL)
        options = f"ssh_options: [-F, '{self._hosts.config}']"
        values = ", ".join(map(str, range(self._jobs)))
        (work / "study.yml").write_text(
            f"study: farm\ncommand: 'bash train.sh {{i}}'\nparams: {{i: [{values}]}}\n"
            f"farms: {{pool: {{kind: ssh, hosts: [near], slots: 2, {options}}}}}\n"
        )
        return work

    def _assay(self, *words: str) -> Taken:
        work = self.fresh()
        taken = run_process([*ASSAY, "run", "study.yml", *words, "--quiet", "--root", "runs"], work, self._env)
        assert len(list(work.glob("runs/farm/*/run.exit.0"))) == self._jobs
        return taken

    def assay(self) -> Taken:
        return self._assay("--on", "pool")

    def local(self) -> Taken:
        return self._assay("--slots", "2")

    def plain(self) -> Taken:
        work = self.fresh()
        taken = run_process(["bash", "-c", _SSH_LOOP, "-", self._jobs, self._hosts.config], work, self._env)
        assert len(list(self._hosts.home("near").glob("out.*.0"))) == self._jobs
        return taken


@contextmanager
def ssh(folder: Path, jobs: int) -> Iterator[dict[str, Callable[[], Taken]]]:
    with open_hosts(folder / "hosts", "near") as hosts:
        made = SshJobs(folder, hosts, jobs)
        yield {"assay": made.assay, "ssh loop": made.plain, "assay, local": made.local}


# ---------------------------------------------------------------- submit commands


@contextmanager
def queued_runs(folder: Path, count: int) -> Iterator[subprocess.Popen[bytes]]:
    """`assay run` on a farm that takes all jobs and starts none, once it has them: each adds a byte to a file."""
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    (work / "study.yml").write_text(
        f"study: farm\ncommand: 'bash train.sh {{i}}'\nparams: {{i: {{range: [0, {count}]}}}}\n"
        f"farms: {{busy: {{submit: 'printf x >> {work}/taken; : {{script}}'}}}}\n"
    )
    (work / "train.sh").write_text(TRIVIAL)
    argv = [*ASSAY, "run", "study.yml", "--on", "busy", "--quiet", "--root", "runs"]
    with (work / "said").open("wb") as said:
        process = subprocess.Popen(argv, cwd=work, env=build_env(folder), stdout=said, stderr=said)
    try:
        deadline = time.monotonic() + LIMIT_S + count * 0.05
        while not (work / "taken").exists() or (work / "taken").stat().st_size < count:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{count} runs were not submitted: {(work / 'said').read_text()[-500:]}")
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


def load_cpu_s(pid: int) -> float:
    """User and system time of a process and of the children that it has waited for."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")


def count_calls(pid: int, folder: Path) -> tuple[float, float]:
    """System calls per second, those on the runs' folder first; -y writes the path of each descriptor."""
    trace = folder / "trace"
    argv = ["strace", "-f", "-y", "-qq", "-o", str(trace), "-p", str(pid)]
    tracer = subprocess.Popen(argv)
    time.sleep(TRACE_S)
    tracer.send_signal(signal.SIGINT)
    tracer.wait()
    lines = trace.read_text(errors="replace").splitlines()
    runs = str(folder / "work" / "runs")
    return sum(runs in line for line in lines) / TRACE_S, len(lines) / TRACE_S


def measure_submission(folder: Path, most: int) -> None:
    costs: dict[int, float] = {}
    for count in [size for size in SUBMIT_SIZES if size <= most]:
        began = time.monotonic()
        with queued_runs(folder, count) as process:
            wall_s, cpu_s = time.monotonic() - began, load_cpu_s(process.pid)
        costs[count] = cpu_s / count
        print(f"submit  {count:>6} runs: {cpu_s:7.2f} s of CPU, {wall_s:7.2f} s; {costs[count] * 1e3:.2f} ms a run")
    first, *others = costs
    for count in others:
        print(render_ratio(f"submit: a run of {count} / of {first}", costs[count] / costs[first], at_most=MOST_GROWTH))


def measure_waiting(folder: Path, most: int) -> None:
    if shutil.which("strace") is None:
        print("(without strace: the system calls of waiting runs are not counted)")
        return
    for count in [size for size in WAIT_SIZES if size <= most]:
        with queued_runs(folder, count) as process:
            time.sleep(TRACE_S)
            on_runs, all_calls = count_calls(process.pid, folder)
        print(f"submit  {count:>6} waiting runs: {all_calls:.0f} system calls a second")
        print(render_ratio(f"submit: on the runs' folder, {count} waiting", on_runs, at_most=MOST_CALLS))


ENGINES = {"slurm": slurm, "ray": ray, "ssh": ssh}  # each: contestants, ours first, then the engine's own means


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--engine", choices=[*ENGINES, "submit"], help="this one alone")
    parser.add_argument("--most", type=int, default=SUBMIT_SIZES[-1], help="runs of a submit command")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by `timeout`: the services are stopped all the same
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.repeats} repeats, contestants in turns")
    for name in [each for each in ENGINES if options.engine in (None, each)]:
        with quick_folder() as folder, ENGINES[name](folder, options.jobs) as entries:
            taken = take_turns(entries, options.repeats)
        for entry, values in taken.items():
            spread = render_spread([one.wall_s for one in values], "s", 1.0)
            print(f"{name:<8}{entry:<20}{options.jobs} jobs in {spread}")
        (_, ours), *others = taken.items()
        for index, (entry, values) in enumerate(others):
            target = TARGETS.get(name) if index == 0 else None
            print(render_ratio(f"{name}: assay / {entry}", wall(ours) / wall(values), at_most=target))
    if options.engine in (None, "submit"):
        with quick_folder() as folder:
            measure_waiting(folder, options.most)
            measure_submission(folder, options.most)


if __name__ == "__main__":
    main()
