"""What the benchmarks share: a quick place to work in, whole processes timed in turns, medians and ratios.

The contestants take turns, so that a busy machine disturbs all of them alike. Wall time is what a user waits for;
CPU time (user and system, of the process and of all that it waited for) is the steadier figure where others compute
on the same cores.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv-peers" / "bin"
ASSAY = (sys.executable, "-m", "assay")
RESULTS = Path(os.environ.get("RESULTS") or ROOT / "benchmarks" / "results").resolve()  # elsewhere: a trial
SCRIPT = Path(sys.argv[0]).resolve()
PEER_NAMES = ROOT / "benchmarks" / "peers.txt"


@dataclass(frozen=True)
class Taken:
    wall_s: float
    cpu_s: float


Contestant = Callable[[], Taken]


@contextmanager
def quick_folder() -> Iterator[Path]:
    """In memory where there is a tmpfs: some disks take longer to make a file than a job takes to run."""
    memory = Path("/dev/shm")
    base = memory if os.access(memory, os.W_OK) and os.path.ismount(memory) else None
    if base is None:
        print("(no tmpfs in /dev/shm: the disk's speed is part of every figure)")
    folder = Path(tempfile.mkdtemp(prefix="assay-bench-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def build_env(folder: Path) -> dict[str, str]:
    """Everything that a contestant writes beside its results lies in the same quick folder."""
    own = {"TMPDIR": folder, "ASSAY_CACHE_DIR": folder / "cache", "ASSAY_SLOTS_DIR": folder / "slots", "HOME": folder}
    for path in own.values():
        path.mkdir(exist_ok=True)
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ours = {"PYTHONPATH": str(ROOT / "src"), "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}  # as if installed
    return {**outer, **{name: str(path) for name, path in own.items()}, **ours}


def run_process(argv: Sequence[object], cwd: Path, env: Mapping[str, str], stdin: str = "") -> Taken:
    """A whole process with all that it starts; what it prints is kept only to explain a failure."""
    words = [str(word) for word in argv]
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as given:
        given.write(stdin.encode())
        given.seek(0)
        start = time.perf_counter()
        process = subprocess.Popen(words, cwd=cwd, env=env, stdin=given, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            said.seek(0)
            sys.exit(
                f"{' '.join(words)} ended with {process.returncode}:\n{said.read().decode(errors='replace')[-4000:]}"
            )
    return Taken(wall, used.ru_utime + used.ru_stime)


def take_turns(contestants: Mapping[str, Contestant], repeats: int) -> dict[str, list[Taken]]:
    """Every contestant once a round; a first round that does not count fills the caches."""
    taken: dict[str, list[Taken]] = {name: [] for name in contestants}
    for number in range(repeats + 1):
        for name, contestant in contestants.items():
            one = contestant()
            if number:
                taken[name].append(one)
    return taken


def wall(taken: Sequence[Taken]) -> float:
    return statistics.median(one.wall_s for one in taken)


def cpu(taken: Sequence[Taken]) -> float:
    return statistics.median(one.cpu_s for one in taken)


def render_spread(values: Sequence[float], unit: str = "ms", scale: float = 1e3) -> str:
    """Median, and the smallest and largest beside it."""
    scaled = [value * scale for value in values]
    return f"{statistics.median(scaled):8.2f} {unit} ({min(scaled):.2f} to {max(scaled):.2f})"


# ---------------------------------------------------------------- results

_figures: list[dict[str, object]] = []


def render_ratio(
    what: str,
    ratio: float,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    of_each: Sequence[float] = (),
) -> str:
    """A ratio beside its target, and whether it is met; it is also kept for the file of results.

    `of_each` is the ratio of each repetition, for its spread.
    """
    is_met = None if at_most is at_least is None else _is_met(ratio, at_most, at_least)
    spread = [round(each, 4) for each in (min(of_each), max(of_each))] if of_each else None
    figure = {"what": what, "value": round(ratio, 4), "spread": spread, "at_most": at_most, "at_least": at_least}
    _figures.append({name: value for name, value in {**figure, "is_met": is_met}.items() if value is not None})
    shown = f"{what}: {ratio:.2f}" if at_least is None else f"{what}: {ratio:.1f}"
    if spread:
        shown += f" ({spread[0]:.2f} to {spread[1]:.2f})"
    if is_met is None:
        return shown
    target = f"at most {at_most}" if at_most is not None else f"at least {at_least}"
    return f"{shown}   target: {target}   {'met' if is_met else 'MISSED'}"


def render_count(what: str, problems: int, tried: int) -> str:
    """Problems among what was tried, with the upper end of the 95% interval; kept for the file of results."""
    most = 3 / tried if problems == 0 else (problems + 2 * (problems + 1) ** 0.5 + 2) / tried
    _figures.append({"what": what, "problems": problems, "tried": tried, "at_most_rate": round(most, 6)})
    return f"{what}: {problems} of {tried:,} (95%: at most {most:.2%})"


def render_share(what: str, hits: int, tried: int) -> str:
    """How many of those that were tried, with its interval; kept for the file of results."""
    if tried:
        interval = [round(end, 6) for end in find_interval(hits, tried)]
        _figures.append({"what": what, "hits": hits, "tried": tried, "interval": interval})
    return f"{what}: {render_rate(hits, tried)}"


def render_rate(hits: int, tried: int) -> str:
    if not tried:
        return "0 of 0"
    low, high = find_interval(hits, tried)
    return f"{hits} of {tried:,}, {hits / tried:.1%} [{low:.1%}, {high:.1%}]"


def find_interval(hits: int, tried: int) -> tuple[float, float]:
    """Wilson's, 95%."""
    z, share = 1.96, hits / tried
    middle, room = share + z * z / (2 * tried), z * (share * (1 - share) / tried + (z / (2 * tried)) ** 2) ** 0.5
    return max(0.0, (middle - room) / (1 + z * z / tried)), min(1.0, (middle + room) / (1 + z * z / tried))


def _is_met(ratio: float, at_most: float | None, at_least: float | None) -> bool:
    return (at_most is None or ratio <= at_most) and (at_least is None or ratio >= at_least)


@atexit.register
def _write_results() -> None:
    """`results/NAME.json` of the script that ends, with the commit, the machine and the peers' versions."""
    if not _figures or SCRIPT.parent != ROOT / "benchmarks":  # a test that calls a script
        return
    git = "git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown"
    commit = subprocess.run(["sh", "-c", git], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    words = [line.split("#")[0].strip() for line in PEER_NAMES.read_text(encoding="utf-8").splitlines()]
    record = {
        "script": SCRIPT.stem,
        "arguments": sys.argv[1:],
        "commit": commit,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.machine(),
            "python": platform.python_version(),
            "load": round(os.getloadavg()[0], 1),
            **_find_gpu(),
        },
        "peers": sorted(word for word in words if word),
        "figures": _figures,
    }
    RESULTS.mkdir(exist_ok=True, parents=True)
    (RESULTS / f"{record['script']}.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _find_gpu() -> dict[str, str]:
    """The one that the script has used, if any."""
    torch = sys.modules.get("torch")
    return {"gpu": torch.cuda.get_device_name()} if torch is not None and torch.cuda.is_initialized() else {}


def has_peer(module: str) -> bool:
    """Whether a peer is installed; `make bench` sets them up."""
    found = PEERS.exists() and subprocess.run(
        [PEERS / "python", "-c", f"import {module}"], capture_output=True, check=False
    )
    if not found or found.returncode != 0:
        print(f"(without {module}: it is not in .venv-peers; make bench sets it up)")
        return False
    return True
