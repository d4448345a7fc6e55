"""`assay bench bisect`: which commit made a metric worse. Every commit runs in turns with the good one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from assay.errors import UsageError
from assay.flows.bench.compare import CompareOptions, Workshop, compare_executions, open_workshop, split_variants
from assay.flows.bench.run import run_benchmarks
from assay.flows.sweep import Doors
from assay.judge.search import Found, History, Outcome, Stuck, Trial, Try, next_step
from assay.stage.checkout import Commit, load_commit, load_parents
from assay.values.bench_history import MetricComparison
from assay.values.benchmark import BenchRequest
from assay.values.verdict import VerdictKind

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BenchBisect:
    """What the search came to."""

    good: Commit
    bad: Commit
    tried: tuple[tuple[str, Outcome, str], ...]  # commit, how it was judged, why
    culprit: Commit | None = None
    suspects: tuple[Commit, ...] = ()
    evidence: MetricComparison | None = None
    stuck: str | None = None
    interrupted: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    good: str
    bad: str
    metric: str


def bisect_benchmark(
    question: Question,
    request: BenchRequest,
    options: CompareOptions,
    doors: Doors | None = None,
    tell: Tell = lambda _line: None,
) -> BenchBisect:
    if len(request.methods) != 1:
        raise UsageError("a search is for one benchmark", "name one METHOD, or one --command")
    workshop = open_workshop(request, options.build)
    ends = load_commit(workshop.repository, question.good), load_commit(workshop.repository, question.bad)
    parents = load_parents(workshop.repository, ends[0].sha, ends[1].sha)
    search = _Search(workshop, ends, request, replace(options, metrics=(question.metric,)), doors, tell)
    return search.run(History(parents, ends[0].sha, ends[1].sha))


@dataclass(slots=True)
class _Search:
    workshop: Workshop
    ends: tuple[Commit, Commit]
    request: BenchRequest
    options: CompareOptions
    doors: Doors | None
    tell: Tell
    interrupted: str | None = None

    def run(self, history: History) -> BenchBisect:
        tried: list[tuple[str, Outcome, str]] = []
        evidence: dict[str, MetricComparison] = {}
        while True:
            step = next_step(history)
            if not isinstance(step, Try):
                return self._conclude(step, tried, evidence)
            outcome, why, found = self._try(step.commit)
            if self.interrupted:
                return BenchBisect(*self.ends, tuple(tried), interrupted=self.interrupted)
            self.tell(f"{step.commit[:12]} is {outcome}: {why}")
            tried.append((step.commit, outcome, why))
            if found is not None:
                evidence[step.commit] = found
            history = replace(history, trials=(*history.trials, Trial(step.commit, outcome)))

    def _try(self, sha: str) -> tuple[Outcome, str, MetricComparison | None]:
        if sha == self.ends[0].sha:
            return "good", "by definition", None
        commit = load_commit(self.workshop.repository, sha)
        try:
            variants = (self.workshop.open("base", self.ends[0]), self.workshop.open("head", commit))
        except UsageError as error:
            return "skip", error.message, None
        report = run_benchmarks(replace(self.request, variants=variants), self.doors)
        self.interrupted = report.interrupted or report.problem
        if self.interrupted:
            return "open", self.interrupted, None
        if any(e.result.has_exception for e in report.executions if e.commit == sha):
            return "skip", "it fails", None
        found = compare_executions(*split_variants(report.executions, variants), self.options).metrics[0]
        outcomes: dict[VerdictKind, Outcome] = {VerdictKind.FAIL: "bad", VerdictKind.INCONCLUSIVE: "open"}
        return outcomes.get(found.finding.kind, "good"), found.finding.message, found

    def _conclude(
        self, step: Found | Stuck, tried: list[tuple[str, Outcome, str]], evidence: dict[str, MetricComparison]
    ) -> BenchBisect:
        if isinstance(step, Stuck):
            return BenchBisect(*self.ends, tuple(tried), stuck=step.reason)
        suspects = tuple(load_commit(self.workshop.repository, sha) for sha in step.suspects)
        culprit = suspects[0] if len(suspects) == 1 else None
        proof = evidence.get(culprit.sha) if culprit else None
        return BenchBisect(*self.ends, tuple(tried), culprit, suspects, proof)
