"""`assay golden bisect`: finds the commit that broke convergence, in a work tree of its own, never in the user's.

Every trial is written to a log at once, and what to try next is a pure function of that log (judge/bisection.py): so a
search that was killed continues when the command is given again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Sequence
from typing import Any

from assay.code.checkout import Checkouts, Commit, find_inside, find_repository, load_commit, load_parents
from assay.errors import AssayError, InfrastructureError, UsageError
from assay.follow.api import StudyLocation
from assay.golden import manifests
from assay.golden.config import load_golden_file
from assay.golden.flow.check import check_test
from assay.golden.flow.gather import gather_test
from assay.golden.flow.segments import GoldenContext, GoldenOptions, build_contexts, choose_golden
from assay.golden.requests import GoldenBisectRequest
from assay.golden.results import BisectReport, Tried
from assay.golden.values import GoldenTestReport
from assay.judge.bisection import CommitTrial, Culprit, NextTry, Outcome, Stuck, TrialHistory, next_step
from assay.launch.api import RunHooks
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.system.files import append_line, load_lines
from assay.system.locks import hold
from assay.values import layout
from assay.values.plain import build_plain, parse_plain
from assay.values.verdict import Finding, VerdictKind

LOG_FILE = "log.jsonl"
TREE_DIR = "tree"
STORE_DIR = "store"
NOISY_VOTES = 2  # trials of the first bad commit, and of its parent, if replicas differ


def bisect_file(request: GoldenBisectRequest, options: GoldenOptions, hooks: RunHooks) -> BisectReport:
    """Check both ends, search, and return the culprit with its evidence. Without a store, gather the good end first."""
    contexts = build_contexts(load_golden_file(options.file), options)
    contexts = [choose_golden(context) for context in contexts] if options.store else contexts
    repository = find_repository(contexts[0].folder)
    good, bad = load_commit(repository, request.good), load_commit(repository, request.bad)
    parents = load_parents(repository, good.sha, bad.sha)
    folder = _choose_folder(contexts[0], request, good, bad)
    taken = UsageError(f"another bisect of the same commits is running in {folder}", "wait for it, or end it")
    with hold(folder, taken):  # two searches would use the same tree
        moved = [_move(context, repository, folder) for context in contexts]
        inside = tuple(find_inside(context.folder, repository) for context in contexts)
        checkouts = Checkouts(repository, folder, inside, request.build, request.build_timeout_s)
        return _Search(request, moved, checkouts, hooks, good, bad, parents).run()


def _choose_folder(context: GoldenContext, request: GoldenBisectRequest, good: Commit, bad: Commit) -> str:
    """Choose the folder by commits, configuration and store, so that an interrupted search is found again."""
    question = [good.sha, bad.sha, context.config_hash, context.options.store and context.manifest, request.build]
    key = hashlib.sha256(json.dumps(question).encode()).hexdigest()[:8]
    name = f"bisect-{good.sha[:7]}-{bad.sha[:7]}-{key}"
    folder = os.path.join(context.location.dir, layout.STUDY_META_DIR, name)
    try:
        os.makedirs(folder, exist_ok=True)
        if request.fresh:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, LOG_FILE))
    except OSError as error:
        hint = "choose another output root: --root DIR"
        raise UsageError(f"{folder} cannot be created: {error.strerror}", hint) from None
    return folder


def _move(context: GoldenContext, repository: str, bisect_folder: str) -> GoldenContext:
    """Move a test from the user's folder into the work tree; without a store, the test gets one next to the tree."""
    folder = os.path.normpath(os.path.join(bisect_folder, TREE_DIR, find_inside(context.folder, repository)))
    location = StudyLocation(context.location.root, f"{context.location.name}-bisect")
    study = replace(context.study, folder=folder, name=location.name)
    moved = replace(context, folder=folder, study=study, location=location)
    return moved if context.options.store else moved.use_store(os.path.join(bisect_folder, STORE_DIR))


