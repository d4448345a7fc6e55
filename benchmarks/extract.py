"""How fast metrics come out of a log: three patterns, one core.

Us: `Extractor.feed` (objects) and `Extractor.feed_columns` (arrays, for reading a log again).
Peer: what one writes by hand, a loop over the lines with `re.search`, making the same points.
Two logs: "dense" has all three values on every line; "usual" has such a line between nine others.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import time
from collections.abc import Callable

from measuring import render_ratio

from assay.observe.extract import Extractor
from assay.values.series import NUMBER
from assay.values.study import Pattern

CHUNK_BYTES = 1 << 20
PATTERNS = (
    Pattern("step", r"step (\d+)"),
    Pattern("loss", rf"loss[= ]({NUMBER})"),
    Pattern("accuracy", rf"acc[= ]({NUMBER})"),
)


def build_log(size_bytes: int, other_lines: int) -> bytes:
    rng = random.Random(7)
    lines: list[str] = []
    written = step = 0
    while written < size_bytes:
        stamp = f"2031-05-04 12:{step // 60 % 60:02}:{step % 60:02},123"
        line = f"{stamp} INFO train: step {step} loss={rng.random():.5f} acc={rng.random():.4f} lr=1.0e-04 12.3 it/s"
        others = [f"{stamp} DEBUG data: worker {n} fetched shard-{rng.randrange(9999):05d}" for n in range(other_lines)]
        block = [line, *others]
        lines += block
        written += sum(map(len, block)) + len(block)
        step += 1
    return ("\n".join(lines) + "\n").encode()


class LineLoop:
    """The plain way: one search per pattern and line."""

    def __init__(self, patterns: tuple[Pattern, ...]) -> None:
        self.step: float | None = None
        self.step_regex, *self.others = [(pattern.metric, re.compile(pattern.regex)) for pattern in patterns]
        self.tail = b""

    def feed(self, chunk: bytes) -> list[tuple[str, float, float | None]]:
        *lines, self.tail = (self.tail + chunk).split(b"\n")
        return [point for line in lines for point in self.read(line.decode())]

    def read(self, line: str) -> list[tuple[str, float, float | None]]:
        if match := self.step_regex[1].search(line):
            self.step = float(match[1])
        return [(metric, float(match[1]), self.step) for metric, regex in self.others if (match := regex.search(line))]


def chunks(data: bytes) -> list[bytes]:
    return [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]


def feed_lines(data: bytes) -> None:
    loop = LineLoop(PATTERNS)
    for chunk in chunks(data):
        loop.feed(chunk)


def feed_columns(data: bytes) -> None:
    extractor = Extractor(PATTERNS)
    for chunk in chunks(data):
        extractor.feed(chunk)


def _cpu_seconds(work: Callable[[bytes], object], data: bytes) -> float:
    start = time.process_time()
    work(data)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    ratios: list[str] = []
    for name, other_lines in (("dense", 0), ("usual", 9)):
        data = build_log(options.megabytes * 1_000_000, other_lines)
        expected = LineLoop(PATTERNS).feed(data)
        found = Extractor(PATTERNS).feed(data)
        values = {metric: [value for name, value, _ in expected if name == metric] for metric in found}
        if {metric: list(column[1]) for metric, column in found.items()} != values:
            raise SystemExit("the two do not extract the same points: nothing to compare")
        works = (feed_lines, feed_columns)
        turns = [[_cpu_seconds(work, data) for work in works] for _ in range(options.repeats)]
        peer, columns = (len(data) / 1e6 / min(times) for times in zip(*turns, strict=True))
        print(f"{name:6} log: re.search per line {peer:6.1f} MB/s   columns {columns:6.1f} MB/s")
        each = [turn[0] / turn[1] for turn in turns]
        ratios.append(render_ratio(f"a loop over lines / columns, {name} log", statistics.median(each), of_each=each))
    print("\n".join(ratios))


if __name__ == "__main__":
    main()
