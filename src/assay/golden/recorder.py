"""Recordings from a training's log: steps, saved checkpoints and metrics, line by line and without loss.

The texts of the numbers are kept as they were logged. A pattern that reads only a part of a number (`[\\d.]+` on
`9.0e-04`, or on `nan`) is extended: the whole number in the log is compared, not only the matched part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from assay.golden.values import Track
from assay.observe.columns import parse_number
from assay.observe.extract import find_grouped
from assay.system.fast_dataclasses import dataclass, field
from assay.values.series import NUMBER
from assay.values.study import Pattern

LINE_LIMIT_BYTES = 1 << 20
_NUMBER = re.compile(NUMBER)
_NOT_FINITE = re.compile(r"(?<![\w.])[-+]?(?:nan|inf(?:inity)?)(?![\w.])", re.IGNORECASE)
_END = re.compile(rb"[\r\n]+")
STEP_GROUP = "step"  # the group of the step in a pattern for saved checkpoints


class Logged(NamedTuple):
    """One number of one line; `value` is None if the pattern matched something that is not a number."""

    metric: str
    label: str
    text: str
    value: float | None
    step: int | None = None  # the value's own step, if no pattern reads steps


class Saved(NamedTuple):
    """A checkpoint as the log names it; `rest` is the remainder of the line."""

    path: str
    rest: str
    step: int | None


class LogLine(NamedTuple):
    step: int | None  # the step that this line states
    values: tuple[Logged, ...]
    saved: Saved | None
    bad_step: str | None = None  # a step that is not a whole number


class LogReader:
    """Parses the bytes of a growing log into the lines that match a pattern."""

    def __init__(
        self, step: Pattern | None, metrics: Sequence[Pattern], save: Pattern | None = None, named_groups: bool = False
    ) -> None:
        """`step` None: the n-th value of a metric has step n. `named_groups`: groups with names are metrics."""
        self._step = re.compile(step.regex) if step else None
        self._counts: dict[tuple[str, str], int] = {}  # values so far by metric and label, if no pattern reads steps
        self._save = re.compile(save.regex) if save else None
        self._metrics = [_Metric(pattern, named_groups) for pattern in metrics]
        self._tail = b""

    def feed(self, chunk: bytes) -> list[LogLine]:
        *lines, self._tail = _END.split(self._tail + chunk)
        if len(self._tail) > LINE_LIMIT_BYTES:
            lines, self._tail = [*lines, self._tail], b""
        return [found for line in lines if (found := self._read(line)) is not None]

    def finish(self) -> list[LogLine]:
        """Read a last line without a line end."""
        return self.feed(b"\n") if self._tail else []

    def _read(self, raw: bytes) -> LogLine | None:
        line = raw.decode("utf-8", "surrogateescape")
        match, step, bad_step = self._step.search(line) if self._step else None, None, None
        if match is not None:
            group = min(match.re.groups, 1)
            text = find_grouped(match, group) or match[group]
            step = parse_step(text)
            bad_step = str(text) if step is None else None
        values = tuple(logged for metric in self._metrics for logged in metric.read(line))
        if self._step is None:
            step, values = self._count(values)
        saved = self._read_save(line)
        return LogLine(step, values, saved, bad_step) if match or values or saved else None

    def _count(self, values: Sequence[Logged]) -> tuple[int | None, tuple[Logged, ...]]:
        """Number the values of each metric as steps; return the line's step, if it is a new maximum, and the values."""
        last, counted = max(self._counts.values(), default=0), list[Logged]()
        for logged in values:
            name = logged.metric, logged.label
            self._counts[name] = self._counts.get(name, 0) + 1
            counted.append(logged._replace(step=self._counts[name]))
        now = max(self._counts.values(), default=0)
        return now if now > last else None, tuple(counted)

    def _read_save(self, line: str) -> Saved | None:
        if (match := self._save.search(line) if self._save else None) is None:
            return None
        group = match.re.groupindex.get(STEP_GROUP)
        number = next((n for n in range(1, match.re.groups + 1) if n != group), 0)
        step = parse_step(find_grouped(match, group) or match[group]) if group else None
        return Saved(match[number] or "", line[match.end(number) :], step)


