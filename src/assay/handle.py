"""A study that `assay.run` has started: watch it, wait for it, read its runs."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from assay.errors import ExitCode, UsageError
from assay.follow.api import StudyLocation, open_index_of, show_command
from assay.reading import api as reading
from assay.runs import Run, Runs, build_table, count_states, runs
from assay.show.notebook import LiveView, find_kernel, render_runs
from assay.show.progress import EndedRow, PlainProgress, ProgressView, RunningRow, render_heartbeat
from assay.show.table import render_table
from assay.values import layout
from assay.values.state import State, has_result
from assay.values.where import parse_where

if TYPE_CHECKING:
    from subprocess import Popen
    from types import TracebackType
    from typing import IO, Self

    from assay.values.where import Where


class RunOutcome(NamedTuple):
    """How a study ended. A run that failed is a result, not an exception."""

    exit_code: int  # the exit code of `assay run`: 0 if every run is done and every check passes
    states: Mapping[str, str]  # name of the run -> state
    checks: tuple[str, ...]  # the lines about the study's checks
    messages: str  # other messages of the supervisor: warnings, and why it could not go on

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


_POLL_S = 0.25
_REDRAW_S = 1.0  # between two updates of a notebook's view
_GOING_ON = "not watched any longer; the runs go on (stop them: .stop(), wait for them: .wait())"


class Expected(NamedTuple):
    """What a call of `assay.run` will do, as far as this is known before the call."""

    names: frozenset[str] | None = None  # names of the call's runs; None: unknown until the runs are planned
    repeated: frozenset[State] = frozenset()  # runs in these states are run again
    retries: int = 0  # how often a run that fails is repeated


class StudyHandle:
    """A study that `assay.run` has started. A `with` block waits for the runs at its end, or stops them after an error.

    An iteration yields each run as it finishes, and ends with the study.
    """

    name: str
    root: str

    def __init__(self, name: str, root: str, words: Sequence[str], expected: Expected | None = None) -> None:
        import tempfile

        self.name = name
        self.root = root
        self._expected = expected or Expected()
        self._began_at = time.time()
        self._outcome: RunOutcome | None = None
        meta = os.path.join(self.dir, layout.STUDY_META_DIR)
        os.makedirs(meta, exist_ok=True)
        self._answer: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 open until the outcome is read
        self._log = os.path.join(meta, layout.SUPERVISOR_LOG)
        with open(self._log, "ab") as log:
            self._log_begin = log.tell()
            self._process = _start_supervisor(words, self._answer, log)
        _unfinished.add(self)

    @property
    def dir(self) -> str:
        """The study's folder."""
        return os.path.join(self.root, self.name)

    @property
    def is_running(self) -> bool:
        """Whether the study's supervisor is still running."""
        return self._process.poll() is None

    @property
    def runs(self) -> Runs:
        """All runs of the study as they are now."""
        return runs(self.dir, self.root)

    def __iter__(self) -> Iterator[Run]:
        """Yield each run of this call once, in the order of their ends; runs that are finished already come first.

        Ctrl-C ends the loop, and the runs go on.
        """
        try:
            for news, _ in self._poll(_POLL_S):
                yield from news
        except KeyboardInterrupt:
            print(f"{self.name}: {_GOING_ON}", file=sys.stderr)
            raise

    def _poll(self, interval_s: float) -> Iterator[tuple[list[Run], list[Run]]]:
        """Until the study ends, yield the runs of this call that have finished since the last time, oldest first, and
        all runs of this call."""
        from subprocess import TimeoutExpired

        seen: set[str] = set()
        while True:
            is_running, began = self.is_running, time.monotonic()
            known = [run for run in self.runs if self._expected.names is None or run.name in self._expected.names]
            news = [run for run in known if run.name not in seen and self._is_finished(run, is_running)]
            seen.update(run.name for run in news)
            yield sorted(news, key=lambda run: run.ended_at or 0.0), known
            if not is_running:
                return
            try:  # a large study takes long to read: the wait is several times as long
                self._process.wait(max(interval_s, 4 * (time.monotonic() - began)))
            except TimeoutExpired:
                continue

    def _is_finished(self, run: Run, is_running: bool) -> bool:
        """Whether a run is finished: an old run that is run again is not, nor a failed one that is repeated."""
        state = State(run.state)
        if not state.is_over or (state in self._expected.repeated and (run.ended_at or 0.0) < self._began_at):
            return False
        is_failure = state in (State.FAILED, State.TIMEOUT, State.LOST)
        return not (is_running and is_failure and run.attempt <= self._expected.retries)

    def best(self, metric: str | None = None, *, where: str | None = None) -> Run:
        """Return the run that `assay best` prints: the run with the best value of the metric among those done.

        `metric`: a name, or `loss:min`; by default the first objective of the search, else the metric that tables
        sort by. `runs.pareto()` returns the Pareto set of several objectives.
        """
        locations = [StudyLocation(self.root, self.name)]
        with open_index_of(locations) as index:
            data = reading.load_fresh_table(index, locations)
        keep = reading.leave_out_foreign(data, reading.select_rows(data, parse_where_text(where))) if data.rows else []
        if not any(has_result(data.rows[i].state, data.rows[i].cause) for i in keep):
            states = [str(data.rows[i].state) for i in keep]
            counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
            hint = "call wait() first" if self.is_running else "their logs say why: for run in .runs: print(run.log())"
            raise UsageError(f"{self.name}: no run is done{f' ({counts})' if counts else ''}", hint)
        asked = metric or next(iter(reading.load_objectives(locations, data)), None)
        choice = reading.choose_best(data, keep, asked)
        if choice is None:
            what = f"a finite value of {asked}" if asked else "a metric"
            raise UsageError(f"{self.name}: no run that is done has {what}")
        return self.runs[data.rows[choice.best.run].name]

    def table(
        self,
        *,
        sort: Sequence[str] = (),
        metrics: Sequence[str] | None = None,
        best: bool = False,
        where: str | None = None,
        group_by: Sequence[str] = (),
    ) -> str:
        """Return the table that `assay sum` prints, as it is now; empty as long as there are no runs."""
        locations = [StudyLocation(self.root, self.name)]
        with open_index_of(locations) as index:
            if not reading.load_fresh_table(index, locations).rows:
                return ""
            options = reading.SummaryOptions(
                build_texts(sort),
                group_by=build_texts(group_by),
                metrics=None if metrics is None else build_texts(metrics),
                best=best,
                where=parse_where_text(where),
            )
            return render_table(reading.summarise(index, locations, options).table)

    def watch(self) -> None:
        """Show the study's progress until the study ends: below a notebook's cell, elsewhere as lines on stderr.

        Ctrl-C, or interrupting the cell, ends the watching; the runs go on.
        """
        try:
            if find_kernel():
                self._watch_in_notebook()
            else:
                self._watch_in_lines()
        except KeyboardInterrupt:
            print(f"{self.name}: {_GOING_ON}")

    def _watch_in_notebook(self) -> None:
        view: LiveView | None = None
        for _, known in self._poll(_REDRAW_S):
            html = self._render_html(known)
            if view is None:
                view = LiveView(html)
            else:
                view.update(html)

    def _watch_in_lines(self) -> None:
        progress, view = PlainProgress(sys.stderr), ProgressView(self.name, 0)
        for news, known in self._poll(_POLL_S):
            states = count_states(known)
            bad = {state: states.get(state, 0) for state in ("failed", "timeout", "lost", "damaged")}
            running = [run for run in known if run.state == State.RUNNING]
            view = ProgressView(
                self.name,
                total=max(len(self._expected.names or ()), len(known)),
                done=states.get("done", 0),
                failed=sum(bad.values()),
                timed_out=bad["timeout"],
                lost=bad["lost"],
                stopped=states.get("stopped", 0),
                pruned=states.get("pruned", 0),
                running=tuple(RunningRow(run.name, None, 0.0, run.attempt, run.metrics) for run in running),
                queued=self._count_queued(known),
                elapsed_s=time.time() - self._began_at,
                ended=tuple(EndedRow(run.name, run.state, run.seconds, run.reason, run.metrics) for run in news),
            )
            progress.update(view)
        progress.message(render_heartbeat(view))

    def _count_queued(self, known: Sequence[Run]) -> int:
        """Count the runs that wait, also those without a folder."""
        missing = len(self._expected.names - {run.name for run in known}) if self._expected.names else 0
        return missing + sum(run.state == State.QUEUED for run in known)

    def _repr_html_(self) -> str:
        """Return the current state for a notebook."""
        names = self._expected.names
        return self._render_html([run for run in self.runs if names is None or run.name in names])

    def _render_html(self, known: Sequence[Run]) -> str:
        states = {**count_states(known), "queued": self._count_queued(known)}
        heading = f"{self.name} ({'running' if self.is_running else 'finished'})"
        return render_runs(heading, build_table(known), {state: count for state, count in states.items() if count})

    def wait(self, timeout: float | None = None) -> RunOutcome:
        """Wait until every run has finished. After `timeout` seconds raise TimeoutError; the runs go on.

        Ctrl-C stops the runs, as it does on the command line, and raises KeyboardInterrupt.
        """
        from subprocess import TimeoutExpired

        try:
            self._process.wait(timeout)
        except TimeoutExpired:
            raise TimeoutError(f"study {self.name!r} has not finished within {timeout:g} s; it goes on") from None
        except KeyboardInterrupt:
            self.stop()
            raise
        if self._outcome is None:
            self._outcome = self._read_outcome()
            _unfinished.discard(self)
        return self._outcome

    def stop(self) -> RunOutcome:
        """Stop the runs and everything they started. `assay.run` with the same file continues the runs."""
        if self.is_running:
            self._process.terminate()
        self._process.wait()
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.wait()
        else:
            self.stop()

    def __repr__(self) -> str:
        state = "running" if self.is_running else "finished"
        return f"<study {self.name!r} in {self.root!r}, {state}>"

    def _read_outcome(self) -> RunOutcome:
        import json
        import signal

        with self._answer, open(self._log, encoding="utf-8", errors="replace") as log:
            self._answer.seek(0)
            answer = self._answer.read()
            log.seek(self._log_begin)
            messages = log.read()
        code = self._process.returncode
        if code == -signal.SIGTERM:  # the supervisor had not started anything: later it handles the signal
            code = int(ExitCode.INTERRUPTED)
        if code < 0:
            command = show_command(["ls"], StudyLocation(self.root, self.name))
            messages += f"the supervisor was ended by signal {-code}; its runs go on: {command}\n"
            return RunOutcome(int(ExitCode.INTERNAL), {run.name: run.state for run in self.runs}, (), messages)
        report = json.loads(answer) if answer else {"runs": [], "checks": []}
        states = {each["name"]: each["state"] for each in report["runs"]}
        return RunOutcome(code, states, tuple(report["checks"]), messages)


def build_texts(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return names as a tuple; a single name may be given without a list."""
    return (names,) if isinstance(names, str) else tuple(names or ())


def parse_where_text(text: str | None) -> Where | None:
    return None if text is None else parse_where(text)


_unfinished: set[StudyHandle] = set()  # handles whose process was not waited for: Python would warn about them


@atexit.register
def _leave_unfinished() -> None:
    for study in _unfinished:
        study._answer.close()  # noqa: SLF001 same module
        study._process.returncode = 0  # noqa: SLF001 the supervisor goes on


# The program `assay` of this installation; the current folder is not searched for modules.
_PROGRAM = "import sys; sys.path.append({!r}); sys.argv[0] = 'assay'; from assay.cli.main import main; main()"


def _start_supervisor(words: Sequence[str], answer: IO[bytes], log: IO[bytes]) -> Popen[bytes]:
    """Start a supervisor in a new session: keys and signals of this program's terminal do not reach it."""
    import subprocess

    source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    argv = [sys.executable, "-P", "-c", _PROGRAM.format(source), "run", "--json", "--quiet", *words]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=answer, stderr=log, start_new_session=True)
