"""How many points a second a script can log, and how much a SIGKILL takes away.

Us: `assay.log`, with one metric in a call and with four.
Peers: tensorboardX `add_scalar`, and MLflow `log_batch` in batches of 1,000, on its file store and on SQLite.

Every measurement is a process of its own, begins after a first point, and ends when all points have been handed to
the operating system. The contestants take turns, so that a busy machine disturbs all of them alike. Peers run with
the interpreter of `.venv-peers`, which `make bench` sets up.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measuring import render_ratio

ROOT = Path(__file__).resolve().parent.parent
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
STAMP = struct.Struct("<qd")  # step and time, as the process to be killed reports them
PEER_MODULES = {"tensorboardX": "tensorboardX", "MLflow, files": "mlflow", "MLflow, SQLite": "mlflow"}
SHARE = {"tensorboardX": 10, "MLflow, files": 20, "MLflow, SQLite": 20}  # slower ones get a part of the points


# ---------------------------------------------------------------- the contestants, each in a process of its own


def log_with_assay(points: int, folder: str) -> float:
    from assay import log

    os.environ["ASSAY_RUN_DIR"] = folder
    log(loss=0.0, step=0)
    start = time.perf_counter()
    for step in range(points):
        log(loss=step * 0.37, step=step)
    return time.perf_counter() - start


def log_four_with_assay(points: int, folder: str) -> float:
    from assay import log

    os.environ["ASSAY_RUN_DIR"] = folder
    log(loss=0.0, step=0)
    start = time.perf_counter()
    for step in range(points // 4):
        log(loss=step * 0.37, accuracy=step * 0.11, lr=1e-3, norm=step / 7, step=step)
    return time.perf_counter() - start


def log_with_tensorboardx(points: int, folder: str) -> float:
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(folder)
    writer.add_scalar("loss", 0.0, 0)
    start = time.perf_counter()
    for step in range(points):
        writer.add_scalar("loss", step * 0.37, step)
    writer.close()
    return time.perf_counter() - start


def log_with_mlflow(points: int, uri: str) -> float:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    run = client.create_run(client.create_experiment("benchmark")).info.run_id
    client.log_batch(run, metrics=[Metric("loss", 0.0, int(time.time() * 1000), 0)])
    start = time.perf_counter()
    for first in range(0, points, 1000):
        now = int(time.time() * 1000)
        steps = range(first, min(first + 1000, points))
        client.log_batch(run, metrics=[Metric("loss", step * 0.37, now, step) for step in steps])
    return time.perf_counter() - start


def log_with_mlflow_files(points: int, folder: str) -> float:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    return log_with_mlflow(points, f"file://{folder}/mlruns")


def log_with_mlflow_sqlite(points: int, folder: str) -> float:
    return log_with_mlflow(points, f"sqlite:///{folder}/mlflow.db")


CONTESTANTS: dict[str, Callable[[int, str], float]] = {
    "assay.log, one metric": log_with_assay,
    "assay.log, four metrics": log_four_with_assay,
    "tensorboardX": log_with_tensorboardx,
    "MLflow, files": log_with_mlflow_files,
    "MLflow, SQLite": log_with_mlflow_sqlite,
}


# ---------------------------------------------------------------- taking turns


def measure(name: str, python: str, points: int) -> float:
    """Points a second of one contestant in a fresh process."""
    part = points // SHARE.get(name, 1)
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as folder:
        command = [python, __file__, "--measure", name, "--points", str(part), "--folder", folder]
        done = subprocess.run(command, env=build_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    return part / float(done.stdout.split()[-1])


def build_environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ASSAY_", "MLFLOW_"))}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "ignore"}


def find_missing(python: str) -> dict[str, str]:
    """Peers that cannot be measured, and why."""
    if not os.access(python, os.X_OK):
        return dict.fromkeys(PEER_MODULES, f"no interpreter at {python}")
    missing = {}
    for name, module in PEER_MODULES.items():
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
        if subprocess.run([python, "-c", code], check=False).returncode:
            missing[name] = f"{module} is not installed for {python}"
    return missing


def take_turns(python: str, points: int, repeats: int) -> dict[str, list[float]]:
    missing = find_missing(python)
    for name, reason in missing.items():
        print(f"{name} is left out: {reason}. `make bench` sets the peers up.")
    rates: dict[str, list[float]] = {name: [] for name in CONTESTANTS if name not in missing}
    for _ in range(repeats):
        for name, values in rates.items():
            values.append(measure(name, python if name in PEER_MODULES else sys.executable, points))
    return rates


# ---------------------------------------------------------------- what a kill takes away


def log_until_killed(folder: str) -> None:
    """Reports each step on stdout after it was logged, so that the killer knows how far it came."""
    from assay import log

    os.environ["ASSAY_RUN_DIR"] = folder
    step = 0
    while True:
        log(loss=step * 0.37, step=step)
        os.write(1, STAMP.pack(step, time.monotonic()))
        step += 1


def measure_loss() -> tuple[int, float]:
    """Lines that were logged and are not in the file after SIGKILL, and the seconds that they span."""
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as folder:
        command = [sys.executable, __file__, "--until-killed", "--folder", folder]
        with subprocess.Popen(command, env=build_environment(), stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            reported = child.stdout.read(STAMP.size * 50_000)  # well into its stride
            child.send_signal(signal.SIGKILL)
            reported += child.stdout.read()
        whole = len(reported) // STAMP.size * STAMP.size
        stamps = dict(STAMP.iter_unpack(reported[:whole]))
        (file,) = (Path(folder) / "metrics").iterdir()
        kept = {json.loads(line)["step"] for line in file.read_text().splitlines() if line.endswith("}")}
    lost = [at for step, at in stamps.items() if step not in kept]
    return len(lost), max(stamps.values()) - min(lost) if lost else 0.0


# ---------------------------------------------------------------- the report


def report(rates: dict[str, list[float]], losses: list[tuple[int, float]]) -> None:
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"{'points a second':<26}{'median':>12}{'lowest':>12}{'highest':>12}")
    for name, values in rates.items():
        print(f"{name:<26}{medians[name]:>12,.0f}{min(values):>12,.0f}{max(values):>12,.0f}")
    lines, seconds = max(losses)
    print(f"lost on SIGKILL, worst of {len(losses)}: {lines} lines, {seconds:.3f} s (goal: at most 1 s)")
    ours = rates["assay.log, one metric"]
    print(render_ratio("assay.log, points a second, one metric in a call", statistics.median(ours), at_least=200_000))
    print_ratio("tensorboardX", ours, rates.get("tensorboardX"), 8)
    batches = [values for name, values in rates.items() if name.startswith("MLflow")]
    print_ratio("MLflow log_batch, its faster store", ours, max(batches, key=statistics.median, default=None), 10)


def print_ratio(peer: str, ours: list[float], theirs: list[float] | None, goal: int) -> None:
    if theirs is not None:
        ratio = statistics.median(ours) / statistics.median(theirs)
        each = [one / other for one, other in zip(ours, theirs, strict=False)]
        print(render_ratio(f"assay.log / {peer}", ratio, at_least=goal, of_each=each))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=200_000, help="for one measurement of assay.log (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="turns that each contestant takes (%(default)s)")
    parser.add_argument(
        "--peers", default=str(PEERS_PYTHON), metavar="PYTHON", help="the peers' interpreter (%(default)s)"
    )
    parser.add_argument("--measure", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--until-killed", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(CONTESTANTS[args.measure](args.points, args.folder))
    elif args.until_killed:
        log_until_killed(args.folder)
    else:
        report(take_turns(args.peers, args.points, args.repeats), [measure_loss() for _ in range(3)])


if __name__ == "__main__":
    main()
