"""The index by itself, in SQLite and in PostgreSQL: a million points stored, and the table of 10,000 runs read.

PostgreSQL is a server of our own on loopback, with its files in memory like those of SQLite and without fsync. CPU is
that of our process alone. The peer stores the same points as plain rows: `executemany` into one SQLite table.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sqlite3
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from measuring import ROOT, Taken, cpu, quick_folder, render_ratio, render_spread, take_turns, wall

from assay.record.index.base import Columns, Cursor, RunRow
from assay.record.index.sqlite import SqliteIndex
from assay.record.index.stored import Index
from assay.values.run import State

INGEST_RUNS, INGEST_METRICS, INGEST_POINTS = 2000, 5, 100
TABLE_RUNS = 10_000
Open = Callable[[str], Index]


def build_row(number: int) -> RunRow:
    name = f"lr_0.1,norm_batch,seed_{number}"
    params = {"lr": 0.1 / (number + 1), "norm": "batch", "seed": number, "early-stop": False, "data": "cifar10"}
    row = RunRow(f"grid/{name}", "grid", name, f"{number:012x}", State.DONE, 1, params)
    return row._replace(
        created_at=1.7e9 + number, started_at=1.7e9, ended_at=1.7e9 + 60, host="node1", slot="0", exit_code=0,
        code_hash="0123456789abcdef", commit="fedcba9876543210", peak_rss_bytes=1 << 30, cpu_s=55.5, stamp=1.7e9 + 60,
    )  # fmt: skip


def build_columns(metrics: int, points: int, seed: int) -> dict[str, Columns]:
    rng = random.Random(seed)
    steps, times = array("d", range(points)), array("d", [1.7e9 + point for point in range(points)])
    return {f"metric.{each}": (steps, array("d", [rng.random() for _ in steps]), times) for each in range(metrics)}


def measure(work: Callable[[], object]) -> Taken:
    start = (time.perf_counter(), time.process_time())
    work()
    return Taken(time.perf_counter() - start[0], time.process_time() - start[1])


def ingest(index: Index, rows: list[RunRow], given: list[dict[str, Columns]]) -> None:
    """As `assay sum` reads folders that it has not seen: rows and points of each run, in one batch."""
    with index.batch():
        for row, columns in zip(rows, given, strict=True):
            index.put_runs((row,))
            index.add_columns(row.key, "metrics.csv", Cursor(4096), columns, expected_offset=0)


def insert_plain(folder: Path, rows: list[RunRow], given: list[dict[str, Columns]]) -> None:
    path = folder / "plain.sqlite3"
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE points (run TEXT, metric TEXT, step REAL, value REAL, time REAL)")
        database.executemany(
            "INSERT INTO points VALUES (?, ?, ?, ?, ?)",
            (
                (row.key, metric, *point)
                for row, columns in zip(rows, given, strict=True)
                for metric, series in columns.items()
                for point in zip(*series, strict=True)  # type: ignore[arg-type]
            ),
        )
    database.close()


def compare_ingest(folder: Path, opened: dict[str, Open], repeats: int) -> list[str]:
    rows = [build_row(number) for number in range(INGEST_RUNS)]
    given = [build_columns(INGEST_METRICS, INGEST_POINTS, number) for number in range(INGEST_RUNS)]
    count = INGEST_RUNS * INGEST_METRICS * INGEST_POINTS

    def run(name: str) -> Taken:
        with opened[name](f"ingest-{time.monotonic_ns()}") as index:
            return measure(lambda: ingest(index, rows, given))

    contestants: dict[str, Callable[[], Taken]] = {name: lambda name=name: run(name) for name in opened}  # type: ignore[misc]
    contestants["plain rows in SQLite"] = lambda: measure(lambda: insert_plain(folder, rows, given))
    taken = take_turns(contestants, repeats)
    print(f"\n{count:,} points of {INGEST_RUNS:,} runs x {INGEST_METRICS} metrics, stored:")
    _show(taken)
    lines = []
    for name in opened:
        lines.append(render_ratio(f"points/s, {name}, wall", count / wall(taken[name]), at_least=200_000))
        lines.append(render_ratio(f"points/s, {name}, CPU of our process", count / cpu(taken[name])))
    return lines


def compare_tables(opened: dict[str, Open], repeats: int) -> list[str]:
    """In process, from opening the index to the text of the table; whether folders changed is not looked at."""
    from assay.reading.summary import SummaryOptions, build_summary
    from assay.record.index.base import IndexTable
    from assay.show.table import render_table

    columns = build_columns(3, 1, 1)
    for open_index in opened.values():
        with open_index("table") as index:
            ingest(index, list(map(build_row, range(TABLE_RUNS))), [columns] * TABLE_RUNS)

    def load(name: str) -> Taken:
        def work() -> None:
            with opened[name]("table") as index:
                assert len(index.load_table().rows) == TABLE_RUNS

        return measure(work)

    def show(name: str) -> Taken:
        def work() -> None:
            with opened[name]("table") as index:
                found: IndexTable = index.load_table(["grid"])
            assert render_table(build_summary(found, SummaryOptions()).table).count("\n") > TABLE_RUNS

        return measure(work)

    contestants: dict[str, Callable[[], Taken]] = {}
    for name in opened:
        contestants[f"load_table, {name}"] = lambda name=name: load(name)  # type: ignore[misc]
        contestants[f"printed table, {name}"] = lambda name=name: show(name)  # type: ignore[misc]
    taken = take_turns(contestants, repeats)
    print(f"\n{TABLE_RUNS:,} runs x 5 parameters x 3 metrics, in process:")
    _show(taken)
    lines = []
    for name, most in (("SQLite", 150), ("PostgreSQL", 300)):
        if name in opened:
            times = taken[f"printed table, {name}"]
            lines.append(render_ratio(f"ms for the table, {name}, wall", wall(times) * 1e3, at_most=most))
            lines.append(render_ratio(f"ms for the table, {name}, CPU of our process", cpu(times) * 1e3))
    return lines


def _show(taken: dict[str, list[Taken]]) -> None:
    for name, times in taken.items():
        walls, cpus = [one.wall_s for one in times], [one.cpu_s for one in times]
        print(f"  {name:<26}{render_spread(walls):<42}CPU {render_spread(cpus)}")


@contextmanager
def open_databases(folder: Path) -> Iterator[dict[str, Open]]:
    opened: dict[str, Open] = {"SQLite": lambda name: SqliteIndex(folder / f"{name}.sqlite3")}
    sys.path.insert(0, str(ROOT))
    from tests.postgres import run_postgres
    from tests.services import SERVICES

    missing = SERVICES["postgres"].find_missing()
    if missing:
        print(f"(without PostgreSQL: {', '.join(missing)} is missing; {SERVICES['postgres'].install})")
        yield opened
        return
    from assay.exchange.postgres_index import PostgresIndex

    with run_postgres() as server:
        yield {**opened, "PostgreSQL": lambda name: PostgresIndex(server.address(), folder / name)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    gc.set_threshold(50_000, 20, 50)  # as the command line does
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.repeats} repeats, contestants in turns")
    with quick_folder() as folder, open_databases(folder) as opened:
        ratios = compare_ingest(folder, opened, options.repeats) + compare_tables(opened, options.repeats)
    print("\n" + "\n".join(ratios))


if __name__ == "__main__":
    main()
