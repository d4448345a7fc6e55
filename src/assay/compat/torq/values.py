"""The results of a test session as Torq's dashboard takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One test of a session, whatever became of it."""

    nodeid: str
    outcome: str  # passed, failed, skipped, xfail, nxpass
    linked_issue: str | None = None
    measurements: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    failed_phase: str | None = None  # setup, call, teardown
    failure: str = ""  # all that pytest would print
    profile: str | None = None  # a file


@dataclass(frozen=True, slots=True)
class ResultSession:
    results: tuple[CaseResult, ...]
    commit: str | None
    branch: str | None
    workflow_url: str  # of the CI job; somewhere else a name that no other session has
    test_plan: str
    batch: str
