"""Chooses the next commit to try: bisection over a history with merges, commits that cannot be judged, and noise.

`TrialHistory` has all facts, and `next_step` is a pure function of it, so a killed search continues from its log. A
commit is a suspect while it is an ancestor of a bad commit and of no good one. The next commit to try is the one that
leaves the fewest suspects in the worse case. If the program is noisy (`votes` above 1), the culprit and the good
commits before it are tried again before the culprit is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from assay.values.document import Span, Text
from assay.values.environment import Commit

Outcome = Literal["good", "bad", "skip", "open"]
Opinion = Literal["good", "bad", "skip", "open", "unknown"]

_REASONS = {"good end": "is the good end good?", "bad end": "is the bad end bad?", "confirm": "once more, to be sure"}


@dataclass(frozen=True, slots=True)
class CommitTrial:
    """A trial of a commit. `skip`: it cannot be judged (it does not build, it crashes). `open`: nothing was decided."""

    commit: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class TrialHistory:
    """The facts of a search. `parents` has all commits from good to bad, ancestors first; other parents are ignored."""

    parents: Mapping[str, Sequence[str]]
    good: str
    bad: str
    trials: tuple[CommitTrial, ...] = ()
    votes: int = 1  # equal results that the culprit and the good commits before it need
    patience: int = 3  # undecided trials of a commit before it is skipped


@dataclass(frozen=True, slots=True)
class NextTry:
    commit: str
    why: Literal["good end", "bad end", "halve", "confirm"]
    suspects: int = 0

    @property
    def reason(self) -> str:
        """Why the commit is tried, for messages about the progress."""
        return _REASONS.get(self.why, f"{self.suspects} suspects")


@dataclass(frozen=True, slots=True)
class Culprit:
    """The result of a search. Commits directly before the first bad one that cannot be judged are suspects, too."""

    suspects: tuple[str, ...]

    @property
    def culprit(self) -> str | None:
        return self.suspects[0] if len(self.suspects) == 1 else None


@dataclass(frozen=True, slots=True)
class Stuck:
    reason: str


Step = NextTry | Culprit | Stuck


def next_step(history: TrialHistory) -> Step:
    return _check_ends(history) or _halve(history)


def form_opinion(history: TrialHistory, commit: str) -> Opinion:
    """Return the result of all trials of a commit: the majority of those that found it good or bad."""
    outcomes = [trial.outcome for trial in history.trials if trial.commit == commit]
    good, bad = outcomes.count("good"), outcomes.count("bad")
    if good != bad:
        return "good" if good > bad else "bad"
    if not outcomes:
        return "unknown"
    if len(outcomes) >= history.patience or (not good and "skip" in outcomes):
        return "skip"
    return "open"


def _check_ends(history: TrialHistory) -> Step | None:
    """Check before the search that the good end is good and the bad end is bad."""
    for commit, wanted in ((history.good, "good"), (history.bad, "bad")):
        opinion = form_opinion(history, commit)
        if opinion in ("unknown", "open"):
            return NextTry(commit, "good end" if wanted == "good" else "bad end", len(history.parents))
        if opinion == "skip":
            return Stuck(f"the {wanted} end cannot be judged")
        if opinion != wanted:
            return Stuck("the two ends do not differ: " + ("both are bad" if wanted == "good" else "both are good"))
    return None


class _CommitGraph:
    """The history as a graph, in which a set of commits is an integer with one bit per commit."""

    def __init__(self, parents: Mapping[str, Sequence[str]]) -> None:
        self.order = list(parents)
        self._index = {commit: number for number, commit in enumerate(self.order)}
        self._reach: list[int] = []
        for number, commit in enumerate(self.order):
            found = 1 << number
            for parent in parents[commit]:
                if self._index.get(parent, number) < number:
                    found |= self._reach[self._index[parent]]
            self._reach.append(found)

    def reach(self, commit: str) -> int:
        """Return the commit and all its ancestors."""
        return self._reach[self._index[commit]] if commit in self._index else 0

    def holds(self, commits: int, commit: str) -> bool:
        return commit in self._index and bool(commits >> self._index[commit] & 1)

    def members(self, commits: int) -> list[str]:
        return [commit for number, commit in enumerate(self.order) if commits >> number & 1]


def _halve(history: TrialHistory) -> Step:
    graph = _CommitGraph(history.parents)
    tip, suspects = _find_suspects(history, graph)
    if not suspects:
        return Stuck("the trials contradict one another: a commit is good whose ancestors were all found bad")
    members = graph.members(suspects)
    rest = [commit for commit in members if commit != tip and form_opinion(history, commit) != "skip"]
    if rest:
        return NextTry(_choose(rest, suspects, graph), "halve", len(members))
    return _confirm(history, tip, members) if len(members) == 1 else Culprit(tuple(members))


def _find_suspects(history: TrialHistory, graph: _CommitGraph) -> tuple[str, int]:
    tip = history.bad
    suspects = graph.reach(tip) & ~graph.reach(history.good)
    for commit in dict.fromkeys(trial.commit for trial in history.trials):
        opinion = form_opinion(history, commit)
        if opinion == "bad" and graph.holds(suspects, commit):
            tip, suspects = commit, suspects & graph.reach(commit)
        elif opinion == "good":
            suspects &= ~graph.reach(commit)
    return tip, suspects


def _choose(candidates: Sequence[str], suspects: int, graph: _CommitGraph) -> str:
    total = suspects.bit_count()

    def left(commit: str) -> int:
        below = (graph.reach(commit) & suspects).bit_count()
        return max(below, total - below)

    return min(candidates, key=left)


def _confirm(history: TrialHistory, tip: str, members: list[str]) -> Step:
    """Return the next trial to confirm the culprit and the good commits before it; with enough votes, the culprit."""
    before = [commit for commit in history.parents[tip] if form_opinion(history, commit) == "good"]
    for commit, wanted in ((tip, "bad"), *((commit, "good") for commit in before)):
        outcomes = [trial.outcome for trial in history.trials if trial.commit == commit]
        margin = 2 * outcomes.count("good" if wanted == "good" else "bad") - len(outcomes)
        if margin < history.votes and len(outcomes) < 2 * history.patience:
            return NextTry(commit, "confirm", 1)
    return Culprit(tuple(members))


def build_culprit(commit: Commit) -> list[Text]:
    return [
        Text(Span(f"culprit: {commit.short} {commit.subject!r}", "culprit")),
        Text(f"by {commit.author}, {commit.authored_at}", indent=1),
    ]


def build_suspects(commits: Sequence[Commit]) -> list[Text]:
    lines = [Text(f"{commit.short} {commit.subject!r}", indent=1) for commit in commits]
    return [Text("one of these, and the trials do not show which:"), *lines]