def parse_step(text: str | None) -> int | None:
    """Parse a whole number such as `5`, `0005` or `5.0`; return None for any other text."""
    value = parse_number(text) if text else None
    if value is None or value != value or value in (float("inf"), float("-inf")) or value != int(value):  # noqa: PLR0124 nan
        return None
    return int(text) if text and text.strip().lstrip("+-").isdigit() else int(value)


class _Metric:
    def __init__(self, pattern: Pattern, named_groups: bool) -> None:
        self.regex = re.compile(pattern.regex)
        names = self.regex.groupindex if named_groups else {}
        labels = [(group, pattern.metric, label) for group, label in _label_groups(pattern, self.regex)]
        self.groups = [(group, name, "") for name, group in names.items()] or labels

    def read(self, line: str) -> Iterator[Logged]:
        match = self.regex.search(line)
        if match is None:  # try again with zeros of equal width instead of nan or inf
            plain = _NOT_FINITE.sub(lambda found: "0" * len(found[0]), line)
            match = self.regex.search(plain) if plain != line else None
        if match is None:
            return
        for group, metric, label in self.groups:
            if match[group] is not None:
                text = find_grouped(match, group) or _whole_number(line, match.start(group), match.end(group))
                yield Logged(metric, label, text, parse_number(text))


def _label_groups(pattern: Pattern, regex: re.Pattern[str]) -> list[tuple[int, str]]:
    """Pair groups with labels, or with numbers if the labels do not fit; a metric with one group has no label."""
    count = regex.groups
    if count <= 1 and (len(pattern.labels) != 1 or pattern.labels == ("0",)):
        return [(count, "")]
    labels = pattern.labels if len(pattern.labels) == count else tuple(str(number) for number in range(count))
    return [(number + 1, label) for number, label in enumerate(labels)]


def _whole_number(line: str, start: int, end: int) -> str:
    """Return the whole number that contains the matched part."""
    text = line[start:end]
    if start and line[start - 1] in "+-" and text[:1] not in "+-" and (start < 2 or not line[start - 2].isalnum()):
        start -= 1
    whole = _NUMBER.match(line, start)
    return whole[0] if whole and whole.end() >= end and whole.start() <= start else text


