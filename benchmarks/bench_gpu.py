"""Figures from a machine with an NVIDIA GPU: throughput, share of the measured peak, spread, overhead of sampling.

    python benchmarks/bench_gpu.py [--trials 20] [--budget 450]
    python benchmarks/bench_gpu.py --tiny        everything small, on the CPU: does the script work?

Needs torch with CUDA and nvidia-ml-py. A table comes first, the same as JSON on the last line.

peak      measured, not read from a data sheet: the best matrix product over several sizes, for each precision
spread    of the examples' methods, a process for each trial, through `assay bench run`
sampling  one long child steps on while its supervisor is stopped (SIGSTOP) and let go on in turns: steps per second
          with and without it, and the CPU time that it used meanwhile
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from measuring import ASSAY, ROOT, build_env, render_ratio

EXAMPLES = ROOT / "examples" / "bench"
# the method, and the precision whose peak it is held against
METHODS = {
    "torch_bench.MatMul.half": "bf16",
    "torch_bench.MatMul.single": "fp32",
    "torch_bench.Transformer.training_step": "bf16",
}
LONGEST_MEASURE_S, SHORTEST_MEASURE_S = 0.5, 0.1
REST_S = 60.0  # of the budget, for the peak, the first start and the last words

PEAK = """
import json, sys, torch
from assay.bench import measure

tiny = sys.argv[1] == "tiny"
device = "cpu" if tiny else "cuda"
sizes = (64, 128) if tiny else (4096, 6144, 8192, 12288, 16384)
kinds = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
peaks = {}
for name, dtype in kinds.items():
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    rates = {}
    for size in sizes[:3] if name == "fp32" else sizes:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        timing = measure(lambda: a @ b, seconds=0.05 if tiny else 0.5, sync=torch)
        rates[size] = 2 * size**3 / (timing.device_median_s or timing.median_s) / 1e12
    best = max(rates, key=rates.get)
    peaks[name] = {"tflops_per_second": rates[best], "size": best}
name = "CPU" if tiny else torch.cuda.get_device_name()
print(json.dumps({"device": name, "torch": torch.__version__, "cuda": torch.version.cuda, "peaks": peaks}))
"""

# Steps of about ten milliseconds, each waited for; its end and its length go to a file.
STEPS = """
import json, os, time, torch

def run():
    device = "cpu" if os.environ["STEPS_TINY"] == "1" else "cuda"
    size = 128 if device == "cpu" else 8192
    a = torch.randn(size, size, device=device).to(torch.bfloat16)
    wait = torch.cuda.synchronize if device == "cuda" else bool
    times = []
    def step():
        for _ in range(5):
            a @ a
        wait()
    for _ in range(20):
        step()
    open(os.environ["STEPS_FILE"] + ".begun", "w").close()
    end = time.monotonic() + float(os.environ["STEPS_S"])
    while time.monotonic() < end:
        step()
        times.append(time.monotonic())
    with open(os.environ["STEPS_FILE"], "w") as file:
        json.dump(times, file)
