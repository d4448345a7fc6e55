"""A search for the commit that made a metric worse: real git, and a log that outlives the call."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.bench_repository import Repository, ask
from tests.bench_samples import execution, run_in_process

from assay.bench.flow.bisect import BenchBisect, CommitAnswer, _judge, bisect_benchmark, load_answers
from assay.bench.flow.compare import CompareOptions, Run
from assay.bench.flow.run import run_benchmarks
from assay.bench.values.comparison import BenchSide, ComparisonReport, MetricComparison
from assay.bench.values.execution import BenchMetric, BenchReport, BenchRequest, BenchResult, parse_method
from assay.errors import NotFoundError, UsageError
from assay.show.console import SILENT, CollectingConsole, Console
from assay.system.files import append_line
from assay.values.verdict import Finding, Verdict, VerdictKind

OPTIONS = CompareOptions(directions={"cost": "min"}, most=5)


@pytest.fixture
def repository(lab: Path) -> Repository:
    return Repository(lab)


class QuickRunner:
    """What `cat figure` prints in each tree, without a process."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, request: BenchRequest) -> BenchReport:
        self.calls += 1
        found = []
        for variant in request.variants * request.trials:
            match = re.search(request.patterns[0][1], (Path(variant.folder or "") / "figure").read_text())
            missing = Finding(VerdictKind.ERROR, "figure", "cost was not found in its output")
            result = BenchResult(
                "figure",
                succeeded=match is not None,
                metrics=(BenchMetric("cost", float(match[1])),) if match else (),
                findings=() if match else (missing,),
            )
            made = execution(len(found), 1.0, label=variant.label, commit=variant.commit)
            found.append(replace(made, method="figure", result=result))
        return BenchReport(tuple(found))


def search(
    good: str,
    bad: str = "main",
    request: BenchRequest | None = None,
    fresh: bool = False,
    run: Run | None = None,
    options: CompareOptions = OPTIONS,
    console: Console = SILENT,
) -> BenchBisect:
    asked = request or ask()
    return bisect_benchmark((good, bad), "cost", asked, options, run or QuickRunner(), console, fresh=fresh)


def test_the_first_worse_commit_is_found_with_its_evidence(repository: Repository) -> None:
    commits = repository.costs(10, 10, 10, 11, 11, 11)
    console = CollectingConsole()
    lines = console.lines
    found = search(commits[0], console=console)
    assert found.culprit is not None
    assert found.culprit.sha == commits[3]
    assert found.culprit.subject == "change 3"
    assert found.evidence is not None
    assert found.evidence.finding.effect == pytest.approx(0.1)
    assert found.evidence.base.values == (10.0,) * 5
    assert found.evidence.head.values == (11.0,) * 5
    assert found.resumed == 0
    assert [answer.commit for answer in found.answers].count(commits[3]) == 2  # tried again before it is accused
    assert [answer.commit for answer in found.answers].count(commits[2]) == 2
    assert lines[0] == f"6 commits from {commits[0][:12]} to {commits[5][:12]}, both included"
    assert any("is the bad end bad?" in line for line in lines)
    assert any("once more, to be sure" in line for line in lines)


def test_what_was_answered_is_not_asked_again(repository: Repository) -> None:
    commits = repository.costs(10, 11, 11)
    first = search(commits[0])
    log = Path(first.log)
    kept = log.read_text().splitlines(keepends=True)
    runner = QuickRunner()
    again = search(commits[0], run=runner)
    assert again.culprit == first.culprit
    assert again.evidence == first.evidence
    assert again.resumed == len(kept)
    assert runner.calls == 0

    log.write_text("".join(kept[:2]) + '{"commit": "torn')
    resumed = search(commits[0], run=runner)
    assert (resumed.resumed, runner.calls) == (2, len(kept) - 2)
    assert resumed.culprit == first.culprit
    assert [answer.commit for answer in resumed.answers] == [answer.commit for answer in first.answers]

    fresh = search(commits[0], fresh=True)
    assert fresh.resumed == 0
    assert fresh.culprit == first.culprit


