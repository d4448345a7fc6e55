"""What a bisection found, as parts of a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from assay.values.document import Span, Text


class Commit(Protocol):
    """What is shown of a commit."""

    @property
    def sha(self) -> str: ...
    @property
    def short(self) -> str: ...
    @property
    def subject(self) -> str: ...
    @property
    def author(self) -> str: ...
    @property
    def authored_at(self) -> str: ...


def build_culprit(commit: Commit) -> list[Text]:
    return [
        Text(Span(f"culprit: {commit.short} {commit.subject!r}", "culprit")),
        Text(f"by {commit.author}, {commit.authored_at}", indent=1),
    ]


def build_suspects(commits: Sequence[Commit]) -> list[Text]:
    lines = [Text(f"{commit.short} {commit.subject!r}", indent=1) for commit in commits]
    return [Text("one of these, and the trials cannot tell which:"), *lines]


def build_commit_facts(commit: Commit) -> dict[str, Any]:
    names = ("sha", "subject", "author", "authored_at")
    return {name: getattr(commit, name) for name in names}
