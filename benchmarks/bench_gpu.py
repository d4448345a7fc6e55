"""Figures from a machine with an NVIDIA GPU: throughput, share of the measured peak, spread, overhead of sampling.

    python benchmarks/bench_gpu.py [--trials 20] [--json FILE]

Needs torch with CUDA and nvidia-ml-py. The peak is measured, not read from a data sheet: the best bfloat16 matrix
product over several sizes, in the same process, by CUDA events. The overhead of sampling is the step time of a
benchmark that a supervisor watches against the same child started bare, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import ASSAY, ROOT, build_env

EXAMPLES = ROOT / "examples" / "bench"
METHODS = ("torch_bench.MatMul.half", "torch_bench.MatMul.single", "torch_bench.Transformer.training_step")
PEAK = """
import json, torch
from assay.bench import measure
best = 0.0
for size in (4096, 6144, 8192, 12288, 16384):
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    timing = measure(lambda: a @ b, seconds=2.0, sync=torch)
    best = max(best, 2 * size**3 / timing.device_median_s / 1e12)
print(json.dumps({"peak": best, "device": torch.cuda.get_device_name()}))
"""


def main() -> int:
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="assay-gpu-") as name:
        folder = Path(name)
        env = build_env(folder)
        peak = json.loads(run_text([sys.executable, "-c", PEAK], env))
        report = run_trials(folder, env, options.trials)
        overhead = measure_overhead(folder, env, options.rounds)
    facts = {**peak, "methods": describe(report, peak["peak"]), **overhead}
    print_facts(facts, options.trials)
    if options.json:
        Path(options.json).write_text(json.dumps(facts, indent=1))
    return 0 if facts["sampling_cpu"] < 0.01 and facts["overhead"] < 0.01 else 1


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5, help="turns of the overhead measurement")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


def run_text(argv: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(argv, cwd=EXAMPLES, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def run_trials(folder: Path, env: dict[str, str], trials: int) -> dict:
    flags = ["--trials", str(trials), "--json", "--root", str(folder / "runs")]
    done = subprocess.run(
        [*ASSAY, "bench", "run", *METHODS, *flags],
        cwd=EXAMPLES,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return json.loads(done.stdout)


def describe(report: dict, peak: float) -> list[dict]:
    found = []
    for method in METHODS:
        mine = [execution for execution in report["executions"] if execution["method"] == method]
        good = [execution for execution in mine if execution["succeeded"]]
        rates = [execution["numbers"]["tflops_per_second"] for execution in good]
        times = [execution["numbers"]["wall_time"] for execution in good]
        if not rates:
            reasons = [finding["message"] for execution in mine for finding in execution["result"]["findings"]]
            found.append({"method": method, "failed": reasons[:3]})
            continue
        middle = statistics.median(times)
        low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else (middle,) * 3
        found.append(
            {
                "method": method,
                "trials": len(good),
                "contaminated": sum(bool(execution["contaminated"]) for execution in good),
                "throttled": sorted({reason for execution in good for reason in execution["machine"]["throttled"]}),
                "wall_time_s": middle,
                "tflops_per_second": statistics.median(rates),
                "share_of_peak": statistics.median(rates) / peak,
                "quartiles": (high - low) / middle,
                "range": (max(times) - min(times)) / middle,
                "throughput": statistics.median(execution["result"]["throughput"] for execution in good),
                "gpu_memory_bytes": max(execution["peaks"]["gpu_memory_bytes"] or 0 for execution in good),
            }
        )
    return found


def measure_overhead(folder: Path, env: dict[str, str], rounds: int) -> dict:
    """Watched and bare in turns; the supervisor's CPU time by the time that it watched."""
    arguments = json.dumps({"seconds": 5.0})
    watched: list[float] = []
    bare: list[float] = []
    shares: list[float] = []
    for _ in range(rounds):
        before, began = cpu_of_children(), time.perf_counter()
        flags = ["--args", arguments, "--json", "--root", str(folder / "runs"), METHODS[0]]
        report = json.loads(run_text([*ASSAY, "bench", "run", *flags], env))
        (execution,) = report["executions"]
        watched.append(execution["result"]["wall_time"])
        used = cpu_of_children() - before - execution["peaks"]["cpu_s"]
        shares.append(max(0.0, used - start_up(folder, env)) / (time.perf_counter() - began))
        lines = folder / f"bare-{len(bare)}.jsonl"
        child = [sys.executable, "-m", "assay.bench.child", "run", METHODS[0], f"--args={arguments}"]
        run_text(child, {**env, "ASSAY_BENCH_REPORT": str(lines)})
        reports = [json.loads(line) for line in lines.read_text().splitlines()]
        bare += [line["wall_time"] for line in reports if line["kind"] == "report"]
    return {
        "overhead": statistics.median(watched) / statistics.median(bare) - 1,
        "sampling_cpu": statistics.median(shares),
    }


_start_up: list[float] = []


def start_up(folder: Path, env: dict[str, str]) -> float:
    """CPU time of a call whose command does nothing: the program's start and end, which is no sampling."""
    if not _start_up:
        before = cpu_of_children()
        run_text([*ASSAY, "bench", "run", "--command", "true", "--quiet", "--root", str(folder / "runs")], env)
        _start_up.append(cpu_of_children() - before)
    return _start_up[0]


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def print_facts(facts: dict, trials: int) -> None:
    print(f"{facts['device']}, {os.cpu_count()} CPUs: measured peak {facts['peak']:.0f} TFLOP/s (bfloat16 product)")
    for each in facts["methods"]:
        if "failed" in each:
            print(f"{each['method']}: failed: {each['failed']}")
            continue
        print(
            f"{each['method']}: {each['wall_time_s'] * 1e3:.3f} ms, {each['tflops_per_second']:.1f} TFLOP/s, "
            f"{each['share_of_peak']:.0%} of the peak; over {each['trials']} of {trials} trials the quartiles are "
            f"{each['quartiles']:.2%} apart, the extremes {each['range']:.2%}; throttled: {each['throttled'] or 'no'}"
        )
    print(f"watched against bare: {facts['overhead']:+.2%} step time (claimed: below 1%)")
    print(f"supervisor: {facts['sampling_cpu']:.2%} of a CPU (claimed: below 1%)")


if __name__ == "__main__":
    sys.exit(main())