@dataclass(slots=True)
class _Search:
    """Tries commits in a work tree."""

    request: GoldenBisectRequest
    contexts: Sequence[GoldenContext]
    checkouts: Checkouts
    hooks: RunHooks
    good: Commit
    bad: Commit
    parents: Any
    tried: list[Tried] = field(default_factory=list)
    resumed: int = 0

    def run(self) -> BisectReport:
        message, log = self.hooks.console.message, os.path.join(self.checkouts.folder, LOG_FILE)
        self.tried = load_trials(log)
        self.resumed = len(self.tried)
        message(f"{len(self.parents)} commits from {self.good.short} to {self.bad.short}, both included")
        message(f"trials are kept in {log}")
        if self.resumed:
            message(f"continuing: {self.resumed} trials were made before")
        while isinstance(step := self._choose_next(), NextTry):
            commit = load_commit(self.checkouts.repository, step.commit)
            message(f"trying {commit.short} {commit.subject!r}: {step.reason}")
            tried, interrupted = self._try_commit(commit)
            if interrupted:
                return self._report(interrupted=interrupted)
            append_trial(log, tried)
            self.tried.append(tried)
            message(f"  {tried.verdict}: {tried.message}")
        return self._conclude(step)

    def _choose_next(self) -> NextTry | Culprit | Stuck:
        trials = tuple(CommitTrial(tried.commit, self._outcome(tried)) for tried in self.tried)
        votes, patience = NOISY_VOTES if self._is_noisy() else 1, self.request.patience
        return next_step(TrialHistory(self.parents, self.good.sha, self.bad.sha, trials, votes, patience))

    def _outcome(self, tried: Tried) -> Outcome:
        """Map a verdict to an outcome. CHANGED is good if the bad end fails; otherwise, and at both ends, it is bad."""
        if tried.verdict is VerdictKind.CHANGED:
            ends = (self.good.sha, self.bad.sha)
            bad_kinds = {each.verdict for each in self.tried if each.commit == self.bad.sha}
            return "bad" if tried.commit in ends or VerdictKind.FAIL not in bad_kinds else "good"
        outcomes: dict[VerdictKind, Outcome] = {
            VerdictKind.PASS: "good",
            VerdictKind.FAIL: "bad",
            VerdictKind.INCONCLUSIVE: "open",
        }
        return outcomes.get(tried.verdict, "skip")

    def _conclude(self, step: Culprit | Stuck) -> BisectReport:
        if isinstance(step, Stuck):  # the report gets the results of the two ends
            lines = [step.reason]
            for name, commit in (("good", self.good), ("bad", self.bad)):
                last = [each for each in self.tried if each.commit == commit.sha][-1:]
                lines += [f"{name} end {commit.short}: {each.verdict}, {each.message}" for each in last]
            return self._report(stuck="\n  ".join(lines))
        suspects = tuple(load_commit(self.checkouts.repository, sha) for sha in step.suspects)
        if step.culprit is None:
            return self._report(suspects=suspects)
        bad = [each for each in self.tried if each.commit == step.culprit and self._outcome(each) == "bad"]
        return self._report(culprit=suspects[0], evidence=next(iter(bad), None), suspects=suspects)

    def _report(self, **facts: Any) -> BisectReport:
        ends, tried = (self.good, self.bad, self.checkouts.folder), tuple(self.tried)
        return BisectReport(*ends, len(self.parents) - 1, tried, resumed=self.resumed, **facts)

    def _is_noisy(self) -> bool:
        """Whether the golden's own recordings differ, so that one trial may be wrong."""
        for context in self.contexts:
            with contextlib.suppress(AssayError):
                if any(manifests.load_manifest(context.manifest, context.test.name).noise.values()):
                    return True
        return False

    def _try_commit(self, commit: Commit) -> tuple[Tried, str | None]:
        began = time.monotonic()
        self._prepare_golden()
        try:
            self.checkouts.enter(TREE_DIR, commit)
            reports = [check_test(context, self.hooks) for context in self.contexts]
        except UsageError as error:  # for example, the commit cannot be built
            return Tried(commit.sha, VerdictKind.ERROR, error.message), None
        interrupted = next((report.interrupted for report in reports if report.interrupted), None)
        if broken := next((report.problem for report in reports if report.problem), None):
            raise InfrastructureError(broken)
        worst = min((_worst(report) for report in reports), key=_rank)
        message, elapsed_s = worst.message.split("\n")[0], round(time.monotonic() - began, 3)
        fields = worst.subject, worst.effect, worst.interval, worst.step
        return Tried(commit.sha, worst.kind, message, *fields, elapsed_s), interrupted

    def _prepare_golden(self) -> None:
        """Gather the good end, once, if there is no store. Raises UsageError if a store does not have the golden."""
        for context in self.contexts:
            if self.request.store:
                manifests.load_manifest(context.manifest, context.test.name, context.hint_to_gather())
                continue
            with contextlib.suppress(UsageError):
                if manifests.load_manifest(context.manifest, context.test.name).complete:
                    continue
            what = f"the golden recording of {context.test.name} at the good end {self.good.short}"
            self.hooks.console.message(f"gathering {what}")
            try:
                self.checkouts.enter(TREE_DIR, self.good)
            except UsageError as error:
                raise UsageError(f"the good end cannot be gathered: {error.message}") from None
            report = gather_test(context, self.hooks)
            if report.verdict.kind is not VerdictKind.PASS:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(context.manifest)
                message = f"the good end cannot be gathered: {_worst(report).message}"
                raise UsageError(message, "try it by hand: assay golden gather")


# From the worst verdict: a segment that fails decides, whatever the others are; a crash alone decides nothing.
_ORDER = (VerdictKind.FAIL, VerdictKind.ERROR, VerdictKind.INCONCLUSIVE, VerdictKind.CHANGED, VerdictKind.PASS)


def _rank(finding: Finding) -> tuple[int, float, float]:
    """Rank the earliest of several failures first: later failures may follow from it."""
    return _ORDER.index(finding.kind), math.inf if finding.step is None else finding.step, -abs(finding.effect or 0.0)


def _worst(report: GoldenTestReport) -> Finding:
    """Return the worst finding; for a test without findings, one with the verdict of its report."""
    nothing = Finding(report.verdict.kind, report.test, "nothing was found")
    return min(report.verdict.findings, key=_rank, default=nothing)


def append_trial(path: str, tried: Tried) -> None:
    append_line(path, {**build_plain(tried), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})


def load_trials(path: str) -> list[Tried]:
    """Load the trials of earlier calls; a line that a kill cut short is ignored."""
    found = []
    for line in load_lines(path):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            found.append(parse_plain(Tried, line))
    return found
