"""`assay bench run --commits A..B`: runs benchmarks at each commit of a range, checked out next to the user's tree.

The order of the commits is random: a machine that becomes slower with time does not look like a change of the code.
In a history, executions are at the position of their commits. A file contains the name of the call until the whole
call has been run: after a kill, the same call executes what is missing or failed, but nothing that has succeeded.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from assay.bench.flow.archive import find_location, load_executions
from assay.bench.flow.compare import Run, parse_span
from assay.bench.flow.execution_builder import build_environment
from assay.bench.flow.machine import load_machine
from assay.bench.flow.run import resolve_methods
from assay.bench.flow.sides import open_question, open_trees
from assay.bench.values.execution import (
    COMMITTED_AT,
    RANGE,
    BenchExecution,
    BenchMethod,
    BenchReport,
    BenchRequest,
    BenchVariant,
)
from assay.code.checkout import COMMIT_FIELDS, Checkouts, Commit, is_ancestor, load_commit
from assay.errors import ExitCode, UsageError
from assay.execute.machine_lease import keeping_lease
from assay.follow.api import closing_quietly, open_index, refresh_study
from assay.observe.devices import Devices
from assay.observe.environment import load_environment
from assay.record.run_directory import new_uid
from assay.show.console import SILENT, Console
from assay.show.formatting import render_count
from assay.system.fast_dataclasses import asdict, dataclass, field, replace
from assay.system.files import parse_json, read_text, write_atomic
from assay.system.git import call_git, run_git
from assay.values.state import State

_PLAN_FILE = "range.json"
_ASK_S = 0.5
_VERSIONS = """
import importlib.metadata, json, sys
found = {each.name: each.version for each in importlib.metadata.distributions()}
print(json.dumps({**found, "python": "%d.%d" % sys.version_info[:2]}))
"""


@dataclass(frozen=True, slots=True)
class CommitsQuestion:
    span: str
    every: int = 1  # use every n-th commit, counted back from the last one
    skip_existing: bool = False  # do not measure a commit again that was measured in this environment
    build: str | None = None


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    commit: Commit
    at: float
    executions: tuple[BenchExecution, ...] = ()
    known: int = 0  # executions that an earlier call has made
    problem: str = ""  # why the commit, or a benchmark at it, was skipped


@dataclass(frozen=True, slots=True)
class CommitsReport:
    span: str
    outcomes: tuple[CommitOutcome, ...]  # oldest first
    total: int  # how many commits were requested
    end: BenchReport = field(default_factory=lambda: BenchReport(()))  # why and how the call ended early

    @property
    def report(self) -> BenchReport:
        """The executions of all commits, as one report."""
        every = tuple(execution for outcome in self.outcomes for execution in outcome.executions)
        return replace(self.end, executions=every)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code; a skipped commit does not count as passed."""
        is_idle = not self.report.executions and any(outcome.known or outcome.problem for outcome in self.outcomes)
        is_ended = self.end.interrupted or self.end.problem
        codes = {ExitCode.OK} if is_idle and not is_ended else {self.report.exit_code}
        codes |= {ExitCode.INCONCLUSIVE} if any(outcome.problem for outcome in self.outcomes) else set()
        return ExitCode.worst(codes)


def run_commits(question: CommitsQuestion, request: BenchRequest, run: Run, console: Console = SILENT) -> CommitsReport:
    ends = parse_span(question.span, "--commits")
    with open_trees(request, question.build, console) as checkouts, keeping_lease():
        commits = load_range(checkouts.repository, *ends)[:: -question.every][::-1]
        if run_git(checkouts.repository, "status", "--porcelain", "--untracked-files=no").stdout.strip():
            console.message("local edits are not used: each commit is checked out as it is")
        return _Range(checkouts, question, request, run, console).run(commits)


