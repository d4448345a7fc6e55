"""Benchmarks with the real program: a planted slowdown is found, and a kill loses nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.bench_repository import Repository
from tests.finished_study import Bench, until

from assay.bench.flow.compare import CompareOptions, compare_revisions
from assay.bench.flow.run import run_benchmarks
from assay.bench.values.execution import BenchMethod, BenchRequest
from assay.values.verdict import VerdictKind

# Lines of Python that were executed: work that can be counted.
COUNTED = """
import sys
from assay.bench import Benchmark
def work(n):
    total = 0
    for i in range(n):
        total += i
    return total
class W(Benchmark):
    def work(self):
        count = 0
        def look(frame, event, argument):
            nonlocal count
            if frame.f_code is work.__code__:  # not what the collector may call
                count += event == "line"
                return look
        sys.settrace(look)
        work({cost})
        sys.settrace(None)
        self.report_benchmark(wall_time=1.0, metrics=[{{"name": "lines", "value": count}}])
"""
# The first answer takes ten executions; one of the second answer waits for the test.
HELD_SEARCH = """
import os, time
from assay.bench import Benchmark
class W(Benchmark):
    def work(self):
        home = os.getcwd().split("/work/")[0]
        with open(home + "/count", "a") as file:
            file.write("x")
        while os.path.getsize(home + "/count") > 12 and os.path.exists(home + "/hold"):
            time.sleep(0.02)
        self.report_benchmark(wall_time={cost})
"""
MEASURED = """
from assay.bench import Benchmark
N = {cost}
class W(Benchmark):
    def work(self):
        timing = self.measure(lambda: sum(i * i for i in range(N)), seconds=0.1)
        self.report_benchmark(wall_time=timing.best_s)
"""


FLAGS = ("--foreign-limit", "1", "--quiet", "--json")


@pytest.fixture
def lab(own_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return own_bench.enter(monkeypatch)


def plant(lab: Bench, template: str, costs: list[float]) -> list[str]:
    """A commit for each cost of the benchmark in `work.py`."""
    repository, commits = Repository(lab.folder), []
    for number, cost in enumerate(costs):
        lab.write("work.py", template.format(cost=cost) + f"# {number}\n")
        repository.git("add", "-f", "work.py")
        repository.git("commit", "-q", "-m", f"change {number}")
        commits.append(repository.git("rev-parse", "HEAD"))
    return commits


# ---------------------------------------------------------------- a planted slowdown


@pytest.mark.services("kills")
def test_eight_percent_more_work_is_found_by_counting_it(lab: Bench) -> None:
    """Real work, counted instead of timed: the same on any machine, however busy."""
    commits = plant(lab, COUNTED, [500, 500, 540])
    lab.write("work.py", "not even Python: the user's own tree is not what is measured\n")
    flags = ("--only", "lines", "--better", "lines:min", "--trials", "5", *FLAGS)
    done = lab.assay("bench", "compare", "--git", f"{commits[0]}..main", "work.W.work", *flags)
    assert done.returncode == 1, done.stderr + done.stdout
    (metric,) = json.loads(done.stdout)["metrics"]
    assert metric["confirmed"] is True
    assert metric["finding"]["effect"] == pytest.approx(0.08, abs=0.005)
    words = ["git", "status", "--porcelain", "--untracked-files=no"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == " M work.py\n"
    flags = ("--on", "lines", "--better", "lines:min", "--trials", "5", *FLAGS)
    done = lab.assay("bench", "bisect", "work.W.work", "--good", commits[0], *flags)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["culprit"]["sha"] == commits[2]
    assert found["evidence"]["finding"]["kind"] == "FAIL"
    assert [answer["commit"] for answer in found["answers"]].count(commits[2]) == 2  # before a commit is accused


@pytest.mark.services("kills")
def test_a_killed_search_is_gone_on_with(lab: Bench) -> None:
    commits = plant(lab, HELD_SEARCH, [1.0, 1.2])
    arguments = ("bench", "bisect", "work.W.work", "--good", commits[0], "--trials", "5", "--foreign-limit", "1")
    count, hold = lab.folder.parent / "count", lab.folder.parent / "hold"
    hold.touch()
    process = lab.start(*arguments)
    until(lambda: count.exists() and count.stat().st_size > 12, "the second answer", 60)
    process.kill()
    process.communicate()
    hold.unlink()
    (log,) = lab.root.glob("bench/.assay/bisect/*/log.jsonl")
    known = log.read_text().splitlines()
    assert len(known) == 1
    with log.open("a") as file:
        file.write('{"commit": "cut sh')
    done = lab.assay(*arguments, "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["culprit"]["sha"] == commits[1]
    assert found["resumed"] == len(known) < len(found["answers"])
    assert [answer["commit"] for answer in found["answers"]][: len(known)] == [
        json.loads(line)["commit"] for line in known
    ]
    done = lab.assay(*arguments)  # all is known: nothing runs any more
    assert done.returncode == 0, done.stderr
    assert "culprit: " in done.stdout
    assert "by an earlier call" in done.stdout


@pytest.mark.long
def test_a_measured_slowdown_is_found(lab: Bench) -> None:
    commits = plant(lab, MEASURED, [20_000, 20_000, 22_000, 22_000])
    words = ("--git", f"{commits[0]}..main", "work.W.work", "--foreign-limit", "1", "--quiet")
    done = lab.assay("bench", "compare", *words)
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("times", "trials", "allowed"),
    [
        pytest.param(5, 6, 1, marks=pytest.mark.services("kills")),
        pytest.param(100, 10, 2, marks=[pytest.mark.long, pytest.mark.timeout(3000)]),
    ],
)
def test_the_same_code_hardly_ever_fails_against_itself(lab: Bench, times: int, trials: int, allowed: int) -> None:
    """Real processes, on whatever else this machine is doing. A chance of 0.5% for each would be seen to fail here in
    one of a thousand suites."""
    plant(lab, COUNTED, [500])
    command = BenchMethod(f"{sys.executable} -S -c 'sum(i * i for i in range(30000))'", "sum", "command")
    request = BenchRequest((command,), trials=trials, foreign_limit=1.0)
    options = CompareOptions(most=trials if times < 100 else 30)
    reports = [compare_revisions("HEAD", "HEAD", request, options, run_benchmarks) for _ in range(times)]
    kinds = [report.verdict.kind for report in reports]
    assert kinds.count(VerdictKind.FAIL) <= allowed, kinds
    assert VerdictKind.ERROR not in kinds
    print(f"{times} comparisons of the same code: {kinds.count(VerdictKind.FAIL)} failed, "
          f"{kinds.count(VerdictKind.PASS)} passed")  # fmt: skip
