"""`assay bench bisect`: which commit made a metric worse. Every commit runs in turns with the good one.

Each answer is written to a log at once, and what to try next is a pure function of that log (judge/bisection.py): so a
search that was killed continues when the command is given again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any, get_args

from assay.bench.flow.compare import CompareOptions, Contest, Run
from assay.bench.flow.run import run_benchmarks
from assay.bench.flow.sides import check_out, open_question, open_trees
from assay.bench.values.comparison import ComparisonReport, MetricComparison
from assay.bench.values.execution import BenchRequest
from assay.code.checkout import Checkouts, Commit, load_commit, load_parents
from assay.errors import InfrastructureError, NotFoundError, UsageError
from assay.execute.machine_lease import keeping_lease
from assay.judge.bisection import CommitTrial, Culprit, NextTry, Outcome, Stuck, TrialHistory, next_step
from assay.show.console import SILENT, Console
from assay.system.fast_dataclasses import asdict, dataclass, replace
from assay.system.files import append_line, load_lines
from assay.values.plain import parse_plain
from assay.values.verdict import VerdictKind

LOG_FILE = "log.jsonl"
VOTES = 2  # equal answers that are required for the first bad commit and for the one before it
PATIENCE = 3  # answers after which an undecided commit is given up

_OUTCOMES: Mapping[VerdictKind, Outcome] = {
    VerdictKind.PASS: "good",
    VerdictKind.CHANGED: "good",
    VerdictKind.FAIL: "bad",
    VerdictKind.INCONCLUSIVE: "open",
    VerdictKind.ERROR: "skip",
}


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """The comparison of one commit with the good one, as recorded in the log."""

    commit: str
    outcome: Outcome
    message: str
    evidence: MetricComparison | None = None
    elapsed_s: float = 0.0
    at: float = 0.0  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class BenchBisect:
    """The result of the search."""

    method: str
    metric: str
    good: Commit
    bad: Commit
    log: str
    commits: int  # between the ends, the bad one included
    answers: tuple[CommitAnswer, ...]
    culprit: Commit | None = None
    suspects: tuple[Commit, ...] = ()
    evidence: MetricComparison | None = None
    stuck: str | None = None
    interrupted: str | None = None
    resumed: int = 0  # answers that were found by an earlier call


def bisect_benchmark(
    ends: tuple[str, str],
    metric: str,
    request: BenchRequest,
    options: CompareOptions,
    run: Run = run_benchmarks,
    console: Console = SILENT,
    *,
    fresh: bool = False,
) -> BenchBisect:
    """Find the first bad commit between `ends`, a good and a bad one. `fresh`: ignore what an earlier call found."""
    if len(request.methods) != 1 or request.methods[0].is_filter:
        raise UsageError("a search is for one benchmark", "name one METHOD, or one --command")
    options = replace(options, metrics=(metric,), confirm=False)  # the search has its own confirmation
    with open_trees(request, options.build, console) as checkouts, keeping_lease():
        good, bad = (load_commit(checkouts.repository, name) for name in ends)
        start = TrialHistory(
            load_parents(checkouts.repository, good.sha, bad.sha), good.sha, bad.sha, votes=VOTES, patience=PATIENCE
        )
        asked = {"method": asdict(request.methods[0]), "options": asdict(options)}
        log = os.path.join(open_question(checkouts, (good, bad), request, asked), LOG_FILE)
        if fresh:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(log)
        return _Search(checkouts, good, bad, request, options, run, log, start, console).run()


@dataclass(slots=True)
class _Search:
    checkouts: Checkouts
    good: Commit
    bad: Commit
    request: BenchRequest
    options: CompareOptions
    execute: Run
    log: str
    start: TrialHistory
    console: Console

    def run(self) -> BenchBisect:
        answers = load_answers(self.log)
        resumed = len(answers)
        count = len(self.start.parents)
        self.console.message(f"{count} commits from {self.good.short} to {self.bad.short}, both included")
        self.console.message(
            f"continuing: {resumed} answers were found before ({self.log})" if resumed else f"answers go to {self.log}"
        )
        # the good end counts as good, with all votes: every other commit is compared with it
        given = (CommitTrial(self.start.good, "good"),) * VOTES
        while True:
            trials = (*given, *(CommitTrial(answer.commit, answer.outcome) for answer in answers))
            step = next_step(replace(self.start, trials=trials))
            if not isinstance(step, NextTry):
                return self._report(answers, resumed, **self._conclude(step, answers))
            commit = load_commit(self.checkouts.repository, step.commit)
            self.console.message(f"trying {commit.short} {commit.subject!r}: {step.reason}")
            answer, interrupted = self._try_commit(commit)
            if interrupted:
                return self._report(answers, resumed, interrupted=interrupted)
            append_line(self.log, asdict(answer))
            answers.append(answer)
            self.console.message(f"  {answer.outcome}: {answer.message}")

    def _conclude(self, step: Culprit | Stuck, answers: list[CommitAnswer]) -> dict[str, Any]:
        if isinstance(step, Stuck):
            last = next((answer for answer in reversed(answers) if answer.commit == self.bad.sha), None)
            return {"stuck": step.reason + (f"; the bad end: {last.message}" if last else "")}
        suspects = tuple(load_commit(self.checkouts.repository, sha) for sha in step.suspects)
        if step.culprit is None:
            return {"suspects": suspects}
        proof = [a for a in answers if a.commit == step.culprit and a.outcome == "bad" and a.evidence is not None]
        return {"suspects": suspects, "culprit": suspects[0], "evidence": proof[-1].evidence if proof else None}

    def _report(self, answers: list[CommitAnswer], resumed: int, **facts: Any) -> BenchBisect:
        method, metric = self.request.methods[0].name, self.options.metrics[0]
        between = len(self.start.parents) - 1
        return BenchBisect(
            method, metric, self.good, self.bad, self.log, between, tuple(answers), resumed=resumed, **facts
        )

    def _try_commit(self, commit: Commit) -> tuple[CommitAnswer, str | None]:
        """Compare a commit with the good one. Return the outcome, and the signal that interrupted it, if any."""
        began, sha = time.monotonic(), commit.sha
        try:
            variants = (check_out(self.checkouts, "base", self.good), check_out(self.checkouts, "head", commit))
            contest = Contest(replace(self.request, variants=variants), self.options, self.execute, SILENT)
            report = contest.run_round(confirmed=True)
        except NotFoundError:
            if sha == self.bad.sha:
                raise  # the name is probably wrong: trying other commits would find nothing
            return CommitAnswer(sha, "skip", f"it does not report {self.options.metrics[0]}", at=time.time()), None
        except UsageError as error:  # the commit does not build, or has no such folder
            return CommitAnswer(sha, "skip", error.message, at=time.time()), None
        end = contest.end
        if end is not None and end.problem:
            raise InfrastructureError(end.problem)
        answer = replace(_judge(sha, report), elapsed_s=round(time.monotonic() - began, 3), at=time.time())
        return answer, end.interrupted if end else None


def _judge(sha: str, report: ComparisonReport) -> CommitAnswer:
    """Judge a comparison. The commit is skipped, not blamed, if either side fails: nothing can be compared then."""
    errors = [finding.message for finding in report.verdict.findings if finding.kind is VerdictKind.ERROR]
    if errors or not report.metrics:
        return CommitAnswer(sha, "skip", errors[0] if errors else "nothing could be compared")
    metric = report.metrics[0]
    return CommitAnswer(sha, _OUTCOMES[metric.finding.kind], metric.finding.message, metric)


def load_answers(path: str) -> list[CommitAnswer]:
    """Load the answers of earlier calls; a line that was cut off by a kill is ignored."""
    found = []
    for line in load_lines(path):
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            answer = parse_plain(CommitAnswer, line)
            if answer.outcome in get_args(Outcome):
                found.append(answer)
    return found
