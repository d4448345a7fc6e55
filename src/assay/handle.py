"""A study that `assay.run` has started: watch it, wait for it, read its runs."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from assay.runs import Runs, runs

if TYPE_CHECKING:
    from subprocess import Popen
    from types import TracebackType
    from typing import IO, Self


class RunOutcome(NamedTuple):
    """How a study ended. A run that failed is a result, not an exception."""

    exit_code: int  # what `assay run` ends with: 0 where every run is done and every check passes
    states: Mapping[str, str]  # by the name of the run
    checks: tuple[str, ...]  # the lines about the study's checks
    messages: str  # what else the supervisor reported: warnings, and why it could not go on

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


class StudyHandle:
    """A study that `assay.run` has started. As a context manager it waits at the end, or stops after an exception."""

    name: str
    root: str

    def __init__(self, name: str, root: str, words: Sequence[str]) -> None:
        import tempfile

        from assay.values import layout

        self.name = name
        self.root = root
        self._outcome: RunOutcome | None = None
        meta = os.path.join(self.dir, layout.STUDY_META_DIR)
        os.makedirs(meta, exist_ok=True)
        self._answer: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 until the outcome is read
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
        """Whether its supervisor still runs."""
        return self._process.poll() is None

    @property
    def runs(self) -> Runs:
        """All runs of the study as they are now."""
        return runs(self.dir, self.root)

    def table(self, *, sort: Sequence[str] = (), metrics: Sequence[str] | None = None, best: bool = False) -> str:
        """The table that `assay sum` prints, as it is now; empty as long as there are no runs."""
        from assay.show.table import render_table
        from assay.study.api import StudyLocation, SummaryOptions, load_fresh_table, open_index_of, summarise

        locations = [StudyLocation(self.root, self.name)]
        with open_index_of(locations) as index:
            if not load_fresh_table(index, locations).rows:
                return ""
            options = SummaryOptions(tuple(sort), metrics=None if metrics is None else tuple(metrics), best=best)
            return render_table(summarise(index, locations, options).table)

    def wait(self, timeout: float | None = None) -> RunOutcome:
        """Wait until every run has finished. `timeout`, in seconds: then raise TimeoutError, and the runs go on.

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
        """Stop the runs and everything they started. `assay.run` with the same file continues them."""
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

        from assay.errors import ExitCode

        with self._answer, open(self._log, encoding="utf-8", errors="replace") as log:
            self._answer.seek(0)
            answer = self._answer.read()
            log.seek(self._log_begin)
            messages = log.read()
        code = self._process.returncode
        if code == -signal.SIGTERM:  # before it could start anything: later it hears it
            code = int(ExitCode.INTERRUPTED)
        if code < 0:
            messages += f"the supervisor was ended by signal {-code}; its runs go on: assay ls {self.dir}\n"
            return RunOutcome(int(ExitCode.INTERNAL), {run.name: run.state for run in self.runs}, (), messages)
        report = json.loads(answer) if answer else {"runs": [], "checks": []}
        states = {each["name"]: each["state"] for each in report["runs"]}
        return RunOutcome(code, states, tuple(report["checks"]), messages)


_unfinished: set[StudyHandle] = set()  # whose process has not been waited for: Python would warn as it drops them


@atexit.register
def _leave_unfinished() -> None:
    for study in _unfinished:
        study._answer.close()  # noqa: SLF001 of this very module
        study._process.returncode = 0  # noqa: SLF001 it goes on, as it should


# As the program `assay`, of this very installation: the current folder is not searched for modules.
_PROGRAM = "import sys; sys.path.append({!r}); sys.argv[0] = 'assay'; from assay.cli.main import main; main()"


def _start_supervisor(words: Sequence[str], answer: IO[bytes], log: IO[bytes]) -> Popen[bytes]:
    """In a session of its own: what is typed at this terminal, and its end, are for this program."""
    import subprocess
    import sys

    source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    argv = [sys.executable, "-P", "-c", _PROGRAM.format(source), "run", "--json", "--quiet", *words]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=answer, stderr=log, start_new_session=True)
