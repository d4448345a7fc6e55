"""Another process that uses an index: `index_worker.py OPENER TASK ARGUMENTS`. Prints its answer as JSON."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.plugins import load
from assay.record.index.base import Cursor, RunRow
from assay.record.index.sqlite import SqliteIndex
from assay.record.index.stored import Index
from assay.values.run import State

NAMES = {"SqliteIndex": SqliteIndex, "load": load, "Path": Path}  # what an opener may use


def main() -> None:
    opener, task, arguments = sys.argv[1:]
    opened: Callable[[], Index] = lambda: eval(opener, NAMES)  # noqa: E731
    index = None if task == "open_and_put" else opened()
    print("ready", flush=True)
    sys.stdin.readline()
    with index or opened() as ready:
        print(json.dumps(TASKS[task](ready, *json.loads(arguments))))


def write(index: Index, study: str, runs: int) -> int:
    """Half of it in batches, half call by call; how much was refused."""
    refusals = 0
    for start in range(0, runs, 4):
        keys = [f"{study}/{number}" for number in range(start, start + 4)]
        if start % 8:
            with index.batch() as refused:
                refusals += sum(write_run(index, key) for key in keys)
            refusals += len(refused)
        else:
            refusals += sum(write_run(index, key) for key in keys)
    return refusals


def write_run(index: Index, key: str) -> int:
    study, name = key.split("/")
    index.put_runs([RunRow(key, study, name, "id", State.DONE, 1, {})])
    refused = 0
    for step in range(3):
        columns = {"loss": ([step], [1.0], None), "acc": ([step], [0.5], None)}
        refused += not index.add_columns(key, "a.log", Cursor(step + 1), columns, expected_offset=step)
    return refused


def open_and_put(index: Index, key: str) -> None:
    index.put_runs([RunRow(key, "grid", key, "id", State.DONE, 1, {})])


def race(index: Index, total: int, batched: bool, seed: int) -> int:
    """Read the same imaginary log as another process, where point n lies at offset n; how many points we wrote."""
    rng = random.Random(seed)
    mine = 0
    while (start := index.load_cursor("grid/a", "a.log").offset) < total:
        mine += read_on_batched(index, start, total, rng) if batched else read_on(index, start, total, rng)
    return mine


def read_on(index: Index, start: int, total: int, rng: random.Random) -> int:
    end = min(total, start + rng.randint(1, 5))
    columns = {"loss": (None, range(start, end), None)}
    return end - start if index.add_columns("grid/a", "a.log", Cursor(end), columns, expected_offset=start) else 0


def read_on_batched(index: Index, start: int, total: int, rng: random.Random) -> int:
    with index.batch() as refused:
        mine = read_on(index, start, total, rng)
        mine += read_on(index, start + mine, total, rng)
    return 0 if refused else mine


TASKS: dict[str, Callable[..., Any]] = {"write": write, "open_and_put": open_and_put, "race": race}

if __name__ == "__main__":
    main()
