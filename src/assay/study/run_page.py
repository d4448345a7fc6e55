"""What the page of a run shows: everything that `assay show` tells, its readings over time, its logs and its files."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

from assay.errors import FormatError, NotFoundError, UsageError
from assay.observe.readings import parse_reading
from assay.record.index.base import Index
from assay.study.locations import StudyLocation
from assay.study.logs import find_log
from assay.study.refresh import describe_damage
from assay.study.run_description import build_document, describe_run, load_files
from assay.values import layout
from assay.values.document import Block, Chart, Curve, Facts, Panel, Section
from assay.values.series import Reading

LOG_BYTES = 1 << 16  # of one part of a log
_LONGEST_SEARCH_S = 3.0
_MOST_FOUND = 200
_MOST_READINGS = 100_000
_LONGEST_LINE = 4096
_PRIVATE = (layout.SECRETS_FILE,)


def build_run_blocks(
    index: Index, location: StudyLocation, run_dir: str, children: Sequence[str]
) -> tuple[Sequence[Block], str]:
    """What is readable, and what is not: a damaged run shows its files."""
    try:
        run = describe_run(index, location, run_dir, children)
    except FormatError:
        sizes = [(fact.name, f"{fact.size_bytes} bytes") for fact in load_files(run_dir)]
        return [Section((Facts(sizes),), "Files")], describe_damage(run_dir)
    document = build_document(run, with_environment=True)
    facts, params, *rest = document.blocks
    return [facts, params, *build_reading_charts(run_dir), *rest], ""


# ---------------------------------------------------------------- readings


def build_reading_charts(run_dir: str) -> Sequence[Block]:
    """Memory, processors and GPU on one axis of time: seconds since the first reading."""
    readings = _load_readings(os.path.join(run_dir, layout.READINGS_FILE))
    if len(readings) < 2:
        return []
    start = readings[0].time
    times = [reading.time - start for reading in readings]
    panels = [
        _build_panel("CPU, percent of one core", times, _measure_cpu(readings)),
        _build_panel("memory, GiB", times, [reading.rss_bytes / 2**30 for reading in readings]),
    ]
    gpu = [reading.gpu for reading in readings]
    if any(gpu):
        gaps = float("nan")
        panels += [
            _build_panel("GPU, percent", times, [each.utilisation if each else gaps for each in gpu]),
            _build_panel("GPU memory, GiB", times, [each.memory_bytes / 2**30 if each else gaps for each in gpu]),
            _build_panel("GPU power, W", times, [each.power_w if each else gaps for each in gpu]),
        ]
    chart = Chart("", panels, "readings over time", is_wide=True, x_label="seconds since the first reading")
    return [Section((chart,), "Readings")]


def _load_readings(path: str) -> list[Reading]:
    found: list[Reading] = []
    try:
        with open(path, "rb") as file:
            for line in file:
                reading = parse_reading(line)
                if reading is not None and (not found or reading.time >= found[-1].time):
                    found.append(reading)
                if len(found) >= _MOST_READINGS:
                    break
    except OSError:
        pass
    return found


def _measure_cpu(readings: Sequence[Reading]) -> list[float]:
    """Between two readings; a new attempt counts from zero."""
    shares = [float("nan")]
    for before, after in pairwise(readings):
        seconds, used = after.time - before.time, after.cpu_s - before.cpu_s
        shares.append(100 * used / seconds if seconds > 0 and used >= 0 else float("nan"))
    return shares


def _build_panel(label: str, times: Sequence[float], values: Sequence[float]) -> Panel:
    return Panel([Curve(list(zip(times, values, strict=True)), "curve c0")], height=90, label=label)


# ---------------------------------------------------------------- logs


class LogPart(NamedTuple):
    """Bytes `start` to `end` of `size` as text; what is not UTF-8 is replaced."""

    name: str
    text: str
    start: int
    end: int
    size: int


class Match(NamedTuple):
    offset: int  # where its line begins
    line: str


class Matches(NamedTuple):
    items: Sequence[Match]
    searched: int  # bytes
    size: int
    is_whole: bool  # False: the search ended before the end of the log, by its time or its count


def load_log(run_dir: str, command: str | None, attempt: int | None, start: int | None) -> LogPart:
    """From `start` on, whole lines where possible; without it the end of the log."""
    path = find_log(run_dir, command, attempt)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        begin = max(0, size - LOG_BYTES) if start is None else min(max(0, start), size)
        file.seek(begin)
        data = file.read(LOG_BYTES)
    if start is None and begin and b"\n" in data[:-1]:  # not in the middle of a line
        cut = data.index(b"\n") + 1
        begin, data = begin + cut, data[cut:]
    end = begin + len(data)
    if end < size and b"\n" in data:
        end = begin + data.rindex(b"\n") + 1
        data = data[: end - begin]
    return LogPart(os.path.basename(path), data.decode("utf-8", "replace"), begin, end, size)


def search_log(run_dir: str, command: str | None, attempt: int | None, words: str) -> Matches:
    """Lines that hold these words, in any case; a log of gigabytes is searched for some seconds."""
    path = find_log(run_dir, command, attempt)
    if not words.strip():
        raise UsageError("search for what?")
    pattern = re.compile(re.escape(words.encode()), re.IGNORECASE)
    deadline = time.monotonic() + _LONGEST_SEARCH_S
    found: list[Match] = []
    offset = 0
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        for line in iter(lambda: file.readline(1 << 20), b""):
            if pattern.search(line):
                found.append(Match(offset, line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip()))
            offset += len(line)
            if len(found) >= _MOST_FOUND or time.monotonic() > deadline:
                break
    return Matches(found, offset, size, offset >= size)


# ---------------------------------------------------------------- files


class RunFile(NamedTuple):
    name: str  # relative to the run's directory
    size: int


def list_files(run_dir: str, most: int = 2000) -> list[RunFile]:
    """Ordinary files of the run, its copy of the code apart; links and what is secret are left out."""
    return list(islice(_walk(run_dir), most))


def _walk(run_dir: str) -> Iterator[RunFile]:
    for folder, folders, names in os.walk(run_dir):
        folders[:] = sorted(name for name in folders if name != layout.CODE_DIR or folder != run_dir)
        for name in sorted(names):
            path = os.path.join(folder, name)
            info = os.lstat(path)
            if stat.S_ISREG(info.st_mode) and name not in _PRIVATE:
                yield RunFile(os.path.relpath(path, run_dir), info.st_size)


def find_file(run_dir: str, name: str) -> str:
    """The path of a file of the run. Nothing outside of its directory, no link, nothing secret."""
    path = os.path.join(run_dir, name.replace("\0", "?"))
    inside = os.path.realpath(path) == os.path.join(os.path.realpath(run_dir), os.path.normpath(name))
    is_private = os.path.basename(path) in _PRIVATE
    if os.path.isabs(name) or not inside or is_private or not os.path.isfile(path):
        raise NotFoundError("file", name, [each.name for each in list_files(run_dir, 200)])
    return path