@dataclass(slots=True)
class Values:
    """The numbers of one stretch of a log, by metric and label, in the order of their steps."""

    found: dict[tuple[str, str], dict[int, tuple[float, str]]] = field(default_factory=dict)
    noted: list[str] = field(default_factory=list)
    # metric → descriptions of its values that are not numbers
    unread: dict[str, list[str]] = field(default_factory=dict)
    last_step: int | None = None
    first_step: int | None = None
    file_steps: tuple[int, int] | None = None  # the first and the last step in the metric files
    without_step: int = 0  # number of values that the log has before the first step
    is_disordered: bool = False  # a step came back, so that some values are logged twice
    between: dict[str, float] = field(default_factory=dict)  # metric of the files → its first step that is not whole
    counts: bool = False  # whether the n-th value of a metric file gets step n if it has no step

    def step(self, step: int) -> None:
        if self.last_step is not None and step < self.last_step:
            self.note(f"step {step} is logged after step {self.last_step}: out of order")
            self.is_disordered = True
        self.last_step = step
        self.first_step = step if self.first_step is None else self.first_step

    def add(self, step: int, logged: Logged) -> None:
        name = f"{logged.metric} {logged.label}".strip()
        if logged.value is None:
            self.unread.setdefault(name, []).append(f"at step {step} is {logged.text!r}")
            return
        track = self.found.setdefault((logged.metric, logged.label), {})
        if step in track and track[step][1] != logged.text:
            if not self.is_disordered:
                self.note(f"{name} at step {step} is logged twice: {track[step][1]} and {logged.text}")
            return
        track[step] = (logged.value, logged.text)

    def add_filed(self, metric: str, step: float, value: float) -> None:
        """Add a value of a metric file; leave it out if values are not counted and its step is not whole."""
        if self.counts and math.isnan(step):
            step = len(self.found.get((metric, ""), ())) + 1
        if math.isfinite(step) and step == int(step):
            first, last = self.file_steps or (int(step), int(step))
            self.file_steps = min(first, int(step)), max(last, int(step))
            self.add(int(step), Logged(metric, "", repr(value), value))
        else:
            self.between.setdefault(metric, step)

    def note(self, problem: str) -> None:
        if problem not in self.noted and len(self.noted) < 50:
            self.noted.append(problem)

    @property
    def problems(self) -> list[str]:
        """List problems; a metric's values that are not numbers are one problem, with first values and a count."""
        found = [(f"{name} {', '.join(each[:3])}, not a number", len(each)) for name, each in self.unread.items()]
        return [*self.noted, *(f"{text} ({count} such values)" if count > 1 else text for text, count in found)]

    def find_partial(self, metrics: Iterable[str]) -> list[str]:
        """List metrics of the metric files without a single whole number as a step."""
        lost = [metric for metric in metrics if metric in self.between and not self.steps_of(metric)]
        return [f"{metric}: the step {self.between[metric]:g} is not a whole number" for metric in lost]

    def steps_of(self, metric: str) -> set[int]:
        return {step for (name, _), track in self.found.items() if name == metric for step in track}

    @property
    def steps(self) -> set[int]:
        """The steps with a value of any metric."""
        return {step for track in self.found.values() for step in track}

    def find_end(self, length: int) -> int | None:
        """Return the last of `length` steps, from the first step of the log or, without one, of the metric files."""
        first = self.file_steps[0] if self.first_step is None and self.file_steps else self.first_step
        return None if first is None else first + length - 1

    def reaches(self, end: int) -> bool:
        """Whether the next step would be after `end`, at the shortest interval so far."""
        steps = sorted(self.steps | {step for step in (self.first_step, self.last_step) if step is not None})
        return bool(steps) and steps[-1] + min((b - a for a, b in pairwise(steps)), default=1) > end

    def is_past(self, step: int) -> bool:
        """Whether the log and the metric files are beyond `step`; a source without steps is ignored."""
        files = self.file_steps[1] if self.file_steps else None
        reached = [each for each in (self.last_step, files) if each is not None]
        return bool(reached) and min(reached) > step

    def cut(self, metric: str, label: str, steps: Iterable[int] | None = None) -> Track:
        """Return the values at the steps in `steps`, as far as they exist, or at all steps if `steps` is None."""
        found = self.found.get((metric, label), {})
        kept = [step for step in (sorted(found) if steps is None else steps) if step in found]
        return Track(tuple(kept), tuple(found[step][0] for step in kept), tuple(found[step][1] for step in kept))


class RunRecorder:
    """Records the values of a run from its first line to its last, or to the first step after its segment. A run that
    is ended logs more steps until it has stopped; these steps are ignored."""

    def __init__(
        self, reader: LogReader, same_line: bool, find_end: Callable[[Values], int | None] = lambda _values: None
    ) -> None:
        """`find_end`: the last step of the segment, as soon as it is known."""
        self._reader = reader
        self._same_line = same_line
        self._find_end = find_end
        self.values = Values()

    def feed(self, chunk: bytes) -> None:
        self._take(self._reader.feed(chunk))

    def finish(self) -> None:
        self._take(self._reader.finish())

    def _take(self, lines: Sequence[LogLine]) -> None:
        for line in lines:
            end, last = self._find_end(self.values), self.values.last_step
            if end is not None and last is not None and last > end:
                return
            if line.bad_step is not None:
                self.values.note(f"the step {line.bad_step!r} is not a whole number")
            if line.step is not None:
                self.values.step(line.step)
            if (step := line.step if self._same_line else self.values.last_step) is not None:
                for logged in line.values:
                    self.values.add(step if logged.step is None else logged.step, logged)
            else:
                self.values.without_step += len(line.values)


