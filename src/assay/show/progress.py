"""Shows the progress of a study: a live view on a terminal, elsewhere one line per event."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TextIO

from assay.show import formatting
from assay.show.table import drop_columns, fit_columns, render_table
from assay.system import terminal
from assay.system.fast_dataclasses import dataclass, field
from assay.values.table import Column, Table

_HEARTBEAT_S = 30.0
_REFRESH_S = 0.1
_BAR = 40
_MESSAGES = 3
_LINES_AROUND = 6  # the lines for the bar, counts, names of the columns, "and more", and the prompt
_LOUD_FAILURES = 20  # failures that are printed one by one; further failures are only in the report
_WELL = frozenset({"done", "pruned"})
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_ERASE_LINE, _ERASE_LINE_ABOVE = "\r\x1b[2K", "\x1b[1A\x1b[2K"
_USUAL_SIZE = os.terminal_size((80, 25))  # the size of a terminal that does not report it


@dataclass(frozen=True, slots=True)
class RunningRow:
    name: str
    slot: str | None
    elapsed_s: float
    attempt: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)  # the last value of each metric
    step: float | None = None
    was_found: bool = False  # the run was running before this command began
    is_waiting: bool = False  # the run is in the queue of a farm
    begins: str = ""  # where a later attempt begins, such as "continues from step 4,200"


@dataclass(frozen=True, slots=True)
class EndedRow:
    """A run that ended since the last update; `state` is the name of a State."""

    name: str
    state: str
    elapsed_s: float | None = None
    reason: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BestRow:
    """The best run so far; `value` includes the metric's name."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ProgressView:
    """The state of a study at one time. Counts are counts of runs; `failed` includes time-outs and lost runs."""

    study: str
    total: int
    done: int = 0
    failed: int = 0
    timed_out: int = 0  # runs of `failed` that timed out
    lost: int = 0  # runs of `failed` that were lost
    stopped: int = 0
    pruned: int = 0  # runs that a rule ended
    running: tuple[RunningRow, ...] = ()
    step_name: str = "step"  # the unit in which runs count
    queued: int = 0
    eta_s: float | None = None
    elapsed_s: float = 0.0
    kept: int = 0  # runs of `done` that finished before this command began
    ended: tuple[EndedRow, ...] = ()  # runs that ended since the last update
    news: tuple[RunningRow | EndedRow, ...] = ()  # runs that ended or started since the last update, in order
    best: BestRow | None = None  # the best run so far
    is_new_best: bool = False  # the best run has changed since the last update
    messages: tuple[str, ...] = ()  # lasting notices, such as the reason to wait

    @property
    def finished(self) -> int:
        return self.done + self.failed + self.stopped + self.pruned


