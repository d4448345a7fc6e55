"""`assay bench bisect`: finds the commit that made a metric worse. Every commit runs in turns with the good end.

Each answer is written to a log at once, and what to try next is a pure function of that log (judge/bisection.py): so a
search that was killed continues when the command is given again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import get_args

from assay.bench.flow.compare import CompareOptions, Contest, Run
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
    """The result of a search for the commit that made a metric worse."""

    method: str
    metric: str
    good: Commit
    bad: Commit
    log: str
    commits: int  # number of commits after the good end, the bad end included
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
    run: Run,
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
        parents = load_parents(checkouts.repository, good.sha, bad.sha)
        asked = {"method": asdict(request.methods[0]), "options": asdict(options)}
        log = os.path.join(open_question(checkouts, (good, bad), request, asked), LOG_FILE)
        if fresh:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(log)
        found = BenchBisect(request.methods[0].name, metric, good, bad, log, len(parents) - 1, ())
        return _Search(checkouts, request, options, run, console).run(found, parents)


@dataclass(slots=True)
class _Search:
    checkouts: Checkouts
    request: BenchRequest
    options: CompareOptions
    execute: Run
    console: Console

    def run(self, found: BenchBisect, parents: Mapping[str, Sequence[str]]) -> BenchBisect:
        answers = load_answers(found.log)
        found = replace(found, answers=tuple(answers), resumed=len(answers))
        good, bad, log = found.good, found.bad, found.log
        self.console.message(f"{len(parents)} commits from {good.short} to {bad.short}, both included")
        self.console.message(
            f"continuing: {found.resumed} answers were found before ({log})" if answers else f"answers go to {log}"
        )
        # the good end counts as good, with all votes: every other commit is compared with it
        given = (CommitTrial(good.sha, "good"),) * VOTES
        while True:
            trials = (*given, *(CommitTrial(answer.commit, answer.outcome) for answer in found.answers))
            step = next_step(TrialHistory(parents, good.sha, bad.sha, trials, VOTES, PATIENCE))
            if not isinstance(step, NextTry):
                return self._conclude(step, found)
            commit = load_commit(self.checkouts.repository, step.commit)
            self.console.message(f"trying {commit.short} {commit.subject!r}: {step.reason}")
            answer, interrupted = self._try_commit(good, commit, is_bad_end=commit.sha == bad.sha)
            if interrupted:
                return replace(found, interrupted=interrupted)
            append_line(log, asdict(answer))
            found = replace(found, answers=(*found.answers, answer))
            self.console.message(f"  {answer.outcome}: {answer.message}")

    def _conclude(self, step: Culprit | Stuck, found: BenchBisect) -> BenchBisect:
        if isinstance(step, Stuck):
            last = next((answer for answer in reversed(found.answers) if answer.commit == found.bad.sha), None)
            return replace(found, stuck=step.reason + (f"; the bad end: {last.message}" if last else ""))
        suspects = tuple(load_commit(self.checkouts.repository, sha) for sha in step.suspects)
        if step.culprit is None:
            return replace(found, suspects=suspects)
        proof = [a.evidence for a in found.answers if a.commit == step.culprit and a.outcome == "bad" and a.evidence]
        return replace(found, suspects=suspects, culprit=suspects[0], evidence=proof[-1] if proof else None)

    def _try_commit(self, good: Commit, commit: Commit, *, is_bad_end: bool) -> tuple[CommitAnswer, str | None]:
        """Compare a commit with the good one; return the answer, and the signal of an interruption, if any."""
        began, sha = time.monotonic(), commit.sha
        try:
            variants = (check_out(self.checkouts, "base", good), check_out(self.checkouts, "head", commit))
            contest = Contest(replace(self.request, variants=variants), self.options, self.execute, SILENT)
            report = contest.run_round(confirmed=True)
        except NotFoundError:
            if is_bad_end:
                raise  # the metric's name is probably wrong: trying other commits would find nothing
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