@dataclass(slots=True)
class _Range:
    checkouts: Checkouts
    question: CommitsQuestion
    request: BenchRequest
    execute: Run
    console: Console
    name: str = ""  # the name of this call, stored in each of its executions
    known: Counter[tuple[str, str]] = field(default_factory=Counter)  # executions that need not be repeated
    end: BenchReport = field(default_factory=lambda: BenchReport(()))

    def run(self, commits: Sequence[tuple[Commit, float]]) -> CommitsReport:
        plan, resumed = self._open_plan([commit for commit, _ in commits])
        self._load_known(resumed=resumed)
        order = random.Random(self.name).sample(list(commits), len(commits))
        outcomes: list[CommitOutcome] = []
        for number, (commit, at) in enumerate(order, 1):
            self.console.message(f"commit {number} of {len(order)}: {commit.short} {commit.subject}")
            outcomes.append(self._measure(commit, at))
            if outcomes[-1].problem:
                self.console.warning(outcomes[-1].problem)
            if self.end.interrupted or self.end.problem:
                break
        else:
            with suppress(FileNotFoundError):
                os.unlink(plan)
        outcomes.sort(key=lambda outcome: outcome.at)
        return CommitsReport(self.question.span, tuple(outcomes), len(commits), self.end)

    def _open_plan(self, commits: Sequence[Commit]) -> tuple[str, bool]:
        """Return the path of this call's file, and whether an earlier call with the same options has left that file."""
        asked = {"methods": [asdict(each) for each in self.request.methods], "options": asdict(self.question)}
        ends = (commits[0], commits[-1])
        path = os.path.join(open_question(self.checkouts, ends, self.request, asked), _PLAN_FILE)
        with suppress(OSError, ValueError, LookupError, TypeError):
            self.name = str(parse_json(read_text(path, "strict"))["name"])
            return path, True
        self.name = new_uid()
        write_atomic(path, json.dumps({"name": self.name}))
        return path, False

    def _load_known(self, *, resumed: bool) -> None:
        if not resumed and not self.question.skip_existing:
            return
        _wait_for_left(self.request.root, self.console)
        with suppress(UsageError):  # there are no executions yet
            every = [each for each in load_executions(find_location(self.request.root)) if each.succeeded]
            mine = [each for each in every if each.extra.get(RANGE) == self.name]
            self.known.update((each.commit or "", each.method) for each in mine)
            if resumed:
                made = render_count(len(mine), "execution")
                self.console.message(f"continuing an earlier call, which has made {made}")
            is_here = build_matcher(self.request) if self.question.skip_existing else lambda _setup: False
            for each in every:
                is_clean = each.commit and each.code == each.commit and not each.is_compared
                if each.commit and is_clean and each not in mine and is_here(each.setup):
                    self.known[each.commit, each.method] = self.request.trials

    def _measure(self, commit: Commit, at: float) -> CommitOutcome:
        named = [method for method in self.request.methods if not method.is_filter]
        if len(named) == len(self.request.methods) and not any(self._count_left(commit, each) for each in named):
            return CommitOutcome(commit, at, known=sum(self.known[commit.sha, each.name] for each in named))
        try:
            folder = self.checkouts.enter("head", commit)
        except UsageError as error:
            return CommitOutcome(commit, at, problem=error.message)
        found = resolve_methods(replace(self.request, folder=folder))
        methods = [method for method in found if not method.is_filter]
        missing = ", ".join(method.text for method in found if method.is_filter)
        known = sum(self.known[commit.sha, each.name] for each in methods)
        executions: list[BenchExecution] = []
        for left in sorted({self._count_left(commit, each) for each in methods} - {0}):
            chosen = tuple(each for each in methods if self._count_left(commit, each) == left)
            executions += self._execute(commit, at, folder, chosen, left)
        problem = f"commit {commit.short} has no benchmark {missing}" if missing else ""
        return CommitOutcome(commit, at, tuple(executions), known, problem)

    def _count_left(self, commit: Commit, method: BenchMethod) -> int:
        return max(0, self.request.trials - self.known[commit.sha, method.name])

    def _execute(
        self, commit: Commit, at: float, folder: str, methods: tuple[BenchMethod, ...], trials: int
    ) -> tuple[BenchExecution, ...]:
        if self.end.interrupted or self.end.problem:
            return ()
        report = self.execute(
            replace(
                self.request,
                methods=methods,
                trials=trials,
                variants=(BenchVariant(self.request.label or "", folder, commit.sha),),
                extra={**self.request.extra, RANGE: self.name, COMMITTED_AT: at},
            )
        )
        if report.interrupted or report.problem:
            self.end = replace(report, executions=())
        return report.executions


def _wait_for_left(root: str | None, console: Console) -> None:
    """Wait until the runs of a killed call have ended: their tree must not change while they run."""
    location, is_said = find_location(root), False
    with closing_quietly(open_index(location.root, is_needed=False)) as index:
        while True:
            refresh_study(index, location)
            running = [row for row in index.load_runs([location.name]) if row.state is State.RUNNING]
            if not running:
                return
            if not is_said:
                console.message(f"waiting for {running[0].key}, which an earlier call has started")
            is_said = True
            time.sleep(_ASK_S)


# ---------------------------------------------------------------- which environment


def build_matcher(request: BenchRequest) -> Callable[[Mapping[str, str]], bool]:
    """Return a function that tests whether an environment has the machine and package versions of this call."""
    devices = Devices()
    environment = load_environment(request.folder or os.getcwd(), (), devices)
    machine = load_machine(environment, devices, tuple(gpu.index for gpu in devices.list()))
    versions = _load_versions(request.python or sys.executable)
    here = {**build_environment(machine, None, {}), "python": versions.get("python", "")}

    def matches(setup: Mapping[str, str]) -> bool:
        loaded = {key: value for key, value in setup.items() if key not in here}
        name, _, version = loaded.pop("framework", "").partition(" ")
        loaded |= {name: version} if name else {}
        same = all(setup.get(key, "") == value for key, value in here.items())
        return same and all(versions.get(key, value) == value for key, value in loaded.items())

    return matches


def _load_versions(python: str) -> Mapping[str, str]:
    """Load the versions of the interpreter and of its installed packages."""
    try:
        done = subprocess.run([python, "-c", _VERSIONS], capture_output=True, timeout=60, check=True)
        return dict(parse_json(done.stdout))
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        return {}


def load_range(repository: str, first: str, last: str) -> list[tuple[Commit, float]]:
    """Return the commits of `first..last` along first parents, oldest first and without `first`, each with its position
    in time: its commit time, increased where commits share a second or a clock was wrong."""
    ends = [load_commit(repository, name).sha for name in (first, last)]
    form = f"--format={COMMIT_FIELDS}%x00%ct"
    lines = call_git(repository, "log", "--first-parent", "--reverse", form, f"{ends[0]}..{ends[1]}").splitlines()
    if not lines:
        is_swapped = ends[0] != ends[1] and is_ancestor(repository, ends[1], ends[0])
        hint = f"swap the ends: {last}..{first}" if is_swapped else f"write {first}~1..{last} for that commit alone"
        raise UsageError(f"{first}..{last} has no commit", hint)
    number = int(call_git(repository, "rev-list", "--count", "--first-parent", ends[1])) - len(lines)
    found, latest = [], 0.0
    for place, line in enumerate(lines, number):
        *fields, at = line.split("\0")
        latest = max(latest + 1e-6, float(at) + place * 1e-6)
        found.append((Commit(*fields), latest))
    return found
