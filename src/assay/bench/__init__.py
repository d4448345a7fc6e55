"""Benchmarks in Python: `from assay.bench import Benchmark`.

    class MatMul(Benchmark):
        def square(self):
            timing = self.measure(lambda: a @ b, sync=torch)
            self.report_benchmark(iters=timing.iters, wall_time=timing.median_s, throughput=flops / timing.median_s)

`assay bench run module.MatMul.square` runs that method in a process of its own. A class need not be derived from
`Benchmark`: TensorFlow's `tf.test.Benchmark`, any class whose methods call `report_benchmark`, and plain functions work
as well. A plain function that reports nothing is timed. The imports of this package need only the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.bench.benchmark import Benchmark as Benchmark
    from assay.bench.benchmark import Timing as Timing
    from assay.bench.benchmark import measure as measure
    from assay.bench.benchmark import report_benchmark as report_benchmark
    from assay.bench.benchmark import synchronize as synchronize

__all__ = ["Benchmark", "Timing", "measure", "report_benchmark", "synchronize"]

__getattr__ = build_getattr(__name__, {"assay.bench.benchmark": " ".join(__all__)})
