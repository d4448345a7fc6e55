"""Benchmarks on the CPU, with numpy: `assay bench run 'numpy_bench.MatMul.filter:.*' numpy_bench.sort_numbers`."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.bench import Benchmark


class MatMul(Benchmark):
    """Products of square matrices. `--args '{"size": 512}'` chooses how large."""

    def __init__(self, size: int = 256, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        rng = np.random.default_rng(0)
        self.size = size
        self.a, self.b = (rng.standard_normal((size, size)) for _ in range(2))

    def square(self) -> None:
        self._measure(self.a, self.b)

    def single_precision(self) -> None:
        exact = self.a @ self.b
        a, b = self.a.astype(np.float32), self.b.astype(np.float32)
        error = float(np.abs(a @ b - exact).max() / np.abs(exact).max())
        self._measure(a, b, {"name": "relative_error", "value": error, "max_value": 1e-5})

    def _measure(self, a: np.ndarray, b: np.ndarray, *further: dict[str, object]) -> None:
        timing = self.measure(lambda: a @ b, seconds=0.5)
        flops = 2 * self.size**3 / timing.median_s
        self.report_benchmark(
            iters=timing.iters,
            wall_time=timing.median_s,
            throughput=flops,
            metrics=[{"name": "gflops_per_second", "value": flops / 1e9}, *further],
        )


def sort_numbers() -> None:
    """A plain function reports nothing and is timed."""
    np.sort(np.random.default_rng(0).standard_normal(100_000))
