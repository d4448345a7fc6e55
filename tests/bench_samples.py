"""A folder with benchmark methods of every kind, executions made up for histories, and benchmarks without a job."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
from tests.in_process_jobs import JobsOfThisProcess, surroundings

from assay.bench import child
from assay.bench.flow.archive import write_as_run
from assay.bench.flow.execution_builder import COMMAND, build_fingerprint
from assay.bench.values.execution import BenchExecution, BenchRequest, BenchResult, parse_method
from assay.execute.base import Publish
from assay.execute.process import build_handle
from assay.follow.api import StudyLocation
from assay.record.run_directory import RunRecord, load_record
from assay.system.fast_dataclasses import replace
from assay.values import layout
from assay.values.run import JobHandle, JobRequest

MODULE = """
import os, subprocess, sys, time
from assay.bench import Benchmark, report_benchmark

class B(Benchmark):
    def good(self):
        timing = self.measure(lambda: sum(range(500)), repeats=12, warmup=1)
        self.report_benchmark(iters=timing.iters, wall_time=timing.median_s, throughput=1 / timing.median_s)
    def fixed(self): self.report_benchmark(wall_time=2.0, metrics=[{"name": "acc", "value": 0.5, "min_value": 0.9}])
    def dies(self):
        self.report_benchmark(wall_time=1.0)
        os._exit(9)
    def killed(self): os.kill(os.getpid(), 9)
    def nan(self): self.report_benchmark(wall_time=float("nan"))
    def never(self): pass
    def raises(self): raise ValueError("no luck")
    def sleeps(self): time.sleep(1000)
    def writes(self):
        open(os.path.join(self.output_dir, "result.txt"), "w").write(self.data_dir)
        self.report_benchmark(wall_time=1.0)
    def large(self):
        held = bytearray(120_000_000); held[::4096] = b"x" * len(held[::4096])
        self.report_benchmark(wall_time=1.0)
    def environment(self): self.report_benchmark(wall_time=1.0, extras={"value": os.environ.get("MARK", "none")})

class Bad(Benchmark):
    def __init__(self, output_dir): raise RuntimeError("cannot be made")
    def good(self): ...

class Sized(Benchmark):
    def __init__(self, size, **kwargs):
        super().__init__(**kwargs)
        self.size = size
    def one(self): self.report_benchmark(wall_time=self.size)

