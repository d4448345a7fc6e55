"""For `web.py`: the data, written through each tool's own interface, and the servers that show it.

Each filling script runs in the interpreter of its tool, reads what `write_data` has made, and prints how many runs it
has stored: a tool that would need more than its time stores fewer, and the benchmark says so.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import socket
import subprocess
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
from measuring import ASSAY

START_S = 120
METRICS = ("loss", "acc", *(f"m{number}" for number in range(2, 10)))


@dataclass(frozen=True)
class Size:
    runs: int = 10_000
    long: int = 1_000_000
    curves: int = 50
    points: int = 10_000
    fill_s: float = 240  # so long a tool may take to store its runs
    measure_s: float = 180  # and so long to answer; what was measured until then counts


QUICK = Size(500, 50_000, 10, 1000, 40, 20)


# ---------------------------------------------------------------- the data


def write_data(folder: Path, size: Size) -> None:
    rng = random.Random(14)
    table = [{"params": _draw_params(rng, number), "metrics": _draw_metrics(rng)} for number in range(size.runs)]
    (folder / "table.json").write_text(json.dumps(table))
    (folder / "long.bin").write_bytes(build_curve(rng, size.long).tobytes())
    for number in range(size.curves):
        (folder / f"curve-{number}.bin").write_bytes(build_curve(rng, size.points).tobytes())


def _draw_params(rng: random.Random, number: int) -> dict[str, float | int | str]:
    drawn: dict[str, float | int | str] = {
        "lr": round(10 ** rng.uniform(-5, -1), 7),
        "width": rng.choice([64, 128, 256, 512]),
        "opt": rng.choice(["sgd", "adam", "lamb"]),
        "seed": number,
    }
    return drawn | {f"p{each}": round(rng.random(), 3) for each in range(4, 20)}


def _draw_metrics(rng: random.Random) -> dict[str, float]:
    return {name: rng.random() for name in METRICS}


def build_curve(rng: random.Random, count: int) -> array[float]:
    """Falls and is noisy; one point in some thousands is a spike."""
    values = array("d", (2 * math.exp(-5 * at / count) + rng.random() * 0.1 for at in range(count)))
    for at in rng.sample(range(count), max(3, count // 50_000)):
        values[at] = 3 + rng.random()
    return values


def load_curve(path: Path) -> array[float]:
    return array("d", path.read_bytes())


READ = """
import array, json, os, sys, time
folder, target, limit = sys.argv[1], sys.argv[2], float(sys.argv[3])
began = time.monotonic()
table = json.load(open(f"{folder}/table.json"))
def curve(name):
    return array.array("d", open(f"{folder}/{name}.bin", "rb").read())
curves = sorted(each[:-4] for each in os.listdir(folder) if each.startswith("curve-"))
def is_late(share=1.0):
    return time.monotonic() - began > limit * share
def tell(runs, points, lines):
    print(json.dumps({"runs": runs, "points of the long curve": points, "curves": lines}))
"""

FILL_ASSAY = (
    READ
    + """
os.environ["ASSAY_ROOT"] = target
import io
from contextlib import redirect_stderr
from assay import script
from assay.exchange.script_run import open_run
def begin(study, name, params):
    with redirect_stderr(io.StringIO()):  # it says where the run is
        open_run("benchmark", study, name).write_config(params)
for number, run in enumerate(table):
    begin("table", f"run-{number:05}", run["params"])
    script.log(run["metrics"], step=1)
begin("long", "long", {"seed": 0})
for step, value in enumerate(curve("long")):
    script.log(loss=value, step=step)
for number, name in enumerate(curves):
    begin("overlay", name, {"seed": number})
    for step, value in enumerate(curve(name)):
        script.log(loss=value, step=step)
script.close_stream()
tell(len(table), len(curve("long")), len(curves))
"""
)


def fill(
    python: object, program: str, data: Path, target: Path, env: Mapping[str, str], limit_s: float
) -> dict[str, int]:
    """How much was stored. A program that looks at the clock ends by itself; any other is ended."""
    words = [str(python), "-c", program, str(data), str(target), str(limit_s)]
    try:
        done = subprocess.run(
            words, env=env, check=False, capture_output=True, text=True, cwd=data, timeout=limit_s * 1.5
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{target.name} is not filled within {limit_s * 1.5:.0f} s") from None
    if done.returncode != 0:
        raise SystemExit(f"{target.name} cannot be filled:\n{done.stderr[-3000:]}")
    stored: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return stored


# ---------------------------------------------------------------- servers


class Memory(NamedTuple):
    rss: float
    pss: float


@dataclass
class Server:
    """A running one, with all its processes."""

    name: str
    port: int
    process: subprocess.Popen[str]
    stored: Mapping[str, int]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def run_alone(self) -> Iterator[None]:
        """Let all its processes run inside this block; before and after it they are stopped: others are measured."""
        os.killpg(self.process.pid, signal.SIGCONT)
        try:
            yield
        finally:
            self.pause()

    def pause(self) -> None:
        os.killpg(self.process.pid, signal.SIGSTOP)

    def measure_memory(self) -> Memory:
        """In MB, of all its processes together."""
        top = psutil.Process(self.process.pid)
        found = [each.memory_full_info() for each in [top, *top.children(recursive=True)]]
        return Memory(sum(each.rss for each in found) / 1e6, sum(each.pss for each in found) / 1e6)


@contextmanager
def start(
    name: str, words: Sequence[object], port: int, stored: Mapping[str, int], env: Mapping[str, str], log: Path
) -> Iterator[Server]:
    """Until it accepts connections; its whole process group is ended afterwards."""
    with log.open("w") as said:
        process = subprocess.Popen(
            list(map(str, words)), env=dict(env), stdout=said, stderr=said, text=True, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_S
        while not _is_open(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{name} does not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.01)
        yield Server(name, port, process, stored)
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            os.killpg(process.pid, signal.SIGCONT)  # one that stands still hears no SIGTERM
        except ProcessLookupError:
            break
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serve_assay(root: Path, env: Mapping[str, str], stored: Mapping[str, int]) -> Iterator[Server]:
    port = find_port()
    words = [*ASSAY, "serve", "--root", root, "--port", port]
    with start("assay", words, port, stored, env, root.parent / "assay.log") as server:
        yield server