def estimate_eta(
    durations_s: Sequence[float], running_elapsed_s: Sequence[float], queued: int, slots: int
) -> float | None:
    """Return the seconds until the last run ends, if the rest takes as long as finished runs; None if none finished."""
    if not queued and not running_elapsed_s:
        return 0.0
    if not durations_s:
        return None
    mean = sum(durations_s) / len(durations_s)
    busy = [_remaining(elapsed, mean, durations_s) for elapsed in running_elapsed_s]
    free = [0.0] * max(0, slots - len(busy))
    ends = busy + free or [0.0]
    # rounds that fill all slots need no simulation: each takes one run per slot, and a mean duration
    rounds = max(0, queued // len(ends) - 1)
    heapq.heapify(ends)
    for _ in range(queued - rounds * len(ends)):
        heapq.heapreplace(ends, ends[0] + mean)
    return max([max(ends) + rounds * mean, *busy])


def _remaining(elapsed: float, mean: float, durations_s: Sequence[float]) -> float:
    """Return a run's remaining time. A run that takes longer than the mean is compared with runs that took longer."""
    if elapsed <= mean:
        return mean - elapsed
    longer = [duration - elapsed for duration in durations_s if duration > elapsed]
    return sum(longer) / len(longer) if longer else 0.1 * elapsed


Segment = tuple[str, str]  # text, style ("": no style)


def render_frame(view: ProgressView, width: int, height: int, *, plain: bool = False) -> list[list[Segment]]:
    """Render the live view as lines of styled pieces; their number never exceeds the rows of the terminal."""
    counts = [segment for each in _build_counts(view) for segment in (each, ("  ", ""))][:-1]
    share = f" {view.finished}/{view.total}"
    percent = f"  {100 * view.finished // view.total}%" if view.total else ""
    left = f"  about {formatting.render_duration(view.eta_s)} left" if view.eta_s else ""
    room = width - len(share) - len(percent) - len(left) - 2
    study = formatting.shorten(formatting.clean(view.study), max(8, room // 2), "~" if plain else "…")
    bar = max(4, min(_BAR, room - formatting.display_width(study)))
    head = [(study, "bold"), ("  ", ""), *_fill_bar(view, bar, plain), (share, "bold"), (percent, ""), (left, "cyan")]
    lines = [head, counts]
    lines += [[(render_best(view.best, width, plain), "")]] if view.best else []
    room = max(1, height - _LINES_AROUND - (view.best is not None) - min(_MESSAGES, len(view.messages)))
    shown = view.running[:room]
    lines += _render_running(shown, view.step_name, width, plain)
    if len(view.running) > len(shown):
        lines.append([(f"  and {len(view.running) - len(shown)} more running", "dim")])
    lines += [[(formatting.shorten(formatting.clean(text), width), "yellow")] for text in view.messages[-_MESSAGES:]]
    return [_cut(line, width) for line in lines]


def _fill_bar(view: ProgressView, width: int, plain: bool) -> Iterator[Segment]:
    """Draw the fractions of done, pruned, failed, stopped and running runs; each is at least one character wide."""
    full, empty = ("#", ".") if plain else ("━", "─")
    parts = (
        (view.done, "green"),
        (view.pruned, "blue"),
        (view.failed, "red"),
        (view.stopped, "yellow"),
        (len(view.running), "cyan"),
    )
    used = 0
    for count, style in parts:
        cells = min(width - used, max(count > 0, round(width * count / view.total) if view.total else 0))
        used += cells
        yield (full if style != "cyan" else ("=" if plain else "╍")) * cells, style
    yield empty * (width - used), "dim"


def _build_counts(view: ProgressView) -> list[Segment]:
    counts = (
        (view.done, "done", "green"),
        (view.pruned, "pruned", "blue"),
        (view.failed - view.timed_out - view.lost, "failed", "bold red"),
        (view.timed_out, "timed out", "bold red"),
        (view.lost, "lost", "bold red"),
        (view.stopped, "stopped", "yellow"),
        (len(view.running), "running", "cyan"),
        (view.queued, "queued", "dim"),
    )
    pieces = [(f"{count} {name}", style) for count, name, style in counts if count or name in ("done", "running")]
    if view.kept:
        pieces[0] = (f"{view.done} done ({view.kept} earlier)", "green")
    return [*pieces, (formatting.render_clock(view.elapsed_s), "")]


def _render_running(rows: Sequence[RunningRow], step_name: str, width: int, plain: bool) -> list[list[Segment]]:
    """Render running runs. Names are cut, but stay readable, so that numbers fit; metrics without room are dropped."""
    if not rows:
        return []
    metrics = dict.fromkeys(name for row in rows for name in row.metrics)
    columns = [Column("run"), Column("slot", align="right", cut="never"), Column("attempt", "number")]
    columns += [Column("time", "clock"), Column(step_name, "number", digits=12)]
    columns += [Column(name, "number", rank=rank) for rank, name in enumerate(metrics, 1)]
    cells = [
        (row.name, row.slot or "", row.attempt, row.elapsed_s, row.step, *map(row.metrics.get, metrics)) for row in rows
    ]
    empty = {2: all(row.attempt == 1 for row in rows), 4: all(row.step is None for row in rows)}
    table = drop_columns(Table(tuple(columns), cells), {index for index, is_empty in empty.items() if is_empty})
    fitting, _ = fit_columns(table, width - 2)
    head, _, *lines = render_table(fitting, width=width - 2, plain=plain).splitlines()
    return [[(f"  {head}", "dim")], *([(f"  {line}", "")] for line in lines)]


def _cut(line: list[Segment], width: int) -> list[Segment]:
    """Cut a line to the width: a wrapped line would break the view."""
    kept: list[Segment] = []
    room = width
    for text, style in line:
        shown = text if formatting.display_width(text) <= room else formatting.shorten(text, room)
        kept.append((shown, style))
        room -= formatting.display_width(shown)
    return kept


def render_heartbeat(view: ProgressView) -> str:
    counts = ", ".join(text for text, _ in _build_counts(view))
    left = f", about {formatting.render_duration(view.eta_s)} left" if view.eta_s else ""
    return f"{formatting.clean(view.study)}: {view.finished}/{view.total} finished: {counts}{left}"


def render_ended(row: EndedRow) -> str:
    took = "" if row.elapsed_s is None else f" after {formatting.render_duration(row.elapsed_s)}"
    reason = f": {formatting.clean(row.reason)}" if row.reason else ""
    if row.state == "done":
        metrics = "".join(
            f"  {formatting.clean(name)} {formatting.render_number(value)}" for name, value in row.metrics.items()
        )
        return f"finished {formatting.clean(row.name)}{took}{metrics}{reason}"
    return f"{row.state:8} {formatting.clean(row.name)}{took}{reason}"


def render_started(row: RunningRow) -> str:
    slot = f"  slot {row.slot}" if row.slot else ""
    begins = f", {formatting.clean(row.begins)}" if row.begins else ""
    attempt = f"  attempt {row.attempt}{begins}" if row.attempt > 1 else ""
    return f"{'submitted' if row.is_waiting else 'started '} {formatting.clean(row.name)}{slot}{attempt}"


def render_best(row: BestRow, width: int | None = None, plain: bool = False) -> str:
    """Render the best run in one line; if the line is too long, the name is shortened, not the value."""
    head, name, value = "best of this call: ", formatting.clean(row.name), formatting.clean(row.value)
    if width is not None:
        name = formatting.shorten(name, max(8, width - len(f"{head} {value}")), "~" if plain else "…")
    return f"{head}{name} {value}"


class Progress:
    """The interface for showing a study's progress. This class shows nothing, and is used for `--quiet`."""

    def update(self, view: ProgressView) -> None:
        """Update the view. `view.ended` must contain each ended run in exactly one call."""

    def message(self, text: str) -> None:
        """Show a text once, above the view."""

    def finish(self, view: ProgressView) -> None:
        """Show the last state and restore the terminal for the report. May be called again."""


class PlainProgress(Progress):
    """Prints one line per event and regular heartbeats, for files, pipes and continuous integration."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._beat_at = clock() + _HEARTBEAT_S
        self._running: set[tuple[str, int]] = set()
        self._notices: set[str] = set()  # lasting notices that have been printed
        self._finished = False

    def update(self, view: ProgressView) -> None:
        lines = self._render_news(view)
        new = [row for row in view.running if not row.was_found and (row.name, row.attempt) not in self._running]
        lines += map(render_started, new)
        lines += [formatting.clean(text) for text in view.messages if text not in self._notices]
        self._notices.update(view.messages)
        self._running = {(row.name, row.attempt) for row in view.running}
        if self._clock() >= self._beat_at:
            self._beat_at = self._clock() + _HEARTBEAT_S
            lines.append(render_heartbeat(view))
        if lines:
            _write(self._stream, "\n".join(lines) + "\n")

    def _render_news(self, view: ProgressView) -> list[str]:
        """Render the events since the last update; a start is printed once, even if the run is still listed later."""
        news = view.news or view.ended
        begun = [row for row in news if isinstance(row, RunningRow) and not row.is_waiting]
        self._running |= {(row.name, row.attempt) for row in begun}
        lines = [render_started(row) if isinstance(row, RunningRow) else render_ended(row) for row in news]
        return [*lines, render_best(view.best)] if view.best and view.is_new_best else lines

    def message(self, text: str) -> None:
        _write(self._stream, "\n".join(map(formatting.clean, text.splitlines())) + "\n")

    def finish(self, view: ProgressView) -> None:
        if self._finished:
            return
        self._finished = True
        _write(self._stream, "".join(f"{line}\n" for line in self._render_news(view)))


class LiveProgress(Progress):
    """Shows the study in the last lines of the terminal; failures and messages are printed above these lines."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = formatting.unguard(stream)
        self._plain = not terminal.can_encode(stream, "━╍…")
        self._has_color = terminal.use_color(stream)
        self._clock = clock
        self._drawn_at = -_REFRESH_S
        self._failures = 0
        self._frame: list[str] = []  # the lines of the view on the terminal
        self._is_finished = False
        _write(self._stream, _HIDE_CURSOR)

    def update(self, view: ProgressView) -> None:
        self._print_failures(view.ended)
        if self._clock() - self._drawn_at >= _REFRESH_S and not self._is_finished:
            size = terminal.terminal_size(self._stream) or _USUAL_SIZE
            frame = render_frame(view, size.columns - 1, size.lines, plain=self._plain)
            self._show((), ["".join(self._paint(*segment) for segment in line) for line in frame])
            self._drawn_at = self._clock()

    def message(self, text: str) -> None:
        self._show(map(formatting.clean, text.splitlines()), self._frame)

    def finish(self, view: ProgressView) -> None:
        if self._is_finished:
            return
        self._print_failures(view.ended)
        self._show([render_best(view.best)] if view.best else [], [])
        self._is_finished = True
        _write(self._stream, _SHOW_CURSOR)

    def _show(self, above: Iterable[str], frame: list[str]) -> None:
        """Replace the view, and print lines above it, which stay."""
        erase = _ERASE_LINE + _ERASE_LINE_ABOVE * (len(self._frame) - 1) if self._frame else ""
        _write(self._stream, erase + "".join(f"{line}\n" for line in above) + "\n".join(frame))
        self._frame = frame

    def _print_failures(self, ended: Sequence[EndedRow]) -> None:
        for row in ended:
            if row.state in _WELL:
                continue
            self._failures += 1
            if self._failures <= _LOUD_FAILURES:
                style = terminal.STATE_COLORS.get(row.state, "")
                self._show([self._paint(render_ended(row), style)], self._frame)
            elif self._failures == _LOUD_FAILURES + 1:
                self._show([self._paint("further failures are listed at the end", "dim")], self._frame)

    def _paint(self, text: str, style: str) -> str:
        return terminal.paint(text, style) if self._has_color else text


def _write(stream: TextIO, text: str) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def choose_progress(stream: TextIO, *, quiet: bool = False, plain: bool = False) -> Progress:
    """Choose a live view for a terminal; lines of events for a file, for CI, and if `plain`; nothing if `quiet`."""
    if quiet:
        return Progress()
    has_person = os.environ.get("TERM", "") not in ("", "dumb") and not os.environ.get("CI")
    return LiveProgress(stream) if terminal.is_terminal(stream) and has_person and not plain else PlainProgress(stream)