def quick(): sum(range(100))
"""


def write_module(folder: Path) -> None:
    (folder / "mod.py").write_text(MODULE)


def request(*methods: str, **fields: Any) -> BenchRequest:
    given = {"foreign_limit": 1.0, "root": "runs", **fields}  # the machine that tests run on is always busy
    return BenchRequest(tuple(parse_method(method) for method in methods), **given)


def execution(number: int, value: float, **fields: Any) -> BenchExecution:
    """Build an execution of a made-up history; `number` orders them."""
    setup = fields.pop("setup", {"cpu_model": "one"})
    metric = fields.pop("metric", "wall_time")
    numbers = {"wall_time": value} if metric == "wall_time" else {"extras": {metric: value}}
    result = BenchResult("m.C.f", True, **numbers)  # type: ignore[arg-type]
    given = {"method": "m.C.f", "commit": f"{number:x}".ljust(40, "0"), "setup": setup, "result": result}
    given |= {"fingerprint": build_fingerprint(setup), **fields}
    return BenchExecution(f"e{number:04d}", trial=1, run_dir="", output_dir="", started_at=1e9 + number, **given)


def history(values: Sequence[float], first: int = 0, **fields: Any) -> list[BenchExecution]:
    return [execution(number, value, **fields) for number, value in enumerate(values, first)]


def write_archive(root: Path | str, executions: Iterable[BenchExecution]) -> StudyLocation:
    """Write executions as runs of the study `bench`, as if they had been made there."""
    location = StudyLocation(str(root), "bench")
    os.makedirs(location.dir, exist_ok=True)
    for each in executions:
        assert write_as_run(location, each, each.label)
    return location


def write_spy(folder: Path, on_start: str) -> Path:
    """Write a stand-in that records how it was called, and ends when it is interrupted, as py-spy does."""
    spy = folder / "py-spy"
    spy.write_text(
        f"#!{sys.executable} -S\n"
        "import json, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        f"{on_start}\n"
        "signal.sigwait([signal.SIGINT])\n"
        "with open(sys.argv[sys.argv.index('--output') + 1], 'w') as file: json.dump(sys.argv[1:], file)\n"
    )
    spy.chmod(0o755)
    return spy


# ---------------------------------------------------------------- without a job

INSTALLED = (sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(os.path.dirname(child.__file__))))


class InProcessExecutor(JobsOfThisProcess):
    """Calls methods in this process, and commands by bash alone: a tenth of the time of a job. Methods named in `real`,
    and methods that are profiled or have a secret or another environment, are executed as jobs."""

    def __init__(self, name: str, real: Sequence[str] = (), **options: Any) -> None:
        super().__init__(**options)
        self._real = real

    def submit(self, request: JobRequest, publish: Publish) -> JobHandle | None:
        record = load_record(request.dir)
        words = shlex.split(record.spec.commands[0].text.replace(layout.RUN_DIR_REFERENCE, request.dir))
        folder, words = (words[5], words[7:]) if words[4] == "cd" else (record.workdir, words[4:])
        is_command = words[1:3] == ["-I", "-S"]
        is_plain = len(words) == 5 if is_command else "run" in words[2:6] and not any("--profile" in w for w in words)
        if record.spec.params["method"] in self._real or record.spec.private or not is_plain:
            return super().submit(request, publish)
        handle = replace(build_handle(request, self.name), boot="")  # no process is searched for by it
        if not publish(handle):
            return None
        began, code = time.time(), 0
        with open(Path(request.dir, f"{COMMAND}.log"), "w") as log, _surroundings(record, request, folder):
            os.makedirs(os.environ["ASSAY_BENCH_OUTPUT"], exist_ok=True)
            code = _run_command(words[4], log) if is_command else _call_method(words[words.index("run") :], log)
        self.finish(request, handle, COMMAND, began, code)
        return handle


@contextlib.contextmanager
def _surroundings(record: RunRecord, request: JobRequest, folder: str) -> Iterator[None]:
    path, known, bytecode = list(sys.path), set(sys.modules), sys.dont_write_bytecode
    own = {name: value.replace(layout.RUN_DIR_REFERENCE, request.dir) for name, value in record.spec.env}
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    try:
        with surroundings(folder, {**own, "ASSAY_RUN_DIR": request.dir}, sys.argv):
            yield
    finally:
        sys.path[:], sys.dont_write_bytecode = path, bytecode
        for name in set(sys.modules) - known:  # other tests have modules of the same names
            if not (getattr(sys.modules[name], "__file__", None) or INSTALLED[0]).startswith(INSTALLED):
                del sys.modules[name]


def _call_method(arguments: Sequence[str], log: IO[str]) -> int:
    with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        return child.main(arguments)


def _run_command(text: str, log: IO[str]) -> int:
    """Measure a command as command.py does."""
    began = time.perf_counter()
    process = subprocess.Popen(["bash", "-c", text], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    _, status, used = os.wait4(process.pid, 0)
    code = process.returncode = os.waitstatus_to_exitcode(status)
    wall_s, cpu_s = time.perf_counter() - began, used.ru_utime + used.ru_stime
    peaks = {"max_rss": used.ru_maxrss * 1024, "cpu_s": cpu_s}
    end = {"kind": "end", "ok": code == 0, "wall_s": wall_s, "cpu_s": cpu_s, "peaks": peaks}
    with open(os.environ["ASSAY_BENCH_REPORT"], "a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in ({"kind": "begin", "wrapper_rss": 0}, end))
    return code if code >= 0 else 128 - code


def run_in_process(monkeypatch: pytest.MonkeyPatch, *real: str) -> None:
    """Execute benchmarks in this process, for tests of what they report; those named in `real` are executed as jobs.

    The libraries that this process happens to have loaded, more with each test, do not belong to the environment of a benchmark."""
    monkeypatch.setattr(child, "find_framework", lambda: None)
    monkeypatch.setattr(child, "find_packages", dict)
    monkeypatch.setattr("assay.launch.sweep.build_executor", functools.partial(InProcessExecutor, real=real))
