"""How fast the index is by itself: reading tables, bulk ingest, and the small writes of a supervisor.

    python benchmarks/index_micro.py [--repeats 5] [--dir FOLDER]

Prints the best of several repeats, one figure per line, next to what the design asks for.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from measuring import render_ratio

from assay.record.index.base import Columns, Cursor, RunRow
from assay.record.index.sqlite import SqliteIndex
from assay.values.run import State

METRICS = ("train.loss", "val.loss", "val.accuracy")


def build_row(number: int, study: str = "grid") -> RunRow:
    name = f"lr_0.1,norm_batch,seed_{number}"
    params = {"lr": 0.1 / (number + 1), "norm": "batch", "seed": number, "early-stop": False, "data": "cifar10"}
    return RunRow(
        f"{study}/{name}", study, name, f"{number:012x}", State.DONE, 1, params, None, None, 1.7e9, 1.7e9 + 1,
        1.7e9 + 60, "node1", "0", 0, "", "0123456789abcdef", "fedcba9876543210", 1 << 30, 55.5, "assay", 1.7e9 + 60,
    )  # fmt: skip


def build_columns(points: int, seed: int) -> dict[str, Columns]:
    rng = random.Random(seed)
    steps = array("d", range(points))
    return {metric: (steps, array("d", [rng.random() for _ in steps]), None) for metric in METRICS}


class Bench:
    def __init__(self, repeats: int, folder: Path) -> None:
        self.repeats, self.folder = repeats, folder

    @contextmanager
    def fresh(self) -> Iterator[SqliteIndex]:
        """An empty index in a folder of its own."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            with SqliteIndex(folder / "index.sqlite3") as index:
                yield index
        finally:
            shutil.rmtree(folder)

    def best(self, work: Callable[[], object]) -> float:
        return min(self._time(work) for _ in range(self.repeats))

    def best_fresh(self, work: Callable[[SqliteIndex], object]) -> float:
        times = []
        for _ in range(self.repeats):
            with self.fresh() as index:
                times.append(self._time(lambda index=index: work(index)))
        return min(times)

    @staticmethod
    def _time(work: Callable[[], object]) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start


def report(what: str, figure: float, unit: str, goal: float | None = None) -> None:
    print(render_ratio(f"{what}, {unit}", figure, at_most=goal), flush=True)


def measure_reading(bench: Bench, runs: int = 10_000) -> None:
    with bench.fresh() as index:
        fill(index, runs, points=1)
        rows, summaries = bench.best(index.load_runs), bench.best(index.load_summaries)
        report(f"load_runs, {runs} runs", rows * 1e3, "ms")
        report(f"load_summaries, {runs} runs x 3 metrics", summaries * 1e3, "ms")
        report("  both", (rows + summaries) * 1e3, "ms", 100)
        report(f"load_table (the same, by column), {runs} runs x 3 metrics", bench.best(index.load_table) * 1e3, "ms")
        report("load_studies", bench.best(index.load_studies) * 1e3, "ms")
        report("load_metric_names", bench.best(index.load_metric_names) * 1e3, "ms")
        path = index.path
        report("open", bench.best(lambda: SqliteIndex(path).close()) * 1e3, "ms")


def fill(index: SqliteIndex, runs: int, points: int) -> None:
    columns = build_columns(points, seed=1)
    with index.batch():
        index.put_runs(map(build_row, range(runs)))
        for number in range(runs):
            index.add_columns(build_row(number).key, "train.log", Cursor(1), columns, expected_offset=0)


def measure_bulk(bench: Bench, runs: int = 2_000, points: int = 100) -> None:
    rows = [build_row(number) for number in range(runs)]
    given = [build_columns(points, number) for number in range(runs)]

    def ingest(index: SqliteIndex) -> None:
        with index.batch():
            for row, columns in zip(rows, given, strict=True):
                index.add_columns(row.key, "metrics.csv", Cursor(4096), columns, expected_offset=0)

    what = f"add_columns, {runs} runs x 3 metrics x {points} points, one batch"
    report(what, bench.best_fresh(ingest) * 1e3, "ms", 150)


def measure_rows(bench: Bench, runs: int = 10_000) -> None:
    rows = [build_row(number) for number in range(runs)]

    def one_call(index: SqliteIndex) -> None:
        with index.batch():
            index.put_runs(rows)

    def one_call_per_job(index: SqliteIndex) -> None:
        with index.batch():
            for number, row in enumerate(rows):
                index.put_runs((row,))
                if number % 200 == 199:
                    index.flush()

    report("put_runs, one call", bench.best_fresh(one_call) / runs * 1e6, "us/row", 20)
    per_job = bench.best_fresh(one_call_per_job) / runs * 1e6
    report("put_runs, a call per row, a flush per 200", per_job, "us/row", 20)


def measure_streaming(bench: Bench, calls: int = 2_000) -> None:
    columns = {metric: ([1.0], [0.5], [1.7e9]) for metric in METRICS}

    def alone(index: SqliteIndex) -> None:
        for call in range(calls):
            index.add_columns("grid/a", "train.log", Cursor(call + 1), columns, expected_offset=call)

    def batched(index: SqliteIndex) -> None:
        with index.batch():
            alone(index)

    report("add_columns, 3 points, a transaction each", bench.best_fresh(alone) / calls * 1e6, "us/call")
    report("add_columns, 3 points, in a batch", bench.best_fresh(batched) / calls * 1e6, "us/call")


def measure_series(bench: Bench, points: int = 1_000_000) -> None:
    columns = build_columns(points, seed=3)
    with bench.fresh() as index:
        index.add_columns("grid/a", "train.log", Cursor(1), columns, expected_offset=0)
        best = bench.best(lambda: index.load_series("grid/a", METRICS[0]))
        report(f"load_series, {points} points", best * 1e3, "ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="where the index files go (default: the temporary directory)")
    given = parser.parse_args()
    bench = Bench(given.repeats, given.dir or Path(tempfile.gettempdir()))
    for measure in (measure_reading, measure_bulk, measure_rows, measure_streaming, measure_series):
        measure(bench)


if __name__ == "__main__":
    main()
