"""A folder with benchmarks, and one call that has executed many of them: most tests only read what it left."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.bench_samples import request, run_in_process, write_module

from assay.bench.commands.options import parse_commands
from assay.bench.flow.run import run_benchmarks
from assay.bench.values.execution import BenchExecution, BenchReport

# holds memory until the other one does, too, and for a while then: opening a FIFO waits for its other end
_CODE = 'import time; b = bytearray(60_000_000); b[::4096] = b[::4096]; both = open("both", "%s"); time.sleep(0.8)'
HOLD = f"{sys.executable} -S -c '{_CODE}'"
REPORTS = "from assay.bench import report_benchmark; report_benchmark(throughput=9)"
COMMANDS = {
    "true": "true",
    "two": f"mkfifo both; {HOLD % 'r'} & {HOLD % 'w'} && wait && rm both",
    "own": f"{sys.executable} -c '{REPORTS}'",
    "broken": "echo oops; exit 3",
    "crashing": "python3 -c 'import crash; crash.outer()'",
}
MODULES = {
    "crash.py": "import ctypes\ndef inner(): ctypes.string_at(0)\ndef outer(): inner()\n",
    "empty.py": "def memory(): raise MemoryError\ndef value(): raise ValueError\n",
    "wrong.py": "from assay.bench import report_benchmark\n\ndef f():\n    report_benchmark(wall_time='x')\n",
    "grow.py": """
import os, time
def printing():
    print('growing', flush=True)
    os.kill(os.getpid(), 9)
def holding():
    b = bytearray(60_000_000); b[::4096] = b[::4096]
    time.sleep(1)
    os.kill(os.getpid(), 9)
""",
    "trees.py": """
import os, subprocess, sys, time
from assay.bench import report_benchmark

def forks():
    pids, (ready, is_held), (go, is_seen) = [], os.pipe(), os.pipe()
    for _ in range(3):
        pid = os.fork()
        if not pid:
            held = bytearray(40_000_000); held[::4096] = held[::4096]
            os.write(is_held, b".")
            os.read(go, 1)
            os._exit(0)
        pids.append(pid)
        os.read(ready, 1)
    time.sleep(0.5)
    os.write(is_seen, b"...")
    for pid in pids:
        os.waitpid(pid, 0)
    report_benchmark(wall_time=1.0)

def unwaited():
    code = "import time; b = bytearray(90_000_000); b[::4096] = b[::4096]; print('ready', flush=True); time.sleep(300)"
    child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    child.stdout.readline()
    report_benchmark(wall_time=1.0, extras={"pid": child.pid})
""",
}
# what is about processes, their ends and their memory; the others are called in this process
REAL = ("mod.B.dies", "mod.B.sleeps", "mod.B.large", "crash.outer", "grow.printing", "grow.holding")
REAL += ("trees.forks", "trees.unwaited")
METHODS_OF_B = ("nan", "never", "raises", "godo", "good", "fixed", "writes", "environment", "filter:zzz.*")
OTHERS = ("mod.quick", "mod.Bad.good", "absent.f", "empty.memory", "empty.value", "wrong.f")
METHODS = (*REAL, *(f"mod.B.{name}" for name in METHODS_OF_B), *OTHERS)


def _make_lab(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    lab = folder / "lab"
    lab.mkdir()
    write_module(lab)
    patch.chdir(lab)
    patch.setenv("ASSAY_SLOTS_DIR", str(folder / "slots"))
    patch.setenv("ASSAY_CACHE_DIR", str(folder / "cache"))
    patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return lab


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with `mod.py` in it; slots and index are its own."""
    return _make_lab(tmp_path, monkeypatch)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    run_in_process(monkeypatch)


@dataclass
class Finished:
    """Not to be changed: other tests read it as well."""

    root: Path
    report: BenchReport
    reported: list[tuple[str, int, int]] = field(default_factory=list)  # method, number and total, as each ended

    def __getitem__(self, method: str) -> BenchExecution:
        return next(execution for execution in self.report.executions if execution.method == method)

    def message(self, method: str) -> str:
        return "; ".join(finding.message for finding in self[method].result.findings)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    with pytest.MonkeyPatch.context() as patch:
        lab = _make_lab(tmp_path_factory.mktemp("finished"), patch)
        for name, text in MODULES.items():
            (lab / name).write_text(text)
        run_in_process(patch, *REAL, "true", "two")
        reported: list[tuple[str, int, int]] = []
        commands = parse_commands([f"{name}={text}" for name, text in COMMANDS.items()])
        asked = request(
            *METHODS, grace_s=0.5, label="here", extra={"command": 1}, data_dir="/some/data",
            env=(("MARK", "it's $HERE"),), root=str(lab / "runs"), folder=str(lab),
        )  # fmt: skip
        methods = [replace(each, timeout_s=1.5) if each.name == "mod.B.sleeps" else each for each in asked.methods]
        asked = replace(asked, methods=(*methods, *commands))
        report = run_benchmarks(asked, report_end=lambda e, number, total: reported.append((e.method, number, total)))
    return Finished(lab / "runs", report, reported)
