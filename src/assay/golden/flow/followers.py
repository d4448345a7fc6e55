"""Reads the logs and metric files of golden runs, during the runs and after their end."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from assay.follow.api import Entry, Observer, find_sources
from assay.follow.collect import READ_BYTES, Follower, Summaries
from assay.golden.flow.segments import COMMAND
from assay.golden.recorder import LogReader, RunRecorder, Values
from assay.golden.values import GoldenTest
from assay.launch.api import RunHooks
from assay.observe.columns import Columns
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import Tail, read_end
from assay.values import layout
from assay.values.run import Ending, Usage
from assay.values.study import MetricFile, Pattern

_TAIL_BYTES = 2000
_LOG_BYTES = 32 << 20  # how much of a log without values is read to find the reason
NO_LINE = "matches no line of the log"
NO_STEP_LINE = "is never on a line with the step, so it is not read"


class LiveReader(Protocol):
    """Reads a run's files while it runs."""

    def read(self, entry: Entry, final: bool) -> None: ...

    def find_end(self) -> str | None:
        """Return why the run can be ended now; None if it must continue."""
        ...


def follow_runs(hooks: RunHooks, followers: Callable[[Entry], LiveReader]) -> RunHooks:
    """Return hooks that give each run a follower, and end the run when the follower's `find_end` returns a reason."""
    live: dict[str, LiveReader] = {}

    def prune(entries: Sequence[Entry]) -> dict[str, Ending]:
        known = [path for entry in entries if (path := entry.dir) in live]
        return {path: Ending(why) for path in known if (why := live[path].find_end()) is not None}

    return replace(hooks, observe=lambda inner: Listening(inner, followers, live), prune=prune)


@dataclass(slots=True)
class Listening:
    """An observer that wraps another one: each run's follower reads after every tick and once more at the end."""

    _inner: Observer
    _make: Callable[[Entry], LiveReader]
    _live: dict[str, LiveReader]

    def started(self, entry: Entry) -> None:
        self._live[entry.dir] = self._make(entry)
        self._inner.started(entry)

    def tick(self, running: Sequence[Entry], now: float) -> None:
        self._inner.tick(running, now)
        for entry in running:
            if entry.dir in self._live:
                self._live[entry.dir].read(entry, final=False)

    def usage(self, entry: Entry) -> Usage | None:
        return self._inner.usage(entry)

    def ended(self, entry: Entry) -> None:
        follower = self._live.pop(entry.dir, None) or self._make(entry)
        follower.read(entry, final=True)
        self._inner.ended(entry)

    def flush(self) -> None:
        self._inner.flush()


class RunOutput:
    """Reads the output of one attempt: the parsed log, and metrics in files of the program or by `assay.log`."""

    def __init__(self) -> None:
        self._log: Tail | None = None
        self._open: dict[str, Follower] = {}
        self._stored = Summaries()

    def read_log(self, entry: Entry) -> bytes:
        """Return the bytes of the log that were not read before."""
        log = self._log = self._log or Tail(find_log(entry))
        return b"".join(iter(lambda: log.read(READ_BYTES), b""))

    def read_metrics(self, entry: Entry, final: bool, values: Values) -> None:
        """Add the new values of the metric files to `values`; `read_log` reads the log."""

        def add(_key: str, columns: Columns) -> None:
            for metric, (steps, numbers, _) in columns.items():
                for step, number in zip(steps, numbers, strict=True):
                    values.add_filed(metric, float(step), float(number))

        files = tuple(each for each in entry.spec.patterns if isinstance(each, MetricFile))
        for source in find_sources(entry.dir, replace(entry.spec, patterns=files)):
            if source.name not in self._open:
                self._open[source.name] = Follower(self._stored, "", entry.dir, source, add)
        for follower in self._open.values():
            follower.read(self._stored, final)


class SegmentFollower:
    """Collects all values of one run of a segment."""

    def __init__(self, test: GoldenTest, last_step: int | None = None) -> None:
        """`last_step`: the segment's last step; None: the segment has the file's length, from the run's first step."""
        self._test, self._last_step = test, last_step
        reader = LogReader(test.step, test.metrics, named_groups=not test.same_line)
        self._recorder = RunRecorder(reader, test.same_line, self._find_last_step)
        self._recorder.values.counts = test.step is None
        self._files = RunOutput()

    @property
    def values(self) -> Values:
        return self._recorder.values

    def find_end(self) -> str | None:
        """Return why a program without an option for its length can be ended: its segment is complete, or its log is
        not usable. Such a program does not end by itself."""
        values, end = self.values, self._find_last_step(self.values)
        if self._test.has_length:
            return None
        if values.problems:
            return values.problems[0]
        if end is not None and values.is_past(end):
            return "its segment is complete"
        return "its log has no step" if values.without_step > self._test.steps_to_record else None

    def _find_last_step(self, values: Values) -> int | None:
        """Return the segment's last step; None if the program takes its length, or if no step is known yet."""
        if self._test.has_length or self._last_step is not None:
            return None if self._test.has_length else self._last_step
        return values.find_end(self._test.steps_to_record)

    def read(self, entry: Entry, final: bool) -> None:
        self._recorder.feed(self._files.read_log(entry))
        if final:
            self._recorder.finish()
        if not self._test.same_line:
            self._files.read_metrics(entry, final, self.values)


def describe_end(entry: Entry) -> str:
    """Describe why a run that is not done ended, with the last line of its output."""
    reason = (entry.outcome.reason if entry.outcome else "") or f"it is {entry.state}"
    errors = [entry.spec.other_log_name] if entry.spec.log_stream == "stdout" else []
    for template in (*errors, entry.spec.log_name):  # the last line on stderr, or of the only log
        lines = [line.strip() for line in read_end(find_log(entry, template), _TAIL_BYTES).split("\n") if line.strip()]
        if lines:
            return f"{reason}; its last line of output: {lines[-1][-300:]}"
    return reason


def find_log(entry: Entry, template: str = "") -> str:
    """Return the path of the log that is parsed, or of the log that `template` names."""
    name = layout.log_name(template or entry.spec.log_name, COMMAND, max(1, entry.attempt), "")
    return os.path.join(entry.dir, name)


def load_log(entry: Entry) -> bytes:
    try:
        with open(find_log(entry), "rb") as file:
            return file.read(_LOG_BYTES)
    except OSError:
        return b""


def find_unread(test: GoldenTest, data: bytes) -> dict[str, str]:
    """Return patterns that match no line of a log, and metrics that no line has with the step: name → reason."""
    text = data.decode("utf-8", "replace").replace("\r", "\n")
    found = {pattern.metric: NO_LINE for pattern in test.patterns if not count_lines(pattern, text)}
    if test.same_line:
        values = read_values(test, data)
        unread = [each.metric for each in test.metrics if not values.steps_of(each.metric)]
        found |= {metric: NO_STEP_LINE for metric in unread if metric not in found}
    return found


def read_values(test: GoldenTest, data: bytes) -> Values:
    """Return the values of a whole log."""
    recorder = RunRecorder(LogReader(test.step, test.metrics, named_groups=not test.same_line), test.same_line)
    recorder.feed(data)
    recorder.finish()
    return recorder.values


def count_lines(pattern: Pattern, text: str) -> int:
    regex = re.compile(pattern.regex)
    return sum(regex.search(line) is not None for line in text.split("\n"))
