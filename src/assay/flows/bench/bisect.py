"""`assay bench bisect`: which commit made a metric worse. Every commit runs in turns with the good one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from assay.errors import UsageError
from assay.flows.bench.compare import CompareOptions, compare_executions, open_variant
from assay.flows.bench.run import run_benchmarks
from assay.flows.sweep import Doors
from assay.judge.search import Found, History, Outcome, Stuck, Trial, Try, next_step
from assay.stage.checkout import Commit, find_repository, load_commit, load_parents
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


def bisect_benchmark(
    good: str, bad: str, metric: str, request: BenchRequest, options: CompareOptions, build_command: str | None = None,
    doors: Doors | None = None, tell: Tell = lambda _line: None,
) -> BenchBisect:  # fmt: skip
    if len(request.methods) != 1:
        raise UsageError("a search is for one benchmark", "name one METHOD, or one --command")
    folder = os.path.abspath(request.folder or os.getcwd())
    repository = find_repository(folder)
    ends = load_commit(repository, good), load_commit(repository, bad)
    parents = load_parents(repository, ends[0].sha, ends[1].sha)
    search = _Search(
        repository, os.path.relpath(folder, repository), ends, metric, request, options, build_command, doors, tell
    )
    return search.run(History(parents, ends[0].sha, ends[1].sha))


@dataclass(slots=True)
class _Search:
    repository: str
    inside: str
    ends: tuple[Commit, Commit]
    metric: str
    request: BenchRequest
    options: CompareOptions
    build_command: str | None
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
        commit = load_commit(self.repository, sha)
        try:
            variants = tuple(
                open_variant(side, each, self.repository, self.inside, self.request.root, self.build_command)
                for side, each in (("base", self.ends[0]), ("head", commit))
            )
        except UsageError as error:
            return "skip", error.message, None
        report = run_benchmarks(replace(self.request, variants=variants), self.doors)
        self.interrupted = report.interrupted or report.problem
        if self.interrupted:
            return "open", self.interrupted, None
        sides = [(variant.label, [e for e in report.executions if e.label == variant.label]) for variant in variants]
        if any(e.result.has_exception for e in sides[1][1]):
            return "skip", "it fails", None
        result = compare_executions(sides[0], sides[1], replace(self.options, metrics=(self.metric,)))
        found = result.metrics[0]
        outcomes: dict[VerdictKind, Outcome] = {VerdictKind.FAIL: "bad", VerdictKind.INCONCLUSIVE: "open"}
        return outcomes.get(found.finding.kind, "good"), found.finding.message, found

    def _conclude(
        self, step: Found | Stuck, tried: list[tuple[str, Outcome, str]], evidence: dict[str, MetricComparison]
    ) -> BenchBisect:
        if isinstance(step, Stuck):
            return BenchBisect(*self.ends, tuple(tried), stuck=step.reason)
        suspects = tuple(load_commit(self.repository, sha) for sha in step.suspects)
        culprit = suspects[0] if len(suspects) == 1 else None
        proof = evidence.get(culprit.sha) if culprit else None
        return BenchBisect(*self.ends, tuple(tried), culprit, suspects, proof)