def test_commits_that_cannot_be_judged_are_skipped(repository: Repository) -> None:
    commits = repository.commit_all(
        ("cost 10\n", "one"), ("cost 10\n#\n", "two"), ("nothing here\n", "says nothing"), ("cost 11\n# 4\n", "four")
    )
    found = search(commits[0])
    assert found.culprit is None
    assert {suspect.sha for suspect in found.suspects} == set(commits[2:])
    assert any(answer.outcome == "skip" for answer in found.answers)
    broken = search(commits[0], options=replace(OPTIONS, build="! grep -q '#$' figure"))
    assert broken.log != found.log, "it is another question"
    assert {suspect.sha for suspect in broken.suspects} == set(commits[1:])
    assert any("cannot be built" in answer.message for answer in broken.answers if answer.outcome == "skip")


def test_ends_that_do_not_differ_are_reported_and_better_is_not_worse(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = repository.costs(10, 10, 10)
    found = search(commits[0])
    assert found.culprit is None
    assert found.stuck is not None
    assert found.stuck.startswith("the two ends do not differ: both are good; the bad end: +0.00%")
    commits = repository.costs(10, 9)
    run_in_process(monkeypatch)
    found = search(commits[0], run=run_benchmarks)
    assert found.culprit is None
    assert "-10.00%" in found.answers[0].message  # beside other load after "load or code?"


def test_bad_questions_are_refused(repository: Repository) -> None:
    commits = repository.costs(10, 11)
    for good, bad, words in (
        ("nowhere", "main", "there is no commit 'nowhere'"),
        ("main", "main", "the same commit"),
        ("main", "main~1", "swap --good and --bad"),
    ):
        with pytest.raises(UsageError, match=words):
            search(good, bad)
    for methods in ((parse_method("m.a"), parse_method("m.b")), (parse_method("m.C.filter:.*"),)):
        with pytest.raises(UsageError, match="for one benchmark"):
            search(commits[0], request=BenchRequest(methods))
    with pytest.raises(NotFoundError, match="csot"):
        bisect_benchmark((commits[0], "main"), "csot", ask(), OPTIONS, QuickRunner())


# ---------------------------------------------------------------- parts


FINDING = Finding(VerdictKind.FAIL, "m cost", "worse", 11.0, 10.0, effect=0.1, interval=(0.05, 0.15))
METRIC = MetricComparison("m", "cost", BenchSide("base", (1.0, 2.0), 2), BenchSide("head", (3.0,), 1), FINDING)


@pytest.mark.parametrize(
    ("kind", "outcome"), [("PASS", "good"), ("CHANGED", "good"), ("FAIL", "bad"), ("INCONCLUSIVE", "open")]
)
def test_verdicts_become_answers(kind: str, outcome: str) -> None:
    metric = replace(METRIC, finding=replace(FINDING, kind=VerdictKind(kind)))
    report = ComparisonReport("a", "b", (metric,), Verdict.of([metric.finding], 1))
    assert _judge("sha", report).outcome == outcome


def test_what_fails_is_skipped_and_not_accused() -> None:
    error = Finding(VerdictKind.ERROR, "m", "3 of 5 executions of head failed: ValueError")
    report = ComparisonReport("a", "b", (METRIC,), Verdict.of([error, FINDING], 1))
    assert _judge("sha", report) == CommitAnswer("sha", "skip", error.message)
    assert _judge("sha", ComparisonReport("a", "b", (), Verdict.of([], 0))).outcome == "skip"


def test_answers_come_back_from_the_log(tmp_path: Path) -> None:
    log = str(tmp_path / "log.jsonl")
    answers = [
        CommitAnswer("a" * 40, "bad", "worse", METRIC, 1.5, 1e9),
        CommitAnswer("b" * 40, "skip", "does not build"),
    ]
    for answer in answers:
        append_line(log, asdict(answer))
    assert load_answers(log) == answers
    for line in ("{}", '{"commit": "a", "outcome": "maybe"}', "[]", '{"commit": "a"}', "nonsense"):
        with open(log, "a") as file:
            file.write(line + "\n")
    assert load_answers(log) == answers, "lines that are no answer are passed over"
