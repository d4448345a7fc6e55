"""What Python programs call: load a study, run it, read its runs, check a golden, compare benchmarks, check a model.

    import assay

    with assay.run("study.yml", jobs=4) as study:
        outcome = study.wait()
    print(outcome.exit_code, study.table())

These names, and what `docs/reference/python.md` lists with them, stay as they are. Everything else in Assay is
private and may change with any version. What goes wrong raises an `AssayError`, with the message of the command line.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.runs import Run, Runs, Series, runs
from assay.values.verdict import Finding, VerdictKind

if TYPE_CHECKING:
    from subprocess import Popen
    from types import TracebackType
    from typing import IO, Self

    from assay.values.verdict import Verdict

__all__ = [
    "Finding",
    "Judgement",
    "PlannedRun",
    "Run",
    "RunOutcome",
    "Runs",
    "Series",
    "StudyHandle",
    "StudyPlan",
    "VerdictKind",
    "check_golden",
    "check_model",
    "compare_benchmarks",
    "load_study",
    "run",
    "runs",
]

Path = str | os.PathLike[str]

# ---------------------------------------------------------------- studies


class PlannedRun(NamedTuple):
    """One run that a study file describes."""

    name: str
    id: str  # of its parameters and commands: the same for the same run
    dir: str  # where it is, or will be
    params: Mapping[str, Any]
    commands: Mapping[str, str]  # by name, as the shell gets them
    left: tuple[str, ...]  # the commands that `assay.run` would start: none where the run is finished


class StudyPlan(NamedTuple):
    """What a study file describes. Nothing has been written or started."""

    name: str
    dir: str
    runs: tuple[PlannedRun, ...]
    warnings: tuple[str, ...]


class RunOutcome(NamedTuple):
    """How a study ended. A run that failed is a result, not an exception."""

    exit_code: int  # what `assay run` ends with: 0 where every run is done and every check passes
    states: Mapping[str, str]  # by the name of the run
    checks: tuple[str, ...]  # the lines about the study's checks
    messages: str  # what else the supervisor reported: warnings, and why it could not go on

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


def load_study(
    file: Path,
    *,
    root: Path | None = None,
    study: str | None = None,
    titles: Sequence[str] = (),
    sample: int | None = None,
    seed: int | None = None,
) -> StudyPlan:
    """Read a study file and expand it, as `assay run --dry-run` does. Raises ConfigError with every problem of it."""
    from assay.study.api import RunOptions, build_dry_rows, prepare

    chosen = tuple(titles) or None
    options = RunOptions(os.fspath(file), _text(root), study, titles=chosen, sample=sample, seed=seed)
    prepared = prepare(options)
    planned = tuple(PlannedRun(**{**row, "left": tuple(row["left"])}) for row in build_dry_rows(prepared))
    return StudyPlan(prepared.location.name, prepared.location.dir, planned, tuple(map(str, prepared.warnings)))


def run(
    file: Path,
    *,
    root: Path | None = None,
    study: str | None = None,
    slots: str | None = None,
    jobs: int | None = None,
    on: str | None = None,
    titles: Sequence[str] = (),
    commands: Sequence[str] = (),
    sample: int | None = None,
    seed: int | None = None,
    retry: Sequence[str] = (),
    force: bool = False,
    code: str | None = None,
    new_code: bool = False,
) -> StudyHandle:
    """Start what is not finished of a study, and return at once. The arguments are the options of `assay run`.

    A process of its own supervises the runs, so they go on when this program ends, and nothing here changes: no
    signal handler, no working directory, no thread. Called again, it watches what runs and continues what does not.
    """
    import random
    import warnings

    from assay.errors import NotFoundError, UsageError
    from assay.study.api import RunOptions, check_prepared, prepare
    from assay.values.state import RETRY
    from assay.values.units import parse_slot_flags

    for name in (retry := (retry,) if isinstance(retry, str) else tuple(retry)):
        if name not in RETRY:
            raise NotFoundError("value of retry", name, RETRY)
    if code not in (None, "snapshot", "live"):
        raise NotFoundError("value of code", str(code), ["snapshot", "live"])
    for option, number in (("jobs", jobs), ("sample", sample)):
        if number is not None and number < 1:
            raise UsageError(f"{option}={number}: it must be at least 1")
    if sample is not None and seed is None:
        seed = random.randrange(1 << 31)  # the supervisor draws the same runs
    options = RunOptions(
        file=os.fspath(file),
        root=_text(root),
        study=study,
        slots=parse_slot_flags(slots, jobs),
        on=on,
        titles=tuple(titles) or None,
        commands=tuple(commands) or None,
        sample=sample,
        seed=seed,
        retry=frozenset(state for name in retry for state in RETRY[name]),
        force=force,
        new_code=new_code,
        code=code,
    )
    prepared = prepare(options)
    check_prepared(prepared)
    for warning in prepared.warnings:
        warnings.warn(str(warning), stacklevel=2)
    once = {"root": options.root, "study": study, "slots": slots, "jobs": jobs, "on": on, "code": code}
    once |= {"sample": sample, "seed": seed if sample is not None else None}
    words = [f"--{flag}={value}" for flag, value in once.items() if value is not None]
    several = {"title": titles, "command": commands, "retry": retry}
    words += [f"--{flag}={value}" for flag, values in several.items() for value in values]
    words += [flag for flag, is_set in (("--force", force), ("--new-code", new_code)) if is_set]
    return StudyHandle(prepared.location.name, prepared.location.root, [*words, "--", options.file])


def _text(path: Path | None) -> str | None:
    return None if path is None else os.fspath(path)


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


# ---------------------------------------------------------------- judgements


class Judgement(NamedTuple):
    """What a check or a comparison came to."""

    verdict: VerdictKind
    exit_code: int  # what the command ends with
    findings: tuple[Finding, ...]
    text: str  # the report that the command prints

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


def check_golden(
    file: Path,
    store: Path,
    *,
    tests: Sequence[str] = (),
    root: Path | None = None,
    slots: str | None = None,
    jobs: int | None = None,
    on: str | None = None,
    timeout_s: float | None = None,
    allow_changed: bool = False,
) -> Judgement:
    """Check a training against its golden recording in the folder `store`, as `assay golden check` does."""
    from assay.golden.api import GoldenOptions, check_file, render_golden
    from assay.values.units import parse_slot_flags

    options = GoldenOptions(
        file=os.fspath(file),
        store=os.fspath(store),
        root=_text(root),
        slots=parse_slot_flags(slots, jobs),
        on=on,
        tests=tuple(tests) or None,
        timeout_s=timeout_s,
    )
    report = check_file(options)
    if report.interrupted:
        raise KeyboardInterrupt  # it has stopped the runs; this program learns of it as of any other Ctrl-C
    findings = tuple(finding for test in report.tests for finding in test.verdict.findings)
    return Judgement(report.kind, int(report.exit_code(allow_changed)), findings, render_golden(report))


def compare_benchmarks(
    base: str,
    head: str,
    *,
    method: str | None = None,
    root: Path | None = None,
    metrics: Sequence[str] = (),
    min_effect: float = 0.05,
    everything: bool = False,
) -> Judgement:
    """Compare two labels, commits, run directories or files of results, as `assay bench compare BASE HEAD` does.

    `everything`: executions that others disturbed count as well.
    """
    from assay.bench.api import CompareOptions, compare_recorded, render_comparison

    options = CompareOptions(metrics=tuple(metrics), min_effect=min_effect, everything=everything)
    report = compare_recorded(base, head, method, _text(root), options)
    return _build_judgement(report.verdict, render_comparison(report))


def check_model(
    model: Path,
    *,
    target: str | None = None,
    reference: str | None = None,
    only: Sequence[str] = (),
    samples: int | None = None,
    seed: int | None = None,
    tolerances: Sequence[str] = (),
    root: Path | None = None,
    timeout_s: float | None = None,
) -> Judgement:
    """Compute every layer of an ONNX model on a target and on the reference, as `assay model check` does."""
    from assay.models.api import ModelFlags, RunChoice, build_document, build_request, run_model
    from assay.show.terminal_report import render_terminal

    flags = ModelFlags(
        model=os.fspath(model),
        target=target,
        reference=reference,
        samples=samples,
        seed=seed,
        tolerances=tuple(tolerances),
        only=tuple(only),
    )
    choice = RunChoice(_text(root), timeout_s)
    finished = run_model(build_request(flags, "check"), choice)
    if finished.report is None:
        raise KeyboardInterrupt
    return _build_judgement(finished.report.verdict, render_terminal(build_document(finished.report)))


def _build_judgement(verdict: Verdict, text: str) -> Judgement:
    return Judgement(verdict.kind, int(verdict.kind.exit_code), verdict.findings, text)
