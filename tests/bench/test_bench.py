"""Benchmarks with the real program: a planted slowdown is found, and a kill loses nothing."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bench_samples import execution
from tests.fork_server import call_assay

from assay.bench.flow.compare import CompareOptions, Executions, _settle, compare_executions, compare_revisions
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
        home = os.getcwd().split("/repo/")[0]
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


class Lab:
    def __init__(self, base: Path) -> None:
        self.folder = base / "repo"
        self.folder.mkdir()
        self.env = {
            **os.environ,
            "ASSAY_SLOTS_DIR": str(base / "slots"),
            "ASSAY_CACHE_DIR": str(base / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    @property
    def root(self) -> Path:
        return self.folder / "runs"

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=self.folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    def commit(self, text: str, subject: str) -> str:
        (self.folder / "work.py").write_text(text)
        self.git("add", "work.py")
        self.git("commit", "-q", "-m", subject)
        return self.git("rev-parse", "HEAD")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "assay", "bench", *arguments],
            cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def call(self, *arguments: str) -> tuple[int, str, str]:
        done = call_assay(["bench", *arguments], cwd=self.folder, env=self.env, timeout=280)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def plant(lab: Lab, template: str, costs: list[float]) -> list[str]:
    lab.git("init", "-q", "-b", "main")
    (lab.folder / ".gitignore").write_text("runs/\n")
    return [lab.commit(template.format(cost=cost) + f"# {n}\n", f"change {n}") for n, cost in enumerate(costs)]


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


# ---------------------------------------------------------------- a planted slowdown


@pytest.mark.services("kills")
def test_eight_percent_more_work_is_found_by_counting_it(lab: Lab) -> None:
    """Real work, counted instead of timed: the same on any machine, however busy."""
    commits = plant(lab, COUNTED, [500, 500, 540])
    (lab.folder / "work.py").write_text("not even Python: the user's own tree is not what is measured\n")
    flags = ("--only", "lines", "--better", "lines:min", "--trials", "5", *FLAGS)
    code, out, err = lab.call("compare", "--git", f"{commits[0]}..main", "work.W.work", *flags)
    assert code == 1, err + out
    (metric,) = json.loads(out)["metrics"]
    assert metric["confirmed"] is True
    assert metric["finding"]["effect"] == pytest.approx(0.08, abs=0.005)
    assert lab.git("status", "--porcelain", "--untracked-files=no") == "M work.py"
    flags = ("--on", "lines", "--better", "lines:min", "--trials", "5", *FLAGS)
    code, out, err = lab.call("bisect", "work.W.work", "--good", commits[0], *flags)
    assert code == 0, err
    found = json.loads(out)
    assert found["culprit"]["sha"] == commits[2]
    assert found["evidence"]["finding"]["kind"] == "FAIL"
    assert [answer["commit"] for answer in found["answers"]].count(commits[2]) == 2  # before a commit is accused


@pytest.mark.services("kills")
def test_a_killed_search_is_gone_on_with(lab: Lab) -> None:
    commits = plant(lab, HELD_SEARCH, [1.0, 1.2])
    arguments = ("bisect", "work.W.work", "--good", commits[0], "--trials", "5", "--foreign-limit", "1")
    count, hold = lab.folder.parent / "count", lab.folder.parent / "hold"
    hold.touch()
    process = lab.start(*arguments)
    until(lambda: count.exists() and count.stat().st_size > 12)
    process.kill()
    process.communicate()
    hold.unlink()
    (log,) = lab.root.glob("bench/.assay/bisect/*/log.jsonl")
    known = log.read_text().splitlines()
    assert len(known) == 1
    with log.open("a") as file:
        file.write('{"commit": "cut sh')
    code, out, err = lab.call(*arguments, "--json", "--quiet")
    assert code == 0, err
    found = json.loads(out)
    assert found["culprit"]["sha"] == commits[1]
    assert found["resumed"] == len(known) < len(found["answers"])
    assert [answer["commit"] for answer in found["answers"]][: len(known)] == [
        json.loads(line)["commit"] for line in known
    ]
    code, out, err = lab.call(*arguments)  # all is known: nothing runs any more
    assert code == 0, err
    assert "culprit: " in out
    assert "by an earlier call" in out


@pytest.mark.long
def test_a_measured_slowdown_is_found(lab: Lab) -> None:
    commits = plant(lab, MEASURED, [20_000, 20_000, 22_000, 22_000])
    code, out, err = lab.call(
        "compare", "--git", f"{commits[0]}..main", "work.W.work", "--foreign-limit", "1", "--quiet"
    )
    assert code == 1, out + err


@pytest.mark.parametrize(
    ("times", "trials", "allowed"),
    [
        pytest.param(5, 6, 1, marks=pytest.mark.services("kills")),
        pytest.param(100, 10, 2, marks=[pytest.mark.long, pytest.mark.timeout(3000)]),
    ],
)
def test_the_same_code_hardly_ever_fails_against_itself(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, times: int, trials: int, allowed: int
) -> None:
    """Real processes, on whatever else this machine is doing. A chance of 0.5% for each would be seen to fail here in
    one of a thousand suites."""
    plant(lab, COUNTED, [500])
    monkeypatch.chdir(lab.folder)
    for name in ("ASSAY_SLOTS_DIR", "ASSAY_CACHE_DIR"):
        monkeypatch.setenv(name, lab.env[name])
    command = BenchMethod(f"{sys.executable} -S -c 'sum(i * i for i in range(30000))'", "sum", "command")
    request = BenchRequest((command,), trials=trials, foreign_limit=1.0)
    options = CompareOptions(most=trials if times < 100 else 30)
    kinds = [compare_revisions("HEAD", "HEAD", request, options).verdict.kind for _ in range(times)]
    assert kinds.count(VerdictKind.FAIL) <= allowed, kinds
    assert VerdictKind.ERROR not in kinds
    print(f"{times} comparisons of the same code: {kinds.count(VerdictKind.FAIL)} failed, "
          f"{kinds.count(VerdictKind.PASS)} passed")  # fmt: skip


def test_simulated_comparisons_of_the_same_code_hardly_ever_fail() -> None:
    """As `compare` does it: a suspicion must be confirmed by new executions. Noise with outliers, as clocks have it."""
    failures = 0
    for seed in range(100):
        chance = random.Random(seed)

        def side(name: str, chance: random.Random = chance) -> Executions:
            values = [chance.lognormvariate(0, 0.05) * (3 if chance.random() < 0.05 else 1) for _ in range(10)]
            return Executions(name, tuple(execution(n, value) for n, value in enumerate(values)))

        first = compare_executions(side("base"), side("head"), CompareOptions())
        suspects = [metric for metric in first.metrics if metric.finding.kind is VerdictKind.FAIL]
        if suspects:
            second = compare_executions(side("base"), side("head"), CompareOptions())
            failures += _settle(first, suspects, second, CompareOptions()).verdict.kind is VerdictKind.FAIL
    assert failures <= 1