@dataclass(slots=True)
class SegmentRecording:
    """The values after a saved checkpoint, for the requested number of steps."""

    saved: Saved
    start_step: int
    length: int
    limit: int | None = None  # the last step of the recording; None until the first step is known
    values: Values = field(default_factory=Values)
    is_over: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.values.found


class TrainingRecorder:
    """Cuts the log of a training into recordings. A recording begins at a save line and holds the steps up to its start
    plus its length; steps are counted, not log lines. A save line ends the recordings before it. If nothing was
    logged before the first save, the recording begins at the first logged step, whether that is 0 or 1."""

    def __init__(self, reader: LogReader, length: int, same_line: bool) -> None:
        self._reader = reader
        self._length = length
        self._same_line = same_line
        self.last_step: int | None = None
        self.recordings: list[SegmentRecording] = []
        self.warnings: list[str] = []
        self.disorder: list[str] = []  # steps out of order after the first save, which make segments ambiguous
        self.saves = 0
        self.steps = 0

    def feed(self, chunk: bytes) -> bool:
        """Read more bytes; return True if they filled a recording."""
        return self._take(self._reader.feed(chunk))

    def finish(self) -> None:
        """End the log, and close incomplete recordings as they are."""
        self._take(self._reader.finish())
        for recording in self._open():
            self._close(recording, "the training ended")

    def describe_last_save(self) -> str | None:
        """Return a warning if the training ends with a save, as most trainings do."""
        last = self.recordings[-1] if self.recordings else None
        return _describe_empty(last) if last is not None and last.values.first_step is None else None

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def _open(self) -> list[SegmentRecording]:
        return [recording for recording in self.recordings if not recording.is_over]

    def _take(self, lines: Sequence[LogLine]) -> bool:
        filled = False
        for line in lines:
            if line.bad_step is not None:
                self.warn(f"the step {line.bad_step!r} is not a whole number")
            if line.step is not None:
                filled |= self._enter(line.step)
            self._record(line)
            if line.saved is not None:
                self._begin(line.saved)
        return filled

    def _enter(self, step: int) -> bool:
        """Handle a step, which may begin a recording or be after its end; return True if a recording is complete."""
        if self.recordings and self.last_step is not None and step < self.last_step:
            self.disorder.append(f"step {step} is logged after step {self.last_step}: out of order")
        self.steps += 1
        filled = False
        for recording in self._open():
            if recording.limit is None:
                recording.limit = step + self._length - 1
            elif step <= recording.start_step and recording.values.last_step is None:
                if step < recording.start_step:
                    recording.values.note(f"step {step} is logged after the checkpoint of step {recording.start_step}")
                continue
            if step > recording.limit:
                recording.is_over = filled = True
            else:
                recording.values.step(step)
        self.last_step = step
        return filled

    def _record(self, line: LogLine) -> None:
        if (step := line.step if self._same_line else self.last_step) is None:
            return
        for recording in self._open():
            if recording.values.last_step is not None:  # lines between the save and the next step are not recorded
                for logged in line.values:
                    recording.values.add(step, logged)

    def _begin(self, saved: Saved) -> None:
        self.saves += 1
        start = saved.step if saved.step is not None else self.last_step or 0
        for recording in self._open():
            if recording.values.last_step is None and recording.start_step == start:
                if recording.saved.path == saved.path:
                    return self.warn(f"the checkpoint {saved.path} of step {start} is announced twice")
                continue  # two checkpoints of one step: both are followed
            self._close(recording, "the next checkpoint was saved")
        limit = None if self.last_step is None else start + self._length
        self.recordings.append(SegmentRecording(saved, start, self._length, limit))
        return None

    def _close(self, recording: SegmentRecording, why: str) -> None:
        recording.is_over = True
        start, last = recording.start_step, recording.values.last_step
        if recording.is_empty:
            self.warn(_describe_empty(recording))
        elif recording.limit is None or not recording.values.reaches(recording.limit):
            short = f"before its {self._length} steps were complete"
            self.warn(f"the recording of step {start} ends at step {last}, {short}: {why}")


def _describe_empty(recording: SegmentRecording) -> str:
    return f"nothing was logged after the checkpoint of step {recording.start_step}: it is left out"
