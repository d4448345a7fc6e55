"""A folder with benchmark methods of every temper, and executions made up for histories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.bench.flow.execution_builder import build_fingerprint
from assay.bench.values.execution import BenchExecution, BenchRequest, BenchResult, parse_method

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
    given = {"foreign_limit": 1.0, "root": "runs", **fields}  # the machine that tests run on is never quiet
    return BenchRequest(tuple(parse_method(method) for method in methods), **given)


def execution(number: int, value: float, **fields: Any) -> BenchExecution:
    """One of a made-up history; `number` orders them."""
    setup = fields.pop("setup", {"cpu_model": "one"})
    metric = fields.pop("metric", "wall_time")
    numbers = {"wall_time": value} if metric == "wall_time" else {"extras": {metric: value}}
    result = BenchResult("m.C.f", True, **numbers)  # type: ignore[arg-type]
    given = {
        "commit": f"{number:x}".ljust(40, "0"),
        "setup": setup,
        "fingerprint": build_fingerprint(setup),
        "result": result,
        **fields,
    }
    return BenchExecution(
        execution_id=f"e{number:04d}",
        method="m.C.f",
        trial=1,
        run_dir="",
        output_dir="",
        started_at=1e9 + number,
        **given,
    )


def history(values: Sequence[float], **fields: Any) -> list[BenchExecution]:
    return [execution(number, value, **fields) for number, value in enumerate(values)]
