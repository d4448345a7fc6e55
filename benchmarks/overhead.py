"""What the harness costs: time added to a benchmark process, and CPU time of sampling.

    python benchmarks/overhead.py

The claim: less than 150 ms more than a bare interpreter that calls the same method, and less than 1% of a CPU while a
benchmark runs. The contestants take turns; medians are printed, ratios and verdicts last.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import textwrap
from pathlib import Path

from measuring import ASSAY, build_env, quick_folder, render_ratio, run_process

TRIALS = 3
LONG_S = 30.0  # long beside what a start costs, which is not the same each time
TURNS = 5

METHOD = """
import time
from assay.bench import Benchmark


class B(Benchmark):
    def nothing(self):
        self.report_benchmark(wall_time=1.0)

    def long(self):
        time.sleep({long_s})
        self.report_benchmark(wall_time=1.0)
"""


def main() -> int:
    with quick_folder() as folder:
        env = build_env(folder)
        (folder / "method.py").write_text(textwrap.dedent(METHOD).format(long_s=LONG_S))
        added = measure_added(folder, env)
        shares = measure_sampling(folder, env)
    share = max(0.0, statistics.median(shares))
    added_s, each = statistics.median(added), [1000 * turn for turn in added]
    print(render_ratio("added to a benchmark process, ms", 1000 * added_s, at_most=150, of_each=each))
    percents = [100 * each for each in shares]
    print(render_ratio("sampling, % of a CPU", 100 * share, at_most=1, of_each=percents))
    return 0 if added_s < 0.150 and share < 0.01 else 1


def measure_added(folder: Path, env: dict[str, str]) -> list[float]:
    """Start of job.sh to its end, as the run directory says it, beyond a bare interpreter that calls the method; of
    each turn."""
    bare_code = "import method; method.B().nothing()"
    flags = ["--trials", str(TRIALS), "--foreign-limit", "1", "--json", "--root", str(folder / "runs")]
    added = []
    for _ in range(TURNS):
        bare = [run_process([sys.executable, "-c", bare_code], folder, env).wall_s for _ in range(TRIALS)]
        report = run_json([*ASSAY, "bench", "run", "method.B.nothing", *flags], folder, env)
        ours = [execution["ended_at"] - execution["started_at"] for execution in report["executions"]]
        added.append(statistics.median(ours) - statistics.median(bare))
    return added


def measure_sampling(folder: Path, env: dict[str, str]) -> list[float]:
    """CPU time of the supervisor beyond that of a call whose benchmark does nothing, by the time it watched."""
    flags = ["--foreign-limit", "1", "--quiet", "--root", str(folder / "runs")]
    shares = []
    for _ in range(TURNS):
        short = cpu_of([*ASSAY, "bench", "run", "method.B.nothing", *flags], folder, env)
        long = cpu_of([*ASSAY, "bench", "run", "method.B.long", *flags], folder, env)
        shares.append((long - short) / LONG_S)
    return shares


def cpu_of(argv: list[str], folder: Path, env: dict[str, str]) -> float:
    """User and system time of the process and of all that it waited for."""
    process = subprocess.Popen(argv, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
    return used.ru_utime + used.ru_stime


def run_json(argv: list[str], folder: Path, env: dict[str, str]) -> dict:
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