"""


def main() -> int:
    options = parse_options()
    if not options.tiny and not has_gpu():
        print("no NVIDIA GPU that torch can use: nothing is measured (--tiny tries the script on the CPU)")
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="assay-gpu-") as name:
        bench = Bench(Path(name), options.tiny)
        facts = {**bench.measure_peak(), "cpus": os.cpu_count(), "gpu": load_gpu_facts()}
        seconds, trials = plan_trials(options, bench.measure_start())
        report = bench.run_trials(trials, seconds)
        sampling = bench.measure_sampling(options.windows, options.window_s)
    facts |= {"methods": describe(report, facts["peaks"]), "sampling": sampling, "trials": trials}
    facts["took_s"] = round(time.monotonic() - began, 1)
    print_facts(facts)
    print(json.dumps(facts))
    return int(not is_as_claimed(facts))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--windows", type=int, default=20, help="with and without sampling, together")
    parser.add_argument("--window-s", type=float, default=3.0)
    parser.add_argument("--budget", type=float, default=450.0, help="seconds for everything; trials become shorter")
    parser.add_argument("--tiny", action="store_true", help="small sizes, on the CPU")
    options = parser.parse_args()
    if options.windows < 4 or options.trials < 1:
        parser.error("at least 4 windows and 1 trial")
    return options


def has_gpu() -> bool:
    code = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 1)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def plan_trials(options: argparse.Namespace, start_s: float) -> tuple[float, int]:
    """How long each trial measures, and how many of them fit: an import of torch is most of a trial."""
    left = options.budget - REST_S - options.windows * options.window_s
    each = left / (options.trials * len(METHODS))
    seconds = min(max(each - start_s, SHORTEST_MEASURE_S), LONGEST_MEASURE_S)
    fitting = int(left / (len(METHODS) * (start_s + seconds)))
    trials = max(1, min(options.trials, fitting))
    if trials < options.trials:
        print(f"(a start takes {start_s:.1f} s: {trials} trials of {options.trials} fit into the budget)")
    return seconds, trials


# ---------------------------------------------------------------- measuring


class Bench:
    """The processes that are measured, in a folder of their own."""

    def __init__(self, folder: Path, tiny: bool) -> None:
        self.folder = folder
        self.tiny = tiny
        self.env = build_env(folder)
        del self.env["PYTHONPYCACHEPREFIX"]  # torch's own bytecode is there already: compiling it takes half a minute
        self.flags = ["--json", "--quiet", "--root", str(folder / "runs")]

    def measure_peak(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self._run([sys.executable, "-c", PEAK, "tiny" if self.tiny else "full"], EXAMPLES)
        )
        return found

    def measure_start(self) -> float:
        """Seconds of a trial that measures next to nothing, once everything is in the caches."""
        self.run_trials(1, SHORTEST_MEASURE_S)
        began = time.monotonic()
        self.run_trials(1, SHORTEST_MEASURE_S)
        return (time.monotonic() - began) / len(METHODS)

    def run_trials(self, trials: int, seconds: float) -> dict[str, Any]:
        words = ["--trials", str(trials), "--args", json.dumps({"seconds": seconds}), *self.flags]
        found: dict[str, Any] = json.loads(self._run([*ASSAY, "bench", "run", *METHODS, *words], EXAMPLES))
        return found

    def _run(self, argv: Sequence[str], folder: Path) -> str:
        """A benchmark that fails still reports; a program that says nothing is shown with what it complained of."""
        done = subprocess.run(argv, cwd=folder, env=self.env, capture_output=True, text=True, check=False)
        if not done.stdout.strip():
            sys.exit(f"{' '.join(argv[:4])} … ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return done.stdout

    def measure_sampling(self, windows: int, window_s: float) -> dict[str, Any]:
        (self.folder / "steps.py").write_text(textwrap.dedent(STEPS))
        times_file = self.folder / "times.json"
        env = {
            **self.env,
            "STEPS_FILE": str(times_file),
            "STEPS_S": str((windows + 1) * window_s),
            "STEPS_TINY": str(int(self.tiny)),
        }
        argv = [*ASSAY, "bench", "run", "--command", f"{sys.executable} -c 'import steps; steps.run()'", *self.flags]
        with subprocess.Popen(argv, cwd=self.folder, env=env, stdout=subprocess.PIPE, text=True) as supervisor:
            try:
                wait_for(Path(f"{times_file}.begun"), supervisor)
                turns = list(take_turns(supervisor.pid, windows, window_s))
            finally:
                supervisor.send_signal(signal.SIGCONT)
            report = json.loads(supervisor.communicate()[0])
        return {
            **compare_turns(turns, json.loads(times_file.read_text())),
            **describe_readings(load_readings(report, self.folder)),
        }


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        if process.poll() is not None:
            sys.exit(f"the steps ended before they began, with {process.returncode}")
        time.sleep(0.05)


@dataclass(frozen=True)
class Turn:
    """A while in which the supervisor was stopped, or was not."""

    is_watched: bool
    begin: float
    end: float
    cpu_s: float


def take_turns(pid: int, windows: int, window_s: float) -> Iterator[Turn]:
    for number in range(windows):
        is_watched = number % 2 == 0
        os.kill(pid, signal.SIGCONT if is_watched else signal.SIGSTOP)
        begin, before = time.monotonic(), load_cpu_s(pid)
        time.sleep(window_s)
        yield Turn(is_watched, begin, time.monotonic(), load_cpu_s(pid) - before)


def load_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare_turns(turns: Sequence[Turn], ends: Sequence[float]) -> dict[str, Any]:
    """Of neighbouring turns, how much longer a step takes in the watched one; the middle of the pairs."""
    means = [measure_step(turn, ends) for turn in turns]
    costs = [(a / b if turn.is_watched else b / a) - 1 for turn, (a, b) in zip(turns, pairwise(means), strict=False)]
    watched = [turn for turn in turns if turn.is_watched]
    low, high = bootstrap(costs)
    return {
        "step_s": statistics.median(means),
        "overhead": statistics.median(costs),
        "overhead_interval": [low, high],
        "supervisor_cpu": sum(turn.cpu_s for turn in watched) / sum(turn.end - turn.begin for turn in watched),
        "turns": len(turns),
    }


def measure_step(turn: Turn, ends: Sequence[float]) -> float:
    """Seconds of a step on average: one that a reading holds up counts in full, as a median would not have it."""
    inside = [end for end in ends if turn.begin <= end <= turn.end]
    if len(inside) < 3:
        sys.exit(f"only {len(inside)} steps in {turn.end - turn.begin:.1f} s: the windows are too short")
    return (inside[-1] - inside[0]) / (len(inside) - 1)


def bootstrap(values: Sequence[float], times: int = 2000) -> tuple[float, float]:
    rng = random.Random(7)
    drawn = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(times))
    return drawn[int(0.025 * times)], drawn[int(0.975 * times)]


# ---------------------------------------------------------------- what came of it


def describe(report: dict[str, Any], peaks: dict[str, Any]) -> list[dict[str, Any]]:
    return [_describe(method, report["executions"], peaks[precision]) for method, precision in METHODS.items()]


def _describe(method: str, executions: Sequence[dict[str, Any]], peak: dict[str, Any]) -> dict[str, Any]:
    mine = [execution for execution in executions if execution["method"] == method]
    good = [execution for execution in mine if execution["succeeded"]]
    if not good:
        return {
            "method": method,
            "failed": [finding["message"] for execution in mine for finding in execution["result"]["findings"]][:3],
        }
    rates = [execution["numbers"]["tflops_per_second"] for execution in good]
    times = [execution["numbers"]["wall_time"] for execution in good]
    middle = statistics.median(times)
    low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else (middle,) * 3
    states = [state for execution in good for state in execution["machine"]["gpus_after"]]
    return {
        "method": method,
        "trials": len(good),
        "failed_trials": len(mine) - len(good),
        "contaminated": [execution["contaminated"] for execution in good if execution["contaminated"]],
        "throttled": sorted({reason for execution in good for reason in execution["machine"]["throttled"]}),
        "wall_time_s": middle,
        "tflops_per_second": statistics.median(rates),
        "share_of_peak": statistics.median(rates) / peak["tflops_per_second"],
        "quartiles_apart": (high - low) / middle,
        "extremes_apart": (max(times) - min(times)) / middle,
        "deviation": statistics.stdev(times) / statistics.fmean(times) if len(times) > 1 else 0.0,
        "throughput": statistics.median(execution["numbers"]["throughput"] for execution in good),
        "gpu_memory_bytes": max(execution["peaks"]["gpu_memory_bytes"] or 0 for execution in good),
        "sm_clock_mhz": _range([state["sm_clock_mhz"] for state in states]),
        "temperature_c": _range([state["temperature_c"] for state in states]),
    }


def load_readings(report: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Of the long child: under load all the time, a reading each second that it was watched."""
    (execution,) = report["executions"]
    path = folder / execution["run_dir"] / "readings.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def describe_readings(readings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    gpus = [reading["gpu"] for reading in readings if reading.get("gpu")]
    return {
        "readings": len(readings),
        "gaps_s": _range([round(b["time"] - a["time"], 2) for a, b in pairwise(readings)]),
        "sm_clock_mhz": _range([gpu["sm_clock_mhz"] for gpu in gpus]),
        "power_w": _range([gpu["power_w"] for gpu in gpus]),
        "temperature_c": _range([gpu["temperature_c"] for gpu in gpus]),
        "utilisation": _range([gpu["utilisation"] for gpu in gpus]),
        "throttle": sorted({reason for gpu in gpus for reason in gpu["throttle"]}),
    }


