"""Benchmarks at the commits of a range: real git and real processes; nothing is lost, nothing is repeated."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench_repository import Repository, ask

from assay.bench.flow import commits as flow
from assay.bench.flow.archive import find_location, load_executions
from assay.bench.flow.commits import CommitsQuestion, CommitsReport, run_commits
from assay.bench.flow.compare import Run
from assay.bench.flow.run import run_benchmarks
from assay.bench.records import write_execution
from assay.bench.values.execution import BenchExecution, BenchReport, BenchRequest
from assay.errors import ExitCode, UsageError
from assay.show.console import SILENT, CollectingConsole, Console


@pytest.fixture
def repository(lab: Path, in_process: None, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setattr(flow, "_load_versions", functools.cache(flow._load_versions))  # of the same Python each time
    return Repository(lab)


class Killed(BaseException):
    """The end of a process, for which nothing is prepared."""


def measure(
    span: str = "main~3..main", run: Run = run_benchmarks, console: Console = SILENT, trials: int = 1, **fields: object
) -> CommitsReport:
    return run_commits(CommitsQuestion(span, **fields), ask(trials=trials), run, console)  # type: ignore[arg-type]


def load() -> list[BenchExecution]:
    return load_executions(find_location("runs"))


def test_a_killed_call_goes_on_and_neither_loses_nor_repeats_an_execution(repository: Repository) -> None:
    commits, left = repository.costs(1, 2, 3, 4), [3]

    def run_some(request: BenchRequest) -> BenchReport:
        """Killed in the middle of a commit: one of its two trials has been executed."""
        left[0] -= 1
        if left[0]:
            return run_benchmarks(request)
        run_benchmarks(replace(request, trials=1))
        raise Killed

    with pytest.raises(Killed):
        measure(run=run_some, trials=2)
    assert len(load()) == 5
    console = CollectingConsole()
    found = measure(console=console, trials=2)
    assert "continuing an earlier call, which has made 5 executions" in console.lines
    assert Counter(each.commit for each in load()) == dict.fromkeys(commits[1:], 2)
    assert found.exit_code == ExitCode.OK
    assert [each.numbers["cost"] for each in load()] == [2, 2, 3, 3, 4, 4]  # in the order of their commits
    assert [outcome.commit.sha for outcome in found.outcomes] == commits[1:]
    assert repository.git("status", "--porcelain") == ""
    measure(trials=2)  # all of it has been run: this is another call
    assert len(load()) == 12


def test_what_exists_is_known_by_commit_environment_and_benchmark(repository: Repository) -> None:
    commits = repository.costs(1, 2, 3, 4)
    assert len(measure("main~2..main").report.executions) == 2
    found = measure(skip_existing=True)
    assert [each.commit for each in found.report.executions] == [commits[1]]
    assert sum(outcome.known for outcome in found.outcomes) == 2
    again = measure(skip_existing=True)
    assert again.report.executions == ()
    assert again.exit_code == ExitCode.OK
    for other, key in zip(load()[-2:], ("cpu_model", "numpy"), strict=True):  # another machine, another version
        write_execution(other.run_dir, replace(other, setup={**other.setup, key: "another"}))
    first = load()[0]
    write_execution(first.run_dir, replace(first, result=replace(first.result, succeeded=False)))  # it was not measured
    assert {each.commit for each in measure(skip_existing=True).report.executions} == set(commits[1:])


def test_every_nth_is_counted_back_from_the_last(repository: Repository) -> None:
    commits, console = repository.costs(1, 2, 3, 4, 5, 6), CollectingConsole()
    (repository.folder / "figure").write_text("an edit")
    found = measure("main~5..main", lambda _request: BenchReport(()), console, every=2)
    assert "local edits are not used: each commit is checked out as it is" in console.lines
    assert [outcome.commit.sha for outcome in found.outcomes] == [commits[1], commits[3], commits[5]]
    assert found.exit_code == ExitCode.FAILED  # nothing was executed


def test_what_is_not_a_range_is_refused(repository: Repository) -> None:
    repository.costs(1, 2)
    for span, message, hint in (
        ("main..main", r"main\.\.main has no commit", "write main~1..main for that commit alone"),
        ("main..main~1", r"main\.\.main~1 has no commit", "swap the ends: main~1..main"),
    ):
        with pytest.raises(UsageError, match=message) as refused:
            measure(span)
        assert hint in (refused.value.hint or "")
    request = replace(ask(), methods=(replace(ask().methods[0], text="suite.py", name="suite.py", kind="method"),))
    found = run_commits(CommitsQuestion("main~1..main"), request, run_benchmarks)
    assert found.outcomes[0].problem.endswith("has no benchmark suite.py")
    assert not (repository.folder / "runs" / "bench" / "suite.py").exists()
