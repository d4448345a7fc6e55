"""All measurements in turn, the most useful and cheapest first: `make bench`, on a machine that does nothing else.

    python benchmarks/_all.py [--from NAME] [--only NAME...]

Each writes `results/NAME.json` and takes at least five repetitions of what it compares; one that fails is named at the
end, and the others go on. Then `README.md` and the chart are written from the results.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import _report

HERE = Path(__file__).resolve().parent
ORDER = (
    # seconds to a few minutes: what the README and its chart show, and what a user waits for
    *("startup", "help", "launch", "summary", "metric_logging", "where", "extract", "plan", "index_micro", "index"),
    *("overhead", "convergence_time", "early_stop", "web", "search", "trace", "farm"),
    # error rates, some minutes each: of simulated data first, of real programs then
    *("golden_files", "golden_same", "golden_movement", "golden_blame", "newest", "changepoint", "try", "busy", "gate"),
    *("model_localise", "model_compare", "model_faults", "model_noise", "torch_models", "trace_faults"),
    # half an hour and more
    *("convergence_power", "others_projects", "scale", "faults"),
    # with a GPU; without one they say so
    *("bench_gpu", "convergence_gpu_noise"),
)
BY_HAND = ("trees",)  # compares with another tree, which has to be named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="first", choices=ORDER, default=ORDER[0], help="go on with this one")
    parser.add_argument("--only", choices=ORDER, nargs="+")
    options = parser.parse_args()
    failed = []
    for name in options.only or ORDER[ORDER.index(options.first) :]:
        print(f"== benchmarks/{name}.py", flush=True)
        if subprocess.run([sys.executable, HERE / f"{name}.py"], check=False).returncode:
            failed.append(name)
    _report.main()
    if failed:
        sys.exit(f"ended with an error, or missed a target: {', '.join(failed)}")


if __name__ == "__main__":
    main()