def _range(values: Sequence[float]) -> list[float] | None:
    """Smallest, middle, largest."""
    return [min(values), statistics.median(values), max(values)] if values else None


def load_gpu_facts() -> dict[str, Any]:
    """What the driver says of the first GPU: limits and clocks, left as they are."""
    asked = "name,driver_version,clocks.max.sm,clocks.sm,power.limit,temperature.gpu,memory.total,persistence_mode"
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return {}
    return dict(zip(asked.split(","), done.stdout.splitlines()[0].split(", "), strict=False))


def is_as_claimed(facts: dict[str, Any]) -> bool:
    sampling = facts["sampling"]
    is_complete = all("failed" not in method and not method["failed_trials"] for method in facts["methods"])
    return is_complete and sampling["overhead"] < 0.01 and sampling["supervisor_cpu"] < 0.01


def print_facts(facts: dict[str, Any]) -> None:
    print(f"{facts['device']}, {facts['cpus']} CPUs, torch {facts['torch']}, CUDA {facts['cuda']}: {facts['gpu']}")
    peaks = (f"{name} {peak['tflops_per_second']:.4g} (n = {peak['size']})" for name, peak in facts["peaks"].items())
    print(f"measured peak, TFLOP/s: {', '.join(peaks)}")
    print(f"{'method':40} {'trials':>6} {'time':>11} {'TFLOP/s':>9} {'of peak':>8} {'quartiles':>9} {'extremes':>9}")
    for each in facts["methods"]:
        print(_render_method(each))
    print(render_sampling(facts["sampling"]))
    print(f"took {facts['took_s']:.0f} s")


def _render_method(each: dict[str, Any]) -> str:
    if "failed" in each:
        return f"{each['method']:40} failed: {'; '.join(each['failed'])}"
    notes = [*each["throttled"], *([f"{len(each['contaminated'])} contaminated"] if each["contaminated"] else [])]
    return (
        f"{each['method']:40} {each['trials']:6} {each['wall_time_s'] * 1e3:8.3f} ms {each['tflops_per_second']:9.4g} "
        f"{each['share_of_peak']:8.1%} {each['quartiles_apart']:9.2%} {each['extremes_apart']:9.2%} "
        f"{', '.join(notes)}".rstrip()
    )


def render_sampling(found: dict[str, Any]) -> str:
    low, high = found["overhead_interval"]
    what = f"steps of {found['step_s'] * 1e3:.2f} ms, watched / not, {found['turns']} turns"
    lines = [
        render_ratio(what, 1 + found["overhead"], at_most=1.01, of_each=(1 + low, 1 + high)),
        render_ratio("supervisor, % of a CPU", 100 * found["supervisor_cpu"], at_most=1),
        f"{found['readings']} readings",
    ]
    if found["sm_clock_mhz"]:
        lines.append(
            f"under load (least, median, most): clock {found['sm_clock_mhz']} MHz, power {found['power_w']} W, "
            f"{found['temperature_c']} °C, throttle reasons: {', '.join(found['throttle']) or 'none'}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
